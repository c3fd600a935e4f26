"""Records that explain a placement: they stay small whatever the number of tasks, and count the parts left out."""

from __future__ import annotations

import pytest

from standfast.replication.log import Record
from standfast.replication.offsets import TaskId
from standfast.replication.placement.explained import (
    MOVES_BYTES_MAX,
    REASONS_BYTES_MAX,
    codes_of,
    moves_record,
    read_moves,
    read_reasons,
    reasons_record,
)
from standfast.replication.placement.model import (
    Assignment,
    Copy,
    CopyState,
    Move,
    MoveKind,
    PlacedMember,
    PlacementSettings,
    Reason,
    Round,
    View,
)
from standfast.replication.placement.place import place
from standfast.replication.placement.reasons import words_of
from standfast.replication.placement.records import Generation, PlacementState, assignment_records
from standfast.replication.placement.seen import seen
from standfast.replication.takeover import MemberTraits

MANY = 5_000


def many() -> Round:
    """The first round of an application with many tasks: each starts for a reason of its own."""
    members = tuple(PlacedMember(f"instance-{number:04}") for number in range(100))
    return place(
        View(members, tuple(TaskId(0, number) for number in range(MANY)), PlacementSettings(standby_replicas=1))
    )


def test_records_of_many_tasks_keep_their_bound_and_count_what_has_no_room() -> None:
    found = many()
    raw = reasons_record(found, 0).value
    assert raw is not None and len(raw) <= REASONS_BYTES_MAX + 200
    reasons = read_reasons(raw)
    assert len(reasons.actives) + len(reasons.copies) + reasons.left_out == len(found.why) + len(found.why_copies)
    assert reasons.left_out > 0
    moves = moves_record(found, (3, 7), "leader", 5)
    assert moves is not None and moves.value is not None and len(moves.value) <= MOVES_BYTES_MAX + 200
    kept, left_out = read_moves(moves.value)
    assert len(kept) + left_out == len(found.moves)
    assert kept and left_out


def test_reason_that_had_no_room_is_not_shown_as_the_usual_one() -> None:
    found = many()
    state = PlacementState("app-standfast-placement")
    explained = [reasons_record(found, 0)]
    records = assignment_records(Generation(1, found.assignment), (), 0, explained=explained)
    state.apply(Record(at, 0, one.key, one.value) for at, one in enumerate(records))
    picture = seen("app", state, {"instance-0000": MemberTraits()}, None, 0)
    codes = {one.code for one in picture.tasks}
    assert codes == {"EMPTIEST", "NOT_RECORDED"}
    assert {one.why for one in picture.tasks if one.code == "NOT_RECORDED"} == {"the leader has not recorded why"}


def test_usual_reasons_take_no_room() -> None:
    task = TaskId(0, 0)
    copies = {task: Copy(CopyState.RUNNING, 0)}
    found = place(View((PlacedMember("a", copies=copies),), (task,), previous=Assignment(1, {task: "a"})))
    assert codes_of(found) == ({}, {}, 0, 0)
    raw = reasons_record(found, 0).value
    assert raw == b'{"standfast":1}'
    assert read_reasons(raw).actives == {}
    assert moves_record(found, (1, 1), "a", 0) is None


def test_code_and_move_of_a_later_version_are_read_as_they_are() -> None:
    raw = (
        b'{"standfast":1,"epoch":1,"generation":2,"at_ms":3,"leader":"a","colour":"red","moves":'
        b'[{"move":"swap","code":"NEW","facts":{"instance":"a","lag":1200},"tasks":"0_0-1","target":"a"}]}'
    )
    (first, second), left_out = read_moves(raw)
    assert (first.kind, second.task, left_out) == ("swap", TaskId(0, 1), 0)
    assert words_of(first.reason) == "NEW, instance a, lag 1,200"


@pytest.mark.parametrize(
    "wrong", [b"", b"[]", b'{"standfast":2}', b'{"standfast":1,"left_out":-1}', b'{"standfast":true}']
)
def test_other_records_are_refused(wrong: bytes) -> None:
    with pytest.raises(ValueError):
        read_reasons(wrong)


def test_moves_of_one_generation_are_in_order_of_tasks_with_equal_steps_together() -> None:
    reason = Reason("RUNS", {"instance": "a"})
    moves = tuple(Move(MoveKind.START, TaskId(0, at), None, "a", reason) for at in (2, 0, 1))
    record = moves_record(Round(Assignment(), moves, {}, {}, 0, 0, None), (1, 1), "a", 9)
    assert record is not None and record.value is not None
    assert record.value.count(b'"code"') == 1
    assert [one.task.partition for one in read_moves(record.value)[0]] == [0, 1, 2]
