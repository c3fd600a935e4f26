"""The window store.

    row     key | start 8 | seq 4  ->  [timestamp 8] value      one family per segment of window starts
    log     the same key           ->  value                    compacted and deleted by retention

Rules of this file: semantics of Kafka Streams' WindowStore. Reads hide rows once start <= observed - retention; a
late row of a dead segment is refused and counted. Range results are in key order over all segments: raw key order, or
that of the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from standfast.store import window_key
from standfast.store.arguments import checked
from standfast.store.buffer.rows import StoreIterator, StoreRows
from standfast.store.engine import Row
from standfast.store.errors import InvalidRequest
from standfast.store.results import ValueAndTimestamp, Windowed
from standfast.store.specs import K, V, WindowStore
from standfast.store.types.key_ranges import KeySpan
from standfast.store.types.segmented import SegmentedStore
from standfast.store.types.typed import NO_TIMESTAMP, OF_THE_LIBRARY, FamilyRows, LoggedRecord, LogicalRow
from standfast.store.value_timestamp import TIMESTAMP

SEQUENCE_MASK = 0x7FFFFFFF
TIME_MAX = 2**63 - 1


@checked(InvalidRequest, *OF_THE_LIBRARY, exact=("__init__", "put", "fetch"))
class WindowState(SegmentedStore[WindowStore, K, V]):
    """A task's window store: a value of each key and window start; `task.store(spec)` gives it.

    Reads hide rows once start <= observed stream time - `retention_ms`; whole segments of them are dropped later. Key
    ranges over int64 and float64 are in the order of the numbers, over others in raw key order (that of the serialised
    bytes), which `fetch_all` and `all` always have; each key's rows are in time order. A read or write of one window
    costs one look-up; a range a seek for each segment (a part of `retention_ms`) within its times, and its rows.

    Times are whole milliseconds since the epoch; `timestamp` is by default that of the record in hand, outside a record
    the wall clock. Reads see the task's own uncommitted writes over the committed rows. A write goes to the task's
    buffer, and with the commit to changelog and database. Threads may share it: see `Task.exclusive`.

    Every method raises InvalidRequest for a key that is None, a value that a serde refuses and an invalid time;
    Corruption for an unreadable row; Closed after the task has left, Fenced if another instance has it. A write that
    raises changes nothing: also TooLarge (key over 64 KiB, value over `value_max_bytes`), Backpressure (buffer full:
    commit, then write again) and DiskFull (less space than `disk_floor_bytes`).
    """

    def __init__(self, spec: WindowStore, rows: StoreRows) -> None:
        super().__init__(spec, rows)
        if spec.timestamped and not spec.retain_duplicates:
            rows.head()

    def put(self, key: K, value: V | None, window_start: int, timestamp: int | None = None) -> None:
        """Set the value of (key, window start in ms); None deletes. `timestamp` (ms) is the record's, not the window's.

        With retain_duplicates every put is kept beside the others, and a put of None does nothing. A row whose segment
        is already dead is late: it changes nothing and is counted, without an error. Reads nothing.
        """
        raw_key = self._encode_key(key)
        raw = None if value is None else self._encode_value(value)
        start = self._time("window_start", window_start)
        stamp = self._timestamp(timestamp)
        if not self.spec.retain_duplicates:
            self.put_row(window_key.pack(raw_key, start), start, raw, stamp)
            return
        if raw is None:
            return  # a delete cannot name one of the duplicates (Kafka Streams skips it too)
        rows = self.rows
        with rows.buffer.latch:
            row_key = window_key.pack(raw_key, start, (rows.sequence + 1) & SEQUENCE_MASK)
            rows.check(row_key, raw, stamp)
            family = self.segments.family_for(start)
            if family is None:
                rows.counters.late_dropped += 1
                return
            rows.observe(start)
            # Only now: a put that was refused or late must not use up a number.
            rows.sequence = (rows.sequence + 1) & SEQUENCE_MASK
            rows.writer.enter(family, {row_key: self._pack(stamp, raw)}, row_key, raw, stamp)

    def fetch(self, key: K, window_start: int) -> V | None:
        """The value of the window of a key that starts at `window_start` (ms), or None. One look-up."""
        row = self._fetch_row(key, window_start)
        return None if row is None else self._decode_value(row[self._skip :])

    def fetch_with_timestamp(self, key: K, window_start: int) -> ValueAndTimestamp[V] | None:
        """Value and timestamp (ms) of one window, or None; InvalidRequest for a store with timestamped=False."""
        if not self._skip:
            raise InvalidRequest(f"store {self.name!r} keeps no timestamps: declare it with timestamped=True")
        row = self._fetch_row(key, window_start)
        if row is None:
            return None
        return ValueAndTimestamp(self._decode_value(row[8:]), TIMESTAMP.unpack_from(row)[0])

    def fetch_range(
        self, key: K, time_from: int, time_to: int, *, reverse: bool = False
    ) -> StoreIterator[tuple[int, V]]:
        """(window start, value) of one key with time_from <= start <= time_to (ms), in time order or in `reverse`.

        Empty if time_from > time_to; a time below 0 counts as 0. The iterator reads rows as it goes.
        """
        raw_key = self._encode_key(key)
        first, time_to = self._first(time_from), self._bound("time_to", time_to)
        if first > time_to:
            return self.rows.iterate(iter(()))
        low, high = window_key.key_bounds(raw_key, first, time_to)
        scan = self._scan(self.segments.families(first, time_to), low, high, reverse)
        return self.rows.iterate(self._of_key(scan, raw_key, first, time_to))

    def fetch_key_range(
        self, key_from: K | None, key_to: K | None, time_from: int, time_to: int, *, reverse: bool = False
    ) -> StoreIterator[tuple[Windowed[K], V]]:
        """(Windowed(key, start, end), value) with key_from <= key <= key_to and time_from <= start <= time_to (ms).

        In order of keys, as `KeyValueState.range`, and then by time, or in `reverse`; a None key is open. It reads all
        rows of these keys within the segments of these times, and skips rows of other times. Of float64 keys below 0 it
        holds one key's rows at a time.
        """
        first, time_to = self._first(time_from), self._bound("time_to", time_to)
        return self._key_range(key_from, key_to, reverse, lambda span: self._of_span(span, first, time_to))

    def fetch_all(self, time_from: int, time_to: int, *, reverse: bool = False) -> StoreIterator[tuple[Windowed[K], V]]:
        """(Windowed, value) of every key with time_from <= start <= time_to (ms), in raw key order or in `reverse`."""
        first, time_to = self._first(time_from), self._bound("time_to", time_to)
        return self.rows.iterate(self._of_span(KeySpan(None, None, reverse), first, time_to))

    def all(self, reverse: bool = False) -> StoreIterator[tuple[Windowed[K], V]]:
        """(Windowed, value) of every row within retention, in raw key order and then by time, or in `reverse`."""
        return self.fetch_all(0, TIME_MAX, reverse=reverse)

    def get_row(self, row_key: bytes, start: int) -> bytes | None:
        """The stored row of a window, also of one that reads hide; for aggregations, which know its key bytes."""
        family = self.segments.family_of(start)
        return None if family is None else self.rows.get_if_present(family, row_key)

    def put_row(self, row_key: bytes, start: int, raw: bytes | None, timestamp: int) -> bool:
        """`put` of bytes, into a store without duplicates; False if the row is late and was refused."""
        family = self.segments.family_for(start)
        rows = self.rows
        if family is None:
            rows.check(row_key, raw, timestamp)  # a wrong argument is an error, late or not
            rows.counters.late_dropped += 1
            return False
        if start <= rows.observed_ms:
            rows.writer.put(family, row_key, raw, timestamp)
            return True
        with rows.buffer.latch:  # the row and the time that it moves go with one commit
            rows.writer.put(family, row_key, raw, timestamp)
            rows.observe(start)
        return True

    def rows_of(self, raw_key: bytes, start_from: int, start_to: int) -> Iterator[tuple[int, bytes]]:
        """(window start, row) of one key with start_from <= start <= start_to, by start, within retention."""
        first = max(start_from, self.segments.visible_from())
        families = self.segments.families(first, start_to)
        if first > start_to or not families:
            return
        low, high = window_key.key_bounds(raw_key, first, start_to)
        length = len(raw_key) + window_key.SUFFIX_BYTES
        for key, row in self.rows.scan_all(families, low, high):
            if len(key) == length and key.startswith(raw_key):
                yield window_key.start_of(key), row

    def rows_from(self, start_from: int) -> Iterator[tuple[int, bytes]]:
        """(window start, key bytes) of every row with start >= start_from, in raw key order, also of hidden ones."""
        families = self.segments.families(start_from)
        for row_key, _ in self.rows.scan_all(families) if families else ():
            key, start, _ = window_key.unpack(row_key)
            if start >= start_from:
                yield start, key

    def restore(self, records: Sequence[LoggedRecord], into: FamilyRows | None = None) -> FamilyRows:
        rows = self.rows
        records = self._with_key(records)
        keys = [cast("bytes", record[2]) for record in records]
        starts = [window_key.start_of(key) for key in keys]
        # Before grouping, by the whole batch's end: rows that would expire within the batch are not written at all.
        rows.observe(max(starts, default=-1))
        if self.spec.retain_duplicates:
            rows.sequence = max([rows.sequence, *map(window_key.sequence_of, keys)])
        pack, skip = TIMESTAMP.pack, self._skip
        timed = (
            (start, key, None if record[3] is None else (pack(record[1]) + record[3] if skip else record[3]))
            for start, key, record in zip(starts, keys, records, strict=True)
        )
        return self.segments.group(timed, into)

    def logical_rows(self) -> Iterator[LogicalRow]:
        skip, visible_from = self._skip, self.segments.visible_from()
        for family in self.families():
            for key, row in self.rows.committed(family):
                if window_key.start_of(key) >= visible_from:
                    yield key, TIMESTAMP.unpack_from(row)[0] if skip else NO_TIMESTAMP, row[skip:]

    def _fetch_row(self, key: K, window_start: int) -> bytes | None:
        if self.spec.retain_duplicates:
            raise InvalidRequest(
                f"store {self.name!r} retains duplicates, so one window has several rows: use fetch_range"
            )
        raw_key = self._encode_key(key)
        start = self._time("window_start", window_start)
        families = self.segments.families(start, start)
        if start < self.segments.visible_from() or not families:
            return None
        return self.rows.get_if_present(families[0], window_key.pack(raw_key, start, 0))

    def _first(self, time_from: int) -> int:
        """The earliest start of a range that begins at `time_from`, within retention."""
        return max(self._bound("time_from", time_from), 0, self.segments.visible_from())

    def _scan(self, families: list[str], low: bytes, high: bytes | None, reverse: bool) -> Iterator[Row]:
        return self.rows.scan_all(families, low, high, reverse=reverse)

    def _of_key(self, scan: Iterator[Row], raw_key: bytes, first: int, last: int) -> Iterator[tuple[int, V]]:
        # Rows of longer keys that begin with this key may lie between two of its rows.
        length = len(raw_key) + window_key.SUFFIX_BYTES
        for key, row in scan:
            if len(key) == length and key.startswith(raw_key):
                start = window_key.start_of(key)
                if first <= start <= last:
                    yield start, self._decode_value(row[self._skip :])

    def _of_span(self, span: KeySpan, first: int, last: int) -> Iterator[tuple[Windowed[K], V]]:
        """Rows of these keys with first <= start <= last, by key and then by time; the scan begins with this call."""
        if first > last or span.empty:
            return iter(())
        # No window starts later than the observed stream time, so the smaller end narrows the range more.
        low, high = window_key.range_bounds(span.low, span.high, first, min(last, max(self.rows.observed_ms, first)))
        scan = self._scan(self.segments.families(first, last), low, high, span.reverse)
        return self._of_range(scan, span.low, span.high, first, last)

    def _of_range(
        self, scan: Iterator[Row], low: bytes | None, high: bytes | None, first: int, last: int
    ) -> Iterator[tuple[Windowed[K], V]]:
        size = self.spec.window_size_ms
        for row_key, row in scan:
            key, start, _ = window_key.unpack(row_key)
            if first <= start <= last and (low is None or key >= low) and (high is None or key <= high):
                window = Windowed(self._decode_key(key), start, window_key.end_of(start, size))
                yield window, self._decode_value(row[self._skip :])
