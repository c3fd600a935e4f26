"""The figures of a session: immutable snapshots for metrics, status and other readers.

Rules of this file: plain data and the few counters that hot paths add to; no metrics library. Times in milliseconds
or seconds as named, sizes in bytes, offsets next to read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from standfast.replication.log import LockHolder
from standfast.replication.placement.seen import PlacementSnapshot
from standfast.restore.replay.bulk import BulkStatistics
from standfast.store.disk import DiskState
from standfast.store.errors import Fenced, StateLost, Unavailable
from standfast.store.histogram import READ_BUCKETS_S, Histogram, Histograms
from standfast.stream.snapshot_counts import DownloadStatistics, SnapshotCounts

COMMIT_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
ACK_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
DELAY_BUCKETS_S = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0)
PAUSE_BUCKETS_S = (0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)
CALL_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
RESTORE_BUCKETS_S = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)

LEASE_LATE, LEASE_STALLED = "late", "stalled"  # why a lease ran out: see SessionCounters.leases_lost
CALL_OUTCOMES = ("succeeded", "failed", "cancelled")
LOG_ERRORS = ("unavailable", "fenced", "lost", "refused")


def log_error(error: BaseException) -> str:
    """One of LOG_ERRORS: why the log did not accept a commit's records."""
    for kind, word in ((Unavailable, "unavailable"), (Fenced, "fenced"), (StateLost, "lost")):
        if isinstance(error, kind):
            return word
    return "refused"


@dataclass(slots=True)
class SessionCounters:
    """Numbers that only grow, added to by the session's threads under its lock (of processing: by its loop)."""

    commits: Counter[str] = field(default_factory=Counter)  # outcome
    commit_seconds: Histogram = field(default_factory=lambda: Histogram(COMMIT_BUCKETS_S))
    gate_wait_seconds: Histogram = field(default_factory=lambda: Histogram(RESTORE_BUCKETS_S))
    promotion_seconds: Histogram = field(default_factory=lambda: Histogram(RESTORE_BUCKETS_S))
    restore_seconds: Histogram = field(default_factory=lambda: Histogram(RESTORE_BUCKETS_S))
    promotions: Counter[str] = field(default_factory=Counter)  # outcome
    pause_seconds: Histograms = field(default_factory=lambda: Histograms(PAUSE_BUCKETS_S))  # kind of the move
    wipes: Counter[str] = field(default_factory=Counter)  # reason
    store_wipes: Counter[tuple[str, str]] = field(default_factory=Counter)  # store, reason
    store_restore_seconds: Histograms = field(default_factory=lambda: Histograms(RESTORE_BUCKETS_S))  # store, reason
    restore_phases_ns: Counter[str] = field(default_factory=Counter)  # phase; over all processes of a restore
    store_read_seconds: Histograms = field(default_factory=lambda: Histograms(READ_BUCKETS_S))  # store, op
    ack_seconds: Histogram = field(default_factory=lambda: Histogram(ACK_BUCKETS_S))
    changelog_errors: Counter[str] = field(default_factory=Counter)  # reason
    restored_records: Counter[tuple[str, int, str]] = field(default_factory=Counter)  # store, partition, reason
    restored_bytes: Counter[tuple[str, int, str]] = field(default_factory=Counter)
    fenced: int = 0
    leases_lost: Counter[str] = field(default_factory=Counter)  # reason
    lease_gap_ms: int = 0  # longest time between two renewals
    standby_records: Counter[tuple[str, int]] = field(default_factory=Counter)  # store, partition
    processed_records: Counter[str] = field(default_factory=Counter)  # task
    source_records: Counter[tuple[str, int]] = field(default_factory=Counter)  # own source, partition
    dropped: Counter[str] = field(default_factory=Counter)  # reason
    punctuations: Counter[tuple[str, str]] = field(default_factory=Counter)  # kind, outcome
    punctuation_delay_seconds: Histograms = field(default_factory=lambda: Histograms(DELAY_BUCKETS_S))  # kind
    calls_begun: Counter[str] = field(default_factory=Counter)  # asynchronous step
    calls_ended: Counter[tuple[str, str]] = field(default_factory=Counter)  # step, outcome
    call_retries: Counter[str] = field(default_factory=Counter)  # step
    call_timeouts: Counter[str] = field(default_factory=Counter)  # step; attempts
    call_seconds: Histograms = field(default_factory=lambda: Histograms(CALL_BUCKETS_S))  # step
    snapshots: SnapshotCounts = field(default_factory=SnapshotCounts)
    task_failures: int = 0
    handed_over_records: int = 0
    gate_last_wait_ms: int = -1
    promotion_last_ms: int = -1

    def copy(self) -> SessionCounters:
        """A copy of the numbers: a snapshot must not change under its reader."""
        values: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        copies: dict[str, Any] = {
            name: value if isinstance(value, int) else value.copy() for name, value in values.items()
        }
        return SessionCounters(**copies)


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """One store of one task."""

    store: str
    kind: str
    partition: int
    position: int
    position_at_ms: int
    begin: int
    end: int
    lag: int
    observed_ms: int
    sst_bytes: int
    memtable_bytes: int
    keys_estimate: int
    pending_compaction_bytes: int
    segments: int
    open_iterators: int
    ops: dict[str, int]
    logged_records: int
    logged_bytes: int
    late_dropped: int
    segments_expired: int
    corruptions: int
    skipped: int
    limit: int | None = None
    paused: bool = False
    caught_up_ms: int = -1
    record_timestamp_ms: int = -1
    write_stopped: bool = False
    oldest_iterator_ms: int = -1


