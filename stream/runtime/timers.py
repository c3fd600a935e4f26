"""Timers per key, kept in a logged store so that they survive a failover.

    row     kind 1 | time 8 | key  ->  empty         event time 0, processing time 1; in order of time, then key

A processor sets a timer for a key and a time; when the clock of its kind reaches that time, `on_timer` is called once
and the row is gone. A row is its own identity, so setting a timer twice is one timer. Semantics of Flink's
TimerService: timers fire by time, then by key; a timer that a callback sets at or before the clock fires in the same
step, one that it cancels does not.

Rules of this file: one instance serves one processor of one task. The caller passes the time; this file reads no
clock. The earliest time of each kind is kept in memory, so that checking for due timers costs a comparison.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import islice
from typing import Any

from standfast.store.errors import InvalidRequest
from standfast.store.serde import Serde, encode
from standfast.store.timestamps import writable
from standfast.store.types.keyvalue import KeyValueState
from standfast.stream.timer import Timer, TimerKind

NEVER = 2**63
FETCH_TIMERS = 256
_HEAD = struct.Struct(">Bq")
_CODES = {TimerKind.EVENT_TIME: 0, TimerKind.PROCESSING_TIME: 1}


class Timers:
    """The timers of one processor of one task. `store` has bytes for keys and values."""

    def __init__(
        self, store: KeyValueState[bytes, bytes], key: Serde[Any], fire: Callable[[Timer], None], where: str
    ) -> None:
        self._store = store
        self._key = key
        self._fire = fire
        self._where = where
        self._next = {kind: self._earliest(kind) for kind in TimerKind}

    def next_ms(self, kind: TimerKind) -> int:
        """A lower bound of the next due time of this kind; NEVER if there is no timer."""
        return self._next[kind]

    def set(self, key: Any, time_ms: int, kind: TimerKind) -> None:
        """Set a timer. InvalidRequest for a key that is None, a negative time, an unknown kind."""
        self._put(self._row_key(key, time_ms, kind), b"")
        self._next[kind] = min(self._next[kind], time_ms)

    def cancel(self, key: Any, time_ms: int, kind: TimerKind) -> None:
        """Cancel a timer; an absent one is fine."""
        row_key = self._row_key(key, time_ms, kind)
        if self._store.get(row_key) is not None:
            self._put(row_key, None)

    def fire(self, kind: TimerKind, now_ms: int) -> int:
        """Fire the timers due at or before `now_ms`; returns how many fired. Exceptions of callbacks propagate."""
        if self._next[kind] > now_ms:
            return 0
        fired = 0
        # Timers that callbacks set at or before the clock belong to this step, so it looks until none is left.
        while due := self._due(kind, now_ms):
            fired += self._fire_all(kind, due)
        self._next[kind] = self._earliest(kind)
        return fired

    def _fire_all(self, kind: TimerKind, due: list[bytes]) -> int:
        fired = 0
        for row_key in due:
            time_ms = _HEAD.unpack_from(row_key)[1]
            if self._next[kind] <= time_ms:  # a callback set an earlier timer: read the store again
                return fired
            if self._store.get(row_key) is None:  # a callback cancelled it just now
                continue
            # Removed before the callback, which may set the same timer again.
            self._put(row_key, None)
            self._fire(Timer(self._key.deserialize(row_key[_HEAD.size :]), time_ms, kind))
            fired += 1
        return fired

    def _put(self, row_key: bytes, row: bytes | None) -> None:
        # No code reads the timestamp of a timer's change: it must not fail for that of the record in hand.
        rows = self._store.rows
        self._store.put(row_key, row, writable(rows.now_ms(), rows.limits.least_timestamp_ms))

    def _due(self, kind: TimerKind, now_ms: int) -> list[bytes]:
        self._next[kind] = NEVER
        low, high = self._bounds(kind, now_ms)
        with self._store.range(low, high) as rows:
            due = [row_key for row_key, _ in islice(rows, FETCH_TIMERS)]
        # The upper bound is itself a row key, of the next millisecond and an empty key.
        return [row_key for row_key in due if _HEAD.unpack_from(row_key)[1] <= now_ms]

    def _earliest(self, kind: TimerKind) -> int:
        low, high = self._bounds(kind, NEVER - 1)
        with self._store.range(low, high) as rows:
            first = next(rows, None)
        return NEVER if first is None else _HEAD.unpack_from(first[0])[1]

    def _bounds(self, kind: TimerKind, last_ms: int) -> tuple[bytes, bytes]:
        # Both ends are included, so the upper one is the largest row key below the next time.
        code = _CODES[kind]
        if last_ms >= NEVER - 1:
            return _HEAD.pack(code, 0), bytes([code + 1])
        return _HEAD.pack(code, 0), _HEAD.pack(code, last_ms + 1)

    def _row_key(self, key: Any, time_ms: int, kind: TimerKind) -> bytes:
        if not isinstance(kind, TimerKind):
            raise InvalidRequest(f"{self._where}: timer kind {kind!r}: take EVENT_TIME or PROCESSING_TIME")
        if type(time_ms) is not int or not 0 <= time_ms < NEVER - 1:
            raise InvalidRequest(f"{self._where}: timer at {time_ms!r}: give whole milliseconds from 0")
        if key is None:
            raise InvalidRequest(f"{self._where}: a timer needs a key, not None")
        return _HEAD.pack(_CODES[kind], time_ms) + encode(self._key, key, store=self._store.name, part="key")
