"""Scripted histories of windows: what goes in, `----`, what comes out. Scripts: tests/scenarios/windows.

    # a comment; blocks are divided by an empty line
    tumbling size=10 grace=2                  begins anew with these windows, one key, no rows
    hopping size=10 advance=5
    sliding difference=10
    session gap=10
    unlimited start=100
    windows 9 10                              which windows a record at that time belongs to, or makes
    record 9 10                               records come: `put` row and the times it holds, `remove` row, `drop` (the
                                              window is closed), `close` row that this record's time closed
    rows                                      every row there is, closed ones with a *
    ----
    the answer to each command, one line each time of `windows` and `record`

Rules of this file: a runner and nothing else. `STANDFAST_REWRITE=1` writes the answers into the scripts: commit such
a change only if you understand every line of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from standfast.store.errors import StandfastError
from standfast.stream.windows import (
    AnyWindows,
    HoppingWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    UnlimitedWindows,
    Window,
)
from support.scripts import check_script

SCRIPTS = sorted((Path(__file__).parent / "windows").glob("*.txt"))
ENDS_ARE_INSIDE = SlidingWindows | SessionWindows


class Player:
    """The rows of one key under one kind of windows, each with the times that it holds."""

    def __init__(self, windows: AnyWindows) -> None:
        self.windows = windows
        self.rows: dict[Window, list[int]] = {}
        self.observed_ms = -1
        self.said: list[str] = []

    def name(self, window: Window) -> str:
        return f"[{window.start}, {window.end}{']' if isinstance(self.windows, ENDS_ARE_INSIDE) else ')'}"

    def put(self, window: Window, times: list[int]) -> None:
        self.rows[window] = sorted(times)
        self.said.append(f"put {self.name(window)} {' '.join(map(str, self.rows[window]))}")

    def drop(self, window: Window) -> None:
        self.said.append(f"drop {self.name(window)}")

    def record(self, at: int) -> str:
        self.said = []
        open_before = [row for row in self.rows if not self.windows.is_closed(row, self.observed_ms)]
        self.observed_ms = max(self.observed_ms, at)
        if isinstance(self.windows, SlidingWindows):
            self.slide(self.windows, at)
        elif isinstance(self.windows, SessionWindows):
            self.join(self.windows, at)
        else:
            for window in self.windows.windows_for(at):
                if self.windows.is_closed(window, self.observed_ms):
                    self.drop(window)
                else:
                    self.put(window, [*self.rows.get(window, []), at])
        closed = sorted(row for row in open_before if self.windows.is_closed(row, self.observed_ms))
        return f"{at}: {', '.join([*self.said, *(f'close {self.name(row)}' for row in closed)]) or 'in no window'}"

    def slide(self, windows: SlidingWindows, at: int) -> None:
        first, last = windows.search_starts(at)
        seen = {row.start: times for row, times in self.rows.items() if first <= row.start <= last}
        plan = windows.plan(at, [(start, max(times)) for start, times in seen.items()], self.observed_ms)
        for change in plan.changes:
            base = [] if change.source is None else seen[change.source]
            self.put(change.window, [*base, at] if change.adds else base)
        for window in plan.dropped:
            self.drop(window)

    def join(self, windows: SessionWindows, at: int) -> None:
        merge = windows.merge(self.rows, at)
        if windows.is_closed(merge.session, self.observed_ms):
            self.drop(merge.session)
            return
        times = [at, *(time for session in merge.absorbed for time in self.rows[session])]
        for session in merge.removed:
            del self.rows[session]
            self.said.append(f"remove {self.name(session)}")
        self.put(merge.session, times)

    def belongs(self, at: int) -> str:
        assert not isinstance(self.windows, SessionWindows), "sessions are made by their records"
        return f"{at}: {' '.join(map(self.name, self.windows.windows_for(at))) or 'none'}"

    def every_row(self) -> list[str]:
        shown = []
        for row, times in sorted(self.rows.items()):
            mark = "*" if self.windows.is_closed(row, self.observed_ms) else ""
            shown.append(f"{self.name(row)}{mark} {' '.join(map(str, times))}")
        return shown or ["none"]


def make(kind: str, words: list[str]) -> AnyWindows:
    given = {key: int(value) for key, _, value in (word.partition("=") for word in words)}
    grace_ms = given.get("grace", 0)
    match kind:
        case "tumbling":
            return TumblingWindows(given["size"], grace_ms)
        case "hopping":
            return HoppingWindows(given["size"], given.get("advance"), grace_ms)
        case "sliding":
            return SlidingWindows(given["difference"], grace_ms)
        case "session":
            return SessionWindows(given["gap"], grace_ms)
        case "unlimited":
            return UnlimitedWindows(given.get("start", 0))
    raise ValueError(f"unknown command {kind!r}")


def answer(player: Player, command: str, words: list[str]) -> list[str]:
    if command == "windows":
        return [player.belongs(int(word)) for word in words]
    if command == "record":
        return [player.record(int(word)) for word in words]
    return player.every_row()


def run(script: str) -> str:
    """The script with every block's answers as the windows give them."""
    player = Player(TumblingWindows(1))
    blocks = []
    for block in script.strip().split("\n\n"):
        lines = block.partition("\n----")[0].splitlines()
        answers = []
        for line in lines:
            command, *words = line.split()
            if command == "#":
                continue
            try:
                if command in ("windows", "record", "rows"):
                    answers += answer(player, command, words)
                else:
                    player = Player(make(command, words))
                    answers.append("empty")
            except StandfastError as error:
                answers.append(f"{type(error).__name__}: {error}")
        blocks.append("\n".join([*lines, "----", *answers] if answers else lines))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_windows_follow_the_script(path: Path) -> None:
    check_script(path, run)


def test_the_scripts_are_there() -> None:
    assert len(SCRIPTS) >= 7


def test_a_wrong_answer_in_a_script_is_found() -> None:
    good = run("tumbling size=10\nrecord 9 10\n")
    assert good == "tumbling size=10\nrecord 9 10\n----\nempty\n9: put [0, 10) 9\n10: put [10, 20) 10, close [0, 10)\n"
    assert run(good) == good
    assert run(good.replace("put [0, 10) 9", "put [0, 10) 8")) == good
