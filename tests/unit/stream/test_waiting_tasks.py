"""Tasks that cannot be opened yet: they keep no other task closed, are tried again at a pace, and are not ready.

Here most wait for a storage of snapshots that does not answer, since their changelog lost its head. Tasks that wait for
the end of a transaction, on the same paths, are in system/kafka/test_kafka_open_transactions.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import standfast as sf
from standfast.ops.observe.status import not_ready_reasons, status_document
from standfast.replication.log import TransactionOpen
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.progress import LeaseProgress
from standfast.restore.snapshot.storage import Storage
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from standfast.store.task.state_dir import StateDir
from standfast.stream.task.groups import TaskGroup
from standfast.stream.task.opener import TaskOpener
from standfast.stream.tasks.attempts import HELD_LATER_MS, LATER_MS
from standfast.stream.tasks.life import Again
from standfast.stream.workers.counts import worker_options
from standfast.stream.workers.orders import ACTIVE, LOST, RUNNING, ReportedTask, WorkerOrder
from standfast.stream.workers.session import WorkerSession
from support.lost_head import KV, ROWS, STORES, behind_with_snapshot, write
from support.sessions import Bench

T0, T1 = TaskId(0, 0), TaskId(0, 1)
NOT_READ = "snapshots could not be read"


def headless(bench: Bench, stores: list[Any] = STORES) -> dict[str, Any]:
    """Two tasks with a snapshot each; the changelog of the first, which is opened first, lost its head."""
    policy = sf.SnapshotPolicy(to=str(bench.root / "snaps"))
    first = bench.active("first", (0, 1), stores=stores, snapshots=policy)
    for number in (0, 1):
        first.task(number).store("kv").put("a", "1")
        first.task(number).commit()
        first.snapshot(number)
    first.close()
    bench.embedded.truncate(KV, 1)
    return {"stores": stores, "snapshots": policy}


@contextmanager
def storage_away() -> Iterator[list[str]]:
    """No listing is answered meanwhile; returns the prefixes that were asked for."""
    asked: list[str] = []

    def away(self: Storage, prefix: str) -> list[Any]:
        asked.append(prefix)
        raise sf.Unavailable("the storage does not answer")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Storage, "list", away)
        yield asked


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    events = [getattr(one, "event", "") for one in caplog.records if one.levelno >= logging.WARNING]
    return [one for one in events if one.startswith(("task_", "standby_"))]


@pytest.mark.parametrize("roles", [{"active": [0, 1]}, {"standby": [0, 1]}, {"active": [0], "standby": [1]}])
def test_assignment_opens_every_task_that_can_be_opened_before_it_raises(bench: Bench, roles: dict[str, Any]) -> None:
    session = bench.session(**headless(bench), take_over=False)
    with storage_away(), pytest.raises(sf.Unavailable, match=rf"task 0_0.*{NOT_READ}"):
        session.assign(**roles)
    assert list(session.tasks()) == [1]
    bench.settle(session)
    assert session.tasks()[1].state.value in ("running", "standby")
    assert session.ready == (0 not in roles.get("active", ()))
    if not session.ready:
        (line,) = session.missing()
        assert line.startswith("task 0_0: could not be opened yet (") and NOT_READ in line
        with pytest.raises(sf.NotReady, match=NOT_READ):
            session.task(0)
    session.assign(**roles)
    bench.settle(session)
    assert (sorted(session.tasks()), session.ready, session.missing()) == ([0, 1], True, ())


@pytest.mark.parametrize("roles", [{"active": [0, 1]}, {"standby": [0, 1]}])
def test_assigned_task_that_had_to_wait_is_opened_without_another_call(bench: Bench, roles: dict[str, Any]) -> None:
    session = bench.session(**headless(bench), take_over=False)
    with storage_away() as asked:
        with pytest.raises(sf.Unavailable):
            session.assign(**roles)
        bench.clock.advance(LATER_MS)
        bench.settle(session)
        assert (list(session.tasks()), len(asked)) == ([1], 3)
    bench.clock.advance(LATER_MS)
    bench.settle(session)
    assert (sorted(session.tasks()), session.ready, session.missing()) == ([0, 1], True, ())


def test_assigned_task_that_another_instance_took_while_it_waited_is_lost(bench: Bench) -> None:
    settings: dict[str, Any] = {**headless(bench), "lease_ms": 60_000}
    session = bench.session(**settings, take_over=False)
    with storage_away(), pytest.raises(sf.Unavailable):
        session.assign(active=[0, 1])
    other = bench.session("other", **settings, take_over=False)
    other.assign(active=[0])
    bench.settle(other)
    bench.clock.advance(LATER_MS)
    bench.settle(session)
    with pytest.raises(sf.Fenced, match="0_0"):
        session.commit({})
    assert other.task(0).state.value == "running"


@contextmanager
def waiting_for_its_promotion(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[sf.Session]:
    """A session with a standby that is assigned as active, while a transaction of its former owner is open."""
    session = bench.session(stores=STORES, take_over=False)
    session.assign(standby=[0])
    bench.settle(session)

    def transaction_open(*_: Any) -> None:
        raise TransactionOpen("task 0_0: a transaction of its former owner is open")

    with monkeypatch.context() as patched:
        patched.setattr(TaskOpener, "plan_again", transaction_open)
        with pytest.raises(sf.Unavailable, match="a transaction of its former owner"):
            session.assign(active=[0])
        yield session


def test_standby_that_is_assigned_as_active_and_has_to_wait_is_promoted_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went on as a standby, without another attempt."""
    with waiting_for_its_promotion(bench, monkeypatch) as session:
        bench.settle(session)
        assert (session.tasks()[0].state.value, session.ready) == ("standby", False)
    bench.clock.advance(LATER_MS)
    bench.settle(session)
    assert (session.task(0).state.value, session.ready) == ("running", True)


