"""Restores active tasks: replays their changelogs in batches until every position reaches its end.

    plan (pure) ──> reader.add(position) ──> fetch ──> ChangelogApplier.apply ──> position >= end: done
              └───> bulk.add(position)   ──> sorted files of workers, ingested ──────────┘

`Restorer` is Kafka Streams' StoreChangelogReader; `ChangelogApplier` writes the rows, as its state updater does.

Rules of this file: a shell driven by one thread through `poll_once`. A restore ends by position, never by the
offset of the last record, because the last offsets may hold no record (markers, compaction). The end is read once,
after the previous owner was fenced; no record at or beyond it is applied, since a source topic that serves as changelog
goes on with records that are not processed yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from standfast.replication.columns import payload_bytes
from standfast.replication.listeners import Listener
from standfast.replication.log import Fetched, Log, LogReader
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.tail.applier import STAGED_BYTES_MAX, ChangelogApplier, note_lost
from standfast.replication.tail.pace import BATCH_ROWS, Pace
from standfast.restore.progress import ProgressMeter, RestoreProgress
from standfast.restore.replay.bulk import BulkLoader, BulkStatistics
from standfast.restore.replay.bulk_plan import BulkSettings
from standfast.store.clock import Clock, SystemClock, measured_ns
from standfast.store.errors import (
    Corruption,
    InternalError,
    ListenerFailed,
    StandfastError,
    StateLost,
    Unavailable,
    UnknownStore,
)
from standfast.store.failpoint import reach
from standfast.store.log import as_event, logger

# Several records may fold to one row, so a batch takes up to four records for each row. It is read and folded piece by
# piece, while a piece is in the processor's cache.
BATCH_RECORDS_MAX = 4 * BATCH_ROWS
PIECE_RECORDS = 10_000
# From so many records on, compaction is put off during the restore. Setting that and undoing it takes 2 ms a family
# each time, a delay that a take-over with a short tail must not have.
SHAPE_LATER_RECORDS_MIN = 10_000


@dataclass(slots=True)
class RestoringChangelog:
    """One changelog being restored. `records`: those applied so far."""

    store: str
    position: int
    end: int
    reason: str
    meter: ProgressMeter
    records: int = 0
    payload_bytes: int = 0
    in_bulk: bool = False  # loaded by workers; until they are done, its files may need compaction

    @property
    def done(self) -> bool:
        """Whether the position has reached the end."""
        return self.position >= self.end and not self.in_bulk


@dataclass(slots=True)
class RestoringTask:
    """One task with the changelogs that are not whole yet."""

    applier: ChangelogApplier
    changelogs: dict[TopicPartition, RestoringChangelog]

    @property
    def done(self) -> bool:
        """Whether every store is whole."""
        return all(changelog.done for changelog in self.changelogs.values())

    @property
    def remaining(self) -> int:
        """Offsets of all changelogs that are still to pass."""
        return sum(max(changelog.end - changelog.position, 0) for changelog in self.changelogs.values())


@dataclass(slots=True)
class _Staged:
    """Records of one changelog that are staged and not written yet; no store writes those that are `skipped`."""

    next_offset: int
    records: int = 0
    skipped: int = 0
    payload_bytes: int = 0


@dataclass(slots=True)
class _Waiting:
    """Staged rows of one task, the records that they came from, and whether a changelog is read to its end."""

    rows: int = 0
    records: int = 0
    at_end: bool = False
    changelogs: dict[TopicPartition, _Staged] = field(default_factory=dict)

    @property
    def payload_bytes(self) -> int:
        """Bytes of keys and values of the records."""
        return sum(one.payload_bytes for one in self.changelogs.values())


@dataclass(frozen=True, slots=True)
class RestoreRound:
    """Result of one round: records read or written, tasks now whole, tasks that failed and why."""

    records: int = 0
    restored: tuple[TaskId, ...] = ()
    failed: dict[TaskId, StandfastError] = field(default_factory=dict)


class Restorer:
    """All restoring tasks of one process."""

    def __init__(
        self,
        log: Log,
        listener: Listener,
        reader: LogReader | None = None,
        bulk: BulkSettings | None = None,
        wake: Callable[[], None] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`reader`: a lane of the fetch pipeline, or None for a reader of its own. `bulk`: None for batches only.

        `wake` is called, by any thread, when the next round has something to ingest; None for a caller that polls.
        """
        self.bulk = BulkLoader(log, bulk, wake) if bulk is not None else None
        self._pace = Pace(clock or SystemClock())
        self._log = log
        self._reader: LogReader = reader if reader is not None else log.reader()
        self._listener = listener
        self.tasks: dict[TaskId, RestoringTask] = {}
        self._waiting: dict[TaskId, _Waiting] = {}
        self._waiting_bytes = 0  # keys and values
        self.bytes_total = 0
        self.restored_records: Counter[tuple[str, int, str]] = Counter()  # store, partition, reason
        self.restored_bytes: Counter[tuple[str, int, str]] = Counter()
        # Time of restores by phase, in this process and in workers; one addition per batch.
        self.phases_ns: Counter[str] = Counter() if self.bulk is None else self.bulk.phases_ns

    def add(
        self, applier: ChangelogApplier, ranges: Mapping[TopicPartition, tuple[int, int, str]], now_ms: int
    ) -> None:
        """Restore each changelog of a task from position to end; a range is (position, end, reason)."""
        changelogs = {}
        for changelog, (position, end, reason) in ranges.items():
            store = applier.store_of[changelog]
            meter = ProgressMeter(applier.task, changelog, position, end, now_ms=now_ms)
            changelogs[changelog] = RestoringChangelog(store, position, end, reason, meter)
            self._listener.on_restore_start(applier.task, store, changelog, position, end, reason)
        # An empty changelog has no records to apply; its position must be stored all the same.
        empty = [at for at, one in changelogs.items() if one.done and applier.position(at) is None]
        for changelog in empty:
            applier.stage(changelog, (), changelogs[changelog].position)
        if empty:  # one batch for all changelogs, because each batch has the positions of all stores
            applier.write()
        self.tasks[applier.task] = RestoringTask(applier, changelogs)
        if sum(one.end - one.position for one in changelogs.values() if not one.done) >= SHAPE_LATER_RECORDS_MIN:
            # No reads before the gate opens, so RocksDB may compact later: at 16 files of level 0 instead of 8.
            applier.stores.restoring(True)
        self._begin_bulk(applier, changelogs)
        read_here = {at: one.position for at, one in changelogs.items() if not (one.done or one.in_bulk)}
        self._reader.add(read_here)

    def remove(self, task: TaskId, reason: str) -> None:
        """Give up a restore; rows already written stay, with their position."""
        restoring = self.tasks.pop(task, None)
        self._taken(task)
        if restoring is not None:
            restoring.applier.unstage()
            self._reader.remove(list(restoring.changelogs))
            if self.bulk is not None:
                self.bulk.remove(task)
            restoring.applier.stores.restoring(False)
            self._listener.on_restore_suspended(task, reason)

    def poll_once(self, now_ms: int, timeout_ms: int = 0) -> RestoreRound:
        """Read a batch, write one, and report the tasks that are whole. One task's failure does not stop the others."""
        failed: dict[TaskId, StandfastError] = {}
        taken = self._load(failed, now_ms)
        read, error = self._read(failed, timeout_ms)
        written = self._write_due(failed, now_ms, all_of_them=error is not None, nothing_came=not read)
        if isinstance(error, StateLost | UnknownStore):
            failed |= self._find_lost(error)
        elif isinstance(error, Corruption) and error.sources:  # damage of the log, in partitions of these tasks only
            failed |= {
                task: error for task, one in self.tasks.items() if any(at in one.changelogs for at in error.sources)
            }
        elif error is not None:
            raise error
        whole = [task for task, restoring in self.tasks.items() if restoring.done and task not in failed]
        for task in whole:
            try:
                self._finish(task)
            except StandfastError as failure:  # a full disk fails its task, not the round and the session's thread
                failed[task] = failure
        # A round that only writes counts as work too; with 0 the caller would wait before the next one.
        return RestoreRound(taken + max(read, written), tuple(task for task in whole if task not in failed), failed)

    def progress(self, now_ms: int) -> tuple[tuple[RestoringChangelog, RestoreProgress], ...]:
        """Progress of each restoring changelog."""
        return tuple(
            (changelog, changelog.meter.snapshot(now_ms))
            for restoring in self.tasks.values()
            for changelog in restoring.changelogs.values()
        )

    @property
    def waits_for_threads(self) -> bool:
        """Whether threads of this process build or compact the files of a bulk restore."""
        return self.bulk is not None and self.bulk.loading

    def bulk_statistics(self) -> BulkStatistics:
        """Counts of the bulk restore's workers."""
        return self.bulk.statistics() if self.bulk is not None else BulkStatistics()

    def close(self) -> None:
        """Release the reader, and end the workers."""
        if self.bulk is not None:
            self.bulk.close()
        self._reader.close()

    def _begin_bulk(self, applier: ChangelogApplier, changelogs: Mapping[TopicPartition, RestoringChangelog]) -> None:
        for changelog, one in changelogs.items():
            if self.bulk is None or one.done:
                continue
            choice = self.bulk.choice(applier, changelog, one.position, one.end)
            logger.debug(
                "%s: %s (%s)",
                changelog,
                "bulk" if choice.bulk else "batches",
                choice.why,
                extra=as_event("restore_planned", changelog=changelog, bulk=choice.bulk),
            )
            if choice.bulk:
                one.in_bulk = True
                self.bulk.add(applier, changelog, one.position, one.end)

    def _load(self, failed: dict[TaskId, StandfastError], now_ms: int) -> int:
        """Ingest the runs that workers have built; returns the number of their records."""
        applied = 0
        for step in () if self.bulk is None else self.bulk.poll_once():
            changelog = self.tasks[step.task].changelogs[step.changelog]
            changelog.position = step.position
            changelog.meter.advance(step.covered, records=step.read_records, bytes_=step.read_bytes, now_ms=now_ms)
            self._count(changelog, step.changelog, step.records, step.read_bytes, step.skipped)
            applied += step.records
            if step.records:
                try:
                    self._listener.on_batch_restored(
                        step.task, changelog.store, step.changelog, step.position, step.records - step.skipped
                    )
                except ListenerFailed as error:
                    failed[step.task] = error
            changelog.in_bulk = not (step.done or step.given_back)
            if step.error is not None:
                failed[step.task] = self._lost_in_bulk(step.task, step.changelog, step.error)
            elif step.given_back is not None:
                logger.warning(
                    "%s is restored by batches from %d: %s",
                    step.changelog,
                    step.position,
                    step.given_back,
                    extra=as_event("restore_by_batches", changelog=step.changelog, offset=step.position),
                )
                # Batches begin below the offsets that workers have read, and a meter does not go back.
                changelog.meter = ProgressMeter(step.task, step.changelog, step.position, changelog.end, now_ms=now_ms)
                self._reader.add({step.changelog: step.position})
        return applied

    def _lost_in_bulk(self, task: TaskId, changelog: TopicPartition, error: StandfastError) -> StandfastError:
        """The error of a worker's log reader, with the reason that a reader of this process would have reported."""
        if not isinstance(error, StateLost):
            return error
        restoring = self.tasks[task]
        position = restoring.changelogs[changelog].position
        reason = restoring.applier.lost_reason(self._log, self._reader, changelog, position, error)
        lost = StateLost(f"task {task}: {error}", reason=reason or error.reason)
        lost.sources = (changelog,)
        return lost

    def _count(
        self, changelog: RestoringChangelog, source: TopicPartition, records: int, size: int, skipped: int
    ) -> None:
        changelog.records += records - skipped
        changelog.payload_bytes += size
        self.bytes_total += size
        self.restored_records[changelog.store, source.partition, changelog.reason] += records - skipped
        self.restored_bytes[changelog.store, source.partition, changelog.reason] += size

    def _read(self, failed: dict[TaskId, StandfastError], timeout_ms: int) -> tuple[int, StandfastError | None]:
        """Stage records until a task's batch is full, STAGED_BYTES_MAX wait, or none are at hand; returns their number.

        Records staged before an error of the log are written all the same, so the error is returned.
        """
        records = rows = 0
        self._pace.begin()
        while self._reader.assignment() and records < BATCH_RECORDS_MAX and rows < BATCH_ROWS and not self._enough():
            if records and self._pace.read_enough:
                break  # the rest of the batch comes with the next round
            started_ns = measured_ns()
            try:
                piece = min(PIECE_RECORDS, BATCH_RECORDS_MAX - records, self._pace.rows(BATCH_ROWS))
                # With rows staged, write them instead of waiting for more.
                fetched = self._reader.fetch(piece, 0 if self._waiting else timeout_ms)
            except StandfastError as error:
                return records, error
            self.phases_ns["fetch" if fetched else "idle"] += measured_ns() - started_ns
            if not fetched:
                break
            for batch in fetched:
                task, restoring = self._owner(batch.source)
                if task in failed:
                    continue
                records += len(batch.records)
                try:
                    rows += self._stage(batch, restoring)
                except StandfastError as error:
                    failed[task] = error
                    self._taken(task)  # the applier has dropped the task's rows with the error, so count none
        return records, None

    def _stage(self, batch: Fetched, restoring: RestoringTask) -> int:
        """Stage a fetched batch with its task; returns the number of new rows."""
        changelog = restoring.changelogs[batch.source]
        waiting = self._waiting.setdefault(restoring.applier.task, _Waiting())
        staged = waiting.changelogs.setdefault(batch.source, _Staged(changelog.position))
        records, next_offset = batch.records, min(batch.next_offset, changelog.end)
        # The last fetch may reach beyond the end; there, records of a source topic are not processed yet.
        if next_offset < batch.next_offset:
            records = [record for record in records if record.offset < next_offset]
        size = payload_bytes(records)
        staged.records += len(records)
        staged.payload_bytes += size
        waiting.records += len(records)
        self._waiting_bytes += size
        waiting.at_end = waiting.at_end or next_offset >= changelog.end
        if next_offset <= staged.next_offset:
            return 0
        staged.next_offset = next_offset
        stores = restoring.applier.stores
        before, decoded_ns, skipped = waiting.rows, stores.decode_ns, restoring.applier.skipped
        try:
            waiting.rows = restoring.applier.stage(batch.source, records, next_offset)
        finally:
            self.phases_ns["decode"] += stores.decode_ns - decoded_ns
        staged.skipped += restoring.applier.skipped - skipped
        return waiting.rows - before

    def _enough(self) -> bool:
        """Whether rows must be written before more records are read."""
        return self._waiting_bytes >= STAGED_BYTES_MAX or any(map(self._is_batch, self._waiting.values()))

    def _is_batch(self, waiting: _Waiting) -> bool:
        """Whether the staged rows of a task make a batch."""
        full = waiting.rows >= self._pace.rows(BATCH_ROWS) or waiting.payload_bytes >= self._pace.payload_bytes
        return waiting.at_end or full or waiting.records >= BATCH_RECORDS_MAX

    def _write_due(
        self, failed: dict[TaskId, StandfastError], now_ms: int, *, all_of_them: bool, nothing_came: bool
    ) -> int:
        """Write batches for as long as the session's lock may be held; returns the number of records."""
        written, due = 0, self._due(all_of_them=all_of_them, nothing_came=nothing_came)
        if not due:
            return 0
        self._pace.begin()
        for task in due:
            try:
                written += self._write(task, now_ms)
            except StandfastError as failure:
                failed[task] = failure
            if self._pace.wrote_enough and not all_of_them:
                break  # the others wait for the next round
        self._pace.wrote()
        return written

    def _due(self, *, all_of_them: bool, nothing_came: bool) -> list[TaskId]:
        """Tasks whose rows are written now: about one batch in all, since a write holds the session's lock."""
        # An error of the log may end these tasks: rows staged before it are written first, with their positions.
        if all_of_them:
            return list(self._waiting)
        # Only full batches: with 600 rows of each of 16 tasks a round, 1,000,000 records took 4.5 s instead of 2.7.
        due = [task for task, waiting in self._waiting.items() if self._is_batch(waiting)]
        if not due and (nothing_came or self._enough()):
            due = list(self._waiting)
        due.sort(key=lambda task: self._waiting[task].rows, reverse=True)
        before = accumulate((self._waiting[task].rows for task in due), initial=0)
        return [task for task, rows in zip(due, before, strict=False) if rows < BATCH_ROWS]

    def _taken(self, task: TaskId) -> _Waiting:
        """Remove and return the staged rows of a task."""
        waiting = self._waiting.pop(task, None) or _Waiting()
        self._waiting_bytes -= waiting.payload_bytes
        return waiting

    def _write(self, task: TaskId, now_ms: int) -> int:
        """Write the staged rows of a task, in one batch with its positions; returns the number of records."""
        waiting = self._taken(task)
        restoring = self.tasks[task]
        if any(one.next_offset > restoring.changelogs[source].position for source, one in waiting.changelogs.items()):
            reach("restore.apply")
            started_ns = measured_ns()
            restoring.applier.write()
            self.phases_ns["write"] += measured_ns() - started_ns
        for source, one in waiting.changelogs.items():
            changelog = restoring.changelogs[source]
            changelog.position = one.next_offset
            self._count(changelog, source, one.records, one.payload_bytes, one.skipped)
            changelog.meter.advance(changelog.position, records=one.records, bytes_=one.payload_bytes, now_ms=now_ms)
            if changelog.done:
                self._reader.remove([source])
        for source, one in waiting.changelogs.items():  # after all counts, as a listener may raise
            store, applied = restoring.changelogs[source].store, one.records - one.skipped
            self._listener.on_batch_restored(task, store, source, one.next_offset, applied)
        return waiting.records

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
        # Truncated or recreated in the middle of a restore: tasks whose position is now outside the bounds start over.
        lost: dict[TaskId, StandfastError] = {}
        for task, restoring in self.tasks.items():
            for partition, changelog in restoring.changelogs.items():
                reason = restoring.applier.lost_reason(self._log, self._reader, partition, changelog.position, cause)
                if reason is not None:
                    note_lost(lost, task, partition, StateLost(f"task {task}: {cause}", reason=reason))
        # Every position fits the log now: to fail a task would restore it again for nothing.
        if not lost:
            raise Unavailable(f"the log refused a restore for a reason that no longer holds: {cause}") from cause
        return lost
