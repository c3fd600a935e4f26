"""The demo's display while it runs: the live board and progress bars on a terminal, a few plain lines anywhere else.

Rules of this file: it writes to stderr only, and knows nothing of how the demo works.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column, Table
from rich.text import Text

from standfast.ops.demo.log import LiveBoard

NO_FLIGHT = LiveBoard()
PLAIN_BOARDS = 4  # number of plain lines with the board
LABEL_WIDTH = 11  # of the longest name of a bar


@dataclass(frozen=True, slots=True)
class Numbers:
    """Progress in flights: fed, and processed by each process; `killed`: A is gone."""

    total: int
    fed: int = 0
    processed: Mapping[str, int] = field(default_factory=dict)
    killed: bool = False
    board: LiveBoard = NO_FLIGHT


class Display(Progress):
    """Display of the demo, and of the steps of its run of Spark.

    On a terminal the live board and four bars stay at the bottom, with a fifth once Spark runs, and events scroll above
    them; anywhere else events are lines, and of the live board there is one at each quarter of the flights.
    """

    def __init__(self, console: Console) -> None:
        self._moves = console.is_terminal and not console.is_dumb_terminal
        self._boards = 0
        self._part, self._what = 0.0, ""
        self._board = NO_FLIGHT
        super().__init__(
            TextColumn("{task.description}", table_column=Column(no_wrap=True, min_width=LABEL_WIDTH)),
            BarColumn(bar_width=None, complete_style="cyan", finished_style="green", pulse_style="grey37"),
            TextColumn("{task.fields[count]}", justify="right"),
            console=console,
            transient=True,
            disable=not self._moves,
        )
        self._bars: dict[str, TaskID] = {}
        for name, text in (("fed", "flights fed"), ("a", "A  active"), ("b", "B  active"), ("c", "C  active")):
            self._add(name, text)

    def get_renderables(self) -> Iterator[RenderableType]:
        """The picture on a terminal; see Progress."""
        yield board_panel(self._board)
        yield self.make_tasks_table(self.tasks)
        # Below the bars: in their column of counts a long text would leave no room for them.
        if self._what:
            yield Padding(Text(self._what, overflow="fold"), (0, 0, 0, LABEL_WIDTH + 1))

    def event(self, text: str, *, loud: bool = False) -> None:
        """Show an event; `loud` for the kill and the take-over."""
        if not self._moves:
            print(f"{'**' if loud else '--'} {text}", file=self.console.file, flush=True)
            return
        line = Table.grid(padding=(0, 1, 0, 0))  # so that a line that wraps stays behind its mark
        line.add_column(no_wrap=True)
        line.add_column(overflow="fold")
        line.add_row("■" if loud else "·", Text(text), style="bold yellow" if loud else "")
        self.console.print(line)

    def numbers(self, now: Numbers) -> None:
        """Show progress, several times a second."""
        self._board = now.board
        quarters = now.board.flights * PLAIN_BOARDS // max(now.total, 1)
        if quarters > self._boards and not self._moves:
            self._boards = quarters
            self.event(f"live board of {now.board.at}: {now.board}")
        for name, done in {"fed": now.fed, **now.processed}.items():
            self._move(name, done, now.total)
        self.update(self._bars["a"], description="[red]A  killed[/red]" if now.killed else "A  active")

    def step(self, number: int, total: int, what: str) -> None:
        """See `standfast.restore.spark.pipeline.Steps`."""
        self._what = what
        if not self._moves:
            self.event(f"Spark, {self._part:.0%}: {what}")
        self.at(self._part)

    def at(self, part: float, what: str = "") -> None:
        """See `standfast.restore.spark.pipeline.Steps`."""
        self._part, self._what = part, what or self._what
        if "spark" not in self._bars:  # many machines have no Spark
            self._add("spark", "Spark")
            self.start_task(self._bars["spark"])
        self.update(self._bars["spark"], completed=part, total=1.0, count=f"{part:.0%}")

    def note(self, text: str) -> None:
        """See `standfast.restore.spark.pipeline.Steps`."""
        self.event(text)

    def _add(self, name: str, text: str) -> None:
        self._bars[name] = self.add_task(text, total=None, count="", start=False)

    def _move(self, name: str, done: int, total: int) -> None:
        bar = self._bars[name]
        if done and not self.tasks[bar].started:
            self.start_task(bar)
        # A total below the flights done would show more than 100 %.
        self.update(bar, completed=done, total=max(total, done) or None, count=f"{done:,}")


def board_panel(board: LiveBoard) -> Panel:
    """The live board, for any width; empty before the first flight."""
    grid = Table.grid(padding=(0, 3))
    for _ in range(4):
        grid.add_column(justify="left")
    worst = "-" if board.worst_delay is None else f"{board.worst_delay} min, {board.worst_flight}"
    cells = ("flights", f"{board.flights:,}"), ("aircraft", f"{board.aircraft:,}"), ("retired", f"{board.retired:,}")
    told = (*cells, ("worst delay of the last hours", worst))
    grid.add_row(*(Text(name, style="grey62") for name, _ in told))
    grid.add_row(*(Text(text, style="bold") for _, text in told))
    return Panel(grid, title=f" {board.at or 'no flight yet'} ", title_align="left", expand=False, border_style="cyan")
