"""Values of the metrics of `metrics_list`, from a session's statistics.

Rules of this file: it reads an immutable snapshot and returns plain tuples; no metrics library, no clock, no session.
Only tasks and stores that are held now are yielded, so the series of a revoked task vanish by themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from standfast.replication.pauses import FAILOVER, PLANNED
from standfast.restore.plan import (
    DIVERGED,
    NO_LOCAL_STATE,
    POSITION_AHEAD,
    RESUME,
    TIME_AHEAD,
    TOMBSTONES_EXPIRED,
    TOPIC_RECREATED,
    TRUNCATED,
)
from standfast.store.histogram import Histogram, Histograms
from standfast.stream.punctuation import PunctuationType
from standfast.stream.snapshot_counts import ABANDONED, COMPLETE
from standfast.stream.stream_time import CLOCK_KEY
from standfast.stream.task.statistics import (
    CALL_OUTCOMES,
    LEASE_LATE,
    LEASE_STALLED,
    LOG_ERRORS,
    SessionCounters,
    SessionStatistics,
    StoreStatistics,
    TaskStatistics,
)

Labels: TypeAlias = tuple[str, ...]
MS = 1_000
NS = 1_000_000_000
# Series that exist from the start, at 0: Prometheus sees an increase only between two samples of a series.
COMMIT_OUTCOMES = ("committed", "failed")
PROMOTION_OUTCOMES = ("completed",)
DROP_REASONS = ("null_key", "late_window")
RESTORE_REASONS = (NO_LOCAL_STATE, RESUME)  # the ordinary reasons
RESTORED_FOR = ("assign", "promote")
# No phase for checkpoints: a position is written in the batch of its rows.
PHASES = ("fetch", "decode", "write", "ingest", "compact", "idle")
READS = ("get", "scan")
WIPE_REASONS = ("corrupt", DIVERGED, POSITION_AHEAD, TIME_AHEAD, TRUNCATED, TOMBSTONES_EXPIRED, TOPIC_RECREATED)
PUNCTUATIONS = tuple((kind.value, outcome) for kind in PunctuationType for outcome in ("fired", "failed"))


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram: (upper bound or inf, cumulative count) and the sum, in seconds or another counted unit."""

    cumulative: tuple[tuple[float, int], ...]
    sum_seconds: float


Value: TypeAlias = float | Buckets
Sample: TypeAlias = tuple[str, Labels, Value]


def session_samples(statistics: SessionStatistics) -> Iterator[Sample]:
    """(short name, label values, value) of all of a session's metrics."""
    yield "ready", (), float(statistics.ready)
    yield "standbys_missing", (), statistics.standbys_missing
    yield "slots_missing", (), statistics.slots_missing
    if statistics.max_tasks is not None:
        yield "max_tasks", (), statistics.max_tasks
    holder = statistics.log_lock
    yield "log_lock_held_seconds", (), 0.0 if holder is None else holder.held_ms / MS
    yield "log_lock_holder_pid", (), 0 if holder is None else holder.pid
    if statistics.disk is not None:
        for space in statistics.disk.spaces:
            yield "disk_free_bytes", (space.what,), space.free_bytes
        yield "disk_floor_bytes", (), statistics.disk.floor_bytes
        yield "disk_full", (), float(bool(statistics.disk.full))
        yield "disk_no_room", (), float(bool(statistics.disk.no_room))
    yield "log_read_age_seconds", (), statistics.log_read_ms_ago / MS
    if statistics.commit_interval_ms is not None:
        yield "commit_interval_seconds", (), statistics.commit_interval_ms / MS
    for (role, state), count in Counter((task.role, task.state) for task in statistics.tasks).items():
        yield "tasks", (role, state), count
    for restore in statistics.restores:
        yield "restore_remaining_records", (restore.store, str(restore.partition)), restore.remaining
    for download in statistics.downloads:
        yield "snapshot_download_remaining_bytes", (download.task,), download.bytes - download.done_bytes
    yield "restore_workers", (), statistics.bulk.workers_now
    yield "restore_runs_total", (), statistics.bulk.runs
    yield "restore_worker_failures_total", (), statistics.bulk.failures
    yield "restore_refused_files_total", (), statistics.bulk.refused
    for source in statistics.own_sources:
        labels = (source.source, str(source.partition))
        yield "source_running", labels, float(source.state == "running")
        yield "source_waiting_records", labels, source.waiting
    yield from _counter_samples(statistics.counters, {task.task for task in statistics.tasks})
    yield from _log_samples(statistics)
    yield from _by_store_samples(statistics)
    yield from _held_samples(statistics)
    for task in statistics.tasks:
        # By task and not by store: a buffer is a task's, and RocksDB counts stalls of a whole database.
        yield "write_buffer_bytes", (task.task,), task.buffer_bytes
        yield "store_write_stall_seconds_total", (task.task,), task.write_stall_ms / MS
        if CLOCK_KEY in task.stream_times:
            yield "stream_time_seconds", (task.task,), task.stream_times[CLOCK_KEY] / MS
        yield from _clock_samples(task, statistics.at_ms)
        for store in task.stores:
            yield from _store_samples(task, store)


