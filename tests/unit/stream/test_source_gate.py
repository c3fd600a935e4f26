"""Source partitions of an external consumer: which may be read, and from which offset."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from standfast.replication.offsets import TaskId, TopicPartition
from standfast.stream.source_gate import Moves, OpenTask, SourceGate

P = [TopicPartition("t", number) for number in range(3)]
TASK = {at: TaskId(0, at.partition) for at in P}


def task(partition: int, opening: object, position: int | None = None) -> dict[TaskId, OpenTask]:
    positions = {} if position is None else {P[partition]: position}
    return {TaskId(0, partition): OpenTask(opening, positions)}


def carry_out(gate: SourceGate, tasks: dict[TaskId, OpenTask]) -> Moves:
    moves = gate.moves(tasks)
    gate.paused(moves.pause)
    gate.resumed(moves.resume, tasks)
    return moves


def test_partition_is_sought_and_resumed_once_its_task_opens() -> None:
    gate = SourceGate()
    gate.assigned({P[0]: TASK[P[0]]})
    assert gate.moves({}).none
    assert carry_out(gate, task(0, "first", 7)) == Moves(seek=((P[0], 7),), resume=(P[0],))
    assert gate.moves(task(0, "first", 9)).none


def test_without_a_committed_offset_the_consumers_own_rule_holds() -> None:
    gate = SourceGate()
    gate.assigned({P[0]: TASK[P[0]]})
    assert gate.moves(task(0, "first")) == Moves(resume=(P[0],))


def test_task_held_back_for_another_goes_on_where_the_consumer_stands() -> None:
    gate = SourceGate()
    gate.assigned({P[0]: TASK[P[0]]})
    carry_out(gate, task(0, "first", 7))
    assert carry_out(gate, {}) == Moves(pause=(P[0],))
    assert gate.is_read("first")  # records that the consumer has already given may be processed
    assert carry_out(gate, task(0, "first", 7)) == Moves(resume=(P[0],))  # no seek: processed, not yet committed


def test_task_opened_anew_is_sought_anew_even_if_nobody_saw_it_shut() -> None:
    gate = SourceGate()
    gate.assigned({P[0]: TASK[P[0]]})
    carry_out(gate, task(0, "first", 7))
    assert carry_out(gate, task(0, "second", 5)) == Moves(seek=((P[0], 5),), resume=(P[0],))
    assert not gate.is_read("first")


def test_partition_that_left_and_came_back_begins_anew() -> None:
    gate = SourceGate()
    gate.assigned({P[0]: TASK[P[0]], P[1]: TASK[P[1]]})
    carry_out(gate, task(0, "first", 7))
    assert gate.revoked([P[0], P[2]]) == {TaskId(0, 0)}
    assert gate.partitions == {P[1]}
    assert gate.moves(task(0, "first", 7)).none
    gate.assigned({P[0]: TASK[P[0]]})
    assert gate.moves(task(0, "first", 7)) == Moves(seek=((P[0], 7),), resume=(P[0],))


@given(st.lists(st.tuples(st.sampled_from(["assign", "revoke", "open", "shut", "reopen"]), st.integers(0, 2))))
def test_a_partition_is_read_exactly_while_it_is_assigned_and_its_task_is_open(events: list[tuple[str, int]]) -> None:
    gate = SourceGate()
    openings: dict[int, object] = {}
    assigned: dict[int, object] = {}  # the opening for which the consumer last sought
    reading: set[int] = set()
    for event, number in events:
        if event == "assign" and number not in assigned:
            gate.assigned({P[number]: TASK[P[number]]})
            assigned[number] = None
        elif event == "revoke":
            gate.revoked([P[number]])
            assigned.pop(number, None)
            reading.discard(number)
        elif event == "shut":
            openings.pop(number, None)
        elif event == "reopen" or (event == "open" and number not in openings):
            openings[number] = object()
        tasks = {TaskId(0, one): OpenTask(opening, {P[one]: id(opening)}) for one, opening in openings.items()}
        moves = carry_out(gate, tasks)
        reading -= {at.partition for at in moves.pause}
        for at, offset in moves.seek:
            assert offset == id(openings[at.partition])
            assigned[at.partition] = openings[at.partition]
        reading |= {at.partition for at in moves.resume}
        assert reading == assigned.keys() & openings.keys()
        assert all(assigned[one] is openings[one] for one in reading)
        assert carry_out(gate, tasks).none
