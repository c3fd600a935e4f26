"""Suppression: updates that an aggregation over a cached store holds back until the next flush.

    update, update, update of a row      ->  one result: the last value, and the one before the first update
    row created and removed in between   ->  no result

Rules of this file: of each changed row it keeps the bytes of the last flush, never a decoded value: the user's function
may change its argument. The write buffer bounds it: the buffer has a row for each entry, and its size includes the
bytes kept here. Order of results: by last update, as Kafka Streams' record cache flushes.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import TypeAlias

from standfast.replication.log import Headers
from standfast.store.buffer.buffer import Buffer

OVERHEAD_BYTES = 200  # estimate for the entry and its tuple

# (number of the last update, row at the last flush, headers and timestamp of the last update)
Held: TypeAlias = tuple[int, bytes | None, Headers, int]
Emit: TypeAlias = Callable[[bytes, bytes | None, Headers, int], None]


class Suppression:
    """The suppressed rows; the flush calls `emit(row_key, old row, headers, timestamp)` for each updated row."""

    __slots__ = ("_buffer", "_emit", "_held", "_number")

    def __init__(self, buffer: Buffer, emit: Emit) -> None:
        self._buffer = buffer
        self._emit = emit
        self._held: dict[bytes, Held] = {}
        self._number = 0

    def add(self, row_key: bytes, old_row: bytes | None, headers: Headers, timestamp: int) -> None:
        """Note that a row changed from `old_row` to its present content in the store."""
        buffer = self._buffer
        # A skipped record takes its suppressed results back as well.
        if buffer.in_savepoint:
            buffer.remember(self._held, row_key)
        self._number = number = self._number + 1
        held = self._held.get(row_key)
        if held is None:
            buffer.size_bytes += OVERHEAD_BYTES if old_row is None else OVERHEAD_BYTES + len(old_row)
        else:
            # The row of the last flush stays the old value; the versions in between are never forwarded.
            old_row = held[1]
        self._held[row_key] = (number, old_row, headers, timestamp)

    def flush(self) -> None:
        """Release every suppressed row, by last update."""
        if not self._held:
            return
        held = sorted(self._held.items(), key=itemgetter(1))
        self._held.clear()
        for row_key, (_, old_row, headers, timestamp) in held:
            self._emit(row_key, old_row, headers, timestamp)


class Unheard(Suppression):
    """For an aggregation with nothing downstream, whose results would go nowhere: it keeps none of them."""

    __slots__ = ()

    def add(self, row_key: bytes, old_row: bytes | None, headers: Headers, timestamp: int) -> None:
        """Nothing."""
