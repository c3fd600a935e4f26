"""The orders of a supervisor to its workers: which worker holds which task, and when it may open it.

    part of the instance ──> spread (even, sticky) ──> order of each worker: all tasks that it is to hold
                                                            │  a task that another worker may hold is in no order yet
    report of a worker  ──> it holds these tasks, and has carried out the order of this round
    end of a worker seen ─> it holds nothing

    a task that moves   order of A without it ──> A commits and closes it, reports ──> order of B with it

A worker *may hold* a task if it reported it, or if any order with it is not older than the last one that it carried
out. Only its report, or its end, takes a task away from it: never a time-out. So no task is open in two workers. Each
opening of an active task has a number of its own: a worker that lost a task opens it again only under a new number.

The tasks of a worker that died stay its own, for the process that replaces it: a record that kills its worker must not
go on to the other workers.

Rules of this file: pure. Workers are numbered from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from standfast.replication.offsets import TaskId
from standfast.replication.placement.workers import spread
from standfast.replication.takeover import Free
from standfast.store.errors import InvalidRequest

RUNNING, RESTORING, STANDBY, LOST = "running", "restoring", "standby", "lost"
GONE = ("failed", "closed", LOST)
ACTIVE = "active"


class ReportedTask(NamedTuple):
    """A task in a worker's report. `lag`: records that a standby or a restore lacks; `opening`: an active one's number.

    State "lost": another instance took the opening over, and it is closed here.
    """

    role: str
    state: str
    lag: int = 0
    opening: int = 0


@dataclass(frozen=True, slots=True)
class WorkerOrder:
    """All tasks that a worker is to hold: active ones with the number of their opening, and standbys.

    `unowned`: active ones that no live instance owned as they were ordered, to be claimed only if that is so still.
    """

    round: int = 0
    active: Mapping[TaskId, int] = field(default_factory=dict)
    standby: frozenset[TaskId] = frozenset()
    unowned: frozenset[TaskId] = frozenset()

    @property
    def tasks(self) -> frozenset[TaskId]:
        """Tasks of both roles."""
        return self.standby | self.active.keys()


@dataclass(slots=True)
class _Worker:
    """`orders`: those that it may still follow, the last one at the end; `ready`: it takes orders."""

    ready: bool = False
    orders: list[WorkerOrder] = field(default_factory=lambda: [WorkerOrder()])
    tasks: Mapping[TaskId, ReportedTask] = field(default_factory=dict)

    @property
    def may_hold(self) -> frozenset[TaskId]:
        return frozenset(self.tasks).union(*(order.tasks for order in self.orders))


class Orders:
    """The state of all workers, as their supervisor knows it."""

    def __init__(self, workers: int) -> None:
        self._workers = [_Worker() for _ in range(workers)]
        self._active: frozenset[TaskId] = frozenset()
        self._standby: frozenset[TaskId] = frozenset()
        self._place: dict[TaskId, int] = {}  # the worker of each task of the part
        self._openings: dict[TaskId, int] = {}
        self._round = 0
        self._uneven = False  # the part came while a worker was busy

    def want(self, active: frozenset[TaskId], standby: frozenset[TaskId], busy: Collection[int] = ()) -> None:
        """Replace the instance's part.

        While workers are `busy` with a record, each task stays at its copy and further ones go to the others: a task
        that the balance gave to a busy worker would wait for that record. The balance comes after it.
        """
        if (active, standby) == (self._active, self._standby) and not (self._uneven and not busy):
            return
        self._active, self._standby = active, standby
        where = self._place | {task: number for number, worker in enumerate(self._workers) for task in worker.may_hold}
        idle = [number for number in range(len(self._workers)) if number not in busy]
        self._uneven = bool(busy) and bool(idle)
        if not self._uneven:
            idle = list(range(len(self._workers)))
        self._place = {task: where[task] for task in active | standby if self._uneven and task in where}
        at = {task: idle.index(number) for task, number in where.items() if number in idle}
        for tasks in (active, standby):
            placed = spread(tasks - self._place.keys(), at, len(idle))
            self._place |= {task: idle[number] for task, number in placed.items()}

    def move(self, task: TaskId, worker: int) -> None:
        """Place a task of the part at a worker, whatever the balance says, until the part changes.

        InvalidRequest for a task or worker that this instance does not have; nothing changes then.
        """
        if task not in self._place or not 0 <= worker < len(self._workers):
            raise InvalidRequest(
                f"task {task} cannot go to worker {worker}: this instance has {len(self._place)} tasks and "
                f"workers 0 to {len(self._workers) - 1}"
            )
        self._place[task] = worker

    def next(self, is_free: Callable[[TaskId], Free]) -> dict[int, WorkerOrder]:
        """The new orders, by worker; a worker that has its order already gets none.

        `is_free`: whether no other instance runs a task. It is asked only for tasks that would be opened.
        """
        held: dict[TaskId, set[int]] = {}
        for number, worker in enumerate(self._workers):
            for task in worker.may_hold:
                held.setdefault(task, set()).add(number)
        orders = {}
        for number, worker in enumerate(self._workers):
            if not worker.ready:
                continue
            last = worker.orders[-1]
            mine = [
                task for task in self._place if self._place[task] == number and held.get(task, {number}) == {number}
            ]
            active, unowned = {}, set()
            for task in sorted(self._active.intersection(mine)):
                opening, free = self._opening(worker, task, is_free)
                if opening:
                    active[task] = opening
                if free is Free.UNOWNED:
                    unowned.add(task)
            standby = self._standby.intersection(mine)
            if (active, standby) != (last.active, last.standby):
                self._round += 1
                orders[number] = WorkerOrder(self._round, active, standby, frozenset(unowned))
                worker.orders.append(orders[number])
        return orders

    def _opening(self, worker: _Worker, task: TaskId, is_free: Callable[[TaskId], Free]) -> tuple[int, Free]:
        """The number of the task's opening there, 0 if it may not be opened yet; and how free it is for that."""
        opening = worker.orders[-1].active.get(task, 0)
        found = worker.tasks.get(task)
        if opening and not (found is not None and found.state == LOST and found.opening == opening):
            return opening, Free.UNOWNED if task in worker.orders[-1].unowned else Free.GIVEN
        if not (free := is_free(task)):
            return 0, free
        self._openings[task] = self._openings.get(task, 0) + 1
        return self._openings[task], free

    def ready(self, worker: int) -> None:
        """A new process takes orders; it holds nothing."""
        self._workers[worker] = _Worker(ready=True)

    def reported(self, worker: int, round_: int, tasks: Mapping[TaskId, ReportedTask]) -> None:
        """It follows the order of a round (0: none yet), and holds exactly these tasks, or opens ordered ones."""
        one = self._workers[worker]
        one.tasks = tasks
        one.orders = [order for order in one.orders if order.round >= round_]

    def ended(self, worker: int) -> None:
        """The end of its process was seen."""
        self._workers[worker] = _Worker()

    def may_hold(self, worker: int) -> frozenset[TaskId]:
        """Tasks that a worker holds or may open."""
        return self._workers[worker].may_hold

    def tasks(self, worker: int) -> Mapping[TaskId, ReportedTask]:
        """Tasks of a worker's last report."""
        return self._workers[worker].tasks

    def held_active(self) -> frozenset[TaskId]:
        """Active tasks of the part that are in a worker by its last report, in any state but lost."""
        found = frozenset(
            task
            for worker in self._workers
            for task, one in worker.tasks.items()
            if one.role == ACTIVE and one.state != LOST
        )
        return found & self._active

    @property
    def runs_all(self) -> bool:
        """Whether every active task of the part runs."""
        return self._active <= self.facts()[0]

    def places(self) -> tuple[frozenset[TaskId], ...]:
        """The tasks that each worker has or may open; no task is of two workers."""
        return tuple(worker.may_hold for worker in self._workers)

    def missing(self, is_free: Callable[[TaskId], Free]) -> dict[TaskId, str]:
        """Active tasks of the part that are to run and do not, and how far they are.

        Not those of which another instance has the rows: it has not closed them, or took them over.
        """
        states = {
            task: one.state for worker in self._workers for task, one in worker.tasks.items() if one.role == ACTIVE
        }
        ordered = frozenset[TaskId]().union(*(worker.orders[-1].active for worker in self._workers))
        return {
            task: states.get(task, "")
            for task in sorted(self._active)
            if states.get(task) not in (RUNNING, LOST) and (task in states or task in ordered or is_free(task))
        }

    def facts(self) -> tuple[frozenset[TaskId], frozenset[TaskId], dict[TaskId, int]]:
        """Tasks that run, active tasks that may be open and do not run, and the lags of all copies."""
        running: set[TaskId] = set()
        opened: set[TaskId] = set()
        gone: set[TaskId] = set()
        lags: dict[TaskId, int] = {}
        for worker in self._workers:
            opened.update(*(order.active for order in worker.orders))
            for task, one in worker.tasks.items():
                if one.state == STANDBY or one.lag:
                    lags[task] = one.lag
                if one.state != STANDBY and one.role == ACTIVE:
                    (gone if one.state in GONE else running if one.state == RUNNING else opened).add(task)
        return frozenset(running), frozenset(opened - running - gone), lags
