"""Bytes of sorted files: blocks that the end of a file names, and files altered so that their checksums are right.

Rules of this file: format version 5 with XXH64 checksums, as the compiled writer makes it, and uncompressed blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import xxhash

FOOTER = 53
FILTER = b"fullfilter.rocksdb.BuiltinBloomFilter"
FILTER_TAIL = 5  # of a filter's bytes: how it was made
PROPERTIES = b"rocksdb.properties"

Alter = Callable[[Path], None]


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and the place after it."""
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def entries_of(block: bytes) -> dict[bytes, bytes]:
    """Rows of an uncompressed block."""
    end = len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")
    at, key, found = 0, b"", {}
    while at < end:
        shared, at = varint(block, at)
        own, at = varint(block, at)
        size, at = varint(block, at)
        key = key[:shared] + block[at : at + own]
        found[key] = block[at + own : at + own + size]
        at += own + size
    return found


def places_of(data: bytes) -> dict[bytes, tuple[int, int]]:
    """Begin and end of each block that the end of a file names: filter and properties."""
    footer = data[-FOOTER:]
    at, offset = varint(footer, 1)[1], varint(footer, 1)[0]
    size = varint(footer, at)[0]
    found = {}
    for name, handle in entries_of(data[offset : offset + size]).items():
        start, used = varint(handle, 0)
        found[name] = start, start + varint(handle, used)[0]
    return found


def meta_of(path: Path) -> dict[bytes, bytes]:
    """The blocks that the end of a file names."""
    data = path.read_bytes()
    return {name: data[start:end] for name, (start, end) in places_of(data).items()}


def rewrite(path: Path, name: bytes, change: Callable[[bytes], bytes]) -> None:
    """Change a block in its place, and its checksum with it."""
    data = bytearray(path.read_bytes())
    start, end = places_of(bytes(data))[name]
    block = change(bytes(data[start:end]))
    assert len(block) == end - start and block != data[start:end]
    data[start:end] = block
    checksum = xxhash.xxh64_intdigest(bytes(data[start : end + 1])) & 0xFFFFFFFF
    data[end + 1 : end + 5] = checksum.to_bytes(4, "little")
    path.write_bytes(data)


def newer_version(path: Path) -> None:
    """The footer names a format that RocksDB does not know."""
    data = bytearray(path.read_bytes())
    data[-12:-8] = (99).to_bytes(4, "little")
    path.write_bytes(data)


def other_comparator(path: Path) -> None:
    """The properties name another order of keys than the database's."""
    rewrite(path, PROPERTIES, lambda block: block.replace(b"leveldb.BytewiseComparator", b"leveldb.BytewiseComparatoR"))


def lying_filter(path: Path) -> None:
    """Each bit of the filter is the opposite of its former value: no key that the file has is in it."""
    rewrite(path, FILTER, lambda block: bytes(255 - one for one in block[:-FILTER_TAIL]) + block[-FILTER_TAIL:])
