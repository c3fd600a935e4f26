"""The fold of sorted records to the rows of a store, batch by batch, for a rebuild's files.

    key-value, window, session    the first record of each key, since the newest offset comes first; tombstones go
    versioned                     all records of a key in offset order, put one after the other as the store does

    Folded    keys and rows of one family in ascending order, ready for an SST file

Rules of this file: pure but for the libraries; a partition comes sorted by (key, offset) and begins with its facts. Row
bytes are those of the store types; expired rows are skipped by the segment rules of `standfast.store.types.segments`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow.compute import call_function as _call

from standfast.restore.digest import Digest, digest_rows
from standfast.restore.spark.batches import (
    PartitionFacts,
    Pieces,
    StoreShape,
    check_facts,
    key_times,
    merged,
    numbers,
)
from standfast.store.errors import InternalError
from standfast.store.specs import StoreSpec
from standfast.store.types.segments import earliest_visible_ms, family_name, segment_interval_ms
from standfast.store.types.versioned import replay_key, versions_in

HASH = "hash"  # the column of Spark's xxhash64(key, timestamp, value)
LOW_32 = np.uint64(0xFFFF_FFFF)


class Folded(NamedTuple):
    """Rows of one family; within one `run` in ascending key order over all batches."""

    run: str
    family: str
    keys: list[bytes]
    rows: list[bytes]


@dataclass(slots=True)
class Counts:
    """Counts of a fold of a partition, or of a bucket of one. `keys`: number of different keys."""

    rows: int = 0
    keys: int = 0
    superseded: int = 0
    tombstones: int = 0
    expired: int = 0
    digest: Digest = field(default_factory=Digest)


class LatestRows:
    """The fold for key-value, window and session stores: the newest record of each key."""

    def __init__(self, spec: StoreSpec, facts: PartitionFacts, counts: Counts) -> None:
        self._spec = spec
        self._counts = counts
        self._last: bytes | None = None
        self._suffix = 0
        if spec.traits.times is not None:
            retention_ms = spec.kept_ms
            self._suffix = spec.traits.times.suffix_bytes
            self._interval_ms = segment_interval_ms(retention_ms)
            self._live_from = (facts.observed_ms - retention_ms) // self._interval_ms
            self._visible_from = earliest_visible_ms(facts.observed_ms, retention_ms)

    def fold(self, batch: pa.RecordBatch) -> Iterator[Folded]:
        """The rows of a batch."""
        newest = self._newest(batch)
        counts = self._counts
        counts.superseded += batch.num_rows - newest.num_rows
        counts.keys += newest.num_rows
        alive = newest if not newest.column("value").null_count else newest.filter(newest.column("value").is_valid())
        counts.tombstones += newest.num_rows - alive.num_rows
        if not alive.num_rows:
            return
        if not self._suffix:
            self._digest(alive)
            yield Folded("", self._spec.name, alive.column("key").to_pylist(), self._rows(alive))
            counts.rows += alive.num_rows
            return
        # A live segment keeps rows past retention, as a live store's does; the digest covers visible rows alone.
        times = key_times(alive.column("key"), self._suffix)
        segments = times // self._interval_ms
        live = segments >= self._live_from
        counts.expired += len(times) - int(live.sum())
        visible = live & (times >= self._visible_from)
        self._digest(alive if visible.all() else alive.filter(pa.array(visible)))
        for segment in np.unique(segments[live]):
            own = alive.filter(pa.array(segments == segment))
            family = family_name(self._spec.name, int(segment) * self._interval_ms)
            yield Folded(family, family, own.column("key").to_pylist(), self._rows(own))
            counts.rows += own.num_rows

    def end(self) -> Iterator[Folded]:
        """No rows: this fold holds none back."""
        return iter(())

    def _newest(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys = batch.column("key")
        first = np.ones(batch.num_rows, bool)
        first[0] = self._last is None or keys[0].as_py() != self._last  # a key may go on from the batch before
        if batch.num_rows > 1:
            first[1:] = differ(keys.slice(1), keys.slice(0, batch.num_rows - 1))
        self._last = keys[-1].as_py()
        return batch if first.all() else batch.filter(pa.array(first))

    def _rows(self, batch: pa.RecordBatch) -> list[bytes]:
        values = batch.column("value")
        if not self._spec.timestamped:
            return values.to_pylist()  # type: ignore[no-any-return]
        return joined(timestamp_bytes(batch), values).to_pylist()  # type: ignore[no-any-return]

    def _digest(self, batch: pa.RecordBatch) -> None:
        self._counts.digest += digest_of(batch.column(HASH))


class VersionRows:
    """The fold for versioned stores: every record of a key counts, in offset order."""

    def __init__(self, spec: StoreSpec, facts: PartitionFacts, counts: Counts) -> None:
        self._spec = spec
        self._counts = counts
        self._observed_ms = facts.observed_ms
        self._kept_after = facts.observed_ms - spec.kept_ms
        self._held: list[tuple[Any, ...]] = []  # records of the last key, which may go on in the next batch

    def fold(self, batch: pa.RecordBatch) -> Iterator[Folded]:
        """The rows of all keys but the last one."""
        names = ("key", "timestamp", "value", "observed")
        rows = [*self._held, *zip(*(batch.column(name).to_pylist() for name in names), strict=True)]
        last = rows[-1][0]
        complete = [row for row in rows if row[0] != last]
        self._held = rows[len(complete) :]
        yield from self._replay(complete)

    def end(self) -> Iterator[Folded]:
        """The rows of the last key."""
        yield from self._replay(self._held)
        self._held = []

    def _replay(self, records: list[tuple[Any, ...]]) -> Iterator[Folded]:
        by_segment: dict[bytes, dict[bytes, bytes]] = {}
        counts, retention_ms = self._counts, self._spec.kept_ms
        for key, own in groupby(records, itemgetter(0)):
            counts.keys += 1
            puts = [(timestamp, value, observed) for _, timestamp, value, observed in own]
            counts.tombstones += sum(value is None for _, value, _ in puts)
            # The store's own code, so that history and bytes are those of a live store.
            rows = replay_key(retention_ms, key, puts, self._observed_ms)
            for row_key, row in rows.items():
                by_segment.setdefault(row_key[:8], {})[row_key] = row
            versions = [one for row_key, row in rows.items() for one in versions_in(row_key, row, self._kept_after)]
            counts.digest += digest_rows(versions)
            counts.rows += len(rows)
        for prefix, rows in by_segment.items():
            yield Folded(prefix.hex(), self._spec.name, list(rows), list(rows.values()))


def fold_rows(shape: StoreShape, facts: PartitionFacts, counts: Counts) -> LatestRows | VersionRows:
    """The fold of a store, for one partition."""
    spec = shape.spec
    return VersionRows(spec, facts, counts) if spec.traits.versions else LatestRows(spec, facts, counts)


def joined(first: pa.Array, second: pa.Array) -> pa.Array:
    """Bytes of two columns, concatenated cell by cell."""
    return _call("binary_join_element_wise", [first, second, pa.scalar(b"")])


def differ(one: pa.Array, other: pa.Array) -> Any:
    """Whether two columns without nulls differ, cell by cell, as a numpy array."""
    return _call("not_equal", [one, other]).to_numpy(zero_copy_only=False)


def timestamp_bytes(batch: pa.RecordBatch) -> pa.Array:
    """Timestamps as at the begin of a timestamped row: 8 bytes, big-endian."""
    # Columns from buffers, without a call for each row.
    raw = pa.py_buffer(numbers(batch, "timestamp").astype(">i8").tobytes())
    places = pa.py_buffer(np.arange(0, 8 * batch.num_rows + 1, 8, dtype=np.int32).tobytes())
    return pa.Array.from_buffers(pa.binary(), batch.num_rows, [None, places, raw])


def digest_of(hashes: pa.Array) -> Digest:
    """Digest of rows from their hashes, which are Spark's signed numbers."""
    if not len(hashes):
        return Digest()
    unsigned = np.ascontiguousarray(hashes.to_numpy(zero_copy_only=False)).view(np.uint64)
    return Digest(len(unsigned), int(np.bitwise_xor.reduce(unsigned)), int((unsigned & LOW_32).sum()))


