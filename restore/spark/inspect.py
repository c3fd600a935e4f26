"""Inspection of the changelogs of many stores in one Spark job: counts, sizes and times of records, number of keys.

    native or connector source of each store ──union──> one aggregate by (store, partition) ──> Inspected

Rules of this file: reads and counts. The number of keys is an estimate (5 %), so that only counters are shuffled; a
rebuild counts rows exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from standfast.replication.offsets import Bounds
from standfast.restore.spark.batches import FACTS_OFFSET, StoreShape
from standfast.restore.spark.frames import OnTasks, run_job, translated
from standfast.restore.spark.session import batch_rows
from standfast.restore.spark.source import LogRanges, SourceName, native_frame
from standfast.restore.verify.preflight import Preflight

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NO_TIME = -1


@dataclass(frozen=True, slots=True)
class Inspected:
    """One changelog partition over begin <= offset < end. Times in ms since the epoch, NO_TIME without records.

    records      records that the store takes      keys         estimated number of distinct keys
    tombstones   records that delete               bytes        of all keys and values
    gaps         offsets without a record: transaction markers, aborted records, records removed by compaction
    value_max_bytes   of the largest value
    """

    partition: int
    begin: int
    end: int
    records: int = 0
    tombstones: int = 0
    keys: int = 0
    bytes: int = 0
    value_max_bytes: int = 0
    first_ms: int = NO_TIME
    last_ms: int = NO_TIME

    @property
    def gaps(self) -> int:
        """Offsets without a record."""
        return self.end - self.begin - self.records


def inspect(
    spark: SparkSession,
    changelogs: Sequence[Preflight],
    *,
    source: SourceName = "native",
    connector_options: Mapping[str, str] | None = None,
    on_tasks: OnTasks | None = None,
) -> dict[str, tuple[Inspected, ...]]:
    """All partitions of each store, in order. Raises StateLost if a log has lost records of the ranges."""
    found = {
        what.spec.name: {number: Inspected(number, *span) for number, span in what.ranges.items()}
        for what in changelogs
    }
    with translated():
        # An empty changelog needs no job: its zeros stand in `found` already.
        frames = [_frame(spark, what, source, connector_options or {}) for what in changelogs if what.records_max]
        if frames:
            rows = F.col("size")
            counted = reduce(lambda one, other: one.unionByName(other), frames)
            answer = counted.groupBy("store", "partition").agg(
                F.count("*").alias("records"),
                F.count_if(F.col("value_bytes").isNull()).alias("tombstones"),
                F.approx_count_distinct("key").alias("keys"),  # an exact count would shuffle every key
                F.sum(rows).alias("bytes"),
                F.max("value_bytes").alias("value_max_bytes"),
                F.min("timestamp").alias("first_ms"),
                F.max("timestamp").alias("last_ms"),
            )
            for row in run_job(answer, on_tasks):
                found[row.store][row.partition] = _inspected(row, found[row.store][row.partition])
    return {store: tuple(parts[number] for number in sorted(parts)) for store, parts in found.items()}


def _frame(spark: SparkSession, what: Preflight, source: SourceName, options: Mapping[str, str]) -> DataFrame:
    """Records of one store, with its name, and lengths in place of values."""
    # Lengths only: values would go through the aggregate for nothing.
    shape = StoreShape(what.spec.name, what.spec.definition())
    ranges = LogRanges(what.address, what.topic, {n: Bounds(*span) for n, span in what.ranges.items()})
    if source == "native":
        frame = native_frame(spark, ranges, shape, rows=batch_rows(what.average_bytes))
    else:
        from standfast.restore.spark.connector import connector_frame

        frame = connector_frame(spark, ranges, shape, options)
    # A prepared frame has rows of facts among its records.
    return frame.where(F.col("offset") != FACTS_OFFSET).select(
        F.lit(what.spec.name).alias("store"),
        "partition",
        "timestamp",
        "key",
        F.length("value").alias("value_bytes"),
        (F.length("key") + F.coalesce(F.length("value"), F.lit(0))).alias("size"),
    )


def _inspected(row: object, empty: Inspected) -> Inspected:
    def whole(name: str, otherwise: int = 0) -> int:
        value = getattr(row, name)
        return otherwise if value is None else int(value)

    records = whole("records")
    return Inspected(
        partition=empty.partition,
        begin=empty.begin,
        end=empty.end,
        records=records,
        tombstones=whole("tombstones"),
        keys=min(whole("keys"), records),  # the estimate may exceed the records
        bytes=whole("bytes"),
        value_max_bytes=whole("value_max_bytes"),
        first_ms=whole("first_ms", NO_TIME),
        last_ms=whole("last_ms", NO_TIME),
    )
