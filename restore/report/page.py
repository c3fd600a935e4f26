"""The reports of a verify and of a pipeline as HTML pages: figures for the templates in `data/`, which autoescape.

    summary document ──> verify.html, pipeline.html ──> report.html (the page around them), parts.html, style.css

Rules of this file: text out. A page is self-contained (no script, no file beside it). Jinja2 is imported only when a
page is made: on the driver, never in a task of Spark. Templates mark no value as safe: names may contain any character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from standfast.restore.report.text import moment_text, side_text, size_text, skipped_text
from standfast.restore.verdict import verdict_text

if TYPE_CHECKING:
    from jinja2 import Environment

Json: TypeAlias = Mapping[str, Any]

# Verdicts on rows, in the order of a bar's parts.
COUNTS = ("matched", "indeterminate", "missing", "extra", "different", "stale")
WRONG = ("missing", "extra", "different", "stale")
VERDICTS = ("equal", "different", "inconclusive")
BAR_WIDTH, BAR_HEIGHT, ROW_HEIGHT = 560, 16, 26
LABEL_MAX, LETTER = 30, 7.3  # letters of a label, and the largest width of one in pixels
BAR_LEAST = 3.0  # pixels of a share that is not zero: one wrong row among millions must be seen


class Column(NamedTuple):
    """One column of a table: the name of its values, their format, its head."""

    name: str
    kind: str
    head: str


def page(summary: Json, found: Sequence[Json]) -> str:
    """The page of a verify; each difference has store, partition, row, key, log, store_row."""
    return _templates().get_template("verify.html").render(summary=summary, found=found, COUNTS=COUNTS)


def pipeline_page(summary: Json, found: Sequence[Json]) -> str:
    """The page of a pipeline over all its stores; differences as for `page`."""
    return _templates().get_template("pipeline.html").render(summary=summary, found=found, COUNTS=COUNTS)


@cache
def _templates() -> Environment:
    # Here, so that executors need no Jinja2.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("standfast.restore.report", "data"),
        autoescape=True,
        undefined=StrictUndefined,  # a misspelt field is an error, not an empty cell
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: "" if value is None else value,
    )
    filters: dict[str, Callable[..., Any]] = {
        "bars": _bars,
        "colour": lambda name: f"var(--{'changed' if name == 'different' else name})",
        "columns": _columns,
        "explanations": lambda rows: [f"{_label(row)}: {row['explanation']}" for row in rows if row["explanation"]],
        "known": lambda verdict: verdict if verdict in VERDICTS else "",
        "labels": lambda rows: [_label(row) for row in rows],
        "moment": moment_text,
        "number": lambda value: f"{value:,}" if isinstance(value, int) else value,
        "overview": lambda stores: [_overview(one) for one in stores],
        "remarks": lambda stores: [line for one in stores for line in _remarks(one)],
        "said": lambda summary: verdict_text(summary["verdict"], summary.get("indeterminate", 0)),
        "seconds": lambda ms: f"{ms / 1_000:,.1f}",
        "side": side_text,
        "size": size_text,
        "skips": lambda rows: [skipped_text(_label(row), row["skipped"]) for row in rows if row["skipped"]],
        "wrong": lambda rows: sum(row[name] for row in rows for name in WRONG),
    }
    made.filters.update(filters)
    return made


def _columns(texts: Sequence[str]) -> list[Column]:
    """Columns from "name", "name:kind" or "name:kind:head"."""
    parts = [[*text.split(":"), "", ""][:3] for text in texts]
    return [Column(name, kind, head or name.replace("_", " ")) for name, kind, head in parts]


def _label(row: Json) -> str:
    return f"{row['store']}-{row['partition']}"


def _bars(rows: Sequence[Json], labels: Sequence[str]) -> Json:
    """A bar for each row of counts; a share that is not zero is never thinner than a few pixels. Sizes in pixels."""
    names = [label if len(label) <= LABEL_MAX else label[: LABEL_MAX - 1] + "…" for label in labels]
    begin = round(LETTER * max(map(len, names), default=0)) + 10
    return {
        "begin": begin,
        "thick": BAR_HEIGHT,
        "width": begin + BAR_WIDTH,
        "height": max(ROW_HEIGHT, len(rows) * ROW_HEIGHT),
        "bars": [
            {"label": label, "name": name, "top": at * ROW_HEIGHT, "parts": list(_shares(row, begin))}
            for at, (label, name, row) in enumerate(zip(labels, names, rows, strict=True))
        ],
    }


def _shares(counts: Json, begin: int) -> Iterator[Json]:
    total, left = sum(counts[name] for name in COUNTS), float(begin)
    widths = {name: max(BAR_LEAST, BAR_WIDTH * counts[name] / total) for name in COUNTS if counts[name]}
    scale = min(BAR_WIDTH / sum(widths.values()), 1.0) if widths else 1.0
    for name, width in widths.items():
        yield {"name": name, "count": counts[name], "left": left, "width": width * scale}
        left += width * scale


def _overview(store: Json) -> Json:
    """The overview row of one store of a pipeline."""
    made, parts = store["rebuilt"] or {}, store["inspected"]
    # Partitions whose rebuilt and stored rows were digested at one offset, and those of them that differ.
    asked, unequal = len(store["same_position"]), len(store["rebuilt_differs"])
    return {
        **{name: store[name] for name in ("store", "kind", "verdict", "matched", "indeterminate")},
        "records": sum(part["records"] for part in parts),
        "deletes": sum(part["tombstones"] for part in parts),
        "keys": sum(part["keys"] for part in parts),
        "bytes": size_text(sum(part["bytes"] for part in parts)),
        "rows": made.get("rows"),
        "files": made.get("files"),
        "wrong": sum(store[name] for name in WRONG),
        "same": f"{asked - unequal} of {asked}" if asked else "at other offsets",
        "seconds": f"{(made.get('elapsed_ms', 0) + store['verify_ms']) / 1000:.1f}",
    }


def _remarks(store: Json) -> Iterator[str]:
    """Lines of text that belong beside the numbers of a store."""
    name = store["store"]
    if store["rebuild_left_out"]:
        yield f"{name} was not rebuilt: {store['rebuild_left_out']}"
    if store["rebuilt_differs"]:
        numbers = ", ".join(map(str, store["rebuilt_differs"]))
        yield f"{name}: rebuilt and stored rows of partition {numbers} differ at one offset"
    made = store["rebuilt"]
    if made is not None:
        yield from (f"{name}: {line}" for line in made["warnings"])
        if made["kept"]:
            yield f"{name}: rebuilt by an earlier run, which was interrupted"
    for one in store["verified"]:
        if one["explanation"]:
            yield f"{_label(one)}: {one['explanation']}"
        if one["skipped"]:
            yield skipped_text(_label(one), one["skipped"])
