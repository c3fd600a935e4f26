"""The restore gate of an instance with worker processes: opened once, by the supervisor, for all of its workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import standfast as sf
from standfast.replication.offsets import TaskId
from standfast.replication.takeover import Free
from standfast.restore.gate import Gate as RestoreGate
from standfast.store.task.state_dir import StateDir
from standfast.stream.task.states import TaskState
from standfast.stream.workers.gate import NAMED_MAX, InstanceGate
from standfast.stream.workers.orders import ACTIVE, LOST, RUNNING, STANDBY, Orders, ReportedTask, WorkerOrder
from standfast.stream.workers.protocol import GateOrder
from standfast.stream.workers.session import WorkerSession
from support.sessions import Bench
from support.worker_sessions import worker_session

T0, T1, T2 = (TaskId(0, number) for number in range(3))
BOTH = frozenset({T0, T1})


def held(state: str, opening: int = 1) -> ReportedTask:
    return ReportedTask(ACTIVE, state, 0, opening)


class Supervised:
    """A supervisor's knowledge of two workers; each has one of the tasks 0 and 1."""

    def __init__(self) -> None:
        self.orders = Orders(2)
        self.gate = InstanceGate()
        self.free = frozenset({T0, T1, T2})
        for worker in (0, 1):
            self.orders.ready(worker)
        self.want(BOTH)

    def want(self, active: frozenset[TaskId], standby: frozenset[TaskId] = frozenset()) -> None:
        self.active = active
        self.orders.want(active, standby)
        self.orders.next(self._is_free)

    def _is_free(self, task: TaskId) -> Free:
        return Free.GIVEN if task in self.free else Free.NO

    def look(self, *reports: dict[TaskId, ReportedTask]) -> GateOrder:
        for worker, tasks in enumerate(reports):
            self.orders.reported(worker, 0, tasks)
        self.gate.look(self.active, self.orders, self._is_free)
        return self.gate.state


def test_gate_opens_once_all_tasks_of_all_workers_run() -> None:
    one = Supervised()
    assert one.look() == GateOrder(False, False, ("task 0_0 is not open yet", "task 0_1 is not open yet"))
    assert one.look({T0: held(RUNNING)}, {T1: held("restoring")}) == GateOrder(False, False, ("task 0_1 is restoring",))
    assert one.look({T0: held(RUNNING)}, {T1: held(RUNNING)}) == GateOrder(True, True)


def test_gate_that_has_opened_stays_open_for_tasks_that_come_or_are_opened_again() -> None:
    one = Supervised()
    one.look({T0: held(RUNNING)}, {T1: held(RUNNING)})
    assert one.look({T0: held(RUNNING)}, {T1: held("restoring", 2)}) == GateOrder(True, True)
    one.want(BOTH | {T2})
    assert one.look() == GateOrder(True, True)
    one.orders.ended(1)
    assert one.look() == GateOrder(True, True)


def test_task_that_cannot_be_opened_keeps_the_gate_shut_and_standbys_begin() -> None:
    one = Supervised()
    assert one.look({T0: held(RUNNING)}, {T1: held("failed")}) == GateOrder(False, True, ("task 0_1 failed",))
    one.orders.ended(1)  # its worker is started again
    assert one.look() == GateOrder(False, False, ("task 0_1 is not open yet",))


def test_gate_waits_for_no_task_that_another_instance_has() -> None:
    one = Supervised()
    one.free = frozenset({T0, T1})
    one.want(BOTH | {T2})  # its former owner has not closed it
    assert one.look({T0: held(RUNNING)}, {T1: held(LOST)}) == GateOrder(True, True)


def test_instance_without_active_tasks_has_standbys_and_a_gate_for_the_next_assignment() -> None:
    one = Supervised()
    one.look({T0: held(RUNNING)}, {T1: held(RUNNING)})
    one.want(frozenset(), BOTH)
    assert one.look({T0: ReportedTask("standby", STANDBY)}, {}) == GateOrder(True, True)
    empty = Supervised()
    empty.want(frozenset(), BOTH)
    assert empty.look({T0: ReportedTask("standby", STANDBY)}, {}) == GateOrder(False, True)
    one.want(BOTH)
    assert one.look() == GateOrder(False, False, ("task 0_0 is not open yet", "task 0_1 is not open yet"))


