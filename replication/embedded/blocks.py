"""Records of the embedded log, read and written with their checksums; used within transactions.

    append     rows, then the blocks over them: small appends go on with the partition's last block
    read       whole blocks; a reader gets records only of blocks that were checked
    trim       the block that a new begin cuts through

Rules of this file: SQL over `log_records` and `sums` and nothing else; care.py decides which records to remove.
Blocks of a partition follow each other without a gap from `summed` (or the begin) to its end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from standfast.replication.columns import gapless
from standfast.replication.embedded.db import Transaction
from standfast.replication.embedded.rows import PreparedBatch, first_id
from standfast.replication.embedded.sums import (
    BLOCK_RECORDS,
    Cells,
    ChecksumBlock,
    Sums,
    add,
    block_of,
    block_records,
    check,
    damaged,
    summed,
)
from standfast.replication.embedded.topics import PartitionRow
from standfast.store.errors import Corruption

_BLOCK = "begin_offset, end_offset, records, keys_sum, values_sum, headers_sum, times_sum, gaps_sum"
_NEXT_BLOCKS = f"SELECT {_BLOCK} FROM sums WHERE partition = ? AND end_offset > ? ORDER BY end_offset LIMIT ?"  # noqa: S608  ours
_LAST_BLOCK = f"SELECT {_BLOCK} FROM sums WHERE partition = ? ORDER BY end_offset DESC LIMIT 1"  # noqa: S608  ours
_INSERT_BLOCK = f"INSERT INTO sums (partition, {_BLOCK}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608  ours
_DELETE_BLOCK = f"DELETE FROM sums WHERE partition = ? AND {' = ? AND '.join(_BLOCK.split(', '))} = ?"  # noqa: S608  ours
_EXTEND_BLOCK = (
    "UPDATE sums SET end_offset = ?, records = ?, keys_sum = ?, values_sum = ?, headers_sum = ?, times_sum = ? "
    "WHERE partition = ? AND end_offset = ?"
)
_ROWS = "SELECT id - ?1, timestamp, key, value FROM log_records WHERE id >= ?1 + ?2 AND id < ?1 + ?3 ORDER BY id"
_ROWS_WITH_HEADERS = _ROWS.replace("value FROM", "value, headers FROM")
_OLD_ROWS = f"{_ROWS} LIMIT ?4"
_OLD_ROWS_WITH_HEADERS = f"{_ROWS_WITH_HEADERS} LIMIT ?4"
_BLOCKS_AT_ONCE = 64
_make_block = partial(tuple.__new__, ChecksumBlock)


class BlockPiece(NamedTuple):
    """All records below `next_offset`, at `offsets`, with the blocks that they make (no blocks: unchecked records)."""

    offsets: Sequence[int]
    cells: Cells
    payload_bytes: int
    next_offset: int
    blocks: tuple[ChecksumBlock, ...] = ()


# -- appending --------------------------------------------------------------------------------------------------------


def append_blocks(run: Transaction, row: PartitionRow, batch: PreparedBatch) -> None:
    """Write the blocks over a batch that begins at the partition's end."""
    cells, count, begin = batch.cells, batch.records, row.end
    size = block_records(batch.widest_bytes)
    blocks = []
    # A reader reads whole blocks, so a row of `sums` for each small append would make every later read dearer.
    if count < size and row.end > max(row.begin, row.summed):
        last = ChecksumBlock(*run.execute(_LAST_BLOCK, (row.id,)).fetchone() or (0,) * 8)
        if last.end == begin and last.gapless and last.records + count <= block_records(row.widest_bytes):
            sums, _ = add(last.sums, cells)
            run.execute(_EXTEND_BLOCK, (begin + count, last.records + count, *sums, row.id, last.end))
            return
    for (sums, records), start in zip(batch.sums or summed(cells, size), range(0, count, size), strict=True):
        blocks.append(ChecksumBlock(begin + start, begin + start + records, records, *sums, 0))
    run.executemany(_INSERT_BLOCK, [(row.id, *block) for block in blocks])


# -- reading ----------------------------------------------------------------------------------------------------------


