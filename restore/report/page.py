"""The report of a verify as one HTML page: verdict, a picture, a table of partitions, the first differences.

Rules of this file: pure; text in, text out, of the parts in `parts.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from standfast.restore.report.parts import (
    COUNTS,
    Column,
    bars,
    differences,
    document,
    notes,
    skipped_text,
    table,
    tiles,
)

WRONG = ("missing", "extra", "different", "stale")


def page(summary: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> str:
    """The page for a summary document; each difference has store, partition, row, key, log, store_row."""
    rows: Sequence[Mapping[str, Any]] = summary["stores"]
    wrong = sum(row[name] for row in rows for name in WRONG)
    body = [
        f'<p class="told">{_told(summary)}</p>',
        tiles(
            [
                (f"{len({row['store'] for row in rows}):,}", "stores"),
                (f"{len(rows):,}", "partitions"),
                (f"{sum(row['records'] for row in rows):,}", "records read"),
                (f"{sum(row['matched'] for row in rows):,}", "rows matched"),
                (f"{wrong:,}", "rows wrong"),
                (f"{summary['elapsed_ms'] / 1000:,.1f} s", "took"),
            ]
        ),
        "<h2>Rows by verdict</h2>",
        bars([(f"{row['store']}-{row['partition']}", row) for row in rows]),
        "<h2>Stores and partitions</h2>",
        partitions(rows),
        notes([f"{row['store']}-{row['partition']}: {row['explanation']}" for row in rows if row["explanation"]]),
        notes([skipped_text(f"{row['store']}-{row['partition']}", row["skipped"]) for row in rows if row["skipped"]]),
        differences(found, wrong),
    ]
    return document(
        f"standfast verify: {summary['app']}", str(summary["verdict"]), body, summary.get("indeterminate", 0)
    )


def partitions(rows: Sequence[Mapping[str, Any]]) -> str:
    """Tables of verified partitions: verdicts with counts, and digests."""
    numbers = ("partition", "position", "end", "records", *COUNTS)
    columns = [Column("store"), Column("kind"), Column("verdict", "verdict")]
    columns += [Column(name, "number") for name in numbers]
    names = ("store", "kind", "verdict", *numbers)
    # Digests are long: beside the counts they would stand outside of most screens.
    digests = [Column("store"), Column("partition", "number"), Column("digest of the log", "digest")]
    digests += [Column("of the store", "digest")]
    cells = [[row[name] for name in ("store", "partition", "log_digest", "store_digest")] for row in rows]
    return table(columns, [[row[name] for name in names] for row in rows]) + table(digests, cells)


def _told(summary: Mapping[str, Any]) -> str:
    said = f"Log {summary['log']}, source {summary['source']}"
    return escape(said + (f", a sample of {summary['sample']:.2%} of the keys" if summary["sample"] < 1 else ""))
