"""What a command prints: tables for people, one JSON document for programs.

    stdout     the result: a table (drawn on a terminal, plain columns elsewhere), or with --json one document
    stderr     notes, progress, errors

Rules of this file: nothing but printing. Store names, keys and values are shown as they are, never read as markup.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from standfast.ops.text import dumps, shown

CELL_MAX = 120  # characters of one cell on a terminal; plain output and --json are never cut


class Output:
    """Where a command's result goes."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.pretty = not as_json and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

    def document(self, document: Mapping[str, Any]) -> None:
        """The result for programs, on one line; only with --json."""
        if self.as_json:
            print(dumps(document))

    def line(self, text: str = "") -> None:
        """A line for people."""
        if not self.as_json:
            print(text)

    def note(self, text: str) -> None:
        """Something to know about the result, on stderr."""
        print(f"note: {text}", file=sys.stderr)

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str = "", right: Sequence[str] = ()
    ) -> None:
        """Rows for people; `right` names the columns that are numbers."""
        if self.as_json:
            return
        cells = [[shown(cell) for cell in row] for row in rows]
        if self.pretty:
            _draw(columns, cells, title, right)
        else:
            _print_plain(columns, cells, title)

    @contextmanager
    def progress(self, what: str, total: int) -> Iterator[_Progress]:
        """A bar on stderr while a terminal watches; `advance(n)` moves it."""
        if not sys.stderr.isatty() or total <= 0:
            yield _Progress()
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        with bars:
            yield _Progress(bars, bars.add_task(what, total=total))


class _Progress:
    """A bar, or nothing."""

    def __init__(self, bars: Any = None, task: Any = None) -> None:
        self._bars = bars
        self._task = task

    def advance(self, count: int) -> None:
        """Move the bar on."""
        if self._bars is not None:
            self._bars.update(self._task, advance=count)

    def describe(self, what: str, total: int) -> None:
        """Say what is going on now, and how much there is in all."""
        if self._bars is not None:
            self._bars.update(self._task, description=what, total=total)


def _draw(columns: Sequence[str], cells: Sequence[Sequence[str]], title: str, right: Sequence[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell if len(cell) <= CELL_MAX else cell[: CELL_MAX - 1] + "…") for cell in row))
    Console().print(table)


def _print_plain(columns: Sequence[str], cells: Sequence[Sequence[str]], title: str) -> None:
    if title:
        print(title)
    widths = [max(len(row[at]) for row in [columns, *cells]) for at in range(len(columns))]
    for row in [columns, *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
