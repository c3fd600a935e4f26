"""Verify of one partition in a task: its sorted records against the store's rows in the same order, side by side.

    records by key, newest first ──┐
                                   ├─ merge ──> matched, differences with their verdicts, digests of both sides
    rows of the store by key     ──┘

Where a batch of the log and the rows up to its last key are equal as a whole, they are compared as a whole; only what
differs is looked at row by row. Memory is that of a few batches, whatever the store's size.

Rules of this file: compares and counts; what a difference means is said by `standfast.restore.judgement`. Both sides
hide rows past retention at the store's own observed stream time. It never opens or reads a log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from standfast.restore.compare import Kind
from standfast.restore.digest import Digest, digest_rows, key_hash
from standfast.restore.fold import versions_of
from standfast.restore.judgement import UNSURE, KeyFacts, RowVerdict, is_beyond, judge
from standfast.restore.row_side import RowSide, row_side
from standfast.restore.spark.batches import SESSION_SUFFIX, WINDOW_SUFFIX, Facts, key_times, numbers
from standfast.restore.spark.rows import HASH, differ, digest_of, joined, timestamp_bytes
from standfast.store.specs import SessionStore, StoreSpec, VersionedStore, WindowStore
from standfast.store.task.task_stores import AnyStore
from standfast.store.types.segments import earliest_visible_ms
from standfast.store.types.typed import NO_TIMESTAMP
from standfast.store.types.versioned import versions_in
from standfast.store.value_timestamp import TIMESTAMP
from standfast.store.versioned_row import LATEST_PREFIX, segment_prefix

# Of the store's rows that are looked at together: somewhat more than a batch of the log has, which then goes in one.
CHUNK_BYTES = 32 << 20
CHUNK_ROWS = 12_000
STEP_ROWS = 64
SAMPLE_BITS = 0xFFFF
DIFFERENCES_MAX = 10_000

FOUND_BYTES = 32 << 20
FOUND_OVERHEAD_BYTES = 512  # what a row that is kept takes beside its key and values

Side = tuple[int, bytes] | None


class Found(NamedTuple):
    """One row that is not equal; a side is None where it lacks the row. `offset` of the log's record, or -1."""

    kind: RowVerdict
    key: bytes
    log: RowSide | None
    store: RowSide | None
    offset: int = -1


@dataclass(slots=True)
class Outcome:
    """What a merge found. `counts` are of all rows; `found` are the first rows that are wrong or must be seen again."""

    matched: int = 0
    counts: dict[RowVerdict, int] = field(default_factory=dict)
    found: list[Found] = field(default_factory=list)
    log_digest: Digest = field(default_factory=Digest)
    store_digest: Digest = field(default_factory=Digest)
    beyond: int = 0  # extra rows that are from beyond the position


@dataclass(frozen=True, slots=True)
class Settings:
    """How to look: `last` look, rows of the sample only (of 65,536 parts), how many differences to keep.

    `found_bytes` bounds what these take, `value_max` how much of each value is kept (0: nothing). `chunk_bytes` bounds
    the rows of the store that are looked at together. `low` and `high` are those of the bucket, of a partition that is
    split: keys with low <= key < high.
    """

    limit: int
    last: bool = False
    sample: int = SAMPLE_BITS + 1
    differences_max: int = DIFFERENCES_MAX
    found_bytes: int = FOUND_BYTES
    value_max: int = 0
    chunk_bytes: int = CHUNK_BYTES
    digest_only: bool = False
    low: bytes | None = None
    high: bytes | None = None


def merge_partition(
    batches: Iterable[pa.RecordBatch], store: AnyStore, facts: Facts, keys: KeyFacts, settings: Settings
) -> Outcome:
    """Compare a sorted partition with the store's rows. `keys` says what is known of the log as a whole."""
    observed_ms = max(facts.observed_ms, store.rows.observed_ms)
    if isinstance(store.spec, VersionedStore):
        tally = _Tally(keys, settings, versioned=True)
        return _merge_versions(batches, store, store.spec, observed_ms, tally)
    return _Merge(store, observed_ms, _Tally(keys, settings, versioned=False), settings).run(batches)


