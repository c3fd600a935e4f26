"""The member that takes over a task: every rule, then random groups against the promise of exactly one such member.

Rules of this file: members are named a, b, c; a is the first by id.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.replication.log import GroupView, Member
from standfast.replication.offsets import TaskId
from standfast.replication.takeover import MemberPlan, decide, plans, standby_wanted
from standfast.store.errors import InvalidRequest

T0, T1, T2 = TaskId(0, 0), TaskId(0, 1), TaskId(0, 2)
ALL = frozenset({T0, T1, T2})


def standing_by(*tasks: TaskId, takes_any: bool = False) -> MemberPlan:
    return MemberPlan(standby=frozenset(tasks), takes_any=takes_any)


def running(*tasks: TaskId) -> MemberPlan:
    return MemberPlan(active=frozenset(tasks))


ONE = frozenset({T0})
TAKES_ANY = standing_by(takes_any=True)


@pytest.mark.parametrize(
    ("me", "members", "owners", "tasks", "taken"),
    [
        pytest.param("b", {"b": standing_by(T0)}, {T0: "a"}, ONE, {T0}, id="owner is gone"),
        pytest.param("b", {"a": running(), "b": standing_by(T0)}, {T0: "a"}, ONE, set(), id="owner is alive"),
        pytest.param("b", {"a": running(T0), "b": standing_by(T0)}, {T0: "x"}, ONE, set(), id="a live one runs it"),
        pytest.param(
            "b", {"b": standing_by(T0)}, {}, ONE, set(), id="never owned: a standby waits for the first owner"
        ),
        pytest.param("b", {"b": standing_by(T0, T1)}, {T0: "x", T1: "x"}, ONE, {T0}, id="only what was asked for"),
        pytest.param("a", {"a": standing_by(T0), "b": standing_by(T0)}, {T0: "x"}, ONE, {T0}, id="first by id takes"),
        pytest.param("b", {"a": standing_by(T0), "b": standing_by(T0)}, {T0: "x"}, ONE, set(), id="second waits"),
        pytest.param("b", {"a": running(), "b": standing_by(T0)}, {T0: "x"}, ONE, {T0}, id="first standing by"),
        pytest.param("a", {"a": running()}, {T0: "x"}, ALL, set(), id="not standing by, takes nothing else"),
        pytest.param("a", {"a": TAKES_ANY}, {T0: "x"}, ALL, ALL, id="nobody stands by: takes any"),
        pytest.param("a", {"a": TAKES_ANY, "b": standing_by(T1)}, {T1: "x"}, ALL, {T0, T2}, id="a standby goes first"),
        pytest.param("a", {"a": TAKES_ANY, "b": standing_by(T1)}, {}, ALL, ALL, id="never owned: who takes any"),
        pytest.param("b", {"a": TAKES_ANY, "b": TAKES_ANY}, {}, ALL, set(), id="only the first takes any"),
        pytest.param("b", {"a": running(), "b": TAKES_ANY}, {}, ALL, ALL, id="first of those that take any"),
        pytest.param("z", {"a": running()}, {T0: "x"}, ALL, set(), id="my own lease has run out"),
        pytest.param("a", {"a": running(T0)}, {T0: "a"}, ONE, set(), id="mine already"),
        pytest.param("a", {"a": running(), "b": standing_by(T0)}, {T0: "a"}, ONE, {T0}, id="mine before a restart"),
        pytest.param("b", {"a": running(), "b": standing_by(T0)}, {T0: "a"}, ONE, set(), id="its owner takes it back"),
    ],
)
def test_take_over_rule(
    me: str, members: dict[str, MemberPlan], owners: dict[TaskId, str], tasks: frozenset[TaskId], taken: set[TaskId]
) -> None:
    assert decide(me, members, owners, tasks) == taken


TASKS = st.frozensets(st.sampled_from([T0, T1, T2]))
PLANS = st.builds(MemberPlan, TASKS, TASKS, st.booleans())


@given(
    members=st.dictionaries(st.sampled_from("abcd"), PLANS, min_size=1),
    owners=st.dictionaries(st.sampled_from([T0, T1, T2]), st.sampled_from("abcdxy")),
)
def test_no_task_is_taken_twice_or_from_a_live_member(
    members: dict[str, MemberPlan], owners: dict[TaskId, str]
) -> None:
    takers = {task: [me for me in members if task in decide(me, members, owners, ALL)] for task in ALL}
    for task, taken_by in takers.items():
        owned = owners.get(task) in members or any(task in plan.active for plan in members.values())
        can = any(plan.takes_any or (task in plan.standby and task in owners) for plan in members.values())
        runs = any(task in plan.active for plan in members.values())
        if owners.get(task) in members and not runs:
            assert taken_by == [owners[task]]
        else:
            assert len(taken_by) == (1 if can and not owned else 0)


@pytest.mark.parametrize(
    ("members", "owner", "replicas", "wanted"),
    [
        ("abc", "a", 0, ""),
        ("abc", "a", 1, "b"),
        ("abc", "b", 1, "a"),
        ("abc", "c", 2, "ab"),
        ("abc", "a", 5, "bc"),  # fewer members than replicas + 1: as many as fit
        ("a", "a", 1, ""),
        ("abc", None, 1, ""),  # no owner yet: taking it over comes first
        ("bc", "a", 1, "b"),
    ],
)
def test_standbys_are_the_first_other_members(members: str, owner: str | None, replicas: int, wanted: str) -> None:
    assert "".join(me for me in "abc" if standby_wanted(me, members, owner, replicas)) == wanted


def test_plan_text_is_golden() -> None:
    plan = MemberPlan(frozenset({T1, T0}), frozenset({TaskId(1, 2)}), takes_any=True)
    text = '{"standfast":1,"active":["0_0","0_1"],"standby":["1_2"],"takes_any":true}'
    assert plan.to_json() == text
    assert MemberPlan.from_json(text) == plan


@given(PLANS)
def test_plan_text_is_read_back(plan: MemberPlan) -> None:
    assert MemberPlan.from_json(plan.to_json()) == plan


def test_empty_text_is_an_empty_plan() -> None:
    assert MemberPlan.from_json("") == MemberPlan()


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "[]",
        "7",
        "{}",
        '{"standfast":2,"active":[],"standby":[],"takes_any":false}',
        '{"standfast":1,"active":["x"],"standby":[],"takes_any":false}',
        '{"standfast":1,"active":[7],"standby":[],"takes_any":false}',
        '{"standfast":1,"active":null,"standby":[],"takes_any":false}',
        '{"standfast":1,"active":[]}',
    ],
)
def test_text_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="member metadata"):
        MemberPlan.from_json(text)


def test_plans_of_a_view_name_the_member_that_cannot_be_read() -> None:
    good = Member("a", MemberPlan(standby=frozenset({T0})).to_json())
    assert plans(GroupView(1, "a", (good, Member("b", "")))) == {"a": standing_by(T0), "b": MemberPlan()}
    with pytest.raises(InvalidRequest, match="member 'b'"):
        plans(GroupView(1, "a", (good, Member("b", "range"))))
