"""The report of a verify or a pipeline, three files in one folder: for programs, for a closer look, for people.

    summary.json           counts, verdicts, digests, offsets of every partition
    differences.parquet    every kept difference: hashes, sizes, offsets, and cut values if requested
    report.html            a self-contained page

Rules of this file: it writes the given results; summary.json comes last, so that a program that waits for it finds the
others.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from pyarrow import parquet

from standfast.restore.compare import UnequalRow
from standfast.restore.report.text import key_text
from standfast.restore.spark.folder import Folder

SUMMARY, DIFFERENCES, PAGE = "summary.json", "differences.parquet", "report.html"
PAGE_ROWS = 200  # a page for people; the table has all kept rows
COLUMNS = pa.schema(
    [
        ("store", pa.string()),
        ("partition", pa.int32()),
        ("row", pa.string()),
        ("key", pa.binary()),
        ("log_timestamp", pa.int64()),
        ("log_value_bytes", pa.int64()),
        ("log_hash", pa.uint64()),
        ("log_offset", pa.int64()),
        ("store_timestamp", pa.int64()),
        ("store_value_bytes", pa.int64()),
        ("store_hash", pa.uint64()),
        ("log_value", pa.binary()),
        ("store_value", pa.binary()),
    ]
)

Rows: TypeAlias = Sequence[tuple[str, int, UnequalRow]]
MakePage: TypeAlias = Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]]], str]


def write_report(folder: Folder, summary: Mapping[str, Any], rows: Rows) -> None:
    """Write the three files; those of an earlier report are replaced."""
    from standfast.restore.report.page import page  # needs Jinja2, which tasks must not

    _write(folder, summary, rows, page)


def write_pipeline_report(folder: Folder, summary: Mapping[str, Any], rows: Rows) -> None:
    """Write the same three files for a pipeline, over all its stores."""
    from standfast.restore.report.page import pipeline_page

    _write(folder, summary, rows, pipeline_page)


def _write(folder: Folder, summary: Mapping[str, Any], rows: Rows, make_page: MakePage) -> None:
    folder.make()
    with tempfile.TemporaryDirectory(prefix="standfast-report-") as scratch:
        path = Path(scratch) / DIFFERENCES
        parquet.write_table(differences_table(rows), path)
        folder.put(path, DIFFERENCES)
    kinds = {one["store"]: one["kind"] for one in summary["stores"]}
    shown = [
        {
            "store": store,
            "partition": number,
            "row": one.kind,
            "key": key_text(kinds[store], one.key),
            "log": one.log,
            "store_row": one.store,
        }
        for store, number, one in rows[:PAGE_ROWS]
    ]
    folder.write(PAGE, make_page(summary, shown).encode())
    # Last: a program that waits for it finds the other files complete.
    folder.write(SUMMARY, (json.dumps(summary, indent=1) + "\n").encode())


def differences_table(rows: Rows) -> pa.Table:
    """Differences as a table; values are null unless the verify kept them."""
    cells = []
    for store, number, one in rows:
        cell: dict[str, Any] = {"store": store, "partition": number, "row": one.kind, "key": one.key}
        cell["log_offset"] = None if one.offset < 0 else one.offset
        for name, side in (("log", one.log), ("store", one.store)):
            if side is not None:
                cell |= {
                    f"{name}_timestamp": side.timestamp,
                    f"{name}_value_bytes": side.value_bytes,
                    f"{name}_hash": side.hash,
                    f"{name}_value": side.value,
                }
        cells.append(cell)
    return pa.Table.from_pylist(cells, schema=COLUMNS)
