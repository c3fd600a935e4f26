"""Awaits of an asyncio session that are cancelled: the session works on, and no acknowledged row is lost.

Rules of this file: the model is a dict of rows; those put before a call are committed by the next commit that returns,
unless the call itself gives them up.
"""

from __future__ import annotations

import asyncio
import random
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress

import pytest

import standfast as sf
from support.attacks.awaited import CANCELLED, DROPS, Points, cancelled, usable
from support.attacks.stage import SRC, STEP
from support.sessions import Bench

ROUNDS = 6
STORES = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]


@pytest.fixture
def points() -> Iterator[Points]:
    """Of threads that begin from now on."""
    made = Points()
    before = threading.gettrace()
    threading.settrace(made)
    yield made
    threading.settrace(before)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", CANCELLED)
def test_cancelled_await_leaves_a_session_that_works_and_loses_nothing(name: str, bench: Bench, points: Points) -> None:
    seed = zlib.crc32(name.encode())
    print(f"seed {seed}")
    rng = random.Random(seed)
    rows: dict[str, str] = {}

    async def run() -> None:
        session = sf.aio.Session(
            "app",
            log=bench.address,
            state_dir=bench.root / "a",
            stores=STORES,
            partitions=1,
            background=False,
            clock=bench.clock,
        )
        async with session:
            await session.assign(active=[0])
            await session.wait_ready(5)
            await CANCELLED[name](session, 1)
            lines = 1
            for n in range(2, 2 + ROUNDS):
                await usable(session)
                points.count = 0
                lost = put(session, f"before{n}")
                returned = await cancelled(session, points, CANCELLED[name], n, rng.randint(1, lines))
                lines = max(points.count, 1)
                beside = ""
                with suppress(sf.StandfastError):  # the task may be closed by the call that is under way
                    beside = put(session, f"beside{n}")
                await usable(session)
                if beside and (name not in DROPS or session.task(0).store("kv").get(beside) is not None):
                    rows[beside] = "v"
                kept = session.task(0).store("kv").get(lost) is not None
                assert kept or name in DROPS
                if kept:
                    rows[lost] = "v"
                rows[put(session, f"after{n}")] = "v"
                known = session.task(0).source_offsets().get(SRC, 0)
                assert known == n * STEP if returned and name == "commit" else known <= n * STEP
                await session.commit({SRC: n * STEP + 1})
                assert found(session) == rows

    asyncio.run(run())
    other = bench.session("other", stores=STORES, partitions=1)
    other.assign(active=[0])
    other.wait_ready(5)
    assert dict(other.task(0).store("kv").all()) == rows
    assert other.task(0).source_offsets() == {SRC: (1 + ROUNDS) * STEP + 1}


def put(session: sf.aio.Session, key: str) -> str:
    session.task(0).store("kv").put(key, "v", 1)
    return key


def found(session: sf.aio.Session) -> dict[str, str]:
    return dict(session.task(0).store("kv").all())
