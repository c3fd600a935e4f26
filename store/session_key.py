"""Layout of a session store's row key, in the store and in the changelog.

    key | end 8 | start 8          "A", start 10, end 20  ->  41 0000000000000014 000000000000000a

Big-endian; the end comes first. Keys have any length and no terminator, so the suffix is found from the end, and
rows of key "A" may lie between rows of longer keys that begin with "A": a scan of `key_bounds` or `range_bounds`
must still check key, end and start of each row.

Rules of this file: bytes only; equal to Kafka Streams' SessionKeySchema, byte for byte.
"""

from __future__ import annotations

import struct

from standfast.store.errors import Corruption, InvalidRequest
from standfast.store.window_key import upper_bound

SUFFIX_BYTES = 16
_END = struct.Struct(">q8x")
_SUFFIX = struct.Struct(">qq")
_AFTER_EVERY_START = b"\xff\xff\xff\xff\xff\xff\xff\xff\x00"


def pack(key: bytes, start: int, end: int) -> bytes:
    """The row key. Raises InvalidRequest for a negative time or an end before the start."""
    if not 0 <= start <= end:
        raise _refused(start, end)
    try:
        return key + _SUFFIX.pack(end, start)
    except struct.error as error:
        raise _refused(start, end) from error


def unpack(row_key: bytes) -> tuple[bytes, int, int]:
    """(key, start, end) of a row key. Raises Corruption for any other bytes."""
    try:
        end, start = _SUFFIX.unpack_from(row_key, len(row_key) - SUFFIX_BYTES)
    except struct.error as error:
        raise _damaged(row_key) from error
    if not 0 <= start <= end:
        raise _damaged(row_key)
    return row_key[:-SUFFIX_BYTES], start, end


def end_of(row_key: bytes) -> int:
    """The session's end alone."""
    try:
        end: int = _END.unpack_from(row_key, len(row_key) - SUFFIX_BYTES)[0]
    except struct.error as error:
        raise _damaged(row_key) from error
    if end < 0:
        raise _damaged(row_key)
    return end


def key_bounds(key: bytes, end_from: int, end_to: int) -> tuple[bytes, bytes]:
    """[low, high) that holds every session of `key` with end_from <= end <= end_to."""
    return pack(key, 0, end_from), _above(key, end_to)


def range_bounds(
    key_from: bytes | None, key_to: bytes | None, end_from: int, end_to: int
) -> tuple[bytes, bytes | None]:
    """[low, high) that holds every session with key_from <= key <= key_to and end_from <= end <= end_to.

    None is an open end. `end_from` does not narrow the range; `end_to` narrows it more the smaller it is: a row of a
    key that is a prefix of `key_to` can lie above all rows of `key_to`.
    """
    pack(b"", 0, end_from)  # only for its error: no row can have such an end
    low = b"" if key_from is None else key_from
    return low, None if key_to is None else upper_bound(key_to, _above(b"", end_to))


def _above(key: bytes, end: int) -> bytes:
    """The least bytes above every session of `key` with this end."""
    return pack(key, 0, end)[:-8] + _AFTER_EVERY_START


def _refused(start: int, end: int) -> InvalidRequest:
    return InvalidRequest(
        f"session {start}..{end} cannot be stored: both times must be milliseconds since the epoch from 0 to 2**63-1, "
        "and the end not before the start"
    )


def _damaged(row_key: bytes) -> Corruption:
    return Corruption(
        f"{row_key[:64].hex() or 'an empty key'} is not a key of a session store (key, end 8, start 8): "
        "another program wrote the store, or it is damaged; restore it"
    )
