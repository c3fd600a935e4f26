"""The asyncio face of the session does what the session does."""

from __future__ import annotations

import asyncio

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
        sf.aio.Session("app").task(0)
