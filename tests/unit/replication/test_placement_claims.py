"""Which copies take the tasks of a killed instance before the leader has decided, and what the leader makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from standfast.replication.offsets import TaskId
from standfast.replication.placement.model import Assignment, Away, Copy, CopyState, MoveKind, PlacedMember, View
from standfast.replication.placement.place import place
from standfast.replication.takeover import TURN_MS, claimed, orphans, to_claim

T = [TaskId(0, number) for number in range(4)]
VALID = Assignment(5, active={T[0]: "dead", T[1]: "b"}, standbys={T[0]: ("b", "c"), T[1]: ("c",)})
LIVE = ("b", "c", "d")


def claims(me: str, *ready: TaskId, **other: Any) -> frozenset[TaskId]:
    given: dict[str, Any] = {
        "orphans": orphans(VALID.active, LIVE),
        "members": LIVE,
        "owners": {T[0]: "dead", T[1]: "b"},
        "places": None,
        "gone_ms": {"dead": 0},
    }
    return to_claim(standbys=VALID.standbys, me=me, ready=ready, **{**given, **other})


def test_first_live_copy_claims_at_once_and_the_next_one_in_its_turn() -> None:
    assert claims("b", T[0]) == {T[0]}
    assert claims("c", T[0], T[1]) == frozenset()
    assert claims("c", T[0], T[1], gone_ms={"dead": TURN_MS}) == {T[0]}
    assert claims("c", T[0], members=("c", "d")) == {T[0]}, "the first copy is gone as well"
    assert claims("d", T[0], gone_ms={"dead": 10 * TURN_MS}) == frozenset(), "the generation names no copy there"


def test_task_that_another_live_instance_has_claimed_stays_there_and_an_own_claim_is_kept() -> None:
    assert claims("c", T[0], owners={T[0]: "b"}, gone_ms={"dead": 10 * TURN_MS}) == frozenset()
    assert claims("b", owners={T[0]: "b"}) == {T[0]}


def test_copy_that_cannot_begin_now_and_one_without_a_place_claim_nothing() -> None:
    assert claims("b") == frozenset()
    assert claims("b", T[0], places=0) == claims("b", T[0], places=-1) == frozenset()
    assert claims("b", T[0], places=1) == {T[0]}
    assert claims("b", places=0, owners={T[0]: "b"}) == {T[0]}, "it has a place already"


def test_tasks_of_live_instances_are_not_to_be_claimed() -> None:
    assert orphans(VALID.active, (*LIVE, "dead")) == {}
    assert orphans(VALID.active, LIVE) == {T[0]: "dead"}


def placed(**states: CopyState) -> tuple[PlacedMember, ...]:
    mine = {"b": {T[1]: Copy(CopyState.RUNNING, 0)}}
    return tuple(
        PlacedMember(name, 1, None, {}, {T[0]: Copy(state, 0), **mine.get(name, {})}) for name, state in states.items()
    )


@pytest.mark.parametrize("read", [CopyState.STANDBY, CopyState.RESTORING, CopyState.RUNNING])
def test_leader_keeps_a_claim_whatever_the_claimants_report_says_by_then(read: CopyState) -> None:
    """Without it the task goes to the most caught-up copy, here `b`."""
    away = {"dead": Away(0, stopped=False)}
    view = View(members=placed(b=CopyState.STANDBY, c=read), tasks=tuple(T[:2]), previous=VALID, away=away)
    if read is CopyState.STANDBY:
        assert place(view).assignment.active[T[0]] == "b"
    owners = {T[0]: "c", T[1]: "b"}
    found = place(replace(view, claimed=claimed([T[0]], VALID.standbys, owners)))
    assert found.assignment.active == {T[0]: "c", T[1]: "b"}
    assert [(one.kind, one.task, one.source, one.target) for one in found.moves if one.task == T[0]][:1] == [
        (MoveKind.TAKE_OVER, T[0], "dead", "c")
    ]
    assert found.assignment.homes == {T[0]: "dead"}


def test_last_owner_that_is_no_copy_has_claimed_nothing() -> None:
    assert claimed([T[0]], VALID.standbys, {T[0]: "d"}) == {}
    assert claimed([T[0]], VALID.standbys, {}) == {}
    assert claimed([T[0]], VALID.standbys, {T[0]: "b", T[1]: "b"}) == {T[0]: "b"}
