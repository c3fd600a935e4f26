"""Changelog records as Arrow batches between Spark's tasks, with the facts of each partition as a row of their own.

    log reader ──> log_batches ──> prepare ──> Spark sorts by (key, offset) ──> rebuild or verify

    LOG        partition | offset | timestamp | key | value
    PREPARED   the same, for versioned stores with the stream time observed at each record

`prepare` reads a partition in offset order and ends it with one row without a key: its Facts. Rows without a key sort
first, so the fold of a partition knows the observed stream time of all of it before the first row, and one pass over
the log is enough.

Rules of this file: pure but for the library; batches in, batches out, in bounded memory. It classifies records (`below`
the limit, or only a sign that a key has a later one), skips and counts records without a key, and refuses keys that no
store can have written.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from standfast.replication.columns import RecordColumns
from standfast.replication.log import Record
from standfast.replication.source_records import as_logged
from standfast.restore.spark.split_plan import Split
from standfast.store.errors import Corruption, InternalError
from standfast.store.specs import TRAITS, StoreSpec
from standfast.store.types.kinds import definition_spec

LOG = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
# The sort reorders records, and a version must be put at the stream time of its own moment.
PREPARED_VERSIONED = LOG.append(pa.field("observed", pa.int64()))
TICKET = "ticket"  # the column that sends a record of a split partition to its bucket
_DDL = {pa.int32(): "int", pa.int64(): "bigint", pa.binary(): "binary", pa.string(): "string"}
FACTS_OFFSET = -1  # the offset of no record
NOTHING_OBSERVED = -1


def ddl(schema: pa.Schema) -> str:
    """A schema in Spark's notation."""
    return ", ".join(f"{one.name} {_DDL[one.type]}" for one in schema)


@dataclass(frozen=True, slots=True)
class StoreShape:
    """A store as passed to tasks. `limits`: the offset, by partition, at which the store's own records end.

    `splits`: the partitions that are read in pieces and folded in buckets.
    """

    name: str
    definition: Mapping[str, Any]
    limits: Mapping[int, int] = field(default_factory=dict)
    splits: Mapping[int, Split] = field(default_factory=dict)

    @property
    def spec(self) -> StoreSpec:
        """The store's declaration."""
        return definition_spec(self.name, self.definition)

    @property
    def schema(self) -> pa.Schema:
        """Schema of the batches that `prepare` yields."""
        plain = PREPARED_VERSIONED if TRAITS[self.definition["kind"]].versions else LOG
        return plain.append(pa.field(TICKET, pa.int32())) if self.splits else plain


