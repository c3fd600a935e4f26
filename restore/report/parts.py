"""Parts of the HTML reports: the page around them, bars, tables, differences.

Rules of this file: pure; text out. A page is whole by itself (no script, no file beside it), fits light and dark
screens and paper, and shows bytes as text where they are text and else in hex. Everything from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, NamedTuple

from standfast.restore.judgement import verdict_text
from standfast.restore.row_side import RowSide
from standfast.store import session_key, window_key
from standfast.store.errors import Corruption

# What may become of a row, in the order in which a bar shows it.
COUNTS = ("matched", "indeterminate", "missing", "extra", "different", "stale")
VERDICTS = ("equal", "different", "inconclusive")
BAR_WIDTH, BAR_HEIGHT, ROW_HEIGHT = 560, 16, 26
LABEL_MAX, LETTER = 30, 7.3  # letters of a label, and how wide one is at most
BAR_LEAST = 3.0  # pixels of a share that is not zero
SHOWN_BYTES = 120
STYLE = """
:root{color-scheme:light dark;--line:#8884;--soft:#8881;--muted:#667;
--equal:#1f7a4d;--different:#b3261e;--inconclusive:#8a6100;
--matched:#2e7d52;--indeterminate:#c79a1e;--missing:#c0392b;--extra:#8e44ad;--stale:#7f3b08;--changed:#d9691e}
@media(prefers-color-scheme:dark){:root{--muted:#99a;--equal:#5fcf98;--different:#ff8a80;--inconclusive:#e6b94d;
--matched:#3f9d6b;--stale:#b5651d}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;max-width:84rem;margin:2rem auto;padding:0 1.25rem}
h1{font-size:1.45rem;margin:0 0 .25rem;display:flex;gap:.75rem;align-items:center;flex-wrap:wrap}
h2{font-size:1.1rem;margin:2.25rem 0 .5rem} h3{font-size:.95rem;margin:1.25rem 0 .35rem}
.verdict{padding:.1rem .7rem;border-radius:1rem;font-size:1rem;border:2px solid currentColor}
.equal{color:var(--equal)} .different{color:var(--different)} .inconclusive{color:var(--inconclusive)}
.told{color:var(--muted);margin:.25rem 0 1rem;overflow-wrap:anywhere}
.tiles{display:flex;flex-wrap:wrap;gap:.75rem;margin:1rem 0;padding:0;list-style:none}
.tiles li{background:var(--soft);border-radius:.5rem;padding:.55rem .9rem;min-width:8.5rem}
.tiles strong{display:block;font-size:1.25rem;font-variant-numeric:tabular-nums}
.tiles span{color:var(--muted);font-size:.8rem}
.wide{overflow-x:auto} table{border-collapse:collapse;font-size:.85rem}
th{color:var(--muted);font-weight:600} th,td{padding:.28rem .65rem;border-bottom:1px solid var(--line);text-align:left;
vertical-align:top;white-space:nowrap} td.c{min-width:11rem;white-space:normal}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
td.v{font-weight:600} code{font-size:.8rem} td.c code{overflow-wrap:anywhere;white-space:pre-wrap}
svg{max-width:100%;height:auto} svg text{font:12px system-ui,sans-serif;fill:currentColor}
.key{font-size:.85rem} .key span{margin-right:1rem;white-space:nowrap}
.key i{display:inline-block;width:.8em;height:.8em;margin-right:.35em;border-radius:2px}
details{border:1px solid var(--line);border-radius:.5rem;padding:.4rem .9rem;margin:.5rem 0}
summary{cursor:pointer;font-weight:600} .note{border-left:3px solid var(--inconclusive);padding-left:.7rem}
@media print{body{max-width:none;margin:0} .tiles li{border:1px solid var(--line)}}
"""


class Column(NamedTuple):
    """One column of a table: its head, and how its cells are shown: text, number, verdict, digest or code (wrapped)."""

    head: str
    shown: str = "text"


def document(title: str, verdict: str, body: Sequence[str], indeterminate: int) -> str:
    """The whole page. `indeterminate`: rows that could not be told."""
    said = verdict_text(verdict, indeterminate)
    return "\n".join(
        [
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f"<style>{STYLE}</style></head><body>",
            f'<h1>{escape(title)} <span class="verdict {_known(verdict)}">{escape(said)}</span></h1>',
            *body,
            "</body></html>",
            "",
        ]
    )


def tiles(cells: Sequence[tuple[str, str]]) -> str:
    """The numbers that matter most: (value, what it is)."""
    items = "".join(f"<li><strong>{escape(a)}</strong><span>{escape(b)}</span></li>" for a, b in cells)
    return f'<ul class="tiles">{items}</ul>'


def table(columns: Sequence[Column], rows: Sequence[Sequence[Any]]) -> str:
    """A table; numbers stand on the right, with thousands apart, and None is an empty cell."""
    head = "".join(f"<th{_class(one)}>{escape(one.head)}</th>" for one in columns)
    body = "".join(
        f"<tr>{''.join(_cell(column, value) for column, value in zip(columns, row, strict=True))}</tr>" for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def bars(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """A bar for each (label, counts); what is not zero is never thinner than a few pixels."""
    parts, names = [], [label if len(label) <= LABEL_MAX else label[: LABEL_MAX - 1] + "…" for label, _ in rows]
    begin = round(LETTER * max(map(len, names), default=0)) + 10
    for index, (label, counts) in enumerate(rows):
        top = index * ROW_HEIGHT
        parts.append(
            f'<text x="{begin - 10}" y="{top + 13}" text-anchor="end">{escape(names[index])}'
            f"<title>{escape(label)}</title></text>"
        )
        parts += _bar(counts, begin, top)
    width, height = begin + BAR_WIDTH, max(ROW_HEIGHT, len(rows) * ROW_HEIGHT)
    key = "".join(f'<span><i style="background:{_colour(name)}"></i>{name}</span>' for name in COUNTS)
    return (
        f'<div class="wide"><svg role="img" aria-label="rows by verdict" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">{"".join(parts)}</svg></div><p class="key">{key}</p>'
    )


def differences(found: Sequence[Mapping[str, Any]], total: int) -> str:
    """The heading and the table of rows that differ; each has store, partition, row, key (as text), log, store_row."""
    of = f" (the first {len(found):,} of {total:,})" if total > len(found) else f" ({total:,})"
    if not found:
        return f"<h2>Differences{of}</h2>" + ("<p>None.</p>" if not total else "<p>Only counted.</p>")
    columns = [Column("store"), Column("partition", "number"), Column("row")]
    columns += [Column(head, "code") for head in ("key", "in the log", "in the store")]
    rows = [
        (
            one["store"],
            one["partition"],
            one["row"],
            one["key"],
            side_text(one["log"]),
            side_text(one["store_row"]),
        )
        for one in found
    ]
    return f"<h2>Differences{of}</h2>" + table(columns, rows)


def notes(lines: Sequence[str]) -> str:
    """What needs to be known beside the numbers."""
    return "".join(f'<p class="note">{escape(line)}</p>' for line in lines)


def skipped_text(whose: str, count: int) -> str:
    """That records were left out."""
    return f"{whose}: {count} records are left out, which have no key, or which the store cannot hold"


def shown(raw: bytes) -> str:
    """Bytes for people: text where they are text, else hex; long ones are cut."""
    cut = raw[:SHOWN_BYTES]
    try:
        text = cut.decode("utf-8")
    except UnicodeDecodeError as error:
        # Where the cut goes through a character, the rest is text all the same.
        halved = len(raw) > SHOWN_BYTES and error.reason == "unexpected end of data"
        text = cut[: error.start].decode("utf-8") if halved else ""
    if not text.isprintable() or (raw and not text):
        text = "0x" + cut.hex()
    return text + ("…" if len(raw) > SHOWN_BYTES else "")


def key_text(kind: str, raw: bytes) -> str:
    """A row's key for people: of windows and sessions the key and its times, not the bytes of both."""
    try:
        if kind == "window":
            key, start, sequence = window_key.unpack(raw)
            return f"{shown(key)} [{time_text(start)}]" + (f" #{sequence}" if sequence else "")
        if kind == "session":
            key, start, end = session_key.unpack(raw)
            return f"{shown(key)} [{time_text(start)} - {time_text(end)}]"
    except Corruption:
        pass  # bytes that are no such key are what the report is about: they are shown as they are
    return shown(raw)


def time_text(at_ms: int) -> str:
    """A time in UTC, to the millisecond; the number itself where the calendar does not reach."""
    try:
        return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return str(at_ms)


def size_text(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1_000:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1_000
    return f"{count:,.1f} TB"


def _bar(counts: Mapping[str, Any], begin: int, top: int) -> list[str]:
    total = sum(counts[name] for name in COUNTS)
    if not total:
        return [f'<text x="{begin}" y="{top + 13}">no rows</text>']
    widths = {name: max(BAR_LEAST, BAR_WIDTH * counts[name] / total) for name in COUNTS if counts[name]}
    scale, left, parts = min(BAR_WIDTH / sum(widths.values()), 1.0), float(begin), []
    for name, width in widths.items():
        parts.append(
            f'<rect x="{left:.1f}" y="{top}" width="{width * scale:.1f}" height="{BAR_HEIGHT}" '
            f'style="fill:{_colour(name)}"><title>{name}: {counts[name]:,}</title></rect>'
        )
        left += width * scale
    return parts


def _cell(column: Column, value: Any) -> str:
    text = "" if value is None else f"{value:,}" if column.shown == "number" and isinstance(value, int) else str(value)
    if column.shown == "verdict":
        return f'<td class="v {_known(text)}">{escape(text)}</td>'
    inner = f"<code>{escape(text)}</code>" if column.shown in ("code", "digest") else escape(text)
    return f"<td{_class(column)}>{inner}</td>"


def _class(column: Column) -> str:
    return {"number": ' class="n"', "code": ' class="c"'}.get(column.shown, "")


def _colour(name: str) -> str:
    return f"var(--{'changed' if name == 'different' else name})"


def _known(verdict: str) -> str:
    return verdict if verdict in VERDICTS else ""


def side_text(side: RowSide | None, time_of: Callable[[int], str | None] = str) -> str:
    """One side of a row for people: its value if it was kept, else how large it is and a hash."""
    if side is None:
        return "(absent)"
    text = f"{side.value_bytes:,} B #{side.hash_hex}"
    if side.value is not None:
        text = shown(side.value) + (f" ({side.value_bytes:,} B)" if side.value_bytes > SHOWN_BYTES else "")
    return text + (f" @{time_of(side.timestamp)}" if side.timestamp >= 0 else "")