def _clock_samples(task: TaskStatistics, at_ms: int) -> Iterator[Sample]:
    """How far a task's clocks are behind the wall clock of this reading; there are none while a clock is unknown."""
    if not at_ms:
        return
    for name, time_ms in (("stream_time", task.stream_time_ms), ("watermark", task.watermark_ms)):
        if time_ms is not None:
            yield f"{name}_behind_seconds", (task.task,), (at_ms - time_ms) / MS


def _counter_samples(counters: SessionCounters, tasks: set[str]) -> Iterator[Sample]:
    for outcome in sorted({*COMMIT_OUTCOMES, *counters.commits}):
        yield "commits_total", (outcome,), counters.commits[outcome]
    for outcome in sorted({*PROMOTION_OUTCOMES, *counters.promotions}):
        yield "promotions_total", (outcome,), counters.promotions[outcome]
    for phase in sorted({*PHASES, *counters.restore_phases_ns}):
        yield "restore_phase_seconds_total", (phase,), counters.restore_phases_ns[phase] / NS
    yield "fenced_total", (), counters.fenced
    for reason in (LEASE_LATE, LEASE_STALLED):
        yield "leases_lost_total", (reason,), counters.leases_lost[reason]
    yield "lease_renewal_gap_seconds", (), counters.lease_gap_ms / MS
    for task in sorted(tasks):
        yield "processed_records_total", (task,), counters.processed_records[task]
    for (source, partition), count in sorted(counters.source_records.items()):
        yield "source_records_total", (source, str(partition)), count
    for reason in sorted({*DROP_REASONS, *counters.dropped}):
        yield "dropped_records_total", (reason,), counters.dropped[reason]
    for kind, outcome in sorted({*PUNCTUATIONS, *counters.punctuations}):
        yield "punctuations_total", (kind, outcome), counters.punctuations[kind, outcome]
    yield from _call_samples(counters)
    yield from _snapshot_samples(counters, tasks)
    yield "task_failures_total", (), counters.task_failures
    yield "exchanged_records_total", (), counters.handed_over_records
    yield "commit_duration_seconds", (), buckets(counters.commit_seconds)
    yield "gate_wait_seconds", (), buckets(counters.gate_wait_seconds)
    yield "promotion_duration_seconds", (), buckets(counters.promotion_seconds)
    for kind in (PLANNED, FAILOVER):
        yield (
            "task_pause_seconds",
            (kind,),
            buckets(counters.pause_seconds.get((kind,)) or Histogram(counters.pause_seconds.bounds)),
        )
    delays = counters.punctuation_delay_seconds
    for name in (kind.value for kind in PunctuationType):
        yield "punctuation_delay_seconds", (name,), buckets(delays.get((name,)) or Histogram(delays.bounds))