class _Tally:
    """Counts, digests and differences of one partition."""

    def __init__(self, keys: KeyFacts, settings: Settings, *, versioned: bool) -> None:
        self.outcome = Outcome()
        self.settings = settings
        self._keys = keys
        self._versioned = versioned
        self._left_bytes = settings.found_bytes

    def same(self, digest: Digest) -> None:
        """Rows that are equal on both sides."""
        outcome = self.outcome
        outcome.matched += digest.count
        outcome.log_digest += digest
        outcome.store_digest += digest

    def differs(self, key: bytes, log: Side, store: Side, *, below: bool, later: bool, offset: int = -1) -> None:
        """A row that is not."""
        kind: Kind = "missing" if store is None else "extra" if log is None else "different"
        self._keys.below, self._keys.later = {key} if below else set(), {key} if later else set()
        verdict = judge(kind, key, self._keys, versioned=self._versioned, last=self.settings.last)
        outcome = self.outcome
        outcome.counts[verdict] = outcome.counts.get(verdict, 0) + 1
        outcome.beyond += is_beyond(verdict, key, self._keys)
        if verdict not in UNSURE:
            if log is not None:
                outcome.log_digest += digest_rows([(key, *log)])
            if store is not None:
                outcome.store_digest += digest_rows([(key, *store)])
            self._keep(verdict, key, log, store, offset)

    def _keep(self, verdict: RowVerdict, key: bytes, log: Side, store: Side, offset: int) -> None:
        """The first rows only: they go to the driver, which has the rows of all tasks."""
        found, value_max = self.outcome.found, self.settings.value_max
        if len(found) >= self.settings.differences_max or self._left_bytes <= 0:
            return
        one = Found(verdict, key, row_side(key, log, value_max), row_side(key, store, value_max), offset)
        found.append(one)
        values = sum(len(side.value or b"") for side in (one.log, one.store) if side is not None)
        self._left_bytes -= FOUND_OVERHEAD_BYTES + len(key) + values


class _Merge:
    """Key-value, window and session stores."""

    def __init__(self, store: AnyStore, observed_ms: int, tally: _Tally, settings: Settings) -> None:
        self._spec: StoreSpec = store.spec
        self._rows = _StoreSide(_latest_rows(store, settings), settings.chunk_bytes)
        self._tally = tally
        self._limit = settings.limit
        self._held: pa.RecordBatch | None = None  # of the last key, which may go on in the next batch
        self._suffix, self._visible_from = _hiding(self._spec, observed_ms)

    def run(self, batches: Iterable[pa.RecordBatch]) -> Outcome:
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
            self._tally.differs(key, None, self._side(row), below=False, later=False)
        return self._tally.outcome

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
            self._tally.same(digest_of(alive.column(HASH)))
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
        log, store = dict(zip(*ours, strict=True)), dict(zip(*theirs, strict=True))
        offsets = dict(zip(ours[0], numbers(alive, "offset").tolist(), strict=True))
        equal = np.fromiter((store.get(key) == row for key, row in log.items()), bool, len(log))
        self._tally.same(digest_of(alive.column(HASH).filter(pa.array(equal))))
        for key in sorted({*log, *store}):
            one, other = log.get(key), store.get(key)
            if one != other:
                self._tally.differs(
                    key,
                    None if one is None else self._side(one),
                    None if other is None else self._side(other),
                    below=key in below,
                    later=key in later,
                    offset=offsets.get(key, -1),
                )

    def _encode(self, batch: pa.RecordBatch) -> list[bytes]:
        values = batch.column("value")
        if self._spec.timestamped and batch.num_rows:
            values = joined(timestamp_bytes(batch), values)
        return values.to_pylist()  # type: ignore[no-any-return]

    def _side(self, row: bytes) -> tuple[int, bytes]:
        return (TIMESTAMP.unpack_from(row)[0], row[8:]) if self._spec.timestamped else (NO_TIMESTAMP, row)


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


def _latest_rows(store: AnyStore, settings: Settings) -> Iterator[tuple[bytes, bytes]]:
    """Rows of the store within retention, in key order over all its segments."""
    engine = store.rows.engine
    present = engine.families()
    scans = [engine.scan(family, settings.low, settings.high) for family in store.families() if family in present]
    rows: Iterator[tuple[bytes, bytes]] = iter(scans[0]) if len(scans) == 1 else merge(*scans)
    suffix, visible_from = _hiding(store.spec, store.rows.observed_ms)
    if suffix:
        length = suffix

        def visible(row: tuple[bytes, bytes]) -> bool:
            at = len(row[0]) - length
            return int(TIMESTAMP.unpack_from(row[0], at)[0]) >= visible_from

        rows = filter(visible, rows)
    if settings.sample <= SAMPLE_BITS:
        rows = (row for row in rows if key_hash(row[0]) & SAMPLE_BITS < settings.sample)
    return rows


def _hiding(spec: StoreSpec, observed_ms: int) -> tuple[int, int]:
    """(where a row key's time begins, counted from its end; the earliest time that shows), (0, 0) if all rows show."""
    if isinstance(spec, WindowStore):
        return WINDOW_SUFFIX, earliest_visible_ms(observed_ms, spec.retention_ms)
    if isinstance(spec, SessionStore):
        return SESSION_SUFFIX, earliest_visible_ms(observed_ms, spec.retention_ms)
    return 0, 0


