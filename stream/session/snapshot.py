"""Builds the immutable snapshot of a session.

Rules of this file: reads only; called under the session's lock.
"""

from __future__ import annotations

from standfast.replication.log import Log, LogReader
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.replication.tail.tailer import TailedChangelog
from standfast.store.clock import Clock
from standfast.store.disk import DiskState
from standfast.store.engine import WRITE_STOPPED
from standfast.store.errors import Corruption, Unavailable, UnknownStore
from standfast.store.task.commit_record import Position
from standfast.stream.session.instance import Instance
from standfast.stream.snapshot_counts import DownloadStatistics
from standfast.stream.stream_time import CLOCK_KEY
from standfast.stream.task.states import GONE
from standfast.stream.task.statistics import (
    Clocks,
    RestoreStatistics,
    SessionStatistics,
    SourceStatistics,
    StoreStatistics,
    TaskStatistics,
)
from standfast.stream.task.task import Task


class LogFigures:
    """Bounds of changelogs as last read from the log, and the time since it last answered."""

    def __init__(self, reader: LogReader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._known: dict[TopicPartition, Bounds] = {}
        self._read_ms = clock.monotonic_ms()
        self._error = ""

    def begin(self) -> None:
        """Start a snapshot, before the bounds of its tasks are read."""
        self._error = ""

    def bounds(self, task: Task) -> dict[TopicPartition, Bounds]:
        """Bounds of a task's changelogs: read now, or the last known ones where the log cannot be read."""
        asked = task.applier.store_of
        if not self._error:  # else each further task would wait for the log once more
            try:
                found = self._reader.bounds(asked)
            except UnknownStore:
                return {}  # a changelog was deleted: the next commit or poll reports it, a snapshot must not fail
            except (Unavailable, Corruption) as error:
                self._error = str(error)
            else:
                self._known.update(found)
                return found
        return {at: self._known[at] for at in asked if at in self._known}

    def end(self) -> tuple[int, str]:
        """The age of the oldest figures, in milliseconds, and the error that kept them from being read."""
        if not self._error:
            self._read_ms = self._clock.monotonic_ms()
        return self._clock.monotonic_ms() - self._read_ms, self._error


def session_statistics(
    app: str,
    instance: Instance,
    log: Log,
    figures: LogFigures,
    *,
    missing: tuple[str, ...],
    clock: Clock,
    disk: DiskState,
    own_sources: tuple[SourceStatistics, ...] = (),
    commit_interval_ms: int | None = None,
    downloads: tuple[DownloadStatistics, ...] = (),
) -> SessionStatistics:
    """Everything that a session reports about itself, at this moment."""
    view, wall_ms = instance.membership.view, clock.wall_ms()
    figures.begin()
    tasks = tuple(_task(task, instance, figures, clock) for _, task in sorted(instance.tasks.items()))
    log_read_ms_ago, log_error = figures.end()
    return SessionStatistics(
        app=app,
        instance=instance.membership.member,
        ready=not missing,
        missing=missing,
        members=tuple(member.member_id for member in view.members) if view is not None else (),
        standbys_missing=instance.standbys_missing,
        tasks=tasks,
        restores=restores_of(instance, clock.monotonic_ms()),
        counters=instance.counters.copy(),
        bulk=instance.readiness.restorer.bulk_statistics(),
        log_lock=log.lock_holder(),
        disk=disk,
        log_read_ms_ago=log_read_ms_ago,
        log_error=log_error,
        own_sources=own_sources,
        commit_interval_ms=commit_interval_ms,
        downloads=downloads,
        placement=None if instance.managed is None else instance.managed.snapshot(wall_ms),
        at_ms=wall_ms,
        max_tasks=None if instance.managed is None else instance.managed.max_tasks,
        slots_missing=0 if instance.managed is None else instance.managed.slots_missing,
    )


def restores_of(instance: Instance, now_ms: int) -> tuple[RestoreStatistics, ...]:
    """The running restores, one per changelog."""
    return tuple(
        RestoreStatistics(
            task=str(at.task),
            store=one.store,
            partition=at.changelog.partition,
            reason=one.reason,
            start=at.start,
            position=at.position,
            end=at.end,
            records=at.records,
            payload_bytes=at.bytes,
            remaining=at.remaining,
            fraction=at.fraction,
            rate=at.records_per_second,
            seconds_left=at.seconds_left,
            stuck=at.stuck,
        )
        for one, at in instance.readiness.restorer.progress(now_ms)
    )


def _task(task: Task, instance: Instance, figures: LogFigures, clock: Clock) -> TaskStatistics:
    usable, life = task.state not in GONE, instance.lives[task.id]
    again = None if usable else life.attempt
    bounds, wall_ms = figures.bounds(task) if usable else {}, clock.wall_ms()
    return TaskStatistics(
        task=str(task.id),
        partition=task.id.partition,
        role=task.role,
        state=task.state.value,
        epoch=task.epoch,
        error=str(task.error or ""),
        buffer_bytes=task.stores.buffer.held_bytes,
        sources=dict(task.stores.cut.sources),
        stream_times=dict(task.stream_times),
        stores=tuple(_store(task, name, instance, bounds, wall_ms) for name in task.stores.stores) if usable else (),
        inflight_records=task.inflight[0],
        inflight_bytes=task.inflight[1],
        write_stall_ms=task.stores.stalled_ms() if usable else 0,
        failures=0 if life.failures is None else life.failures.failures,
        opened_again_ms=None if again is None else max(again.due_ms - clock.monotonic_ms(), 0),
        **_clocks(task)._asdict(),
    )


def _clocks(task: Task) -> Clocks:
    """The clocks of an active task: those of its processing, else the stream time that its owner keeps with it."""
    if task.role != "active" or task.state in GONE:
        return Clocks()
    clocks = task.clocks  # once: the loop's thread takes it away
    return Clocks(task.stream_times.get(CLOCK_KEY)) if clocks is None else clocks()


def _store(
    task: Task, name: str, instance: Instance, bounds: dict[TopicPartition, Bounds], wall_ms: int
) -> StoreStatistics:
    store = task.stores.stores[name]
    sizes = task.stores.statistics(name)
    counters, writer = store.rows.counters, store.rows.writer
    changelog = task.applier.changelogs.get(name)
    begin, end = bounds.get(changelog, Bounds(0, 0)) if changelog is not None else Bounds(0, 0)
    # Without a position a store lacks every record of its changelog.
    stored = task.stores.cut.positions.get(name, Position(begin))
    tailed = instance.readiness.tailer.changelogs.get(changelog) if changelog is not None else None
    return StoreStatistics(
        store=name,
        kind=store.spec.kind,
        partition=task.id.partition,
        position=stored.offset,
        position_at_ms=stored.at_ms,
        begin=begin,
        end=end,
        lag=_lag(task, changelog, stored.offset, end, instance, tailed),
        observed_ms=store.rows.observed_ms,
        sst_bytes=sizes.sst_bytes,
        memtable_bytes=sizes.memtable_bytes,
        keys_estimate=sizes.keys_estimate,
        pending_compaction_bytes=sizes.pending_compaction_bytes,
        segments=sizes.families,
        open_iterators=len(store.rows.iterators),
        ops={"put": writer.puts, "get": counters.get, "delete": writer.deletes, "scan": counters.scan},
        logged_records=counters.logged_records,
        logged_bytes=counters.logged_bytes,
        late_dropped=counters.late_dropped,
        segments_expired=counters.segments_expired,
        corruptions=counters.corruptions,
        skipped=counters.skipped,
        limit=tailed.machine.limit if tailed is not None else None,
        paused=tailed.paused if tailed is not None else False,
        caught_up_ms=tailed.caught_up_ms if tailed is not None else -1,
        record_timestamp_ms=tailed.record_timestamp_ms if tailed is not None else -1,
        write_stopped=bool(sizes.properties.get(WRITE_STOPPED, 0)),
        oldest_iterator_ms=store.rows.oldest_iterator_ms(wall_ms),
    )


def _lag(
    task: Task,
    changelog: TopicPartition | None,
    position: int,
    end: int,
    instance: Instance,
    tailed: TailedChangelog | None,
) -> int:
    """Records that a store lacks. Those of a source topic beyond the limit are not processed yet, so it lacks none."""
    if changelog is not None and changelog in task.applier.limited:
        restoring = instance.readiness.restorer.tasks.get(task.id)
        if tailed is not None:
            end = min(end, tailed.reachable)
        else:
            end = restoring.changelogs[changelog].end if restoring is not None else position
    return max(end - position, 0)