def _snapshot_samples(counters: SessionCounters, tasks: set[str]) -> Iterator[Sample]:
    """Samples of snapshots; there are none without a policy."""
    snapshots = counters.snapshots
    for outcome, count in sorted(snapshots.made.items()):
        yield "snapshots_total", (outcome,), count
    for outcome, count in sorted(snapshots.restores.items()):
        yield "snapshot_restores_total", (outcome,), count
    if snapshots.made:
        yield "snapshot_uploaded_bytes_total", (), snapshots.uploaded_bytes
    if snapshots.restores:
        yield "snapshot_downloaded_bytes_total", (), snapshots.downloaded_bytes
    for outcome in (COMPLETE, ABANDONED) if snapshots.made else ():
        yield "checkpoints_total", (outcome,), snapshots.checkpoints[outcome]
    if snapshots.made:
        yield "checkpoint_pause_seconds", (), buckets(snapshots.pauses)
    for task in sorted(snapshots.at_ms.keys() & tasks):
        at_ms = snapshots.at_ms[task]
        yield "snapshot_timestamp_seconds", (task,), at_ms / MS


def _call_samples(counters: SessionCounters) -> Iterator[Sample]:
    """Samples of asynchronous steps; there are none without such a step."""
    for step, begun in sorted(counters.calls_begun.items()):
        ended = {outcome: counters.calls_ended[step, outcome] for outcome in CALL_OUTCOMES}
        # The loop counts on while this reads: an end may be counted that its begin is not yet.
        yield "calls_in_flight", (step,), max(begun - sum(ended.values()), 0)
        for outcome, count in ended.items():
            yield "calls_total", (step, outcome), count
        yield "call_retries_total", (step,), counters.call_retries[step]
        yield "call_timeouts_total", (step,), counters.call_timeouts[step]
        durations = counters.call_seconds
        yield "call_duration_seconds", (step,), buckets(durations.get((step,)) or Histogram(durations.bounds))


def _log_samples(statistics: SessionStatistics) -> Iterator[Sample]:
    """Samples of the commits' writes to the log."""
    counters = statistics.counters
    yield "changelog_ack_duration_seconds", (), buckets(counters.ack_seconds)
    for reason in LOG_ERRORS:
        yield "changelog_errors_total", (reason,), counters.changelog_errors[reason]
    yield "changelog_inflight_records", (), sum(task.inflight_records for task in statistics.tasks)
    yield "changelog_queue_bytes", (), sum(task.inflight_bytes for task in statistics.tasks)


def _by_store_samples(statistics: SessionStatistics) -> Iterator[Sample]:
    """Samples of held stores over all of their partitions: a histogram for each partition would be too many series."""
    counters = statistics.counters
    held: dict[str, list[int]] = {}
    for task in statistics.tasks:
        for one in task.stores:
            held.setdefault(one.store, []).append(one.oldest_iterator_ms)
    for store, seen_ms in sorted(held.items()):
        yield from _histograms("restore_duration_seconds", store, RESTORED_FOR, counters.store_restore_seconds)
        yield from _histograms("store_op_duration_seconds", store, READS, counters.store_read_seconds)
        for reason in sorted({*WIPE_REASONS, *(why for name, why in counters.store_wipes if name == store)}):
            yield "store_wipes_total", (store, reason), counters.store_wipes[store, reason]
        if max(seen_ms) >= 0:  # else no range read is open, and the oldest has no time
            oldest_ms = min(at_ms for at_ms in seen_ms if at_ms >= 0)
            yield "store_oldest_iterator_timestamp_seconds", (store,), oldest_ms / MS


