"""A task that another instance took over: every call raises that, until the caller assigns the partition again.

Rules of this file: two real instances on one log. The pure part is tested at its edges; the sessions show that no call
bypasses it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.stream.task.task import Task
from standfast.stream.tasks.commit_plan import plan_commit
from standfast.stream.tasks.life import Lives
from support.sessions import Bench

KV = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
GUARANTEES = pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
SRC: tuple[str, int] = ("src", 0)


def sources(*partitions: int) -> list[TopicPartition]:
    return [TopicPartition("src", number) for number in partitions]


def notice(bench: Bench, session: sf.Session) -> None:
    """The session reads the group, and closes tasks of other owners."""
    bench.clock.advance(200)
    session.poll_once()
    session.poll_once()


def lost(bench: Bench, *, partitions: tuple[int, ...] = (0,), **settings: Any) -> tuple[sf.Session, sf.Session, Task]:
    """An instance that noticed the loss of its task 0; the new owner; the task as the first still holds it."""
    first = bench.active(partitions=partitions, stores=KV, **settings)
    task = first.task(0)
    task.store("kv").put("k", "kept")
    first.commit({SRC: 1})
    task.store("kv").put("k", "gone")
    second = bench.active("b", stores=KV, **settings)
    notice(bench, first)
    assert 0 not in first.tasks()
    return first, second, task


# --- the calls of a session ---


@GUARANTEES
def test_every_commit_is_fenced_once_another_instance_has_the_task(bench: Bench, guarantee: str) -> None:
    first, second, _ = lost(bench, guarantee=guarantee)
    for _ in range(3):
        with pytest.raises(sf.Fenced, match=r"task 0_0 was taken over by a newer owner"):
            first.commit({SRC: 2})
        with pytest.raises(sf.Fenced):
            first.commit({})
        first.poll_once()
    assert second.task(0).source_offsets() == {TopicPartition(*SRC): 1}
    assert bench.log.group("app").committed()[TopicPartition(*SRC)].offset == 1


@GUARANTEES
def test_offsets_alone_are_fenced_though_nobody_has_noticed_yet(bench: Bench, guarantee: str) -> None:
    first = bench.active(stores=KV, guarantee=guarantee, take_over=False)
    bench.active("b", stores=KV, guarantee=guarantee)
    with pytest.raises(sf.Fenced):
        first.commit({SRC: 7})
    with pytest.raises(sf.Fenced):
        first.commit({})
    assert bench.log.group("app").committed() == {}


@pytest.mark.parametrize("place", ["commit.logged", "commit.local"])
@pytest.mark.parametrize("changes", [True, False])
def test_commit_in_flight_of_an_owner_that_is_taken_over_is_not_acknowledged_at_least_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, place: str, changes: bool
) -> None:
    first = bench.active(stores=KV, guarantee="at_least_once", take_over=False)
    task = first.task(0)
    task.store("kv").put("k", "1")
    first.commit({SRC: 1})
    second: list[sf.Session] = []

    def reach(name: str) -> None:
        """The first stalls at this place, and goes on once the second has the task."""
        if name == place and not second:
            second.append(bench.active("b", stores=KV, guarantee="at_least_once"))

    monkeypatch.setattr("standfast.stream.task.commit_write.reach", reach)
    if changes:
        task.store("kv").put("k", "2")
    with pytest.raises(sf.Fenced):
        task.commit({SRC: 2})
    taken = second[0].task(0)
    assert taken.source_offsets() == {TopicPartition(*SRC): 1}
    assert bench.log.group("app").committed()[TopicPartition(*SRC)].offset == 1
    assert taken.store("kv").get("k") == ("2" if changes else "1"), "its record comes again: at least once"
    taken.commit({SRC: 2})
    assert bench.log.group("app").committed()[TopicPartition(*SRC)].offset == 2


def test_ready_and_missing_name_a_task_that_was_taken_over(bench: Bench) -> None:
    first, _, _ = lost(bench)
    assert not first.ready
    assert [line for line in first.missing() if "0_0" in line]
    with pytest.raises(sf.Fenced, match="0_0"):
        first.wait_ready(30)
    with pytest.raises(sf.Fenced):
        first.task(0)
    with pytest.raises(sf.Fenced):
        first.read("kv", 0)


def test_task_that_is_lost_while_it_is_restored_is_restored_no_further(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.fill(KV, 2, 2_000)
    monkeypatch.setattr("standfast.restore.replay.restorer.BATCH_RECORDS_MAX", 100)
    first = bench.session("a", stores=KV, restore_workers=0)
    first.assign(active=(0, 1))
    first.poll_once()
    assert first.missing()
    second = bench.active("b", stores=KV)
    for _ in range(200):  # until it has noticed, and restored the other one
        bench.clock.advance(100)
        first.poll_once()
    assert [str(task.id) for task in first.tasks().values()] == ["0_1"]
    with pytest.raises(sf.Fenced, match="0_0"):
        first.wait_ready(30)
    first.assign(active=(1,))
    first.wait_ready(30)
    assert len(list(first.task(1).store("kv").all())) == len(list(second.task(0).store("kv").all())) == 2_000


KEPT: dict[str, Callable[[Task, Any, Any], object]] = {
    "commit": lambda task, store, view: task.commit({SRC: 2}),
    "commit nothing": lambda task, store, view: task.commit(),
    "send": lambda task, store, view: task.send("out", b"k", b"v", 1),
    "source offsets": lambda task, store, view: task.source_offsets(),
    "store": lambda task, store, view: task.store("kv"),
    "put": lambda task, store, view: store.put("k", "v"),
    "put_all": lambda task, store, view: store.put_all([("k", "v")]),
    "get": lambda task, store, view: store.get("k"),
    "all": lambda task, store, view: list(store.all()),
    "view get": lambda task, store, view: view.get("k"),
    "view all": lambda task, store, view: list(view.all()),
}


@pytest.mark.parametrize("noticed", [True, False], ids=["closed", "failed"])
@pytest.mark.parametrize("call", KEPT)
def test_kept_task_and_store_are_fenced(bench: Bench, call: str, noticed: bool) -> None:
    first = bench.active(stores=KV)
    task = first.task(0)
    store, view = task.store("kv"), first.read("kv", 0).store
    store.put("k", "v")
    second = bench.active("b", stores=KV)
    if noticed:
        notice(bench, first)
    else:
        with pytest.raises(sf.Fenced):
            task.commit({SRC: 1})
    with pytest.raises(sf.Fenced, match="newer owner"):
        KEPT[call](task, store, view)
    assert second.task(0).source_offsets() == {}


def test_iterator_in_hand_is_fenced_with_its_store(bench: Bench) -> None:
    first = bench.active(stores=KV)
    task = first.task(0)
    task.store("kv").put_all([("a", "1"), ("b", "2")])
    task.commit()
    rows = task.store("kv").all()
    assert next(rows) == ("a", "1")
    bench.active("b", stores=KV)
    notice(bench, first)
    with pytest.raises(sf.Fenced):
        next(rows)


def test_other_tasks_are_committed_before_the_loss_of_one_is_raised(bench: Bench) -> None:
    first, _, _ = lost(bench, partitions=(0, 1))
    first.task(1).store("kv").put("other", "kept")
    with pytest.raises(sf.Fenced):
        first.commit({("src", 0): 2, ("src", 1): 5})
    assert first.task(1).source_offsets() == {TopicPartition("src", 1): 5}
    assert first.read("kv", 1).store.get("other") == "kept"


NAMED: dict[str, Callable[[sf.Session], None]] = {
    "assign": lambda session: session.assign(active=[0]),
    "on_assign": lambda session: session.on_assign(None, sources(0)),
    "reopen": lambda session: session.reopen(0),
}


@pytest.mark.parametrize("name", NAMED)
def test_task_that_the_caller_names_again_is_taken_back_and_goes_on(bench: Bench, name: str) -> None:
    first, second, _ = lost(bench)
    NAMED[name](first)
    first.wait_ready(30)
    task = first.task(0)
    assert task.store("kv").get("k") == "kept"
    assert task.source_offsets() == {TopicPartition(*SRC): 1}
    task.store("kv").put("k", "again")
    first.commit({SRC: 2})
    first.commit({})
    with pytest.raises(sf.Fenced):
        second.task(0).commit({SRC: 9})


def test_revoked_partition_is_expected_no_more_and_its_offsets_are_left_out(bench: Bench) -> None:
    first, second, _ = lost(bench)
    first.on_revoke(None, sources(0))
    assert first.ready
    first.commit({SRC: 9})
    first.commit({})
    assert second.task(0).source_offsets() == {TopicPartition(*SRC): 1}
    with pytest.raises(sf.InvalidRequest, match="not assigned"):
        first.task(0)


def test_assignment_without_a_lost_task_ends_its_claim_but_not_its_offsets(bench: Bench) -> None:
    first, _, _ = lost(bench, partitions=(0, 1))
    first.assign(active=[1])
    assert first.ready
    first.commit({})
    with pytest.raises(sf.Fenced):
        first.commit({SRC: 2})


def test_shared_task_that_was_lost_and_came_back_needs_a_word_of_its_owner(bench: Bench) -> None:
    settings: dict[str, Any] = {"placement": "shared", "stores": KV, "partitions": 1, "lease_ms": 1_000}
    first = bench.session("a", **settings)
    bench.settle(first)
    first.task(0).store("kv").put("k", "gone")
    bench.clock.advance(1_500)
    second = bench.session("b", **settings)
    bench.settle(second)
    bench.settle(first)
    assert first.ready  # a shared task may run on any member
    with pytest.raises(sf.Held, match="live member"):
        first.reopen(0)
    with pytest.raises(sf.Fenced):
        first.commit({SRC: 1})
    second.close()
    bench.settle(first)
    assert first.task(0).store("kv").get("k") is None
    with pytest.raises(sf.Fenced):
        first.commit({SRC: 1})
    first.reopen(0)
    first.wait_ready(30)
    first.commit({SRC: 1})


@pytest.mark.parametrize("offset", [{("src", 1): 3}, {("src", 0): 1, ("src", 1): 3}])
def test_offsets_of_a_task_that_was_never_assigned_are_refused_and_change_nothing(
    bench: Bench, offset: dict[tuple[str, int], int]
) -> None:
    session = bench.active(stores=KV)
    session.task(0).store("kv").put("k", "v")
    with pytest.raises(sf.InvalidRequest, match=r"src-1 of task 0_1 .* \(it holds: 0_0\)"):
        session.commit(offset)
    assert session.read("kv", 0).store.get("k") is None
    session.commit({SRC: 1})
    assert session.read("kv", 0).store.get("k") == "v"


def test_offsets_of_a_standby_are_refused(bench: Bench) -> None:
    bench.active(stores=KV)
    second = bench.session("b", stores=KV)
    second.assign(standby=[0])
    with pytest.raises(sf.NotReady, match=r"task 0_0 is standby here"):
        second.commit({SRC: 1})


# --- assigned, and not here ---


def another_app(session: sf.Session, task: str) -> tuple[Path, bytes]:
    """Let a task's directory be another application's; returns its marker, and the content before."""
    marker = session.state_path / task / "STANDFAST"
    kept = marker.read_bytes()
    marker.write_bytes(kept.replace(b'": "app"', b'": "another"'))
    assert marker.read_bytes() != kept
    return marker, kept


def test_refused_tasks_keep_no_other_one_closed(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    first = bench.session(stores=KV, partitions=4)
    first.assign(active=range(4))
    first.close()
    session = bench.session(stores=KV, partitions=4)
    for task in ("0_0", "0_2"):
        another_app(session, task)
    with pytest.raises(sf.InvalidRequest, match="0_0"), caplog.at_level("ERROR", "standfast"):
        session.assign(active=[0, 1, 2], standby=[3])
    assert [record.task for record in caplog.records] == [TaskId(0, 2)]  # type: ignore[attr-defined]
    assert {task: one.role for task, one in session.tasks().items()} == {1: "active", 3: "standby"}
    assert [line for line in session.missing() if "could not be opened yet" in line] == [
        "task 0_0: could not be opened yet",
        "task 0_2: could not be opened yet",
    ]
    session.assign(active=[1], standby=[3])
    session.wait_ready(30)


def test_task_whose_assignment_failed_is_told_and_can_be_reopened(bench: Bench) -> None:
    bench.active(stores=KV).close()
    session = bench.session(stores=KV)
    marker, kept = another_app(session, "0_0")
    with pytest.raises(sf.InvalidRequest):
        session.assign(active=[0, 1])
    assert not session.ready
    assert any("0_0: could not be opened yet" in line for line in session.missing())
    for call in (lambda: session.task(0), lambda: session.read("kv", 0), lambda: session.commit({SRC: 1})):
        with pytest.raises(sf.NotReady, match="0_0"):
            call()
    with pytest.raises(sf.InvalidRequest):
        session.reopen(0)
    marker.write_bytes(kept)
    for partition in (0, 1):
        session.reopen(partition)
    session.wait_ready(30)
    session.commit({SRC: 1})
    assert session.task(0).source_offsets() == {TopicPartition(*SRC): 1}


def test_task_whose_reopening_was_broken_off_can_be_reopened(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    session = bench.active(stores=KV)

    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as signals:
        signals.setattr("standfast.restore.gate.Gate.revoked", broken)
        with pytest.raises(KeyboardInterrupt):
            session.reopen(0)
    session.reopen(0)
    session.wait_ready(30)
    session.commit({SRC: 1})


def test_standby_whose_assignment_as_active_failed_keeps_the_session_unready_and_can_be_reopened(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bench.active(stores=KV, take_over=False)
    first.task(0).store("kv").put("k", "v")
    first.commit({SRC: 1})
    second = bench.session("b", stores=KV, take_over=False)
    second.assign(standby=[0])
    bench.settle(second)
    first.close()

    def away(*_: object, **__: object) -> None:
        raise sf.Unavailable("the log does not answer")

    with monkeypatch.context() as broken:
        broken.setattr(second.log, "writer", away)
        with pytest.raises(sf.Unavailable):
            second.assign(active=[0])
        assert not second.ready
        assert any("0_0" in line for line in second.missing())
        with pytest.raises(sf.Unavailable):
            second.reopen(0)
        with pytest.raises(sf.NotReady):
            second.commit({SRC: 2})
    second.reopen(0)
    second.wait_ready(30)
    assert second.task(0).store("kv").get("k") == "v"
    assert second.counters.promotions["completed"] == 1
    second.commit({SRC: 2})


# --- the pure part ---

ZERO, ONE = TaskId(0, 0), TaskId(0, 1)


def lost_lives(losses: dict[TaskId, str]) -> Lives:
    lives = Lives()
    for task, why in losses.items():
        lives.lose(task, why)
    return lives


def test_loss_lasts_until_its_task_is_named() -> None:
    lives = Lives()
    lives.assign([ZERO, ONE], [])
    lives.lose(ZERO, "b has it")
    lives.adopt([ONE])
    lives[ONE].named()
    lives.give_back([ONE])
    assert lives.why_lost(ZERO) == "b has it"
    lives.assign([ONE], [])
    assert (lives.lost, lives.why_lost(ZERO)) == ({}, "b has it")
    lives[ZERO].named()
    assert lives.why_lost(ZERO) is None


def test_records_that_are_given_again_end_a_loss() -> None:
    lives = lost_lives({ZERO: "b has it"})
    offsets: dict[TaskId, dict[tuple[str, int], int]] = {ZERO: {SRC: 1}}
    plan = plan_commit(offsets, [ZERO], {}, lives, again=[ZERO])
    assert (plan.due, plan.fenced) == (offsets, None)
    plan = plan_commit(offsets, [ZERO], {}, lives)
    assert plan.due == {}
    assert plan.fenced is not None


def test_offsets_of_a_restoring_task_wait_or_come_again() -> None:
    with pytest.raises(sf.NotReady, match="restoring"):
        plan_commit({ZERO: {SRC: 1}}, [ONE], {ZERO: "restoring"}, Lives())
    plan = plan_commit({ZERO: {SRC: 1}}, [ONE], {ZERO: "restoring"}, Lives(), replayed=True)
    assert (plan.due, plan.left_out) == ({ONE: {}}, {SRC: 1})


def test_several_losses_are_told_together() -> None:
    lives = lost_lives({ZERO: "b has it", ONE: "c has it"})
    fenced = plan_commit({}, [], {}, lives).fenced
    assert str(fenced).startswith("tasks 0_0, 0_1 were taken over by newer owners")
    assert "(b has it; c has it)" in str(fenced)
