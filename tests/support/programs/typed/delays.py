# pyright: strict
"""A user's program, checked by type checkers as a user runs them; see tests/repo/test_typed_programs.py.

A line with a comment `# mistake: this -> that` is right as it stands, and wrong with the one replaced by the other.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import standfast as sf
from standfast import serde

LOG = "sqlite:///./log"
DAY_MS = 86_400_000
MINUTE = timedelta(minutes=1)
COUNTS = sf.KeyValueStore("counts", serde.string, serde.int64)
DELAYS = sf.WindowStore("delays", serde.string, serde.float64, window_size_ms=60_000, retention_ms=DAY_MS)
VISITS = sf.SessionStore("visits", serde.int64, serde.json, retention_ms=DAY_MS)  # mistake: , retention_ms=DAY_MS ->
PRICES = sf.VersionedStore("prices", serde.string, serde.float64, history_retention_ms=DAY_MS)
app = sf.App("delays", stores=[COUNTS, DELAYS], linger_ms=200)  # mistake: linger_ms -> linger


def declared() -> list[sf.StoreSpec]:
    return [COUNTS, DELAYS, VISITS, PRICES]


def counts_of(context: sf.Context) -> sf.KeyValueState[str, int]:
    return context.store(COUNTS)  # mistake: COUNTS -> DELAYS


@app.source("flights", key=serde.string, value=serde.float64)
class Board(sf.Processor):
    stores = ("counts", "delays")

    def init(self, context: sf.Context) -> None:
        self.counts = counts_of(context)
        self.delays = context.store(DELAYS)

    def process(self, record: sf.Record) -> None:
        seen = self.counts.get(record.key) or 0
        self.counts.put(record.key, seen + 1)
        self.delays.put("JFK", 2.5, 60_000)  # mistake: , 60_000 ->
        for start, delay in self.delays.fetch_range("JFK", 0, 60_000):
            total: float = start + delay
            print(total)


def external_consumer() -> None:
    with sf.Session("own", log=LOG, state_dir="./state", stores=declared(), lease_ms=3_000) as session:
        session.assign(active=[0])
        session.wait_ready(30)
        task = session.task(0)
        counts = task.store(COUNTS)
        counts.put("ada", 1)  # mistake: "ada" -> 7
        counts.put("bob", 1)  # mistake: 1 -> "1"
        most: int = counts.get("ada") or 0  # mistake: or 0 ->
        with counts.range(reverse=True) as rows:
            print({key.upper(): count + most for key, count in rows})
        visits = task.store(VISITS)
        visits.put(7, 0, 1_000, {"page": "start"})
        print([one.key + one.end for one, _ in visits.fetch(7)])
        version = task.store(PRICES).get("tea", as_of=1_000)
        print(0.0 if version is None else version.value + version.valid_to)
        by_name = task.store("counts")
        by_name.put("ada", 1)
        task.commit(source_offsets={("flights", 0): 1})


def shared(minutes: int) -> sf.Session:
    return sf.Session("own", log=LOG, state_dir="./state", lease_ms=minutes * 60_000)  # mistake: minutes -> MINUTE


async def external_consumer_async() -> None:
    session = sf.aio.Session("own", log=LOG, state_dir=".", take_over=True)  # mistake: take_over -> takeover
    async with session:
        await session.wait_ready(30)
        session.task(0).store(COUNTS).put("ada", 1)
        await session.commit({("flights", 0): 1})  # mistake: await session -> session


def test_board() -> None:
    with sf.testing.Driver(app, now_ms=0) as driver:
        driver.pipe("flights", "JFK", 2.5, 1_000)
        assert driver.store(COUNTS).get("JFK") == 1
        print(driver.store(DELAYS, partition=0).fetch("JFK", 60_000))


if __name__ == "__main__":
    asyncio.run(external_consumer_async())
