"""A task that a loop processes, with the records and commits that wait for it; whether the gate lets tasks process.

Rules of this file: the loop's thread alone. It keeps facts and decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from standfast.replication.log import Record
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.store.clock import Clock
from standfast.store.names import few
from standfast.stream.runtime.commits import Commits
from standfast.stream.runtime.holds import Hold
from standfast.stream.runtime.runner import TaskRunner
from standfast.stream.session.session import Session
from standfast.stream.task.states import TaskState
from standfast.stream.task.task import Task

RESTORING_WAIT_MS = 5


@dataclass(slots=True)
class RunningTask:
    """A task that this loop processes."""

    task: Task
    runner: TaskRunner
    next_commit_ms: int
    committing: bool = False  # a commit is due and waits for the results of calls
    due_ms: int = 0  # of the commit under way
    # Its last commit has begun, since another instance gets the task. From then on it takes nothing: if the move is
    # taken back once this run has ended, the next run goes on from that commit, with the same stores.
    last: bool = False
    hold: Hold = field(default_factory=Hold)  # for a checkpoint
    # Fetched during its commit, or beyond its limits: with partition, next offset, whether that is the end.
    later: list[tuple[TopicPartition, Sequence[Record], int, bool]] = field(default_factory=list)

    @property
    def asks(self) -> bool:
        """Whether the task asks for a commit before its interval is over."""
        return self.task.commit_requested or self.task.stores.buffer.full

    @property
    def rests(self) -> bool:
        """Whether it takes no records: it stands still for a checkpoint, or the next owner begins at its last commit.

        Records processed after that commit would be counted twice if the move is taken back: the next run begins there.
        """
        return self.hold.stands or self.last

    def waiting(self, at: TopicPartition) -> int:
        """The number of records of an input that were fetched and not processed."""
        return self.runner.waiting(at) + sum(len(one[1]) for one in self.later if one[0] == at)

    def fetched(self, at: TopicPartition) -> int:
        """The next offset of an input to fetch, by the records that the loop has."""
        later = [one[2] for one in self.later if one[0] == at]
        return later[-1] if later else self.runner.inputs[at.topic].fetched


def offsets_text(task: Task) -> str:
    """The source offsets of a task's last commit, as text; of a failed task, too."""
    offsets = sorted(task.stores.cut.sources.items())
    return few(f"{source} at offset {offset}" for source, offset in offsets) or "none was committed yet"


def positions_text(positions: Mapping[TopicPartition, int]) -> str:
    """Positions as text."""
    return few(f"{at} at offset {offset}" for at, offset in sorted(positions.items()))


def gate_is_shut(
    session: Session,
    running: Mapping[TaskId, RunningTask],
    open_tasks: Mapping[TaskId, Task],
    committing: Commits,
) -> bool:
    """Whether a running task is not open: the restore gate is shut, with gate="all" for every task.

    A task that has left or failed runs until its commit under way has ended, and says nothing about the gate.
    """
    shut = running.keys() - open_tasks.keys()
    if not shut:
        return False
    held = session.held_tasks()
    return any(
        task_id not in committing
        or (held.get(task_id) is (task := running[task_id].task) and task.state is TaskState.RUNNING)
        for task_id in shut
    )


def wait_for_task(session: Session, clock: Clock, timeout_ms: int) -> None:
    """Wait until a task is open, at most `timeout_ms`."""
    # Short waits only while a task restores or is opened again: an instance that has nothing but standbys must sleep.
    while timeout_ms > 0 and not session.open_tasks():
        restoring = any(task.state is TaskState.RESTORING for task in session.held_tasks().values())
        comes = restoring or not session.lives.rests_until(clock.monotonic_ms() + timeout_ms)
        wait_ms = min(timeout_ms, RESTORING_WAIT_MS) if comes else timeout_ms
        clock.sleep_ms(wait_ms)
        timeout_ms -= wait_ms
