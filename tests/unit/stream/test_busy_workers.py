"""Tasks that come to an instance while one of its workers has a long record in hand."""

from __future__ import annotations

from standfast.replication.offsets import TaskId
from standfast.replication.takeover import Free
from standfast.stream.workers.orders import ACTIVE, RUNNING, STANDBY, Orders, ReportedTask


def tasks(*numbers: int) -> frozenset[TaskId]:
    return frozenset(TaskId(0, number) for number in numbers)


def follow(orders: Orders) -> list[frozenset[TaskId]]:
    """Let both workers carry out their orders; the active tasks of each."""
    for number, order in orders.next(lambda _: Free.GIVEN).items():
        held = {task: ReportedTask(ACTIVE, RUNNING, 0, opening) for task, opening in order.active.items()}
        held |= {task: ReportedTask(STANDBY, STANDBY, 0, 0) for task in order.standby}
        orders.reported(number, order.round, held)
    return [frozenset(task for task, one in orders.tasks(at).items() if one.role == ACTIVE) for at in (0, 1)]


def begun() -> Orders:
    """Two workers with two active tasks and two standbys each."""
    orders = Orders(2)
    orders.ready(0)
    orders.ready(1)
    orders.want(tasks(0, 1, 2, 3), tasks(4, 5, 6, 7))
    follow(orders)
    return orders


def copies(orders: Orders, worker: int) -> list[TaskId]:
    return sorted(task for task, one in orders.tasks(worker).items() if one.role == STANDBY)


def test_tasks_stay_at_their_copies_while_a_worker_is_busy_and_are_spread_after_it() -> None:
    orders = begun()
    mine = copies(orders, 1)
    before = follow(orders)
    orders.want(tasks(0, 1, 2, 3) | set(mine), tasks(4, 5, 6, 7) - set(mine), busy=[0])
    assert follow(orders) == [before[0], before[1] | set(mine)], "none goes to the busy one for the balance"
    orders.want(tasks(0, 1, 2, 3) | set(mine), tasks(4, 5, 6, 7) - set(mine), busy=[0])
    assert follow(orders) == [before[0], before[1] | set(mine)]
    orders.want(tasks(0, 1, 2, 3) | set(mine), tasks(4, 5, 6, 7) - set(mine))
    for _ in range(2):  # a task leaves one worker before the other one opens it
        follow(orders)
    assert sorted(map(len, follow(orders))) == [3, 3]


def test_tasks_without_a_copy_go_to_the_idle_worker() -> None:
    orders = begun()
    before = follow(orders)
    orders.want(tasks(0, 1, 2, 3, 8, 9), tasks(4, 5, 6, 7), busy=[0])
    assert follow(orders) == [before[0], before[1] | tasks(8, 9)]


def test_where_all_workers_are_busy_tasks_are_spread_as_ever() -> None:
    orders = begun()
    orders.want(tasks(0, 1, 2, 3, 8, 9), tasks(4, 5, 6, 7), busy=[0, 1])
    assert list(map(len, follow(orders))) == [3, 3]
