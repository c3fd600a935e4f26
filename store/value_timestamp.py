"""Layout of a row with a timestamp.

    timestamp 8 | value            1, "v"  ->  0000000000000001 76

Big-endian, signed; an unknown timestamp is -1. The changelog carries the bare value; the timestamp is that of the
record.

Rules of this file: bytes only; equal to Kafka Streams' ValueAndTimestamp, byte for byte.
"""

from __future__ import annotations

import struct

from standfast.store.errors import Corruption, InvalidRequest

TIMESTAMP = struct.Struct(">q")
TIMESTAMP_BYTES = 8
UNKNOWN = -1


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
