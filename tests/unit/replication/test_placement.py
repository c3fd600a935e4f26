"""Managed placement, round by round: owners, take-overs, hand-overs, warm-ups, standbys, slots, restarts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.replication.offsets import TaskId
from standfast.replication.placement.model import (
    Assignment,
    Away,
    Copy,
    CopyState,
    MoveKind,
    PlacedMember,
    PlacementSettings,
    Round,
    View,
)
from standfast.replication.placement.place import is_changed, place
from standfast.replication.placement.reasons import WITHOUT, WORDS, words
from standfast.store.errors import InternalError, InvalidRequest

LIMIT = 100
ONE: dict[str, Any] = {"settings": {"standby_replicas": 1}}
STATES = {
    "r": CopyState.RUNNING,
    "o": CopyState.RESTORING,
    "s": CopyState.STANDBY,
    "w": CopyState.WARMUP,
    "d": CopyState.STORED,
}


def t(number: int, group: int = 0) -> TaskId:
    return TaskId(group, number)


def member(name: str, reports: str = "", **more: Any) -> PlacedMember:
    """Reports: `r0` runs task 0, `s1:40` stands by for 1 with a lag of 40, `o2:90` restores, `w`, `d` on disk."""
    copies = {}
    for text in reports.split():
        state, _, rest = text[0], None, text[1:]
        number, _, lag = rest.partition(":")
        known = None if not lag and state != "r" else int(lag or 0)
        copies[t(int(number))] = Copy(STATES[state], known)
    return PlacedMember(name, copies=copies, **more)


def busy(one: PlacedMember, busy_ms: int) -> PlacedMember:
    """The member with a record in hand for so long."""
    return replace(one, copies={task: copy._replace(busy_ms=busy_ms) for task, copy in one.copies.items()})


def view(members: list[PlacedMember], tasks: int = 4, **more: Any) -> View:
    given: dict[str, Any] = {"standby_replicas": 0, "acceptable_lag": LIMIT, **more.pop("settings", {})}
    return View(tuple(members), tuple(t(number) for number in range(tasks)), PlacementSettings(**given), **more)


def assigned(active: str, standbys: str = "", **more: Any) -> Assignment:
    """`aab`: task 0 and 1 on a, task 2 on b; `.` none. Standbys alike, one a task."""
    return Assignment(
        7,
        {t(at): name for at, name in enumerate(active) if name != "."},
        {t(at): (name,) for at, name in enumerate(standbys) if name != "."},
        **more,
    )


def owners(result: Round, tasks: int = 4) -> str:
    return "".join(result.assignment.active.get(t(number), ".") for number in range(tasks))


def standing(result: Round, tasks: int = 4) -> str:
    return " ".join("".join(result.assignment.standbys.get(t(number), ())) or "." for number in range(tasks))


def codes(result: Round, tasks: int = 4) -> list[str]:
    return [result.why[t(number)].code for number in range(tasks)]


# --- balance and stickiness -----------------------------------------------------------------------


def test_new_tasks_are_shared_out_evenly() -> None:
    result = place(view([member("a"), member("b")]))
    assert Counter(owners(result)) == {"a": 2, "b": 2}
    assert {move.kind for move in result.moves} == {MoveKind.START}


def test_each_group_is_balanced_for_itself() -> None:
    tasks = tuple(t(number, group) for group in (0, 1) for number in range(4))
    result = place(View((member("a"), member("b")), tasks))
    for group in (0, 1):
        assert sum(name == "a" for task, name in result.assignment.active.items() if task.group == group) == 2


def test_tasks_go_to_instances_in_proportion_to_their_slots() -> None:
    result = place(view([member("a", slots=2), member("b")], 12))
    assert Counter(owners(result, 12)) == {"a": 8, "b": 4}


@pytest.mark.parametrize("previous", [assigned("aabb"), None])
def test_balanced_tasks_that_run_stay_whoever_leads(previous: Assignment | None) -> None:
    members = [member("a", "r0 r1"), member("b", "r2 r3"), member("c")][:2]
    result = place(view(members, previous=previous))
    assert (owners(result), result.moves, result.again_ms) == ("aabb", (), None)
    assert codes(result) == ["RUNS"] * 4


def test_new_leader_without_an_assignment_keeps_roles_from_the_reports() -> None:
    members = [member("a", "r0 r1 s2:3"), member("b", "r2 o3:900 s0:0 w1:700"), member("c", "s3:900")]
    result = place(view(members, settings={"standby_replicas": 1}))
    assert owners(result) == "aabb"
    assert result.assignment.standbys[t(0)] == ("b",) and result.assignment.standbys[t(2)] == ("a",)


def test_equal_views_in_another_order_give_equal_rounds() -> None:
    members = [member(name, f"d{number}:5") for number, name in enumerate("abcd")]
    one = view(members, 9, settings={"standby_replicas": 1})
    other = View(tuple(reversed(members)), tuple(reversed(one.tasks)), one.settings)
    assert place(one) == place(other)


# --- take-over ------------------------------------------------------------------------------------


def test_most_caught_up_standby_takes_a_lost_task_and_not_the_smallest_id() -> None:
    members = [member("a", "s0:90"), member("b", "s0:2"), member("c", "s0:2")]
    result = place(view(members, 1, previous=assigned("x", "a")))
    assert owners(result, 1) == "b"
    assert words(result.why[t(0)]) == "x is gone, and b is its most caught-up standby: it lacks 2 records"


def test_standby_of_any_lag_is_taken_before_an_instance_without_rows() -> None:
    result = place(view([member("a"), member("b", "s0:99999")], 1, previous=assigned("x", "b")))
    assert owners(result, 1) == "b"


def test_rows_on_disk_decide_where_no_standby_is() -> None:
    result = place(view([member("a"), member("b", "d0:500"), member("c", "d0:50")], 1, previous=assigned("x")))
    assert (owners(result, 1), codes(result, 1)) == ("c", ["ROWS_ON_DISK"])


def test_restore_that_is_far_from_ready_gives_way_to_a_copy_near_the_end() -> None:
    """A restoring task counts as a previous standby, only a running one as a previous active."""
    members = [member("a", "o0:5000"), member("b", "s0:1")]
    result = place(view(members, 1, previous=assigned("a", "b")))
    assert (owners(result, 1), codes(result, 1)) == ("b", ["MORE_CAUGHT_UP"])
    assert result.assignment.after == {t(0): "a"}


@pytest.mark.parametrize("mine", ["o0:150", "o0", "s0:5000", ""])
def test_order_to_open_a_task_stands_while_it_is_near_or_not_known_to_be_far(mine: str) -> None:
    result = place(view([member("a", mine), member("b", "d0:0")], 1, previous=assigned("a")))
    assert owners(result, 1) == "a"


@pytest.mark.parametrize("mine", ["o0", "s0:3", "o0:150"])
def test_idle_copy_takes_a_task_that_a_busy_member_does_not_run_yet(mine: str) -> None:
    members = [busy(member("a", mine), 700), member("b", "s0:9"), busy(member("c", "s0:0"), 300)]
    result = place(view(members, 1, previous=assigned("a", "b")))
    assert owners(result, 1) == "b"
    assert words(result.why[t(0)]) == (
        "a has been busy with one record for 700 ms and does not run the task yet; the standby on b, which lacks 9 "
        "records, takes it"
    )
    assert result.assignment.after == ({} if mine.startswith("s") else {t(0): "a"})


@pytest.mark.parametrize(
    ("mine", "other"), [("o0", "s0:101"), ("s0:3", "d0:0"), ("r0", "s0:0"), ("o0", "s0:9 r0"), ("s0:3", "")]
)
def test_busy_member_keeps_a_task_that_it_runs_or_that_no_idle_open_copy_near_the_end_could_take(
    mine: str, other: str
) -> None:
    members = [busy(member("a", mine), 700), member("b", other)]
    assert owners(place(view(members, 1, previous=assigned("a", "b"))), 1) == "a"


def test_running_task_is_never_taken_by_a_better_copy() -> None:
    result = place(view([member("a", "r0"), member("b", "s0:0")], 1, previous=assigned("a", "b"), **ONE))
    assert (owners(result, 1), result.moves) == ("a", ())


# --- hand-over and warm-ups -----------------------------------------------------------------------


def test_instance_that_joins_gets_a_warm_up_first_and_the_owner_serves_until_then() -> None:
    members = [member("a", "r0 r1 r2 r3"), member("b")]
    first = place(view(members, previous=assigned("aaaa"), settings={"warmups_max": 1}))
    assert owners(first) == "aaaa"
    assert first.assignment.warmups == {t(0): "b"}
    assert codes(first).count("WAITS_FOR_WARM_UP") == 1
    assert first.again_ms == PlacementSettings().probe_interval_ms

    behind = [members[0], member("b", f"w0:{LIMIT + 1}")]
    second = place(view(behind, previous=first.assignment, settings={"warmups_max": 1}))
    assert (owners(second), second.assignment.warmups) == ("aaaa", {t(0): "b"})

    near = [members[0], member("b", f"w0:{LIMIT}")]
    third = place(view(near, previous=second.assignment, settings={"warmups_max": 1}))
    assert owners(third) == "baaa"
    assert third.assignment.after == {t(0): "a"}, "b must not open it before a has closed it"
    assert third.assignment.warmups == {t(1): "b"}, "the next one begins"


def test_hand_over_is_named_until_the_old_owner_has_closed_the_task() -> None:
    members = [member("a", "r0 r1"), member("b", "s0:3")]
    waits = place(view(members, 2, previous=assigned("ba", after={t(0): "a"})))
    assert (owners(waits, 2), codes(waits, 2)[0]) == ("ba", "WAITS_FOR_CLOSE")
    closed = place(view([member("a", "r1"), member("b", "o0:3")], 2, previous=waits.assignment))
    assert closed.assignment.after == {}


def test_caught_up_standbys_are_handed_over_at_once_and_swap_roles() -> None:
    members = [member("a", "r0 r1 r2 r3"), member("b", "s0:1 s1:1 s2:1 s3:1")]
    result = place(view(members, previous=assigned("aaaa", "bbbb"), settings={"standby_replicas": 1}))
    assert Counter(owners(result)) == {"a": 2, "b": 2}
    assert all(
        {owner, other} == {"a", "b"} for owner, other in zip(owners(result), standing(result).split(), strict=True)
    )
    assert result.assignment.warmups == {}


def test_standby_that_catches_up_needs_no_warm_up() -> None:
    members = [member("a", "r0 r1"), member("b", "s0:5000 s1:5000")]
    result = place(view(members, 2, previous=assigned("aa", "bb"), settings={"standby_replicas": 1}))
    assert owners(result, 2) == "aa"
    assert result.assignment.warmups == {}
    assert "STANDBY_CATCHES_UP" in codes(result, 2)


def test_task_without_stores_moves_at_once() -> None:
    members = [member("a", "r0 r1"), member("b")]
    result = place(
        view(members, 2, previous=assigned("aa"), stateless=frozenset({0}), settings={"standby_replicas": 1})
    )
    assert Counter(owners(result, 2)) == {"a": 1, "b": 1}
    assert standing(result, 2) == ". .", "and has no standby"


def test_restore_moves_for_no_balance() -> None:
    result = place(view([member("a", "o0:900 o1:900"), member("b")], 2, previous=assigned("aa")))
    assert owners(result, 2) == "aa"
    assert result.assignment.warmups == {}


# --- restarts -------------------------------------------------------------------------------------


def test_instance_that_stopped_cleanly_keeps_its_tasks_where_no_standby_is() -> None:
    previous = assigned("aabb")
    gone = place(view([member("a", "r0 r1")], previous=previous, away={"b": Away(100, stopped=True)}))
    assert (owners(gone), gone.assignment.held) == ("aa..", {t(2): "b", t(3): "b"})
    assert gone.again_ms == PlacementSettings().restart_grace_ms - 100

    back = place(view([member("a", "r0 r1"), member("b", "d2:0 d3:0")], previous=gone.assignment))
    assert (owners(back), codes(back)[2:]) == ("aabb", ["BACK", "BACK"])
    assert back.assignment.held == {}

    late = place(view([member("a", "r0 r1")], previous=gone.assignment, away={"b": Away(30_000, stopped=True)}))
    assert (owners(late), late.assignment.held) == ("aaaa", {})


def test_instance_that_was_killed_loses_its_tasks_at_once() -> None:
    result = place(view([member("a", "r0 r1")], previous=assigned("aabb"), away={"b": Away(0)}))
    assert owners(result) == "aaaa"


@pytest.mark.parametrize("stopped", [True, False])
def test_warm_standby_takes_over_within_the_grace_and_the_instance_gets_its_tasks_back(stopped: bool) -> None:
    with_standbys = {"standby_replicas": 1}
    members = [member("a", "r0 r1 s2:1 s3:1"), member("b", "r2 r3 s0:1 s1:1")]
    away = {"b": Away(100, stopped=stopped)}
    gone = place(view(members[:1], previous=assigned("aabb", "bbaa"), away=away, settings=with_standbys))
    assert owners(gone) == "aaaa"
    assert standing(gone) == "b b b b", "its standbys are expected back, and no other copy is made"

    members = [member("a", "r0 r1 r2 r3"), member("b", "s0:1 s1:1 s2:1 s3:1")]
    back = place(view(members, previous=gone.assignment, settings=with_standbys))
    assert (owners(back), standing(back)) == ("aabb", "b b a a")


def test_nothing_moves_by_choice_while_an_instance_is_expected_back() -> None:
    members = [member("a", "r0 r1 r2"), member("c")]
    grace = view(members, 4, previous=assigned("aaab"), away={"b": Away(1, stopped=True)})
    assert place(grace).assignment.warmups == {}
    over = place(replace(grace, away={"b": Away(30_000, stopped=True)}))
    assert owners(over) == "aaac" and len(over.assignment.warmups) == 1


# --- slots ----------------------------------------------------------------------------------------


def test_too_few_slots_start_nothing_and_name_the_missing_number() -> None:
    result = place(view([member("a", max_tasks=3)], 5, settings={"standby_replicas": 1}))
    assert (owners(result, 5), result.slots_missing) == (".....", 2)
    assert words(result.why[t(0)]) == "WAITING_FOR_SLOTS: 2 more needed; until then no task starts"
    two = place(view([member("a", max_tasks=3), member("b", max_tasks=1)], 5, settings={"standby_replicas": 1}))
    assert (two.slots_missing, two.moves) == (1, ())
    enough = place(view([member("a", max_tasks=3), member("b", max_tasks=2)], 5, previous=two.assignment))
    assert (Counter(owners(enough, 5)), enough.slots_missing) == ({"a": 3, "b": 2}, 0)


def test_slots_are_a_share_and_no_bound() -> None:
    result = place(view([member("a", slots=1), member("b", slots=2, max_tasks=2)], 12))
    assert (Counter(owners(result, 12)), result.slots_missing) == ({"a": 10, "b": 2}, 0)


def test_tasks_that_run_go_on_when_slots_are_lost_and_lost_ones_take_the_places_that_are_left() -> None:
    members = [member("a", "r0 r1", max_tasks=3)]
    result = place(view(members, 4, previous=assigned("aabb")))
    assert (owners(result), result.slots_missing) == ("aaa.", 1)
    assert words(result.why[t(3)]).startswith("WAITING_FOR_SLOTS: 1 more needed; the tasks that run take the 3 places")
    again = place(view([member("a", "r0 r1 r2", max_tasks=3)], 4, previous=result.assignment))
    assert (owners(again), again.slots_missing, again.assignment.generation) == ("aaa.", 1, 8)


def test_a_lost_task_with_a_caught_up_copy_takes_a_place_before_those_of_smaller_ids() -> None:
    members = [member("a", f"r0 r1 s2:{LIMIT + 1} s3:{LIMIT}", max_tasks=3)]
    result = place(view(members, 4, previous=assigned("aabb", "..aa")))
    assert (owners(result), codes(result)[2:]) == ("aa.a", ["WAITING_FOR_SLOTS", "STANDBY_TAKES"])


def test_a_place_that_comes_free_is_used_in_the_same_round() -> None:
    members = [member("a", "r0 r1", max_tasks=2), member("b", max_tasks=1)]
    result = place(view(members, 4, previous=assigned("aa..")))
    assert (owners(result), result.slots_missing) == ("aab.", 1)
    whole = place(view([*members, member("c", max_tasks=1)], 4, previous=result.assignment))
    assert (owners(whole), whole.slots_missing) == ("aabc", 0)


def test_a_task_that_closes_takes_its_place_until_it_is_closed() -> None:
    members = [member("a", "r0 r1", max_tasks=1), member("b", "s1:0", max_tasks=2)]
    moving = assigned("ab..")
    result = place(view(members, 3, previous=moving))
    assert (owners(result, 3), result.slots_missing) == ("abb", 0)
    behind = [member("a", "r0 r1", max_tasks=2), member("b", "s1:0", max_tasks=1)]
    assert owners(place(view(behind, 3, previous=moving)), 3) == "ab."
    closed = [member("a", "r0", max_tasks=2), member("b", "r1", max_tasks=1)]
    assert owners(place(view(closed, 3, previous=moving)), 3) == "aba"


def test_an_instance_that_comes_back_with_a_lower_bound_opens_no_more_tasks_than_that() -> None:
    members = [member("a", max_tasks=2), member("b", "r3", max_tasks=3)]
    result = place(view(members, 4, previous=assigned("aaab")))
    assert (owners(result), result.slots_missing) == ("aabb", 0)
    alone = place(view([member("a", "d0:0 d1:0 d2:0 d3:0", max_tasks=2)], 4, previous=assigned("aaaa")))
    assert (owners(alone), alone.slots_missing) == ("aa..", 2)


def test_tasks_that_run_above_a_bound_go_on_and_move_to_instances_with_places() -> None:
    members = [member("a", "r0 r1 r2", max_tasks=2)]
    result = place(view(members, 4, previous=assigned("aaa.")))
    assert (owners(result), result.slots_missing) == ("aaa.", 1)
    other = [*members, member("b", "s2:0", max_tasks=2)]
    moved = place(view(other, 3, previous=assigned("aaa", "..b")))
    assert owners(moved, 3) == "aab"


def test_an_application_whose_instances_have_rows_has_run() -> None:
    result = place(view([member("a", "d1:0", max_tasks=2)], 3))
    assert (Counter(owners(result, 3)), result.slots_missing) == ({"a": 2, ".": 1}, 1)


def test_without_any_instance_all_tasks_wait() -> None:
    assert place(view([])).slots_missing == 1
    assert place(view([], 7)).slots_missing == 1
    assert place(view([], 0)).slots_missing == 0


def test_take_over_exceeds_no_slots() -> None:
    members = [member("a", "r0 s2:0 s3:0", max_tasks=2), member("b", "r1", max_tasks=2)]
    result = place(view(members, previous=assigned("abcc", "..aa")))
    assert Counter(owners(result)) == {"a": 2, "b": 2}


# --- standbys -------------------------------------------------------------------------------------


def test_standbys_go_to_other_racks_and_hosts() -> None:
    members = [
        member("a", rack="r1", tags={"host": "h1"}),
        member("b", rack="r1", tags={"host": "h2"}),
        member("c", rack="r2", tags={"host": "h2"}),
        member("d", rack="r2", tags={"host": "h3"}),
    ]
    result = place(view(members, 8, settings={"standby_replicas": 1}))
    rack = {"a": "r1", "b": "r1", "c": "r2", "d": "r2"}
    for number in range(8):
        owner, (other,) = result.assignment.active[t(number)], result.assignment.standbys[t(number)]
        assert rack[owner] != rack[other] and {owner, other} != {"b", "c"}


def test_standby_of_the_same_rack_is_replaced_and_stays_until_its_successor_has_caught_up() -> None:
    members = [member("a", "r0", rack="r1"), member("b", "s0:0", rack="r1"), member("c", rack="r2")]
    with_standbys = {"standby_replicas": 1}
    first = place(view(members, 1, previous=assigned("a", "b"), settings=with_standbys))
    assert (standing(first, 1), first.assignment.replacing) == ("bc", {t(0): ("c", "b")})
    members[2] = member("c", f"s0:{LIMIT + 1}", rack="r2")
    second = place(view(members, 1, previous=first.assignment, settings=with_standbys))
    assert standing(second, 1) == "bc"
    members[2] = member("c", "s0:0", rack="r2")
    third = place(view(members, 1, previous=second.assignment, settings=with_standbys))
    assert (standing(third, 1), third.assignment.replacing) == ("c", {})


def test_standbys_of_a_full_instance_move_within_the_budget_of_warm_ups() -> None:
    members = [member("a", "r0 r1 r2 r3"), member("b", "s0:0 s1:0 s2:0 s3:0 r4"), member("c", "r5")]
    tasks = {"standby_replicas": 1, "warmups_max": 2}
    result = place(view(members, 4, previous=assigned("aaaa", "bbbb"), settings=tasks))
    assert len(result.assignment.warmups) + len(result.assignment.replacing) <= 2


def test_fewer_replicas_drop_surplus_standbys() -> None:
    members = [member("a", "r0"), member("b", "s0:0"), member("c", "s0:0")]
    previous = Assignment(1, {t(0): "a"}, {t(0): ("b", "c")})
    result = place(view(members, 1, previous=previous, settings={"standby_replicas": 1}))
    assert standing(result, 1) == "b"
    assert [move.kind for move in result.moves] == [MoveKind.DROP_COPY]


def test_standbys_that_no_instance_can_hold_are_counted() -> None:
    result = place(view([member("a"), member("b")], 3, settings={"standby_replicas": 2}))
    assert result.standbys_missing == 3


# --- wrong or odd input ---------------------------------------------------------------------------


def test_instance_id_used_twice_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="instance ids used twice: a"):
        place(view([member("a"), member("b"), member("a")]))


def test_instance_without_slots_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="'b' has 0"):
        place(view([member("a"), member("b", slots=0)]))
    with pytest.raises(InvalidRequest, match=r"max_tasks of an instance is 1 or more.*'b' has 0"):
        place(view([member("a"), member("b", max_tasks=0)]))


@pytest.mark.parametrize("wrong", [{"warmups_max": 0}, {"standby_replicas": -1}, {"probe_interval_ms": 0}])
def test_wrong_setting_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest, match="or more"):
        PlacementSettings(**wrong)


def test_instance_that_waits_holds_nothing_and_is_waited_for() -> None:
    members = [member("a", "r0"), member("b", "r1", waits="another topology")]
    result = place(view(members, 2, previous=assigned("ab"), settings={"standby_replicas": 1}))
    assert owners(result, 2) == "aa"
    assert result.assignment.after == {t(1): "b"}
    assert standing(result, 2) == ". ."


def test_generation_grows_only_with_a_change() -> None:
    members = [member("a", "r0 r1"), member("b", "r2 r3")]
    same = place(view(members, previous=assigned("aabb")))
    assert same.assignment.generation == 7 and not is_changed(assigned("aabb"), same.assignment)
    other = place(view(members[:1], previous=assigned("aabb")))
    assert other.assignment.generation == 8


def test_reason_without_words_is_our_bug() -> None:
    result = place(view([member("a")], 1))
    with pytest.raises(InternalError, match="no words for NEW"):
        words(result.why[t(0)]._replace(code="NEW"))
    assert WITHOUT.keys() <= WORDS.keys()


# --- any view -------------------------------------------------------------------------------------


@st.composite
def views(draw: st.DrawFn) -> View:
    """Members that report anything, beside an assignment that may name any instance."""
    names = [f"m{number}" for number in range(draw(st.integers(1, 5)))]
    gone = ["x", "y"]
    tasks = [t(number, group) for group in range(draw(st.integers(1, 2))) for number in range(draw(st.integers(0, 5)))]
    copy = st.builds(
        Copy,
        st.sampled_from(CopyState),
        st.none() | st.sampled_from([0, LIMIT, 5_000]),
        st.sampled_from([0, 3_000]),
    )
    members = tuple(
        PlacedMember(
            name,
            draw(st.integers(1, 2)),
            draw(st.sampled_from([None, "r1", "r2"])),
            copies=draw(st.dictionaries(st.sampled_from(tasks), copy)) if tasks else {},
        )
        for name in names
    )
    anyone = st.sampled_from([*names, *gone])
    previous = None
    if draw(st.booleans()):
        active = {task: draw(anyone) for task in tasks if draw(st.booleans())}
        standbys = {task: tuple(draw(st.sets(anyone, max_size=3)) - {active.get(task)}) for task in tasks}
        warm = {task: draw(anyone) for task in tasks if draw(st.booleans())}
        previous = Assignment(
            1,
            active,
            {task: tuple(sorted(found)) for task, found in standbys.items()},
            {task: name for task, name in warm.items() if name not in (active.get(task), *standbys[task])},
            homes={task: draw(anyone) for task in tasks if draw(st.booleans())},
        )
    away = {name: Away(draw(st.sampled_from([0, 60_000])), draw(st.booleans())) for name in gone}
    settings = PlacementSettings(
        standby_replicas=draw(st.integers(0, 2)), warmups_max=draw(st.integers(1, 2)), acceptable_lag=LIMIT
    )
    return View(members, tuple(tasks), settings, previous, away, draw(st.sampled_from([frozenset(), frozenset({0})])))


@pytest.mark.slow
@given(views())
def test_round_of_any_view_keeps_the_promises(one: View) -> None:
    result = place(one)
    assignment, names = result.assignment, {member.id for member in one.members}
    for task in one.tasks:
        active = assignment.active.get(task)
        others = [
            *assignment.standbys.get(task, ()),
            *([assignment.warmups[task]] if task in assignment.warmups else []),
        ]
        assert active not in others and len(set(others)) == len(others)
        assert (active in names) != (task in assignment.held)
        assert set(others) <= names | {"x", "y"}
        if task.group in one.stateless:
            assert task not in assignment.standbys
    assert len(assignment.warmups) + len(assignment.replacing) <= one.settings.warmups_max
    assert result == place(one)
    for reason in (*result.why.values(), *result.why_copies.values(), *(move.reason for move in result.moves)):
        assert words(reason)
    for task, names_of in assignment.standbys.items():
        assert all((task, name) in result.why_copies for name in names_of)


@pytest.mark.slow
@given(views())
def test_order_that_no_report_answers_yet_stands(one: View) -> None:
    """The next round, before any instance has followed, changes no owner."""
    first = place(one)
    again = place(replace(one, previous=first.assignment))
    moved = {
        task
        for task, name in again.assignment.active.items()
        if task in first.assignment.active and first.assignment.active[task] != name
    }
    ready = {move.task for move in again.moves if move.kind in (MoveKind.TAKE_OVER, MoveKind.HAND_OVER)}
    assert moved <= ready


@pytest.mark.slow
@given(views(), st.data())
def test_member_without_room_gets_nothing_in_any_view(one: View, data: st.DataObject) -> None:
    times = st.sampled_from([None, 0, 60_000])
    members = tuple(replace(member, no_room_ms=data.draw(times)) for member in one.members)
    moved = data.draw(st.sets(st.sampled_from(one.tasks))) if one.tasks else set()
    given_view = replace(one, members=members, moved_for_room=dict.fromkeys(moved, 1_000))
    result = place(given_view)
    assignment = result.assignment
    short = {member.id for member in members if member.no_room_ms is not None}
    able = {member.id for member in members} - short
    before = {} if one.previous is None else one.previous.active
    arrivals = {move.task: move.target for move in result.moves if move.kind is not MoveKind.DROP_COPY}
    assert short.isdisjoint({target for target in arrivals.values() if target is not None})
    assert short.isdisjoint(assignment.warmups.values())
    for task in one.tasks:
        active = assignment.active.get(task)
        assert short.isdisjoint(assignment.standbys.get(task, ()))
        if active in short and one.previous is not None:
            assert before.get(task) == active, "it had the task"
        if before.get(task) in short and task in moved:
            assert active == before[task], "it has moved a moment ago"
        assert active is not None or task in assignment.held or not able
    for reason in (*result.why.values(), *result.why_copies.values(), *(move.reason for move in result.moves)):
        assert words(reason)
    assert result == place(given_view)
