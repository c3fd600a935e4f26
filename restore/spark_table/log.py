"""Changelogs as rows for Spark: every record between offsets, or the change that each of them made.

    changelog    a row for each record; value null: a delete
    changes      a row for each change of the store, with `change` and on demand the old value

    inserted    the key had no value            deleted    it had one, and has none now (without one: no change, no row)
    updated     it had one                      written    inserted or updated: unknown which, because an earlier
                                                           record may have been removed from the log

For changes the log is read up to three times: between the offsets for the keys, from its beginning for their earlier
values, and again. Memory holds the changed keys of a partition, with their values if old ones are requested.

Records without a key, which no store writes, are skipped; a warning of the reading process counts them.

Rules of this file: reads only committed records, from and to explicit offsets within the log's bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from standfast.replication.offsets import Bounds, TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.restore.report.text import skipped_text
from standfast.restore.spark.batches import with_key
from standfast.restore.spark.source import absolute, read_range
from standfast.restore.spark_table.columns import Cells, Shaper, log_columns
from standfast.restore.spark_table.options import CheckedOptions, described_store
from standfast.store.errors import BadConfig, Corruption, InternalError, InvalidRequest, UnknownStore
from standfast.store.log import as_event, logger
from standfast.store.names import few
from standfast.store.specs import StoreSpec

Identity: TypeAlias = "bytes | tuple[bytes, int]"
# (timestamp, value) of a key; the value is empty unless old ones are requested.
Held: TypeAlias = tuple[int, bytes]


class LogPart(InputPartition):
    """Offsets begin <= o < end of one partition, whose log begins at `log_begin`."""

    def __init__(self, partition: int, span: Bounds, log_begin: int) -> None:
        super().__init__(partition)
        self.partition = partition
        self.span = span
        self.log_begin = log_begin


class ChangelogSource(NamedTuple):
    """A changelog: its log's address, its topic, and its store."""

    address: str
    topic: str
    spec: StoreSpec


def source_of(given: CheckedOptions) -> ChangelogSource:
    """The changelog that options name. Raises BadConfig."""
    address = absolute(given.need("log", 'option("log", "kafka://host:9092")'))
    topic, name = given.text("topic"), given.text("storeName")
    spec = described_store(given, name or topic or "changelog")
    if topic is None:
        app = given.text("app")
        if app is None or name is None:
            raise BadConfig(["which changelog? name it with topic, or its app and storeName"])
        topic = spec.changelog_of(app)
    return ChangelogSource(address, topic, spec)


def log_schema(given: CheckedOptions) -> dict[str, str]:
    """Columns of the changelog that options name."""
    return log_columns(source_of(given).spec, given)


