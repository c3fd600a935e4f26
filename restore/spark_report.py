"""The report of a verify, three files in one folder: for programs, for a closer look, for people.

    summary.json           counts, verdicts, digests, offsets of every partition
    differences.parquet    every difference that was kept, with hashes, offsets, and values where asked for
    report.html            a page that is whole by itself

Rules of this file: writes what it is given; summary.json comes last, so that who waits for it finds the others.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from standfast.restore.report_html import page
from standfast.restore.spark_folder import Folder
from standfast.restore.spark_merge import Found
from standfast.restore.spark_verify import found_hash

SUMMARY, DIFFERENCES, PAGE = "summary.json", "differences.parquet", "report.html"
PAGE_ROWS = 200
VALUE_BYTES = 4_096  # of a value that is kept in differences.parquet
COLUMNS = pa.schema(
    [
        ("store", pa.string()),
        ("partition", pa.int32()),
        ("row", pa.string()),
        ("key", pa.binary()),
        ("log_timestamp", pa.int64()),
        ("log_hash", pa.uint64()),
        ("log_offset", pa.int64()),
        ("store_timestamp", pa.int64()),
        ("store_hash", pa.uint64()),
        ("log_value", pa.binary()),
        ("store_value", pa.binary()),
    ]
)

Rows = Sequence[tuple[str, int, Found]]


def write_report(folder: Folder, summary: Mapping[str, Any], rows: Rows, *, values: bool) -> None:
    """Write all three; files of an earlier report are replaced. `values`: keep values, not only their hashes."""
    folder.make()
    with tempfile.TemporaryDirectory(prefix="standfast-report-") as scratch:
        path = Path(scratch) / DIFFERENCES
        parquet.write_table(differences_table(rows, values=values), path)
        folder.put(path, DIFFERENCES)
    shown = [
        {"store": store, "partition": number, "row": one.kind, "key": one.key, "log": one.log, "store_row": one.store}
        for store, number, one in rows[:PAGE_ROWS]
    ]
    folder.write(PAGE, page(summary, shown).encode())
    folder.write(SUMMARY, (json.dumps(summary, indent=1) + "\n").encode())


def differences_table(rows: Rows, *, values: bool) -> pa.Table:
    """Differences as a table; values are null unless asked for, and cut."""

    def value(side: tuple[int, bytes] | None) -> bytes | None:
        return side[1][:VALUE_BYTES] if values and side is not None else None

    cells = [
        {
            "store": store,
            "partition": number,
            "row": one.kind,
            "key": one.key,
            "log_timestamp": None if one.log is None else one.log[0],
            "log_hash": found_hash(one.key, one.log),
            "log_offset": None if one.offset < 0 else one.offset,
            "store_timestamp": None if one.store is None else one.store[0],
            "store_hash": found_hash(one.key, one.store),
            "log_value": value(one.log),
            "store_value": value(one.store),
        }
        for store, number, one in rows
    ]
    return pa.Table.from_pylist(cells, schema=COLUMNS)
