"""Layouts of a versioned store's rows (local; the changelog carries key, bare value and valid-from).

    row key     segment id 8 | key            id -1 (ff*8) holds the latest value of a key
    latest      timestamp 8 | value
    segment     next_ts 8 | min_ts 8 | { timestamp 8, size 4 } newest first | values oldest first

    next 10, versions (8 foo)(3 bar)(0 baz):
      000000000000000a 0000000000000000
      0000000000000008 00000003  0000000000000003 00000003  0000000000000000 00000003
      62617a 626172 666f6f

A version is valid from its timestamp to that of the next newer one; the newest to next_ts. Size -1 is a tombstone.
A tombstone put into an empty history makes a *degenerate* row, next_ts = min_ts = its timestamp: it is valid at no
time, and only records that no version follows.

Rules of this file: bytes and integers only; equal to Kafka Streams' RocksDBVersionedStoreSegmentValueFormatter,
byte for byte, degenerate rows and overlaps included.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from standfast.store import value_timestamp
from standfast.store.errors import Corruption, InternalError

LATEST_PREFIX = b"\xff" * 8
TOMBSTONE_SIZE = -1
_SEGMENT = struct.Struct(">q")
_HEAD = struct.Struct(">qq")
_ENTRY = struct.Struct(">qi")


def segment_prefix(segment: int) -> bytes:
    """First bytes of every row of a segment, whose id is not negative."""
    return _SEGMENT.pack(segment)


def segment_key(segment: int, key: bytes) -> bytes:
    """Row key of a key's versions within a segment."""
    return _SEGMENT.pack(segment) + key


def latest_key(key: bytes) -> bytes:
    """Row key of a key's latest value."""
    return LATEST_PREFIX + key


def unpack_key(row_key: bytes) -> tuple[int, bytes]:
    """(segment id, key); the id is -1 for the latest value. Raises Corruption for a key too short."""
    if len(row_key) < 8:
        raise Corruption(f"{row_key.hex()} is not a key of a versioned store (segment 8, key): restore the store")
    segment: int = _SEGMENT.unpack_from(row_key)[0]
    return segment, row_key[8:]


def pack_latest(value: bytes, timestamp: int) -> bytes:
    """Row of the latest value."""
    return value_timestamp.pack(timestamp, value)


def unpack_latest(row: bytes) -> tuple[bytes, int]:
    """(value, timestamp) of the latest value's row."""
    timestamp, value = value_timestamp.unpack(row)
    return value, timestamp


