"""Aggregation by sliding windows, over a window store.

Rules of this file: `SlidingWindows.plan` decides which windows a record updates and creates, and from which rows; this
file carries it out. Rows are read before any is written, because the plan refers to rows before the record.
Semantics of Kafka Streams' KStreamSlidingWindowAggregate.
"""

from __future__ import annotations

from standfast.store import window_key
from standfast.store.arguments import unchecked
from standfast.store.value_timestamp import TIMESTAMP
from standfast.stream.dsl.windowed_aggregate import StartedWindows
from standfast.stream.record import Record
from standfast.stream.topology.processor import Context
from standfast.stream.windows import SlidingWindows


class SlidingAggregate(StartedWindows[SlidingWindows]):
    """Count, reduce and aggregate by key and sliding window."""

    def init(self, context: Context) -> None:
        super().init(context)
        self.search_starts, self.plan = unchecked(self.windows.search_starts), unchecked(self.windows.plan)

    def process(self, record: Record) -> None:
        key, value, stamp, headers, _ = record
        if (key is None or value is None) and self.skipped(record):
            return
        raw_key = self.encode_key(key)
        through = self.observe(stamp, headers)
        low, high = self.search_starts(stamp)
        # All of them before the first write: the plan refers to rows before the record.
        rows = dict(self.state.rows_of(raw_key, low, high))
        stored = [(start, TIMESTAMP.unpack_from(row)[0]) for start, row in rows.items()]
        # The plan subtracts the delay itself.
        plan = self.plan(stamp, stored, through + self.delay_ms)
        if plan.dropped:
            # A window that the record makes for later records, right of itself, does not hold the record.
            self.missed(record, plan.dropped, whole=not any(change.adds for change in plan.changes))
        for (start, end), source, adds, newest in plan.changes:
            aggregate = self.initial() if source is None else self.decode_value(rows[source][8:])
            old_row = rows.get(start)
            old = None
            # Only a result that is forwarded at once needs the old value; `aggregate` may be of another window.
            if old_row is not None and self.held is None and self.finals is None:
                old = self.decode_value(old_row[8:])
            new = self.add(key, value, aggregate) if adds else aggregate
            if not self.write(record, window_key.pack(raw_key, start), start, old_row, old, new, newest):
                self.missed(record, [(start, end)], whole=False)