def read_piece(run: Transaction, row: PartitionRow, position: int, limit: int) -> BlockPiece:
    """About `limit` records from `position` on, below the end; at least those of one block.

    Raises Corruption, naming the partition and offsets, if the bytes differ from the written ones.
    """
    if position < row.summed:
        return _read_old(run, row, position, limit)
    wanted = min(limit // BLOCK_RECORDS + 2, _BLOCKS_AT_ONCE)
    found = run.execute(_NEXT_BLOCKS, (row.id, position, wanted)).fetchall()
    blocks = _enough(_checked_chain(row, position, list(map(_make_block, found)), wanted), limit)
    select = _ROWS_WITH_HEADERS if row.has_headers else _ROWS
    rows = run.execute(select, (first_id(row.id), blocks[0].begin, blocks[-1].end)).fetchall()
    piece = _verified(row, blocks, rows)
    return piece if blocks[0].begin == position else _from(piece, position)


def read_blocks(run: Transaction, row: PartitionRow, start: int, stop: int) -> list[ChecksumBlock]:
    """The blocks that hold an offset of `start` to `stop` (exclusive); the range may be long."""
    found: list[ChecksumBlock] = []
    while not found or found[-1].end < stop:
        after = found[-1].end if found else start
        more = list(map(_make_block, run.execute(_NEXT_BLOCKS, (row.id, after, _BLOCKS_AT_ONCE))))
        found += _checked_chain(row, after, more, _BLOCKS_AT_ONCE)
    return [block for block in found if block.begin < stop]


def read_block(run: Transaction, row: PartitionRow, block: ChecksumBlock) -> BlockPiece:
    """The records of one block, checked."""
    select = _ROWS_WITH_HEADERS if row.has_headers else _ROWS
    rows = run.execute(select, (first_id(row.id), block.begin, block.end)).fetchall()
    return _verified(row, [block], rows)


def _enough(blocks: Sequence[ChecksumBlock], limit: int) -> list[ChecksumBlock]:
    """The first block, and the next ones as long as all together hold no more than `limit` records."""
    taken, records = [blocks[0]], blocks[0].records
    for block in blocks[1:]:
        records += block.records
        if records > limit:
            break
        taken.append(block)
    return taken


def _checked_chain(row: PartitionRow, position: int, blocks: list[ChecksumBlock], wanted: int) -> list[ChecksumBlock]:
    """The blocks, if they follow each other from `position` on; fewer blocks than wanted must reach the end."""
    at = position
    for number, block in enumerate(blocks):
        if not (block.begin <= at if number == 0 else block.begin == at) or not block.begin < block.end <= row.end:
            raise damaged(row.source, at, max(block.end, at + 1), "their checksums are those of other offsets")
        at = block.end
    if at < row.end and len(blocks) < wanted:
        raise damaged(row.source, at, row.end, "their checksums are gone")
    return blocks


def _verified(row: PartitionRow, blocks: Sequence[ChecksumBlock], rows: list[Any]) -> BlockPiece:
    columns = list(zip(*rows, strict=True)) if rows else [(), (), (), (), ()]
    offsets, cells = columns[0], Cells(columns[1], columns[2], columns[3], columns[4] if row.has_headers else None)
    size = at = 0
    for block in blocks:
        # By number where that fits, else by offset: a lost record must not put the blame on the blocks after it.
        stop = at + block.records
        if stop > len(offsets) or (block.records and offsets[stop - 1] >= block.end):
            stop = bisect_left(offsets, block.end, at)
        size += check(row.source, block, offsets[at:stop], cells.cut(at, stop))
        at = stop
    if at != len(offsets):
        raise damaged(
            row.source, blocks[0].begin, blocks[-1].end, f"{len(offsets) - at} more records than were written"
        )
    return BlockPiece(gapless(offsets), cells, size, blocks[-1].end, tuple(blocks))


def _from(piece: BlockPiece, position: int) -> BlockPiece:
    """The records from `position` on."""
    at = bisect_left(piece.offsets, position)
    return BlockPiece(piece.offsets[at:], piece.cells.cut(at, len(piece.offsets)), -1, piece.next_offset)


def _read_old(run: Transaction, row: PartitionRow, position: int, limit: int) -> BlockPiece:
    """Records of format 1, written without checksums."""
    select = _OLD_ROWS_WITH_HEADERS if row.has_headers else _OLD_ROWS
    rows = run.execute(select, (first_id(row.id), position, row.summed, limit)).fetchall()
    columns: list[Any] = list(zip(*rows, strict=True)) if rows else [(), (), (), (), ()]
    cells = Cells(columns[1], columns[2], columns[3], columns[4] if row.has_headers else None)
    done = row.summed if len(rows) < limit else columns[0][-1] + 1
    return BlockPiece(gapless(columns[0]), cells, -1, done)


# -- removing ---------------------------------------------------------------------------------------------------------


class BlocksChanged(Exception):
    """A block has changed since it was read. The transaction must be rolled back, since it has deleted other blocks."""


def replace_blocks(
    run: Transaction, partition_id: int, old: Sequence[ChecksumBlock], new: Sequence[ChecksumBlock]
) -> None:
    """Replace the `old` blocks by the `new` ones. Raises BlocksChanged, so that the transaction is rolled back."""
    # The statement names every column: a block that a writer extended or another process replaced matches no row.
    done = run.executemany(_DELETE_BLOCK, [(partition_id, *block) for block in old]).rowcount if old else 0
    if done != len(old):
        raise BlocksChanged
    run.executemany(_INSERT_BLOCK, [(partition_id, *block) for block in new])


def trim_block(run: Transaction, row: PartitionRow, begin: int) -> None:
    """Shorten the block that `begin` cuts through, before the records below `begin` are removed."""
    found = run.execute(_NEXT_BLOCKS, (row.id, begin, 1)).fetchone()
    if begin < row.summed or found is None or found[0] >= begin:
        return
    block = ChecksumBlock(*found)
    select = _ROWS_WITH_HEADERS if row.has_headers else _ROWS
    rows = run.execute(select, (first_id(row.id), block.begin, block.end)).fetchall()
    spoilt = 0
    try:
        _verified(row, [block], rows)
    except Corruption:
        spoilt = 1  # new sums over damaged records would declare the rest of them whole
    left = [one for one in rows if one[0] >= begin]
    columns = list(zip(*left, strict=True)) if left else [(), (), (), (), ()]
    cells = Cells(columns[1], columns[2], columns[3], columns[4] if row.has_headers else None)
    sums, _ = add(Sums(), cells)
    trimmed = block_of(begin, block.end, columns[0], sums._replace(keys=sums.keys ^ spoilt))
    replace_blocks(run, row.id, [block], [trimmed])
