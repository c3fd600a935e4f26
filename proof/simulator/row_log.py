"""The rows of a simulated database: a file that only grows, batch after batch.

    batch    frame, frame, ..., last frame                                  applied as a whole or not at all
    frame    kind, last, family, bytes of data, crc of data   crc of these   data
    data     rows of one family: a map of key to row or nil; or a range of keys to be deleted: [start, end]

A file that ends within a batch lost the rest of it, such as by a loss of power: that batch counts for nothing. The
checksum of a header stands for the length in it, so a flipped byte is never taken for such an end. A flipped byte in
data damages the rows of one family.

Rules of this file: bytes in, bytes out. It knows no file and no engine.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack

from standfast.store.engine import KeyRange, Rows

ROWS, RANGE = 1, 2
_FIELDS = struct.Struct("<BBIII")
_CRC = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CRC.size


class Frame(NamedTuple):
    """A part of a batch, of one family. `data` is None if its bytes, from `begin` to `end`, are damaged."""

    kind: int
    family: int
    data: Any
    begin: int
    end: int


class BrokenLog(Exception):
    """A damaged header: where the next frame begins is unknown."""

    def __init__(self, at: int) -> None:
        self.at = at
        super().__init__(f"the header at byte {at} is damaged")


def encoded(ids: Mapping[str, int], rows: Mapping[str, Rows], ranges: Sequence[KeyRange] = ()) -> bytes:
    """A batch: the range deletions, then the rows; empty if there are none. `ids` are the numbers of the families."""
    frames: list[tuple[int, int, Any]] = [
        (RANGE, ids[one.family], [one.start, one.end]) for one in ranges if one.start < one.end
    ]
    frames += [(ROWS, ids[family], dict(changes)) for family, changes in rows.items() if changes]
    parts: list[bytes] = []
    for number, (kind, family, content) in enumerate(frames, 1):
        data = msgpack.packb(content)
        fields = _FIELDS.pack(kind, number == len(frames), family, len(data), zlib.crc32(data))
        parts += (fields, _CRC.pack(zlib.crc32(fields)), data)
    return b"".join(parts)


def batches(raw: bytes) -> Iterator[list[Frame]]:
    """The whole batches of a file, as their frames. Raises BrokenLog behind the last one that can be read."""
    at, frames = 0, list[Frame]()
    while at + HEADER_BYTES <= len(raw):
        kind, last, family, length, crc = _FIELDS.unpack_from(raw, at)
        if _CRC.unpack_from(raw, at + _FIELDS.size)[0] != zlib.crc32(raw[at : at + _FIELDS.size]):
            raise BrokenLog(at)
        at += HEADER_BYTES
        data = raw[at : at + length]
        if len(data) < length:
            return
        at += length
        sound = zlib.crc32(data) == crc
        content = msgpack.unpackb(data, strict_map_key=False) if sound else None
        frames.append(Frame(kind, family, content, at - length, at))
        if last:
            yield frames
            frames = []
