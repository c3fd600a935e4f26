"""The report of a pipeline as one HTML page over all stores: what the logs hold, what was rebuilt, what was verified.

Rules of this file: pure; text in, text out, of the parts in `parts.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from standfast.restore.report.page import WRONG, partitions
from standfast.restore.report.parts import (
    Column,
    bars,
    differences,
    document,
    notes,
    size_text,
    skipped_text,
    table,
    tiles,
)

LOOKED_AT = {
    "state": "Verified is the state at rest in {}.",
    "snapshot": "Verified is the snapshot {}.",
    "log": "There was only the log: verified are the rebuilt files.",
}


def pipeline_page(summary: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> str:
    """The page for a summary document; each difference has store, partition, row, key, log, store_row."""
    stores: Sequence[Mapping[str, Any]] = summary["stores"]
    body = [
        f'<p class="told">{escape(_told(summary))}</p>',
        tiles(_tiles(summary)),
        "<h2>Rows by verdict</h2>",
        bars([(one["store"], one) for one in stores]),
        "<h2>Stores</h2>",
        _stores(stores),
        notes([line for one in stores for line in _notes(one)]),
        "<h2>Partitions</h2>",
        *(_details(one) for one in stores),
        differences(found, summary["differences"]),
    ]
    return document(
        f"standfast pipeline: {summary['app']}", str(summary["verdict"]), body, summary.get("indeterminate", 0)
    )


def _told(summary: Mapping[str, Any]) -> str:
    said = LOOKED_AT[summary["looked_at"]].format(summary["state"])
    said += f" Log {summary['log']}, source {summary['source']}, Spark {summary['spark']}"
    if summary["master"]:
        said += f" at {summary['master']}"
    return f"{said}. Written {_time(summary['ended_ms'])}."


def _tiles(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    rebuilt = [one["rebuilt"] for one in summary["stores"] if one["rebuilt"] is not None]
    return [
        (f"{len(summary['stores']):,}", "stores"),
        (f"{summary['records']:,}", "changelog records"),
        (f"{sum(one['rows'] for one in rebuilt):,}", "rows rebuilt"),
        (size_text(sum(one["bytes"] for one in rebuilt)), "of rebuilt files"),
        (f"{summary['rows']:,}", "rows matched"),
        (f"{summary['differences']:,}", "rows wrong"),
        (f"{summary['elapsed_ms'] / 1000:,.1f} s", "took"),
    ]


def _stores(stores: Sequence[Mapping[str, Any]]) -> str:
    columns = [Column("store"), Column("kind"), Column("verdict", "verdict")]
    heads = ("records", "deletes", "keys, about", "bytes", "rows rebuilt", "files", "matched", "wrong", "untold")
    columns += [Column(head, "number") for head in heads]
    columns += [Column("rebuilt = stored"), Column("seconds", "number")]
    rows = []
    for one in stores:
        made = one["rebuilt"]
        parts = one["inspected"]
        rows.append(
            (
                *(one[name] for name in ("store", "kind", "verdict")),
                *(sum(part[name] for part in parts) for name in ("records", "tombstones", "keys")),
                size_text(sum(part["bytes"] for part in parts)),
                *((None, None) if made is None else (made["rows"], made["files"])),
                one["matched"],
                sum(one[name] for name in WRONG),
                one["indeterminate"],
                _same(one),
                f"{((made or {}).get('elapsed_ms', 0) + one['verify_ms']) / 1000:.1f}",
            )
        )
    return table(columns, rows)


def _same(store: Mapping[str, Any]) -> str:
    """In how many partitions the digests of rebuilt and stored rows at one offset are the same."""
    asked, unequal = len(store["same_position"]), len(store["rebuilt_differs"])
    if not asked:
        return "at other offsets"
    return f"{asked - unequal} of {asked}"


def _notes(store: Mapping[str, Any]) -> list[str]:
    found = []
    if store["rebuild_left_out"]:
        found.append(f"{store['store']} was not rebuilt: {store['rebuild_left_out']}")
    if store["rebuilt_differs"]:
        numbers = ", ".join(map(str, store["rebuilt_differs"]))
        found.append(f"{store['store']}: rebuilt and stored rows of partition {numbers} differ at one offset")
    made = store["rebuilt"]
    if made is not None:
        found += [f"{store['store']}: {line}" for line in made["warnings"]]
        if made["kept"]:
            found.append(f"{store['store']}: rebuilt by an earlier run, which was cut short")
    for one in store["verified"]:
        name = f"{one['store']}-{one['partition']}"
        found += [f"{name}: {one['explanation']}"] if one["explanation"] else []
        found += [skipped_text(name, one["skipped"])] if one["skipped"] else []
    return found


def _details(store: Mapping[str, Any]) -> str:
    opened = "" if store["verdict"] == "equal" else " open"
    parts = [f"<details{opened}><summary>{escape(store['store'])} ({escape(store['topic'])})</summary>"]
    numbers = ("partition", "begin", "end", "records", "gaps", "tombstones", "keys", "bytes", "value_max_bytes")
    heads = [Column("keys, about" if name == "keys" else name.replace("_", " "), "number") for name in numbers]
    rows = [
        [*(one[name] for name in numbers), _time(one["first_ms"]), _time(one["last_ms"])] for one in store["inspected"]
    ]
    if rows:
        parts += ["<h3>Changelog</h3>", table([*heads, Column("first record of"), Column("last record of")], rows)]
    if store["rebuilt"] is not None:
        names = (
            "partition",
            "end",
            "converge_offset",
            "rows",
            "tombstones",
            "superseded",
            "expired",
            "skipped",
            "bytes",
        )
        heads = [Column(name.replace("_", " "), "number") for name in names]
        cells = [[*(one[name] for name in names), one["digest"]] for one in store["rebuilt"]["partitions"]]
        parts += [f"<h3>Rebuilt in {escape(store['rebuilt']['folder'])}</h3>"]
        parts += [table([*heads, Column("digest", "digest")], cells)]
    parts += ["<h3>Verified</h3>", partitions(store["verified"]), "</details>"]
    return "".join(parts)


def _time(at_ms: int | None) -> str:
    """UTC, or nothing."""
    if at_ms is None:
        return ""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return str(at_ms)  # a time that an application made up