def test_gate_names_some_tasks_of_many() -> None:
    one = Supervised()
    one.free = frozenset(TaskId(0, number) for number in range(100))
    one.want(one.free)
    assert len(one.look().missing) == NAMED_MAX + 1 and one.look().missing[-1] == "and 80 more tasks"


def test_part_of_a_gate_is_shut_until_it_is_released_and_each_later_task_waits_by_itself() -> None:
    gate = RestoreGate("all")
    gate.hold()
    gate.assigned([T0])
    gate.restored(T0)
    assert not gate.is_open(T0) and gate.missing() == () and gate.is_held
    gate.release()
    assert gate.is_open(T0) and (gate.statistics().openings, gate.statistics().open) == (1, 1)
    gate.assigned([T1])
    assert gate.is_open(T0) and not gate.is_open(T1)
    gate.restored(T1)
    assert gate.is_open(T1)


def test_part_of_a_gate_of_single_tasks_waits_for_nothing_else() -> None:
    gate = RestoreGate("task")
    gate.hold()
    gate.assigned([T0, T1])
    gate.restored(T0)
    assert gate.is_open(T0) and not gate.is_held


class Instance:
    """Two workers of one state directory."""

    def __init__(self, bench: Bench, **settings: Any) -> None:
        self.bench = bench
        self.state = StateDir(bench.root / "a", "app")
        self.workers = [self._worker(**settings) for _ in range(2)]

    def _worker(self, **settings: Any) -> WorkerSession:
        return worker_session(self.bench, self.state, 3, **settings)

    def rounds(self) -> None:
        for _ in range(10):
            self.bench.clock.advance(100)
            for worker in self.workers:
                worker.poll_once()


@pytest.fixture
def instance(bench: Bench) -> Iterator[Instance]:
    made = Instance(bench)
    yield made
    made.state.close()


def test_restored_task_of_a_worker_waits_for_the_tasks_of_the_others(instance: Instance) -> None:
    first, second = instance.workers
    first.order(WorkerOrder(1, {T0: 1}, frozenset()))
    second.order(WorkerOrder(2, {T1: 1}, frozenset({T2})))
    for worker in instance.workers:
        worker.join_gate(GateOrder(False, False, ("task 0_0 is restoring", "task 0_1 is restoring")))
    instance.rounds()
    assert first.all_tasks()[T0].state is TaskState.RUNNING and first.open_tasks() == {} and not first.ready
    assert first.missing() == ("task 0_1 is restoring in another worker",)
    with pytest.raises(sf.NotReady, match="task 0_1 is restoring in another worker"):
        first.task(T0)
    tailer = second._instance.readiness.tailer
    assert second.all_tasks()[T2].state is TaskState.STANDBY and not tailer._allowed
    for worker in instance.workers:
        worker.join_gate(GateOrder(True, True))
    instance.rounds()
    assert first.open_tasks().keys() == {T0} and first.missing() == () and first.ready
    assert second.open_tasks().keys() == {T1} and tailer._allowed


def test_task_that_comes_to_a_worker_later_stops_no_other(instance: Instance) -> None:
    first, _ = instance.workers
    first.join_gate(GateOrder(True, True))
    first.order(WorkerOrder(1, {T0: 1}, frozenset()))
    instance.rounds()
    first.order(WorkerOrder(2, {T0: 1, T1: 1}, frozenset()))
    first._instance.readiness.run_whole = lambda: (0, {})  # type: ignore[method-assign] # as if records were left
    instance.rounds()
    assert first.all_tasks()[T1].state is TaskState.RESTORING
    assert first.open_tasks().keys() == {T0}
    assert [line.startswith("task 0_1") for line in first.missing()] == [True]


def test_worker_that_was_told_nothing_yet_says_what_it_waits_for(instance: Instance) -> None:
    assert instance.workers[0].missing() == ("the supervisor has not opened the restore gate of this instance yet",)
