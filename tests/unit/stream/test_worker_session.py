"""The session of a worker: it holds the tasks of its orders, under numbered openings, in a directory that is lent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.replication.checkpoint_flow import Flow
from standfast.replication.offsets import TaskId
from standfast.replication.placement.checkpoint import Order as CheckpointOrder
from standfast.restore.snapshot.catalogue import names
from standfast.restore.snapshot.opening import open_storage
from standfast.store.errors import Held
from standfast.store.task.state_dir import StateDir
from standfast.stream.session.local_part import ACTIVES_FIRST_MS
from standfast.stream.snapshot_counts import SnapshotCounts
from standfast.stream.workers.care import InstanceCare
from standfast.stream.workers.orders import ACTIVE, LOST, RUNNING, STANDBY, ReportedTask, WorkerOrder
from standfast.stream.workers.protocol import GateOrder, hold, order_of
from standfast.stream.workers.session import WorkerSession
from support.sessions import Bench, lock_held
from support.worker_sessions import worker_session

T0, T1 = TaskId(0, 0), TaskId(0, 1)


class Instance:
    """A state directory as a supervisor owns it, and workers that it is lent to."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.state = StateDir(bench.root / "a", "app")

    def worker(self, **settings: Any) -> WorkerSession:
        session = worker_session(self.bench, self.state, 2, **settings)
        session.join_gate(GateOrder(open=True, standbys=True))  # as a supervisor does where its gate has opened before
        return session

    def follow(self, worker: WorkerSession, order: WorkerOrder) -> dict[TaskId, ReportedTask]:
        worker.order(order)
        return self.settled(worker)

    def settled(self, worker: WorkerSession) -> dict[TaskId, ReportedTask]:
        for _ in range(10):
            self.bench.clock.advance(100)
            worker.poll_once()
        return worker.report()[1]


@pytest.fixture
def instance(bench: Bench) -> Iterator[Instance]:
    made = Instance(bench)
    yield made
    made.state.close()


def test_worker_holds_exactly_the_tasks_of_its_order_and_reports_the_round_of_it(instance: Instance) -> None:
    worker = instance.worker()
    assert worker.report() == (0, {})
    found = instance.follow(worker, WorkerOrder(3, {T0: 1}, frozenset({T1})))
    assert found == {T0: ReportedTask(ACTIVE, RUNNING, 0, 1), T1: ReportedTask("standby", STANDBY, 0, 0)}
    assert worker.report()[0] == 3
    assert instance.follow(worker, WorkerOrder(4, {}, frozenset())) == {}


def test_unowned_task_that_another_live_instance_has_taken_is_left_to_it(instance: Instance) -> None:
    other = instance.bench.active("b")
    worker = instance.worker()
    order = WorkerOrder(1, {T0: 1}, frozenset({T1}), frozenset({T0}))
    assert order_of(hold(order)) == order
    assert instance.follow(worker, order)[T0] == ReportedTask(ACTIVE, LOST, 0, 1)
    other.task(0).store("kv").put("a", "1")
    other.task(0).commit()
    assert instance.follow(worker, WorkerOrder(2, {T0: 2}))[T0].state == RUNNING, (
        "the owner has reported that it is free"
    )


def test_standby_is_opened_once_the_active_tasks_of_the_same_order_run(instance: Instance) -> None:
    worker = instance.worker()
    worker.order(WorkerOrder(1, {T0: 1}, frozenset({T1})))
    seen = []
    for _ in range(10):
        instance.bench.clock.advance(100)
        worker.poll_once()
        seen.append({task: one.state for task, one in worker.report()[1].items()})
    assert {T0: "restoring"} in seen
    assert seen[-1] == {T0: RUNNING, T1: STANDBY}
    assert not [one for one in seen if T1 in one and one[T0] != RUNNING]
    assert {T0: RUNNING} in seen, "the round in which the active task begins to run opens no standby"


