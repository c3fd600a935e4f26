"""The write buffer in Python, and its writers: see buffer.py. The compiled one is store/native/buffer.c.

    put, put_all, enter ──> check ──> latch ──> `_enter`     rows, changes, size and counts, in one step

Rules of this file: the two buffers differ in nothing but time; tests/contract/test_buffer_contract.py compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakSet

from standfast.store.arguments import INT64_MAX
from standfast.store.buffer.buffer import EACH, HEADED, SLOTS, UNLOGGED, Buffer, Check, Encode, Put, Refuse, Writer
from standfast.store.buffer.part import (
    CHANGE_OVERHEAD_BYTES,
    ENTRY_BYTES,
    ENTRY_OVERHEAD_BYTES,
    ROW_OVERHEAD_BYTES,
)
from standfast.store.timestamps import TIMESTAMP_MAX_MS
from standfast.store.value_timestamp import TIMESTAMP, TIMESTAMP_BYTES

_pack = TIMESTAMP.pack
# Encoders of the serde of bytes, whose call a put saves where it is given bytes.
_plain_encoders: WeakSet[Encode] = WeakSet()


class WriteBuffer(Buffer):
    """The buffer in Python."""

    __slots__ = (*SLOTS, "changes", "delete_times", "journal", "latch", "open", "rows", "size_bytes", "stop_bytes")

    def writer(self, store: str, check: Check) -> Writer:
        """See Buffer."""
        return StoreWriter(self, store, check)

    @staticmethod
    def encoder(serialize: Encode, refuse: Refuse, plain: bool) -> Encode:
        """See Buffer."""

        def encode(given: Any) -> bytes:
            if plain and given.__class__ is bytes:
                return given
            if given is None:
                return refuse(None)
            try:
                return serialize(given)
            except Exception as error:  # noqa: BLE001 - a user's serde may raise any error
                return refuse(error)

        if plain:
            _plain_encoders.add(encode)
        return encode

    @staticmethod
    def putter(writer: Writer, family: str, key: Encode, value: Encode, time: Callable[[Any], int]) -> Put:
        """See Buffer."""
        write = writer.put
        plain_key, plain_value = key in _plain_encoders, value in _plain_encoders

        def put(given: Any, set_to: Any, at: Any) -> None:
            write(
                family,
                given if plain_key and given.__class__ is bytes else key(given),
                set_to if set_to is None or (plain_value and set_to.__class__ is bytes) else value(set_to),
                at if at.__class__ is int and 0 <= at <= INT64_MAX else time(at),
            )

        return put


class StoreWriter:
    """See Writer: the one for a WriteBuffer."""

    __slots__ = ("_buffer", "_check", "_name", "deletes", "least_ms", "mode", "most_bytes", "puts", "stamped")

    def __init__(self, buffer: WriteBuffer, name: str, check: Check) -> None:
        self._buffer, self._name, self._check = buffer, name, check
        self.mode, self.stamped = UNLOGGED, False
        self.most_bytes = -1
        self.least_ms = self.puts = self.deletes = 0

    def put(self, family: str, key: bytes, value: bytes | None, timestamp: int, /) -> None:
        """See Writer."""
        if type(key) is not bytes or (type(value) is not bytes and value is not None):
            key, value = _plain(key), _plain_or_none(value)
        size = len(key) if value is None else len(key) + len(value)
        buffer = self._buffer
        if (
            size > self.most_bytes
            or buffer.size_bytes + 2 * size + ENTRY_OVERHEAD_BYTES > buffer.stop_bytes
            or timestamp.__class__ is not int
            or not self.least_ms <= timestamp <= TIMESTAMP_MAX_MS
        ):
            self._check(key, value, timestamp)
        row = _pack(timestamp) + value if self.stamped and value is not None else value
        with buffer.latch:
            self._enter(family, key, row, value, timestamp)

    def put_all(self, family: str, pairs: Iterable[tuple[bytes, bytes | None]], timestamp: int, /) -> None:
        """See Writer."""
        pairs = [(_plain(key), _plain_or_none(value)) for key, value in pairs]
        sizes = [len(key) if value is None else len(key) + len(value) for key, value in pairs]
        most, buffer = 2 * sum(sizes) + len(sizes) * ENTRY_OVERHEAD_BYTES, self._buffer
        with buffer.latch:
            if (
                max(sizes, default=0) > self.most_bytes
                or buffer.size_bytes + most > buffer.stop_bytes
                or timestamp.__class__ is not int
                or not self.least_ms <= timestamp <= TIMESTAMP_MAX_MS
            ):
                for key, value in pairs:
                    self._check(key, value, timestamp)
                buffer.check_room(most, all(value is None for _, value in pairs))
            head = _pack(timestamp) if self.stamped else b""
            for key, value in pairs:
                self._enter(family, key, None if value is None else head + value, value, timestamp)

    def enter(
        self, family: str, rows: dict[bytes, bytes | None], key: bytes, value: bytes | None, timestamp: int, /
    ) -> None:
        """See Writer."""
        if not all(type(one) is bytes and (row is None or type(row) is bytes) for one, row in rows.items()):
            raise TypeError("rows are bytes, by bytes")
        with self._buffer.latch:
            self._enter(family, _plain(key), None, _plain_or_none(value), timestamp, rows)

    def _placed(self, family: str) -> tuple[dict[bytes, bytes | None], dict[Any, Any] | None]:
        """The rows of a family and the changes of the store, once there is room for them."""
        buffer, name = self._buffer, self._name
        buffer.place(name, family, self.mode)
        return buffer.rows[family], buffer.changes[name] if self.mode else None

    def _enter(
        self,
        family: str,
        key: bytes,
        row: bytes | None,
        value: bytes | None,
        timestamp: int,
        entered: dict[bytes, bytes | None] | None = None,
    ) -> None:
        """The one place where rows and changes enter, and are counted: those of `entered`, or the one of the key.

        In one step: an exception of a signal handler leaves both or neither. The caller has the latch.
        """
        buffer, mode = self._buffer, self.mode
        try:
            rows = buffer.rows[family]
            changes = buffer.changes[self._name] if mode else None
        except KeyError:
            rows, changes = self._placed(family)
        headed = changes is rows
        if mode == HEADED and not headed:  # its rows are in two families, or are about to be
            rows, changes = self._placed(family)
        elif headed and row is not None and buffer.journal is None:
            # Nearly every write: in few steps what follows does.
            if key not in rows:
                added = ENTRY_BYTES + 2 * (len(key) + len(row)) - TIMESTAMP_BYTES
            elif (old := rows[key]) is None:
                added = 2 * len(row) - TIMESTAMP_BYTES
            else:
                added = 2 * (len(row) - len(old))
            rows[key] = row
            buffer.size_bytes += added
            self.puts += 1
            return
        if entered is None:
            entered = {key: row}
        slot: object = len(changes) if mode == EACH and changes is not None else key
        if buffer.journal is not None:
            for one in entered:
                buffer.remember(rows, one)
            if changes is not None:
                buffer.remember(buffer.delete_times[self._name] if headed else changes, slot)
        added = deletes = 0
        for one, row in entered.items():
            added += len(row or b"") - len(rows.get(one) or b"")
            deletes += row is None
            if one not in rows:
                added += ROW_OVERHEAD_BYTES + len(one)
        if changes is not None:
            added += len(value or b"")
            if slot not in changes:
                added += CHANGE_OVERHEAD_BYTES + len(key)
            elif not headed:
                added -= len(changes[slot][1] or b"")
            elif changes[slot] is not None:
                added -= len(changes[slot]) - TIMESTAMP_BYTES
        puts = len(entered) - deletes
        times = buffer.delete_times[self._name] if headed and value is None else None
        # No call from here on: a call is followed by a look for signals.
        if times is not None:  # its time first, without which a delete cannot be logged
            times[key] = timestamp
        rows |= entered
        if changes is not None and not headed:
            changes[slot] = (key, value, timestamp, ())
        buffer.size_bytes += added
        self.puts += puts
        self.deletes += deletes


def _plain(raw: bytes) -> bytes:
    if type(raw) is bytes:
        return raw
    if not isinstance(raw, bytes):
        raise TypeError(f"keys and values of a store are bytes, not {type(raw).__name__}")
    return bytes(memoryview(raw))  # no method of its class


def _plain_or_none(raw: bytes | None) -> bytes | None:
    return None if raw is None else _plain(raw)
