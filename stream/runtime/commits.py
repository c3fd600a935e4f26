"""The commits under way of an application's loop: other threads wait for the log, and the loop does the rest.

    begin ──> steps of the task (loop) ──> call to the log (a thread of the pool) ──> steps (loop) ──> ... ──> ended
                                               │ meanwhile the loop runs the tasks without a commit under way
                                               └─ an error of the call is raised by `go_on`, in the loop

Rules of this file: the loop's thread alone calls it, and the pool makes nothing but the calls that the steps hand out.
A task with a commit under way must be left alone until that has ended. On a log of this machine (`Log.remote` is False)
a call takes less than a change of threads, and its writers exclude each other: all steps run at once, in the loop. In a
session without threads each step of the loop makes one call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from typing import Any

from standfast.replication.offsets import TaskId
from standfast.store.clock import Clock
from standfast.store.process.threads import THREADS, Threads
from standfast.stream.runtime.commit_pace import MOST_ROOM, CommitPace
from standfast.stream.steps import LogCall, Steps, run_steps
from standfast.stream.topology.nodes import SubTopology

# A commit under way for longer holds the loop, as if the loop itself waited: its lease must not be renewed while a call
# to the log does not return.
HOLD_MS = 2_000

Ended = Callable[[bool], None]


@dataclass(slots=True)
class PendingCommit:
    """One commit under way. `ended` gets whether it wrote something."""

    steps: Steps[bool]
    answer: Future[Any]
    began_ms: int
    ended: Ended


class Commits:
    """Commits under way, one for each task at most, and together at most `room` of the pace."""

    def __init__(self, clock: Clock, pace: CommitPace, *, remote: bool, threads: Threads = THREADS) -> None:
        self._clock = clock
        self._pace = pace
        self._remote = remote
        self._flights: dict[TaskId, PendingCommit] = {}
        self._threads = threads
        self._pool: Executor | None = None

    def __contains__(self, task_id: TaskId) -> bool:
        return task_id in self._flights

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def has_room(self) -> bool:
        """Whether a commit that begins now need not wait for another one."""
        return len(self._flights) < self._pace.room

    def begin(self, task_id: TaskId, steps: Steps[bool], ended: Ended) -> None:
        """Begin the commit of a task without one under way; it may end at once. Raises the error of its first steps."""
        if not self._remote:
            ended(run_steps(steps))
            return
        try:
            call = next(steps)
        except StopIteration as end:
            ended(end.value)  # nothing to commit
            return
        self._flights[task_id] = PendingCommit(steps, self._submit(call), self._clock.monotonic_ms(), ended)

    def returned(self) -> list[TaskId]:
        """The tasks whose call has returned, so that `go_on` does not wait."""
        return [task_id for task_id, flight in self._flights.items() if flight.answer.done()]

    def held(self) -> list[TaskId]:
        """The tasks whose commit has been under way for so long that the loop is to wait for it."""
        least_ms = self._clock.monotonic_ms() - HOLD_MS
        return [task_id for task_id, flight in self._flights.items() if flight.began_ms < least_ms]

    def go_on(self, task_id: TaskId) -> bool:
        """Continue after the call of a task, for which it waits; whether the commit has ended. Raises its error."""
        flight = self._flights[task_id]
        wait([flight.answer])  # apart from `result`, because a signal handler's error is not the call's
        error = flight.answer.exception()
        # Away while its steps run: from an error on, and at the end, no commit is under way.
        del self._flights[task_id]
        try:
            call = flight.steps.send(flight.answer.result()) if error is None else flight.steps.throw(error)
        except StopIteration as end:
            flight.ended(end.value)
            return True
        flight.answer = self._submit(call)
        self._flights[task_id] = flight
        return False

    def finish(self, task_id: TaskId) -> None:
        """Wait for the end of a task's commit, if one is under way. Raises its error."""
        while task_id in self._flights and not self.go_on(task_id):
            pass

    def wait(self, wait_ms: float) -> None:
        """Wait until a call returns, for at most so many milliseconds."""
        if self._flights:
            wait([flight.answer for flight in self._flights.values()], wait_ms / 1_000, FIRST_COMPLETED)

    def close(self) -> None:
        """End the threads; every commit has ended before."""
        if self._pool is not None:
            self._pool.shutdown()

    def _submit(self, call: LogCall) -> Future[Any]:
        if self._pool is None:
            self._pool = self._threads.pool(MOST_ROOM, "standfast-commit")
        return self._pool.submit(call)


def groups_before(groups: tuple[SubTopology, ...]) -> Mapping[int, frozenset[int]]:
    """For each group the groups that write to its internal topics; without those that read from it in turn."""
    direct: dict[int, set[int]] = {one.group: set() for one in groups}
    for writer in groups:
        written = {sink.topic for sink in writer.sinks if sink.internal is not None}
        for reader in groups:
            if reader is not writer and written & set(reader.topics):
                direct[reader.group].add(writer.group)
    return {
        group: frozenset(one for one in before if not _leads(group, one, direct)) for group, before in direct.items()
    }


def _leads(first: int, last: int, direct: Mapping[int, set[int]]) -> bool:
    """Whether records of one group reach another one."""
    seen: set[int] = set()
    waiting = [last]
    while waiting:
        for one in direct[waiting.pop()] - seen:
            if one == first:
                return True
            seen.add(one)
            waiting.append(one)
    return False
