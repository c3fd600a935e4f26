"""Output of a command: tables for people, one JSON document for programs.

    stdout     the result: a table (drawn on a terminal, plain columns elsewhere), or with --json one document;
               columns that are `wide` only with --wide
    stderr     notes, progress, errors

Rules of this file: printing only. Store names, keys and values are shown as they are, never read as markup.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from standfast.ops.shared.streams import say
from standfast.ops.shared.text import dumps, shown
from standfast.ops.shared.times import TimeStyle, time_text

WIDE = 1 << 30  # a width at which nothing wraps
UNKNOWN = "-"
CELL_MAX = 120  # characters of a cell of text on a terminal; plain output, --wide and --json are never cut


class Output:
    """Prints a command's result."""

    def __init__(self, *, as_json: bool = False, wide: bool = False, times: TimeStyle = "local") -> None:
        self.as_json = as_json
        self.wide = wide
        self._times: TimeStyle = times
        self.pretty = not as_json and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

    def document(self, document: Mapping[str, Any]) -> None:
        """The result for programs, on one line; only with --json."""
        if self.as_json:
            print(dumps(document, encoding=sys.stdout.encoding))

    def line(self, text: str = "") -> None:
        """A line for people."""
        if not self.as_json:
            print(text)

    def text(self, text: str, indent: int = 0) -> None:
        """A sentence for people: on a terminal it wraps at spaces, its further lines `indent` places in."""
        if self.as_json:
            return
        if not self.pretty or self.wide:
            print(text)
            return
        from rich.console import Console

        from standfast.ops.shared.table import wrap

        first, *more = wrap(text.lstrip(), Console().width - indent)
        start = " " * (len(text) - len(text.lstrip()))
        # The first line begins further left than the others, so it never takes more room than it was given.
        print(start + first, *(" " * indent + line for line in more), sep="\n")

    def note(self, text: str) -> None:
        """A remark about the result, on stderr."""
        say(f"note: {text}")

    def time(self, ms: int | None) -> str | None:
        """A point in time in the style that the command's flags chose."""
        return None if ms is None else time_text(ms, self._times)

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        *,
        title: str = "",
        right: Sequence[str] = (),
        fold: Sequence[str] = (),
        wide: Sequence[str] = (),
    ) -> None:
        """Rows for people; None is unknown, or does not apply. `right` names the columns that are numbers, `fold` those
        of text, which may wrap, and `wide` those that only --wide shows."""
        if self.as_json:
            return
        kept = [at for at, column in enumerate(columns) if self.wide or column not in wide]
        columns = [columns[at] for at in kept]
        cells = [[UNKNOWN if row[at] is None else shown(row[at]) for at in kept] for row in rows]
        # Plain columns elsewhere: `awk` and `grep` want one line for each row, whatever the terminal's width.
        if self.pretty:
            _draw(columns, cells, title, right, fold, self.wide)
        else:
            _print_plain(columns, cells, title)

    @contextmanager
    def progress(self, what: str, total: int) -> Iterator[_Progress]:
        """A progress bar on stderr if that is a terminal; `advance(n)` moves it."""
        if not sys.stderr.isatty() or total <= 0:
            yield _Progress()
            return
        # Imported here, since most commands draw no bar and start faster without rich.
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
    """A progress bar, or none."""

    def __init__(self, bars: Any = None, task: Any = None) -> None:
        self._bars = bars
        self._task = task

    def advance(self, count: int) -> None:
        """Move the bar on."""
        if self._bars is not None:
            self._bars.update(self._task, advance=count)

    def describe(self, what: str, total: int) -> None:
        """Set the text of the current step and its total."""
        if self._bars is not None:
            self._bars.update(self._task, description=what, total=total)


def _draw(
    columns: Sequence[str],
    cells: Sequence[Sequence[str]],
    title: str,
    right: Sequence[str],
    fold: Sequence[str],
    wide: bool,
) -> None:
    from rich.console import Console
    from rich.text import Text

    from standfast.ops.shared.table import draw

    # Without highlighting and as Text, so that a value such as `[red]` or a number is shown as it is.
    console = Console(highlight=False)
    if not wide:
        cells = [
            [_cut(cell) if column in fold else cell for column, cell in zip(columns, row, strict=True)] for row in cells
        ]
    # With --wide a row stays one row, however long: `| less -S` scrolls it.
    drawing = draw(columns, cells, WIDE if wide else console.width, right=right, fold=fold)
    if title:
        console.print(Text(title, style="bold"), soft_wrap=True)
    for number, line in enumerate(drawing.lines):
        console.print(Text(line, style="bold" if number < drawing.head else ""), soft_wrap=True)


def _cut(cell: str) -> str:
    return cell if len(cell) <= CELL_MAX else cell[: CELL_MAX - 1] + "…"


def _print_plain(columns: Sequence[str], cells: Sequence[Sequence[str]], title: str) -> None:
    if title:
        print(title)
    widths = [max(len(row[at]) for row in [columns, *cells]) for at in range(len(columns))]
    for row in [columns, *cells]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
