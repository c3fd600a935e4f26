"""A cancelled await of the asyncio session: the thread goes on, and the next call waits for it and gets its error.

Rules of this file: a call is held inside by an event until the test lets it go; nothing sleeps.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

import standfast as sf
from standfast.replication.listeners import Listener
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.stream.session import host as session_module
from standfast.stream.session.writers import Writers
from support.sessions import Bench

STORES = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
AT: tuple[str, int] = ("src", 0)
SOURCE = TopicPartition(*AT)
HELD_S = 30


class Held:
    """A call that waits, once begun, until the test lets it go; an error that it is given is raised then, once."""

    def __init__(self, call: Callable[..., Any], error: Exception | None = None) -> None:
        self._call, self._error = call, error
        self._begun, self._go = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self.calls = self.inside = self.inside_max = 0

    def __call__(self, *given: Any, **named: Any) -> Any:
        with self._lock:
            self.calls += 1
            self.inside += 1
            self.inside_max = max(self.inside_max, self.inside)
        try:
            self._begun.set()
            assert self._go.wait(HELD_S)
            error, self._error = self._error, None
            if error is not None:
                raise error
            return self._call(*given, **named)
        finally:
            with self._lock:
                self.inside -= 1

    def go(self) -> None:
        self._go.set()

    async def cancelled(self, call: Coroutine[Any, Any, Any]) -> None:
        """Await the call, and cancel that once it is held."""
        waiting = asyncio.create_task(call)
        await asyncio.to_thread(self._begun.wait, HELD_S)
        await cancelled(waiting)


class HeldState(Listener):
    """Holds the thread in which a task enters a state."""

    def __init__(self, state: str) -> None:
        self._state = state
        self.held = Held(lambda: None)

    def on_state_changed(self, task: TaskId, role: str, state: str) -> None:
        if state == self._state:
            self.held()


async def cancelled(waiting: asyncio.Task[Any]) -> None:
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def begun(call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """The task of a call that has come to its first wait."""
    waiting = asyncio.create_task(call)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    return waiting


def opening(bench: Bench, partitions: int = 2) -> sf.aio.Session:
    return sf.aio.Session("app", log=bench.address, state_dir=bench.root / "a", stores=STORES, partitions=partitions)


async def ready(session: sf.aio.Session) -> None:
    await session.assign(active=[0])
    await session.wait_ready(HELD_S)


def hold_log(session: sf.aio.Session, error: Exception | None = None) -> Held:
    """Hold the log call of commits of task 0."""
    writer: Any = session.task(0).writer
    writer.transact = held = Held(writer.transact, error)
    return held


def put(session: sf.aio.Session, key: str) -> None:
    session.task(0).store("kv").put(key, key)


def committed(session: sf.aio.Session) -> tuple[Mapping[TopicPartition, int], set[str]]:
    return session.task(0).source_offsets(), {key for key, _ in session.read("kv", 0).store.all()}


def test_next_commit_waits_for_one_whose_await_was_cancelled(bench: Bench) -> None:
    async def run() -> None:
        async with opening(bench) as session:
            await ready(session)
            held = hold_log(session)
            put(session, "a")
            await held.cancelled(session.commit({AT: 1}))
            second = await begun(session.commit({AT: 2}))
            held.go()
            await second
            assert (held.calls, held.inside_max) == (2, 1)
            assert committed(session) == ({SOURCE: 2}, {"a"})

    asyncio.run(run())


@pytest.mark.parametrize("call", ["commit", "assign", "close"])
def test_next_call_raises_the_error_of_a_cancelled_commit_once(bench: Bench, call: str) -> None:
    async def run() -> None:
        async with opening(bench) as session:
            await ready(session)
            held = hold_log(session, sf.Unavailable("the log is away"))
            put(session, "a")
            await held.cancelled(session.commit({AT: 1}))
            calls = {
                "commit": lambda: session.commit({}),
                "assign": lambda: session.assign(active=[0]),
                "close": session.close,
            }
            following = await begun(calls[call]())
            held.go()
            with pytest.raises(sf.Unavailable, match="the log is away"):
                await following
            if call == "close":  # it has closed all the same
                with pytest.raises(sf.Closed):
                    session.tasks()
            else:
                await session.reopen(0)
                await session.wait_ready(HELD_S)
                assert committed(session) == ({}, set())

    asyncio.run(run())
    bench.active(stores=STORES)


def test_cancelled_commit_takes_no_rows_that_are_written_after_it(bench: Bench) -> None:
    async def run() -> None:
        async with opening(bench) as session:
            await ready(session)
            put(session, "a")
            with session.blocking._lock:  # background work has it: the commit has not taken its rows yet
                await cancelled(await begun(session.commit({AT: 1})))
                put(session, "b")
            await session.assign(active=[0])  # waits for the commit, whatever it does
            assert committed(session) == ({}, set())
            await session.commit({})  # the offsets of the cancelled one go with it, as its rows do
            assert committed(session) == ({SOURCE: 1}, {"a", "b"})

    asyncio.run(run())


def test_offsets_of_a_commit_that_was_cancelled_before_its_turn_go_with_the_next(bench: Bench) -> None:
    async def run() -> None:
        async with opening(bench) as session:
            await ready(session)
            held = hold_log(session)
            put(session, "a")
            await held.cancelled(session.commit({AT: 1}))
            await cancelled(await begun(session.commit({AT: 2, ("other", 0): 5})))
            held.go()
            await session.commit({AT: 3})
            assert session.task(0).source_offsets() == {SOURCE: 3, TopicPartition("other", 0): 5}

    asyncio.run(run())


def test_put_off_offsets_do_not_go_with_a_task_that_was_opened_again(bench: Bench) -> None:
    async def run() -> None:
        async with opening(bench) as session:
            await ready(session)
            held = hold_log(session)
            put(session, "a")
            await held.cancelled(session.commit({AT: 1}))
            await cancelled(await begun(session.commit({AT: 2})))
            held.go()
            await session.reopen(0)
            await session.wait_ready(HELD_S)
            await session.commit({})
            assert committed(session) == ({SOURCE: 1}, {"a"})

    asyncio.run(run())


def test_cancelled_commit_keeps_the_offsets_that_it_was_given(bench: Bench) -> None:
    async def run() -> None:
        async with opening(bench) as session:
            await ready(session)
            put(session, "a")
            offsets = {AT: 1}
            with session.blocking._lock:
                await cancelled(await begun(session.commit(offsets)))
                offsets[AT] = 9  # the loop uses its dictionary again
            await session.commit({})
            assert committed(session) == ({SOURCE: 1}, {"a"})

    asyncio.run(run())


def test_waits_and_figures_do_not_wait_for_a_cancelled_commit(bench: Bench) -> None:
    async def run() -> None:
        async with opening(bench) as session:
            await ready(session)
            held = hold_log(session)
            put(session, "a")
            await held.cancelled(session.commit({AT: 1}))
            await session.wait_ready(HELD_S)
            assert (await session.statistics()).ready
            assert (await session.look_at_group()).members
            held.go()

    asyncio.run(run())


def test_timeout_around_a_commit_ends_it_at_once(bench: Bench) -> None:
    async def run() -> None:
        async with opening(bench) as session:
            await ready(session)
            held = hold_log(session)
            put(session, "a")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await session.commit({AT: 1})
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(session.commit({AT: 1}), 0.01)
            task = asyncio.current_task()
            assert task is not None
            assert not task.cancelling()
            assert held.inside <= 1
            held.go()
            await session.commit({})
            assert committed(session) == ({SOURCE: 1}, {"a"})

    asyncio.run(run())


def test_body_that_is_cancelled_in_a_commit_closes_after_it(bench: Bench) -> None:
    async def run() -> None:
        held: list[Held] = []

        async def body() -> None:
            async with opening(bench) as session:
                await ready(session)
                held.append(hold_log(session))
                put(session, "a")
                await session.commit({AT: 1})

        whole = asyncio.create_task(body())
        while not held:
            await asyncio.sleep(0)
        await asyncio.to_thread(held[0]._begun.wait, HELD_S)
        whole.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not whole.done()  # it closes
        held[0].go()
        with pytest.raises(asyncio.CancelledError):
            await whole

    asyncio.run(run())
    after = bench.active(stores=STORES)
    assert after.task(0).source_offsets() == {SOURCE: 1}
    assert after.task(0).store("kv").get("a") == "a"


@pytest.fixture
def held_opening(monkeypatch: pytest.MonkeyPatch) -> Held:
    """Sessions are held while they open the log."""
    held = Held(session_module.open_log)
    monkeypatch.setattr(session_module, "open_log", held)
    return held


def test_session_whose_opening_was_cancelled_is_closed_and_may_be_entered_again(
    bench: Bench, held_opening: Held
) -> None:
    async def run() -> None:
        session = opening(bench)
        await held_opening.cancelled(session.__aenter__())
        again = await begun(session.__aenter__())
        held_opening.go()
        await again  # Held, if the first one had the directory
        assert held_opening.inside_max == 1
        await session.close()

    asyncio.run(run())
    bench.active(stores=STORES)


def test_cancelled_opening_ends_before_the_event_loop_does(bench: Bench, held_opening: Held) -> None:
    async def run() -> None:
        await held_opening.cancelled(opening(bench).__aenter__())
        held_opening.go()

    asyncio.run(run())
    bench.active(stores=STORES)


def test_error_of_a_cancelled_opening_is_raised_by_the_next_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(session_module.open_log, sf.Unavailable("the log is away"))
    monkeypatch.setattr(session_module, "open_log", held)

    async def run() -> None:
        session = opening(bench)
        await held.cancelled(session.__aenter__())
        held.go()
        with pytest.raises(sf.Unavailable, match="the log is away"):
            await session.__aenter__()
        async with session:
            await ready(session)

    asyncio.run(run())


def test_tasks_that_a_cancelled_assignment_opened_are_closed(bench: Bench) -> None:
    async def run() -> None:
        listener = HeldState("restoring")
        async with opening(bench, partitions=3) as session:
            await ready(session)
            before = session.task(0)
            session.listeners.add(listener)
            await listener.held.cancelled(session.assign(active=[0, 1], standby=[2]))
            waiting = await begun(session.wait_ready(HELD_S))
            listener.held.go()
            await waiting
            assert session.tasks() == {0: before}
            with pytest.raises(sf.InvalidRequest, match="not assigned"):
                session.task(1)
            await session.assign(active=[0, 1])
            await session.wait_ready(HELD_S)
            assert session.task(1).state.value == "running"

    asyncio.run(run())


def test_error_of_a_cancelled_assignment_is_raised_by_the_next_call(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*given: Any, **named: Any) -> Any:
        raise sf.Unavailable("the log is away")

    async def run() -> None:
        async with opening(bench) as session:
            with monkeypatch.context() as outage:
                outage.setattr(Writers, "open", away)
                with session.blocking._lock:
                    await cancelled(await begun(session.assign(active=[0])))
                with pytest.raises(sf.Unavailable, match="the log is away"):
                    await session.wait_ready(HELD_S)
            await ready(session)

    asyncio.run(run())


def test_cancelled_waits_keep_no_threads(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*given: Any, **named: Any) -> Any:
        raise sf.Unavailable("the log is away")

    monkeypatch.setattr(Writers, "open", away)

    async def run() -> None:
        async with opening(bench) as session:
            with pytest.raises(sf.Unavailable):
                await session.assign(active=[0])
            for _ in range(100):  # more than the pool has threads
                await cancelled(await begun(session.wait_ready()))
            with pytest.raises(sf.NotReady):
                await session.wait_ready(0)

    asyncio.run(run())


def test_cancelled_close_goes_on_and_the_next_one_waits_for_it(bench: Bench) -> None:
    async def run() -> None:
        listener = HeldState("closed")
        async with opening(bench) as session:
            await ready(session)
            session.listeners.add(listener)
            await listener.held.cancelled(session.close())
            second = await begun(session.close())
            listener.held.go()
            await second
            await asyncio.to_thread(bench.active, stores=STORES)  # the directory is free

    asyncio.run(run())


def test_cancelled_close_ends_before_the_event_loop_does(bench: Bench) -> None:
    async def run() -> None:
        listener = HeldState("closed")
        session = await opening(bench).__aenter__()
        await ready(session)
        session.listeners.add(listener)
        await listener.held.cancelled(session.close())
        listener.held.go()

    asyncio.run(run())
    bench.active(stores=STORES)


def test_close_that_is_cancelled_behind_a_commit_still_closes(bench: Bench) -> None:
    async def run() -> None:
        session = await opening(bench).__aenter__()
        await ready(session)
        held = hold_log(session)
        put(session, "a")
        await held.cancelled(session.commit({AT: 1}))
        await cancelled(await begun(session.close()))
        held.go()

    asyncio.run(run())
    assert bench.active(stores=STORES).task(0).source_offsets() == {SOURCE: 1}
