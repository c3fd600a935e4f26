"""The writes of one commit: to the log first, and to the local stores once that has acknowledged them.

    exactly once     log transaction (changelogs, outputs, source offsets) -> one local batch
    at least once    log append (changelogs, outputs) -> one local batch -> source offsets

Rules of this file: that order, in which the log is never behind the local state. The caller of the generator makes the
calls to the log, in any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from standfast.replication.log import Batches, Group, GroupCommit, LogWriter
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.tail.applier import ChangelogApplier
from standfast.store.clock import measured_ns
from standfast.store.engine import Prepared
from standfast.store.errors import StandfastError
from standfast.store.failpoint import reach
from standfast.store.histogram import SECONDS_PER_NS
from standfast.store.task.task_stores import TaskStores
from standfast.stream.cut import Cut, check_log, recorded
from standfast.stream.steps import LogCall, Steps
from standfast.stream.task.settings import Guarantee
from standfast.stream.task.statistics import SessionCounters, log_error


class WrittenTask(NamedTuple):
    """The parts of a task that its commits write to. `owns`: whether the task reads a topic."""

    id: TaskId
    stores: TaskStores
    applier: ChangelogApplier
    group: Group
    guarantee: Guarantee
    owns: Callable[[str], bool]


class CommitWrite:
    """One commit on its way. `in_log`: the log may have some or all of it."""

    def __init__(self, task: WrittenTask, writer: LogWriter, counters: SessionCounters) -> None:
        self.in_log = False
        self.inflight = (0, 0)  # records and bytes given to the log and not acknowledged
        self.prepared: Prepared | None = None  # the local write, while the log has its records
        self._task = task
        self._writer = writer
        self._counters = counters

    def steps(self, batches: Batches, commit: GroupCommit, cut: Cut) -> Steps[Mapping[TopicPartition, int]]:
        """Make a cut durable; returns the offsets that the log acknowledged."""
        task, writer = self._task, self._writer
        acknowledged = yield from self._log(batches, commit, cut.part.size_bytes)
        self.in_log = True
        try:
            reach("commit.logged")
            self._write_here(batches, cut, acknowledged)
        except BaseException:
            # Acknowledged and not local: under exactly once the next opening writes these rows.
            task.stores.keep_unwritten(cut.part.rows)
            raise
        reach("commit.local")
        if task.guarantee == "at_least_once" and commit.offsets:
            # Refused once another instance has the task: it reads on from the offsets committed before it opened.
            yield partial(task.group.commit, commit.offsets, commit.member, writer.claim)
        return acknowledged

    def _log(self, batches: Batches, commit: GroupCommit, size_bytes: int) -> Steps[Mapping[TopicPartition, int]]:
        """Pass the records to the log and wait for its acknowledgement; counts the time, and failures."""
        writer, exactly_once = self._writer, self._task.guarantee == "exactly_once"
        if not batches and not (exactly_once and commit.offsets):
            if commit.offsets:
                # Writes nothing, and is refused if a newer owner has the task.
                yield partial(writer.append, {})
            return {}
        self.inflight = (sum(map(len, batches.values())), size_bytes)
        started_ns = measured_ns()
        try:
            if exactly_once:
                given = commit if commit.offsets else None
                call: LogCall = partial(writer.transact, batches, given, meanwhile=self._prepare)
            else:
                call = partial(writer.append, batches, meanwhile=self._prepare)
            acknowledged: Mapping[TopicPartition, int] = yield call
        except BaseException as error:
            self._counters.changelog_errors[log_error(error)] += 1
            # A writer marks its errors; any other exception may have come after the log took the commit.
            self.in_log = error.in_doubt if isinstance(error, StandfastError) else True
            raise
        finally:
            self.inflight = (0, 0)
        self._counters.ack_seconds.observe((measured_ns() - started_ns) * SECONDS_PER_NS)
        return acknowledged

    def _prepare(self) -> None:
        self.prepared = self._task.stores.prepare()

    def _write_here(self, batches: Batches, cut: Cut, acknowledged: Mapping[TopicPartition, int]) -> None:
        """Write the acknowledged commit locally, in one batch."""
        task, writer, before = self._task, self._writer, self._task.stores.cut
        marked = task.guarantee == "exactly_once" and writer.marks_transactions
        check_log(task.id, before, batches, acknowledged, task.applier, marked=marked)
        record = recorded(before, cut, acknowledged, task.applier, marked=marked, epoch=writer.epoch, owns=task.owns)
        prepared, self.prepared = self.prepared, None
        task.stores.commit(record, prepared)
