"""An application with asynchronous steps, to be killed: each record asks a service, and its answer goes into a sum.

    in ──> map_values_async(ask) ──> Sum (a running sum per key) ──> Asks (async def process) ──> out
                 └── fails for good ──> dead

    stdout   called      the first call of this process has begun

Rules of this file: started by `test_crash_calls.py` with its settings as JSON. Answers come in random order and may
fail once; `plain` computes the outputs without any of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # started by path

import standfast as sf
from support.crash.options import use

APP = "calls"
PARTITIONS = 2
LIFE_MAX_S = 150  # an orphan ends by itself
TEXT, INT = sf.serde.string, sf.serde.int64
Row = tuple[str, int]  # key and value


def is_refused(value: int) -> bool:
    """Whether the service never answers for a value."""
    return value % 29 == 7


def plain(records: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """The records of out and of dead for the records of one partition."""
    sums: dict[str, int] = {}
    out, dead = [], []
    for key, value in records:
        if is_refused(value):
            dead.append((key, value))
            continue
        sums[key] = sums.get(key, 0) + value * 10
        out.append((key, sums[key] + 1))
    return out, dead


class Service:
    """Answers late, in random order; its first answer for some values is an error; it may end the process."""

    def __init__(self, seed: int, kill_at: int) -> None:
        self.random = random.Random(seed)
        self.kill_at = kill_at
        self.calls = 0
        self.failed: set[int] = set()

    async def ask(self, value: int) -> int:
        self.calls += 1
        if self.calls == 1:
            print("called", flush=True)
        if self.calls == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(self.random.choice((0, 0.001, 0.002, 0.005)))
        if is_refused(value) or (value % 11 == 3 and value not in self.failed):
            self.failed.add(value)
            raise ConnectionError(f"no answer for {value}")
        return value * 10


class Sum(sf.Processor):
    """A running sum per key."""

    def init(self, context: sf.Context) -> None:
        self.context, self.sums = context, context.store("sums")

    def process(self, record: sf.Record) -> None:
        total = (self.sums.get(record.key) or 0) + record.value
        self.sums.put(record.key, total)
        self.context.forward(record._replace(value=total))


class PlusOne(sf.Processor):
    """Adds one, after a while."""

    calls = sf.Calls(parallel=3)

    def init(self, context: sf.Context) -> None:
        self.context = context

    async def process(self, record: sf.Record) -> None:
        await asyncio.sleep(random.choice((0, 0.001)))
        self.context.forward(record._replace(value=record.value + 1))


def make_app(settings: dict[str, Any]) -> sf.App:
    service = Service(settings["seed"], settings["kill_at"])
    app = sf.App(
        APP,
        log=settings["log"],
        state_dir=settings["state_dir"],
        stores=[sf.KeyValueStore("sums", TEXT, INT)],
        guarantee="exactly_once",
        standby_replicas=1,
        commit_interval_ms=settings["commit_interval_ms"],
        lease_ms=1_000,
        memory_bytes=32 << 20,
    )
    asked = app.stream("in", key=TEXT, value=INT).map_values_async(
        service.ask, value=INT, parallel=8, retries=1, backoff_ms=1, name="ask", on_error="dead_letter",
        dead_letter="dead",
    )  # fmt: skip
    asked.process(Sum, "sums", key=TEXT, value=INT).process(PlusOne, key=TEXT, value=INT).to("out")
    return app


def main() -> None:
    signal.alarm(LIFE_MAX_S)
    make_app(json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    use()
    main()