@dataclass(slots=True)
class PartitionFacts:
    """Facts of a partition. All of them cover the records below its limit, but for `above` (records at or above it).

    records       records read            observed_ms  largest stream time of a record (-1: none)
    max_offset    of the last (-1: none)  sequence     largest sequence number of retained duplicates
    refused       records older than the history that a versioned store kept at that moment, and skipped for it
    skipped       records without a key, or records of a source topic that the store cannot hold
    first         offset of the first record read, also above the limit (-1: none)
    bucket        number of the bucket, for a partition that is split
    whole         the same facts of all records read, if some of them lie above the limit
    """

    partition: int
    records: int = 0
    above: int = 0
    max_offset: int = -1
    observed_ms: int = NOTHING_OBSERVED
    sequence: int = 0
    refused: int = 0
    skipped: int = 0
    first: int = -1
    bucket: int = 0
    whole: PartitionFacts | None = None

    @property
    def at_end(self) -> PartitionFacts:
        """Facts of all records read, whatever the limit."""
        return self if self.whole is None else self.whole

    def batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """The row that carries the facts."""
        return self._batch(schema, 0)

    def batches(self, schema: pa.Schema, split: Split) -> Iterator[pa.RecordBatch]:
        """The rows that carry the facts to every bucket."""
        for bucket, ticket in enumerate(split.tickets):
            yield replace(self, bucket=bucket)._batch(schema, ticket)

    def _batch(self, schema: pa.Schema, ticket: int) -> pa.RecordBatch:
        cells: dict[str, Any] = dict.fromkeys(schema.names, 0)
        cells |= {"partition": self.partition, "offset": FACTS_OFFSET, "key": None, "value": self.dump()}
        if TICKET in schema.names:
            cells[TICKET] = ticket
        return pa.RecordBatch.from_pydict({name: [cell] for name, cell in cells.items()}, schema=schema)

    def dump(self) -> bytes:
        """The facts as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def load(cls, raw: bytes) -> PartitionFacts:
        """Inverse of dump."""
        return cls.of(json.loads(raw))

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> PartitionFacts:
        """Inverse of `dataclasses.asdict`."""
        whole = found["whole"]
        fields: dict[str, Any] = {**found, "whole": None if whole is None else cls.of(whole)}
        return cls(**fields)


def merged(pieces: Sequence[PartitionFacts]) -> PartitionFacts:
    """Facts of a partition from those of its pieces, for one of its buckets.

    Only the first bucket counts records that pieces have skipped, since buckets are added up.
    """
    first = pieces[0]
    if len(pieces) == 1:
        return first
    whole = None
    if any(one.whole is not None for one in pieces):
        whole = merged([replace(one.at_end, bucket=first.bucket) for one in pieces])
    return PartitionFacts(
        partition=first.partition,
        records=sum(one.records for one in pieces),
        above=sum(one.above for one in pieces),
        max_offset=max(one.max_offset for one in pieces),
        observed_ms=max(one.observed_ms for one in pieces),
        sequence=max(one.sequence for one in pieces),
        refused=sum(one.refused for one in pieces),
        skipped=sum(one.skipped for one in pieces),
        first=min((one.first for one in pieces if one.first >= 0), default=-1),
        bucket=first.bucket,
        whole=whole,
    )


def record_batch(partition: int, records: Sequence[Record]) -> pa.RecordBatch:
    """Records of one fetch as a batch of schema LOG."""
    if isinstance(records, RecordColumns):
        # Kafka's records come as columns: no Record object is made for them.
        columns: Sequence[Any] = (records.offsets, records.timestamps, records.keys, records.values)
    else:
        columns = list(zip(*records, strict=True))[:4] if records else ((), (), (), ())
    offsets, timestamps, keys, values = columns
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.full(len(keys), partition, np.int32)),
            pa.array(np.fromiter(offsets, np.int64, len(keys))),
            pa.array(np.fromiter(timestamps, np.int64, len(keys))),
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
        ],
        schema=LOG,
    )


def prepare(batches: Iterable[pa.RecordBatch], shape: StoreShape, partition: int = -1) -> Iterator[pa.RecordBatch]:
    """Batches in offset order, then the facts of each partition among them.

    `partition` has facts even without records. Raises Corruption for a key that no store can have written.
    """
    spec, schema = shape.spec, shape.schema
    watchers: dict[int, _Watcher] = {}
    # Facts without records, too: otherwise extra rows of a store whose log is empty would go unseen.
    if partition >= 0:
        watchers[partition] = _Watcher(partition, shape, spec)
    for batch in batches:
        for own in _by_partition(batch):
            number = own.column(0)[0].as_py()
            if number not in watchers:
                watchers[number] = _Watcher(number, shape, spec)
            kept = watchers[number].take(own)
            if kept.num_rows:
                yield kept
    for watcher in watchers.values():
        facts, split = watcher.told(), shape.splits.get(watcher.facts.partition)
        if split is None:
            yield facts.batch(schema)
        else:
            yield from facts.batches(schema, split)


class _Watcher:
    """Collects the facts of one partition, or of a piece of one, from its passing batches."""

    def __init__(self, partition: int, shape: StoreShape, spec: StoreSpec) -> None:
        self.facts = PartitionFacts(partition)
        self._whole = PartitionFacts(partition)
        self._spec = spec
        self._versioned = PREPARED_VERSIONED
        self._schema = shape.schema
        self._limit = shape.limits.get(partition, 2**63 - 1)  # without a limit, all records are the store's
        self._split = shape.splits.get(partition)

    def told(self) -> PartitionFacts:
        """The facts, after the last batch."""
        return replace(self.facts, whole=self._whole) if self.facts.above else self.facts

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Update the facts from a batch; returns the records of it that are passed on."""
        facts, offsets = self.facts, numbers(batch, "offset")
        below = int(np.searchsorted(offsets, self._limit))
        facts.records += below
        facts.above += len(offsets) - below
        self._whole.records += len(offsets)
        if facts.first < 0:
            facts.first = self._whole.first = int(offsets[0])
        if below:
            facts.max_offset = int(offsets[below - 1])
        self._whole.max_offset = int(offsets[-1])
        if self._spec.from_source or batch.column("key").null_count:
            read, came = below, batch.num_rows
            batch = self._as_logged(batch) if self._spec.from_source else with_key(batch)
            below = int(np.searchsorted(numbers(batch, "offset"), self._limit))
            facts.skipped += read - below
            self._whole.skipped += came - batch.num_rows
        times = self._spec.traits.times
        if self._spec.traits.versions:
            batch = self._observed(batch, below, self._spec.kept_ms)
        elif times is not None:
            self._windowed(batch, below, times.suffix_bytes)
        return batch if self._split is None else self._with_tickets(batch, self._split)

    def _with_tickets(self, batch: pa.RecordBatch, split: Split) -> pa.RecordBatch:
        """Add the bucket column. Not by Spark's expressions: they would need the many split keys of all partitions."""
        keys, tickets = split.keys, split.tickets
        chosen = [tickets[bisect_right(keys, key)] for key in batch.column("key").to_pylist()]
        return pa.RecordBatch.from_arrays([*batch.columns, pa.array(chosen, pa.int32())], schema=self._schema)

    def _as_logged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        cells = zip(*(batch.column(name).to_pylist() for name in ("offset", "timestamp", "key", "value")), strict=True)
        records = as_logged(self._spec, [Record(*one) for one in cells])
        return record_batch(self.facts.partition, records)

    def _windowed(self, batch: pa.RecordBatch, below: int, suffix: int) -> None:
        facts, keys = self.facts, batch.column("key")
        times = key_times(keys, suffix)
        bad = np.flatnonzero(times < 0)
        if len(bad):
            at = int(bad[0])
            raise Corruption(
                f"partition {facts.partition}: the record at offset {batch.column('offset')[at]} has the key "
                f"{keys[at].as_py().hex()}, which no {self._spec.kind} store writes: find the other writer of this "
                "topic"
            )
        sequences = _key_sequences(keys) if self._spec.numbered else None
        for seen, count in ((facts, below), (self._whole, len(times))):
            if count:
                seen.observed_ms = max(seen.observed_ms, int(times[:count].max()))
                if sequences is not None:
                    seen.sequence = max(seen.sequence, int(sequences[:count].max()))

    def _observed(self, batch: pa.RecordBatch, below: int, retention_ms: int) -> pa.RecordBatch:
        """Skip records that the live store refused; the others carry the stream time observed with them."""
        facts, stamps = self.facts, numbers(batch, "timestamp")
        # A refused record is older than the observed time, so it cannot move the maximum.
        observed = np.maximum(np.maximum.accumulate(stamps), self._whole.observed_ms) if len(stamps) else stamps
        # A record that moves the maximum is not older than the time observed before it either.
        kept = stamps >= observed - retention_ms
        # Above the limit a record only shows that its key has a later one, refused or not.
        kept[below:] = True
        facts.refused += len(stamps) - int(kept.sum())
        self._whole.refused = facts.refused
        if below:
            facts.observed_ms = int(observed[below - 1])
        if len(observed):
            self._whole.observed_ms = int(observed[-1])
        whole = pa.RecordBatch.from_arrays([*batch.columns, pa.array(observed)], schema=self._versioned)
        return whole if kept.all() else whole.filter(pa.array(kept))


