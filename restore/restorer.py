"""Restores active tasks: replays their changelogs in batches until every position reaches its end.

    plan (pure) ──> reader.add(position) ──> fetch ──> ChangelogApplier.apply ──> position >= end: done

Rules of this file: a shell driven by one thread through `poll_once`. A restore ends by position, never by the
offset of the last record, because the last offsets may hold no record (markers, compaction). The end is read once,
after the previous owner was fenced; nothing at or beyond it is applied, since a source topic that serves as changelog
goes on with records that are not processed yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from standfast.replication.applier import ChangelogApplier
from standfast.replication.columns import payload_bytes
from standfast.replication.listeners import Listener
from standfast.replication.log import Fetched, Log, LogReader
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.restore.progress import ProgressMeter, RestoreProgress
from standfast.store.errors import InternalError, StandfastError, StateLost, Unavailable, UnknownStore
from standfast.store.failpoint import reach

# Measured: 10,000 rows a batch restore a tenth faster than 5,000 (they are sorted), 50,000 slower than both; a batch
# holds the interpreter and the session's lock for about 25 ms. Where several records fold to one row, a batch takes
# more of them for as many rows.
BATCH_ROWS = 10_000
BATCH_RECORDS_MAX = 4 * BATCH_ROWS


@dataclass(slots=True)
class RestoringChangelog:
    """One changelog on its way to the end."""

    store: str
    position: int
    end: int
    reason: str
    meter: ProgressMeter
    records: int = 0
    payload_bytes: int = 0

    @property
    def done(self) -> bool:
        """Whether the position has reached the end."""
        return self.position >= self.end


@dataclass(slots=True)
class RestoringTask:
    """One task with the changelogs that are not whole yet."""

    applier: ChangelogApplier
    changelogs: dict[TopicPartition, RestoringChangelog]

    @property
    def done(self) -> bool:
        """Whether every store is whole."""
        return all(changelog.done for changelog in self.changelogs.values())


@dataclass(frozen=True, slots=True)
class RestoreRound:
    """What one round did: records applied, tasks now whole, tasks that failed and why."""

    applied: int = 0
    restored: tuple[TaskId, ...] = ()
    failed: dict[TaskId, StandfastError] = field(default_factory=dict)


class Restorer:
    """All restoring tasks of one process."""

    def __init__(self, log: Log, listener: Listener, reader: LogReader | None = None) -> None:
        """`reader` is a lane of the fetch pipeline; without one it reads by itself."""
        self._log = log
        self._reader: LogReader = reader if reader is not None else log.reader()
        self._listener = listener
        self.tasks: dict[TaskId, RestoringTask] = {}
        self._batch_records = min(BATCH_ROWS, BATCH_RECORDS_MAX)
        self.records_total = 0
        self.bytes_total = 0
        self.restored_records: Counter[tuple[str, int, str]] = Counter()  # store, partition, reason
        self.restored_bytes: Counter[tuple[str, int, str]] = Counter()

    def add(
        self, applier: ChangelogApplier, ranges: Mapping[TopicPartition, tuple[int, int, str]], now_ms: int
    ) -> None:
        """Restore each changelog of a task from position to end; a range is (position, end, reason)."""
        changelogs = {}
        for changelog, (position, end, reason) in ranges.items():
            store = applier.store_of[changelog]
            meter = ProgressMeter(applier.task, changelog, position, end, now_ms=now_ms)
            changelogs[changelog] = RestoringChangelog(store, position, end, reason, meter)
            if position >= end and applier.position(changelog) is None:
                # An empty changelog is restored by knowing where it ends; keep that position with the data.
                applier.apply(changelog, (), position)
            self._listener.on_restore_start(applier.task, store, changelog, position, end, reason)
        self.tasks[applier.task] = RestoringTask(applier, changelogs)
        if not all(one.done for one in changelogs.values()):
            applier.stores.restoring(True)
        self._reader.add({changelog: one.position for changelog, one in changelogs.items() if not one.done})

    def remove(self, task: TaskId, reason: str) -> None:
        """Give up a restore; what was applied stays, with its position."""
        restoring = self.tasks.pop(task, None)
        if restoring is not None:
            self._reader.remove(list(restoring.changelogs))
            restoring.applier.stores.restoring(False)
            self._listener.on_restore_suspended(task, reason)

    def poll_once(self, now_ms: int, timeout_ms: int = 0) -> RestoreRound:
        """Fetch once, apply, and report which tasks are whole. One task's failure leaves the others going."""
        failed: dict[TaskId, StandfastError] = {}
        applied = 0
        if self._reader.assignment():
            try:
                fetched = self._reader.fetch(self._batch_records, timeout_ms)
            except (StateLost, UnknownStore) as error:
                return RestoreRound(failed=self._find_lost(error))
            for batch in fetched:
                task, restoring = self._owner(batch.source)
                if task in failed:
                    continue
                try:
                    applied += self._apply(batch, task, restoring, now_ms)
                except StandfastError as error:
                    failed[task] = error
        restored = tuple(task for task, restoring in self.tasks.items() if restoring.done and task not in failed)
        for task in restored:
            self._finish(task)
        return RestoreRound(applied, restored, failed)

    def progress(self, now_ms: int) -> tuple[tuple[RestoringChangelog, RestoreProgress], ...]:
        """How far each restoring changelog is."""
        return tuple(
            (changelog, changelog.meter.snapshot(now_ms))
            for restoring in self.tasks.values()
            for changelog in restoring.changelogs.values()
        )

    def close(self) -> None:
        """Release the reader."""
        self._reader.close()

    def _apply(self, batch: Fetched, task: TaskId, restoring: RestoringTask, now_ms: int) -> int:
        changelog = restoring.changelogs[batch.source]
        records, next_offset = batch.records, min(batch.next_offset, changelog.end)
        if next_offset < batch.next_offset:
            records = [record for record in records if record.offset < next_offset]
        if next_offset > changelog.position:
            reach("restore.apply")
            rows = restoring.applier.apply(batch.source, records, next_offset)
            changelog.position = next_offset
            if rows:
                self._batch_records = min(max(BATCH_ROWS * len(records) // rows, BATCH_ROWS), BATCH_RECORDS_MAX)
        count = len(records)
        size = payload_bytes(records)
        changelog.records += count
        changelog.payload_bytes += size
        self.records_total += count
        self.bytes_total += size
        self.restored_records[changelog.store, batch.source.partition, changelog.reason] += count
        self.restored_bytes[changelog.store, batch.source.partition, changelog.reason] += size
        changelog.meter.advance(changelog.position, records=count, bytes_=size, now_ms=now_ms)
        self._listener.on_batch_restored(task, changelog.store, batch.source, next_offset, count)
        if changelog.done:
            self._reader.remove([batch.source])
        return count

    def _finish(self, task: TaskId) -> None:
        restoring = self.tasks.pop(task)
        restoring.applier.stores.restoring(False)
        for partition, changelog in restoring.changelogs.items():
            self._listener.on_restore_end(task, changelog.store, partition, changelog.records)

    def _owner(self, changelog: TopicPartition) -> tuple[TaskId, RestoringTask]:
        for task, restoring in self.tasks.items():
            if changelog in restoring.changelogs:
                return task, restoring
        raise InternalError(f"records of {changelog} arrived, but no task here restores that partition")

    def _find_lost(self, cause: StandfastError) -> dict[TaskId, StandfastError]:
        # Truncated or recreated in the middle of a restore: whoever is now outside the bounds starts over.
        lost: dict[TaskId, StandfastError] = {}
        for task, restoring in self.tasks.items():
            for partition, changelog in restoring.changelogs.items():
                reason = restoring.applier.lost_reason(self._log, self._reader, partition, changelog.position, cause)
                if reason is not None:
                    lost[task] = StateLost(f"task {task}: {cause}", reason=reason)
        if not lost:
            raise Unavailable(f"the log said this of a restore, and it does not hold any more: {cause}") from cause
        return lost
