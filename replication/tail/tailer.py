"""Drives standbys: fetches their changelogs and applies the records that each standby's state machine allows.

    LogReader ──> Standby.update ──> ChangelogApplier.stage ──> write      pause, resume and seek back to the reader

The tailer writes the rows of a standby at its end or limit at once. A standby far behind collects a batch first: many
of them share each fetch, and a few hundred rows of each cost twice as much per row.

Rules of this file: a shell; every decision is in `standfast.replication.standby`. One tailer serves all standby tasks
of a process, and one thread drives it through `poll_once`. Standbys added before `allow()` (while an active task of
the instance is still restoring) get no record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from standfast.replication.columns import payload_bytes
from standfast.replication.fetch_limits import LIMITS
from standfast.replication.listeners import Listener
from standfast.replication.log import Fetched, Group, Log, LogReader
from standfast.replication.offsets import Bounds, TaskId, TopicPartition
from standfast.replication.standby import Standby, StandbyState, StandbyStep
from standfast.replication.tail.applier import STAGED_BYTES_MAX, ChangelogApplier, note_lost
from standfast.replication.tail.pace import BATCH_ROWS, Pace
from standfast.store.clock import Clock, SystemClock
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

FETCH_RECORDS_MAX = LIMITS.standby_fetch_records
STAGED_MS_MAX = 1_000  # longest wait of staged rows while more of their task keep coming
CONFIRM_AFTER_MS = 3_600_000  # greatest age of a position at its end: a stale one looks as if deletes were missed


@dataclass(slots=True)
class TailedChangelog:
    """One changelog of one standby task; the metrics collector reads it."""

    task: TaskId
    store: str
    machine: Standby
    applier: ChangelogApplier
    end: int = 0
    records: int = 0
    replayed_from: int = 0
    caught_up_ms: int = -1
    record_timestamp_ms: int = -1
    paused: bool = False

    @property
    def lag(self) -> int:
        """Records between the position and `reachable`; an upper bound if the log has gaps."""
        return max(self.reachable - self.machine.position, 0)

    @property
    def reachable(self) -> int:
        """The offset up to which the standby may apply: the end, or the limit below it."""
        limit = self.machine.limit
        return self.end if limit is None else min(self.end, limit)


@dataclass(slots=True)
class _Waiting:
    """Staged rows of one task; `due`: to be written at once. By changelog: its records, those of them that no store
    writes (`skipped`), and the last one's timestamp.
    """

    since_ms: int
    rows: int = 0
    payload_bytes: int = 0
    due: bool = False
    records: Counter[TopicPartition] = field(default_factory=Counter)
    skipped: Counter[TopicPartition] = field(default_factory=Counter)
    timestamps: dict[TopicPartition, int] = field(default_factory=dict)
    caught_up_ms: dict[TopicPartition, int] = field(default_factory=dict)  # of those read to their end


@dataclass(frozen=True, slots=True)
class TailResult:
    """Result of one round: records read for standbys, and failed tasks, also those whose state does not fit the log."""

    applied: int = 0
    failed: dict[TaskId, StandfastError] = field(default_factory=dict)


class Tailer:
    """All standbys of one process."""

    def __init__(
        self,
        log: Log,
        group: Group,
        listener: Listener,
        reader: LogReader | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`reader` is a lane of the fetch pipeline; without one the tailer opens its own reader."""
        self._pace = Pace(clock or SystemClock())
        self._reader: LogReader = reader if reader is not None else log.reader()
        self._log = log
        self._group = group
        self._listener = listener
        self._allowed = False
        self._waiting: dict[TaskId, _Waiting] = {}
        self.changelogs: dict[TopicPartition, TailedChangelog] = {}
        self._untold: dict[TopicPartition, TailedChangelog] = {}  # no listener knows yet that they are tailed
        self.applied_records: Counter[tuple[str, int]] = Counter()  # store, partition

    def add(self, applier: ChangelogApplier, limited: frozenset[TopicPartition] = frozenset()) -> None:
        """Begin to tail the changelogs of a task from their positions.

        `limited` are source topics that serve as changelogs: their limit is the group's committed offset (0 while
        there is none), read now, at every commit tick and at every resume.
        """
        bounds = self._reader.bounds(applier.store_of)
        limits = self._committed(limited)
        for changelog, store in applier.store_of.items():
            stored = applier.position(changelog)
            start = bounds[changelog].begin if stored is None else stored.offset
            # No committed offset is limit 0, never None: nothing of the source is processed yet.
            machine = Standby(start, limits.get(changelog, 0) if changelog in limited else None)
            self.changelogs[changelog] = self._untold[changelog] = TailedChangelog(
                applier.task, store, machine, applier, end=bounds[changelog].end, replayed_from=start
            )
            if self._allowed:
                self._start(changelog)

    def remove(self, task: TaskId, reason: str) -> None:
        """Stop tailing a task; forget its kept records and staged rows, which the log still has."""
        self._waiting.pop(task, None)
        gone = [changelog for changelog, tailed in self.changelogs.items() if tailed.task == task]
        for changelog in gone:
            tailed = self.changelogs.pop(changelog)
            self._untold.pop(changelog, None)
            tailed.machine.close()
            tailed.applier.unstage()
        self._reader.remove(gone)
        if gone:  # last, as a listener may raise
            self._listener.on_standby_suspended(task, reason)

    def allow(self, allowed: bool) -> None:
        """Run standbys, or stop them: they run only while every active task of the instance is restored."""
        if allowed == self._allowed:
            return
        if allowed:
            begun = self._reader.assignment()  # an earlier attempt may have assigned some before the log failed
            for changelog in self.changelogs:
                if changelog not in begun:
                    self._start(changelog)
        else:
            self._reader.remove(list(self.changelogs))
        self._allowed = allowed

    def commit_tick(self, now_ms: int) -> dict[TaskId, StandfastError]:
        """Read the limits again, and apply kept records that they allow now; returns the tasks that failed."""
        failed: dict[TaskId, StandfastError] = {}
        if not self._allowed:
            return failed
        limited = {at: tailed for at, tailed in self.changelogs.items() if tailed.machine.limit is not None}
        self._refresh_limits(limited)
        for changelog, tailed in limited.items():
            if tailed.task not in failed:
                self._carry_out(changelog, tailed, tailed.machine.on_commit_tick(), now_ms)
                self._write_all([tailed.task], failed)
        return failed

    def write(self, task: TaskId) -> None:
        """Write a task's staged rows, in one batch with its positions. After an error the task takes no more writes."""
        waiting = self._waiting.pop(task, None)
        if waiting is None:
            return
        applier = next(tailed.applier for tailed in self.changelogs.values() if tailed.task == task)
        reach("standby.apply")
        applier.write()  # of all changelogs of the task
        counts = {at: count - waiting.skipped[at] for at, count in waiting.records.items() if count}
        applied = [(at, self.changelogs[at], records) for at, records in counts.items()]
        for changelog, tailed, records in applied:
            tailed.records += records
            self.applied_records[tailed.store, changelog.partition] += records
            tailed.record_timestamp_ms = waiting.timestamps[changelog]
        for changelog, caught_up_ms in waiting.caught_up_ms.items():
            self.changelogs[changelog].caught_up_ms = caught_up_ms
        for changelog, tailed, records in applied:  # after all counts, as a listener may raise
            position = tailed.machine.position
            self._listener.on_standby_batch(task, tailed.store, changelog, position, records, tailed.end)

    def is_whole(self, task: TaskId) -> bool:
        """Whether the stores of a standby have all rows that it may hold."""
        for changelog, tailed in self.changelogs.items():
            stored = tailed.applier.position(changelog) if tailed.task == task else None
            if tailed.task == task and (stored is None or stored.offset < tailed.reachable):
                return False
        return True

    def poll_once(self, now_ms: int, timeout_ms: int = 0) -> TailResult:
        """Fetch once and write due rows. A failed task does not fail the others: the result names it."""
        failed: dict[TaskId, StandfastError] = {}
        if not self._allowed or not self.changelogs:
            self._write_all(list(self._waiting), failed)
            return TailResult(failed=failed)
        self._tell_begun(failed)
        try:
            fetched = self._reader.fetch(self._pace.rows(FETCH_RECORDS_MAX), timeout_ms)
        except (StateLost, UnknownStore) as error:
            self._write_all(list(self._waiting), failed)
            return TailResult(failed=failed | self._find_lost(error))
        except Corruption as error:
            self._write_all(list(self._waiting), failed)
            damaged = {self.changelogs[at].task for at in self.changelogs.keys() & set(error.sources)}
            if not damaged:
                raise
            return TailResult(failed=failed | dict.fromkeys(damaged, error))
        taken = 0
        growing = set()
        for batch in fetched:
            tailed = self._tailed(batch)
            if tailed.task in failed:
                continue
            growing.add(tailed.task)
            try:
                taken += self._update(batch, tailed, now_ms)
            except StandfastError as error:
                failed[tailed.task] = error
                self._waiting.pop(tailed.task, None)  # the applier has dropped the staged rows with the error
        self._write_due(self._due(growing, now_ms), failed)
        return TailResult(taken, failed)

    def _write_due(self, due: Collection[TaskId], failed: dict[TaskId, StandfastError]) -> None:
        """Write batches for as long as the session's lock may be held: the others are due in the next round, too."""
        self._pace.begin()
        for task in due:
            self._write_all([task], failed)
            if self._pace.wrote_enough:
                break
        if due:
            self._pace.wrote()

    def _due(self, growing: Collection[TaskId], now_ms: int) -> list[TaskId]:
        """Tasks to write now: those at their end, without new records, or with rows staged for long; and of the others
        one full batch, or as many as exceed the bound of staged bytes. Each write holds the session's lock.
        """
        due = [
            task
            for task, waiting in self._waiting.items()
            if waiting.due or task not in growing or now_ms - waiting.since_ms >= STAGED_MS_MAX
        ]
        # The fullest first: a row costs least in a large batch.
        left = sorted(self._waiting.keys() - due, key=lambda task: self._waiting[task].rows, reverse=True)
        size = sum(self._waiting[task].payload_bytes for task in left)
        for task in left:
            waiting, pace = self._waiting[task], self._pace
            full = waiting.rows >= pace.rows(BATCH_ROWS) or waiting.payload_bytes >= pace.payload_bytes
            if not (full and task is left[0]) and size < STAGED_BYTES_MAX:
                break
            due.append(task)
            size -= self._waiting[task].payload_bytes
        return due

    def _write_all(self, tasks: Collection[TaskId], failed: dict[TaskId, StandfastError]) -> None:
        for task in tasks:
            try:
                self.write(task)
            except StandfastError as error:
                failed[task] = error

    def refresh_ends(self, now_ms: int) -> dict[TaskId, StandfastError]:
        """Read the end offsets again, for the lag; a position at its end is confirmed with the present time.

        Returns the tasks that failed.
        """
        failed: dict[TaskId, StandfastError] = {}
        for changelog, bounds in self._bounds().items():
            tailed = self.changelogs[changelog]
            tailed.end = bounds.end
            stored = tailed.applier.position(changelog)
            # Also where its time lies ahead of the clock: it would look young later, when deletes behind it are gone.
            if stored is not None and stored.offset == bounds.end and abs(now_ms - stored.at_ms) > CONFIRM_AFTER_MS:
                try:
                    tailed.applier.confirm(changelog, now_ms)
                except StandfastError as error:  # such as of a full disk, which is to be reported in this very round
                    failed[tailed.task] = error
        return failed

    def close(self) -> None:
        """Release the reader."""
        self._reader.close()

    def _start(self, changelog: TopicPartition) -> None:
        tailed = self.changelogs[changelog]
        self._reader.add({changelog: tailed.machine.position})
        tailed.paused = tailed.machine.state is StandbyState.PAUSED
        # The reader's assignment is new and not paused, while the machine may have kept its state.
        if tailed.paused:
            self._reader.pause([changelog])

    def _tell_begun(self, failed: dict[TaskId, StandfastError]) -> None:
        """Report to listeners the changelogs that are tailed from now on: once each, although actives may interrupt."""
        for changelog, tailed in list(self._untold.items()):
            if tailed.task in failed:
                continue
            position = tailed.machine.position
            try:
                self._listener.on_standby_start(tailed.task, tailed.store, changelog, position)
            except ListenerFailed as error:
                failed[tailed.task] = error
            else:  # after the call: one that a signal handler ended is made again
                self._untold.pop(changelog, None)

    def _tailed(self, batch: Fetched) -> TailedChangelog:
        try:
            return self.changelogs[batch.source]
        except KeyError:
            raise InternalError(
                f"records of {batch.source} arrived, but no standby here tails that partition"
            ) from None

    def _update(self, batch: Fetched, tailed: TailedChangelog, now_ms: int) -> int:
        tailed.end = max(tailed.end, batch.next_offset)
        step = tailed.machine.update(batch.records, batch.next_offset)
        taken = self._carry_out(batch.source, tailed, step, now_ms)
        if batch.at_end and tailed.machine.position >= tailed.reachable:
            self._note_end(batch.source, tailed, now_ms)
        return taken

    def _note_end(self, changelog: TopicPartition, tailed: TailedChangelog, now_ms: int) -> None:
        """It is read to its end; a task whose rows wait for their write has caught up with that."""
        waiting = self._waiting.get(tailed.task)
        if waiting is None:
            tailed.caught_up_ms = now_ms
        else:
            waiting.caught_up_ms[changelog] = now_ms

    def _carry_out(self, changelog: TopicPartition, tailed: TailedChangelog, step: StandbyStep, now_ms: int) -> int:
        stored = tailed.applier.position(changelog)
        if step.apply or stored is None or stored.offset != step.position:
            waiting = self._waiting.setdefault(tailed.task, _Waiting(now_ms))
            skipped = tailed.applier.skipped
            waiting.rows = tailed.applier.stage(changelog, step.apply, step.position)
            waiting.skipped[changelog] += tailed.applier.skipped - skipped
            waiting.payload_bytes += payload_bytes(step.apply)
            waiting.records[changelog] += len(step.apply)
            if step.apply:
                waiting.timestamps[changelog] = step.apply[-1].timestamp
            waiting.due = waiting.due or step.kept > 0 or step.position >= tailed.reachable
        if step.pause:
            self._reader.pause([changelog])
            tailed.paused = True
        # Before the resume, or the records after the dropped ones would come first.
        if step.seek is not None:
            self._reader.seek(changelog, step.seek)
        if step.resume:
            # Before the limit is asked for: the machine has left its pause, and no later tick would resume the reader.
            self._reader.resume([changelog])
            tailed.paused = False
            # The limit may have moved since the pause; with the old one the next batch would pause again.
            if tailed.machine.limit is not None:
                self._refresh_limits([changelog])
        if step.position >= tailed.reachable:
            self._note_end(changelog, tailed, now_ms)
        return len(step.apply)

    def _refresh_limits(self, limited: Collection[TopicPartition]) -> None:
        committed = self._committed(limited)
        for changelog in limited:
            self.changelogs[changelog].machine.set_limit(committed.get(changelog, 0))

    def _committed(self, limited: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        if not limited:
            return {}
        return {at: found.offset for at, found in self._group.committed(limited).items()}

    def _find_lost(self, cause: StandfastError) -> dict[TaskId, StandfastError]:
        # The reader's error names one partition; other positions may not fit the log any more either.
        lost: dict[TaskId, StandfastError] = {}
        for changelog, tailed in self.changelogs.items():
            reason = tailed.applier.lost_reason(self._log, self._reader, changelog, tailed.machine.position, cause)
            if reason is not None:
                error = StateLost(f"standby {tailed.task}: {changelog}: {cause}", reason=reason)
                note_lost(lost, tailed.task, changelog, error)
        if not lost:
            raise Unavailable(f"the log reported a lost standby, and a second check finds none: {cause}") from cause
        return lost

    def _bounds(self) -> dict[TopicPartition, Bounds]:
        return self._reader.bounds(list(self.changelogs))