def with_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The records that have a key: no store writes others, and every reader of a changelog skips them."""
    keys = batch.column("key")
    return batch.filter(keys.is_valid()) if keys.null_count else batch


def numbers(batch: pa.RecordBatch, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A column of whole numbers without nulls."""
    return np.asarray(batch.column(name).to_numpy(zero_copy_only=False), np.int64)


def key_times(keys: pa.Array, suffix: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The 8-byte time that begins `suffix` bytes before the end of each key; -1 for a key too short."""
    # On the bytes of the whole column: no Python call for each key.
    data, begins, ends = _spans(keys)
    short = ends - begins < suffix
    at = np.where(short, 0, ends - suffix)
    if not len(data):
        return np.full(len(at), -1, np.int64)
    # Clamped, since a key that is too short may leave fewer than 8 bytes in the whole buffer.
    picked = data[np.minimum(at[:, None] + np.arange(8), len(data) - 1)]
    times = np.ascontiguousarray(picked).view(">i8").reshape(-1).astype(np.int64)
    times[short] = -1
    return times


def _key_sequences(keys: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    data, _, ends = _spans(keys)
    # A window's row key ends in its start (8 bytes) and a sequence number (4).
    picked = data[(ends - 4)[:, None] + np.arange(4)]
    return np.ascontiguousarray(picked).view(">u4").reshape(-1).astype(np.int64)


def lengths(cells: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Bytes of each cell, 0 for a null."""
    _, begins, ends = _spans(cells)
    return ends - begins


def _spans(
    cells: pa.Array,
) -> tuple[
    np.ndarray[Any, np.dtype[np.uint8]], np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]
]:
    """Bytes of a binary array, with the begin and end of each cell in them."""
    _, places, data = cells.buffers()
    spans = np.frombuffer(places, np.int32, len(cells) + 1, cells.offset * 4).astype(np.int64)
    raw = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    return raw, spans[:-1], spans[1:]


