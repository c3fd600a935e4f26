"""Which copies take the tasks of a killed instance before the leader has decided, and what the leader makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from standfast.replication.leases import IDLE, Busy
from standfast.replication.offsets import TaskId
from standfast.replication.placement.claims import TURN_MS, claimed, orphans, to_claim
from standfast.replication.placement.model import Assignment, Away, Copy, CopyState, MoveKind, PlacedMember, View
from standfast.replication.placement.place import place
from standfast.replication.placement.records import Report

T = [TaskId(0, number) for number in range(4)]
VALID = Assignment(5, active={T[0]: "dead", T[1]: "b"}, standbys={T[0]: ("b", "c"), T[1]: ("c",)})
LIVE = ("b", "c", "d")


def report(**lags: int) -> Report:
    return Report(lags={TaskId.parse(task.replace("t", "0_")): lag for task, lag in lags.items()})


def claims(me: str, mine: Report, **other: Any) -> frozenset[TaskId]:
    given: dict[str, Any] = {
        "orphans": orphans(VALID, LIVE),
        "valid": VALID,
        "members": LIVE,
        "owners": {T[0]: "dead", T[1]: "b"},
        "busy": IDLE,
        "max_tasks": None,
        "acceptable_lag": 100,
        "gone_ms": {"dead": 0},
    }
    return to_claim(me=me, mine=mine, **{**given, **other})


def test_first_live_copy_claims_at_once_and_the_next_one_in_its_turn() -> None:
    assert claims("b", report(t0=3)) == {T[0]}
    assert claims("c", report(t0=0, t1=0)) == frozenset()
    assert claims("c", report(t0=0, t1=0), gone_ms={"dead": TURN_MS}) == {T[0]}
    assert claims("c", report(t0=0), members=("c", "d")) == {T[0]}, "the first copy is gone as well"
    assert claims("d", report(t0=0), gone_ms={"dead": 10 * TURN_MS}) == frozenset(), (
        "the generation names no copy there"
    )


def test_task_that_another_live_instance_has_claimed_stays_there_and_an_own_claim_is_kept() -> None:
    assert claims("c", report(t0=0), owners={T[0]: "b"}, gone_ms={"dead": 10 * TURN_MS}) == frozenset()
    assert claims("b", Report(restoring=frozenset(T[:1])), owners={T[0]: "b"}) == {T[0]}
    assert claims("b", Report(running=frozenset(T[:1])), owners={T[0]: "b"}) == {T[0]}


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        (report(t0=101), {}),
        (report(), {}),
        (Report(lags={T[0]: 0}, restoring=frozenset(T[:1])), {}),
        (Report(lags={T[0]: 0}, no_room="full"), {}),
        (report(t0=0), {"busy": Busy(0, (700,))}),
        (Report(running=frozenset(T[1:2]), lags={T[0]: 0}), {"max_tasks": 1}),
    ],
    ids=["far from the end", "not open", "restores", "full disk", "record in hand", "no place"],
)
def test_copy_that_cannot_begin_now_claims_nothing(mine: Report, other: dict[str, Any]) -> None:
    assert claims("b", mine, **other) == frozenset()


def test_copy_of_an_idle_worker_claims_beside_a_busy_one() -> None:
    workers = (frozenset(T[:1]), frozenset(T[1:2]))
    mine = Report(running=frozenset(T[1:2]), lags={T[0]: 0}, workers=workers)
    assert claims("b", mine, busy=Busy(0, (0, 700))) == {T[0]}
    assert claims("b", mine, busy=Busy(0, (700, 0))) == frozenset()


def test_tasks_of_live_instances_are_not_to_be_claimed() -> None:
    assert orphans(VALID, (*LIVE, "dead")) == {}
    assert orphans(VALID, LIVE) == {T[0]: "dead"}


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
    found = place(replace(view, claimed=claimed([T[0]], VALID, owners)))
    assert found.assignment.active == {T[0]: "c", T[1]: "b"}
    assert [(one.kind, one.task, one.source, one.target) for one in found.moves if one.task == T[0]][:1] == [
        (MoveKind.TAKE_OVER, T[0], "dead", "c")
    ]
    assert found.assignment.homes == {T[0]: "dead"}


def test_last_owner_that_is_no_copy_has_claimed_nothing() -> None:
    assert claimed([T[0]], VALID, {T[0]: "d"}) == {}
    assert claimed([T[0]], VALID, {}) == {}
    assert claimed([T[0]], VALID, {T[0]: "b", T[1]: "b"}) == {T[0]: "b"}
