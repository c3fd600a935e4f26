"""All runs of an application's own sources in this process: begun with their tasks, drained by the loop, and ended.

    begin(task) ──> SourceRun of each own source ──> drain: into the task's input, up to INPUT_RECORDS_MAX
    end(task) ────> cancelled, and kept until its thread has ended; past the deadline `overdue` names it

A task does not begin here while an earlier run of one of its sources has not ended: no two threads read for one
partition of a source. The application keeps these runs from one `run()` to the next for the same reason.

Rules of this file: one thread, the loop's. Only `join` waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.progress import LOOP, LeaseProgress
from standfast.store.clock import Clock
from standfast.store.errors import InvalidRequest
from standfast.store.log import as_event, logger
from standfast.store.names import few
from standfast.store.process.interrupts import Flag
from standfast.store.process.threads import THREADS
from standfast.store.timestamps import duration_text
from standfast.stream.runtime.inputs import OwnInput
from standfast.stream.runtime.runner import TaskRunner
from standfast.stream.runtime.source_run import RunState, SourceRun
from standfast.stream.task.statistics import SessionCounters, SourceStatistics
from standfast.stream.topology.nodes import SourceNode

INPUT_RECORDS_MAX = 500  # taken and not processed; more wait in the run's queue, whose bound stops the source
CANCEL_TIMEOUT_MS = 10_000
JOIN_STEP_MS = 20


@dataclass(slots=True)
class _Running:
    """A run, and the input of its task that it fills."""

    one: OwnInput
    run: SourceRun
    told: bool = False  # whether its end by itself was logged


@dataclass(slots=True)
class _Ending:
    """A run that was cancelled; past the deadline it hangs."""

    task: TaskId
    topic: str
    run: SourceRun
    deadline_ms: int


class SourceRuns:
    """The runs of one application. `cancel_timeout_ms`: how long a cancelled run may take to end."""

    def __init__(self, clock: Clock, cancel_timeout_ms: int = CANCEL_TIMEOUT_MS) -> None:
        self.threads = THREADS
        self._clock = clock
        self._cancel_timeout_ms = cancel_timeout_ms
        self._wake = Flag()
        self._runs: dict[TaskId, list[_Running]] = {}
        self._ending: list[_Ending] = []

    @property
    def active(self) -> bool:
        """Whether any source runs here."""
        return bool(self._runs)

    def may_begin(self, task: TaskId, sources: Iterable[SourceNode]) -> bool:
        """Whether no earlier run of these sources is still at work for the task's partition."""
        self._ending = [one for one in self._ending if not one.run.ended]
        topics = {source.topic for source in sources}
        return not any(one.topic in topics and one.task.partition == task.partition for one in self._ending)

    def begin(self, task: TaskId, runner: TaskRunner) -> None:
        """Start the sources of a task at its positions."""
        for one in runner.own_inputs:
            place = (one.own.name, one.partition, one.own.partitions)
            where = f"source {one.own.name!r} of task {task}"
            run = SourceRun(one.own.source.another(), where, place, one.consumed, self._clock, self._wake, self.threads)
            self._runs.setdefault(task, []).append(_Running(one, run))
            run.start()
            about = as_event("source_started", task=task, source=one.own.name, offset=one.consumed)
            logger.info("%s runs, from offset %d", where, one.consumed, extra=about)

    def drain(self, task: TaskId, runner: TaskRunner, counters: SessionCounters) -> Exception | None:
        """Pass collected records to the task. Returns the error of a failed run, once its records are processed."""
        for running in self._runs.get(task, ()):
            one, run = running.one, running.run
            state = run.state  # before the take: a run that ends in between is seen next time
            room = INPUT_RECORDS_MAX - one.waiting
            if room > 0 and (run.waiting or not one.waiting):
                taken = run.take(room)
                if not taken and run.error is not None:
                    return run.error
                runner.take_collected(one, taken, at_end=not run.waiting)
                counters.source_records[one.own.name, one.partition] += len(taken)
            if state is RunState.FINISHED and not run.waiting and not one.waiting and not running.told:
                running.told = True
                runner.finish(one)
                about = as_event("source_finished", task=task, source=one.own.name, offset=one.consumed)
                logger.info(
                    "%s finished at offset %d: it waits for the next start", run.where, one.consumed, extra=about
                )
        return None

    def ends(self, task: TaskId) -> dict[TopicPartition, int]:
        """The position behind the last collected record of each source of a task."""
        runs = self._runs.get(task, ())
        return {TopicPartition(one.one.topic, one.one.partition): one.run.position for one in runs}

    def end(self, task: TaskId) -> None:
        """Cancel the sources of a task, without waiting for their end."""
        deadline_ms = self._clock.monotonic_ms() + self._cancel_timeout_ms
        for running in self._runs.pop(task, ()):
            running.run.stop()
            self._ending.append(_Ending(task, running.one.topic, running.run, deadline_ms))

    def overdue(self) -> InvalidRequest | None:
        """The error for runs that have not ended within their deadline; None if there are none."""
        if not self._ending:
            return None
        now_ms = self._clock.monotonic_ms()
        self._ending = [one for one in self._ending if not one.run.ended]
        return self._error(one.run for one in self._ending if now_ms >= one.deadline_ms)

    def join(self, progress: LeaseProgress) -> InvalidRequest | None:
        """Wait for all cancelled runs, up to the deadline; return the error for those that have not ended."""
        steps = 0 if self.overdue() is not None else self._cancel_timeout_ms // JOIN_STEP_MS + 1
        for _ in range(steps):
            hanging = [one for one in self._ending if not one.run.ended]
            if not hanging:
                break
            hanging[0].run.join(JOIN_STEP_MS / 1_000)
            progress.step(LOOP)
        self._ending = [one for one in self._ending if not one.run.ended]
        return self._error(one.run for one in self._ending)

    def wait(self, timeout_ms: int) -> None:
        """Wait until a source has collected something, or ended, or for so long."""
        self.threads.wait(self._wake, timeout_ms)
        self._wake.clear()

    def statistics(self) -> tuple[SourceStatistics, ...]:
        """Every source that runs here, or is at its end; any thread may call this."""
        # Copies, because the loop's thread changes the lists meanwhile.
        now = [(task, running) for task, runs in dict(self._runs).items() for running in list(runs)]
        found = [
            SourceStatistics(
                running.one.own.name,
                running.one.partition,
                str(task),
                running.run.state.value,
                running.run.position,
                running.one.consumed,
                running.run.waiting + running.one.waiting,
            )
            for task, running in now
        ]
        return tuple(sorted(found, key=lambda one: (one.source, one.partition)))

    def _error(self, runs: Iterable[SourceRun]) -> InvalidRequest | None:
        hanging = [f"{run.where}: {run.hanging()}" for run in runs]
        if not hanging:
            return None
        return InvalidRequest(
            f"cancelled, and not ended within {duration_text(self._cancel_timeout_ms)}: {few(hanging, '; ')}; it "
            "cannot begin again in this process, as two threads would read: let run() return once context.cancelled "
            "is true or cancel() is called, or raise source_cancel_timeout_ms"
        )