class SegmentRow:
    """The versions of one key within one segment, newest first."""

    __slots__ = ("_timestamps", "_values", "next_ts")

    next_ts: int
    _timestamps: list[int]
    _values: list[bytes | None]

    def __init__(self, next_ts: int, timestamps: list[int], values: list[bytes | None]) -> None:
        assert timestamps and len(timestamps) == len(values)
        self.next_ts = next_ts
        self._timestamps = timestamps
        self._values = values

    @classmethod
    def new(cls, value: bytes | None, valid_from: int, valid_to: int) -> SegmentRow:
        """A row of one version; a tombstone with valid_to = valid_from makes a degenerate one."""
        return cls(valid_to, [valid_from], [value])

    @classmethod
    def parse(cls, row: bytes) -> SegmentRow:
        """The row of these bytes. Raises Corruption for bytes that `serialize` cannot have written."""
        try:
            next_ts, min_ts = _HEAD.unpack_from(row)
            timestamps, sizes, offset = _entries(row, next_ts, min_ts)
        except struct.error as error:
            raise _damaged(row, "it ends early") from error
        values: list[bytes | None] = []
        # From the end: entries are newest first and values oldest first, so the newest value is the last.
        end = len(row)
        for size in sizes:
            if size < 0:
                values.append(None)
                continue
            if end - size < offset:
                raise _damaged(row, "its values are shorter than their sizes say")
            values.append(row[end - size : end])
            end -= size
        if end != offset:
            raise _damaged(row, f"{end - offset} bytes belong to no version")
        return cls(next_ts, timestamps, values)

    @property
    def min_ts(self) -> int:
        """Valid-from of the oldest version."""
        return self._timestamps[-1]

    @property
    def degenerate(self) -> bool:
        """Whether the row is a lone tombstone that is valid at no time."""
        return self.next_ts == self._timestamps[-1]

    def serialize(self) -> bytes:
        """The row's bytes."""
        parts = [_HEAD.pack(self.next_ts, self.min_ts)]
        for timestamp, value in zip(self._timestamps, self._values, strict=True):
            parts.append(_ENTRY.pack(timestamp, TOMBSTONE_SIZE if value is None else len(value)))
        parts.extend(value for value in reversed(self._values) if value is not None)
        return b"".join(parts)

    def versions(self) -> Iterator[tuple[bytes | None, int, int]]:
        """(value, valid_from, valid_to), newest first; None is a tombstone."""
        valid_to = self.next_ts
        for timestamp, value in zip(self._timestamps, self._values, strict=True):
            yield value, timestamp, valid_to
            valid_to = timestamp

    __iter__ = versions

    def __len__(self) -> int:
        return len(self._timestamps)

    def find(self, timestamp: int) -> tuple[int, bytes | None, int, int]:
        """(index, value, valid_from, valid_to) of the version valid at a time with min_ts <= time < next_ts."""
        if not self.min_ts <= timestamp < self.next_ts:
            raise InternalError(f"time {timestamp} is outside the segment row [{self.min_ts}, {self.next_ts})")
        valid_to = self.next_ts
        for index, valid_from in enumerate(self._timestamps):
            if valid_from <= timestamp:
                return index, self._values[index], valid_from, valid_to
            valid_to = valid_from
        raise InternalError(f"segment row [{self.min_ts}, {self.next_ts}) has no version at {timestamp}")

    def insert_as_latest(self, valid_from: int, valid_to: int, value: bytes | None) -> None:
        """Add the newest version. A gap after the row becomes a tombstone; versions that it overlaps are cut off."""
        if valid_from < self.next_ts:
            self._truncate(valid_from)
        if self.next_ts != valid_from:
            # A degenerate row holds exactly this tombstone already: the gap then only gives it its validity.
            if not self.degenerate:
                self._timestamps.insert(0, self.next_ts)
                self._values.insert(0, None)
            self._timestamps.insert(0, valid_from)
            self._values.insert(0, value)
        elif self.degenerate:
            self._timestamps, self._values = [valid_from], [value]
        else:
            self._timestamps.insert(0, valid_from)
            self._values.insert(0, value)
        self.next_ts = valid_to

    def insert_as_earliest(self, timestamp: int, value: bytes | None) -> None:
        """Add the oldest version; in a degenerate row it replaces the tombstone and ends where that began."""
        if self.degenerate:
            self._timestamps, self._values = [timestamp], [value]
        else:
            self._timestamps.append(timestamp)
            self._values.append(value)

    def insert(self, timestamp: int, value: bytes | None, index: int) -> None:
        """Add a version at an index from `find`; the version at that index becomes the next older."""
        self._check_index(index)
        self._timestamps.insert(index, timestamp)
        self._values.insert(index, value)

    def update(self, timestamp: int, value: bytes | None, index: int) -> None:
        """Replace the version at an index from `find`."""
        self._check_index(index)
        self._timestamps[index] = timestamp
        self._values[index] = value

    def _truncate(self, timestamp: int) -> None:
        """Cut all validity off at `timestamp`."""
        if timestamp <= self.min_ts:
            self._timestamps, self._values = [timestamp], [None]
        else:
            kept = next(index for index, valid_from in enumerate(self._timestamps) if valid_from < timestamp)
            del self._timestamps[:kept], self._values[:kept]
        self.next_ts = timestamp

    def _check_index(self, index: int) -> None:
        if self.degenerate or not 0 <= index < len(self._timestamps):
            raise InternalError(f"segment row [{self.min_ts}, {self.next_ts}) has no version number {index}")


def _entries(row: bytes, next_ts: int, min_ts: int) -> tuple[list[int], list[int], int]:
    """Timestamps, sizes, and the offset of the values. The list has no count: it ends at min_ts."""
    timestamps: list[int] = []
    sizes: list[int] = []
    offset = _HEAD.size
    newer = next_ts
    while True:
        timestamp, size = _ENTRY.unpack_from(row, offset)
        offset += _ENTRY.size
        # Only a degenerate row has a version that begins where it ends.
        lone = not timestamps and timestamp == next_ts == min_ts and size < 0
        if not (timestamp < newer or lone) or timestamp < min_ts:
            raise _damaged(row, "its timestamps are out of order")
        timestamps.append(timestamp)
        sizes.append(size)
        if timestamp == min_ts:
            return timestamps, sizes, offset
        newer = timestamp


def _damaged(row: bytes, why: str) -> Corruption:
    return Corruption(
        f"a segment row of {len(row)} bytes of a versioned store is damaged ({why}): restore the store from its log"
    )
