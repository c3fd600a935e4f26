"""Managed placement with members whose disks take no writes, round by round on a clock of the test."""

from __future__ import annotations

import json
from dataclasses import replace

from standfast.replication.log import Record
from standfast.replication.offsets import TaskId
from standfast.replication.placement.explained import moves_record
from standfast.replication.placement.model import Assignment, Copy, CopyState, Move, PlacedMember, Round, View
from standfast.replication.placement.model import PlacementSettings as PlacementSettings
from standfast.replication.placement.no_room import COLD, ONCE_MS, STAYS, WARM, Shortages
from standfast.replication.placement.place import place
from standfast.replication.placement.reasons import words
from standfast.replication.placement.records import PlacementState, Report, report_record
from standfast.replication.placement.seen import ARRIVALS

TASKS = tuple(TaskId(0, number) for number in range(4))
GRACE_MS = 30_000
ROUND_MS = 1_000


class Group:
    """Members that follow each assignment at once; `short` are those without room. `warm`: standbys keep up."""

    def __init__(self, *names: str, replicas: int = 1, stateless: frozenset[int] = frozenset()) -> None:
        self.now_ms = 0
        self.names = list(names)
        self.short: set[str] = set()
        self.warm = True
        self.memory = Shortages()
        self.moves: list[Move] = []
        self.last: Round | None = None
        self.assignment: Assignment | None = None
        self._settings = PlacementSettings(replicas, restart_grace_ms=GRACE_MS)
        self._stateless = stateless
        self.run(5_000)
        self.moves.clear()

    def run(self, for_ms: int) -> None:
        """A round each second."""
        until_ms = self.now_ms + for_ms
        while self.now_ms < until_ms:
            self.now_ms += ROUND_MS
            self.last = place(self.view())
            self.memory.published(self.last, self.now_ms)
            self.assignment = self.last.assignment
            self.moves += [move for move in self.last.moves if move.kind in ARRIVALS]

    def view(self) -> View:
        times = self.memory.look(self.short, self.now_ms)
        members = tuple(
            PlacedMember(name, copies=self._copies(name), no_room_ms=times.get(name)) for name in self.names
        )
        return View(
            members,
            TASKS,
            self._settings,
            self.assignment,
            stateless=self._stateless,
            moved_for_room=self.memory.recent(self.now_ms),
        )

    def _copies(self, name: str) -> dict[TaskId, Copy]:
        """Open copies of a member; on a full disk no task runs, and none is followed."""
        if self.assignment is None or name in self.short:
            return {}
        held = {task: Copy(CopyState.RUNNING, 0) for task, owner in self.assignment.active.items() if owner == name}
        lag = 0 if self.warm else 1_000_000
        held |= {task: Copy(CopyState.STANDBY, lag) for task, at in self.assignment.standbys.items() if name in at}
        held |= {task: Copy(CopyState.WARMUP, lag) for task, at in self.assignment.warmups.items() if at == name}
        return held

    def of(self, name: str) -> list[TaskId]:
        assert self.assignment is not None
        return sorted(task for task, owner in self.assignment.active.items() if owner == name)

    def codes(self) -> set[str]:
        assert self.last is not None
        return {reason.code for reason in self.last.why.values()}


def test_member_without_room_gives_away_every_task_whose_copy_has_caught_up_in_one_round() -> None:
    group = Group("a", "b")
    mine = group.of("a")
    group.short = {"a"}
    group.run(ROUND_MS)
    assert group.of("a") == []
    assert [(move.task, move.source, move.target, move.reason.code) for move in group.moves] == [
        (task, "a", "b", WARM) for task in mine
    ]
    assert "takes no writes" in words(group.moves[0].reason)


def test_its_standbys_are_given_up_and_no_task_is_added_there() -> None:
    group = Group("a", "b", "c")
    group.short = {"a"}
    group.run(10_000)
    assert group.assignment is not None
    assert "a" not in group.assignment.active.values()
    assert all(names and "a" not in names for names in group.assignment.standbys.values())
    assert "a" not in group.assignment.warmups.values()


def test_both_members_without_room_move_nothing_in_two_minutes_and_name_the_reason() -> None:
    group = Group("a", "b")
    before = {name: group.of(name) for name in "ab"}
    group.short = {"a", "b"}
    group.run(120_000)
    assert group.moves == []
    assert {name: group.of(name) for name in "ab"} == before
    assert group.codes() == {STAYS}


def test_task_without_a_caught_up_copy_stays_for_the_grace_and_then_moves_cold() -> None:
    group = Group("a", "b")
    mine = group.of("a")
    group.warm = False
    group.short = {"a"}
    group.run(GRACE_MS)
    assert group.of("a") == mine and group.moves == []
    group.run(2 * ROUND_MS)
    assert group.of("a") == []
    assert {move.reason.code for move in group.moves} == {COLD}


