"""The session store.

    row     key | end 8 | start 8  ->  value      one family per segment of session ends
    log     the same key           ->  value      compacted and deleted by retention

Rules of this file: semantics of Kafka Streams' SessionStore. A session's end decides on its life: reads hide it once
end <= observed - retention; a late session of a dead segment is refused and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from standfast.store import session_key
from standfast.store.arguments import checked
from standfast.store.buffer.rows import StoreIterator
from standfast.store.engine import Row
from standfast.store.errors import InvalidRequest
from standfast.store.results import Windowed
from standfast.store.specs import K, SessionStore, V
from standfast.store.types.key_ranges import KeySpan
from standfast.store.types.segmented import SegmentedStore
from standfast.store.types.typed import NO_TIMESTAMP, OF_THE_LIBRARY, FamilyRows, LoggedRecord, LogicalRow

TIME_MAX = 2**63 - 1


@checked(InvalidRequest, *OF_THE_LIBRARY, exact=("__init__", "put"))
class SessionState(SegmentedStore[SessionStore, K, V]):
    """A task's session store: a value of each key, session start and end; `task.store(spec)` gives it.

    Reads hide rows once end <= observed stream time - `retention_ms`; whole segments of them are dropped later. A key's
    sessions are ordered by end, then by start. Ranges over int64 and float64 keys are in the order of the numbers, over
    others in raw key order (that of the serialised bytes), which `all` always has. A read or write of one session costs
    one look-up; a range a seek for each segment (a part of `retention_ms`) and its rows.

    Times are whole milliseconds since the epoch; `timestamp` is by default that of the record in hand, outside a record
    the wall clock. Reads see the task's own uncommitted writes over the committed rows. A write goes to the task's
    buffer, and with the commit to changelog and database. Threads may share it: see `Task.exclusive`.

    Every method raises InvalidRequest for a key that is None, a value that a serde refuses and an invalid time;
    Corruption for an unreadable row; Closed after the task has left, Fenced if another instance has it. A write that
    raises changes nothing: also TooLarge (key over 64 KiB, value over `value_max_bytes`), Backpressure (buffer full:
    commit, then write again) and DiskFull (less space than `disk_floor_bytes`).
    """

    def put(self, key: K, start: int, end: int, value: V | None, timestamp: int | None = None) -> None:
        """Set the value of the session start..end (ms, both included) of a key; None removes it.

        A session whose segment is already dead is late: it changes nothing and is counted, without an error.
        InvalidRequest if start > end. `timestamp` (ms) is the changelog record's. Reads nothing.
        """
        raw_key = self._encode_key(key)
        raw = None if value is None else self._encode_value(value)
        row_key = self._row_key(raw_key, start, end)
        self.put_row(row_key, end, raw, self._timestamp(timestamp))

    def remove(self, key: K, start: int, end: int) -> None:
        """Remove the session start..end (ms) of a key; an absent session is no error. Reads nothing."""
        self.put(key, start, end, None)

    def fetch_session(self, key: K, start: int, end: int) -> V | None:
        """The value of exactly the session start..end (ms) of a key, or None. One look-up."""
        row_key = self._row_key(self._encode_key(key), start, end)
        families = self.segments.families(end, end)
        if end < self.segments.visible_from() or not families:
            return None
        row = self.rows.get_if_present(families[0], row_key)
        return None if row is None else self._decode_value(row)

    def find_sessions(
        self, key: K, earliest_end: int, latest_start: int, *, reverse: bool = False
    ) -> StoreIterator[tuple[Windowed[K], V]]:
        """(Windowed(key, start, end), value) of a key with end >= earliest_end and start <= latest_start (ms).

        Ordered by end and then by start, or in `reverse`. The iterator reads rows as it goes.
        """
        raw_key = self._encode_key(key)
        first = max(self._bound("earliest_end", earliest_end), 0, self.segments.visible_from())
        latest_start = self._bound("latest_start", latest_start)
        low, high = session_key.key_bounds(raw_key, first, TIME_MAX)
        scan = self.rows.scan_all(self.segments.families(first), low, high, reverse=reverse)
        return self.rows.iterate(self._found(scan, raw_key, raw_key, first, latest_start))

    def fetch(self, key: K, *, reverse: bool = False) -> StoreIterator[tuple[Windowed[K], V]]:
        """(Windowed, value) of every session of a key within retention, by end or in `reverse`."""
        return self.find_sessions(key, 0, TIME_MAX, reverse=reverse)

    def fetch_key_range(
        self, key_from: K | None, key_to: K | None, *, reverse: bool = False
    ) -> StoreIterator[tuple[Windowed[K], V]]:
        """(Windowed, value) with key_from <= key <= key_to in order of keys or in `reverse`; a None key is open."""
        return self.find_sessions_key_range(key_from, key_to, 0, TIME_MAX, reverse=reverse)

    def find_sessions_key_range(
        self, key_from: K | None, key_to: K | None, earliest_end: int, latest_start: int, *, reverse: bool = False
    ) -> StoreIterator[tuple[Windowed[K], V]]:
        """(Windowed, value) with key_from <= key <= key_to, end >= earliest_end and start <= latest_start (ms).

        In order of keys, as `KeyValueState.range`, or in `reverse`; a None key is open (Kafka Streams: findSessions
        with keyFrom and keyTo, backwardFindSessions for `reverse`). Reads all rows of these keys that end at
        `earliest_end` or later; of float64 keys below 0 it holds one key's rows at a time.
        """
        first = max(self._bound("earliest_end", earliest_end), 0, self.segments.visible_from())
        latest_start = self._bound("latest_start", latest_start)
        return self._key_range(key_from, key_to, reverse, lambda span: self._of_span(span, first, latest_start))

    def all(self, reverse: bool = False) -> StoreIterator[tuple[Windowed[K], V]]:
        """(Windowed, value) of every session within retention, in raw key order or in `reverse`."""
        first = max(0, self.segments.visible_from())
        return self.rows.iterate(self._of_span(KeySpan(None, None, reverse), first, TIME_MAX))

    def get_row(self, row_key: bytes, end: int) -> bytes | None:
        """The stored row of a session, also of one that reads hide; for aggregations, which know its key bytes."""
        family = self.segments.family_of(end)
        return None if family is None else self.rows.get_if_present(family, row_key)

    def put_row(self, row_key: bytes, end: int, raw: bytes | None, timestamp: int) -> bool:
        """`put` of bytes; False if the session is late and was refused."""
        family = self.segments.family_for(end)
        rows = self.rows
        if family is None:
            rows.check(row_key, raw, timestamp)  # a wrong argument is an error, late or not
            rows.counters.late_dropped += 1
            return False
        with rows.buffer.latch:  # the row and the time that it moves go with one commit
            rows.writer.put(family, row_key, raw, timestamp)
            rows.observe(end)
        return True

    def rows_of(self, raw_key: bytes, earliest_end: int, latest_start: int) -> Iterator[tuple[int, int, bytes]]:
        """(start, end, row) of a key with end >= earliest_end and start <= latest_start, by end, within retention."""
        first = max(earliest_end, 0, self.segments.visible_from())
        families = self.segments.families(first)
        # No session ends later than the observed stream time: a tight bound leaves other keys out of the scan.
        low, high = session_key.key_bounds(raw_key, first, max(self.rows.observed_ms, first))
        for row_key, row in self.rows.scan_all(families, low, high) if families else ():
            key, start, end = session_key.unpack(row_key)
            if key == raw_key and start <= latest_start:
                yield start, end, row

    def rows_from(self, end_from: int) -> Iterator[tuple[int, int, bytes]]:
        """(start, end, key bytes) of every session with end >= end_from, in raw key order, also of hidden ones."""
        families = self.segments.families(end_from)
        for row_key, _ in self.rows.scan_all(families) if families else ():
            key, start, end = session_key.unpack(row_key)
            if end >= end_from:
                yield start, end, key

    def restore(self, records: Sequence[LoggedRecord], into: FamilyRows | None = None) -> FamilyRows:
        records = self._with_key(records)
        keys = [cast("bytes", record[2]) for record in records]
        ends = [session_key.end_of(key) for key in keys]
        # Before grouping, by the whole batch's end: rows that would expire within the batch are not written at all.
        self.rows.observe(max(ends, default=-1))
        timed = ((end, key, record[3]) for end, key, record in zip(ends, keys, records, strict=True))
        return self.segments.group(timed, into)

    def logical_rows(self) -> Iterator[LogicalRow]:
        visible_from = self.segments.visible_from()
        for family in self.families():
            for key, row in self.rows.committed(family):
                if session_key.end_of(key) >= visible_from:
                    yield key, NO_TIMESTAMP, row

    def _row_key(self, raw_key: bytes, start: int, end: int) -> bytes:
        if self._time("session start", start) > self._time("session end", end):
            raise InvalidRequest(f"store {self.name!r}: a session cannot start at {start} and end earlier, at {end}")
        return session_key.pack(raw_key, start, end)

    def _of_span(self, span: KeySpan, first: int, latest_start: int) -> Iterator[tuple[Windowed[K], V]]:
        """Sessions of these keys with end >= first, by key and then by end; the scan begins with this call."""
        if span.empty:
            return iter(())
        # No session ends later than the observed stream time, so this end narrows the range most.
        low, high = session_key.range_bounds(span.low, span.high, first, max(self.rows.observed_ms, first))
        scan = self.rows.scan_all(self.segments.families(first), low, high, reverse=span.reverse)
        return self._found(scan, span.low, span.high, first, latest_start)

    def _found(
        self, scan: Iterator[Row], low: bytes | None, high: bytes | None, first: int, latest_start: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        for row_key, row in scan:
            key, start, end = session_key.unpack(row_key)
            if end >= first and start <= latest_start and (low is None or key >= low) and (high is None or key <= high):
                yield Windowed(self._decode_key(key), start, end), self._decode_value(row)
