"""What the demo shows while it runs: progress bars on a terminal, a few plain lines anywhere else.

Rules of this file: it writes to stderr only, and knows nothing of how the demo works.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Numbers:
    """How far everything is, in records; a total of 0 is not known yet."""

    total: int
    fed: int = 0
    by_a: int = 0
    a_ended: bool = False
    standby: int = 0
    standby_total: int = 0
    by_b: int = 0
    by_b_total: int = 0


class Display(Protocol):
    """Where the demo tells of itself."""

    def event(self, text: str, *, loud: bool = False) -> None:
        """Something happened; `loud` for the kill and the take-over."""
        ...

    def numbers(self, now: Numbers) -> None:
        """Progress, several times a second."""
        ...

    def __enter__(self) -> Display: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class PlainDisplay:
    """Events as lines, no bars."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def event(self, text: str, *, loud: bool = False) -> None:
        """One line; loud ones are marked."""
        print(f"{'**' if loud else '--'} {text}", file=self._out, flush=True)

    def numbers(self, now: Numbers) -> None:
        """Not shown: a log file wants events only."""

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class BarDisplay:
    """Four bars that stay at the bottom, events scrolling above them."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None, complete_style="cyan", finished_style="green", pulse_style="grey37"),
            TextColumn("{task.fields[count]}", justify="right"),
            console=console,
            expand=False,
            transient=True,
        )
        self._bars: dict[str, TaskID] = {
            name: self._progress.add_task(text, total=None, count="", start=False)
            for name, text in (
                ("fed", "flights fed"),
                ("a", "A  active"),
                ("standby", "B  standing by"),
                ("b", "B  active"),
            )
        }

    def event(self, text: str, *, loud: bool = False) -> None:
        """One line above the bars."""
        self._progress.console.print(Text(("■ " if loud else "· ") + text, style="bold yellow" if loud else ""))

    def numbers(self, now: Numbers) -> None:
        """Move the bars."""
        self._move("fed", now.fed, now.total)
        self._move("a", now.by_a, now.total, ended="[red]A  killed[/red]" if now.a_ended else None)
        self._move("standby", now.standby, now.standby_total, ended="B  stood by" if now.by_b else None)
        self._move("b", now.by_b, now.by_b_total)

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def _move(self, name: str, done: int, total: int, ended: str | None = None) -> None:
        bar = self._bars[name]
        if done and not self._progress.tasks[bar].started:
            self._progress.start_task(bar)
        self._progress.update(bar, completed=done, total=max(total, done) or None, count=f"{done:,}")
        if ended is not None:
            self._progress.update(bar, description=ended)
            self._progress.stop_task(bar)


def choose_display(out: TextIO) -> Display:
    """Bars if `out` is a terminal that can move its cursor, plain lines otherwise."""
    console = Console(file=out, highlight=False)
    return BarDisplay(console) if console.is_terminal and not console.is_dumb_terminal else PlainDisplay(out)