def test_active_task_with_a_long_restore_does_not_keep_standbys_closed(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = instance.worker()
    worker.order(WorkerOrder(1, {T0: 1}, frozenset({T1})))
    monkeypatch.setattr(worker._instance.readiness, "run_whole", lambda: (0, {}))  # as if records were left
    found = instance.settled(worker)
    assert set(found) == {T0}
    for _ in range(ACTIVES_FIRST_MS // 100):
        found = instance.settled(worker)
    assert {task: one.state for task, one in found.items()} == {T0: "restoring", T1: STANDBY}


def test_running_tasks_are_seen_while_background_work_holds_the_session(instance: Instance) -> None:
    """Records go on while another task is opened, which takes as long as its files and the log need."""
    worker = instance.worker()
    instance.follow(worker, WorkerOrder(1, {T0: 1}))
    with lock_held(worker) as holder:
        assert (list(worker.open_tasks()), list(worker.held_tasks())) == ([T0], [T0])
        assert holder.is_alive()


def test_report_holds_a_task_from_before_its_opening_until_after_its_closing(instance: Instance) -> None:
    worker = instance.worker()
    worker.order(WorkerOrder(1, {T0: 1}))
    assert worker.report() == (1, {})  # the supervisor counts the tasks of the order itself
    instance.settled(worker)
    worker.order(WorkerOrder(2))
    assert worker.report() == (2, {T0: ReportedTask(ACTIVE, RUNNING, 0, 1)})
    assert instance.settled(worker) == {}


def test_task_that_goes_to_another_worker_has_its_rows_there_and_a_new_epoch(instance: Instance) -> None:
    first, second = instance.worker(), instance.worker()
    instance.follow(first, WorkerOrder(1, {T0: 1}))
    task = first.task(T0)
    task.store("kv").put("k", "v")
    task.commit({("in", 0): 5})
    assert task.writer is not None
    epoch = task.writer.epoch
    instance.follow(first, WorkerOrder(2))
    instance.follow(second, WorkerOrder(3, {T0: 2}))
    again = second.task(T0)
    assert again.store("kv").get("k") == "v"
    assert again.source_offsets() == {("in", 0): 5}
    assert again.writer is not None
    assert again.writer.epoch == epoch + 1


def test_task_that_another_instance_takes_is_reported_lost_and_opened_again_only_under_a_new_number(
    instance: Instance,
) -> None:
    worker = instance.worker()
    instance.follow(worker, WorkerOrder(1, {T0: 1}))
    other = instance.bench.log.writer("app-0-0", group="app", owner="b")
    found = instance.settled(worker)
    assert found == {T0: ReportedTask(ACTIVE, LOST, 0, 1)}
    epoch = other.epoch
    assert instance.settled(worker) == found
    assert instance.follow(worker, WorkerOrder(2, {T0: 2})) == {T0: ReportedTask(ACTIVE, RUNNING, 0, 2)}
    task = worker.task(T0)
    assert task.writer is not None
    assert task.writer.epoch == epoch + 1
    with pytest.raises(sf.Fenced):
        other.append({})
        other.transact({}, None)


def test_standby_becomes_active_where_its_rows_are(instance: Instance) -> None:
    active, standby = instance.worker(), instance.bench.active("other", partitions=(), placement="static")
    standby.assign(active=[0])
    standby.wait_ready(30)
    standby.task(0).store("kv").put("k", "v")
    standby.task(0).commit()
    assert instance.follow(active, WorkerOrder(1, {}, frozenset({T0})))[T0].state == STANDBY
    standby.close()
    assert instance.follow(active, WorkerOrder(2, {T0: 1})) == {T0: ReportedTask(ACTIVE, RUNNING, 0, 1)}
    assert active.task(T0).store("kv").get("k") == "v"


def test_directory_stays_locked_until_the_last_worker_has_closed(instance: Instance) -> None:
    worker = instance.worker()
    instance.state.close()
    with pytest.raises(Held):
        StateDir(instance.bench.root / "a", "app")
    worker.close()
    StateDir(instance.bench.root / "a", "app").close()


def test_worker_is_no_member_of_the_group_and_takes_no_task_by_itself(instance: Instance) -> None:
    worker = instance.worker()
    assert instance.settled(worker) == {}
    assert worker.look_at_group().members == ()


def snapshots(worker: WorkerSession, keys: int) -> None:
    """Make so many snapshots of a task by the worker's schedule."""
    assert worker._snapshots is not None
    for number in range(keys):
        worker.task(T0).store("kv").put(f"k{number}", "v")
        worker.task(T0).commit()
        worker._snapshots.round()


def test_workers_store_snapshots_and_the_supervisor_alone_lists_and_prunes_them(
    instance: Instance, tmp_path: Path
) -> None:
    bench, to = instance.bench, str(tmp_path / "snaps")
    policy = sf.SnapshotPolicy(to=to, every_records=1, keep=1, grace_ms=1_000)
    worker = instance.worker(snapshots=policy)
    instance.follow(worker, WorkerOrder(1, {T0: 1}))
    storage = open_storage(to, "app")
    assert not list(storage.list("probes"))
    assert worker._snapshots is not None
    worker._snapshots.round()  # records count from the first look on
    snapshots(worker, 3)
    kept = names(storage)
    assert len(kept) == 3, "a worker prunes nothing"
    assert worker.counters.snapshots.stored == (), "a worker lists nothing"
    counts = SnapshotCounts()
    care = InstanceCare("app", policy, clock=bench.clock, counts=counts)
    care.note(frozenset({"0_0"}), 3)
    care.round()
    assert names(storage) == kept[-1:]
    assert [one.snapshot for one in counts.stored] == [str(kept[-1])]
    snapshots(worker, 1)
    care.round()
    assert len(names(storage)) == 2, "it prunes once the workers report more snapshots"
    bench.clock.advance(600_000)
    care.note(frozenset({"0_0"}), 4)
    care.round()
    assert len(names(storage)) == 1


def test_worker_takes_part_in_checkpoints_and_reports_no_parts_before_its_first_one(instance: Instance) -> None:
    worker = instance.worker()
    parts = worker.join_checkpoints(Flow({0: frozenset()}, {}, {}))
    assert parts is not None
    assert (worker.parts(), worker.stands) == (None, False)
    order = CheckpointOrder(4, 1, stop=frozenset({0}))
    worker.follow_checkpoint(order)
    assert worker.stands
    assert parts.order is order
    parts.applied(T0, order)
    found = worker.parts()
    assert found is not None
    assert (found.number, found.applied) == (4, {T0})


def test_listener_that_raises_fails_its_task_in_a_worker_and_the_other_one_runs(instance: Instance) -> None:
    class Raises(sf.Listener):
        def on_restore_end(self, task: TaskId, store: str, changelog: object, records: int) -> None:
            if task == T0:
                raise RuntimeError("no")

    worker = instance.worker()
    worker.listeners.add(Raises())
    found = instance.follow(worker, WorkerOrder(1, {T0: 1, T1: 1}, frozenset()))
    assert {task: one.state for task, one in found.items()} == {T0: "failed", T1: RUNNING}
    assert isinstance(worker.all_tasks()[T0].error, sf.ListenerFailed)
