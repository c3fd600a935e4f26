"""Layout of a window store's row key, in the store and in the changelog.

    key | start 8 | sequence 4          "A", 60000  ->  41 000000000000ea60 00000000

Big-endian. The sequence is 0; with retained duplicates it counts from 1 and wraps within 31 bits. Keys have any
length and no terminator, so the suffix is found from the end, and rows of key "A" may lie between rows of longer
keys that begin with "A": a scan of `key_bounds` or `range_bounds` must still check key and start of each row.

Rules of this file: bytes only; equal to Kafka Streams' WindowKeySchema, byte for byte.
"""

from __future__ import annotations

import struct

from standfast.store.errors import Corruption, InvalidRequest

SUFFIX_BYTES = 12
SEQUENCE_MAX = 0x7FFFFFFF
TIME_MAX = 2**63 - 1
_START = struct.Struct(">q4x")
_SUFFIX = struct.Struct(">qI")
_AFTER_EVERY_SEQUENCE = b"\xff\xff\xff\xff\x00"


def pack(key: bytes, start: int, sequence: int = 0) -> bytes:
    """The row key. Raises InvalidRequest for a start or a sequence outside its field."""
    if start < 0 or not 0 <= sequence <= SEQUENCE_MAX:
        raise _refused(start, sequence)
    try:
        return key + _SUFFIX.pack(start, sequence)
    except struct.error as error:
        raise _refused(start, sequence) from error


def unpack(row_key: bytes) -> tuple[bytes, int, int]:
    """(key, start, sequence) of a row key. Raises Corruption for any other bytes."""
    try:
        start, sequence = _SUFFIX.unpack_from(row_key, len(row_key) - SUFFIX_BYTES)
    except struct.error as error:
        raise _damaged(row_key) from error
    if start < 0 or sequence > SEQUENCE_MAX:
        raise _damaged(row_key)
    return row_key[:-SUFFIX_BYTES], start, sequence


def start_of(row_key: bytes) -> int:
    """The window start alone."""
    try:
        start: int = _START.unpack_from(row_key, len(row_key) - SUFFIX_BYTES)[0]
    except struct.error as error:
        raise _damaged(row_key) from error
    if start < 0:
        raise _damaged(row_key)
    return start


def sequence_of(row_key: bytes) -> int:
    """The sequence alone."""
    return unpack(row_key)[2]


def end_of(start: int, size_ms: int) -> int:
    """The end of a window: start + size, at most 2**63 - 1 (Kafka Streams: WindowKeySchema.timeWindowForSize)."""
    return min(start + size_ms, TIME_MAX)


def key_bounds(key: bytes, time_from: int, time_to: int) -> tuple[bytes, bytes]:
    """[low, high) that holds every row of `key` with time_from <= start <= time_to."""
    return pack(key, time_from), pack(key, time_to)[:-4] + _AFTER_EVERY_SEQUENCE


def range_bounds(
    key_from: bytes | None, key_to: bytes | None, time_from: int, time_to: int
) -> tuple[bytes, bytes | None]:
    """[low, high) that holds every row with key_from <= key <= key_to and time_from <= start <= time_to.

    None is an open end. `time_from` does not narrow the range; `time_to` narrows it more the smaller it is: a row of a
    key that is a prefix of `key_to` can lie above all rows of `key_to`.
    """
    pack(b"", time_from)  # only for its error: no row can have such a start
    low = b"" if key_from is None else key_from
    if key_to is None:
        return low, None
    return low, upper_bound(key_to, pack(b"", time_to)[:-4] + _AFTER_EVERY_SEQUENCE)


def upper_bound(key_to: bytes, suffix: bytes) -> bytes:
    """Largest of prefix + suffix over all prefixes of `key_to`, itself included.

    Every row of a key <= key_to whose own suffix is below `suffix` lies below it. A prefix counts only if the suffix
    may be greater than the byte that it replaces.
    """
    first = suffix[0]
    candidates = [key_to[:length] + suffix for length, byte in enumerate(key_to) if byte <= first]
    return max([key_to + suffix, *candidates])


def _refused(start: int, sequence: int) -> InvalidRequest:
    return InvalidRequest(
        f"window start {start} with sequence {sequence} cannot be stored: the start must be milliseconds since the "
        f"epoch from 0 to 2**63-1, the sequence from 0 to {SEQUENCE_MAX}"
    )


def _damaged(row_key: bytes) -> Corruption:
    return Corruption(
        f"{row_key[:64].hex() or 'an empty key'} is not a key of a window store (key, start 8, sequence 4): "
        "another program wrote the store, or it is damaged; restore it"
    )