def test_standby_that_waits_for_its_promotion_and_fails_meanwhile_is_opened_as_active(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with waiting_for_its_promotion(bench, monkeypatch) as session:
        pass
    session.open_later(session.tasks()[0], "as a failed read of its changelog", 0)
    session.tasks()[0].fail(sf.Unavailable("the log did not answer"))
    bench.settle(session)
    assert (session.task(0).state.value, session.ready) == ("running", True)


def test_shared_task_that_waits_is_missing_until_it_is_here(bench: Bench) -> None:
    session = bench.session(**headless(bench), placement="shared", lease_ms=60_000)
    with storage_away():
        bench.settle(session)
        assert list(session.tasks()) == [1]
        (line,) = session.missing()
        assert line.startswith("task 0_0: could not be opened yet (") and NOT_READ in line
        assert not session.ready
        document = status_document(session.statistics())
        assert (document["ready"], document["missing"]) == (False, [line])
        assert not_ready_reasons(session.missing(), session.all_tasks().values()) == [line]
        with pytest.raises(sf.NotReady, match="the restore gate is shut"):
            session.wait_ready(0)
    bench.clock.advance(LATER_MS)
    bench.settle(session)
    assert (sorted(session.tasks()), session.ready, session.missing()) == ([0, 1], True, ())


def test_tasks_that_need_a_slow_storage_wait_for_it_together(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other they would hold the session up for as long as its time-outs together."""
    settings = headless(bench)
    bench.embedded.truncate(TopicPartition(KV.topic, 1), 1)
    session = bench.session(**settings, placement="shared", lease_ms=600_000)
    asked: list[str] = []

    def silent(self: Storage, prefix: str) -> list[Any]:
        asked.append(prefix)
        bench.clock.advance(20_000)
        raise sf.Unavailable("the storage does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "list", silent)
        bench.settle(session)
    assert (len(asked), len(session.missing())) == (1, 2)
    bench.clock.advance(LATER_MS)
    bench.settle(session)
    assert (sorted(session.tasks()), session.ready) == ([0, 1], True)


@pytest.mark.usefixtures("earlier_objects_stay")  # each attempt to open the directory collects garbage
def test_shared_task_whose_directory_is_held_is_tried_at_a_pace(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Each attempt claims the task in the log, which each member of the group reads."""
    bench.active("a", (0, 1), stores=STORES).close()
    holder = RocksEngine(bench.root / "a/app/0_0", shared=RocksShared(64 << 20))
    session = bench.session("a", stores=STORES, placement="shared", lease_ms=60_000)
    with caplog.at_level(logging.WARNING, "standfast"):
        for _ in range(20):
            bench.clock.advance(100)
            session.poll_once()
    assert 2 <= len(warnings(caplog)) <= 4 and set(warnings(caplog)) == {"task_held"}
    assert [line for line in session.missing() if "0_0: could not be opened yet (" in line] and not session.ready
    holder.close()
    bench.clock.advance(HELD_LATER_MS)
    bench.settle(session)
    assert (sorted(session.tasks()), session.ready) == ([0, 1], True)


def test_assigned_task_whose_directory_is_held_is_opened_once_it_is_free(bench: Bench) -> None:
    bench.active("a", (0, 1), stores=STORES).close()
    holder = RocksEngine(bench.root / "a/app/0_0", shared=RocksShared(64 << 20))
    session = bench.session("a", stores=STORES, lease_ms=60_000)
    with pytest.raises(sf.Held):
        session.assign(active=[0, 1])
    bench.clock.advance(HELD_LATER_MS)
    bench.settle(session)
    assert (list(session.tasks()), session.ready) == ([1], False)
    holder.close()
    bench.clock.advance(HELD_LATER_MS)
    bench.settle(session)
    assert (sorted(session.tasks()), session.ready) == ([0, 1], True)


def test_shared_task_that_another_instance_opened_is_missing_no_more(bench: Bench) -> None:
    settings = headless(bench)
    session = bench.session(**settings, placement="shared", lease_ms=600_000)
    with storage_away():
        bench.settle(session)
        assert not session.ready
    other = bench.session("b", **settings, take_over=False, lease_ms=600_000)
    other.assign(active=[0])
    other.wait_ready(30)
    bench.settle(session, other)
    assert (list(session.tasks()), session.ready) == ([1], True)


def test_task_that_fails_and_must_wait_is_tried_at_a_pace(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """The standby tails, meets the lost head, and a snapshot is to take the place of its rows."""
    policy = sf.SnapshotPolicy(to=str(bench.root / "snaps"))
    first = bench.active("first", stores=STORES, snapshots=policy)
    second = bench.session("b", stores=STORES, snapshots=policy, take_over=False)
    second.assign(standby=[0])
    write(first, 0, ROWS)
    bench.settle(second)
    write(first, ROWS, ROWS + 10)
    first.snapshot(0)
    bench.embedded.truncate(KV, ROWS + 5)
    with storage_away() as asked, caplog.at_level(logging.WARNING, "standfast"):
        for _ in range(10):
            bench.clock.advance(500)
            bench.settle(second)
        assert (warnings(caplog), len(asked)) == (["task_waits_for_snapshots"], 1)
    bench.clock.advance(LATER_MS)
    bench.settle(second)
    assert second.tasks()[0].state.value == "standby"
    assert len(list(second.read("kv", 0, allow_stale=True).store.all())) == ROWS + 10


def test_standby_that_returns_and_must_wait_is_tried_at_a_pace(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    settings = behind_with_snapshot(bench)
    session = bench.session("b", **settings, take_over=False)
    with storage_away() as asked, caplog.at_level(logging.WARNING, "standfast"):
        with pytest.raises(sf.Unavailable, match=NOT_READ):
            session.assign(standby=[0])
        again = Again("returned")
        session._instance.manager.attempts.soon(
            T0, "b has it", 0, active=False, again=again
        )  # as after it was promoted, and another instance has taken it
        bench.clock.advance(LATER_MS)
        bench.settle(session)
        assert (warnings(caplog), len(asked)) == (["task_waits_for_snapshots"] * 2, 2)
    bench.clock.advance(LATER_MS)
    bench.settle(session)
    assert session.tasks()[0].state.value == "standby"


def test_task_of_a_consumer_group_that_could_not_be_opened_again_is_tried_later(bench: Bench) -> None:
    settings = headless(bench)
    session = bench.session(**settings, placement="group")
    session.on_assign(None, [TopicPartition("in", 0)])
    session.wait_ready(30)

    def rounds() -> None:
        for _ in range(6):
            bench.clock.advance(500)
            session._instance.membership.heartbeat(session._group)
            session.poll_once()

    with storage_away() as asked:
        session.tasks()[0].fail(sf.CommitUnknown("as after a commit without an answer"))
        (session.state_path / "0_0").rename(bench.root / "lost")
        rounds()
        assert (session.tasks()[0].state.value, len(asked)) == ("closed", 1)
        assert not session.ready
    bench.clock.advance(LATER_MS)
    rounds()
    assert session.task(0).store("kv").get("a") == "1"


def test_worker_begins_the_next_opening_of_a_task_that_waits_once_it_is_due(bench: Bench) -> None:
    """Else the supervisor numbers opening after opening: each is reported as lost before it has begun."""
    settings = headless(bench)
    state = StateDir(bench.root / "a", "app")
    options: Any = {"placement": "managed", "snapshots": settings["snapshots"]}
    worker = WorkerSession(
        "app",
        state_dir=state.lend(state.instance_id),
        progress=LeaseProgress(),
        log=bench.address,
        groups={0: TaskGroup(2, tuple(STORES), frozenset({"in"}))},
        background=False,
        clock=bench.clock,
        **worker_options(options, 2),
    )
    bench.opened.append(worker)
    with storage_away() as asked:
        worker.order(WorkerOrder(1, {T0: 1, T1: 1}))
        bench.settle(worker)
        assert worker.report() == (1, {T0: ReportedTask(ACTIVE, LOST, 0, 1), T1: ReportedTask(ACTIVE, RUNNING, 0, 1)})
        worker.order(WorkerOrder(2, {T0: 2, T1: 1}))
        bench.settle(worker)
        assert worker.report() == (2, {T1: ReportedTask(ACTIVE, RUNNING, 0, 1)})
        assert (worker.settled, len([one for one in asked if "0_0" in one])) == (True, 1)
    bench.clock.advance(LATER_MS)
    bench.settle(worker)
    assert worker.report()[1][T0] == ReportedTask(ACTIVE, RUNNING, 0, 2)
    assert worker.settled
    worker.close()
    state.close()
