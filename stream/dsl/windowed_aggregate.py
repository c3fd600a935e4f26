"""Aggregation by aligned windows: tumbling, hopping and unlimited, over a window store.

    time:<store>     among the task's progress numbers: observed stream time, the largest timestamp processed
    close:<store>    the same, where time has passed without records: up to the task's watermark, or by silence

    close time                         the larger of the two; it never goes back
    window end > close time - grace    the window is updated (observed includes the record in hand)
    else                               one "late_window" is counted for each window; also for one already given on
                                       close. With `late=` a record that no window takes goes there instead

    watermark w        the close time is at least w: windows that end at or before w - grace close
    silence            every open window closes: the close time is that at which the last of them does, so that each
                       later record for one of them is too late

Both numbers are set before the first result goes on, and are committed with it and with the offsets. A restart or a
take-over begins with them, whatever watermarks are known by then.

Rules of this file: semantics of Kafka Streams' KStreamWindowAggregate. A record without a key changes nothing, not even
the observed stream time. `standfast.stream.windows` decides which windows a record belongs to; only tumbling windows,
the path of most records, are computed here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar

from standfast.replication.log import Headers
from standfast.store import window_key
from standfast.store.arguments import unchecked
from standfast.store.results import Windowed
from standfast.store.value_timestamp import TIMESTAMP, VALUE
from standfast.store.window_key import end_of
from standfast.stream.dsl.aggregation import Aggregation, Aggregator
from standfast.stream.dsl.closing import WindowClosing
from standfast.stream.dsl.final_results import FinalResults, closed_key
from standfast.stream.emit import ON_WINDOW_CLOSE, ON_WINDOW_UPDATE
from standfast.stream.open_windows import Entry
from standfast.stream.record import Record
from standfast.stream.topology.processor import Context
from standfast.stream.windows import (
    TIME_MAX,
    AnyWindows,
    HoppingWindows,
    SlidingWindows,
    TumblingWindows,
    UnlimitedWindows,
)

W = TypeVar("W", bound=AnyWindows)
S = TypeVar("S", bound=TumblingWindows | HoppingWindows | UnlimitedWindows | SlidingWindows)
A = TypeVar("A", bound=TumblingWindows | HoppingWindows | UnlimitedWindows)
# A window start, the suffix of its row keys, its family (None: expired), and the observed time up to which that holds.
Known: TypeAlias = tuple[int, bytes, str | None, int]


def numbers_of(store: str, closing: WindowClosing) -> list[str]:
    """Names of the progress numbers that a windowed aggregation may keep."""
    keys = [f"time:{store}", f"close:{store}"]
    return keys if closing.emit is ON_WINDOW_UPDATE else [*keys, closed_key(store)]


class ClosingAggregation(Aggregation, Generic[W]):
    """An aggregation whose windows close as its close time moves on: by records, watermarks or silence."""

    def __init__(self, store: str, aggregator: Aggregator, windows: W, closing: WindowClosing) -> None:
        super().__init__(store, aggregator)
        self.windows: W = windows
        self.closing = closing
        self.emit = closing.emit
        self.time_key, self.close_key = f"time:{store}", f"close:{store}"
        self.delay_ms = -windows.closed_through(0)  # a window is closed if end <= observed - delay

    def init(self, context: Context) -> None:
        super().init(context)
        self.progress = context.progress
        self.finals: FinalResults | None = None
        if self.emit is ON_WINDOW_CLOSE:
            # A store without rows needs no scan for windows from before this opening.
            stored = self.rows.observed_ms >= 0
            self.finals = FinalResults(context, self.store_name, self.buffer, self.read_final, self.scan_open, stored)
        context.on_watermark(self.advance)
        self.heard: Callable[[], None] | None = None
        if self.closing.close_after_ms is not None:
            self.heard = context.on_silence(self.closing.close_after_ms, self.close_all)

    def gives_updates(self) -> bool:
        return self.emit is ON_WINDOW_UPDATE

    def observe(self, timestamp: int, headers: Headers) -> int:
        """Advance the observed stream time and give the windows it closes; return the largest closed end."""
        if timestamp.__class__ is not int or not 0 <= timestamp <= TIME_MAX:
            self.check_time(timestamp)
        if self.heard is not None:
            self.heard()
        progress = self.progress
        observed = progress.get(self.time_key, -1)
        if timestamp > observed:
            # A skipped record must not have moved the observed stream time.
            if self.buffer.in_savepoint:
                self.buffer.remember(progress, self.time_key)
            progress[self.time_key] = observed = timestamp
        close_ms = progress.get(self.close_key, -1)
        through = (observed if observed > close_ms else close_ms) - self.delay_ms
        finals = self.finals
        if finals is None:
            return through
        # Before the record updates anything: its put may move the store's own clock and hide the rows to be given.
        if through >= finals.next_end:
            finals.give(through, headers)
        # After the grace was made longer, windows are open that were given already: those stay as given.
        return max(through, finals.closed_through)

    @property
    def close_ms(self) -> int:
        """The close time in milliseconds; -1 before the first record and watermark."""
        return max(self.progress.get(self.time_key, -1), self.progress.get(self.close_key, -1))

    def advance(self, time_ms: int) -> None:
        """Advance the close time without a record, and give the windows that it closes."""
        close_ms = self.close_ms
        if time_ms > close_ms:
            self.buffer.remember(self.progress, self.close_key)
            self.progress[self.close_key] = close_ms = time_ms
        through = close_ms - self.delay_ms
        if self.finals is not None and through >= self.finals.next_end:
            self.finals.give(through, ())

    def close_all(self) -> None:
        """Close every open window: the close time becomes the first at which all of them are closed."""
        last = None if self.finals is None else self.finals.last_end()
        if last is not None:
            # A window that ends beyond the largest time is never closed, by no clock.
            self.advance(min(last + self.delay_ms, TIME_MAX))

    def skipped(self, record: Record) -> bool:
        skipped = super().skipped(record)
        if skipped and self.heard is not None:
            self.heard()
        return skipped

    @abstractmethod
    def check_time(self, timestamp: int) -> None:
        """Raise InvalidRequest for an invalid timestamp."""

    @abstractmethod
    def read_final(self, end: int, rest: Any, headers: Headers) -> Record | None:
        """The final result of a window, None if its row is gone."""

    @abstractmethod
    def scan_open(self, end_from: int) -> Iterator[Entry]:
        """Every stored window with end >= end_from."""

    def missed(self, record: Record, windows: Iterable[tuple[int, int]], *, whole: bool) -> None:
        """Count the windows that a record came too late for. `whole`: no window took it; then it may go to `late`."""
        if whole and self.closing.late is not None and self.context.late(record):
            return
        for start, end in windows:
            self.context.drop(
                "late_window",
                f"key {record.key!r} at {record.timestamp}: window {start}..{end} of {self.store_name!r} is closed "
                f"(close time {self.close_ms}, grace {self.windows.grace_ms})",
            )


class StartedWindows(ClosingAggregation[S]):
    """The base of aggregations over a window store: rows by key and start, windows of one size.

    The index of open windows has start + size, also where that lies beyond 2**63 - 1, so that start = end - size.
    """

    def init(self, context: Context) -> None:
        super().init(context)
        self.size_ms = self.windows.size_ms

    def check_time(self, timestamp: int) -> None:
        self.windows.windows_for(timestamp)

    def write(
        self, record: Record, row_key: bytes, start: int, old_row: bytes | None, old: Any, new: Any, stamp: int
    ) -> bool:
        """Put the new aggregate of a window, and forward or suppress the result; False if the row is expired.

        `old` is decoded from `old_row`.
        """
        written = record.timestamp if new is None else stamp  # a removal: see `standfast.stream.dsl.aggregate`
        if not self.state.put_row(row_key, start, self.encode_value(new), written):
            return False
        self.changed(record, row_key, start, old_row, old, new, stamp, written)
        return True

    def changed(
        self,
        record: Record,
        row_key: bytes,
        start: int,
        old_row: bytes | None,
        old: Any,
        new: Any,
        stamp: int,
        written: int,
    ) -> None:
        """Forward or suppress the result of a window's row, which is put."""
        if self.held is not None:
            self.held.add(row_key, old_row, record.headers, written)
        elif self.finals is None:
            key = Windowed(record.key, start, end_of(start, self.size_ms))
            self.forward(Record(key, new, stamp, record.headers, old))
        # An existing row is in the index, or beyond its frontier, already.
        elif old_row is None:
            self.finals.add(start + self.size_ms, row_key[: -window_key.SUFFIX_BYTES])

    def read_held(self, row_key: bytes, old_row: bytes | None, headers: Headers, timestamp: int) -> Record | None:
        raw_key, start, _ = window_key.unpack(row_key)
        row = self.state.get_row(row_key, start)
        if row is None and old_row is None:
            return None
        try:
            new = None if row is None else self.read_value(row[8:])
            old = None if old_row is None else self.read_value(old_row[8:])
        except Exception as error:
            raise self.refused("value", "deserialize", error) from error
        key = Windowed(self.decode_key(raw_key), start, end_of(start, self.size_ms))
        return Record(key, new, timestamp, headers, old)

    def read_final(self, end: int, rest: Any, headers: Headers) -> Record | None:
        start = end - self.size_ms
        row = self.state.get_row(window_key.pack(rest, start), start)
        if row is None:
            return None
        key = Windowed(self.decode_key(rest), start, end_of(start, self.size_ms))
        return Record(key, self.decode_value(row[8:]), TIMESTAMP.unpack_from(row)[0], headers)

    def scan_open(self, end_from: int) -> Iterator[Entry]:
        size = self.size_ms
        return ((start + size, key) for start, key in self.state.rows_from(max(end_from - size, 0)))


