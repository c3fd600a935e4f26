"""Rows of a windowed store spread over one column family per time segment.

    delays@0        rows with 0 <= time < interval
    delays@3600000  rows with interval <= time < 2 * interval      expiry drops a whole family

Rules of this file: it finds a row's family and the live families, by the pure rules of
`standfast.store.types.segments`; it never reads a row. The first commit that writes to a family creates it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from standfast.store.buffer.rows import StoreIterator, StoreRows
from standfast.store.results import Windowed
from standfast.store.specs import K, SessionStore, V, WindowStore
from standfast.store.types.key_ranges import KeySpan, turned
from standfast.store.types.segments import family_name, is_live, parse_family, segment_id, segment_interval_ms
from standfast.store.types.typed import FamilyRows, TypedStore

S = TypeVar("S", bound=WindowStore | SessionStore)
T = TypeVar("T")


class Segments:
    """The segment families of one store, ascending in time."""

    def __init__(self, rows: StoreRows, retention_ms: int, interval_ms: int) -> None:
        self.rows = rows
        self.retention_ms = retention_ms
        self.interval_ms = interval_ms
        self._ids: frozenset[int] = frozenset()  # replaced in one step, since several threads change it
        self._sorted: tuple[frozenset[int], list[int]] = (self._ids, [])  # the numbers, and those in order
        self._names: dict[int, str] = {}  # their names, made once: every put needs one
        for family in rows.engine.families():
            parsed = parse_family(family)
            if parsed is not None and parsed[0] == rows.name:
                self._ids |= {parsed[1] // interval_ms}

    def family_for(self, time_ms: int) -> str | None:
        """The family for a row of this time, or None if its segment is dead (the row is late)."""
        number = time_ms // self.interval_ms
        if number < (self.rows.observed_ms - self.retention_ms) // self.interval_ms:  # is_live, without a call
            return None
        name = self._names.get(number)
        if name is None:
            self._ids |= {number}
            name = self._names[number] = self._name(number)
        return name

    def dead_from(self, time_ms: int) -> int:
        """The first observed stream time at which `family_for` gives None for this time."""
        return (time_ms // self.interval_ms + 1) * self.interval_ms + self.retention_ms

    def family_of(self, time_ms: int) -> str | None:
        """The existing family of rows of this time, live or not; None if there is none."""
        number = time_ms // self.interval_ms
        name = self._names.get(number)
        if name is None and number in self._ids:
            name = self._names[number] = self._name(number)
        return name

    def families(self, time_from: int | None = None, time_to: int | None = None) -> list[str]:
        """Families that may hold rows of time_from <= time <= time_to, ascending."""
        low = None if time_from is None else segment_id(max(time_from, 0), self.interval_ms)
        high = None if time_to is None else segment_id(max(time_to, 0), self.interval_ms)
        ids, numbers = self._sorted
        if ids is not self._ids:
            ids = self._ids
            numbers = sorted(ids)
            self._sorted = ids, numbers
        return [
            self._name(number)
            for number in numbers
            if (low is None or number >= low) and (high is None or number <= high)
        ]

    def expired(self, observed_ms: int) -> list[str]:
        """Families whose every row is past retention at this observed stream time."""
        return [
            self._name(number)
            for number in sorted(self._ids)
            if not is_live(number, observed_ms, self.retention_ms, self.interval_ms)
        ]

    def forget(self, families: Sequence[str]) -> None:
        """Forget families that the caller has dropped."""
        gone = {parsed[1] // self.interval_ms for family in families if (parsed := parse_family(family)) is not None}
        self._ids -= gone
        for number in gone:
            self._names.pop(number, None)
        self.rows.counters.segments_expired += len(gone)

    def group(self, timed: Iterable[tuple[int, bytes, bytes | None]], into: FamilyRows | None = None) -> FamilyRows:
        """Put (time, row key, row) over the rows of `into`, by family, and return it.

        Rows whose segment is dead at the observed stream time are left out.
        """
        grouped = {} if into is None else into
        by_number: dict[int, dict[bytes, bytes | None] | None] = {}
        interval_ms = self.interval_ms
        for time_ms, key, row in timed:
            number = time_ms // interval_ms
            # One decision for each segment: a batch has many rows of few segments, and the stream time stands still.
            if number in by_number:
                rows = by_number[number]
            else:
                family = self.family_for(time_ms)
                rows = by_number[number] = None if family is None else grouped.setdefault(family, {})
            if rows is not None:
                rows[key] = row
        return grouped

    def visible_from(self) -> int:
        """Earliest time that a read returns: observed - retention + 1 (Kafka Streams: getActualFrom)."""
        return self.rows.observed_ms - self.retention_ms + 1

    def _name(self, number: int) -> str:
        return family_name(self.rows.name, number * self.interval_ms)


class SegmentedStore(TypedStore[S, K, V]):
    """The common part of window and session stores: segments that expire as whole families."""

    def __init__(self, spec: S, rows: StoreRows) -> None:
        super().__init__(spec, rows)
        self.segments = Segments(rows, spec.retention_ms, segment_interval_ms(spec.retention_ms))

    def families(self) -> list[str]:
        # The commit makes a family; before it the rows of a new segment are in the buffer only.
        present = self.rows.engine.families()
        return [family for family in self.segments.families() if family in present]

    def takes_family(self, family: str) -> bool:
        parsed = parse_family(family)
        return parsed is not None and parsed[0] == self.name and self.segments.family_for(parsed[1]) == family

    def expired_families(self, observed_ms: int | None = None) -> list[str]:
        return self.segments.expired(self.rows.observed_ms if observed_ms is None else observed_ms)

    def forget_families(self, families: Sequence[str]) -> None:
        self.segments.forget(families)

    def _key_range(
        self,
        key_from: K | None,
        key_to: K | None,
        reverse: bool,
        rows_of: Callable[[KeySpan], Iterator[tuple[Windowed[K], V]]],
    ) -> StoreIterator[tuple[Windowed[K], V]]:
        """Rows of the keys from key_from to key_to in order; `rows_of` gives those of a byte range, by key and time."""
        low = None if key_from is None else self._encode_key(key_from)
        high = None if key_to is None else self._encode_key(key_to)
        if self.numbers is None:
            return self.rows.iterate(rows_of(KeySpan(low, high, reverse)))
        spans = self.numbers.spans(low, high, store=self.name, reverse=reverse)
        with self.rows.buffer.latch:  # both halves show the rows of one moment
            parts = [(rows_of(span), span.reverse != reverse) for span in spans]
        return self.rows.iterate(_joined([turned(rows, _key_of) if against else rows for rows, against in parts]))


def _key_of(row: tuple[Windowed[K], V]) -> K:
    return row[0].key


def _joined(parts: Sequence[Iterator[T]]) -> Iterator[T]:
    # A generator and no chain, since an iterator of a store that is closed early closes it.
    for part in parts:
        yield from part
