"""Worked examples of the time semantics and of the replication, played step by step.

    data/NAME.txt ──> the players of NAME.py: command, answer, expected answer, why

A script of an example has these commands of its own; an answer is one JSON value, and its comment is the why:

    part TITLE                  a part begins
    machine Pipeline            a player of the module of that name takes the commands that follow
    text topology               the answer of this command is shown above the steps of the part

Rules of this file: it collects steps; the examples and their numbers are the scripts. A step is as expected if its
answer equals the one in the script.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from worked_examples.script import Player, run

DATA = Path(__file__).parent / "data"
SCENARIOS = ("punctuator", "windows", "watermarks", "timers", "chaining", "handover", "credits", "standby")


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `seen` and `expected` are JSON values."""

    given: str
    seen: Any
    expected: Any
    why: str

    @property
    def ok(self) -> bool:
        """Whether the answer is the expected one."""
        return bool(self.seen == self.expected)


@dataclass(slots=True)
class Part:
    """Steps that belong together; `text` is shown above them as it is."""

    title: str
    text: str = ""
    steps: list[Step] = field(default_factory=list)


class Stage(Player):
    """The steps of a scenario; as a player it passes commands on to that of the machine named last."""

    def __init__(self, scenario: str) -> None:
        self.scenario = scenario
        self.parts: list[Part] = []
        self._machine = Player()

    def act(self, command: str) -> Any:
        """Carry a command out."""
        name, _, rest = command.partition(" ")
        match name:
            case "part":
                self.parts.append(Part(rest))
            case "text":
                self.parts[-1].text = self._machine.act(rest)
            case "machine":
                # The machine before may hold threads and files.
                self.end()
                module = import_module(f"worked_examples.{self.scenario}")
                self._machine = getattr(module, rest)()
            case _:
                return self._machine.act(command)
        return None

    def value(self, answer: Any) -> Any:
        """An answer as a JSON value."""
        return self._machine.value(answer)

    def end(self) -> None:
        """Release the machine's resources."""
        self._machine.end()

    def step(self, given: str, seen: Any, expected: Any, why: str = "") -> None:
        """Add a step to the part begun last."""
        self.parts[-1].steps.append(Step(given, seen, expected, why))

    @property
    def steps(self) -> list[Step]:
        """Every step."""
        return [step for part in self.parts for step in part.steps]

    @property
    def ok(self) -> bool:
        """Whether there were steps and all of them went as expected."""
        steps = self.steps
        return bool(steps) and all(step.ok for step in steps)


def play(name: str) -> Stage:
    """Play one of SCENARIOS. Raises ValueError if its script has not one answer for each command."""
    stage = Stage(name)
    for played in run(script_of(name), stage):
        expected = played.block.expected
        if expected is not None and len(expected) != len(played.answers):
            raise ValueError(f"scenario {name}: {', '.join(played.differences())}")
        for command, (seen,), wanted in zip(played.block.commands, played.answers, expected or (), strict=False):
            stage.step(command.told, json.loads(seen), json.loads(wanted), command.why)
    return stage


def script_of(name: str) -> str:
    """The text of one of SCENARIOS."""
    return (DATA / f"{name}.txt").read_text("utf-8")
