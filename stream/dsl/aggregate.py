"""Aggregation without windows: one row per key of a key-value store.

Rules of this file: semantics of Kafka Streams' KStreamAggregate and KStreamReduce: a record without key or value is
skipped and counted, None from the user's function removes the key, and the result's timestamp is the largest of its
inputs; a removal that the cache delayed has the time of the record that removed the key.
"""

from __future__ import annotations

from standfast.replication.log import Headers
from standfast.store.value_timestamp import TIMESTAMP, VALUE
from standfast.stream.dsl.aggregation import Aggregation
from standfast.stream.record import Record


class Aggregate(Aggregation):
    """Count, reduce and aggregate by key."""

    def process(self, record: Record) -> None:
        key, value, stamp, headers, _ = record
        if (key is None or value is None) and self.skipped(record):
            return
        quick_key, read_value, add = self.quick_key, self.read_value, self.add
        try:
            raw_key = quick_key(key)
        except Exception:  # noqa: BLE001 - this one raises the error
            raw_key = self.encode_key(key)
        head = TIMESTAMP.pack(stamp)
        old_row = self.rows.get(self.store_name, raw_key)
        if old_row is None:
            aggregate = old = None
        else:
            try:
                aggregate = old = read_value(old_row[VALUE])
            except Exception as error:
                raise self.refused("value", "deserialize", error) from error
            # Their bytes compare as the times do, so that few rows have to be unpacked.
            if old_row > head and (before := TIMESTAMP.unpack_from(old_row)[0]) > stamp:
                stamp, head = before, old_row[:8]
            # The user's function may change the aggregate in place, so the old value needs an object of its own. With
            # a cache the old value is decoded at the flush instead.
            if self.held is None:
                old = self.decode_again(old, old_row, 8)
        new = add(key, value, self.initial() if aggregate is None else aggregate)
        raw = self.encode_value(new)
        # A delete is written, and forwarded by a cache, at the time of its record: Kafka Streams does both.
        written = record.timestamp if raw is None else stamp
        self.rows.writer.put(self.store_name, raw_key, raw, written)
        if self.held is not None:
            self.held.add(raw_key, old_row, headers, written)
        else:
            self.forward(Record(key, new, stamp, headers, old))

    def read_held(self, row_key: bytes, old_row: bytes | None, headers: Headers, timestamp: int) -> Record | None:
        row = self.rows.get(self.store_name, row_key)
        # Created and removed between two flushes: downstream never saw the key.
        if row is None and old_row is None:
            return None
        new = None if row is None else self.decode_value(row[8:])
        old = None if old_row is None else self.decode_value(old_row[8:])
        return Record(self.decode_key(row_key), new, timestamp, headers, old)
