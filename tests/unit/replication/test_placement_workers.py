"""Tasks of one instance over its workers: even, sticky, deterministic."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from standfast.replication.offsets import TaskId
from standfast.replication.placement.workers import spread

TASKS = [TaskId(group, partition) for group in range(3) for partition in range(7)]


def test_tasks_go_evenly_to_workers_in_order() -> None:
    tasks = [TaskId(0, partition) for partition in range(4)]
    assert spread(tasks, {}, 2) == {tasks[0]: 0, tasks[1]: 1, tasks[2]: 0, tasks[3]: 1}


def test_task_stays_where_it_is_while_the_balance_allows_it() -> None:
    tasks = [TaskId(0, partition) for partition in range(4)]
    where = {tasks[0]: 1, tasks[1]: 1, tasks[2]: 0, tasks[3]: 0}
    assert spread(tasks, where, 2) == where
    assert spread([*tasks, TaskId(0, 4)], where, 2) == {**where, TaskId(0, 4): 0}


def test_only_the_surplus_of_a_worker_moves() -> None:
    tasks = [TaskId(0, partition) for partition in range(4)]
    found = spread(tasks, dict.fromkeys(tasks, 1), 2)
    assert Counter(found.values()) == {0: 2, 1: 2}


@given(
    tasks=st.sets(st.sampled_from(TASKS)),
    where=st.dictionaries(st.sampled_from(TASKS), st.integers(0, 3)),
    workers=st.integers(4, 5),
)
def test_every_task_has_a_worker_and_no_worker_has_two_more_than_another_in_total_or_in_a_group(
    tasks: set[TaskId], where: dict[TaskId, int], workers: int
) -> None:
    found = spread(tasks, where, workers)
    assert found.keys() == tasks
    assert found == spread(sorted(tasks, reverse=True), where, workers)
    for group in (None, 0, 1, 2):
        counts = Counter(worker for task, worker in found.items() if group in (None, task.group))
        spread_of = [counts[worker] for worker in range(workers)]
        assert max(spread_of) - min(spread_of) <= 1
    assert spread(tasks, found, workers) == found  # an even spread moves nothing