def partitions_of(
    batches: Iterable[pa.RecordBatch], shape: StoreShape | None = None
) -> Iterator[tuple[PartitionFacts, Iterator[pa.RecordBatch]]]:
    """The sorted partition of a task, or its bucket, if it has one: its facts, and the batches after them.

    `shape`: the source's, if it splits partitions. A task has at most one partition, since the sort begins with the
    key: Spark compares rows by the first 8 bytes of the first column as long as these differ, and a partition's number
    in front would be the same in all. Raises InternalError for a second one, whose rows would be among those of the
    first. `facts.refused` is complete after the last batch.
    """
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return
    told, rest = _told(first, filled, shape)
    facts = merged(told)
    spec, pieces = None if shape is None else shape.spec, None
    if shape is not None and spec is not None and spec.traits.versions and len(told) > 1:
        pieces = Pieces(told, spec.kept_ms, shape.limits.get(facts.partition, 2**63 - 1))
    if facts.bucket:
        facts.refused = 0  # the first bucket counts records that the pieces refused; all buckets know the same number

    def own() -> Iterator[pa.RecordBatch]:
        for batch in chain(rest, filled):
            if batch.column("key").null_count:  # further facts: rows without a key sort first
                raise _second(facts)
            kept = batch if pieces is None or not batch.num_rows else pieces.settled(batch)
            if kept.num_rows:
                yield kept
        if pieces is not None:
            facts.refused += pieces.refused

    yield facts, own()


def _told(
    first: pa.RecordBatch, filled: Iterator[pa.RecordBatch], shape: StoreShape | None
) -> tuple[list[PartitionFacts], list[pa.RecordBatch]]:
    """Facts of all pieces, which come first, and the remaining rows of the batches that held them."""
    told, batch = [check_facts(first)], first.slice(1)
    split = None if shape is None else shape.splits.get(told[0].partition)
    while split is not None:
        if not batch.num_rows:
            following = next(filled, None)
            if following is None:
                break
            batch = following
        count = int(batch.column("key").null_count)
        told += [check_facts(batch.slice(at)) for at in range(count)]
        batch = batch.slice(count)
        if batch.num_rows:
            break
    if len({(one.partition, one.bucket) for one in told}) > 1:
        raise _second(told[0])
    return told, [batch] if batch.num_rows else []


def _second(facts: PartitionFacts) -> InternalError:
    return InternalError(f"a task was handed another partition beside {facts.partition}: read each in its own task")
