"""Placement of standbys where the application's consumer group decides the actives."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.replication.offsets import TaskId
from standfast.replication.placement.group_standbys import PlacedStandbys, may_release, place_standbys
from standfast.replication.takeover import MemberPlan

T = [TaskId(0, number) for number in range(8)]
Members = dict[str, MemberPlan]


def plan(active: str = "", standby: str = "", warm: str = "") -> MemberPlan:
    """Digits are partitions."""
    tasks = [frozenset(T[int(digit)] for digit in text) for text in (active, standby, warm)]
    return MemberPlan(tasks[0], tasks[1], warm=tasks[2])


def shown(placed: PlacedStandbys) -> dict[str, str]:
    return {name: "".join(str(task.partition) for task in sorted(tasks)) for name, tasks in placed.standbys.items()}


@pytest.mark.parametrize(
    ("members", "replicas", "standbys", "missing"),
    [
        ({}, 1, {}, 0),
        ({"a": plan("01")}, 0, {"a": ""}, 0),
        ({"a": plan("01")}, 1, {"a": ""}, 2),  # no other member: no replica fits, and it reports so
        ({"a": plan("01"), "b": plan("23")}, 1, {"a": "23", "b": "01"}, 0),
        ({"a": plan("01"), "b": plan("23")}, 2, {"a": "23", "b": "01"}, 4),
        ({"a": plan("0123"), "b": plan()}, 1, {"a": "", "b": "0123"}, 0),  # never active and standby on one
        ({"a": plan("0123"), "b": plan(), "c": plan()}, 1, {"a": "", "b": "02", "c": "13"}, 0),
        ({"a": plan("0123", ""), "b": plan("", "0123"), "c": plan()}, 1, {"a": "", "b": "23", "c": "01"}, 0),  # evened
        ({"a": plan("01"), "b": plan("2", "01"), "c": plan("3", "2")}, 1, {"a": "3", "b": "01", "c": "2"}, 0),  # sticky
        ({"a": plan("0", "1"), "b": plan("1", "0"), "c": plan("", "")}, 1, {"a": "1", "b": "0", "c": ""}, 0),  # sticky
        ({"a": plan("", "0"), "b": plan()}, 1, {"a": "0", "b": ""}, 0),  # between two owners: it stays, none is added
        ({"a": plan("0"), "b": plan("0", "1"), "c": plan("1")}, 1, {"a": "", "b": "1", "c": "0"}, 0),  # two claim 0
        ({"a": plan("0", "0"), "b": plan()}, 1, {"a": "", "b": "0"}, 0),  # promoted just now
        ({"a": plan("0"), "b": plan("", "0"), "c": plan("", "0")}, 1, {"a": "", "b": "0", "c": ""}, 0),  # surplus
    ],
)
def test_placement(members: Members, replicas: int, standbys: dict[str, str], missing: int) -> None:
    placed = place_standbys(members, replicas)
    assert (shown(placed), placed.missing) == (standbys, missing)


def test_standby_is_kept_until_its_taker_has_caught_up() -> None:
    cold: Members = {"a": plan("0123"), "b": plan("", "0123"), "c": plan("", "01")}
    placed = place_standbys(cold, 1)
    assert shown(placed) == {"a": "", "b": "23", "c": "01"}
    assert not may_release("b", T[0], placed, cold)
    assert may_release("b", T[0], placed, {**cold, "c": plan("", "01", "0")})
    assert not may_release("b", T[1], placed, {**cold, "c": plan("", "01", "0")})


def test_standby_that_nobody_takes_over_is_let_go() -> None:
    members: Members = {"a": plan("0"), "b": plan("", "0")}
    assert may_release("b", T[0], place_standbys(members, 0), members)


@st.composite
def groups(draw: st.DrawFn) -> tuple[Members, int]:
    names = [f"m{number}" for number in range(draw(st.integers(1, 5)))]
    owners = draw(st.lists(st.sampled_from([*names, ""]), min_size=len(T), max_size=len(T)))
    holding = draw(st.lists(st.sets(st.sampled_from(names)), min_size=len(T), max_size=len(T)))
    members = {
        name: MemberPlan(
            frozenset(task for task, owner in zip(T, owners, strict=True) if owner == name),
            frozenset(task for task, held in zip(T, holding, strict=True) if name in held),
        )
        for name in names
    }
    return members, draw(st.integers(0, 3))


@given(groups())
def test_no_task_is_active_and_standby_on_one_member_and_what_fits_is_made(group: tuple[Members, int]) -> None:
    members, replicas = group
    placed = place_standbys(members, replicas)
    missing = 0
    for task in T:
        active = {name for name, one in members.items() if task in one.active}
        standby = {name for name, tasks in placed.standbys.items() if task in tasks}
        assert not active & standby
        able = len(members) - len(active)
        if active:
            assert len(standby) == min(replicas, able)
            missing += replicas - len(standby)
        else:
            held = {name for name, one in members.items() if task in one.standby}
            assert standby <= held
            assert len(standby) == min(len(held), replicas)
    assert placed.missing == missing


@given(groups(), st.randoms(use_true_random=False))
def test_members_that_act_one_by_one_come_to_rest_and_no_task_loses_its_standby_on_the_way(
    group: tuple[Members, int], random: object
) -> None:
    members, replicas = dict(group[0]), group[1]
    still = 0
    for _ in range(200):
        name = random.choice(sorted(members))  # type: ignore[attr-defined]
        one = members[name]
        placed = place_standbys(members, replicas)
        kept = {task for task in one.standby if task not in one.active}
        gone = {t for t in kept - placed.standbys[name] if may_release(name, t, placed, members)}
        mine = frozenset((kept - gone) | placed.standbys[name])
        for task in kept - mine:
            takers = [other for other, held in placed.standbys.items() if task in held]
            assert replicas == 0 or takers or not any(task in other.active for other in members.values())
        # All members catch up by the next look.
        after = MemberPlan(one.active, mine, warm=frozenset(one.standby & mine))
        still = still + 1 if after == one else 0
        members[name] = after
        if still > 12 * len(members):
            break
    else:
        raise AssertionError("the members do not come to rest")
    placed = place_standbys(members, replicas)
    assert {name: one.standby for name, one in members.items()} == dict(placed.standbys)


@given(groups())
def test_members_that_act_at_once_come_to_rest_evenly(group: tuple[Members, int]) -> None:
    members, replicas = dict(group[0]), group[1]
    for _ in range(30):
        placed = place_standbys(members, replicas)
        after = {}
        for name, one in members.items():
            stays = {t for t in one.standby - one.active if not may_release(name, t, placed, members)}
            mine = frozenset(stays | placed.standbys[name])
            after[name] = MemberPlan(one.active, mine, warm=frozenset(one.standby & mine))
        if after == members:
            break
        members = after
    else:
        raise AssertionError("the members do not come to rest")
    counts = Counter({name: len(one.standby) for name, one in members.items()})
    for task in T:
        active = {name for name, one in members.items() if task in one.active}
        standby = {name for name, one in members.items() if task in one.standby}
        for fuller in standby if active else ():
            for other in members.keys() - active - standby:
                assert counts[fuller] - counts[other] < 2, "a standby could move to an emptier member"
