"""The worked examples of the replication: hand-over, credits, standby, as `standfast demo --scenario` plays them.

Rules of this file: as in test_demo_scenarios.py, which plays every scenario: here are the numbers that the rules give,
written down a second time.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from standfast.ops.cli.command_line import main
from standfast.ops.scenarios.stage import SCENARIOS, Stage, play
from support.groups import dear

pytestmark = pytest.mark.slow

STEPS_MIN = {"handover": 29, "credits": 50, "standby": 29}


@pytest.fixture(scope="module")
@dear()
def stages() -> dict[str, Stage]:
    """Each scenario, played once."""
    return {name: play(name) for name in STEPS_MIN}


def seen(stage: Stage, title: str) -> list[Any]:
    (part,) = (part for part in stage.parts if part.title.startswith(title))
    return [step.seen for step in part.steps]


@pytest.mark.parametrize("name", STEPS_MIN)
def test_scenario_is_listed_and_every_step_is_as_expected(stages: dict[str, Stage], name: str) -> None:
    assert name in SCENARIOS
    assert [step for step in stages[name].steps if not step.ok] == []
    assert len(stages[name].steps) >= STEPS_MIN[name]


@pytest.mark.parametrize("name", STEPS_MIN)
def test_command_plays_it(name: str, stages: dict[str, Stage], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--scenario", name]) == 0
    assert capsys.readouterr().out.endswith(f"{name}: {len(stages[name].steps)} steps, all as expected\n")


@pytest.mark.parametrize("name", STEPS_MIN)
def test_scenario_is_the_same_every_time(stages: dict[str, Stage], name: str) -> None:
    assert play(name).to_json() == stages[name].to_json()


def test_hand_over_leaves_no_thread_behind() -> None:
    play("handover")
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("handover-")] == []


def test_woken_batch_is_offered_again_and_comes_once(stages: dict[str, Stage]) -> None:
    steps = seen(stages["handover"], "Wake-up")
    told = [answer for step in steps for answer in step]
    assert told.count("produce B: WakeUp") == 1
    assert [answer for answer in told if answer.startswith("poll")] == ["poll: A", "poll: B"]


def test_batch_in_the_slot_comes_before_the_error(stages: dict[str, Stage]) -> None:
    told = [answer for step in seen(stages["handover"], "Error") for answer in step]
    assert [answer for answer in told if answer.startswith("poll")] == ["poll: A", *["poll: raises E"] * 3]


def test_slow_partition_is_paused_and_the_other_is_not(stages: dict[str, Stage]) -> None:
    steps = seen(stages["credits"], "Nobody applies a")
    assert [step["pause"] for step in steps if "pause" in step] == [["a"]]
    sent = [batch.rstrip("~") for step in steps for batch in step.get("sent", ())]
    assert [batch for batch in sent if batch[0] == "b"] == ["b1", "b2", "b3", "b4", "b5", "b6"]
    assert [batch for batch in sent if batch[0] == "a"] == ["a1", "a2", "a3", "a4"]


def test_pool_goes_to_the_largest_backlog(stages: dict[str, Stage]) -> None:
    steps = seen(stages["credits"], "The pool is one credit")
    assert [step["sent"] for step in steps[-4:]] == [["c2~"], ["c3~"], ["b2~"], ["c4~"]]


def test_batch_wholly_beyond_the_limit_leaves_the_position(stages: dict[str, Stage]) -> None:
    steps = seen(stages["standby"], "Limit 5")
    assert steps[1] == {"applied": [], "position": 5, "kept": 2, "pause": True}
    assert [step["position"] for step in steps] == [5, 5, 6, 7]


def test_limit_never_moves_back(stages: dict[str, Stage]) -> None:
    assert seen(stages["standby"], "A limit never")[2] == {"limit": 2, "refused": True}


def test_standby_has_nothing_before_the_active_tasks_are_restored(stages: dict[str, Stage]) -> None:
    steps = seen(stages["standby"], "On a real log")
    assert steps[:2] == [{"rows": 0, "position": -1}, {"rows": 10, "position": 10}]
    assert steps[3] == "truncated"
