"""Checksums of the embedded log: of blocks of records, and of the rows that describe the log.

    block    up to 128 neighbouring records of a partition: offset range, number of records, and sums over all of them
             keys, values, headers   CRC-32 over every cell and a separator, in the order of the offsets
             times                   sum of the timestamps
             gaps                    CRC-32 over the offsets, if compaction removed some of the block's records
    seal     CRC-32 over the columns of a row of topics, partitions, committed offsets and writers

A checksum for each record would cost as much as a third of reading it; a block's costs a tenth, since it covers whole
columns, and it also detects lost records. An append can continue the sums of a block, so that small appends share
one block.

Rules of this file: pure; no SQL. Records below a partition's `summed` are of format 1, without checksums.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from standfast.replication.offsets import TopicPartition
from standfast.store.errors import Corruption

BLOCK_RECORDS = 128  # measured: 64 reads 3 % slower, 512 no faster, and a block is the least that can be read
BLOCK_BYTES = 256 << 10  # so that a block of large records stays small

_NONE = b"\xff\x00\xfeNone"  # a cell that is NULL; an empty one is another
_NO_HEADERS = _NONE + b"\x00"
_TIMES_MASK = (1 << 62) - 1  # the sum has to fit SQLite's signed 64-bit integer


class Sums(NamedTuple):
    """Sums over records; `Sums()` for no records."""

    keys: int = 0
    values: int = 0
    headers: int = 0
    times: int = 0


class ChecksumBlock(NamedTuple):
    """A row of `sums`: the block covers the offsets `begin` to `end` (exclusive) and holds `records` of them."""

    begin: int
    end: int
    records: int
    keys: int
    values: int
    headers: int
    times: int
    gaps: int

    @property
    def sums(self) -> Sums:
        """The sums over the block's records."""
        return Sums(self.keys, self.values, self.headers, self.times)

    @property
    def gapless(self) -> bool:
        """Whether every offset of the block holds a record."""
        return self.records == self.end - self.begin


class Cells(NamedTuple):
    """Records by column; `headers` are packed bytes, and None where no record has any."""

    timestamps: Sequence[int]
    keys: Sequence[Any]
    values: Sequence[Any]
    headers: Sequence[Any] | None = None

    def cut(self, start: int, stop: int) -> Cells:
        """Some of the records."""
        headers = None if self.headers is None else self.headers[start:stop]
        return Cells(self.timestamps[start:stop], self.keys[start:stop], self.values[start:stop], headers)

    def pick(self, indexes: Sequence[int]) -> Cells:
        """The records at these places."""
        headers = None if self.headers is None else [self.headers[index] for index in indexes]
        timestamps, keys, values = ([column[index] for index in indexes] for column in self[:3])
        return Cells(timestamps, keys, values, headers)


def add(before: Sums, cells: Cells) -> tuple[Sums, int]:
    """The sums `before`, continued over these records, and the bytes of their keys and values."""
    keys, key_bytes = _column(cells.keys, before.keys)
    values, value_bytes = _column(cells.values, before.values)
    if cells.headers is None:
        headers = zlib.crc32(_NO_HEADERS * len(cells.keys), before.headers)
    else:
        headers, _ = _column(cells.headers, before.headers)
    return Sums(keys, values, headers, (before.times + sum(cells.timestamps)) & _TIMES_MASK), key_bytes + value_bytes


def block_records(widest_bytes: int) -> int:
    """Number of records of at most this size that make a block."""
    return max(1, min(BLOCK_RECORDS, BLOCK_BYTES // max(widest_bytes, 1)))


def summed(cells: Cells, size: int) -> list[tuple[Sums, int]]:
    """Sums and number of records of each block of a batch."""
    return [
        (add(Sums(), piece)[0], len(piece.keys))
        for start in range(0, len(cells.keys), size)
        for piece in (cells.cut(start, start + size),)
    ]


def block_of(begin: int, end: int, offsets: Sequence[int], sums: Sums) -> ChecksumBlock:
    """A block over these offsets that holds records at `offsets`."""
    return ChecksumBlock(begin, end, len(offsets), *sums, gaps_of(begin, end, offsets))


def gaps_of(begin: int, end: int, offsets: Sequence[int]) -> int:
    """Checksum of the set of offsets that hold records; 0 if all do."""
    if len(offsets) == end - begin:
        return 0
    return zlib.crc32(struct.pack(f"<{len(offsets)}q", *offsets))


def check(source: TopicPartition, block: ChecksumBlock, offsets: Sequence[int], cells: Cells) -> int:
    """Raise Corruption unless these are the records of the block; returns the bytes of their keys and values."""
    try:
        sums, size = add(Sums(), cells)
    except TypeError as error:  # a cell is a number or a text, or a timestamp is missing
        raise damaged(source, block.begin, block.end, "cells are of another type") from error
    # Offsets increase, so a gapless block has the right ones if the first, the last and their number are right.
    exact = not block.gapless or (not offsets or (offsets[0] == block.begin and offsets[-1] == block.end - 1))
    if (
        sums == block.sums
        and len(offsets) == block.records
        and exact
        and block.gaps == (0 if block.gapless else gaps_of(block.begin, block.end, offsets))
    ):
        return size
    raise damaged(source, block.begin, block.end, _difference(block, offsets))


def damaged(source: TopicPartition, begin: int, end: int, what: str) -> Corruption:
    """The error for records that differ from the written ones; it names their partition as its source."""
    error = Corruption(
        f"{source}: the records at offsets {begin} to {end - 1} of the log are damaged ({what}): none of them was "
        "delivered; set the log's file aside, restore a copy of it, and check disk and memory of the machine"
    )
    error.sources = (source,)
    error.of_log = True
    return error


def seal(*columns: Any) -> int:
    """Checksum of a row of numbers and texts."""
    return zlib.crc32("\x1f".join(map(str, columns)).encode())


def check_seal(where: str, stored: Any, *columns: Any) -> None:
    """Raise Corruption unless the row matches its seal."""
    if stored != seal(*columns):
        error = Corruption(
            f"{where}: its row in the log is damaged: set the log's file aside, restore a copy of it, and "
            "check disk and memory of the machine"
        )
        error.of_log = True
        raise error


def _column(cells: Sequence[Any], before: int) -> tuple[int, int]:
    count = len(cells)
    if not count:
        return before, 0
    try:
        joined = b"\x00".join(cells)
        size = len(joined) - count + 1
    except TypeError:
        joined = b"\x00".join([_NONE if cell is None else cell for cell in cells])
        size = sum(map(len, filter(None, cells)))
    return zlib.crc32(b"\x00", zlib.crc32(joined, before)), size


def _difference(block: ChecksumBlock, offsets: Sequence[int]) -> str:
    if len(offsets) != block.records:
        there = set(offsets)
        gone = next((offset for offset in range(block.begin, block.end) if offset not in there), block.begin)
        first = f", the first missing one is {gone}" if block.gapless else ""
        return f"{len(offsets)} of {block.records} are present{first}"
    return "their bytes differ from the written ones"
