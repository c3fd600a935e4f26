"""Scenarios as text: commands, `----`, answers. One format for the examples that ship and for the scripts of the tests.

    # why the answers are as they are; blocks are divided by an empty line
    fetched a1 b1                         a command of the player
    wake up, then poll := wake; poll      words for people, and the commands that they stand for: the last one answers
    ----
    a1(0) b1(0)                           the answers, in order: no line, one or several for each command

    text ──> blocks ──> run(text, player) ──> played blocks ──> differences; str: the block with the player's answers

A block without `----` prepares the blocks after it: its answers are not compared.

Rules of this file: text and its comparison. Each machine has one player, a subclass of Player, which carries out the
commands on the real part; a script of ours that cannot be read is our bug and raises.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from standfast.ops.shared.text import dumps
from standfast.store.errors import StandfastError

ANSWERS = "----"
STANDS_FOR = " := "


class Player:
    """Plays one machine: the command `name a b c=1` calls the method `name("a", "b", c=1)`."""

    def act(self, command: str) -> Any:
        """Carry a command out; returns the machine's answer, or the StandfastError that it raised."""
        name, *words = command.split()
        method = getattr(self, name, None)
        if method is None:
            raise ValueError(f"unknown command {command!r}")
        named = {key: int(value) for key, is_named, value in (word.partition("=") for word in words) if is_named}
        try:
            return method(*(word for word in words if "=" not in word), **named)
        except StandfastError as error:
            return error

    def value(self, answer: Any) -> Any:
        """An answer as a JSON value."""
        return type(answer).__name__ if isinstance(answer, StandfastError) else answer

    def lines(self, answer: Any) -> list[str]:
        """An answer as lines of a script."""
        return [dumps(self.value(answer))]

    def end(self) -> None:
        """Release the machine's resources."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a script; `why` is the comment directly above it."""

    given: str
    why: str

    @property
    def actions(self) -> list[str]:
        """Commands for the player."""
        _, stands_for, actions = self.given.partition(STANDS_FOR)
        return actions.split("; ") if stands_for else [self.given]

    @property
    def told(self) -> str:
        """The command as a reader of the report sees it."""
        return self.given.partition(STANDS_FOR)[0]


@dataclass(frozen=True, slots=True)
class Block:
    """A block at a line counted from 1: its `head` as it stands, and the answers expected; None if it prepares."""

    line: int
    head: str
    expected: tuple[str, ...] | None

    @property
    def commands(self) -> Iterator[Command]:
        """Its commands, in order."""
        why: list[str] = []
        for text in self.head.splitlines():
            if text.startswith("#"):
                why.append(text.removeprefix("#").strip())
            else:
                yield Command(text, " ".join(why))
                why = []


@dataclass(frozen=True, slots=True)
class Played:
    """A block with the lines that the player answered to each of its commands; [] if the block prepares."""

    block: Block
    answers: list[list[str]]

    def __str__(self) -> str:
        lines = [line for answer in self.answers for line in answer]
        return "\n".join([self.block.head, *([] if self.block.expected is None else [ANSWERS, *lines])])

    def differences(self) -> Iterator[str]:
        """Answers that differ from those in the script: `line 7: got ..., expected ...`."""
        lines = [line for answer in self.answers for line in answer]
        # Missing and additional lines are differences, too.
        pairs = zip_longest(lines, self.block.expected or ())
        # Behind the head come the line of `----` and the first answer.
        for line, (got, expected) in enumerate(pairs, self.block.line + self.block.head.count("\n") + 2):
            if got != expected:
                yield f"line {line}: got {got!r}, expected {expected!r}"


def blocks_of(text: str) -> Iterator[Block]:
    """The blocks of a script."""
    line = 1
    for block in text.rstrip().split("\n\n"):
        head, has_answers, answers = block.partition(f"\n{ANSWERS}")
        yield Block(line, head, tuple(answers.splitlines()[1:]) if has_answers else None)
        line += block.count("\n") + 2


def run(text: str, player: Player) -> Iterator[Played]:
    """Play a script, block by block."""
    try:
        for block in blocks_of(text):
            answers = []
            for command in block.commands:
                answer = [player.act(action) for action in command.actions][-1]
                if block.expected is not None:
                    answers.append(player.lines(answer))
            yield Played(block, answers)
    finally:
        player.end()
