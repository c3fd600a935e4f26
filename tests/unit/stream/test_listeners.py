"""Listeners of the program: the task of a call that raises fails alone, and counts leave skipped records out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import standfast as sf
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.store.clock import SystemClock
from standfast.store.task.state_dir import StateDir
from standfast.stream.task.states import TaskState
from support.apps import Running, create, write
from support.bulk import BULK, drive
from support.loops import Seen, reads
from support.sessions import Bench

TEXT = sf.serde.string
STORES = [sf.KeyValueStore("kv", TEXT, TEXT)]
T0, T1 = TaskId(0, 0), TaskId(0, 1)
Fails = Callable[[TaskId, tuple[object, ...]], BaseException | None]


class Ears(sf.Listener):
    """Hears every call, and raises what `fails` gives for a call of that name."""

    def __init__(self, call: str = "", fails: Fails = lambda *_: None) -> None:
        self.heard: list[tuple[str, TaskId, tuple[object, ...]]] = []
        self.call, self.fails = call, fails

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def heard(task: TaskId, *given: object) -> None:
            self.heard.append((name, task, given))
            error = self.fails(task, given) if name == self.call else None
            if error is not None:
                raise error

        return heard

    def of(self, call: str) -> list[tuple[TaskId, tuple[object, ...]]]:
        return [(task, given) for name, task, given in self.heard if name == call]


def once(task: TaskId, error: BaseException, *given: object) -> Fails:
    """The error, at the first call about that task whose arguments have these among them."""
    left = [error]
    return lambda one, found: left.pop() if left and one == task and all(each in found for each in given) else None


def logged(bench: Bench) -> None:
    """Rows of two tasks in the log."""
    first = bench.active("first", (0, 1), stores=STORES, take_over=False)
    for partition in range(2):
        first.task(partition).store("kv").put("k", "v", timestamp=1)
        first.task(partition).commit({("src", partition): 1})
    first.close()


def opened(bench: Bench, ears: sf.Listener, **settings: Any) -> sf.Session:
    return bench.session("b", stores=STORES, gate="task", take_over=False, listeners=[ears], **settings)


def failed_by(session: sf.Session, task: TaskId, cause: BaseException) -> None:
    """Check that the task failed by a listener, alone."""
    error = session.all_tasks()[task].error
    assert isinstance(error, sf.ListenerFailed) and error.__cause__ is cause, error
    assert session.all_tasks()[task].state is TaskState.FAILED
    assert not isinstance(cause, sf.StandfastError) or type(cause) is not type(error)


RESTORES = ["on_restore_start", "on_batch_restored", "on_restore_end"]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("no"),
        *(pytest.param(one, marks=pytest.mark.long) for one in (sf.Unavailable("no"), sf.StateLost("no"))),
    ],
    ids=type,
)
@pytest.mark.parametrize(
    ("call", "given"), [*((one, ()) for one in RESTORES), ("on_state_changed", ("restoring",)),
                        ("on_state_changed", ("running",))],
)  # fmt: skip
def test_listener_that_raises_during_a_restore_fails_that_task_and_the_other_one_runs(
    bench: Bench, call: str, given: tuple[object, ...], error: Exception
) -> None:
    logged(bench)
    session = opened(bench, Ears(call, once(T0, error, *given)))
    session.assign(active=[0, 1])
    bench.settle(session)
    failed_by(session, T0, error)
    assert session.task(1).store("kv").get("k") == "v"
    assert not session.ready and any("Ears" in line and call in line for line in session.missing())
    with pytest.raises(sf.ListenerFailed, match=f"task 0_0: Ears.{call} raised") as told:
        session.wait_ready(30)
    assert told.value.__cause__ is error
    session.task(1).store("kv").put("k", "w", timestamp=2)
    session.commit({("src", 1): 2})
    session.reopen(0)
    session.wait_ready(30)
    assert session.task(0).store("kv").get("k") == "v"
    assert session.task(0).source_offsets() == {TopicPartition("src", 0): 1}


def test_listener_that_raises_leaves_the_background_thread_running(bench: Bench) -> None:
    logged(bench)
    ears = Ears("on_restore_end", once(T0, RuntimeError("no")))
    session = opened(bench, ears, background=True, clock=SystemClock())
    session.assign(active=[0, 1])
    with pytest.raises(sf.ListenerFailed):
        session.wait_ready(30)
    session.reopen(0)
    session.wait_ready(30)
    assert set(session.tasks()) == {0, 1}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError(), SystemExit()], ids=type)
def test_errors_that_are_not_of_the_listener_pass_through_it(bench: Bench, error: BaseException) -> None:
    ears = Ears("on_commit", once(T0, error))
    session = opened(bench, ears)
    session.assign(active=[0, 1])
    session.wait_ready(30)
    with pytest.raises(type(error)):
        session.task(0).commit({("src", 0): 5})
    assert session.task(0).source_offsets() == {TopicPartition("src", 0): 5}


def test_commit_counts_although_its_listener_raises(bench: Bench) -> None:
    error = RuntimeError("no")
    ears = Ears("on_commit", once(T0, error))
    session = opened(bench, ears)
    session.assign(active=[0, 1])
    session.wait_ready(30)
    session.task(0).store("kv").put("k", "new")
    with pytest.raises(sf.ListenerFailed, match=r"Ears\.on_commit raised RuntimeError") as told:
        session.task(0).commit({("src", 0): 5})
    assert told.value.__cause__ is error and not told.value.in_doubt
    failed_by(session, T0, error)
    assert session.counters.commits["committed"] == 1 and not session.counters.commits["failed"]
    session.task(1).commit({("src", 1): 1})
    session.reopen(0)
    session.wait_ready(30)
    assert session.task(0).source_offsets() == {TopicPartition("src", 0): 5}
    assert session.task(0).store("kv").get("k") == "new"


@pytest.mark.parametrize(
    ("call", "given"),
    [("on_standby_start", ()), ("on_standby_batch", ()), ("on_state_changed", ("standby",))],
)
def test_listener_that_raises_fails_its_standby_and_the_others_go_on(
    bench: Bench, call: str, given: tuple[object, ...]
) -> None:
    logged(bench)
    error = RuntimeError("no")
    session = opened(bench, Ears(call, once(T0, error, *given)))
    session.assign(standby=[0, 1])
    bench.settle(session)
    failed_by(session, T0, error)
    assert session.read("kv", 1, allow_stale=True).store.get("k") == "v"
    session.reopen(0)
    bench.settle(session)
    assert session.read("kv", 0, allow_stale=True).store.get("k") == "v"


def test_listener_that_raises_about_lost_state_fails_the_task_and_frees_its_directory(bench: Bench) -> None:
    logged(bench)
    first = opened(bench, Ears())
    first.assign(active=[0])
    first.wait_ready(30)
    first.close()
    bench.log.admin.delete_topic("app-kv-changelog")
    error = RuntimeError("no")
    ears = Ears("on_state_lost", once(T0, error))
    session = opened(bench, ears, accept_empty_log=True)
    session.assign(active=[0, 1])
    bench.settle(session)
    failed_by(session, T0, error)
    assert not session.ready
    assert session.task(1).state is TaskState.RUNNING
    session.assign(active=[0, 1])
    session.wait_ready(30)
    assert session.task(0).store("kv").get("k") is None


@pytest.mark.parametrize(("call", "given"), [("on_standby_suspended", ("promoted",)), ("on_standby_batch", ())])
def test_listener_that_raises_while_its_standby_is_promoted_keeps_the_gate_shut(
    bench: Bench, call: str, given: tuple[object, ...]
) -> None:
    logged(bench)
    error = RuntimeError("no")
    ears = Ears()
    session = opened(bench, ears)
    session.assign(standby=[0, 1])
    if call == "on_standby_batch":  # its rows are written by the promotion
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("standfast.replication.tail.tailer.Tailer._due", lambda *_: [])
            session.poll_once()
    else:
        bench.settle(session)
    ears.call, ears.fails = call, once(T0, error, *given)
    session.assign(active=[0, 1])
    failed_by(session, T0, error)
    bench.settle(session)
    assert session.task(1).state is TaskState.RUNNING
    assert not session.ready and any("task 0_0 failed" in line for line in session.missing())
    session.reopen(0)
    session.wait_ready(30)
    assert session.task(0).store("kv").get("k") == "v"


@pytest.mark.parametrize(
    ("call", "given"),
    [
        ("on_state_changed", ("closed",)),
        ("on_state_changed", ("failed",)),
        ("on_restore_suspended", ()),
        ("on_standby_suspended", ()),
    ],
)
def test_listener_that_raises_about_the_end_of_a_task_holds_no_close_up(
    bench: Bench, caplog: pytest.LogCaptureFixture, call: str, given: tuple[object, ...]
) -> None:
    logged(bench)
    ears = Ears(call, lambda _, found: RuntimeError("no") if all(each in found for each in given) else None)
    session = opened(bench, ears)
    standby = [0] if call == "on_standby_suspended" else []
    session.assign(active=[one for one in (0, 1) if one not in standby], standby=standby)
    if call != "on_restore_suspended":
        bench.settle(session)
    if given == ("failed",):
        session.all_tasks()[T0].fail(ValueError("of the program"))
    session.close()
    assert ears.of(call)
    assert f"Ears.{call} raised RuntimeError" in caplog.text
    if given == ("failed",):
        assert "of the program" not in caplog.text, "the listener's error is not the task's"
    StateDir(bench.root / "b", "app").close()
    opened(bench, Ears()).assign(active=[0, 1])


def test_close_that_a_listener_interrupts_frees_the_directory_of_the_task(bench: Bench) -> None:
    ears = Ears("on_state_changed", once(T0, KeyboardInterrupt(), "closed"))
    session = opened(bench, ears)
    session.assign(active=[0, 1])
    session.wait_ready(30)
    with pytest.raises(KeyboardInterrupt):
        session.assign(active=[1])
    session.assign(active=[0, 1])
    session.wait_ready(30)


def test_every_listener_is_called_although_one_raises(bench: Bench) -> None:
    ears = Ears()
    session = opened(bench, Ears("on_restore_end", once(T0, RuntimeError("no"))))
    session.listeners.add(ears)
    session.assign(active=[0])
    bench.settle(session)
    assert [task for task, _ in ears.of("on_restore_end")] == [T0]


def test_application_opens_a_task_again_that_a_listener_failed_behind_the_gate(bench: Bench) -> None:
    create(bench, 2, "in")
    write(bench, "in", ("x", "1", 1))
    seen, ears = Seen(), Ears("on_state_changed", once(T0, RuntimeError("no"), "running"))
    one = Running(bench, reads(seen, "in"), restart=sf.FixedDelay(attempts=1, delay_ms=100), listeners=[ears])
    one.loop.poll_once()
    assert one.session.counters.task_failures == 1 and not seen.keys
    bench.clock.advance(100)
    one.loop.poll_once()
    bench.settle(one.session)
    one.run()
    assert seen.keys == ["x"]


def test_application_ends_with_the_error_of_a_listener_that_raises_again_and_again(bench: Bench) -> None:
    create(bench, 1, "in")
    ears = Ears("on_state_changed", lambda _, given: RuntimeError("no") if "running" in given else None)
    one = Running(bench, reads(Seen(), "in"), restart=sf.NoRestart(), listeners=[ears])
    with pytest.raises(sf.ListenerFailed, match="on_state_changed raised RuntimeError: no"):
        one.loop.poll_once()


# --- standbys begin once ---


@pytest.mark.usefixtures("small_batches")
def test_standby_begins_once_and_after_the_actives_are_restored(bench: Bench) -> None:
    bench.fill(STORES, 2, 2_000)
    ears = Ears()
    session = opened(bench, ears)
    session.poll_once()  # a round before the assignment, as the background thread makes
    session.assign(active=[0], standby=[1])
    while not session.ready:
        assert not ears.of("on_standby_start")
        session.poll_once()
    bench.settle(session)
    assert [task for task, _ in ears.of("on_standby_start")] == [T1]
    calls = [name for name, task, _ in ears.heard if task == T1 and name.startswith("on_standby")]
    assert calls[:2] == ["on_standby_start", "on_standby_batch"]


@pytest.mark.usefixtures("small_batches")
def test_standby_that_waits_for_another_restore_does_not_begin_again(bench: Bench) -> None:
    bench.fill(STORES, 2, 2_000)
    ears = Ears()
    session = opened(bench, ears)
    session.assign(standby=[1])
    bench.settle(session)
    session.assign(active=[0], standby=[1])
    bench.settle(session)
    assert session.ready and [task for task, _ in ears.of("on_standby_start")] == [T1]


# --- counts ---


def keyless(bench: Bench) -> None:
    """Changelogs of two rows, and a record between them that no store writes."""
    opened(bench, Ears()).close()
    admin, topic = bench.log.admin, "app-kv-changelog"
    admin.change_topic(topic, {"cleanup.policy": "delete"})
    rows = [Outgoing(b"a", b"1", 1), Outgoing(None, b"x", 2), Outgoing(b"b", b"2", 3)]
    bench.log.producer().append({TopicPartition(topic, partition): rows for partition in range(2)})
    admin.change_topic(topic, {"cleanup.policy": "compact"})


@pytest.mark.parametrize("how", [{}, BULK], ids=["batches", "bulk"])
def test_skipped_records_are_not_counted_as_restored(bench: Bench, how: dict[str, Any]) -> None:
    keyless(bench)
    ears = Ears()
    session = opened(bench, ears, **how)
    session.assign(active=[0])
    drive(session)
    assert [given[-1] for _, given in ears.of("on_batch_restored")] == [2]
    assert [given[-1] for _, given in ears.of("on_restore_end")] == [2]
    assert session.counters.restored_records.total() == 2
    assert session.task(0).stores.store("kv").rows.counters.skipped == 1


def test_skipped_records_are_not_counted_as_applied_by_a_standby(bench: Bench) -> None:
    keyless(bench)
    ears = Ears()
    session = opened(bench, ears)
    session.assign(standby=[1])
    bench.settle(session)
    assert [given[2:] for _, given in ears.of("on_standby_batch")] == [(3, 2, 3)]
    assert session.counters.standby_records.total() == 2


def test_commit_of_another_thread_is_told_to_that_thread(bench: Bench) -> None:
    ears = Ears("on_commit", once(T0, RuntimeError("no")))
    session = opened(bench, ears, background=True, clock=SystemClock())
    session.assign(active=[0, 1])
    session.wait_ready(30)
    found: list[BaseException] = []

    def commit() -> None:
        try:
            session.commit({("src", 0): 1, ("src", 1): 1})
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=commit)
    thread.start()
    thread.join()
    assert [type(error) for error in found] == [sf.ListenerFailed]
    session.commit({})
    assert session.task(1).source_offsets() == {TopicPartition("src", 1): 1}
