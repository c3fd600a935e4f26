"""Every metric of standfast: name, kind, labels, meaning. The README's table is checked against this list.

    python -m standfast.ops.observe.metrics_list        prints the rows of that table

Rules of this file: data only; it knows no metrics library and no session. Names follow Prometheus: base units
(seconds, bytes), counters end in `_total`, points in time are timestamps, not ages. Never a label by key, host,
offset or error text. Counters of a store carry its partition, because a sum over partitions would fall when a task
is revoked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

PREFIX = "standfast_"
Kind = Literal["counter", "gauge", "histogram"]
STORE = ("store", "partition")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; `short` is its name without the prefix."""

    short: str
    kind: Kind
    labels: tuple[str, ...]
    help: str

    @property
    def name(self) -> str:
        """The name as it is scraped; for a histogram without `_bucket`, `_sum`, `_count`."""
        return PREFIX + self.short


METRICS: tuple[Metric, ...] = (
    Metric(
        "build_info",
        "gauge",
        ("version", "protocol", "python", "rocksdict", "confluent_kafka"),
        "Always 1; the labels are the versions in use",
    ),
    Metric("ready", "gauge", (), "1 while the restore gate is open: every active store is whole"),
    Metric("tasks", "gauge", ("role", "state"), "Tasks held by this instance"),
    Metric("task_info", "gauge", (*STORE, "role", "state"), "Always 1; role and state of the task a store belongs to"),
    Metric("standbys_missing", "gauge", (), "Standby replicas asked for that no live instance can hold"),
    Metric(
        "log_lock_held_seconds",
        "gauge",
        (),
        "How long one process has kept all others from writing to the embedded log; 0 below a second",
    ),
    Metric("log_lock_holder_pid", "gauge", (), "Id of that process; 0 if there is none"),
    Metric("log_read_age_seconds", "gauge", (), "How old ends and lags are; they age while the log cannot be read"),
    # restore and gate
    Metric("restore_records_total", "counter", (*STORE, "reason"), "Changelog records applied by restores"),
    Metric("restore_bytes_total", "counter", (*STORE, "reason"), "Bytes of keys and values applied by restores"),
    Metric("restore_remaining_records", "gauge", STORE, "Offsets that a running restore still has to pass"),
    Metric("restore_workers", "gauge", (), "Processes that build files for a bulk restore now"),
    Metric("restore_runs_total", "counter", (), "Runs of sorted files that bulk restores took in"),
    Metric("restore_worker_failures_total", "counter", (), "Times a worker of a bulk restore failed or was killed"),
    Metric(
        "restore_duration_seconds",
        "histogram",
        ("store", "reason"),
        "From assignment, promotion or loss of a task until it ran, for each of its stores",
    ),
    Metric(
        "restore_phase_seconds_total",
        "counter",
        ("phase",),
        "Time that restores spent, over all processes: fetch, decode, write, ingest, compact, idle",
    ),
    Metric("gate_wait_seconds", "histogram", (), "How long the restore gate stayed shut"),
    Metric(
        "store_wipes_total", "counter", ("store", "reason"), "Times a store was set aside and restored from the log"
    ),
    # standby
    Metric("standby_lag_records", "gauge", STORE, "Records between a standby's position and the end of its changelog"),
    Metric("standby_caught_up_timestamp_seconds", "gauge", STORE, "When a standby last stood at the end"),
    Metric("standby_record_timestamp_seconds", "gauge", STORE, "Timestamp of the record a standby applied last"),
    Metric("standby_records_total", "counter", STORE, "Changelog records applied by standbys"),
    Metric("standby_limit_offset", "gauge", STORE, "First offset a standby must not apply; absent without a limit"),
    Metric("standby_paused", "gauge", STORE, "1 while a standby's changelog is paused at its limit"),
    Metric("promotions_total", "counter", ("outcome",), "Standbys that were made active"),
    Metric("promotion_duration_seconds", "histogram", (), "From the decision to promote a standby until it ran"),
    # changelog and commit
    Metric("changelog_records_total", "counter", STORE, "Records that commits wrote to the changelog"),
    Metric("changelog_bytes_total", "counter", STORE, "Bytes of keys and values that commits wrote to the changelog"),
    Metric(
        "changelog_skipped_total",
        "counter",
        STORE,
        "Records left out: without a key in a changelog, or of a source topic and such that its store cannot hold them",
    ),
    Metric(
        "changelog_ack_duration_seconds", "histogram", (), "From handing a commit to the log until its acknowledgement"
    ),
    Metric("changelog_errors_total", "counter", ("reason",), "Commits that the log did not take"),
    Metric("changelog_inflight_records", "gauge", (), "Records handed to the log and not acknowledged yet"),
    Metric("changelog_queue_bytes", "gauge", (), "Bytes of the commits that wait for the log's acknowledgement"),
    Metric("changelog_start_offset", "gauge", STORE, "First offset the changelog still holds"),
    Metric("changelog_end_offset", "gauge", STORE, "Next offset the changelog will give out"),
    Metric("changelog_position_offset", "gauge", STORE, "Next offset of the changelog to be applied here"),
    Metric("checkpoint_offset", "gauge", STORE, "Position that is stored together with the rows"),
    Metric("checkpoint_timestamp_seconds", "gauge", STORE, "When that position was stored"),
    Metric("commits_total", "counter", ("outcome",), "Commits of tasks, by how they ended"),
    Metric("commit_duration_seconds", "histogram", (), "Duration of commits that succeeded"),
    Metric("fenced_total", "counter", (), "Tasks given up because a newer owner took them"),
    Metric(
        "leases_lost_total",
        "counter",
        ("reason",),
        "Leases of this instance that ran out while it lived: `late` (a false alarm), `stalled` (no progress for "
        "`max_stall`)",
    ),
    Metric("lease_renewal_gap_seconds", "gauge", (), "Longest time between two renewals of the lease so far"),
    # processing
    Metric("processed_records_total", "counter", ("task",), "Records that the processors of a task were given"),
    Metric("dropped_records_total", "counter", ("reason",), "Records or results left out, by reason or step"),
    Metric("punctuations_total", "counter", ("kind", "outcome"), "Callbacks of schedules that fired, or failed"),
    Metric(
        "punctuation_delay_seconds",
        "histogram",
        ("kind",),
        "How far the time of a schedule was passed when it fired; of stream time: in stream time",
    ),
    Metric("stream_time_seconds", "gauge", ("task",), "Stream time of a task as of its last commit"),
    Metric("task_failures_total", "counter", (), "Tasks that failed in processing, also those opened again"),
    Metric("exchanged_records_total", "counter", (), "Records of internal topics handed on without reading them again"),
    # stores
    Metric("store_ops_total", "counter", (*STORE, "op"), "Calls on a store: put, get, delete, scan"),
    Metric(
        "store_op_duration_seconds",
        "histogram",
        ("store", "op"),
        "Reads that reached the database, one in 64: get, and scan until its first row is found",
    ),
    Metric("store_sst_bytes", "gauge", STORE, "Bytes of a store's files"),
    Metric("store_memtable_bytes", "gauge", STORE, "Bytes of a store's rows not yet in files"),
    Metric("store_keys_estimate", "gauge", STORE, "RocksDB's estimate of the number of rows"),
    Metric("store_pending_compaction_bytes", "gauge", STORE, "Bytes that compaction still has to rewrite"),
    Metric("store_write_stopped", "gauge", STORE, "1 while RocksDB takes no writes because compaction is behind"),
    Metric(
        "store_write_stall_seconds_total",
        "counter",
        ("task",),
        "How long RocksDB slowed or stopped writes because flushes or compaction were behind",
    ),
    Metric("store_segments", "gauge", STORE, "Column families of a store, one per live segment if it is windowed"),
    Metric("store_open_iterators", "gauge", STORE, "Range reads that are open"),
    Metric(
        "store_oldest_iterator_timestamp_seconds",
        "gauge",
        ("store",),
        "When the oldest range read that is open was first seen by a scrape; absent if none is",
    ),
    Metric("store_corruptions_total", "counter", STORE, "Reads that met damaged bytes"),
    Metric("store_segments_expired_total", "counter", STORE, "Segments dropped as a whole after retention"),
    Metric("late_records_dropped_total", "counter", STORE, "Rows refused because their segment was past retention"),
    Metric("write_buffer_bytes", "gauge", ("task",), "Bytes written by a task since its last commit"),
    # the doors of a sidecar; `code` is OK, the name of a reason, or an HTTP status
    Metric("rpc_requests_total", "counter", ("door", "method", "code"), "Commands and requests that were answered"),
    Metric("rpc_duration_seconds", "histogram", ("door", "method"), "Duration of calls; over RESP 1 in 64 is measured"),
    Metric("rpc_batch_ops", "histogram", ("door",), "Commands that came together in one read of a socket"),
    Metric("rpc_inflight", "gauge", ("door",), "Calls that wait for their answer"),
    Metric("rpc_received_bytes_total", "counter", ("door",), "Bytes that clients sent"),
    Metric("rpc_sent_bytes_total", "counter", ("door",), "Bytes that clients were sent"),
    Metric("sessions", "gauge", ("state",), "Connections of the RESP door, bound to a partition or not"),
    Metric("sessions_refused_total", "counter", (), "Connections turned away because there were too many"),
    Metric("sessions_cut_off_total", "counter", ("reason",), "Connections ended because of what the client did"),
    Metric("event_streams", "gauge", (), "Streams of events that are open"),
    Metric("loop_lag_seconds", "histogram", (), "How late the event loop of the doors woke up"),
    # verifications asked for over HTTP; batch jobs report for themselves
    Metric("verify_records_total", "counter", ("store",), "Rows that verifications compared with the changelog"),
    Metric("verify_mismatches_total", "counter", ("store",), "Rows found missing, too many or different"),
    Metric("verify_last_success_timestamp_seconds", "gauge", ("store",), "When a store was last found equal"),
    # the process
    Metric("state_dir_free_bytes", "gauge", (), "Free bytes of the file system that holds the state directory"),
    Metric("state_dir_size_bytes", "gauge", (), "Size of the file system that holds the state directory"),
    Metric("disk_free_bytes", "gauge", ("place",), "Free bytes where the state, and an embedded log, are written"),
    Metric("disk_floor_bytes", "gauge", (), "Below so many free bytes nothing new is written; 0: not watched"),
    Metric("disk_full", "gauge", (), "1 while writes are refused and restores wait for want of space"),
    Metric("collect_duration_seconds", "gauge", (), "How long reading these numbers took the last time"),
    Metric("collect_errors_total", "counter", (), "Scrapes that could not read the session"),
)


def table_rows() -> Iterator[str]:
    """Rows of the README's table."""
    yield "| metric | kind | labels | meaning |"
    yield "|---|---|---|---|"
    for metric in METRICS:
        yield f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels) or '-'} | {metric.help} |"


if __name__ == "__main__":
    print("\n".join(table_rows()))
