"""A task that is closed while it commits: by background work after the commit's end, by a signal handler with its rows.

Rules of this file: the close comes at a named place of the commit, and never by chance.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import standfast as sf
from standfast.store.memory import MemoryEngine
from standfast.store.rocks.engine import RocksEngine
from standfast.stream.task import commit_write
from standfast.stream.task import task as task_module
from standfast.stream.task.states import TaskState
from support.sessions import Bench

TEXT = sf.serde.string
STORES = [
    sf.KeyValueStore("kv", TEXT, TEXT),
    sf.KeyValueStore("memory", TEXT, TEXT, engine="memory"),
    sf.KeyValueStore("own", TEXT, TEXT, logging=False),
]
SOURCE = ("input", 0)
WAIT_S = 30.0
GUARANTEES = ("exactly_once", "at_least_once")


def put(session: sf.Session, value: str) -> None:
    for name in ("kv", "memory", "own"):
        session.task(0).store(name).put("a", value)


def rows_on_disk(session: sf.Session) -> dict[str, Any]:
    """The rows and the source offset that a new opening finds in the session's directory."""
    session.assign(standby=[0])
    stores = session.tasks()[0].stores
    return {name: stores.store(name).get("a") for name in ("kv", "own")} | {"offset": stores.cut.sources.get("input/0")}


def once_at(monkeypatch: pytest.MonkeyPatch, place: str, act: Callable[[], None]) -> None:
    """Have a commit run `act` when it is at the place for the first time."""
    todo = [act]

    def reach(name: str) -> None:
        if name == place and todo:
            todo.pop()()

    monkeypatch.setattr(commit_write, "reach", reach)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_owner_that_is_replaced_while_it_commits_keeps_the_rows_of_a_commit_that_the_log_has(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    first = bench.active("a", stores=STORES, guarantee=guarantee)
    put(first, "1")
    first.task(0).commit({SOURCE: 1})
    put(first, "2")
    task = first.task(0)

    def replace_owner() -> None:
        bench.active("b", stores=STORES, guarantee=guarantee)
        bench.settle(first)
        assert task.state is TaskState.FAILED and not task.stores.closed

    once_at(monkeypatch, "commit.logged", replace_owner)
    if guarantee == "exactly_once":
        task.commit({SOURCE: 2})
    else:  # the offsets are the last step, and the log refuses them
        with pytest.raises(sf.Fenced):
            task.commit({SOURCE: 2})
    bench.settle(first)
    assert task.state is TaskState.CLOSED
    with pytest.raises(sf.Fenced):
        first.task(0)
    assert rows_on_disk(first) == {"kv": "2", "own": "2", "offset": 2}


def test_damage_that_a_reader_finds_during_a_commit_costs_no_row_of_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = bench.active("a", stores=STORES)
    put(session, "1")
    session.task(0).commit({SOURCE: 1})
    put(session, "2")
    task = session.task(0)

    def find_damage() -> None:
        damage = sf.Corruption("a block of kv is damaged")
        damage.families = frozenset(("kv",))
        task.stores._note_damage(damage)
        session.poll_once()
        assert task.state is TaskState.FAILED and not task.stores.closed

    once_at(monkeypatch, "commit.logged", find_damage)
    task.commit({SOURCE: 2})
    bench.settle(session)
    assert session.counters.wipes == {"corrupt": 1}
    assert session.task(0).source_offsets() == {SOURCE: 2}
    assert [session.task(0).store(name).get("a") for name in ("kv", "memory", "own")] == ["2", "2", "2"]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_close_in_the_middle_of_a_local_batch_writes_no_record_without_its_rows(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    """The buffer is empty then, and the database not closed yet: a record alone would say that the rows are there."""
    session = bench.active("a", stores=STORES, guarantee=guarantee)
    stores = session.task(0).stores
    put(session, "1")
    expired = stores._expired

    def close_and_look(times: Any) -> dict[str, list[str]]:
        with monkeypatch.context() as delayed:
            for engine in (RocksEngine, MemoryEngine):
                delayed.setattr(engine, "close", lambda _: None)
            stores.close()
        return expired(times)

    monkeypatch.setattr(stores, "_expired", close_and_look)
    session.task(0).commit({SOURCE: 1})
    stores.close()
    assert rows_on_disk(session) == {"kv": "1", "own": "1", "offset": 1}


def test_rows_of_unlogged_stores_survive_a_close_between_the_log_and_the_local_batch(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = bench.active("a", stores=STORES)
    put(session, "1")
    once_at(monkeypatch, "commit.logged", session.task(0).stores.close)
    with pytest.raises(sf.StandfastError) as failed:
        session.task(0).commit({SOURCE: 1})
    assert failed.value.in_doubt
    session.reopen(0)
    session.wait_ready(30)
    assert session.task(0).source_offsets() == {SOURCE: 1}
    assert [session.task(0).store(name).get("a") for name in ("kv", "memory", "own")] == ["1", "1", "1"]


def test_rows_of_unlogged_stores_survive_an_assignment_while_their_commit_fails_here(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The assignment closes the failed task, and only that close waits for the end of the commit."""
    session = bench.active("a", stores=STORES)
    put(session, "1")
    task = session.task(0)
    writer: Any = task.writer
    closed = threading.Event()
    close = writer.close

    def closing() -> None:
        close()
        closed.set()

    assigner = threading.Thread(target=lambda: session.assign(active=[0]))

    def assign_and_fail() -> None:
        task.fail(sf.Corruption("as a reader on another thread finds it"))
        assigner.start()
        assert closed.wait(WAIT_S)
        raise OSError("no space is left on the device")

    monkeypatch.setattr(task_module, "COMMIT_WAIT_S", WAIT_S)
    monkeypatch.setattr(writer, "close", closing)
    once_at(monkeypatch, "commit.logged", assign_and_fail)
    with pytest.raises(OSError, match="no space"):
        task.commit({SOURCE: 1})
    assigner.join(WAIT_S)
    session.wait_ready(30)
    assert session.task(0).source_offsets() == {SOURCE: 1}
    assert [session.task(0).store(name).get("a") for name in ("kv", "memory", "own")] == ["1", "1", "1"]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_close_of_another_thread_waits_for_the_local_batch_of_a_commit_that_the_log_has(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    session = bench.active("a", stores=STORES, guarantee=guarantee)
    put(session, "1")
    writer: Any = session.task(0).writer
    closed = threading.Event()
    close = writer.close

    def closing() -> None:
        close()
        closed.set()

    closer = threading.Thread(target=session.close)

    def close_session() -> None:
        closer.start()
        assert closed.wait(WAIT_S)

    monkeypatch.setattr(task_module, "COMMIT_WAIT_S", WAIT_S)  # a busy machine may take longer than usual
    monkeypatch.setattr(writer, "close", closing)
    once_at(monkeypatch, "commit.logged", close_session)
    task = session.task(0)
    if guarantee == "exactly_once":
        task.commit({SOURCE: 1})
    else:
        with suppress(sf.Closed):  # of the group, whose offsets are the last step
            task.commit({SOURCE: 1})
    closer.join(WAIT_S)
    assert not closer.is_alive()
    assert rows_on_disk(bench.session("a", stores=STORES, guarantee=guarantee)) == {"kv": "1", "own": "1", "offset": 1}