def _by_partition(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Consecutive records of one partition each; a task usually has only one partition."""
    partitions = numbers(batch, "partition")
    if not len(partitions):
        return
    edges = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(partitions)]
    for begin, end in pairwise(edges):
        yield batch.slice(begin, end - begin)


def check_facts(batch: pa.RecordBatch) -> PartitionFacts:
    """The facts at the begin of a sorted partition. Raises InternalError if they are missing."""
    if batch.column("offset")[0].as_py() != FACTS_OFFSET or batch.column("key")[0].is_valid:
        raise InternalError("a sorted partition does not begin with its facts")
    return PartitionFacts.load(batch.column("value")[0].as_py())


class Pieces:
    """Stream times observed by the pieces before each piece of a split partition, for the records of a bucket.

    A piece does not know the earlier ones, so it keeps records of a versioned store that are too old for the times that
    those observed; `settled` skips them.
    """

    def __init__(self, pieces: Sequence[PartitionFacts], retention_ms: int, limit: int) -> None:
        told = sorted((one.first, one.at_end.observed_ms) for one in pieces if one.first >= 0)
        self._firsts = np.array([first for first, _ in told], np.int64)
        # Moved by one piece: a piece has seen its own times itself.
        before = [NOTHING_OBSERVED, *(observed for _, observed in told)][: len(told)]
        self._before = np.maximum.accumulate(np.array(before, np.int64)) if told else np.zeros(0, np.int64)
        self._retention_ms = retention_ms
        self._limit = limit
        self.refused = 0

    def settled(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch as if its partition had been read in one piece."""
        offsets = numbers(batch, "offset")
        before = self._before[np.searchsorted(self._firsts, offsets, side="right") - 1]
        observed = np.maximum(numbers(batch, "observed"), before)
        at = batch.schema.get_field_index("observed")
        batch = batch.set_column(at, batch.schema.field(at), pa.array(observed))
        kept = (numbers(batch, "timestamp") >= observed - self._retention_ms) | (offsets >= self._limit)
        self.refused += len(kept) - int(kept.sum())
        return batch if kept.all() else batch.filter(pa.array(kept))
