"""The statistics of one instance whose tasks are in several processes: the server's own, and the workers'.

    worker ── status document (JSON, about once a second) ──> WorkerNumbers.take(worker, document)
    server ── its own SessionStatistics ──> WorkerNumbers.merged(own) ──> metrics, page, status

    The last counters of a worker that has ended stay in the sum: a counter that fell would look like a reset, and
    everything would count again.

Rules of this file: pure; documents of `status.py` back into statistics, and sums. A task that two processes name while
it changes hands is the server's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from standfast.replication.log import LockHolder
from standfast.restore.replay.bulk import BulkStatistics
from standfast.store.disk import DiskState, Space
from standfast.store.histogram import Histogram, Histograms
from standfast.stream.snapshot_counts import DownloadStatistics, SnapshotCounts, StoredSnapshot
from standfast.stream.task.statistics import (
    CALL_OUTCOMES,
    RestoreStatistics,
    SessionCounters,
    SessionStatistics,
    SourceStatistics,
    StoreStatistics,
    TaskStatistics,
)

Json = Mapping[str, Any]
_LAST = {"gate_last_wait_ms", "promotion_last_ms", "lease_gap_ms"}  # durations of single events: no sums, the largest
_HISTOGRAMS = ("commit_seconds", "gate_wait_seconds", "promotion_seconds", "restore_seconds", "ack_seconds")
_LABELLED = ("store_restore_seconds", "store_read_seconds", "punctuation_delay_seconds", "call_seconds")


def statistics_of(status: Json) -> SessionStatistics:
    """Inverse of `status.status_document`. Raises KeyError, TypeError or ValueError for another document."""
    return SessionStatistics(
        app=status["app"],
        instance=status["instance"],
        ready=status["ready"],
        missing=tuple(status["missing"]),
        members=tuple(status["members"]),
        standbys_missing=status["standbys_missing"],
        tasks=tuple(_task(one) for one in status["tasks"]),
        restores=tuple(RestoreStatistics(**_known(RestoreStatistics, one)) for one in status["restores"]),
        downloads=tuple(DownloadStatistics(**_known(DownloadStatistics, one)) for one in status.get("downloads", ())),
        counters=counters_of(status["counters"]),
        bulk=BulkStatistics(**_known(BulkStatistics, status.get("bulk", {}))),
        log_lock=LockHolder(**status["log_lock"]) if status.get("log_lock") else None,
        disk=_disk(status.get("disk")),
        log_read_ms_ago=status.get("log_read_ms_ago", 0),
        log_error=status.get("log_error", ""),
        commit_interval_ms=status.get("commit_interval_ms"),
        at_ms=status.get("at_ms", 0),
        own_sources=tuple(SourceStatistics(**_known(SourceStatistics, one)) for one in status.get("own_sources", ())),
    )


def _disk(document: Json | None) -> DiskState | None:
    if document is None:
        return None
    places: list[dict[str, Any]] = [{**_known(Space, one), "path": Path(one["path"])} for one in document["places"]]
    spaces = tuple(Space(**one) for one in places)
    return DiskState(document["floor_bytes"], document["full"], spaces, document.get("no_room", ""))


def counters_of(document: Json) -> SessionCounters:
    """Inverse of `status.counters_document`."""
    restored, calls = document["restored"], document.get("calls", ())
    found = SessionCounters(
        commits=Counter(document["commits"]),
        promotions=Counter(document["promotions"]),
        wipes=Counter(document["wipes"]),
        restored_records=Counter({(one["store"], one["partition"], one["reason"]): one["records"] for one in restored}),
        restored_bytes=Counter({(one["store"], one["partition"], one["reason"]): one["bytes"] for one in restored}),
        fenced=document["fenced"],
        leases_lost=Counter(document.get("leases_lost", {})),
        lease_gap_ms=document.get("lease_gap_ms", 0),
        standby_records=Counter({(one["store"], one["partition"]): one["records"] for one in document["standby"]}),
        processed_records=Counter(document.get("processed", {})),
        source_records=Counter(
            {(one["source"], one["partition"]): one["records"] for one in document.get("source_records", ())}
        ),
        dropped=Counter(document.get("dropped", {})),
        punctuations=Counter({(one["kind"], one["outcome"]): one["count"] for one in document.get("punctuations", ())}),
        calls_begun=Counter({one["step"]: one["begun"] for one in calls}),
        calls_ended=Counter({(one["step"], outcome): one[outcome] for one in calls for outcome in CALL_OUTCOMES}),
        call_retries=Counter({one["step"]: one["retries"] for one in calls}),
        call_timeouts=Counter({one["step"]: one["timeouts"] for one in calls}),
        task_failures=document.get("task_failures", 0),
        handed_over_records=document.get("handed_over_records", 0),
        gate_last_wait_ms=document["gate_last_wait_ms"],
        promotion_last_ms=document["promotion_last_ms"],
        store_wipes=Counter({(one["store"], one["reason"]): one["count"] for one in document.get("store_wipes", ())}),
        restore_phases_ns=Counter(document.get("restore_phases_ns", {})),
        changelog_errors=Counter(document.get("changelog_errors", {})),
    )
    if "snapshots" in document:
        found.snapshots = _snapshots(document["snapshots"])
    for name in _HISTOGRAMS:
        if name in document:
            setattr(found, name, _histogram(document[name]))
    for name in _LABELLED:
        kept: Histograms = getattr(found, name)
        for one in document.get(name, ()):
            kept[tuple(one["labels"])].add(_histogram(one))
    return found


class WorkerNumbers:
    """The last statistics of an instance's workers. `worker` names a process for its whole life, as its pid does."""

    def __init__(self) -> None:
        self._now: dict[str, SessionStatistics] = {}
        self._gone = SessionCounters()
        self._gone_bulk = BulkStatistics()

    def take(self, worker: str, status: Json) -> None:
        """Take a worker's newest document. Raises ValueError if it is not one, and keeps the one before."""
        try:
            self._now[worker] = statistics_of(status)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"worker {worker} sent a document that is not a status: {error!r}") from error

    def gone(self, worker: str) -> None:
        """Remove a worker that has ended with its tasks; its counters stay in the sum."""
        left = self._now.pop(worker, None)
        if left is not None:
            left.counters.snapshots.errors.clear()  # an error stays until it is mended, which the next process says
            self._gone = added([self._gone, left.counters])
            self._gone_bulk = _bulk([self._gone_bulk, replace(left.bulk, workers_now=0, workers_max=0)])

    def merged(self, own: SessionStatistics) -> SessionStatistics:
        """Statistics of the whole instance. `ready` and `missing` are the server's own."""
        workers = list(self._now.values())
        # The server's come last and win: a worker's document may be a second old.
        tasks = {task.task: task for one in (*workers, own) for task in one.tasks}
        held = {task.task for task in own.tasks}
        restores = [one for worker in workers for one in worker.restores if one.task not in held]
        paces = (one.commit_interval_ms for one in (own, *workers))
        intervals = [interval_ms for interval_ms in paces if interval_ms is not None]
        return replace(
            own,
            tasks=tuple(sorted(tasks.values(), key=lambda task: (task.task.partition("_")[0], task.partition))),
            restores=(*own.restores, *restores),
            downloads=(*own.downloads, *(one for worker in workers for one in worker.downloads)),
            counters=added([own.counters, self._gone, *(worker.counters for worker in workers)]),
            bulk=_bulk([own.bulk, self._gone_bulk, *(worker.bulk for worker in workers)]),
            disk=own.disk or _fullest(worker.disk for worker in workers),
            own_sources=(*own.own_sources, *(one for worker in workers for one in worker.own_sources)),
            # The oldest reading: a figure is as old as the process that could not reach the log.
            log_read_ms_ago=max(one.log_read_ms_ago for one in (own, *workers)),
            commit_interval_ms=max(intervals, default=None),
            log_error=own.log_error or next((one.log_error for one in workers if one.log_error), ""),
        )


