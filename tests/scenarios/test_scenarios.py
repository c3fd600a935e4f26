"""Scripted histories of single parts: inputs, `----`, results. The format stands in `scenarios/script.py`.

    tests/scenarios/credits/*.txt         scripts of a machine, played by its player in `support.players`
    proof/worked_examples/data/*.txt            worked examples, played by the players beside them

Rules of this file: `STANDFAST_REWRITE=1` writes the answers into the scripts: commit such a change only after
understanding every line of it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.players import PLAYERS
from worked_examples.script import Player, run
from worked_examples.stage import DATA, SCENARIOS, Stage, script_of

SCRIPTS = [path for machine in PLAYERS for path in sorted((Path(__file__).parent / machine).glob("*.txt"))]
SCRIPTS_MIN = {
    "aggregation": 9,
    "credits": 7,
    "handover": 5,
    "punctuation": 7,
    "standby": 6,
    "watermarks": 7,
    "windows": 7,
}


def check_script(path: Path, player: Player) -> None:
    """Play a script; its answers must equal those in the file."""
    played = list(run(path.read_text(encoding="utf-8"), player))
    if os.environ.get("STANDFAST_REWRITE") == "1":
        path.write_text("\n\n".join(map(str, played)) + "\n", encoding="utf-8")
    assert [f"{path.name}, {one}" for block in played for one in block.differences()] == []


@pytest.mark.parametrize("path", SCRIPTS, ids=[f"{path.parent.name}-{path.stem}" for path in SCRIPTS])
def test_machine_follows_the_script(path: Path) -> None:
    check_script(path, PLAYERS[path.parent.name]())


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_worked_example_follows_its_script(name: str) -> None:
    check_script(DATA / f"{name}.txt", Stage(name))


def test_the_scripts_are_there() -> None:
    count = {machine: sum(path.parent.name == machine for path in SCRIPTS) for machine in PLAYERS}
    assert [machine for machine, least in SCRIPTS_MIN.items() if count[machine] < least] == []
    assert sorted(path.stem for path in DATA.glob("*.txt")) == sorted(SCENARIOS)
    assert all(script_of(name).startswith(f"# The scenario `{name}`") for name in SCENARIOS)


GOOD = {
    "aggregation": "new tumbling size=10\na@1\n----\nready\na@1:\n  a 0..10 1 (was null) at 1\n",
    "credits": "add a credits=1\nfetched a1\n----\n-\na1(0)\n",
    "handover": ("produce A\nproduce B\npoll\n----\nproduce A: taken\nproduce B: waits\nproduce B: taken, poll: A\n"),
    "punctuation": (
        "schedule A every=100 due=100\nat 99 100\n----\nA due=100\n99: fired=0 next=100\n100: A(100) fired=1 next=200\n"
    ),
    "standby": "update 0 1\n----\napplied 0 1 position=2 kept=0\n",
    "watermarks": (
        "task 0_0 flights/0\nsay flights/0 7\n----\n0_0: reads flights/0\n0_0: clock 7, timers to 7, send 7\n"
    ),
    "windows": ("tumbling size=10\nrecord 9 10\n----\nempty\n9: put [0, 10) 9\n10: put [10, 20) 10, close [0, 10)\n"),
}
WRONG = {
    "aggregation": (("0..10 1", "0..10 2"), 6),
    "credits": (("a1(0)", "a1(1)"), 5),
    "handover": (("poll: A", "poll: B"), 7),
    "punctuation": (("next=200", "next=201"), 6),
    "standby": (("position=2", "position=3"), 3),
    "watermarks": (("clock 7", "clock 8"), 5),
    "windows": (("put [0, 10) 9", "put [0, 10) 8"), 5),
}


@pytest.mark.parametrize("machine", PLAYERS)
def test_wrong_answer_in_a_script_is_found_with_its_line(machine: str) -> None:
    good = GOOD[machine]
    (now, then), line = WRONG[machine]
    wrong = good.replace(now, then)
    (played,) = run(wrong, PLAYERS[machine]())
    lines = good.splitlines()
    assert list(played.differences()) == [
        f"line {line}: got {lines[line - 1]!r}, expected {wrong.splitlines()[line - 1]!r}"
    ]
    assert f"{played}\n" == good
    assert [list(played.differences()) for played in run(good, PLAYERS[machine]())] == [[]]


def test_answer_that_is_missing_or_too_many_is_found_with_its_line() -> None:
    script = "# a comment\nupdate 0 1\n\nposition\n\ntick\n----\nkept position=2 kept=0\nand more\n\ntick\n----\n"
    player = PLAYERS["standby"]()
    assert [one for played in run(script, player) for one in played.differences()] == [
        "line 9: got None, expected 'and more'",
        "line 13: got 'kept position=2 kept=0', expected None",
    ]


def test_unknown_command_of_a_script_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="unknown command 'jump 3'"):
        list(run("jump 3\n", PLAYERS["standby"]()))
