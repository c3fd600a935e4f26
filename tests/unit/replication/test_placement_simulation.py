"""Seeded simulations of managed placement: its promises hold for every seed, and the checks see broken ones.

`make simulate SEEDS=n` plays n seeds. STANDFAST_PLACEMENT_SEEDS is the number that the `long` test plays.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from time import process_time  # processor time of this process, which other processes cannot lengthen

import pytest

from standfast.replication.offsets import TaskId
from standfast.replication.placement.model import (
    Away,
    Copy,
    CopyState,
    MoveKind,
    PlacedMember,
    PlacementSettings,
    Round,
    View,
)
from standfast.replication.placement.place import place
from support.placement_simulation import play as playing
from support.placement_simulation.checks import rest_problems, round_problems
from support.placement_simulation.cluster import Cluster, Instance
from support.placement_simulation.play import Plan, play

CHUNKS = 4
QUICK_SEEDS = 300
LONG_SEEDS = int(os.environ.get("STANDFAST_PLACEMENT_SEEDS", "1000"))


def broken(seeds: range) -> dict[int, list[str]]:
    """Broken promises by seed."""
    found = {seed: play(Plan(seed)).problems for seed in seeds}
    return {seed: problems for seed, problems in found.items() if problems}


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_promises_hold_for_300_seeds(chunk: int) -> None:
    assert broken(range(chunk, QUICK_SEEDS, CHUNKS)) == {}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_promises_hold_for_many_seeds(chunk: int) -> None:
    assert broken(range(QUICK_SEEDS + chunk, QUICK_SEEDS + LONG_SEEDS, CHUNKS)) == {}


def test_equal_seeds_give_equal_courses() -> None:
    options = Plan(7, instances=3, tasks=9, changes=3)
    assert play(options) == play(options)


# --- the checks bite --------------------------------------------------------------------------------


def _both(result: Round) -> Round:
    """Every task stands by where it is active."""
    one = result.assignment
    return replace(result, assignment=replace(one, standbys={task: (name,) for task, name in one.active.items()}))


def _all_on_one(result: Round) -> Round:
    one = result.assignment
    first = min(one.active.values(), default="")
    return replace(result, assignment=replace(one, active=dict.fromkeys(one.active, first), after={}, standbys={}))


def _none(result: Round) -> Round:
    return replace(result, assignment=replace(result.assignment, active={}))


def _many_warmups(result: Round) -> Round:
    one = result.assignment
    return replace(result, assignment=replace(one, warmups=dict.fromkeys(one.active, "zz")))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (_both, "is active on i001 and has copies on"),
        (_all_on_one, "i001 has 8 tasks, and its bound is 4"),
        (_none, "has no owner, and no reason"),
        (_many_warmups, "elective copies at once"),
    ],
)
def test_faulty_placement_is_found(
    fault: Callable[[Round], Round], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("support.placement_simulation.cluster.place", lambda view: fault(place(view)))
    monkeypatch.setattr(playing, "QUIET_TICKS_MAX", 20)
    found = [problem for seed in range(8) for problem in play(Plan(seed, instances=3, tasks=8)).problems]
    assert any(words in problem for problem in found), found[:5]


def test_placement_that_never_rests_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "QUIET_TICKS_MAX", 50)
    monkeypatch.setattr("support.placement_simulation.cluster.place", lambda view: replace(place(view), again_ms=1))
    assert play(Plan(1)).problems == ["no rest after 50 quiet ticks"]


# --- whole courses ----------------------------------------------------------------------------------


class Course:
    """Three or fewer instances with tasks of 20,000 records, whose rounds are all checked."""

    def __init__(self, *names: str, tasks: int = 12, replicas: int = 1, grace_ms: int = 30_000) -> None:
        ids = [TaskId(0, number) for number in range(tasks)]
        settings = PlacementSettings(
            standby_replicas=replicas, acceptable_lag=1_000, restart_grace_ms=grace_ms, probe_interval_ms=1_000
        )
        self.cluster = Cluster(Random(1), settings, dict.fromkeys(ids, 20_000), dict.fromkeys(ids, 100), late_share=0.0)
        self.hand_overs: Counter[TaskId] = Counter()
        self.taken: Counter[TaskId] = Counter()
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        one = self.cluster.instances.get(name) or Instance(name, 1, None, {}, 100_000)
        self.cluster.start(one)

    def go(self, ticks: int) -> None:
        for _ in range(ticks):
            view = self.cluster.view()
            result = self.cluster.round(view)
            assert list(round_problems(view, result)) == []
            self.hand_overs.update(move.task for move in result.moves if move.kind is MoveKind.HAND_OVER)
            self.taken.update(move.task for move in result.moves if move.kind is MoveKind.TAKE_OVER)
            self.cluster.carry_out()

    @property
    def counts(self) -> dict[str, int]:
        assert self.cluster.previous is not None
        return dict(Counter(self.cluster.serving(task) or "" for task in self.cluster.ends))

    def check_rest(self) -> None:
        view = self.cluster.view()
        assert list(rest_problems(self.cluster, view, place(view))) == []


def test_second_instance_gets_half_of_the_tasks_and_each_stands_by_for_the_other() -> None:
    course = Course("a")
    course.go(10)
    assert course.counts == {"a": 12}
    course.start("b")
    course.go(20)
    assert course.counts == {"a": 6, "b": 6}
    assert set(course.hand_overs.values()) == {1} and not course.taken
    course.check_rest()


def test_rolling_restart_hands_each_task_over_at_most_once_and_restores_only_tails() -> None:
    course = Course("a", "b", "c")
    course.go(40)
    course.check_rest()
    assert course.cluster.previous is not None
    before = course.cluster.previous.active
    course.hand_overs.clear()
    for name in ("a", "b", "c"):
        rows = {one.id: set(one.rows) for one in course.cluster.instances.values()}
        course.cluster.stop(name)
        course.go(5)
        course.start(name)
        course.go(20)
        new = {one.id: set(one.rows) - rows[one.id] for one in course.cluster.instances.values()}
        assert not any(new.values()), "no instance restored a task from the beginning"
    assert max(course.hand_overs.values()) == 1
    assert course.cluster.previous.active == before
    course.check_rest()


def test_restart_within_the_grace_moves_nothing_where_no_standby_is() -> None:
    course = Course("a", "b", "c", replicas=0)
    course.go(10)
    course.taken.clear()
    course.cluster.stop("b")
    course.go(5)
    assert course.counts == {"a": 4, "c": 4, "": 4}
    course.start("b")
    course.go(5)
    assert course.counts == {"a": 4, "b": 4, "c": 4}
    assert not course.hand_overs and not course.taken


def test_instance_that_stays_away_longer_than_the_grace_loses_its_tasks() -> None:
    course = Course("a", "b", replicas=0, grace_ms=5_000)
    course.go(10)
    course.cluster.stop("b")
    course.go(12)
    assert course.counts == {"a": 12}


# --- size -------------------------------------------------------------------------------------------


def carried_out(result: Round, count: int) -> tuple[PlacedMember, ...]:
    """Members that do as the assignment says, all caught up."""
    copies: dict[str, dict[TaskId, Copy]] = {f"i{number:03}": {} for number in range(count)}
    for task, name in result.assignment.active.items():
        copies.setdefault(name, {})[task] = Copy(CopyState.RUNNING, 0)
    for task, names in result.assignment.standbys.items():
        for name in names:
            copies.setdefault(name, {})[task] = Copy(CopyState.STANDBY, 0)
    return tuple(
        PlacedMember(
            f"i{number:03}", rack=f"r{number % 3}", tags={"host": f"h{number // 2}"}, copies=copies[f"i{number:03}"]
        )
        for number in range(count)
    )


@pytest.mark.slow
@pytest.mark.long
def test_round_of_500_instances_and_20_000_tasks_takes_less_than_a_second_of_processor_time() -> None:
    tasks = tuple(TaskId(group, number) for group in range(4) for number in range(5_000))
    settings = PlacementSettings(standby_replicas=1)
    empty = tuple(PlacedMember(f"i{number:03}", rack=f"r{number % 3}") for number in range(500))
    cold = place(View(empty, tasks, settings))
    steady = View(carried_out(cold, 500), tasks, settings, cold.assignment)
    left = replace(steady, members=carried_out(cold, 495), away={"i499": Away(60_000)})
    joined = replace(steady, members=carried_out(cold, 505))
    for view in (steady, replace(steady, previous=None), left, joined):
        # On a busy machine the first run may find cold caches.
        assert min(_seconds(view) for _ in range(2)) < 1.0


def _seconds(view: View) -> float:
    begin = process_time()
    place(view)
    return process_time() - begin


@pytest.mark.slow
@pytest.mark.parametrize(
    ("instances", "tasks", "changes"),
    [
        pytest.param(60, 2_000, 1),
        pytest.param(200, 20_000, 3, marks=[pytest.mark.long, pytest.mark.timeout(1_800)]),
    ],
)
@pytest.mark.long
def test_promises_hold_for_large_applications(instances: int, tasks: int, changes: int) -> None:
    assert play(Plan(3, instances, tasks, changes)).problems == []
