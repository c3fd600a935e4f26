"""Rows of a store in the order of their names, for the merge of a verify: key by key, over all its families.

    key-value            one family, already in order
    window, session      one family per segment: merged, rows past retention are hidden
    versioned            one family, a key range per segment: merged key by key, versions by valid from

Rules of this file: reads committed rows only, in constant memory. Rows past retention at the store's own observed
stream time are hidden, as its `logical_rows` hides them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from heapq import merge
from itertools import groupby
from operator import itemgetter

from standfast.restore.digest import LogicalRow, key_hash
from standfast.store.buffer.rows import StoreRows
from standfast.store.specs import StoreSpec
from standfast.store.task.task_stores import AnyStore
from standfast.store.types.segments import earliest_visible_ms
from standfast.store.types.typed import NO_TIMESTAMP
from standfast.store.types.versioned import versions_in
from standfast.store.types.versioned_row import LATEST_PREFIX, segment_prefix
from standfast.store.value_timestamp import TIMESTAMP

SAMPLE_BITS = 0xFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The keys to read: low <= key < high (None: no bound), `sample` of 65,536 parts of them."""

    low: bytes | None = None
    high: bytes | None = None
    sample: int = SAMPLE_BITS + 1

    def has(self, key: bytes) -> bool:
        """Whether a key is in the sample."""
        # The bits of Spark's xxhash64(key), so that log and store sample the same keys.
        return self.sample > SAMPLE_BITS or key_hash(key) & SAMPLE_BITS < self.sample


ALL = Selection()


def rows_in_order(store: AnyStore, selection: Selection = ALL) -> Iterator[LogicalRow]:
    """Rows by key, in a versioned store by key and valid from, in the form that digests cover."""
    if store.spec.traits.versions:
        for _, versions in versions_by_key(store, store.spec, selection):
            yield from versions
        return
    row_of = logical_row if store.spec.timestamped else plain_row
    for key, row in latest_rows(store, selection):
        yield row_of(key, row)


def logical_row(key: bytes, row: bytes) -> LogicalRow:
    """A row of a store that keeps timestamps."""
    return key, TIMESTAMP.unpack_from(row)[0], row[8:]


def plain_row(key: bytes, row: bytes) -> LogicalRow:
    """A row of a store without timestamps."""
    return key, NO_TIMESTAMP, row


def latest_rows(store: AnyStore, selection: Selection = ALL) -> Iterator[tuple[bytes, bytes]]:
    """(key, row) of a key-value, window or session store."""
    rows, present = store.rows, store.rows.engine.families()
    # A store without rows may have no family.
    own = [rows.committed(family, selection.low, selection.high) for family in store.families() if family in present]
    found: Iterator[tuple[bytes, bytes]] = own[0] if len(own) == 1 else merge(*own)
    length, visible_from = hiding(store.spec, rows.observed_ms)
    if length:
        found = (one for one in found if TIMESTAMP.unpack_from(one[0], len(one[0]) - length)[0] >= visible_from)
    return found if selection.sample > SAMPLE_BITS else (one for one in found if selection.has(one[0]))


def hiding(spec: StoreSpec, observed_ms: int) -> tuple[int, int]:
    """(begin of a row key's time, counted from its end; the earliest visible time); (0, 0) if all rows are visible."""
    times = spec.traits.times
    if times is None:
        return 0, 0
    return times.suffix_bytes, earliest_visible_ms(observed_ms, spec.kept_ms)


def versions_by_key(
    store: AnyStore, spec: StoreSpec, selection: Selection = ALL
) -> Iterator[tuple[bytes, list[LogicalRow]]]:
    """(key, its versions by valid from), over all segments; a key may have none within retention."""
    rows, name = store.rows, spec.name
    if name not in rows.engine.families():
        return
    kept_after = rows.observed_ms - spec.kept_ms
    low, high = selection.low or b"", selection.high
    # The latest version of a key has a range of its own, after all segments.
    ranges = [*_segments(rows, name), (LATEST_PREFIX, None)]
    scans = [
        ((row_key[8:], row_key, row) for row_key, row in rows.committed(name, first, behind))
        for first, behind in ((start + low, end if high is None else start + high) for start, end in ranges)
    ]
    for key, own in groupby(merge(*scans), itemgetter(0)):
        if selection.has(key):
            yield key, sorted(one for _, row_key, row in own for one in versions_in(row_key, row, kept_after))


def _segments(rows: StoreRows, name: str) -> Iterator[tuple[bytes, bytes]]:
    """Key ranges of the segments that have rows, found by jumping from one to the next."""
    # One seek per segment; a scan of the rows to find the segments would read the store twice.
    low = b""
    while True:
        with closing(rows.committed(name, low, LATEST_PREFIX)) as found:
            row = next(found, None)
        if row is None:
            return
        low = segment_prefix(int.from_bytes(row[0][:8], "big") + 1)
        yield row[0][:8], low
