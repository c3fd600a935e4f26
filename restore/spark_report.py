"""The report of a verify or a pipeline, three files in one folder: for programs, for a closer look, for people.

    summary.json           counts, verdicts, digests, offsets of every partition
    differences.parquet    every difference that was kept, with hashes, offsets, and values where asked for
    report.html            a page that is whole by itself

Rules of this file: writes what it is given; summary.json comes last, so that who waits for it finds the others.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import parquet

from standfast.restore.pipeline_html import pipeline_page
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

Rows: TypeAlias = Sequence[tuple[str, int, Found]]
MakePage: TypeAlias = Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]]], str]


def write_report(folder: Folder, summary: Mapping[str, Any], rows: Rows, *, values: bool) -> None:
    """Write all three; files of an earlier report are replaced. `values`: keep values, not only their hashes."""
    _write(folder, summary, rows, page, values=values)


def write_pipeline_report(folder: Folder, summary: Mapping[str, Any], rows: Rows, *, values: bool) -> None:
    """The same three files of a pipeline, over all its stores."""
    _write(folder, summary, rows, pipeline_page, values=values)


def _write(folder: Folder, summary: Mapping[str, Any], rows: Rows, make_page: MakePage, *, values: bool) -> None:
    folder.make()
    with tempfile.TemporaryDirectory(prefix="standfast-report-") as scratch:
        path = Path(scratch) / DIFFERENCES
        parquet.write_table(differences_table(rows, values=values), path)
        folder.put(path, DIFFERENCES)
    shown = [
        {"store": store, "partition": number, "row": one.kind, "key": one.key, "log": one.log, "store_row": one.store}
        for store, number, one in rows[:PAGE_ROWS]
    ]
    folder.write(PAGE, make_page(summary, shown).encode())
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
