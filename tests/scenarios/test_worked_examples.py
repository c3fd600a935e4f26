"""The worked examples of `proof/worked_examples`: every step as expected, and a wrong number is found.

Rules of this file: scenarios are played unchanged, on the real parts; the example numbers of the rules are repeated
here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from support.groups import costly
from worked_examples.stage import SCENARIOS, Stage, play

pytestmark = pytest.mark.slow

STEPS_MIN = {"punctuator": 28, "windows": 32, "watermarks": 36, "timers": 17, "chaining": 15}
STEPS_MIN |= {"handover": 29, "credits": 50, "standby": 29}


@pytest.fixture(scope="module")
@costly()
def stages() -> dict[str, Stage]:
    """Each scenario, played."""
    return {name: play(name) for name in SCENARIOS}


@pytest.fixture
def seen(stages: dict[str, Stage]) -> Callable[..., list[Any]]:
    """Results in the part of a scenario whose title begins so, step by step."""

    def steps(scenario: str, title: str) -> list[Any]:
        (part,) = (part for part in stages[scenario].parts if part.title.startswith(title))
        return [step.seen for step in part.steps]

    return steps


# --- every scenario


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_step_is_as_expected(stages: dict[str, Stage], name: str) -> None:
    stage = stages[name]
    assert [step for step in stage.steps if not step.ok] == []
    assert stage.ok
    assert len(stage.steps) >= STEPS_MIN[name]
    assert all(step.given for step in stage.steps)


# --- numbers


def test_missed_intervals_keep_the_phase(seen: Callable[..., list[Any]]) -> None:
    assert seen("punctuator", "Missed intervals")[1] == {"fired": [21_000], "next": 25_000}


@pytest.mark.parametrize(
    ("title", "fired"),
    [("first due at 0", [1_000, 8_000, 10_000]), ("start = 1 s", [1_000, 8_000])],
)
def test_records_at_1_4_8_10_fire_as_the_rule_says(stages: dict[str, Stage], title: str, fired: list[int]) -> None:
    (part,) = (part for part in stages["punctuator"].parts if title in part.title)
    assert [one for step in part.steps for one in step.seen] == fired


def test_wall_clock_fires_first_one_interval_after_it_was_made(seen: Callable[..., list[Any]]) -> None:
    assert seen("punctuator", "Wall clock")[:3] == [[], [105_000], [121_000]]


def test_stream_time_goes_before_the_wall_clock(seen: Callable[..., list[Any]]) -> None:
    assert seen("punctuator", "Both clocks")[1] == ["stream time 7000", "wall clock 105000"]


def test_window_of_1667200780479_begins_at_1667200770000(seen: Callable[..., list[Any]]) -> None:
    assert seen("windows", "Where a window lies")[0] == [{"start": 1_667_200_770_000, "end": 1_667_200_860_000}]


def test_grace_ends_exactly_where_the_end_is_not_above_observed_less_grace(seen: Callable[..., list[Any]]) -> None:
    assert [one["dropped"] for one in seen("windows", "Grace")] == [0, 1, 1, 3]


def test_each_final_result_comes_once_across_restarts(seen: Callable[..., list[Any]]) -> None:
    finals = [one for step in seen("windows", "Results on update and on close") for one in step["finals"]]
    assert [(one["start"], one["count"]) for one in finals] == [(0, 3), (10, 2)]


def test_watermark_never_goes_back(seen: Callable[..., list[Any]]) -> None:
    marks = [one["watermark"] for one in seen("watermarks", "One source")[1:-1]]
    assert marks == sorted(marks) == [94, 94, 97, 97, 97, 97, 104]


def test_downstream_of_a_topic_takes_the_smallest_watermark(seen: Callable[..., list[Any]]) -> None:
    assert [one["1_0"] for one in seen("watermarks", "Across a repartition topic")] == [None, 50, 50, 150, 150]


def test_timers_fire_by_time_and_then_by_key(seen: Callable[..., list[Any]]) -> None:
    assert [one for step in seen("timers", "Order") for one in step][:4] == [["c", 20], ["a", 30], ["b", 30], ["a", 31]]


def test_topology_is_shown_as_text_and_as_mermaid(stages: dict[str, Stage]) -> None:
    text = stages["chaining"].parts[0].text
    assert "Sub-topology: 1" in text
    assert "flowchart LR" in text


def test_direct_call_hands_on_the_same_object_and_a_topic_does_not(seen: Callable[..., list[Any]]) -> None:
    assert [one["same_object"] for one in seen("chaining", "One record")] == [False, True, False]


# --- the replication


@pytest.mark.parametrize("name", ["handover", "credits", "standby"])
def test_scenario_is_the_same_every_time(stages: dict[str, Stage], name: str) -> None:
    assert play(name).parts == stages[name].parts


def test_hand_over_leaves_no_thread_behind() -> None:
    play("handover")
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("handover-")] == []


def test_woken_batch_is_offered_again_and_comes_once(seen: Callable[..., list[Any]]) -> None:
    steps = seen("handover", "Wake-up")
    told = [answer for step in steps for answer in step]
    assert told.count("produce B: WakeUp") == 1
    assert [answer for answer in told if answer.startswith("poll")] == ["poll: A", "poll: B"]


def test_batch_in_the_slot_comes_before_the_error(seen: Callable[..., list[Any]]) -> None:
    told = [answer for step in seen("handover", "Error") for answer in step]
    assert [answer for answer in told if answer.startswith("poll")] == ["poll: A", *["poll: raises E"] * 3]


def test_slow_partition_is_paused_and_the_other_is_not(seen: Callable[..., list[Any]]) -> None:
    steps = seen("credits", "Partition a stands still")
    assert [step["pause"] for step in steps if "pause" in step] == [["a"]]
    sent = [batch.rstrip("~") for step in steps for batch in step.get("sent", ())]
    assert [batch for batch in sent if batch[0] == "b"] == ["b1", "b2", "b3", "b4", "b5", "b6"]
    assert [batch for batch in sent if batch[0] == "a"] == ["a1", "a2", "a3", "a4"]


def test_pool_goes_to_the_largest_backlog(seen: Callable[..., list[Any]]) -> None:
    steps = seen("credits", "The pool is one credit")
    assert [step["sent"] for step in steps[-4:]] == [["c2~"], ["c3~"], ["b2~"], ["c4~"]]


def test_batch_wholly_beyond_the_limit_leaves_the_position(seen: Callable[..., list[Any]]) -> None:
    steps = seen("standby", "Limit 5")
    assert steps[1] == {"applied": [], "position": 5, "kept": 2, "pause": True}
    assert [step["position"] for step in steps] == [5, 5, 6, 7]


def test_limit_never_moves_back(seen: Callable[..., list[Any]]) -> None:
    assert seen("standby", "A limit never")[2] == {"limit": 2, "refused": True}


def test_standby_has_nothing_before_the_active_tasks_are_restored(seen: Callable[..., list[Any]]) -> None:
    steps = seen("standby", "On a real log")
    assert steps[:2] == [{"rows": 0, "position": -1}, {"rows": 10, "position": 10}]
    assert steps[3] == "truncated"


# --- a wrong number


def test_wrong_expectation_is_not_as_expected() -> None:
    stage = play("timers")
    assert stage.ok
    stage.step("a planted step", 25_000, 26_000, "the phase is kept")
    assert [step.ok for step in stage.steps][-2:] == [True, False]
    assert not stage.ok


def test_scenario_without_a_step_is_not_as_expected() -> None:
    assert not Stage("empty").ok
