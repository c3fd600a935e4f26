"""The way of a task from one instance to another under managed placement: what is reported, opened and closed when."""

from __future__ import annotations

import pytest

from standfast.replication.offsets import TaskId
from standfast.replication.placement.model import Assignment
from standfast.replication.takeover import Free
from standfast.stream.session.local_part import LocalPart
from standfast.stream.session.managed import PartOf, mine_since
from standfast.stream.task.states import TaskState
from support.apps import Running
from support.placement import TASKS, Cluster, placement_of
from support.sessions import Bench

T = [TaskId(0, number) for number in range(3)]


def let_go(one: Running, count: int) -> LocalPart:
    """The part of an instance whose loop has committed its first tasks, for others."""
    part = placement_of(one)._tasks
    assert isinstance(part, LocalPart)
    for at, task in one.session.all_tasks().items():
        task.leaving = at.partition < count
    one.loop.poll_once()
    return part


def test_task_that_its_loop_has_let_go_is_reported_as_free_before_it_is_closed(bench: Bench) -> None:
    cluster = Cluster(bench)
    one = cluster.start("a")
    cluster.rounds(3)
    part, task = let_go(one, 1), one.session.all_tasks()[TaskId(0, 0)]
    rest = frozenset(TaskId(0, number) for number in range(1, TASKS))
    part.follow(rest, frozenset(), lambda _: Free.NO)
    assert (task.state, part.facts().running) == (TaskState.RUNNING, rest)
    assert TaskId(0, 0) in part.facts().left, "since when no instance processes the task"
    part.follow(rest, frozenset(), lambda _: Free.NO)
    assert task.state is TaskState.CLOSED
    assert TaskId(0, 0) in part.facts().left


def test_instance_opens_no_standby_in_the_round_that_frees_a_task(bench: Bench) -> None:
    cluster = Cluster(bench)
    one = cluster.start("a")
    cluster.rounds(3)
    part = let_go(one, 1)
    rest, first = frozenset(TaskId(0, number) for number in range(1, TASKS)), frozenset({TaskId(0, 0)})
    roles = []
    for _ in range(2):
        part.follow(rest, first, lambda _: Free.NO)
        roles.append(one.session.all_tasks()[TaskId(0, 0)].role)
    assert roles == ["active", "standby"], "its report comes in between"


def test_task_that_was_given_up_and_comes_back_is_processed_on(bench: Bench) -> None:
    cluster = Cluster(bench)
    one = cluster.start("a")
    cluster.rounds(3)
    part = let_go(one, 1)
    every = frozenset(TaskId(0, number) for number in range(TASKS))
    part.follow(every - {TaskId(0, 0)}, frozenset(), lambda _: Free.NO)
    part.follow(every, frozenset(), lambda _: Free.NO)
    one.loop.poll_once()
    assert part.facts().running == every
    assert TaskId(0, 0) in one.loop._running
    assert not part.facts().left


def test_instance_that_stops_leaves_the_group_before_it_closes_the_tasks_that_its_loop_committed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(bench, standby_replicas=1)
    one = cluster.start("a")
    cluster.rounds()
    two = cluster.start("b")
    cluster.rounds(60)
    tasks, membership = one.session.all_tasks(), one.session._instance.membership
    states: list[set[TaskState]] = []
    leave = membership.leave

    def noted() -> None:
        states.append({task.state for task in tasks.values()})
        leave()

    monkeypatch.setattr(membership, "leave", noted)
    cluster.stop("a")
    assert states[0] == {TaskState.RUNNING, TaskState.STANDBY}
    assert {task.state for task in tasks.values()} == {TaskState.CLOSED}
    cluster.rounds(10)
    assert placement_of(two)._tasks.facts().running == frozenset(TaskId(0, number) for number in range(TASKS))
    assert {one.kind for one in placement_of(two)._pauses.values()} == {"planned"}


def part(generation: int, *tasks: TaskId) -> PartOf:
    return Assignment(generation), frozenset(tasks), frozenset()


def test_new_owner_waits_for_the_report_on_the_generation_that_gave_it_the_task_and_for_no_newer_one() -> None:
    first = mine_since(None, part(4, T[0]), {})
    assert first == {T[0]: 4}
    second = mine_since(part(4, T[0]), part(5, T[0], T[1]), first)
    assert second == {T[0]: 4, T[1]: 5}
    assert mine_since(part(5, T[0], T[1]), part(6, T[1]), second) == {T[1]: 5}
    skipped = mine_since(part(5, T[0], T[1]), part(7, T[0], T[1]), second)
    assert skipped == {T[0]: 7, T[1]: 7}, "generation 6 was not read: it may have given them to another instance"
