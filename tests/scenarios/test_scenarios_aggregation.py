"""Scripted aggregations: records in, `----`, results and drops. The scripts are in tests/scenarios/aggregation.

    # a comment; blocks are divided by an empty line, and go on with what the block before them left
    new tumbling size=10 grace=5 emit=update cache=off      a new application: tumbling, hopping, sliding, session,
                                                            unlimited or none; values=list keeps the values
    a@1 a@2=x -@3                       records: key, time, value (left out: none); key - is no key, value null is None
    commit                              what is held back goes out
    restart                             commit, and new processors on the same state
    ----
    one line for each record and command: results as key start..end value (value before) at timestamp, then drops

Rules of this file: a runner and nothing else. `STANDFAST_REWRITE=1` writes the answers into the scripts: commit such
a change only if you understand every line of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from standfast.store.errors import StandfastError
from standfast.stream.app.testing import Driver
from standfast.stream.emit import ON_WINDOW_CLOSE, ON_WINDOW_UPDATE
from standfast.stream.windows import (
    TIME_MAX,
    AnyWindows,
    HoppingWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    UnlimitedWindows,
)
from support.aggregates import Result, counted, driven, drops, listed, results
from support.scripts import check_script

SCRIPTS = sorted((Path(__file__).parent / "aggregation").glob("*.txt"))
KINDS = {
    "tumbling": TumblingWindows,
    "hopping": HoppingWindows,
    "sliding": SlidingWindows,
    "session": SessionWindows,
    "unlimited": UnlimitedWindows,
}
EMITS = {"update": ON_WINDOW_UPDATE, "close": ON_WINDOW_CLOSE}


def windows_of(kind: str, options: dict[str, str]) -> AnyWindows | None:
    numbers = {f"{name}_ms": int(value) for name, value in options.items()}
    return None if kind == "none" else KINDS[kind](**numbers)


def shown(result: Result) -> str:
    end = "" if result.end == TIME_MAX else result.end
    where = "" if result.start is None else f" {result.start}..{end}"
    value, old = (json.dumps(one) for one in (result.value, result.old))
    return f"{result.key}{where} {value} (was {old}) at {result.timestamp}"


class Player:
    """One application after the other."""

    def __init__(self) -> None:
        self.open: Any = None
        self.driver: Driver | None = None
        self.dropped: dict[str, int] = {}

    def new(self, kind: str, *words: str) -> str:
        options = dict(word.split("=") for word in words)
        emit, cache = options.pop("emit", "update"), options.pop("cache", "off")
        build = {"list": listed, "count": counted}[options.pop("values", "count")]
        retention = {"retention_ms": int(options.pop("retention"))} if "retention" in options else {}
        self.close()
        windows = windows_of(kind, options)
        self.open = driven(windows, build, emit=EMITS[emit], caching=cache == "on", on_error="skip", **retention)
        self.driver = self.open.__enter__()
        self.dropped = {}
        return "ready"

    def close(self) -> None:
        if self.driver is not None:
            self.open.__exit__(None, None, None)
            self.driver = None

    def pipe(self, word: str) -> None:
        assert self.driver is not None
        place, _, value = word.partition("=")
        key, _, stamp = place.partition("@")
        given = None if value == "null" else value or "x"
        self.driver.pipe("in", None if key == "-" else key, given, int(stamp))

    def answer(self, word: str) -> list[str]:
        """What came out, and what was left out, since the last answer."""
        assert self.driver is not None
        now = drops(self.driver)
        left_out = [
            f"{name}={now[name] - self.dropped.get(name, 0)}" for name in now if now[name] != self.dropped.get(name)
        ]
        self.dropped = now
        lines = [f"  {shown(one)}" for one in results(self.driver)] + [f"  dropped {one}" for one in left_out]
        return [f"{word}:", *lines] if lines else [f"{word}: nothing"]

    def act(self, line: str) -> list[str]:
        command, *words = line.split()
        if command == "new":
            return [self.new(*words)]
        assert self.driver is not None
        if command in ("commit", "restart"):
            getattr(self.driver, command)()
            return self.answer(command)
        answers = []
        for word in (command, *words):
            self.pipe(word)
            answers += self.answer(word)
        return answers


def run(script: str) -> str:
    """The script with every block's answers as the application gives them."""
    player = Player()
    blocks = []
    try:
        for block in script.strip().split("\n\n"):
            lines = block.partition("\n----")[0].splitlines()
            answers: list[str] = []
            for line in lines:
                if line.startswith("#"):
                    continue
                try:
                    answers += player.act(line)
                except StandfastError as error:
                    answers.append(f"{type(error).__name__}: {error}")
            blocks.append("\n".join([*lines, "----", *answers] if answers else lines))
    finally:
        player.close()
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_aggregation_follows_the_script(path: Path) -> None:
    check_script(path, run)


def test_the_scripts_are_there() -> None:
    assert len(SCRIPTS) >= 9


def test_a_wrong_answer_in_a_script_is_found() -> None:
    good = run("new tumbling size=10\na@1\n")
    assert good == "new tumbling size=10\na@1\n----\nready\na@1:\n  a 0..10 1 (was null) at 1\n"
    assert run(good) == good
    assert run(good.replace("0..10 1", "0..10 2")) == good