class WindowedAggregate(StartedWindows[A]):
    """Count, reduce and aggregate by key and aligned window."""

    def init(self, context: Context) -> None:
        super().init(context)
        self.windows_for = unchecked(self.windows.windows_for)
        self.tumbling = isinstance(self.windows, TumblingWindows)
        # Of the window start in hand, since most records share it: see `turn_to`.
        self.known: Known = (-1, b"", None, -1)

    def process(self, record: Record) -> None:
        key, value, stamp, headers, _ = record
        if (key is None or value is None) and self.skipped(record):
            return
        quick_key = self.quick_key
        try:
            raw_key = quick_key(key)
        except Exception:  # noqa: BLE001 - this one raises the error
            raw_key = self.encode_key(key)
        through = self.observe(stamp, headers)
        size = self.size_ms
        if self.tumbling:
            start = stamp - stamp % size
            if start + size <= through or not self.update(record, raw_key, start, key, value, stamp):
                self.missed(record, [(start, end_of(start, size))], whole=True)
            return
        windows = self.windows_for(stamp)
        late = [
            (start, end)
            for start, end in windows
            if start + size <= through or not self.update(record, raw_key, start, key, value, stamp)
        ]
        if late:
            self.missed(record, late, whole=len(late) == len(windows))

    def update(self, record: Record, raw_key: bytes, start: int, key: Any, value: Any, stamp: int) -> bool:
        """Add the record to an open window; False if its row is expired.

        It calls rows and serdes directly, since it runs for every record of an application.
        """
        rows, held = self.rows, self.held
        last, suffix, family, until_ms = self.known
        if start != last or rows.observed_ms >= until_ms:
            _, suffix, family, _ = self.turn_to(start)
        row_key, head = raw_key + suffix, TIMESTAMP.pack(stamp)
        # A dead segment keeps its rows until the next commit drops it.
        old_row = self.state.get_row(row_key, start) if family is None else rows.get_if_present(family, row_key)
        if old_row is None:
            old = None
            aggregate = self.initial()
        else:
            read_value = self.read_value
            try:
                aggregate = read_value(old_row[VALUE])
            except Exception as error:
                raise self.refused("value", "deserialize", error) from error
            old = aggregate
            # Their bytes compare as the times do, so that few rows have to be unpacked.
            if old_row > head and (before := TIMESTAMP.unpack_from(old_row)[0]) > stamp:
                stamp, head = before, old_row[:8]
            if held is None and self.finals is None:
                old = self.decode_again(old, old_row, 8)
            if aggregate is None:
                aggregate = self.initial()
        add, write_value = self.add, self.write_value
        new = add(key, value, aggregate)
        if family is None or new is None:
            return self.write(record, row_key, start, old_row, old, new, stamp)
        try:
            raw = write_value(new)
        except Exception as error:
            raise self.refused("value", "serialize", error) from error
        rows.writer.put(family, row_key, raw, stamp)
        if start > rows.observed_ms:
            rows.observed_ms = start
        if held is None:
            self.changed(record, row_key, start, old_row, old, new, stamp, stamp)
        elif self.heard_of:
            held.add(row_key, old_row, record.headers, stamp)
        return True

    def turn_to(self, start: int) -> Known:
        """Take a window start in hand."""
        segments, suffix = self.state.segments, window_key.pack(b"", start)
        family = segments.family_for(start)
        # A rollback may take the observed time back, and an expired window is in time again: that is not kept.
        self.known = start, suffix, family, -1 if family is None else segments.dead_from(start)
        return self.known