def added(parts: Iterable[SessionCounters]) -> SessionCounters:
    """The sum of counters; leaves the parts unchanged."""
    total = SessionCounters()
    for part in parts:
        for one in fields(SessionCounters):
            mine, theirs = getattr(total, one.name), getattr(part, one.name)
            if isinstance(mine, Counter):
                mine.update(theirs)
            elif isinstance(mine, Histogram | Histograms | SnapshotCounts):
                mine.add(theirs)
            else:
                setattr(total, one.name, max(mine, theirs) if one.name in _LAST else mine + theirs)
    return total


def _snapshots(document: Json) -> SnapshotCounts:
    made: Counter[str] = Counter(document["made"])
    restores: Counter[str] = Counter(document["restores"])
    found = SnapshotCounts(made, restores, document["uploaded_bytes"], dict(document["at_ms"]))
    if "pause_seconds" in document:  # absent in the document of a worker of an earlier version
        found.checkpoints = Counter(document["checkpoints"])
        found.pauses = _histogram(document["pause_seconds"])
        found.pauses_ms, found.checkpoint = list(document["pauses_ms"]), document["checkpoint"]
    found.downloaded_bytes = document.get("downloaded_bytes", 0)
    found.storage = document.get("storage", "")
    found.listed_ms = document.get("listed_ms", 0)
    found.stored = tuple(StoredSnapshot(**_known(StoredSnapshot, one)) for one in document.get("stored", ()))
    found.errors = {one["task"]: (one["error"], one["at_ms"]) for one in document.get("errors", ())}
    return found


def _fullest(disks: Iterable[DiskState | None]) -> DiskState | None:
    """The state of the disk by the worker that takes it for full, or by any."""
    known = [disk for disk in disks if disk is not None]
    return max(known, key=lambda disk: (bool(disk.no_room), bool(disk.full)), default=None)


def _bulk(parts: Sequence[BulkStatistics]) -> BulkStatistics:
    """Sums, but the largest value of peaks."""
    found: dict[str, int] = {}
    for one in fields(BulkStatistics):
        values = [int(getattr(part, one.name)) for part in parts]
        found[one.name] = max(values) if "peak" in one.name else sum(values)
    return BulkStatistics(**found)


def _task(document: Json) -> TaskStatistics:
    stores = tuple(StoreStatistics(**_known(StoreStatistics, one)) for one in document["stores"])
    known: dict[str, Any] = {**_known(TaskStatistics, document), "stores": stores}
    return TaskStatistics(**known)


def _known(kind: Any, document: Json) -> dict[str, Any]:
    """The fields that this version has; a newer worker may send more of them."""
    names = {one.name for one in fields(kind)}
    return {name: value for name, value in document.items() if name in names}


def _histogram(document: Json) -> Histogram:
    found = Histogram(tuple(one["le"] for one in document["buckets"]))
    # The document has cumulative counts, as Prometheus has them, and no bucket for infinity: JSON cannot write it.
    below = 0
    for index, count in enumerate([*(one["count"] for one in document["buckets"]), document["count"]]):
        found.counts[index] = count - below
        below = count
    found.total = document["sum"]
    return found
