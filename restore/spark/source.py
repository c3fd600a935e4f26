"""Spark's sources of a changelog: `native`, a data source in Python over our own readers, or the Kafka connector.

    native      one task for each partition: log reader (Kafka or embedded), from begin to end, read committed
    connector   org.apache.spark:spark-sql-kafka, explicit offsets of every partition, failOnDataLoss, read committed

Both give the rows of `standfast.restore.spark.batches.prepare`: records in offset order, one task for each partition,
and the partition's facts; so no shuffle precedes the sort. A partition that is split has a task for each piece, and
each piece sends its facts to every bucket.

Rules of this file: it reads exactly the given ranges, from begin to end; a position outside of the log's bounds is an
error and never skipped (the readers run with auto.offset.reset=error).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import quote, unquote

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from standfast.replication.offsets import Bounds, TopicPartition
from standfast.restore.spans import fetch_span
from standfast.restore.spark.batches import StoreShape, ddl, prepare, record_batch
from standfast.restore.spark.split_plan import Split, pieces_of
from standfast.store.errors import InternalError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SourceName: TypeAlias = Literal["native", "connector"]

FORMAT = "standfast-ranges"
FETCH_RECORDS = 10_000


@dataclass(frozen=True, slots=True)
class LogRanges:
    """Ranges to read: offsets begin <= o < end of partitions of one topic."""

    address: str
    topic: str
    ranges: Mapping[int, Bounds]


class RangesSource(DataSource):
    """Changelog partitions over explicit offsets. `native_frame` makes its one option, `job`."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> str:
        """See `batches.prepare`."""
        return ddl(_shape_of(json.loads(self.options["job"])).schema)

    def reader(self, schema: Any) -> RangesReader:
        """One reader for all partitions."""
        return RangesReader(self.options["job"])


class RangePartition(InputPartition):
    """One changelog partition, or a piece of one."""

    def __init__(self, partition: int, begin: int, end: int) -> None:
        super().__init__(partition)
        self.partition = partition
        self.begin = begin
        self.end = end


class RangesReader(DataSourceReader):
    """Reads each partition in a task of its own."""

    def __init__(self, job: str) -> None:
        self._job = job

    def partitions(self) -> Sequence[InputPartition]:
        """Longest first, so that the last task to end is not the longest one."""
        ranges: list[list[int]] = json.loads(self._job)["ranges"]
        found = [RangePartition(number, begin, end) for number, begin, end in ranges]
        found.sort(key=lambda one: one.begin - one.end)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches of one partition, its facts last."""
        if not isinstance(partition, RangePartition):
            raise InternalError(f"the source was given {partition!r}, which is not one of its partitions")
        job = json.loads(self._job)
        span = Bounds(partition.begin, partition.end)
        batches = read_range(job["address"], TopicPartition(job["topic"], partition.partition), span, job["rows"])
        yield from prepare(batches, _shape_of(job), partition.partition)


def read_range(
    address: str, source: TopicPartition, span: Bounds, rows: int = FETCH_RECORDS
) -> Iterator[pa.RecordBatch]:
    """Batches of at most `rows` records of a span. Raises StateLost if the log does not hold the whole span."""
    if span.begin >= span.end:
        return
    from standfast.replication.tail.open_log import open_log  # not on the driver's import path of every Spark user

    log = open_log(address)
    try:
        for batch in fetch_span(log.reader(), source, span, rows):
            records = batch.records
            # The last fetch may reach beyond the span, into records of another piece.
            if batch.next_offset > span.end:
                records = [record for record in records if record.offset < span.end]
            if len(records):
                yield record_batch(source.partition, records)
    finally:
        log.close()


def native_frame(spark: SparkSession, what: LogRanges, shape: StoreShape, *, rows: int = FETCH_RECORDS) -> DataFrame:
    """Prepared records of these ranges: one task for each range, or for each piece of a split one."""
    spark.dataSource.register(RangesSource)
    ranges = []
    for number, span in what.ranges.items():
        split = shape.splits.get(number)
        pieces = [tuple(span)] if split is None else pieces_of(split, span.end)
        ranges += [[number, begin, end] for begin, end in pieces]
    job = {
        "address": absolute(what.address),
        "topic": what.topic,
        "ranges": ranges,
        "rows": rows,
        "store": shape.name,
        "definition": dict(shape.definition),
        "limits": {str(number): limit for number, limit in shape.limits.items()},
        "splits": {str(number): split.dump() for number, split in shape.splits.items()},
    }
    # One text, because a data source takes options as strings only.
    return spark.read.format(FORMAT).option("job", json.dumps(job)).load()


def absolute(address: str) -> str:
    """The address for tasks, which may run in another folder: with an absolute path."""
    scheme, _, rest = address.partition("://")
    if scheme != "sqlite":
        return address
    path, mark, query = rest.removeprefix("/").partition("?")
    return f"sqlite:///{quote(str(Path(unquote(path)).absolute()))}{mark}{query}"


def _shape_of(job: dict[str, Any]) -> StoreShape:
    limits = {int(number): limit for number, limit in job["limits"].items()}
    splits = {int(number): Split.load(found) for number, found in job["splits"].items()}
    return StoreShape(job["store"], job["definition"], limits, splits)


def empty_frame(spark: SparkSession, partitions: Sequence[int], shape: StoreShape) -> DataFrame:
    """Facts of partitions without records to read: the connector has no task for them."""
    numbers = list(partitions)

    def facts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from prepare([], shape, numbers[index])

    count = len(numbers)
    # `range` gives a task to each; after `repartition` hashing and adaptive execution put several into one.
    return spark.range(0, count, 1, count).mapInArrow(facts, ddl(shape.schema))
