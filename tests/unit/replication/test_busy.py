"""How busy members are: measured, published, and what follows for the lead, for take-overs and for pauses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from standfast.replication.kafka.members import Members, member_key, member_value
from standfast.replication.leases import IDLE, Busy, BusyWatch
from standfast.replication.log import Record
from standfast.replication.offsets import TaskId
from standfast.replication.pauses import Deaths
from standfast.replication.placement.busy_lead import TURN_MS, TURNS_MAX, BusyLead, is_busy
from standfast.replication.placement.model import (
    Assignment,
    Copy,
    CopyState,
    PlacedMember,
    PlacementSettings,
    Round,
    View,
)
from standfast.replication.placement.place import place
from standfast.replication.placement.reasons import words
from standfast.replication.progress import LOOP, LeaseProgress
from standfast.replication.takeover import MemberPlan, decide

LEASE_MS = 4_000
T0 = TaskId(0, 0)
LOOKS = {"a": Busy(2_000)}


# -- the measure -------------------------------------------------------------------------------------------------------


def test_numbers_are_read_back_and_an_idle_member_has_none() -> None:
    assert Busy.of(Busy(2_900, (0, 3_100)).numbers) == Busy(2_900, (0, 3_100))
    assert Busy.of(Busy(7).numbers) == Busy(7)
    assert Busy(0, (0, 0)).numbers == IDLE.numbers == ()
    assert Busy.of(()) == IDLE


def test_worker_is_as_busy_as_its_record_and_its_supervisor() -> None:
    busy = Busy(500, (0, 3_100))
    assert [busy.of_worker(number) for number in (1, 2, 3, None)] == [500, 3_100, 3_100, 3_100]
    assert IDLE.of_worker(None) == IDLE.of_worker(1) == 0


def test_loop_without_a_step_is_busy_since_its_last_one() -> None:
    watch = BusyWatch()
    assert watch.look([5, 9], 0, LEASE_MS, 0) == IDLE._replace(loops_ms=(0, 0))
    assert watch.look([5, 10], 0, LEASE_MS, 3_000).loops_ms == (3_000, 0)
    assert watch.look([6, 10], 0, LEASE_MS, 3_400).loops_ms == (0, 0), "a fifth of the lease is the least"
    assert watch.look([6, 0], 0, LEASE_MS, 9_000).loops_ms == (5_600, 0), "a loop that has ended is not busy"


def test_member_that_never_looks_at_a_placement_is_not_late_with_it() -> None:
    watch = BusyWatch()
    assert watch.look([0], 0, LEASE_MS, 9_000).look_ms == 0
    assert watch.look([0], 8_500, LEASE_MS, 9_000).look_ms == 0
    assert watch.look([0], 7_000, LEASE_MS, 9_000).look_ms == 2_000


def test_words_of_a_supervisor_show_the_loops_of_its_workers() -> None:
    alone = LeaseProgress()
    alone.step(LOOP)
    assert alone.loops() == [1]
    supervisor = LeaseProgress(shared=True, workers=2)
    beside = LeaseProgress(fd=supervisor.fd)
    supervisor.note_loops([4, 7])
    assert beside.loops() == [4, 7]
    assert beside.counts()["the application's loop"] == 0
    supervisor.close()


def test_beat_of_an_idle_member_has_the_bytes_of_earlier_versions_and_a_busy_one_changes_the_view() -> None:
    def beat(busy: Busy = IDLE) -> Record:
        return Record(1, 0, member_key("a"), member_value("beat", "s", 500, 1, "m", 1, busy))

    members = Members()
    members.apply([Record(0, 0, member_key("a"), member_value("join", "s", 500, 0, "m", 1))], 0, old=False)
    idle = members.view()
    members.apply([beat()], 0, old=False)
    assert members.view() is idle
    members.apply([beat(Busy(900))], 0, old=False)
    assert members.view() == idle._replace(busy={"a": Busy(900)})
    members.apply([beat()], 0, old=False)
    assert members.view() == idle


# -- the lead ----------------------------------------------------------------------------------------------------------


def test_leader_is_busy_once_it_has_not_looked_for_a_third_of_the_lease() -> None:
    assert not is_busy({}, "a", LEASE_MS)
    assert not is_busy({"a": Busy(1_333)}, "a", LEASE_MS)
    assert is_busy({"a": Busy(1_334)}, "a", LEASE_MS)
    assert not is_busy({"a": Busy(0, (9_000,))}, "a", LEASE_MS), "a record in hand keeps no leader from looking"


@pytest.mark.parametrize(("me", "turns"), [("b", 1), ("c", 2), ("d", 3)])
def test_idle_members_claim_in_turn(me: str, turns: int) -> None:
    lead = BusyLead(me)
    assert not lead.takes(LOOKS, "abcd", LEASE_MS, 10_000)
    assert not lead.takes(LOOKS, "abcd", LEASE_MS, 10_000 + turns * TURN_MS - 1)
    assert lead.takes(LOOKS, "abcd", LEASE_MS, 10_000 + turns * TURN_MS)


def test_leader_that_looks_again_begins_a_new_wait() -> None:
    lead = BusyLead("b")
    lead.takes(LOOKS, "ab", LEASE_MS, 0)
    lead.rests()
    assert not lead.takes(LOOKS, "ab", LEASE_MS, TURN_MS)


def test_many_members_before_it_keep_a_member_for_no_longer_than_a_few_turns() -> None:
    lead = BusyLead("z")
    names = [f"m{number}" for number in range(50)]
    lead.takes(LOOKS, ["a", *names], LEASE_MS, 0)
    assert lead.takes(LOOKS, ["a", *names], LEASE_MS, TURNS_MAX * TURN_MS)


# -- take-overs --------------------------------------------------------------------------------------------------------


def taken(**copies: Copy) -> Round:
    members = tuple(PlacedMember(name, copies={T0: copy}) for name, copy in copies.items())
    previous = Assignment(3, {T0: "gone"}, {T0: tuple(copies)})
    return place(View(members, (T0,), PlacementSettings(standby_replicas=1, acceptable_lag=100), previous))


def standby(lag: int, busy_ms: int = 0) -> Copy:
    return Copy(CopyState.STANDBY, lag, busy_ms)


def test_of_copies_that_have_caught_up_the_idle_one_takes_over() -> None:
    found = taken(b=standby(0, 3_000), c=standby(90))
    assert found.assignment.active == {T0: "c"}
    assert words(found.why[T0]) == (
        "gone is gone, and c, which lacks 90 records, can open it first: the standby on b has been busy with one "
        "record for 3.0 s"
    )


def test_busy_copy_that_has_caught_up_takes_over_before_an_idle_one_that_has_not() -> None:
    found = taken(b=standby(0, 3_000), c=standby(101))
    assert found.assignment.active == {T0: "b"}
    assert found.why[T0].code == "STANDBY_TAKES"


def test_of_busy_copies_the_one_takes_over_whose_record_began_last_and_of_equal_ones_the_most_caught_up() -> None:
    assert taken(b=standby(0, 3_000), c=standby(0, 900)).assignment.active == {T0: "c"}
    assert taken(b=standby(50, 900), c=standby(0, 900)).assignment.active == {T0: "c"}
    assert taken(b=standby(0), c=standby(0)).assignment.active == {T0: "b"}


def test_without_a_leader_the_idle_standby_takes_over_as_well() -> None:
    members = {name: MemberPlan(standby=frozenset({T0})) for name in "bc"}
    owners, busy = {T0: "gone"}, {"b": Busy(0, (3_000,))}
    assert [decide(me, members, owners, [T0], busy) for me in "bc"] == [frozenset(), frozenset({T0})]
    assert [decide(me, members, owners, [T0]) for me in "bc"] == [frozenset({T0}), frozenset()]
    takers = {name: replace(one, standby=frozenset(), takes_any=True) for name, one in members.items()}
    assert decide("c", takers, owners, [T0], busy) == frozenset({T0})


# -- the begin of a pause ----------------------------------------------------------------------------------------------


def test_death_lies_a_lease_before_the_group_lost_the_member() -> None:
    deaths = Deaths()
    deaths.look("ab", LEASE_MS, 9_900)
    assert deaths.since("b", 10_000) is None, "it lives"
    deaths.look("a", LEASE_MS, 10_000)
    assert deaths.since("b", 10_050) == 6_000
    assert deaths.since("b", 0) == 5_900
    deaths.look("ab", LEASE_MS, 11_000)
    assert deaths.since("b", 11_000) is None
    assert deaths.since("never seen", 0) is None


def test_death_that_ended_the_lease_lies_after_the_last_look_that_saw_the_member_live() -> None:
    deaths = Deaths()
    deaths.look("ab", LEASE_MS, 9_900, "")
    deaths.look("a", LEASE_MS, 10_000, "b")
    assert [deaths.since("b", placed_ms) for placed_ms in (0, 9_950, 10_050)] == [9_900, 9_950, 10_000]


def test_instance_that_could_not_look_for_long_takes_the_death_from_the_time_of_the_decision() -> None:
    deaths = Deaths()
    deaths.look("ab", LEASE_MS, 10_000)
    deaths.look("a", LEASE_MS, 30_000)
    assert deaths.since("b", 15_000) == 11_000