class Clocks(NamedTuple):
    """The clocks of a task that is processed, and the input each of them waits for; None is unknown, or none.

    An input is a partition such as `flights/0`, for a watermark behind a repartition topic with the upstream task that
    writes there, as `topic/0@0_3`. A clock waits for none of its inputs while all are idle.
    """

    stream_time_ms: int | None = None
    stream_time_waits_for: str | None = None
    watermark_ms: int | None = None
    watermark_waits_for: str | None = None


@dataclass(frozen=True, slots=True)
class TaskStatistics:
    """One task: role `active` or `standby`, state as in stream/task/states.py.

    `failures` of its processing on this instance; `opened_again_ms`: the time to the next opening of a failed task;
    None: no opening is noted here. The four fields before these are as in `Clocks`.
    """

    task: str
    partition: int
    role: str
    state: str
    epoch: int
    error: str
    buffer_bytes: int
    sources: dict[str, int]
    stream_times: dict[str, int]
    stores: tuple[StoreStatistics, ...]
    inflight_records: int = 0
    inflight_bytes: int = 0
    write_stall_ms: int = 0
    stream_time_ms: int | None = None
    stream_time_waits_for: str | None = None
    watermark_ms: int | None = None
    watermark_waits_for: str | None = None
    failures: int = 0
    opened_again_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SourceStatistics:
    """A source of one's own that runs here: `state` is running, finished, failed or cancelled.

    `collected` is the offset of its last record, `processed` the next one to process, `waiting` the records between.
    """

    source: str
    partition: int
    task: str
    state: str
    collected: int
    processed: int
    waiting: int


@dataclass(frozen=True, slots=True)
class RestoreStatistics:
    """One changelog being restored; rate in records per second, seconds_left None while nothing is applied."""

    task: str
    store: str
    partition: int
    reason: str
    start: int
    position: int
    end: int
    records: int
    payload_bytes: int
    remaining: int
    fraction: float
    rate: float
    seconds_left: float | None
    stuck: bool


@dataclass(frozen=True, slots=True)
class SessionStatistics:
    """A session at one moment."""

    app: str
    instance: str
    ready: bool
    missing: tuple[str, ...]
    members: tuple[str, ...]
    standbys_missing: int
    tasks: tuple[TaskStatistics, ...]
    restores: tuple[RestoreStatistics, ...]
    counters: SessionCounters
    bulk: BulkStatistics
    log_lock: LockHolder | None = None  # a process that keeps all others from writing to the log
    disk: DiskState | None = None
    own_sources: tuple[SourceStatistics, ...] = ()
    # Age of the ends and lags read from the log: old ones are returned where a read would have to wait.
    log_read_ms_ago: int = 0
    log_error: str = ""  # why they could not be read since; it may be empty while the reason is not known
    commit_interval_ms: int | None = None  # between the commits of a task, now; None without an application's loop
    placement: PlacementSnapshot | None = None  # of the whole application, with managed placement
    downloads: tuple[DownloadStatistics, ...] = ()  # of snapshots, into the directories of tasks
    max_tasks: int | None = None  # the bound of the instance's active tasks
    at_ms: int = 0  # wall clock at this moment; 0 where nothing was read
    slots_missing: int = 0  # for tasks of the application, as the last placement that was read here says
