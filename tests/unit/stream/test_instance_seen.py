"""The reasons against an instance with workers, by the reports of its workers."""

from __future__ import annotations

from standfast.replication.offsets import TaskId
from standfast.stream.workers.orders import ACTIVE, LOST, RUNNING, STANDBY, ReportedTask
from standfast.stream.workers.seen import InstanceSeen, WorkerSeen

ONE, TWO = TaskId(0, 1), TaskId(0, 2)
RUNS, STANDS = ReportedTask(ACTIVE, RUNNING, 0, 1), ReportedTask("standby", STANDBY, 90_000)


def worker(number: int, **tasks: ReportedTask) -> WorkerSeen:
    held = {TaskId.parse(name.removeprefix("t")): one for name, one in tasks.items()}
    return WorkerSeen(number, 100 + number, True, 1, 0, held)


def test_instance_whose_tasks_run_behind_an_open_gate_is_ready() -> None:
    seen = InstanceSeen((worker(1, t0_1=RUNS), worker(2, t0_2=STANDS)), gate_open=True)
    assert seen.reasons() == ()
    assert [(one.task, one.role, one.state) for one in seen.tasks()] == [
        ("0_1", "active", "running"),
        ("0_2", "standby", "standby"),
    ]


def test_instance_without_tasks_is_ready_once_it_is_placed() -> None:
    assert InstanceSeen((worker(1),)).reasons() == ()
    assert InstanceSeen(unplaced="no placement yet").reasons() == ("no placement yet",)


def test_each_missing_task_is_named_with_its_state_and_worker() -> None:
    restoring = worker(2, t0_2=ReportedTask(ACTIVE, "restoring", 0, 1))
    seen = InstanceSeen((worker(1), restoring), {ONE: "", TWO: "restoring"})
    assert seen.reasons() == ("task 0_1 is not open yet", "task 0_2 is restoring, in worker 2")
    failed = InstanceSeen((worker(1, t0_1=ReportedTask(ACTIVE, "failed", 0, 1)),), {ONE: "failed"}, gate_open=True)
    assert failed.reasons() == ("task 0_1 failed, in worker 1",)


def test_shut_gate_is_a_reason_by_itself() -> None:
    assert "has not opened the restore gate" in InstanceSeen((worker(1, t0_1=RUNS),)).reasons()[0]


def test_task_that_was_taken_over_is_not_shown() -> None:
    seen = InstanceSeen((worker(1, t0_1=ReportedTask(ACTIVE, LOST, 0, 1)),), gate_open=True)
    assert seen.tasks() == () and seen.reasons() == ()
