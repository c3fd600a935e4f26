"""The restore gate: both policies event by event, every event in every state, random histories.

Rules of this file: tasks are T0..T2; `events` are method names with their tasks.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.replication.offsets import TaskId
from standfast.restore.gate import TABLE, Gate, GateState, Open, Policy, Shut
from standfast.store.errors import InternalError, InvalidRequest

T0, T1, T2 = TaskId(0, 0), TaskId(0, 1), TaskId(0, 2)


def opened(*tasks: TaskId) -> Open:
    return Open(frozenset(tasks))


def shut(*missing: TaskId, shut: tuple[TaskId, ...] = ()) -> Shut:
    return Shut(missing, frozenset(shut))


def open_tasks(gate: Gate) -> set[TaskId]:
    return {task for task in (T0, T1, T2) if gate.is_open(task)}


def test_no_task_is_open_until_every_assigned_one_is_restored() -> None:
    gate = Gate()
    assert gate.assigned([T1, T0]) == shut(T0, T1)
    assert gate.restored(T1) == shut(T0)
    assert open_tasks(gate) == set()
    assert gate.restored(T0) == opened(T0, T1)
    assert open_tasks(gate) == {T0, T1}


def test_newly_assigned_task_shuts_the_gate_again() -> None:
    gate = Gate()
    gate.assigned([T0])
    gate.restored(T0)
    assert gate.assigned([T1]) == shut(T1, shut=(T0,))
    assert open_tasks(gate) == set()
    assert gate.restored(T1) == opened(T0, T1)


def test_revoking_the_last_missing_task_opens_the_others() -> None:
    gate = Gate()
    gate.assigned([T0, T1])
    gate.restored(T0)
    assert gate.revoked([T1]) == opened(T0)
    assert gate.missing() == ()


def test_revoking_an_open_task_leaves_the_others_open() -> None:
    gate = Gate()
    gate.assigned([T0, T1])
    gate.restored(T0)
    gate.restored(T1)
    assert gate.revoked([T0]) == opened()
    assert open_tasks(gate) == {T1}


def test_failed_task_keeps_the_gate_shut_until_it_is_tried_again() -> None:
    gate = Gate()
    gate.assigned([T0, T1])
    gate.restored(T0)
    assert gate.failed(T1, "disk is full") == shut(T1)
    assert gate.failures() == {T1: "disk is full"}
    assert gate.assigned([T1]) == shut(T1)
    assert gate.failures() == {}
    assert gate.restored(T1) == opened(T0, T1)


def test_task_that_loses_its_state_shuts_the_gate() -> None:
    gate = Gate()
    gate.assigned([T0, T1])
    gate.restored(T0)
    gate.restored(T1)
    assert gate.failed(T0, "corrupt") == shut(T0, shut=(T0, T1))
    assert gate.revoked([T0]) == opened(T1)
    assert gate.failures() == {}


def test_policy_task_opens_each_task_by_itself() -> None:
    gate = Gate("task")
    assert gate.assigned([T0, T1]) == shut(T0, T1)
    assert gate.restored(T1) == opened(T1)
    assert open_tasks(gate) == {T1}
    assert gate.assigned([T2]) == shut(T0, T2)
    assert gate.failed(T1, "corrupt") == shut(T0, T1, T2, shut=(T1,))
    assert gate.restored(T0) == opened(T0)


def test_revoked_task_is_not_named_as_shut() -> None:
    gate = Gate("task")
    gate.assigned([T0, T1])
    gate.restored(T0)
    assert gate.revoked([T0]) == shut(T1)


def test_gate_without_tasks_is_open_and_no_task_may_process() -> None:
    gate = Gate()
    assert gate.assigned([]) == opened()
    assert gate.missing() == ()
    assert not gate.is_open(T0)


def test_waits_count_how_often_a_complete_gate_became_incomplete() -> None:
    gate = Gate()
    gate.assigned([T0])
    gate.assigned([T1])  # still the same wait
    gate.restored(T0)
    gate.restored(T1)
    gate.assigned([T2])
    now = gate.statistics()
    assert (now.policy, now.assigned, now.missing, now.open) == ("all", 3, 1, 0)
    assert (now.waits, now.openings) == (2, 2)


def test_unknown_policy_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="policy"):
        Gate("some")  # type: ignore[arg-type]


CALLS = {
    "assigned": lambda gate: gate.assigned([T0]),
    "restored": lambda gate: gate.restored(T0),
    "failed": lambda gate: gate.failed(T0, "why"),
    "revoked": lambda gate: gate.revoked([T0]),
}


def in_state(state: GateState | None) -> Gate:
    gate = Gate()
    gate.assigned([T0] if state else [])
    if state is GateState.RESTORED:
        gate.restored(T0)
    if state is GateState.FAILED:
        gate.failed(T0, "first")
    return gate


@pytest.mark.parametrize(("state", "event"), list(itertools.product([None, *GateState], CALLS)))
def test_every_event_in_every_state_follows_the_table(state: GateState | None, event: str) -> None:
    gate = in_state(state)
    before = gate.statistics(), gate.failures()
    if state in TABLE[event]:
        CALLS[event](gate)
        after = TABLE[event][state]
        assert gate.statistics().assigned == (after is not None)
        assert gate.is_open(T0) is (after is GateState.RESTORED)
        assert (T0 in gate.failures()) is (after is GateState.FAILED)
    else:
        with pytest.raises(InternalError, match="0_0"):
            CALLS[event](gate)
        assert (gate.statistics(), gate.failures()) == before


@pytest.mark.parametrize("event", ["assigned", "revoked"])
def test_one_illegal_task_among_several_changes_nothing(event: str) -> None:
    gate = Gate()
    gate.assigned([T0])
    before = gate.statistics()
    with pytest.raises(InternalError):
        getattr(gate, event)([T1, T0] if event == "assigned" else [T0, T1])
    assert gate.statistics() == before


@given(
    policy=st.sampled_from(["all", "task"]),
    events=st.lists(st.tuples(st.sampled_from(sorted(CALLS)), st.sampled_from([T0, T1, T2])), max_size=30),
)
def test_answers_and_questions_agree_with_a_plain_model(policy: Policy, events: list[tuple[str, TaskId]]) -> None:
    gate = Gate(policy)
    model: dict[TaskId, str] = {}
    told_open: set[TaskId] = set()
    for event, task in events:
        argument = {"assigned": ([task],), "revoked": ([task],), "failed": (task, "why"), "restored": (task,)}[event]
        try:
            outcome = getattr(gate, event)(*argument)
        except InternalError:
            continue
        model[task] = event
        if event == "revoked":
            del model[task]
            told_open.discard(task)
        told_open |= outcome.tasks if isinstance(outcome, Open) else set()
        told_open -= outcome.shut if isinstance(outcome, Shut) else set()
        restored = {one for one, last in model.items() if last == "restored"}
        missing = tuple(sorted(model.keys() - restored))
        assert gate.missing() == missing
        assert open_tasks(gate) == (restored if policy == "task" or not missing else set())
        assert told_open == open_tasks(gate)  # a shell that only follows the answers is right
        assert not isinstance(outcome, Shut) or outcome.missing == missing