def test_copy_that_catches_up_within_the_grace_takes_its_task_warm() -> None:
    group = Group("a", "b")
    group.warm = False
    group.short = {"a"}
    group.run(10_000)
    group.warm = True
    group.run(2 * ROUND_MS)
    assert group.of("a") == [] and {move.reason.code for move in group.moves} == {WARM}


def test_tasks_without_stores_go_at_once_and_evenly() -> None:
    group = Group("a", "b", "c", replicas=0, stateless=frozenset({0}))
    group.short = {"a"}
    group.run(ROUND_MS)
    assert group.of("a") == []
    assert sorted((len(group.of("b")), len(group.of("c")))) == [2, 2]


def test_task_moves_for_want_of_room_once_in_ten_minutes() -> None:
    group = Group("a", "b")
    for _ in range(10):  # each minute the other disk is full, for longer than the grace
        group.short = {"a"} if group.short != {"a"} else {"b"}
        group.run(60_000)
    for task in TASKS:
        times = sum(move.task == task and move.reason.code in (WARM, COLD) for move in group.moves)
        assert times <= 1, f"{task} moved {times} times"
    group.short = {"b"} if group.of("b") else {"a"}
    full = next(iter(group.short))
    group.run(ONCE_MS)
    assert group.of(full) == [], "after ten minutes it may move again"


def test_task_that_moved_for_want_of_room_is_not_sent_back_by_the_balance_within_ten_minutes() -> None:
    group = Group("a", "b")
    mine = group.of("a")
    group.short = {"a"}
    group.run(10_000)
    group.short = set()
    group.moves.clear()
    group.run(60_000)
    assert not {move.task for move in group.moves} & set(mine)
    assert len(group.of("a")) == len(mine), "the balance takes others"


def test_member_that_has_room_again_stands_by_and_gets_tasks_again() -> None:
    group = Group("a", "b")
    group.short = {"a"}
    group.run(10_000)
    group.short = set()
    group.run(ONCE_MS + 60_000)
    assert len(group.of("a")) == 2
    assert group.assignment is not None and all(group.assignment.standbys.values())


def test_new_leader_knows_the_moves_of_the_one_before() -> None:
    group = Group("a", "b")
    group.short = {"a"}
    group.run(ROUND_MS)
    assert group.last is not None
    record = moves_record(group.last, (1, 3), "b", 5_000)
    assert record is not None and record.value is not None
    memory = Shortages()
    memory.begin([b"of a later version", record.value], 65_000, 900_000)
    assert memory.recent(900_000) == dict.fromkeys({move.task for move in group.moves}, 60_000)
    assert memory.recent(900_000 + ONCE_MS) == {}


def test_no_task_begins_while_no_member_has_room() -> None:
    members = (PlacedMember("a", no_room_ms=0), PlacedMember("b", no_room_ms=0))
    result = place(View(members, TASKS, PlacementSettings(1)))
    assert result.assignment.active == {}
    assert {reason.code for reason in result.why.values()} == {"WAITS_FOR_ROOM"}
    assert result.slots_missing == 0
    assert all(words(reason) for reason in result.why.values())


def test_new_leader_without_an_assignment_leaves_running_tasks_at_a_member_without_room() -> None:
    copies = dict.fromkeys(TASKS, Copy(CopyState.RUNNING, 0))
    result = place(
        View((PlacedMember("a", copies=copies, no_room_ms=0), PlacedMember("b")), TASKS, PlacementSettings(1))
    )
    assert set(result.assignment.active.values()) == {"a"}
    assert set(result.assignment.standbys.values()) == {("b",)}, "copies are prepared meanwhile"


def test_next_look_comes_when_a_grace_or_the_ten_minutes_are_over() -> None:
    base = Group("a", "b", replicas=0)
    base.short = {"a"}
    view = base.view()
    assert place(view).again_ms is not None
    late = replace(view, moved_for_room={base.of("a")[0]: ONCE_MS - 700})
    assert place(late).again_ms == 700


def test_report_says_no_room_and_one_of_an_older_version_has_room() -> None:
    state = PlacementState("app-standfast-placement")
    made = report_record("a", Report(frozenset(TASKS[:1]), no_room="the disk is full"), 1)
    assert made.value is not None
    older = json.loads(made.value)
    del older["no_room"]
    for offset, (key, value) in enumerate(((made.key, made.value), (b"report/b", json.dumps(older).encode()))):
        state.apply([Record(offset, 1, key, value, ())])
    a, b = state.report("a"), state.report("b")
    assert a is not None and b is not None
    assert (a.no_room, b.no_room) == ("the disk is full", "") and a.running == b.running
