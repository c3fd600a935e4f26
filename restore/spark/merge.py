"""Verify of one partition in a task: its sorted records against the store's rows in the same order, side by side.

    records by key, newest first ──┐
                                   ├─ batch by batch ──> equal as a whole, else `standfast.restore.compare`
    rows of the store by key     ──┘

A batch of the log is compared as a whole with the store's rows up to its last key; only batches that differ are merged
row by row. Memory is that of a few batches, whatever the store's size.

Rules of this file: feeds the merge of `standfast.restore.compare`, which counts and judges. Both sides hide rows past
retention at the store's own observed stream time. It never opens or reads a log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from standfast.restore.compare import ComparisonOutcome, Tally, merged, named
from standfast.restore.digest import LogicalRow
from standfast.restore.fold import versions_of
from standfast.restore.spark.batches import PartitionFacts, key_times, numbers
from standfast.restore.spark.rows import HASH, differ, digest_of, joined, timestamp_bytes
from standfast.restore.verdict import LogFacts
from standfast.restore.verify.store_rows import (
    Selection,
    hiding,
    latest_rows,
    logical_row,
    plain_row,
    versions_by_key,
)
from standfast.store.specs import StoreSpec
from standfast.store.task.task_stores import AnyStore

# Bounds of the store's rows held at once: somewhat more than a batch of the log has, so that most fit in one chunk.
CHUNK_BYTES = 32 << 20
CHUNK_ROWS = 12_000
STEP_ROWS = 64  # rows between two looks at the bytes held, since rows may be of any size
FOUND_MAX = 10_000  # rows kept of each partition, and bytes of all those of a store: they end in the driver's memory
FOUND_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class ComparisonSettings(Selection):
    """Settings of a comparison: whether it is the `last` look, bounds of kept differences; the keys of a bucket.

    `found_bytes` bounds the bytes of kept differences, `value_max` those of each value (0: none). `chunk_bytes` bounds
    the store's rows held at once.
    """

    limit: int
    last: bool = False
    differences_max: int = FOUND_MAX
    found_bytes: int = FOUND_BYTES
    value_max: int = 0
    chunk_bytes: int = CHUNK_BYTES
    digest_only: bool = False


def merge_partition(
    batches: Iterable[pa.RecordBatch],
    store: AnyStore,
    facts: PartitionFacts,
    log: LogFacts,
    settings: ComparisonSettings,
) -> ComparisonOutcome:
    """Compare a sorted partition with the store's rows. `log`: facts about the log as a whole."""
    # The store's own time too: compaction may have removed the record that set it.
    observed_ms = max(facts.observed_ms, store.rows.observed_ms)
    tally = Tally(
        log,
        versioned=store.spec.traits.versions,
        last=settings.last,
        differences_max=settings.differences_max,
        found_bytes=settings.found_bytes,
        value_max=settings.value_max,
    )
    if store.spec.traits.versions:
        _merge_versions(batches, store, store.spec, observed_ms, tally, settings)
    else:
        _Merge(store, observed_ms, tally, settings).run(batches)
    return tally.outcome()


