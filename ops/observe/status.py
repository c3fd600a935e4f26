"""Documents about a session, which `/v1/status`, the command line and the page render.

Rules of this file: pure; from statistics to JSON values with a "schema". Programs may rely on the names here; fields
are added, never renamed. Times in milliseconds since the epoch, sizes in bytes, offsets next to read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, TypeAlias

from standfast.ops.observe.metrics_values import buckets
from standfast.ops.observe.placement import placement_of_status
from standfast.store.disk import DiskState
from standfast.store.histogram import Histogram, Histograms
from standfast.stream.snapshot_counts import SnapshotCounts
from standfast.stream.task.states import TaskState
from standfast.stream.task.statistics import CALL_OUTCOMES, SessionCounters, SessionStatistics
from standfast.stream.task.task import Task

Json: TypeAlias = dict[str, Any]
STATUS_SCHEMA = "standfast.status/1"
TASKS_SCHEMA = "standfast.tasks/1"


def status_document(statistics: SessionStatistics) -> Json:
    """All of a session's statistics."""
    return {
        "schema": STATUS_SCHEMA,
        "app": statistics.app,
        "instance": statistics.instance,
        "live": True,
        "at_ms": statistics.at_ms,
        "ready": statistics.ready,
        "missing": list(statistics.missing),
        "members": list(statistics.members),
        "standbys_missing": statistics.standbys_missing,
        "tasks": [asdict(task) for task in statistics.tasks],
        "restores": [asdict(restore) for restore in statistics.restores],
        "downloads": [asdict(download) for download in statistics.downloads],
        "own_sources": [asdict(source) for source in statistics.own_sources],
        "counters": counters_document(statistics.counters),
        "bulk": asdict(statistics.bulk),
        "log_lock": None if statistics.log_lock is None else statistics.log_lock._asdict(),
        "log_read_ms_ago": statistics.log_read_ms_ago,
        "log_error": statistics.log_error,
        "commit_interval_ms": statistics.commit_interval_ms,
        "disk": None if statistics.disk is None else disk_document(statistics.disk),
        "placement": placement_of_status(statistics.app, statistics.placement),
    }


def disk_document(disk: DiskState) -> Json:
    """Free space of the place with the least, and of each; `full`: the reason against new writes, or "".

    `no_room`: why the state directory takes no writes, or "".
    """
    least = disk.spaces[0] if disk.spaces else None
    return {
        "free_bytes": 0 if least is None else least.free_bytes,
        "total_bytes": 0 if least is None else least.total_bytes,
        "floor_bytes": disk.floor_bytes,
        "full": disk.full,
        "no_room": disk.no_room,
        "places": [asdict(space) | {"path": str(space.path)} for space in disk.spaces],
    }


def tasks_document(status: Json) -> Json:
    """The tasks of a status document alone."""
    return {
        "schema": TASKS_SCHEMA,
        "app": status["app"],
        "instance": status["instance"],
        "live": status["live"],
        "tasks": status["tasks"],
        "restores": status["restores"],
        "downloads": status.get("downloads", []),
        "placement": status.get("placement"),
    }