def _first_of_key(keys: pa.Array) -> Any:
    first = np.ones(len(keys), bool)
    if len(keys) > 1:
        first[1:] = differ(keys.slice(1), keys.slice(0, len(keys) - 1))
    return first


def _merge_versions(
    batches: Iterable[pa.RecordBatch], store: AnyStore, spec: VersionedStore, observed_ms: int, tally: _Tally
) -> Outcome:
    """Versioned stores, key by key; a row is one version."""
    kept_after = observed_ms - spec.history_retention_ms
    log, rows = _log_versions(batches, kept_after, tally.settings), _store_versions(store, spec, tally.settings)
    one, other = next(log, None), next(rows, None)
    while one is not None or other is not None:
        key = min(side[0] for side in (one, other) if side is not None)
        ours = one[1] if one is not None and one[0] == key else {}
        below, later = (one[2], one[3]) if one is not None and one[0] == key else (False, False)
        theirs = other[1] if other is not None and other[0] == key else {}
        same = [(key, at, value) for at, value in ours.items() if theirs.get(at) == value]
        tally.same(digest_rows(same))
        for at in sorted({*ours, *theirs}):
            mine, its = ours.get(at), theirs.get(at)
            if mine != its:
                tally.differs(
                    key,
                    None if mine is None else (at, mine),
                    None if its is None else (at, its),
                    below=below,
                    later=later,
                )
        if one is not None and one[0] == key:
            one = next(log, None)
        if other is not None and other[0] == key:
            other = next(rows, None)
    return tally.outcome


def _log_versions(
    batches: Iterable[pa.RecordBatch], kept_after: int, settings: Settings
) -> Iterator[tuple[bytes, dict[int, bytes], bool, bool]]:
    """(key, versions by valid from, whether it has a record below the limit, whether a later one)."""
    names = ("key", "timestamp", "value", "offset")
    records = (row for one in batches for row in zip(*(one.column(name).to_pylist() for name in names), strict=True))
    for key, group in groupby(records, itemgetter(0)):
        own = list(group)
        puts = [(timestamp, value) for _, timestamp, value, offset in own if offset < settings.limit]
        versions = {valid_from: value for valid_from, _, value in versions_of(puts, kept_after) if value is not None}
        yield key, versions, bool(puts), len(puts) < len(own)


def _store_versions(
    store: AnyStore, spec: VersionedStore, settings: Settings
) -> Iterator[tuple[bytes, dict[int, bytes]]]:
    """(key, versions by valid from) in key order over all segments."""
    engine, name = store.rows.engine, spec.name
    if name not in engine.families():
        return
    kept_after = store.rows.observed_ms - spec.history_retention_ms
    low, high = settings.low or b"", settings.high
    ranges = [
        (prefix + low, behind if high is None else prefix + high)
        for prefix, behind in [*_segments(engine, name), (LATEST_PREFIX, None)]
    ]
    scans = [((row_key[8:], row_key, row) for row_key, row in engine.scan(name, low, high)) for low, high in ranges]
    for key, group in groupby(merge(*scans), itemgetter(0)):
        if settings.sample <= SAMPLE_BITS and key_hash(key) & SAMPLE_BITS >= settings.sample:
            continue
        versions = {
            valid_from: value
            for _, row_key, row in group
            for _, valid_from, value in versions_in(row_key, row, kept_after)
        }
        yield key, versions


def rows_of(store: AnyStore, settings: Settings) -> Iterator[tuple[bytes, int, bytes]]:
    """(key, time, value) of the rows within retention that a merge looks at, as digests are made of them."""
    if isinstance(store.spec, VersionedStore):
        for key, versions in _store_versions(store, store.spec, settings):
            yield from ((key, valid_from, value) for valid_from, value in versions.items())
        return
    for key, row in _latest_rows(store, settings):
        yield (key, TIMESTAMP.unpack_from(row)[0], row[8:]) if store.spec.timestamped else (key, NO_TIMESTAMP, row)


def _segments(engine: Any, name: str) -> Iterator[tuple[bytes, bytes]]:
    """Key ranges of the segments that have rows, found by jumping from one to the next."""
    low = b""
    while True:
        with engine.scan(name, low, LATEST_PREFIX) as scan:
            row = next(iter(scan), None)
        if row is None:
            return
        number = int.from_bytes(row[0][:8], "big")
        low = segment_prefix(number + 1)
        yield segment_prefix(number), low
