"""Spark's steps between the source and a task (prepare, hash, sort), for tests of the folds themselves.

Rules of this file: plain Python over the same batches; no Spark is started.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from standfast.replication.log import Record
from standfast.restore.digest import row_hash
from standfast.restore.spark.batches import TICKET, StoreShape, prepare, record_batch
from standfast.restore.spark.rows import HASH


def sorted_batches(
    shape: StoreShape, partition: int, records: Sequence[Record], rows: int = 7
) -> Iterator[pa.RecordBatch]:
    """Records of a partition as a task receives them, in batches of a few rows."""
    (only,) = sorted_buckets(shape, partition, [records], rows).values()
    yield from only


def sorted_buckets(
    shape: StoreShape, partition: int, pieces: Sequence[Sequence[Record]], rows: int = 7
) -> dict[int, list[pa.RecordBatch]]:
    """Records of a partition's pieces as the task of each bucket receives them, by ticket."""
    prepared: list[dict[str, Any]] = []
    for records in pieces:
        batches = [record_batch(partition, records[at : at + rows]) for at in range(0, len(records), rows)]
        prepared += pa.Table.from_batches(list(prepare(batches, shape, partition)), schema=shape.schema).to_pylist()
    by_ticket: dict[int, list[dict[str, Any]]] = {}
    for row in prepared:
        by_ticket.setdefault(row.pop(TICKET, 0), []).append(row)
    return {ticket: list(_sorted(shape, own, rows)) for ticket, own in by_ticket.items()}


def _sorted(shape: StoreShape, prepared: list[dict[str, Any]], rows: int) -> Iterator[pa.RecordBatch]:
    newest_first = shape.definition["kind"] != "versioned"
    prepared.sort(
        key=lambda row: (row["key"] is not None, row["key"] or b"", -row["offset"] if newest_first else row["offset"])
    )
    stamped = shape.definition["timestamped"]
    for row in prepared:
        hashed = row_hash(row["key"] or b"", row["timestamp"] if stamped else -1, row["value"] or b"")
        row[HASH] = hashed - (1 << 64) if hashed >= 1 << 63 else hashed
    plain = StoreShape(shape.name, shape.definition).schema
    schema = plain.append(pa.field(HASH, pa.int64()))
    for at in range(0, len(prepared), rows):
        yield pa.RecordBatch.from_pylist(prepared[at : at + rows], schema=schema)
