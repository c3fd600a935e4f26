"""Worked examples of the time semantics: `standfast demo --scenario NAME` plays one step by step.

    data/NAME.txt ──> the players of NAME.py: command, answer, expected answer, why ──> table or JSON

A script of an example has these commands of its own; an answer is one JSON value, and its comment is the why:

    part TITLE                  a part begins
    machine Pipeline            a player of the module of that name takes the commands that follow
    text topology               the answer of this command is shown above the steps of the part

Rules of this file: it collects steps and prints them; the examples and their numbers are the scripts. A step is as
expected if its answer equals the one in the script.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.resources import files
from typing import Any

from standfast.ops.scenarios.script import Player, run
from standfast.store.errors import InternalError

SCHEMA = "standfast.demo.scenario/1"
EXIT_DIFFERENT = 1
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
                module = import_module(f"standfast.ops.scenarios.{self.scenario}")
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

    def to_json(self) -> dict[str, Any]:
        """The document of `--json`."""
        return {
            "schema": SCHEMA,
            "scenario": self.scenario,
            "ok": self.ok,
            "steps": len(self.steps),
            "parts": [_part_document(part) for part in self.parts],
        }


def play(name: str) -> Stage:
    """Play one of SCENARIOS. Raises InternalError if its script has not one answer for each command."""
    stage = Stage(name)
    for played in run(script_of(name), stage):
        expected = played.block.expected
        if expected is not None and len(expected) != len(played.answers):
            raise InternalError(f"scenario {name}: {', '.join(played.differences())}")
        for command, (seen,), wanted in zip(played.block.commands, played.answers, expected or (), strict=False):
            stage.step(command.told, json.loads(seen), json.loads(wanted), command.why)
    return stage


def script_of(name: str) -> str:
    """The text of one of SCENARIOS."""
    return (files("standfast.ops.scenarios") / f"data/{name}.txt").read_text("utf-8")


def report(stage: Stage, *, as_json: bool) -> int:
    """Print the played steps on stdout; returns the exit code: 0 all as expected, 1 not."""
    from standfast.ops.shared.output import Output
    from standfast.ops.shared.text import dumps

    if as_json:
        print(dumps(stage.to_json(), indent=2))
        return 0 if stage.ok else EXIT_DIFFERENT
    out = Output()
    for part in stage.parts:
        if part.text:
            out.line(f"{part.title}\n\n{part.text.rstrip()}\n")
        rows = [
            (step.given, told(step.seen), told(step.expected), "ok" if step.ok else "WRONG", step.why)
            for step in part.steps
        ]
        if rows:
            columns = ("goes in", "comes out", "expected", "", "why")
            title = "" if part.text else part.title
            out.table(columns, rows, title=title, fold=("goes in", "comes out", "expected", "why"))
            out.line()
    wrong = sum(not step.ok for step in stage.steps)
    count = len(stage.steps)
    out.line(
        f"{stage.scenario}: " + (f"{wrong} of {count} steps WRONG" if wrong else f"{count} steps, all as expected")
    )
    return 0 if stage.ok else EXIT_DIFFERENT


def told(value: Any) -> str:
    """A JSON value for people: `fired 21000, next 25000`; a window with its count as `a 0..10 = 3`."""
    if value is None or value == []:
        return "-"
    if isinstance(value, Mapping):
        if {"start", "end"} <= value.keys():
            return _window_told(value)
        return ", ".join(f"{_label(name)} {told(item)}" for name, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(" ".join(map(told, item)) if isinstance(item, list) else told(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _label(name: str) -> str:
    return name.replace("_", " ") if name.isidentifier() else name  # a task's name, as 1_0, stays


def _window_told(window: Mapping[str, Any]) -> str:
    text = f"{window['start']}..{window['end']}"
    if "key" in window:
        text = f"{window['key']} {text}"
    if "count" not in window:
        return text
    return f"{text} gone" if window["count"] is None else f"{text} = {window['count']}"


def _part_document(part: Part) -> dict[str, Any]:
    steps = [
        {"in": step.given, "seen": step.seen, "expected": step.expected, "ok": step.ok, "why": step.why}
        for step in part.steps
    ]
    return {"title": part.title, **({"text": part.text} if part.text else {}), "steps": steps}
