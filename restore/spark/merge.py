"""Verify of one partition in a task: its sorted records against the store's rows in the same order, side by side.

    records by key, newest first ──┐
                                   ├─ batch by batch ──> equal as a whole, else `standfast.restore.compare`
    rows of the store by key     ──┘

Where a batch of the log and the rows up to its last key are equal as a whole, they are compared as a whole; only
batches that differ are merged row by row. Memory is that of a few batches, whatever the store's size.

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

from standfast.restore.compare import Outcome, Tally, merged, named
from standfast.restore.digest import LogicalRow
from standfast.restore.fold import versions_of
from standfast.restore.judgement import LogFacts
from standfast.restore.spark.batches import Facts, key_times, numbers
from standfast.restore.spark.rows import HASH, differ, digest_of, joined, timestamp_bytes
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

# Of the store's rows that are looked at together: somewhat more than a batch of the log has, which then goes in one.
CHUNK_BYTES = 32 << 20
CHUNK_ROWS = 12_000
STEP_ROWS = 64
FOUND_MAX = 10_000  # rows that are kept of each partition, and bytes of all those of a store: they end in the driver
FOUND_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Settings(Selection):
    """How to look: `last` look, how many differences to keep; of a partition that is split, the keys of the bucket.

    `found_bytes` bounds what these take, `value_max` how much of each value is kept (0: nothing). `chunk_bytes` bounds
    the rows of the store that are looked at together.
    """

    limit: int
    last: bool = False
    differences_max: int = FOUND_MAX
    found_bytes: int = FOUND_BYTES
    value_max: int = 0
    chunk_bytes: int = CHUNK_BYTES
    digest_only: bool = False


def merge_partition(
    batches: Iterable[pa.RecordBatch], store: AnyStore, facts: Facts, log: LogFacts, settings: Settings
) -> Outcome:
    """Compare a sorted partition with the store's rows. `log` says what is known of the log as a whole."""
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
    """Key-value, window and session stores."""

    def __init__(self, store: AnyStore, observed_ms: int, tally: Tally, settings: Settings) -> None:
        self._spec: StoreSpec = store.spec
        self._row = logical_row if store.spec.timestamped else plain_row
        self._rows = _StoreSide(latest_rows(store, settings), settings.chunk_bytes)
        self._tally = tally
        self._limit = settings.limit
        self._held: pa.RecordBatch | None = None  # of the last key, which may go on in the next batch
        self._suffix, self._visible_from = hiding(self._spec, observed_ms)

    def run(self, batches: Iterable[pa.RecordBatch]) -> None:
        """All of it."""
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
        for key, row in self._rows.rest():
            self._tally.differs(None, self._row(key, row), below=False, later=False)

    def _reduce(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Of each key at most a record at or above the limit, and the last one below it."""
        if self._held is not None:
            # Buffers of a slice are shared: concatenating copies the few rows that are kept.
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
            # The store has more rows between these keys than are held at once: the log's up to the last of them first.
            at = bisect_right(batch.column("key").to_pylist(), their_keys[-1])
            self._compare_part(batch.slice(0, at), their_keys, their_rows)
            batch = batch.slice(at)

    def _compare_part(self, batch: pa.RecordBatch, their_keys: list[bytes], their_rows: list[bytes]) -> None:
        """Records of the log, and the store's rows of the same range of keys."""
        below = numbers(batch, "offset") < self._limit
        newest = batch if below.all() else batch.filter(pa.array(below))
        alive = newest if not newest.column("value").null_count else newest.filter(newest.column("value").is_valid())
        if self._suffix and alive.num_rows:
            visible = key_times(alive.column("key"), self._suffix) >= self._visible_from
            alive = alive if visible.all() else alive.filter(pa.array(visible))
        keys, rows = alive.column("key").to_pylist(), self._encode(alive)
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
        equal: list[bool] = []  # of our rows
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
        """Rows that were not taken yet with key <= last, and whether these are all; else there is at least one."""
        self._fill()
        whole = self._ended or self._keys[-1] > last
        at = bisect_right(self._keys, last)
        keys, values = self._keys[:at], self._values[:at]
        del self._keys[:at], self._values[:at]
        return keys, values, whole

    def _fill(self) -> None:
        """What is held is never more than a chunk and a step: rows may be of any size."""
        size = sum(map(len, self._values))
        while not self._ended and len(self._keys) < CHUNK_ROWS and size < self._bytes_max:
            step = list(islice(self._rows, STEP_ROWS))
            self._ended = len(step) < STEP_ROWS
            self._keys += map(itemgetter(0), step)
            values = list(map(itemgetter(1), step))
            size += sum(map(len, values))
            self._values += values

    def rest(self) -> Iterator[tuple[bytes, bytes]]:
        """What is left."""
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
    settings: Settings,
) -> None:
    """Versioned stores, key by key; a row is one version."""
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
    """Of each key: its versions, whether it has a record below the limit, whether a later one."""
    names = ("key", "timestamp", "value", "offset")
    records = (row for one in batches for row in zip(*(one.column(name).to_pylist() for name in names), strict=True))
    for key, group in groupby(records, itemgetter(0)):
        own = list(group)
        puts = [(timestamp, value) for _, timestamp, value, offset in own if offset < limit]
        kept = versions_of(puts, kept_after)
        versions = [(key, valid_from, value) for valid_from, _, value in kept if value is not None]
        yield key, (versions, bool(puts), len(puts) < len(own))
