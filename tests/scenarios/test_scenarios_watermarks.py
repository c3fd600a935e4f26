"""Scripted histories of watermarks: what goes in, `----`, what comes out. Scripts: tests/scenarios/watermarks.

    # a comment; blocks are divided by an empty line
    task 0_0 flights/0 weather/0              a task and its inputs; the first one of a block begins anew
    task 1_0 counts/0@0_0 counts/0@0_1        one that is fed by tasks, across a topic; it hears what they send
    source flights/0 disorder=5 idle=100      gives that partition an assigner, from time 0 on
    at 0 flights/0 10 7                       records come at that wall-clock time: late or in time, then their signals
    tick 200                                  the assigners are asked, and idleness is looked at
    say flights/0 10 idle active              signals as they are
    status                                    clock, what holds it back, and every input
    restart 0_0                               the task goes on from its kept state
    ----
    the answer to each command: what each task does, in order

Rules of this file: a runner and nothing else. `STANDFAST_REWRITE=1` writes the answers into the scripts: commit such
a change only if you understand every line of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from standfast.store.errors import StandfastError
from standfast.stream.watermarks import (
    Active,
    AdvanceClock,
    BoundedDisorder,
    Channel,
    FireTimers,
    Idle,
    Signal,
    SourceWatermarks,
    Step,
    Watermark,
    WatermarkValve,
)
from support.scripts import check_script

SCRIPTS = sorted((Path(__file__).parent / "watermarks").glob("*.txt"))


class Player:
    """Tasks by name; what one sends arrives at once at those that have an input of it."""

    def __init__(self) -> None:
        self.tasks: dict[str, WatermarkValve] = {}
        self.inputs: dict[str, list[Channel]] = {}
        self.sources: dict[Channel, SourceWatermarks] = {}

    def task(self, name: str, channels: Sequence[str]) -> list[str]:
        self.inputs[name] = [Channel.parse(channel) for channel in channels]
        self.tasks[name] = WatermarkValve(self.inputs[name])
        return [f"{name}: reads {', '.join(map(str, self.inputs[name]))}"]

    def restart(self, name: str) -> list[str]:
        state = self.tasks[name].to_state()
        self.tasks[name] = WatermarkValve(self.inputs[name])
        self.tasks[name].restore(state)
        kept = " ".join(f"{key}={mark}" for key, mark in state.items())
        return [f"{name}: kept {kept or 'nothing'}", *self.carry_out(name, self.tasks[name].announce())]

    def signals(self, channel: Channel, signals: Sequence[Signal]) -> list[str]:
        said = []
        for signal in signals:
            for name, channels in self.inputs.items():
                outcome = self.tasks[name].on_signal(channel, signal) if channel in channels else None
                if outcome is not None:
                    said += self.carry_out(name, outcome.steps)
        return said

    def carry_out(self, name: str, steps: Sequence[Step]) -> list[str]:
        said = [f"{name}: {', '.join(map(in_words, steps))}"]
        for step in steps:
            if not isinstance(step, AdvanceClock | FireTimers):
                for channel in self.inputs_from(name):
                    said += self.signals(channel, [step.signal])
        return said

    def inputs_from(self, name: str) -> list[Channel]:
        return [one for channels in self.inputs.values() for one in channels if one.upstream == name]

    def records(self, now_ms: int, channel: Channel, times: Sequence[int]) -> list[str]:
        said = []
        for at in times:
            for name, channels in self.inputs.items():
                if channel in channels:
                    late = self.tasks[name].is_late(at)
                    said.append(f"{name}: {channel} {at} is {'late' if late else 'in time'}")
            if channel in self.sources:
                said += self.signals(channel, self.sources[channel].on_record("v", at, now_ms))
        return said

    def tick(self, now_ms: int) -> list[str]:
        said = []
        for channel, source in self.sources.items():
            said += self.signals(channel, source.on_periodic(now_ms))
        return said or ["nothing new"]

    def status(self) -> list[str]:
        said = []
        for name, valve in self.tasks.items():
            seen = valve.statistics()
            inputs = "; ".join(f"{one.channel} {shown(one.watermark_ms)} {one.state}" for one in seen.inputs)
            held = "nothing" if seen.holding_back is None else str(seen.holding_back)
            said.append(f"{name}: clock {shown(seen.clock_ms)}, held back by {held}: {inputs}")
        return said


def shown(mark: int | None) -> str:
    return "unknown" if mark is None else str(mark)


def in_words(step: Step) -> str:
    if isinstance(step, AdvanceClock):
        return f"clock {step.watermark_ms}"
    if isinstance(step, FireTimers):
        return f"timers to {step.until_ms}"
    signal = step.signal
    return f"send {signal.watermark_ms if isinstance(signal, Watermark) else type(signal).__name__.lower()}"


def parse_signal(word: str) -> Signal:
    if word == "idle":
        return Idle()
    return Active() if word == "active" else Watermark(int(word))


def act(player: Player, words: list[str]) -> list[str]:
    match words:
        case ["task", name, *channels]:
            return player.task(name, channels)
        case ["source", text, *rest]:
            given = {key: int(value) for key, _, value in (word.partition("=") for word in rest)}
            assigner = BoundedDisorder(given["disorder"])
            player.sources[Channel.parse(text)] = SourceWatermarks(assigner, idle_after_ms=given.get("idle"))
            return [f"{text}: source"]
        case ["at", now_ms, text, *times]:
            return player.records(int(now_ms), Channel.parse(text), [int(at) for at in times])
        case ["tick", now_ms]:
            return player.tick(int(now_ms))
        case ["say", text, *signals]:
            return player.signals(Channel.parse(text), [parse_signal(word) for word in signals]) or ["nothing new"]
        case ["status"]:
            return player.status()
        case ["restart", name]:
            return player.restart(name)
    raise ValueError(f"unknown command {' '.join(words)!r}")


def run(script: str) -> str:
    """The script with every block's answers as the tasks give them."""
    player = Player()
    blocks = []
    for block in script.strip().split("\n\n"):
        lines = block.partition("\n----")[0].splitlines()
        commands = [line.split() for line in lines if not line.startswith("#")]
        if commands and commands[0][0] == "task":
            player = Player()
        answers = []
        for words in commands:
            try:
                answers += act(player, words)
            except StandfastError as error:
                answers.append(f"{type(error).__name__}: {error}")
        blocks.append("\n".join([*lines, "----", *answers] if answers else lines))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_watermarks_follow_the_script(path: Path) -> None:
    check_script(path, run)


def test_the_scripts_are_there() -> None:
    assert len(SCRIPTS) >= 7


def test_a_wrong_answer_in_a_script_is_found() -> None:
    good = run("task 0_0 flights/0\nsay flights/0 7\n")
    assert good == (
        "task 0_0 flights/0\nsay flights/0 7\n----\n0_0: reads flights/0\n0_0: clock 7, timers to 7, send 7\n"
    )
    assert run(good) == good
    assert run(good.replace("clock 7", "clock 8")) == good
