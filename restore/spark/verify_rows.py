"""Rows that a task of a verify returns to the driver: one with counts and digests, and one for each wrong row.

    summary     facts of the partition, matched, counts by verdict, digests, as JSON
    answer      the rebuild's answer of a task that rebuilds as well, as JSON
    otherwise   a wrong row: key, and of each side time, size, hash, and the first bytes of its value if requested

Rules of this file: to Arrow and back, nothing else. `merge.Settings` bounds the wrong rows that a task keeps.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa

from standfast.restore.compare import ComparisonOutcome, RowSide, UnequalRow
from standfast.restore.digest import Digest
from standfast.restore.spark.batches import PartitionFacts, ddl
from standfast.restore.verdict import RowVerdict

FOUND_ROWS = 1_000  # differences in one batch
SIDES = ("log", "store")
# One schema for all kinds of rows, since a `mapInArrow` has only one.
OUT = pa.schema(
    [
        ("partition", pa.int32()),
        ("summary", pa.string()),
        ("answer", pa.string()),
        ("kind", pa.string()),
        ("key", pa.binary()),
        ("offset", pa.int64()),
        *(
            (f"{side}_{name}", kind)
            for side in SIDES
            for name, kind in (
                ("timestamp", pa.int64()),
                ("value", pa.binary()),
                ("bytes", pa.int64()),
                ("hash", pa.int64()),
            )
        ),
    ]
)
OUT_DDL = ddl(OUT)
_UNSIGNED = 1 << 64


def answer_batch(partition: int, answer: str) -> pa.RecordBatch:
    """The row with a rebuild's answer for a partition."""
    cells: dict[str, list[Any]] = {name: [None] for name in OUT.names}
    return pa.RecordBatch.from_pydict(cells | {"partition": [partition], "answer": [answer]}, schema=OUT)


def summary_batch(facts: PartitionFacts, outcome: ComparisonOutcome) -> pa.RecordBatch:
    """The summary row of a partition."""
    summary = {
        "facts": asdict(facts),
        "matched": outcome.matched,
        "counts": outcome.counts,
        "log_digest": outcome.log_digest.hex(),
        "store_digest": outcome.store_digest.hex(),
        "beyond": outcome.beyond,
    }
    cells: dict[str, list[Any]] = {name: [None] for name in OUT.names}
    cells |= {"partition": [facts.partition], "summary": [json.dumps(summary)]}
    return pa.RecordBatch.from_pydict(cells, schema=OUT)


def load_summary(text: str) -> tuple[PartitionFacts, ComparisonOutcome]:
    """Inverse of summary_batch; wrong rows have batches of their own."""
    summary = json.loads(text)
    counts: dict[RowVerdict, int] = summary["counts"]
    digests = Digest.from_hex(summary["log_digest"]), Digest.from_hex(summary["store_digest"])
    return PartitionFacts.of(summary["facts"]), ComparisonOutcome(
        summary["matched"], counts, [], *digests, beyond=summary["beyond"]
    )


def found_batch(partition: int, found: Sequence[UnequalRow]) -> pa.RecordBatch:
    """Wrong rows as a batch."""
    cells: dict[str, list[Any]] = {
        "partition": [partition] * len(found),
        "summary": [None] * len(found),
        "answer": [None] * len(found),
        "kind": [one.kind for one in found],
        "key": [one.key for one in found],
        "offset": [one.offset for one in found],
    }
    for name in SIDES:
        sides: list[RowSide | None] = [getattr(one, name) for one in found]
        cells[f"{name}_timestamp"] = [None if one is None else one.timestamp for one in sides]
        cells[f"{name}_value"] = [None if one is None else one.value for one in sides]
        cells[f"{name}_bytes"] = [None if one is None else one.value_bytes for one in sides]
        cells[f"{name}_hash"] = [None if one is None else _signed(one.hash) for one in sides]
    return pa.RecordBatch.from_pydict(cells, schema=OUT)


def load_found(row: Any) -> UnequalRow:
    """One row of `found_batch`, as returned by Spark."""
    # Spark 4.0 gives binary cells as bytearray.
    return UnequalRow(row.kind, bytes(row.key), _side(row, "log"), _side(row, "store"), row.offset)


def added_up(parts: Sequence[tuple[PartitionFacts, ComparisonOutcome]]) -> tuple[PartitionFacts, ComparisonOutcome]:
    """A partition from its buckets, without the wrong rows, which have batches of their own."""
    facts, first = parts[0]
    if len(parts) == 1:
        return facts, first
    total = ComparisonOutcome()
    for _, one in parts:
        total.matched += one.matched
        total.beyond += one.beyond
        total.log_digest += one.log_digest
        total.store_digest += one.store_digest
        for verdict, count in one.counts.items():
            total.counts[verdict] = total.counts.get(verdict, 0) + count
    # Every bucket has the facts of the whole partition, but counts only the refused records of its own keys.
    return replace(facts, bucket=0, refused=sum(one.refused for one, _ in parts)), total


def _side(row: Any, name: str) -> RowSide | None:
    timestamp, value = row[f"{name}_timestamp"], row[f"{name}_value"]
    if timestamp is None:
        return None
    kept = None if value is None else bytes(value)  # a bytearray in Spark 4.0
    return RowSide(timestamp, kept, row[f"{name}_bytes"], row[f"{name}_hash"] % _UNSIGNED)


def _signed(number: int) -> int:
    """A 64-bit hash as a signed number: Spark has no unsigned ones."""
    return number - _UNSIGNED if number >= _UNSIGNED >> 1 else number
