"""Aggregation by sessions, over a session store.

    record joins no session          a session of its own
    record joins one or two          they are removed, merged, and the record added; downstream sees each go before the
                                     new one comes, also where the bounds did not change (cached: only differences, at
                                     the flush)
    on close                         a session whose result was given is never joined again: it stays as it was given

So each record is in one final result, however long the store keeps its sessions. Kafka Streams joins such a session as
long as it is retained and emits it again, with the new record in it; with the least retention, its DSL's default, it
cannot, and its results equal these.

Rules of this file: `SessionWindows.merge` decides which sessions a record joins; this file carries it out. A result's
timestamp is the end of its session. Semantics of Kafka Streams' KStreamSessionWindowAggregate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from standfast.replication.log import Headers
from standfast.store import session_key
from standfast.store.arguments import unchecked
from standfast.store.results import Windowed
from standfast.stream.dsl.windowed_aggregate import ClosingAggregation
from standfast.stream.open_windows import Entry
from standfast.stream.record import Record
from standfast.stream.topology.processor import Context
from standfast.stream.windows import SessionWindows, Window


class SessionAggregate(ClosingAggregation[SessionWindows]):
    """Count, reduce and aggregate by key and session."""

    def init(self, context: Context) -> None:
        super().init(context)
        self.search_bounds, self.merged = unchecked(self.windows.search_bounds), unchecked(self.windows.merge)

    def process(self, record: Record) -> None:
        key, value, stamp, headers, _ = record
        if (key is None or value is None) and self.skipped(record):
            return
        raw_key = self.encode_key(key)
        through = self.observe(stamp, headers)
        earliest_end, latest_start = self.search_bounds(stamp)
        # Joining a session that was emitted would put its records into two final results.
        if self.finals is not None and earliest_end <= through:
            earliest_end = through + 1
        rows = {Window(start, end): row for start, end, row in self.state.rows_of(raw_key, earliest_end, latest_start)}
        session, absorbed, removed = self.merged(rows, stamp)
        if session.end <= through:
            self.missed(record, [session], whole=True)
            return
        aggregate = self.initial()
        assert self.merge is not None  # checked where it is declared
        for one in absorbed:
            aggregate = self.merge(key, aggregate, self.decode_value(rows[one]))
        # Removals before the put, so that downstream sees the old results go first, as in Kafka Streams.
        for one in removed:
            self._write(record, raw_key, one, rows.pop(one), None)
        self._write(record, raw_key, session, rows.get(session), self.add(key, value, aggregate))

    def check_time(self, timestamp: int) -> None:
        self.windows.search_bounds(timestamp)

    def _write(self, record: Record, raw_key: bytes, session: Window, old_row: bytes | None, new: Any) -> None:
        start, end = session
        row_key = session_key.pack(raw_key, start, end)
        if not self.state.put_row(row_key, end, self.encode_value(new), record.timestamp):
            # The store refused an expired row; a removal of such a row is no loss.
            if new is not None:
                self.missed(record, [session], whole=True)
        elif self.held is not None:
            self.held.add(row_key, old_row, record.headers, end)
        elif self.finals is None:
            old = None if old_row is None else self.decode_value(old_row)
            self.forward(Record(Windowed(record.key, start, end), new, end, record.headers, old))
        elif new is None:
            self.finals.discard(end, (start, raw_key))
        else:
            self.finals.add(end, (start, raw_key))

    def read_held(self, row_key: bytes, old_row: bytes | None, headers: Headers, timestamp: int) -> Record | None:
        raw_key, start, end = session_key.unpack(row_key)
        row = self.state.get_row(row_key, end)
        if row is None and old_row is None:
            return None
        new = None if row is None else self.decode_value(row)
        old = None if old_row is None else self.decode_value(old_row)
        return Record(Windowed(self.decode_key(raw_key), start, end), new, timestamp, headers, old)

    def read_final(self, end: int, rest: Any, headers: Headers) -> Record | None:
        start, raw_key = rest
        row = self.state.get_row(session_key.pack(raw_key, start, end), end)
        if row is None:
            return None
        return Record(Windowed(self.decode_key(raw_key), start, end), self.decode_value(row), end, headers)

    def scan_open(self, end_from: int) -> Iterator[Entry]:
        return ((end, (start, key)) for start, end, key in self.state.rows_from(end_from))