def _histograms(name: str, store: str, ordinary: tuple[str, ...], found: Histograms) -> Iterator[Sample]:
    """Histograms of one store by a second label, whose `ordinary` values exist from the start."""
    counted = {second for first, second in found if first == store}
    for label in sorted({*ordinary, *counted}):
        yield name, (store, label), buckets(found.get((store, label)) or Histogram(found.bounds))


def _held_samples(statistics: SessionStatistics) -> Iterator[Sample]:
    """Counters of the stores that are held now: the series of a revoked task vanish."""
    counters = statistics.counters
    roles = {(store.store, store.partition): task.role for task in statistics.tasks for store in task.stores}
    ordinary = {(*held, reason) for held, role in roles.items() if role == "active" for reason in RESTORE_REASONS}
    for name, counted in (
        ("restore_records_total", counters.restored_records),
        ("restore_bytes_total", counters.restored_bytes),
    ):
        for store, partition, reason in sorted({*ordinary, *counted}):
            if (store, partition) in roles:
                yield name, (store, str(partition), reason), counted[store, partition, reason]
    for (store, partition), role in sorted(roles.items()):
        # A promoted standby keeps its series, or the counter would vanish with the promotion.
        if role == "standby" or counters.standby_records[store, partition]:
            yield "standby_records_total", (store, str(partition)), counters.standby_records[store, partition]


def _store_samples(task: TaskStatistics, store: StoreStatistics) -> Iterator[Sample]:
    # Hits and misses of the block cache are missing, since RocksDB counts them only with all of its statistics on:
    # 100,000 gets then took 292 to 379 ms of processor time instead of 246 to 300.
    labels = (store.store, str(store.partition))
    yield "task_info", (*labels, task.role, task.state), 1
    for op, count in store.ops.items():
        yield "store_ops_total", (*labels, op), count
    # Each of these is a series per store and partition, of which the budget is 30.
    for name, value in (
        ("changelog_records_total", store.logged_records),
        ("changelog_bytes_total", store.logged_bytes),
        ("changelog_skipped_total", store.skipped),
        ("changelog_start_offset", store.begin),
        ("changelog_end_offset", store.end),
        ("changelog_position_offset", store.position),
        ("checkpoint_offset", store.position),
        ("store_sst_bytes", store.sst_bytes),
        ("store_memtable_bytes", store.memtable_bytes),
        ("store_keys_estimate", store.keys_estimate),
        ("store_pending_compaction_bytes", store.pending_compaction_bytes),
        ("store_write_stopped", float(store.write_stopped)),
        ("store_segments", store.segments),
        ("store_open_iterators", store.open_iterators),
        ("store_corruptions_total", store.corruptions),
        ("store_segments_expired_total", store.segments_expired),
        ("late_records_dropped_total", store.late_dropped),
    ):
        yield name, labels, value
    # Timestamps and not ages: an age would change between scrapes, and stand still when scraping ends.
    if store.position_at_ms > 0:
        yield "checkpoint_timestamp_seconds", labels, store.position_at_ms / MS
    if task.role == "standby":
        yield from _standby_samples(labels, store)


def _standby_samples(labels: Labels, store: StoreStatistics) -> Iterator[Sample]:
    yield "standby_lag_records", labels, store.lag
    yield "standby_paused", labels, float(store.paused)
    if store.limit is not None:
        yield "standby_limit_offset", labels, store.limit
    # A time below 0 was never set; exported, it would be an age of decades.
    if store.caught_up_ms >= 0:
        yield "standby_caught_up_timestamp_seconds", labels, store.caught_up_ms / MS
    if store.record_timestamp_ms >= 0:
        yield "standby_record_timestamp_seconds", labels, store.record_timestamp_ms / MS


def buckets(histogram: Histogram) -> Buckets:
    """Cumulative counts, as Prometheus defines them; the last bound is infinity."""
    total = 0
    cumulative = []
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        total += count
        cumulative.append((bound, total))
    return Buckets(tuple(cumulative), histogram.total)
