"""The report of a verify as one HTML page: verdict, a picture, a table of partitions, the first differences.

Rules of this file: pure; text in, text out. The page is whole by itself (no script, no file beside it), fits light and
dark screens and paper, and shows bytes as text where they are text and else in hex. Everything from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

COLOURS = {
    "matched": "#2e7d52",
    "indeterminate": "#b8860b",
    "missing": "#c0392b",
    "extra": "#8e44ad",
    "different": "#d35400",
    "stale": "#7f3b08",
}
WORDS = {"equal": "#2e7d52", "different": "#c0392b", "inconclusive": "#b8860b"}
BAR_WIDTH, BAR_HEIGHT, ROW_HEIGHT, LABEL_WIDTH = 560, 16, 26, 190
SHOWN_BYTES = 120
STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem} h2{font-size:1.1rem;margin-top:2rem}
.verdict{display:inline-block;padding:.1rem .7rem;border-radius:.4rem;color:#fff}
table{border-collapse:collapse;font-size:.85rem} .wide{overflow-x:auto}
th,td{padding:.25rem .6rem;border-bottom:1px solid #8884;text-align:left;vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums} code{font-size:.8rem;word-break:break-all}
svg text{font:12px system-ui,sans-serif;fill:currentColor} .key span{margin-right:1rem}
.key i{display:inline-block;width:.8em;height:.8em;margin-right:.3em}
"""


def page(summary: Mapping[str, Any], differences: Sequence[Mapping[str, Any]]) -> str:
    """The page for a summary document; each difference has store, partition, row, key, log, store_row."""
    verdict = str(summary["verdict"])
    rows: Sequence[Mapping[str, Any]] = summary["stores"]
    title = f"standfast verify: {summary['app']}"
    return "\n".join(
        [
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<style>{STYLE}</style></head><body>",
            f'<h1>{escape(title)} <span class="verdict" style="background:{WORDS[verdict]}">{verdict}</span></h1>',
            f"<p>{escape(_told(summary, rows))}</p>",
            "<h2>Rows by verdict</h2>",
            _picture(rows),
            "<h2>Stores and partitions</h2>",
            _table(rows),
            _explanations(rows),
            f"<h2>Differences{_of(summary, differences)}</h2>",
            _differences(differences),
            "</body></html>",
            "",
        ]
    )


def shown(raw: bytes) -> str:
    """Bytes for people: text where they are text, else hex; long ones are cut."""
    cut = raw[:SHOWN_BYTES]
    try:
        text = cut.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if not text.isprintable() or (raw and not text):
        text = "0x" + cut.hex()
    return text + ("…" if len(raw) > SHOWN_BYTES else "")


def _told(summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    records = sum(row["records"] for row in rows)
    matched = sum(row["matched"] for row in rows)
    stores = len({row["store"] for row in rows})
    said = f"{len(rows)} partitions of {stores} stores, {records:,} records, {matched:,} rows "
    said += f"matched, in {summary['elapsed_ms'] / 1000:.1f} s. Log {summary['log']}, source {summary['source']}"
    return said + (f", a sample of {summary['sample']:.2%} of the keys." if summary["sample"] < 1 else ".")


def _of(summary: Mapping[str, Any], differences: Sequence[Mapping[str, Any]]) -> str:
    total = sum(row[count] for row in summary["stores"] for count in ("missing", "extra", "different", "stale"))
    return f" (the first {len(differences)} of {total})" if total > len(differences) else f" ({total})"


def _picture(rows: Sequence[Mapping[str, Any]]) -> str:
    """A bar for each partition; a share that is not zero is never thinner than three pixels."""
    parts = []
    for index, row in enumerate(rows):
        top = index * ROW_HEIGHT
        label = escape(f"{row['store']}-{row['partition']}")
        parts.append(f'<text x="{LABEL_WIDTH - 8}" y="{top + 13}" text-anchor="end">{label}</text>')
        total = sum(row[name] for name in COLOURS) or 1
        widths = {name: max(3.0, BAR_WIDTH * row[name] / total) if row[name] else 0.0 for name in COLOURS}
        scale = BAR_WIDTH / max(sum(widths.values()), 1.0) if any(widths.values()) else 0.0
        left = float(LABEL_WIDTH)
        for name, width in widths.items():
            if width:
                drawn = width * min(scale, 1.0)
                told = escape(f"{name}: {row[name]:,}")
                parts.append(
                    f'<rect x="{left:.1f}" y="{top}" width="{drawn:.1f}" height="{BAR_HEIGHT}" fill="{COLOURS[name]}">'
                    f"<title>{told}</title></rect>"
                )
                left += drawn
        if not any(widths.values()):
            parts.append(f'<text x="{LABEL_WIDTH}" y="{top + 13}">no rows</text>')
    height = max(ROW_HEIGHT, len(rows) * ROW_HEIGHT)
    key = "".join(f'<span><i style="background:{colour}"></i>{name}</span>' for name, colour in COLOURS.items())
    width = LABEL_WIDTH + BAR_WIDTH
    return (
        f'<div class="wide"><svg role="img" aria-label="rows by verdict" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">{"".join(parts)}</svg></div><p class="key">{key}</p>'
    )


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    numbers = ("partition", "position", "end", "records", *COLOURS)
    columns = ("store", "kind", "verdict", *numbers, "log_digest", "store_digest")
    head = "".join(f"<th{_right(name, numbers)}>{escape(name.replace('_', ' '))}</th>" for name in columns)
    body = []
    for row in rows:
        cells = []
        for name in columns:
            value = row[name]
            text = "" if value is None else f"{value:,}" if name in numbers else str(value)
            coloured = f' style="color:{WORDS[text]}"' if name == "verdict" else ""
            inner = f"<code>{escape(text)}</code>" if name.endswith("digest") else escape(text)
            cells.append(f"<td{_right(name, numbers)}{coloured}>{inner}</td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(body)}</table></div>'


def _right(name: str, numbers: Sequence[str]) -> str:
    return ' class="n"' if name in numbers else ""


def _explanations(rows: Sequence[Mapping[str, Any]]) -> str:
    told = [f"{row['store']}-{row['partition']}: {row['explanation']}" for row in rows if row["explanation"]]
    return "".join(f"<p>{escape(line)}</p>" for line in told)


def _differences(differences: Sequence[Mapping[str, Any]]) -> str:
    if not differences:
        return "<p>None.</p>"
    head = "".join(f"<th>{name}</th>" for name in ("store", "partition", "row", "key", "in the log", "in the store"))
    body = []
    for one in differences:
        cells = [one["store"], str(one["partition"]), one["row"]]
        bytes_cells = [shown(one["key"]), _side(one["log"]), _side(one["store_row"])]
        line = "".join(f"<td>{escape(str(cell))}</td>" for cell in cells)
        line += "".join(f"<td><code>{escape(cell)}</code></td>" for cell in bytes_cells)
        body.append(f"<tr>{line}</tr>")
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(body)}</table></div>'


def _side(side: tuple[int, bytes] | None) -> str:
    return "(absent)" if side is None else f"{shown(side[1])} @{side[0]}"
