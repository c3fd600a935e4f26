"""From a session's statistics to numbers: what each metric of `metrics_list` says now.

Rules of this file: reads an immutable snapshot and returns plain tuples; no metrics library, no clock, no session.
Only what is held now is yielded, so the series of a revoked task vanish by themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from standfast.stream.statistics import (
    Histogram,
    SessionCounters,
    SessionStatistics,
    StoreStatistics,
    TaskStatistics,
)
from standfast.stream.stream_time import CLOCK_KEY

Labels: TypeAlias = tuple[str, ...]
MS = 1_000
COMMIT_OUTCOMES = ("committed", "failed")
PROMOTION_OUTCOMES = ("completed",)
DROP_REASONS = ("null_key", "late_window")


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram: (upper bound in seconds or inf, cumulative count) and the sum in seconds."""

    cumulative: tuple[tuple[float, int], ...]
    sum_seconds: float


Value: TypeAlias = float | Buckets
Sample: TypeAlias = tuple[str, Labels, Value]


def session_samples(statistics: SessionStatistics) -> Iterator[Sample]:
    """(short name, label values, value) of everything a session knows."""
    yield "ready", (), float(statistics.ready)
    yield "standbys_missing", (), statistics.standbys_missing
    for (role, state), count in Counter((task.role, task.state) for task in statistics.tasks).items():
        yield "tasks", (role, state), count
    for restore in statistics.restores:
        yield "restore_remaining_records", (restore.store, str(restore.partition)), restore.remaining
    yield "restore_workers", (), statistics.bulk.workers_now
    yield "restore_runs_total", (), statistics.bulk.runs
    yield "restore_worker_failures_total", (), statistics.bulk.failures
    held = {(store.store, store.partition) for task in statistics.tasks for store in task.stores}
    yield from _counter_samples(statistics.counters, held)
    for task in statistics.tasks:
        yield "write_buffer_bytes", (task.task,), task.buffer_bytes
        if CLOCK_KEY in task.stream_times:
            yield "stream_time_seconds", (task.task,), task.stream_times[CLOCK_KEY] / MS
        for store in task.stores:
            yield from _store_samples(task, store)


def _counter_samples(counters: SessionCounters, held: set[tuple[str, int]]) -> Iterator[Sample]:
    for outcome in sorted({*COMMIT_OUTCOMES, *counters.commits}):
        yield "commits_total", (outcome,), counters.commits[outcome]
    for outcome in sorted({*PROMOTION_OUTCOMES, *counters.promotions}):
        yield "promotions_total", (outcome,), counters.promotions[outcome]
    for reason, count in sorted(counters.wipes.items()):
        yield "store_wipes_total", (reason,), count
    yield "fenced_total", (), counters.fenced
    for task, count in sorted(counters.processed_records.items()):
        yield "processed_records_total", (task,), count
    for reason in sorted({*DROP_REASONS, *counters.dropped}):
        yield "dropped_records_total", (reason,), counters.dropped[reason]
    for (kind, outcome), count in sorted(counters.punctuations.items()):
        yield "punctuations_total", (kind, outcome), count
    yield "task_failures_total", (), counters.task_failures
    yield "exchanged_records_total", (), counters.handed_over_records
    yield "commit_duration_seconds", (), buckets(counters.commit_seconds)
    yield "gate_wait_seconds", (), buckets(counters.gate_wait_seconds)
    yield "promotion_duration_seconds", (), buckets(counters.promotion_seconds)
    yield "restore_duration_seconds", (), buckets(counters.restore_seconds)
    for name, counted in (
        ("restore_records_total", counters.restored_records),
        ("restore_bytes_total", counters.restored_bytes),
    ):
        for (store, partition, reason), count in sorted(counted.items()):
            if (store, partition) in held:
                yield name, (store, str(partition), reason), count
    for (store, partition), count in sorted(counters.standby_records.items()):
        if (store, partition) in held:
            yield "standby_records_total", (store, str(partition)), count


def _store_samples(task: TaskStatistics, store: StoreStatistics) -> Iterator[Sample]:
    labels = (store.store, str(store.partition))
    yield "task_info", (*labels, task.role, task.state), 1
    for op, count in store.ops.items():
        yield "store_ops_total", (*labels, op), count
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
        ("store_segments", store.segments),
        ("store_open_iterators", store.open_iterators),
        ("store_corruptions_total", store.corruptions),
        ("store_segments_expired_total", store.segments_expired),
        ("late_records_dropped_total", store.late_dropped),
    ):
        yield name, labels, value
    if store.position_at_ms > 0:
        yield "checkpoint_timestamp_seconds", labels, store.position_at_ms / MS
    if task.role == "standby":
        yield from _standby_samples(labels, store)


def _standby_samples(labels: Labels, store: StoreStatistics) -> Iterator[Sample]:
    yield "standby_lag_records", labels, store.lag
    yield "standby_paused", labels, float(store.paused)
    if store.limit is not None:
        yield "standby_limit_offset", labels, store.limit
    if store.caught_up_ms >= 0:
        yield "standby_caught_up_timestamp_seconds", labels, store.caught_up_ms / MS
    if store.record_timestamp_ms >= 0:
        yield "standby_record_timestamp_seconds", labels, store.record_timestamp_ms / MS


def buckets(histogram: Histogram) -> Buckets:
    """Cumulative counts as Prometheus wants them; the last bound is infinity."""
    total = 0
    cumulative = []
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        total += count
        cumulative.append((bound, total))
    return Buckets(tuple(cumulative), histogram.total)
