"""Records as rows of the embedded log: row ids, header bytes, and the fast way in and out.

    row id     partition id << 40 | offset
    headers    NULL if there are none, else per header: key length u16, key UTF-8, value length i32 (-1 = None), value
               (little endian)

Rules of this file: no I/O of its own and no sqlite3; it makes and takes tuples. It must not know of locks, topic
policies or groups.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from standfast.replication.checks import check_bytes, check_timestamps
from standfast.replication.columns import RecordColumns
from standfast.replication.embedded.sums import Cells, Sums, block_records, summed
from standfast.replication.log import Headers, Outgoing
from standfast.replication.offsets import TopicPartition
from standfast.store.errors import Corruption, InvalidRequest
from standfast.store.value_timestamp import RowChanges

# One integer per record: SQLite's row id is the B-tree's own key, so offsets need neither an index nor a column.
OFFSET_BITS = 40
OFFSET_MAX = 1 << OFFSET_BITS
PARTITION_ID_MAX = 1 << (63 - OFFSET_BITS)
RECORD_BYTES_MAX = 256 << 20
LEAST_TIMESTAMP_MS = 0

# Rows per INSERT: 50 at once is 1.4 times as fast as one, more gain nothing.
_INSERT_ROWS = (50, 10, 1)
_KEY_HEAD = struct.Struct("<H")
_VALUE_HEAD = struct.Struct("<i")

SELECT_FIRST_AT = (
    "SELECT id - ?1 FROM log_records WHERE id >= ?1 + ?2 AND id < ?1 + ?3 AND timestamp >= ?4 ORDER BY id LIMIT 1"
)


class PreparedBatch(NamedTuple):
    """A checked batch: `flat` holds each record's timestamp, key, value (and header bytes if `width` is 4) in turn.

    `cells` has the same by column; `sums` has the sums of its blocks, and is empty for less than a block.
    """

    flat: list[Any]
    width: int
    records: int
    widest_bytes: int
    keyless: bool
    cells: Cells
    sums: list[tuple[Sums, int]]


def first_id(partition_id: int) -> int:
    """Row id of the partition's offset 0."""
    return partition_id << OFFSET_BITS


def prepare(source: TopicPartition, batch: Sequence[Outgoing]) -> PreparedBatch:
    """Check a batch before anything is locked or written. Raises InvalidRequest naming partition and record."""
    if not len(batch):
        return PreparedBatch([], 3, 0, 0, False, Cells((), (), ()), [])
    try:
        columns: list[Any] = list(batch.columns() if isinstance(batch, RowChanges) else zip(*batch, strict=True))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{source}: records of one batch need equal shape ({error})") from error
    if len(columns) not in (3, 4):
        raise InvalidRequest(f"{source}: a record is (key, value, timestamp, headers), got {len(columns)} parts")
    keys, values, timestamps = columns[:3]
    check_bytes(source, "key", keys)
    check_bytes(source, "value", values)
    check_timestamps(source, timestamps, LEAST_TIMESTAMP_MS)
    widest_bytes = _widest(keys) + _widest(values)
    flat: Iterable[Any] = zip(timestamps, keys, values, strict=True)
    cells = Cells(timestamps, keys, values)
    width = 3
    if len(columns) == 4 and any(columns[3]):
        packed = [_pack(source, index, headers) for index, headers in enumerate(columns[3])]
        widest_bytes += _widest(packed)
        flat = zip(timestamps, keys, values, packed, strict=True)
        cells = Cells(timestamps, keys, values, packed)
        width = 4
    if widest_bytes > RECORD_BYTES_MAX:
        raise InvalidRequest(
            f"{source}: the batch has a record of up to {widest_bytes} bytes, the limit is {RECORD_BYTES_MAX}: split it"
        )
    size = block_records(widest_bytes)
    # Less than a block may extend the partition's last block, whose sums only the transaction knows.
    sums = summed(cells, size) if len(batch) >= size else []
    return PreparedBatch(list(chain.from_iterable(flat)), width, len(batch), widest_bytes, None in keys, cells, sums)


def insert(execute: Callable[[str, Sequence[Any]], object], row_id: int, prepared: PreparedBatch) -> None:
    """Write the batch at consecutive row ids from `row_id`."""
    cells, width = prepared.flat, prepared.width
    done = 0
    for rows in _INSERT_ROWS:
        statement = _insert_statement(rows, width)
        while prepared.records - done >= rows:
            execute(statement, [row_id + done, *cells[done * width : (done + rows) * width]])
            done += rows


@cache
def _insert_statement(rows: int, width: int) -> str:
    columns = "id, timestamp, key, value" + (", headers" if width == 4 else "")
    places = [
        f"(?1+{row}," + ",".join(f"?{2 + row * width + cell}" for cell in range(width)) + ")" for row in range(rows)
    ]
    return f"INSERT INTO log_records ({columns}) VALUES {','.join(places)}"  # noqa: S608  names of this file only


def record_columns(offsets: Sequence[int], cells: Cells, payload_bytes: int) -> RecordColumns:
    """Records by column: measured, one Record object each would take a fifth of the reading time."""
    headers = None if cells.headers is None else [unpack_headers(one) if one else () for one in cells.headers]
    return RecordColumns(offsets, cells.timestamps, cells.keys, cells.values, headers, payload_bytes)


def pack_headers(headers: Headers) -> bytes | None:
    """Header bytes, None if there are no headers. Raises TypeError or ValueError for a value that is no header."""
    parts: list[bytes | bytearray | memoryview] = []
    for key, value in headers:
        name = str.encode(key)
        parts += (_KEY_HEAD.pack(len(name)), name)
        if value is None:
            parts.append(_VALUE_HEAD.pack(-1))
        elif isinstance(value, bytes | bytearray | memoryview):
            parts += (_VALUE_HEAD.pack(len(value)), value)
        else:
            raise TypeError(f"header {key!r} has a value of type {type(value).__name__}, not bytes")
    return b"".join(parts) or None


def unpack_headers(packed: bytes) -> Headers:
    """Inverse of pack_headers. Raises Corruption for bytes that pack_headers cannot have written."""
    headers: list[tuple[str, bytes | None]] = []
    at = 0
    try:
        while at < len(packed):
            (length,) = _KEY_HEAD.unpack_from(packed, at)
            at += _KEY_HEAD.size
            key = packed[at : at + length].decode()
            at += length
            (length,) = _VALUE_HEAD.unpack_from(packed, at)
            at += _VALUE_HEAD.size
            value = None if length < 0 else packed[at : at + length]
            at += max(length, 0)
            headers.append((key, value))
    except (struct.error, UnicodeDecodeError) as error:
        raise Corruption(f"record headers in the log are damaged at byte {at} ({error})") from error
    if at != len(packed):
        raise Corruption(f"record headers in the log are damaged: they end at byte {len(packed)}, not {at}")
    return tuple(headers)


def _pack(source: TopicPartition, index: int, headers: Headers) -> bytes | None:
    try:
        return pack_headers(headers)
    except (TypeError, ValueError, struct.error) as error:
        raise InvalidRequest(f"{source}: record {index} of the batch has bad headers ({error})") from error


def _widest(column: Iterable[Any]) -> int:
    return max(map(len, filter(None, column)), default=0)
