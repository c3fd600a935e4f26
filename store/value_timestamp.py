"""Layout of a row with a timestamp, and changes for a changelog that are such rows.

    timestamp 8 | value            1, "v"  ->  0000000000000001 76

Big-endian, signed; an unknown timestamp is -1. The changelog carries the bare value; the timestamp is that of the
record. A commit takes the changes of most stores from the write buffer as a list of Change; those of a store whose rows
all have this layout are RowChanges, keys and rows as they are:

    key, row   ──>   key, row[8:], the timestamp in row[:8]          a delete (None) has its timestamp beside it

Rules of this file: bytes only, pure values; rows are equal to Kafka Streams' ValueAndTimestamp, byte for byte.
RowChanges is a Sequence of Change for every caller; a log that takes keys and rows as they are, as the compiled
producer does, makes no object for a change.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from operator import itemgetter
from typing import TypeAlias, cast, overload

from standfast.store.errors import Corruption, InvalidRequest

TIMESTAMP = struct.Struct(">q")
TIMESTAMP_BYTES = 8
UNKNOWN = -1

# One change: key, value (None is a tombstone), timestamp, headers; the shape of an outgoing record. A plain tuple,
# because most stores make one for every put (a named one costs 0.2 us more).
Change: TypeAlias = tuple[bytes, bytes | None, int, tuple[tuple[str, bytes | None], ...]]

VALUE = slice(TIMESTAMP_BYTES, None)  # of a row; hot paths save to make it
_head, _value = itemgetter(slice(TIMESTAMP_BYTES)), itemgetter(VALUE)


def pack(timestamp: int, value: bytes) -> bytes:
    """The row. Raises InvalidRequest for a timestamp below -1."""
    if timestamp < UNKNOWN:
        raise InvalidRequest(f"timestamp {timestamp} is below 0: give milliseconds since the epoch")
    return TIMESTAMP.pack(timestamp) + value


def unpack(row: bytes) -> tuple[int, bytes]:
    """(timestamp, value). Raises Corruption for a row too short to hold a timestamp."""
    if len(row) < TIMESTAMP_BYTES:
        raise Corruption(f"a row of {len(row)} bytes is too short to hold its timestamp: restore the store")
    timestamp: int = TIMESTAMP.unpack_from(row)[0]
    return timestamp, row[TIMESTAMP_BYTES:]


class RowChanges(Sequence[Change]):
    """The changes of rows by key; `delete_times`: the timestamp of each row that is None. A copy of `rows`."""

    __slots__ = ("delete_times", "keys", "rows")

    def __init__(self, rows: Mapping[bytes, bytes | None], delete_times: Mapping[bytes, int]) -> None:
        self.keys: tuple[bytes, ...] = tuple(rows)
        self.rows: tuple[bytes | None, ...] = tuple(rows.values())
        self.delete_times = delete_times

    def columns(self) -> tuple[tuple[bytes, ...], tuple[bytes | None, ...], tuple[int, ...]]:
        """Keys, values and timestamps."""
        rows = self.rows
        if None not in rows:
            return self.keys, *headed_columns(cast("tuple[bytes, ...]", rows))
        values = tuple(None if row is None else row[TIMESTAMP_BYTES:] for row in rows)
        stamps = tuple(
            self.delete_times[key] if row is None else int.from_bytes(row[:TIMESTAMP_BYTES], "big", signed=True)
            for key, row in zip(self.keys, rows, strict=True)
        )
        return self.keys, values, stamps

    def payload_bytes(self) -> int:
        """Bytes of keys and values."""
        heads = TIMESTAMP_BYTES * (len(self.rows) - self.rows.count(None))
        return sum(map(len, self.keys)) + sum(map(len, filter(None, self.rows))) - heads

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Change]:
        return zip(*self.columns(), repeat(()), strict=False)

    @overload
    def __getitem__(self, index: int) -> Change: ...

    @overload
    def __getitem__(self, index: slice) -> list[Change]: ...

    def __getitem__(self, index: int | slice) -> Change | list[Change]:
        return list(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    # It equals lists of the same changes, whose hashes it could not match.
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"RowChanges({list(self)!r})"


def headed_columns(rows: Sequence[bytes]) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
    """Values and timestamps of rows that are timestamp and value. Loops in C."""
    return tuple(map(_value, rows)), struct.unpack(f">{len(rows)}q", b"".join(map(_head, rows)))


def changes_bytes(changes: Sequence[Change]) -> int:
    """Bytes of keys and values; summed column by column in C, since every commit counts them."""
    if isinstance(changes, RowChanges):
        return changes.payload_bytes()
    return sum(sum(map(len, filter(None, map(itemgetter(column), changes)))) for column in (0, 1))
