"""The asyncio session behaves as the session does."""

from __future__ import annotations

import asyncio
import inspect

import pytest

import standfast as sf
from standfast.replication.offsets import TopicPartition
from support.sessions import Bench

STORES = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]


def test_async_session_opens_commits_and_closes(bench: Bench) -> None:
    async def run() -> None:
        async with sf.aio.Session(
            "app", log=bench.address, state_dir=bench.root / "a", stores=STORES, partitions=2
        ) as session:
            await session.assign(active=[0])
            await session.wait_ready(30)
            session.task(0).store("kv").put("a", "1")
            await session.commit({("src", 0): 7})
            assert session.read("kv", 0).store.get("a") == "1"
            assert (await session.statistics()).ready

    asyncio.run(run())
    after = bench.active(stores=STORES, partitions=(0,))
    assert after.task(0).source_offsets() == {TopicPartition("src", 0): 7}


def test_async_session_is_opened_by_its_block() -> None:
    with pytest.raises(sf.InvalidRequest, match="async with"):
        sf.aio.Session("app", log="sqlite:///./log", state_dir="./state").task(0)


# Names of a session that an asyncio session lacks, with the reason.
LACKS = {
    "commit_interval_ms": "an application's loop sets it, which has no asynchronous session",
    "guarantee": "an application's loop asks for it, which has no asynchronous session",
    "commit_tasks": "its `commit` calls it, since that is where the consumer is asked",
    "forked": "the hook of a fork calls it, in the child",
    "follow_now": "an application's loop calls it, which has no asynchronous session",
    "lives": "an application's loop keeps failures in them, and has no asynchronous session",
    "open_later": "an application's loop calls it, which has no asynchronous session",
    "held_tasks": "an application's loop calls it, which has no asynchronous session",
    "join_checkpoints": "an application's loop calls it, which has no asynchronous session",
    "misses_partitions": "an application's loop asks for it, which has no asynchronous session",
    "put_off": "its `commit` calls it, for one that was cancelled before its thread began",
    "wait_until_ready": "its `wait_ready` calls it",
    "threads": "an application's loop asks for it, which has no asynchronous session",
    "own_sources": "an application's loop sets it, which has no asynchronous session",
}


def test_async_session_has_all_that_a_session_has(bench: Bench) -> None:
    def public(one: object) -> set[str]:
        return {name for name in dir(one) if not name.startswith("_")}

    blocking = bench.session(stores=STORES)
    assert public(blocking) - public(sf.aio.Session) == set(LACKS)


def test_async_session_takes_and_describes_the_same_arguments() -> None:
    assert inspect.signature(sf.aio.Session) == inspect.signature(sf.Session)
    described = inspect.getdoc(sf.Session)
    assert described is not None
    assert (inspect.getdoc(sf.aio.Session) or "").endswith(described)


def test_methods_of_an_async_session_have_the_signatures_and_help_of_the_session() -> None:
    for name, own in inspect.getmembers(sf.aio.Session, inspect.isroutine):
        if not name.startswith("_") and hasattr(sf.Session, name):  # the others are made by its __init__
            of_session = getattr(sf.Session, name)
            assert inspect.signature(own).parameters == inspect.signature(of_session).parameters, name
            assert inspect.getdoc(own), name


def test_async_session_gives_the_values_of_the_session_underneath(bench: Bench) -> None:
    async def run() -> None:
        async with sf.aio.Session("app", log=bench.address, state_dir=bench.root / "a", stores=STORES) as session:
            assert not session.missing()
            assert (session.app, session.ready, session.specs) == ("app", True, tuple(session.blocking.specs))
            assert session.instance_id == session.blocking.instance_id
            await session.assign(active=[0])
            await session.wait_ready(timeout_s=30)
            assert list(session.tasks()) == [0]
            await session.close()
            with pytest.raises(sf.Closed):
                session.tasks()

    asyncio.run(run())


def test_commit_within_an_exclusive_block_of_the_event_loop_is_refused_and_harms_nothing(bench: Bench) -> None:
    async def run() -> None:
        async with sf.aio.Session(
            "app", log=bench.address, state_dir=bench.root / "a", stores=STORES, partitions=2
        ) as session:
            await session.assign(active=[0])
            await session.wait_ready(30)
            task = session.task(0)
            with task.exclusive():
                task.store("kv").put("a", "1")
                with pytest.raises(sf.InvalidRequest, match="exclusive"):
                    await session.commit({("src", 0): 1})
            await session.commit({("src", 0): 2})

    asyncio.run(run())
    after = bench.active(stores=STORES, partitions=(0,)).task(0)
    assert (after.source_offsets(), after.store("kv").get("a")) == ({TopicPartition("src", 0): 2}, "1")
