"""Scripted histories of punctuation: what goes in, `----`, what comes out. Scripts: tests/scenarios/punctuation.

    # a comment; blocks are divided by an empty line
    new                                        a new queue
    schedule A every=5000                      stream time; start=1000 may follow
    schedule B every=5000 made=0               wall clock, made at that time; start=1000 anchors it
    schedule C every=5000 due=5000             due for the first time as given
    on A cancel B                              what A's callback does each time it fires: schedule, cancel or fail
    cancel A
    at 1000 4000 unknown                       the time moves on: what fires, and when something is due next
    ----
    the answer to each command, one line each time of `at`

Rules of this file: a runner and nothing else. `STANDFAST_REWRITE=1` writes the answers into the scripts: commit such
a change only if you understand every line of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from standfast.store.errors import StandfastError
from standfast.stream.punctuation import STREAM_TIME, WALL_CLOCK_TIME, Cancellable, PunctuationQueue, first_due
from support.scripts import check_script

SCRIPTS = sorted((Path(__file__).parent / "punctuation").glob("*.txt"))


class CallbackFailed(Exception):
    """What a callback of a script raises."""


class Player:
    """A queue whose schedules have names."""

    def __init__(self) -> None:
        self.queue = PunctuationQueue()
        self.handles: dict[str, Cancellable] = {}
        self.reactions: dict[str, list[str]] = {}
        self.fired: list[str] = []

    def schedule(self, name: str, every: int, made: int | None, start: int | None, due: int | None) -> str:
        if due is None:
            due = first_due(STREAM_TIME if made is None else WALL_CLOCK_TIME, made, every, start)

        def callback(now_ms: int) -> None:
            self.fired.append(f"{name}({now_ms})")
            if reaction := self.reactions.get(name):
                self.act(reaction)

        self.handles[name] = self.queue.schedule(due, every, callback)
        return f"{name} due={due}"

    def act(self, words: list[str]) -> str:
        match words:
            case ["schedule", name, *rest]:
                given = {key: int(value) for key, _, value in (word.partition("=") for word in rest)}
                return self.schedule(name, given["every"], given.get("made"), given.get("start"), given.get("due"))
            case ["cancel", name]:
                self.handles[name].cancel()
                return f"{name} cancelled"
            case ["on", name, *reaction]:
                self.reactions[name] = reaction
                return f"on {name} {' '.join(reaction)}"
            case ["fail"]:
                raise CallbackFailed
        raise ValueError(f"unknown command {' '.join(words)!r}")

    def at(self, word: str) -> str:
        self.fired.clear()
        try:
            end = f"fired={self.queue.may_punctuate(None if word == 'unknown' else int(word))}"
        except CallbackFailed:
            end = "failed"
        due_ms = self.queue.next_due_ms
        return " ".join([f"{word}:", *self.fired, end, f"next={'none' if due_ms is None else due_ms}"])


def run(script: str) -> str:
    """The script with every block's answers as the queue gives them."""
    player = Player()
    blocks = []
    for block in script.strip().split("\n\n"):
        lines = block.partition("\n----")[0].splitlines()
        answers = []
        for line in lines:
            command, *words = line.split()
            if command == "#":
                continue
            if command == "new":
                player = Player()
                answers.append("empty")
            elif command == "at":
                answers += [player.at(word) for word in words]
            else:
                try:
                    answers.append(player.act([command, *words]))
                except StandfastError as error:
                    answers.append(f"{type(error).__name__}: {error}")
        blocks.append("\n".join([*lines, "----", *answers] if answers else lines))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_punctuation_follows_the_script(path: Path) -> None:
    check_script(path, run)


def test_the_scripts_are_there() -> None:
    assert len(SCRIPTS) >= 7


def test_a_wrong_answer_in_a_script_is_found() -> None:
    good = run("schedule A every=100 due=100\nat 99 100\n")
    assert good == (
        "schedule A every=100 due=100\nat 99 100\n----\nA due=100\n99: fired=0 next=100\n100: A(100) fired=1 next=200\n"
    )
    assert run(good) == good
    assert run(good.replace("next=200", "next=201")) == good