class _Merge:
    """The merge for key-value, window and session stores."""

    def __init__(self, store: AnyStore, observed_ms: int, tally: Tally, settings: ComparisonSettings) -> None:
        self._spec: StoreSpec = store.spec
        self._row = logical_row if store.spec.timestamped else plain_row
        self._rows = _StoreSide(latest_rows(store, settings), settings.chunk_bytes)
        self._tally = tally
        self._limit = settings.limit
        self._held: pa.RecordBatch | None = None  # records of the last key, which may go on in the next batch
        self._suffix, self._visible_from = hiding(self._spec, observed_ms)

    def run(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Merge all batches, then the rest of the store."""
        for batch in batches:
            reduced = self._reduce(batch)
            keys = reduced.column("key")
            last = keys[-1].as_py()
            at = reduced.num_rows - 1
            while at > 0 and keys[at - 1].as_py() == last:
                at -= 1
            self._held = reduced.slice(at)
            if at:
                self._compare(reduced.slice(0, at))
        if self._held is not None:
            self._compare(self._held)
        # Behind the log's last key: no record of theirs was read.
        for key, row in self._rows.rest():
            self._tally.differs(None, self._row(key, row), below=False, later=False)

    def _reduce(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Keep of each key at most a record at or above the limit, and the last one below it."""
        if self._held is not None:
            # A slice keeps the buffers of its whole batch alive: the concatenation copies the few held rows.
            batch = pa.Table.from_batches([self._held, batch]).combine_chunks().to_batches()[0]
        first = _first_of_key(batch.column("key"))
        below = numbers(batch, "offset") < self._limit
        before = np.concatenate([[True], below[:-1]])
        kept = first | (below & ~before)
        return batch if kept.all() else batch.filter(pa.array(kept))

    def _compare(self, batch: pa.RecordBatch) -> None:
        last = batch.column("key")[-1].as_py()
        while True:
            their_keys, their_rows, whole = self._rows.up_to(last)
            if whole:
                self._compare_part(batch, their_keys, their_rows)
                return
            # The store has more rows between these keys than a chunk holds: compare the log's up to the last held key.
            at = bisect_right(batch.column("key").to_pylist(), their_keys[-1])
            self._compare_part(batch.slice(0, at), their_keys, their_rows)
            batch = batch.slice(at)

    def _compare_part(self, batch: pa.RecordBatch, their_keys: list[bytes], their_rows: list[bytes]) -> None:
        """Compare records of the log with the store's rows of the same range of keys."""
        below = numbers(batch, "offset") < self._limit
        newest = batch if below.all() else batch.filter(pa.array(below))
        alive = newest if not newest.column("value").null_count else newest.filter(newest.column("value").is_valid())
        if self._suffix and alive.num_rows:
            visible = key_times(alive.column("key"), self._suffix) >= self._visible_from
            alive = alive if visible.all() else alive.filter(pa.array(visible))
        keys, rows = alive.column("key").to_pylist(), self._encode(alive)
        # Most batches are equal, and lists of bytes compare without a Python step for each row.
        if keys == their_keys and rows == their_rows:
            self._tally.match_all(digest_of(alive.column(HASH)))
            return
        self._row_by_row(batch, newest, alive, (keys, rows), (their_keys, their_rows))

    def _row_by_row(
        self,
        batch: pa.RecordBatch,
        newest: pa.RecordBatch,
        alive: pa.RecordBatch,
        ours: tuple[list[bytes], list[bytes]],
        theirs: tuple[list[bytes], list[bytes]],
    ) -> None:
        below = set(newest.column("key").to_pylist())
        above = numbers(batch, "offset") >= self._limit
        later = set(batch.filter(pa.array(above)).column("key").to_pylist()) if above.any() else set()
        offsets = dict(zip(ours[0], numbers(alive, "offset").tolist(), strict=True))
        equal: list[bool] = []  # one for each row of the log
        for key, one, other in merged(zip(*ours, strict=True), zip(*theirs, strict=True)):
            if one is not None:
                equal.append(one == other)
            if one != other:
                log = None if one is None else self._row(key, one)
                store = None if other is None else self._row(key, other)
                offset = offsets.get(key, -1)
                self._tally.differs(log, store, below=key in below, later=key in later, offset=offset)
        self._tally.match_all(digest_of(alive.column(HASH).filter(pa.array(equal, pa.bool_()))))

    def _encode(self, batch: pa.RecordBatch) -> list[bytes]:
        values = batch.column("value")
        if self._spec.timestamped and batch.num_rows:
            values = joined(timestamp_bytes(batch), values)
        return values.to_pylist()  # type: ignore[no-any-return]


class _StoreSide:
    """Rows of the store in key order, taken in chunks of bounded rows and bytes."""

    def __init__(self, rows: Iterator[tuple[bytes, bytes]], bytes_max: int) -> None:
        self._rows = rows
        self._bytes_max = bytes_max
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._ended = False

    def up_to(self, last: bytes) -> tuple[list[bytes], list[bytes], bool]:
        """Remaining rows with key <= last, and whether these are all of them; if not, at least one is returned."""
        self._fill()
        whole = self._ended or self._keys[-1] > last
        at = bisect_right(self._keys, last)
        keys, values = self._keys[:at], self._values[:at]
        del self._keys[:at], self._values[:at]
        return keys, values, whole

    def _fill(self) -> None:
        """Fill the chunk; it never holds more than its bound and a step, though rows may be of any size."""
        size = sum(map(len, self._values))
        while not self._ended and len(self._keys) < CHUNK_ROWS and size < self._bytes_max:
            step = list(islice(self._rows, STEP_ROWS))
            self._ended = len(step) < STEP_ROWS
            self._keys += map(itemgetter(0), step)
            values = list(map(itemgetter(1), step))
            size += sum(map(len, values))
            self._values += values

    def rest(self) -> Iterator[tuple[bytes, bytes]]:
        """The remaining rows."""
        yield from zip(self._keys, self._values, strict=True)
        yield from self._rows


def _first_of_key(keys: pa.Array) -> Any:
    first = np.ones(len(keys), bool)
    if len(keys) > 1:
        first[1:] = differ(keys.slice(1), keys.slice(0, len(keys) - 1))
    return first


def _merge_versions(
    batches: Iterable[pa.RecordBatch],
    store: AnyStore,
    spec: StoreSpec,
    observed_ms: int,
    tally: Tally,
    settings: ComparisonSettings,
) -> None:
    """Merge a versioned store key by key; a row is one version."""
    log = _log_versions(batches, observed_ms - spec.kept_ms, settings.limit)
    stored = ((key, (rows, False, False)) for key, rows in versions_by_key(store, spec, settings))
    for _, ours, theirs in merged(log, stored):
        rows, below, later = ours or ([], False, False)
        stored_rows = theirs[0] if theirs else []
        for _, one, other in tally.differing(named(rows, versioned=True), named(stored_rows, versioned=True)):
            tally.differs(one, other, below=below, later=later)


def _log_versions(
    batches: Iterable[pa.RecordBatch], kept_after: int, limit: int
) -> Iterator[tuple[bytes, tuple[list[LogicalRow], bool, bool]]]:
    """(key, (its versions, whether it has a record below the limit, whether it has a later one))."""
    names = ("key", "timestamp", "value", "offset")
    records = (row for one in batches for row in zip(*(one.column(name).to_pylist() for name in names), strict=True))
    for key, group in groupby(records, itemgetter(0)):
        own = list(group)
        puts = [(timestamp, value) for _, timestamp, value, offset in own if offset < limit]
        kept = versions_of(puts, kept_after)
        versions = [(key, valid_from, value) for valid_from, _, value in kept if value is not None]
        yield key, (versions, bool(puts), len(puts) < len(own))
