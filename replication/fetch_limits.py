"""Bounds of the six places in which a source record may wait on its way from the log to a processor.

    log ──> 1 client ──> 2 slots ──> 3 hand-over ──> 4 queue ──> 5 inbox ──> 6 input ──> processor
            librdkafka   ReaderSlot  FetchThread     Credits     Lane        Input
            (Kafka only, both)       with threads only, all three

    place        bound                                                   while it is full
    1 client     client_kib of one reader, in all; client_records and    librdkafka asks the broker for nothing
                 client_partition_bytes a partition
    2 slots      slot_records of one reader, in all, or slot_bytes       the client keeps its records
    3 hand-over  one fetch: fetch_records, up to fetch_records_max       the fetch thread waits
    4 queue      credits.queue_batches_high a partition,                 the partition is paused at the reader until
                 credits.queue_bytes_max in all                          credits.queue_batches_low
    5 inbox      one batch a partition, credits.floating_batches in      batches stay in the queue
                 all, credits.hand_bytes_max; about lane_fetch_bytes
                 leave it at once
    6 input      input_records a source partition                        the lane does not give the partition until half

Rules of this file: plain values; each place reads its own bounds from `LIMITS`. It imports none of the places.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from standfast.replication.credits import CreditLimits


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """The bounds of the header's table, in records, bytes or KiB by their names."""

    # Fetched ahead: no more than keeps a reader busy. Measured: with 2,000,000 records the client went on fetching
    # while records it had needed the processors: a tenth slower, and a restore took 390 MiB instead of 155.
    client_records: int = 100_000
    client_kib: int = 65_536
    narrow_client_kib: int = 8_192  # for each of several readers of one machine
    client_partition_bytes: int = 2 << 20  # measured: first record of a long log after 10 ms; 8 MiB took 40
    slot_records: int = 10_000  # or the size of a fetch, if that is larger
    slot_bytes: int = 32 << 20
    fetch_records: int = 10_000  # the least, since each fetch costs two thread switches; shared among partitions
    fetch_records_max: int = 50_000
    fetch_timeout_ms: int = 20  # short, because a request waits for at most one fetch
    credits: CreditLimits = field(
        default_factory=lambda: CreditLimits(
            floating_batches=8,
            floating_per_partition_max=2,
            hand_bytes_max=32 << 20,
            queue_batches_high=4,
            queue_batches_low=1,
            queue_bytes_max=32 << 20,
        )
    )
    lane_fetch_bytes: int = 2 << 20  # keys and values of one fetch: its applier may hold the session's lock meanwhile
    lane_first_records: int = 100  # that a lane reads by itself before it knows their size
    standby_fetch_records: int = 10_000  # one fetch of the tailer from its lane
    loop_fetch_records: int = 1_000
    input_records: int = 2_000


LIMITS = FetchLimits()
