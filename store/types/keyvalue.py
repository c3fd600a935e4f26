"""The key-value store.

    row     key -> [timestamp 8] value          one family, named like the store
    log     key -> value, record timestamp      compacted

Rules of this file: semantics of Kafka Streams' KeyValueStore, but that ranges over numbers go by number; both ends of a
range are included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import add
from typing import Never, cast

from standfast.store.arguments import MISSING, checked, no_option, pairs_of
from standfast.store.buffer.rows import StoreIterator, StoreRows
from standfast.store.engine import Row
from standfast.store.errors import InvalidRequest, StandfastError
from standfast.store.results import ValueAndTimestamp
from standfast.store.specs import K, KeyValueStore, V
from standfast.store.types.typed import (
    NO_TIMESTAMP,
    OF_THE_LIBRARY,
    FamilyRows,
    LoggedRecord,
    LogicalRow,
    TypedStore,
    columns_of,
)
from standfast.store.value_timestamp import TIMESTAMP

_join = cast("Callable[[bytes, bytes | None], bytes]", add)


def after_prefix(prefix: bytes) -> bytes | None:
    """Smallest bytes above every key that begins with `prefix`; None if no bytes are."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else None


@checked(InvalidRequest, *OF_THE_LIBRARY)
class KeyValueState(TypedStore[KeyValueStore, K, V]):
    """A task's key-value store: the latest value of each key; `task.store(spec)` gives it.

    `range` over int64 and float64 keys is in the order of the numbers, over others in raw key order: that of the
    serialised bytes, which `all` and `prefix_scan` always have. A read or write of one key looks in the buffer and then
    at one row of the database; a range costs a seek and its rows, one over numbers below and above 0 two seeks.

    Times are whole milliseconds since the epoch; `timestamp` is by default that of the record in hand, outside a record
    the wall clock. Reads see the task's own uncommitted writes over the committed rows. A write goes to the task's
    buffer, and with the commit to changelog and database. Threads may share it: see `Task.exclusive`.

    Every method raises InvalidRequest for a key that is None, a value that a serde refuses and an invalid time;
    Corruption for an unreadable row; Closed after the task has left, Fenced if another instance has it. A write that
    raises changes nothing: also TooLarge (key over 64 KiB, value over `value_max_bytes`), Backpressure (buffer full:
    commit, then write again) and DiskFull (less space than `disk_floor_bytes`).
    """

    def __init__(self, spec: KeyValueStore, rows: StoreRows) -> None:
        super().__init__(spec, rows)
        if spec.timestamped:
            rows.head()

    def bind(self, topic: str | None) -> None:
        super().bind(topic)
        self._put = self.rows.buffer.putter(
            self.rows.writer, self.name, self._encode_key, self._encode_value, self._timestamp
        )

    def get(self, key: K, **unknown: Never) -> V | None:
        """The value of a key, or None. One look-up."""
        if unknown or key is MISSING:
            raise no_option(KeyValueState.get, unknown)
        row = self.rows.get(self.name, self._encode_key(key))
        return None if row is None else self._decode_value(row[self._skip :])

    def get_with_timestamp(self, key: K) -> ValueAndTimestamp[V] | None:
        """Value and timestamp (ms) of a key, or None; InvalidRequest for a store declared with timestamped=False.

        The timestamp is that of the put, which need not be the largest one. One look-up.
        """
        if not self._skip:
            raise InvalidRequest(f"store {self.name!r} keeps no timestamps: declare it with timestamped=True")
        row = self.rows.get(self.name, self._encode_key(key))
        if row is None:
            return None
        return ValueAndTimestamp(self._decode_value(row[8:]), TIMESTAMP.unpack_from(row)[0])

    def put(self, key: K, value: V | None, timestamp: int | None = None, **unknown: Never) -> None:
        """Set the value of a key; None deletes. The last put counts, whatever its timestamp (ms).

        Reads nothing: costs the serdes and an entry of the buffer.
        """
        if unknown or key is MISSING or value is MISSING:  # any serde might write that
            raise no_option(KeyValueState.put, unknown)
        self._put(key, value, self.rows.now_ms() if timestamp is None else timestamp)

    def put_raw(self, raw_key: bytes, raw: bytes | None, timestamp: int) -> None:
        """`put` of bytes as the serdes would return them; it does not check the timestamp."""
        self.rows.writer.put(self.name, raw_key, raw, timestamp)

    def put_raw_all(self, pairs: Sequence[tuple[bytes, bytes]], timestamp: int) -> bool:
        """`put_raw` of several values, if every one of them is allowed; otherwise False, and no value is set."""
        try:
            self.rows.writer.put_all(self.name, pairs, timestamp)
        except StandfastError:
            return False
        return True

    def put_if_absent(self, key: K, value: V, timestamp: int | None = None) -> V | None:
        """Set the value only if the key has none; returns the earlier value, or None. `timestamp` in ms. Costs both."""
        with self.rows.buffer.latch:
            old = self.get(key)
            if old is None:
                self.put(key, value, timestamp)
            return old

    def put_all(self, items: Iterable[tuple[K, V | None]], timestamp: int | None = None) -> None:
        """Set several (key, value), in their order, with one timestamp (ms); if any of them is refused, none is set.

        It serialises all of them before it writes the first, so their bytes are in memory twice for a moment.
        """
        stamp = self._timestamp(timestamp)
        pairs = pairs_of(f"put_all into store {self.name!r}", items)
        self.rows.writer.put_all(
            self.name,
            [(self._encode_key(key), None if value is None else self._encode_value(value)) for key, value in pairs],
            stamp,
        )

    def delete(self, key: K) -> V | None:
        """Remove a key; returns its earlier value, or None. One look-up and a put of None."""
        old = self.get(key)
        self.put(key, None)
        return old

    def range(
        self, key_from: K | None = None, key_to: K | None = None, *, reverse: bool = False
    ) -> StoreIterator[tuple[K, V]]:
        """Rows (key, value) with key_from <= key <= key_to in order of keys, or in `reverse`; a None end is open.

        The order of int64 and float64 keys is that of the numbers (-0.0 equals 0.0; NaN lies in no range, and as an end
        it is an InvalidRequest), that of other keys is raw key order. Empty if key_from > key_to. The iterator reads
        rows as it goes, and gives those that the store had at the call. It keeps files of the database in use: close
        it, or read it to its end.
        """
        low = None if key_from is None else self._encode_key(key_from)
        high = None if key_to is None else self._encode_key(key_to)
        return self.range_raw(low, high, reverse=reverse)

    def range_raw(
        self, low: bytes | None, high: bytes | None, *, reverse: bool = False, behind: bytes | None = None
    ) -> StoreIterator[tuple[K, V]]:
        """`range` of serialised keys; `behind`: only the rows after this key in the order of the range."""
        if self.numbers is None:
            end = None if high is None else high + b"\x00"  # the next key: the engine's end is open
            if behind is not None and reverse:
                end = behind if end is None else min(end, behind)
            elif behind is not None:
                low = max(low or b"", behind + b"\x00")
            return self._iterate(low, end, reverse)
        with self.rows.buffer.latch:  # both halves show the rows of one moment
            scans = [
                self.rows.scan(self.name, *span.bounds(), reverse=span.reverse)
                for span in self.numbers.spans(low, high, store=self.name, reverse=reverse, behind=behind)
            ]
        return self.rows.iterate(self._decoded(chain(*scans)))

    def prefix_scan(self, prefix: K, *, reverse: bool = False) -> StoreIterator[tuple[K, V]]:
        """Rows (key, value) whose raw key begins with the serialised prefix, in raw key order or in `reverse`.

        Use it with serdes whose bytes of a prefix begin those of the key, as string and bytes do and json does not.
        """
        raw = self._encode_key(prefix)
        return self._iterate(raw, after_prefix(raw), reverse)

    def all(self, reverse: bool = False) -> StoreIterator[tuple[K, V]]:
        """Every row (key, value) in raw key order or in `reverse`."""
        return self._iterate(None, None, reverse)

    def approximate_num_entries(self) -> int:
        """Estimated number of rows: in files, with rewritten rows counted again, and in the buffer.

        It reads no row; the cost is a walk over the buffered rows.
        """
        buffer = self.rows.buffer
        parts = buffer.rows.get(self.name), buffer.taken_rows(self.name)
        return self.rows_in_files() + sum(row is not None for rows in parts if rows for row in list(rows.values()))

    def rows_in_files(self) -> int:
        """Estimated number of rows without the buffered ones; any thread may call it."""
        return self.rows.engine.approximate_rows(self.name)

    def restore(self, records: Sequence[LoggedRecord], into: FamilyRows | None = None) -> FamilyRows:
        families = {} if into is None else into
        rows = cast("dict[bytes | None, bytes | None]", families.setdefault(self.name, {}))
        stamps, keys, values = columns_of(records)
        # Loops in C: in Python they would be a large part of a restore's time.
        if not self._skip:
            rows.update(zip(keys, values, strict=True))
        else:
            try:
                rows.update(zip(keys, map(_join, map(TIMESTAMP.pack, stamps), values), strict=True))
            except TypeError:  # a tombstone
                pack = TIMESTAMP.pack
                rows |= {
                    key: pack(stamp) + value if value is not None else None
                    for stamp, key, value in zip(stamps, keys, values, strict=True)
                }
        # Afterwards and not per record, since a changelog has no such records unless another program writes to it.
        if None in rows:
            del rows[None]
            self.rows.counters.skipped += sum(key is None for key in keys)
        return families

    def logical_rows(self) -> Iterator[LogicalRow]:
        skip = self._skip
        for key, row in self.rows.committed(self.name):
            yield key, TIMESTAMP.unpack_from(row)[0] if skip else NO_TIMESTAMP, row[skip:]

    def families(self) -> list[str]:
        return [self.name]

    def _iterate(self, start: bytes | None, end: bytes | None, reverse: bool) -> StoreIterator[tuple[K, V]]:
        if start is not None and end is not None and start >= end:
            return self.rows.iterate(iter(()))
        return self.rows.iterate(self._decoded(self.rows.scan(self.name, start, end, reverse=reverse)))

    def _decoded(self, scan: Iterator[Row]) -> Iterator[tuple[K, V]]:
        skip = self._skip
        for key, row in scan:
            yield self._decode_key(key), self._decode_value(row[skip:])