def counters_document(counters: SessionCounters) -> Json:
    """Counters since the session was opened; durations as cumulative buckets in seconds."""
    return {
        "commits": dict(counters.commits),
        "promotions": dict(counters.promotions),
        "wipes": dict(counters.wipes),
        "store_wipes": [
            {"store": store, "reason": reason, "count": count}
            for (store, reason), count in sorted(counters.store_wipes.items())
        ],
        "fenced": counters.fenced,
        "leases_lost": dict(counters.leases_lost),
        "lease_gap_ms": counters.lease_gap_ms,
        "restored": [
            {
                "store": store,
                "partition": partition,
                "reason": reason,
                "records": records,
                "bytes": counters.restored_bytes[store, partition, reason],
            }
            for (store, partition, reason), records in sorted(counters.restored_records.items())
        ],
        "standby": [
            {"store": store, "partition": partition, "records": records}
            for (store, partition), records in sorted(counters.standby_records.items())
        ],
        "processed": dict(counters.processed_records),
        "source_records": [
            {"source": source, "partition": partition, "records": records}
            for (source, partition), records in sorted(counters.source_records.items())
        ],
        "dropped": dict(counters.dropped),
        "punctuations": [
            {"kind": kind, "outcome": outcome, "count": count}
            for (kind, outcome), count in sorted(counters.punctuations.items())
        ],
        "calls": [
            {
                "step": step,
                "begun": begun,
                **{outcome: counters.calls_ended[step, outcome] for outcome in CALL_OUTCOMES},
                "retries": counters.call_retries[step],
                "timeouts": counters.call_timeouts[step],
            }
            for step, begun in sorted(counters.calls_begun.items())
        ],
        "task_failures": counters.task_failures,
        "handed_over_records": counters.handed_over_records,
        "gate_last_wait_ms": counters.gate_last_wait_ms,
        "promotion_last_ms": counters.promotion_last_ms,
        "commit_seconds": histogram_document(counters.commit_seconds),
        "gate_wait_seconds": histogram_document(counters.gate_wait_seconds),
        "promotion_seconds": histogram_document(counters.promotion_seconds),
        "restore_seconds": histogram_document(counters.restore_seconds),
        "restore_phases_ns": dict(counters.restore_phases_ns),
        "ack_seconds": histogram_document(counters.ack_seconds),
        "changelog_errors": dict(counters.changelog_errors),
        "snapshots": _snapshots(counters.snapshots),
        "store_restore_seconds": _histograms(counters.store_restore_seconds),
        "store_read_seconds": _histograms(counters.store_read_seconds),
        "punctuation_delay_seconds": _histograms(counters.punctuation_delay_seconds),
        "call_seconds": _histograms(counters.call_seconds),
    }


def not_ready_reasons(missing: Iterable[str], tasks: Iterable[Task]) -> list[str]:
    """Reasons against processing; empty if the instance may process. Standbys and their lag never count."""
    reasons = list(missing)
    for task in tasks:
        # The gate names a restoring task already, with its progress.
        whole = task.role == "standby" or task.state is TaskState.RUNNING
        if not whole and not any(reason.startswith(f"task {task.id}") for reason in reasons):
            reasons.append(f"task {task.id} is {task.state.value}" + (f": {task.error}" if task.error else ""))
    return reasons


def histogram_document(histogram: Histogram) -> Json:
    """Cumulative counts by upper bound, in seconds."""
    cumulative = buckets(histogram).cumulative
    return {
        "buckets": [{"le": bound, "count": count} for bound, count in cumulative[:-1]],
        "count": cumulative[-1][1],
        "sum": histogram.total,
    }


def _snapshots(counts: SnapshotCounts) -> Json:
    now = counts.copy()  # the thread that makes snapshots adds to it meanwhile
    made, restores = dict(now.made), dict(now.restores)
    return {
        "made": made,
        "restores": restores,
        "uploaded_bytes": now.uploaded_bytes,
        "at_ms": now.at_ms,
        "checkpoints": dict(now.checkpoints),
        "checkpoint": now.checkpoint,
        "pause_seconds": histogram_document(now.pauses),
        "pause_p50_ms": now.pause_ms(0.5),
        "pause_p99_ms": now.pause_ms(0.99),
        "pauses_ms": now.pauses_ms,
        "downloaded_bytes": now.downloaded_bytes,
        "storage": now.storage,
        "listed_ms": now.listed_ms,
        "stored": [asdict(one) for one in now.stored],
        "errors": [{"task": task, "error": text, "at_ms": at_ms} for task, (text, at_ms) in sorted(now.errors.items())],
    }


def _histograms(histograms: Histograms) -> list[Json]:
    """Histograms with at least one count, with their labels."""
    # A copy, because the threads that measure add labels meanwhile.
    return [
        {"labels": list(labels), **histogram_document(one)}
        for labels, one in sorted(histograms.copy().items())
        if any(one.counts)
    ]
