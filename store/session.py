"""The session store.

    row     key | end 8 | start 8  ->  value      one family per segment of session ends
    log     the same key           ->  value      compacted and deleted by retention

Rules of this file: semantics of Kafka Streams' SessionStore. A session lives by its end: it hides once
end <= observed - retention; a late session of a dead segment is refused and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from standfast.store import session_key
from standfast.store.engine import Row
from standfast.store.errors import InvalidRequest
from standfast.store.results import Windowed
from standfast.store.rows import StoreIterator
from standfast.store.segmented import SegmentedStore
from standfast.store.specs import SessionStore
from standfast.store.typed import NO_TIMESTAMP, FamilyRows, LoggedRecord, LogicalRow, require_key

K = TypeVar("K")
V = TypeVar("V")

TIME_MAX = 2**63 - 1


class SessionState(SegmentedStore[K, V, SessionStore]):
    """A task's session store."""

    def put(self, key: K, start: int, end: int, value: V | None, timestamp: int | None = None) -> None:
        """Set the value of the session start..end (both included) of a key; None removes it.

        A session whose segment is already dead is refused: it changes nothing and counts as late. `timestamp` is
        the changelog record's and defaults to that of the record in hand.
        """
        raw_key = self._encode_key(key)
        raw = None if value is None else self._encode_value(value)
        row_key = self._row_key(raw_key, start, end)
        stamp = self._timestamp(timestamp)
        self.rows.check(row_key, raw)
        family = self.segments.family_for(end)
        if family is None:
            self.rows.counters.late_dropped += 1
            return
        self.rows.observe(end)
        self.rows.put(family, row_key, raw)
        self.rows.log(row_key, raw, stamp)

    def remove(self, key: K, start: int, end: int) -> None:
        """Remove one session; an absent one is fine."""
        self.put(key, start, end, None)

    def fetch_session(self, key: K, start: int, end: int) -> V | None:
        """The value of exactly this session, or None."""
        row_key = self._row_key(self._encode_key(key), start, end)
        families = self.segments.families(end, end)
        if end < self.segments.visible_from() or not families:
            return None
        row = self.rows.get_if_present(families[0], row_key)
        return None if row is None else self._decode_value(row)

    def find_sessions(
        self, key: K, earliest_end: int, latest_start: int, *, reverse: bool = False
    ) -> StoreIterator[tuple[Windowed[K], V]]:
        """Sessions of a key with end >= earliest_end and start <= latest_start, by end."""
        raw_key = self._encode_key(key)
        first = max(earliest_end, 0, self.segments.visible_from())
        low, high = session_key.key_bounds(raw_key, first, TIME_MAX)
        scan = self.rows.scan_all(self.segments.families(first), low, high, reverse=reverse)
        return self.rows.iterate(self._found(scan, raw_key, raw_key, first, latest_start))

    def fetch(self, key: K, *, reverse: bool = False) -> StoreIterator[tuple[Windowed[K], V]]:
        """Every session of a key, by end."""
        return self.find_sessions(key, 0, TIME_MAX, reverse=reverse)

    def fetch_key_range(
        self, key_from: K | None, key_to: K | None, *, reverse: bool = False
    ) -> StoreIterator[tuple[Windowed[K], V]]:
        """Every session with key_from <= key <= key_to in raw key order; a None key is open."""
        low_key = None if key_from is None else self._encode_key(key_from)
        high_key = None if key_to is None else self._encode_key(key_to)
        first = max(0, self.segments.visible_from())
        if low_key is not None and high_key is not None and low_key > high_key:
            return self.rows.iterate(iter(()))
        low, high = session_key.range_bounds(low_key, high_key, first, max(self.rows.observed_ms, first))
        scan = self.rows.scan_all(self.segments.families(first), low, high, reverse=reverse)
        return self.rows.iterate(self._found(scan, low_key, high_key, first, TIME_MAX))

    def all(self, reverse: bool = False) -> StoreIterator[tuple[Windowed[K], V]]:
        """Every session within retention."""
        return self.fetch_key_range(None, None, reverse=reverse)

    def restore(self, records: Sequence[LoggedRecord]) -> FamilyRows:
        keys = [require_key(record, self.name) for record in records]
        ends = [session_key.end_of(key) for key in keys]
        self.rows.observe(max(ends, default=-1))
        return self.segments.group((end, key, record[3]) for end, key, record in zip(ends, keys, records, strict=True))

    def logical_rows(self) -> Iterator[LogicalRow]:
        visible_from = self.segments.visible_from()
        for family in self.families():
            for key, row in self.rows.engine.scan(family):
                if session_key.end_of(key) >= visible_from:
                    yield key, NO_TIMESTAMP, row

    def _row_key(self, raw_key: bytes, start: int, end: int) -> bytes:
        if self._time("session start", start) > self._time("session end", end):
            raise InvalidRequest(f"store {self.name!r}: a session cannot start at {start} and end earlier, at {end}")
        return session_key.pack(raw_key, start, end)

    def _found(
        self, scan: Iterator[Row], low: bytes | None, high: bytes | None, first: int, latest_start: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        for row_key, row in scan:
            key, start, end = session_key.unpack(row_key)
            if end >= first and start <= latest_start and (low is None or key >= low) and (high is None or key <= high):
                yield Windowed(self._decode_key(key), start, end), self._decode_value(row)