class ChangelogReader(DataSourceReader):
    """Records of a changelog."""

    def __init__(self, given: CheckedOptions, schema: StructType) -> None:
        self._given = given
        self._source = source_of(given)
        self._schema = schema
        self._shaper()  # an unfit schema is refused in the driver, before a task starts

    def partitions(self) -> list[InputPartition]:
        """One for each partition of the changelog that has offsets to read."""
        given = self._given
        return list(spans(self._source, given, given.offsets("startOffsets"), given.offsets("endOffsets")))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Batches of one partition."""
        if not isinstance(partition, LogPart):
            raise InternalError(f"the source was given {partition!r}, which is not one of its partitions")
        shaper, left = self._shaper(), self._given.number("limit")
        for count, cells in self._cells(partition):
            if left == 0:
                return
            batch = shaper.batch(cells, count)
            if left is not None:
                batch = batch.slice(0, left)
                left -= batch.num_rows
            yield batch

    def _cells(self, part: LogPart) -> Iterator[tuple[int, Cells]]:
        source = self._source
        for batch in read_keyed(source.address, TopicPartition(source.topic, part.partition), part.span):
            cells: dict[str, Any] = {name: batch.column(name) for name in batch.schema.names}
            yield batch.num_rows, cells | split_keys(source.spec, batch.column("key"), source.topic)

    def _shaper(self) -> Shaper:
        spec, topic = self._source.spec, self._source.topic
        return Shaper(self._schema, log_columns(spec, self._given), spec, f"changelog {topic}")


class ChangesReader(ChangelogReader):
    """Changes that the records of a changelog made."""

    def _cells(self, part: LogPart) -> Iterator[tuple[int, Cells]]:
        changes = Changes(self._source, part, values=self._given.flag("oldValues"))
        spec, topic = self._source.spec, self._source.topic
        for batch, kinds, old in changes.batches():
            cells: dict[str, Any] = {name: batch.column(name) for name in batch.schema.names}
            cells |= split_keys(spec, batch.column("key"), topic)
            cells["change"] = kinds
            cells["old_timestamp"] = [None if one is None else one[0] for one in old]
            cells["old_value"] = [None if one is None else one[1] for one in old]
            yield batch.num_rows, cells


class Changes:
    """Changes of one partition. `values`: keep old values, too."""

    def __init__(self, source: ChangelogSource, part: LogPart, *, values: bool) -> None:
        self._source = source
        self._at = TopicPartition(source.topic, part.partition)
        self._part = part
        self._values = values
        self._versioned = source.spec.traits.versions

    def batches(self) -> Iterator[tuple[pa.RecordBatch, list[str], list[Held | None]]]:
        """(records that changed the store, their kinds of change, the values before them)."""
        held, unsure = self._before()
        for batch in self._read(self._part.span):
            kinds: list[str] = []
            old: list[Held | None] = []
            kept = np.ones(batch.num_rows, bool)
            for index, (key, stamp, value) in enumerate(self._rows(batch)):
                known = key in held
                before = held.get(key)
                if value is None and before is None and (known or not unsure):
                    kept[index] = False  # a delete of an absent key
                    continue
                kinds.append(_change(before, value, known or not unsure))
                old.append(before)
                held[key] = None if value is None else (stamp, value if self._values else b"")
            if kinds:
                yield batch if kept.all() else batch.filter(pa.array(kept)), kinds, old

    def _before(self) -> tuple[dict[Identity, Held | None], bool]:
        """Values of the changed keys at the first offset, and whether a key without one may have had one too."""
        part = self._part
        held: dict[Identity, Held | None] = {}
        # Nothing of the log lies before; with a begin above 0, records that did are gone.
        if part.span.begin <= part.log_begin:
            return held, part.log_begin > 0
        # A pass for the keys first, so that memory grows with the changes and not with the store.
        changed = {key for batch in self._read(part.span) for key, _, _ in self._rows(batch)}
        records = 0
        for batch in read_range(self._source.address, self._at, Bounds(part.log_begin, part.span.begin)):
            records += batch.num_rows
            for key, stamp, value in self._rows(batch):
                if key in changed:
                    held[key] = None if value is None else (stamp, value if self._values else b"")
        # Fewer records than offsets: compaction may have removed the only record of a key.
        return held, part.log_begin > 0 or records < part.span.begin - part.log_begin

    def _read(self, span: Bounds) -> Iterator[pa.RecordBatch]:
        return read_keyed(self._source.address, self._at, span)

    def _rows(self, batch: pa.RecordBatch) -> Iterator[tuple[Identity, int, bytes | None]]:
        keys, stamps, values = (batch.column(name).to_pylist() for name in ("key", "timestamp", "value"))
        # A versioned store has a value for each key and time.
        identities = zip(keys, stamps, strict=True) if self._versioned else keys
        return zip(identities, stamps, values, strict=True)


def _change(before: Held | None, value: bytes | None, sure: bool) -> str:
    if value is None:
        return "deleted"
    if not sure:
        return "written"
    return "inserted" if before is None else "updated"


def read_keyed(address: str, at: TopicPartition, span: Bounds) -> Iterator[pa.RecordBatch]:
    """Records of a span of offsets that have a key."""
    skipped = 0
    for batch in read_range(address, at, span):
        kept = with_key(batch)
        skipped += batch.num_rows - kept.num_rows
        if kept.num_rows:
            yield kept
    if skipped:
        logger.warning(
            "%s",
            skipped_text(f"{at} from offset {span.begin} to {span.end}", skipped),
            extra=as_event("records_skipped", source=at, records=skipped),
        )


def split_keys(spec: StoreSpec, keys: pa.Array, topic: str) -> dict[str, Any]:
    """Keys of records as columns. Raises Corruption for a key that no such store writes."""
    times = spec.traits.times
    if times is None:
        return {"key": keys}
    try:
        return times.columns(spec, list(map(times.unpack, keys.to_pylist())))
    except Corruption as error:
        raise Corruption(f"{topic}: {error}; or the topic is not a {spec.kind} store's: correct storeKind") from error


def spans(source: ChangelogSource, given: CheckedOptions, start: Any, end: Any) -> Iterator[LogPart]:
    """The offsets to read of each partition. Raises UnknownStore for an absent topic, InvalidRequest for offsets."""
    log = open_log(source.address)
    try:
        info = log.admin.describe_topic(source.topic)
        if info is None:
            raise UnknownStore(
                f"the log {source.address} has no topic {source.topic}: check topic, app, storeName and log"
            )
        numbers = given.partitions()
        wanted = range(info.partitions) if numbers is None else numbers
        _refuse_partitions(info.name, info.partitions, [*wanted, *_numbers(start), *_numbers(end)])
        reader = log.reader()
        try:
            bounds = reader.bounds([TopicPartition(info.name, number) for number in wanted])
        finally:
            reader.close()
    finally:
        log.close()
    for at, held in sorted(bounds.items()):
        span = Bounds(_offset(start, at.partition, held.begin), _offset(end, at.partition, held.end))
        if not held.begin <= span.begin <= span.end <= held.end:
            raise InvalidRequest(
                f"{at}: offsets {span.begin} to {span.end} cannot be read, the log holds {held.begin} to {held.end}: "
                "give startOffsets and endOffsets in between"
            )
        if span.begin < span.end:
            yield LogPart(at.partition, span, held.begin)


def _numbers(offsets: Any) -> Sequence[int]:
    return list(offsets) if isinstance(offsets, Mapping) else []


def _offset(given: Any, partition: int, default: int) -> int:
    found = given.get(partition, default) if isinstance(given, Mapping) else default if given is None else given
    return int(found)


def _refuse_partitions(topic: str, count: int, numbers: Sequence[int]) -> None:
    bad = sorted({number for number in numbers if number >= count})
    if bad:
        raise InvalidRequest(f"{topic} has partitions 0 to {count - 1}, not {few(bad)}")
