"""The steps of `make bench BENCHES=process`: an application over a source topic that is there already.

    source    write the records: 1,000 keys in random order, event times 10 ms apart
    count     tumbling windows of a minute, counted per key in a RocksDB window store with its cache
    idle      the same records to a processor that does nothing
    calls     some of these records to a service that answers after 20 ms, 32 calls at once

Rules of this file: only the public path (App.run) is timed, from the moment when its task runs to the commit that has
the last record. The commit interval is 100 ms, Kafka Streams' default for exactly once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from bench.step import SOURCE, Step
from standfast.ops.bench.step import APP, FILL_RECORDS, START_MS, VALUES, Measured, address_of, key_of, timed, values_of
from standfast.replication.listeners import Listener
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store import serde
from standfast.store.specs import WindowStore
from standfast.stream.app.app import App
from standfast.stream.record import Record
from standfast.stream.topology.processor import Processor
from standfast.stream.windows import TumblingWindows

KEYS = 1_000
WINDOW_MS = 60_000
STEP_MS = 10
COMMIT_INTERVAL_MS = 100
INPUT = TopicPartition(SOURCE, 0)
ASKED = TopicPartition(f"{SOURCE}-asked", 0)
CALLS_MAX, PARALLEL, ANSWER_S = 5_000, 32, 0.02


class Nothing(Processor):
    """A processor that does nothing: the cost of the loop by itself."""

    def process(self, record: Record) -> None:
        pass


class StopAtEnd(Listener):
    """Stops the application with the commit that holds the last record."""

    def __init__(self, at: TopicPartition, end: int) -> None:
        self.app: App | None = None
        self._at = at
        self._end = end

    def on_commit(self, task: TaskId, sources: Mapping[TopicPartition, int]) -> None:
        if self.app is not None and sources.get(self._at) == self._end:
            self.app.stop()


def source(step: Step) -> Measured:
    """Write the source topic."""
    rng, values = random.Random(1), values_of(step.value_bytes)
    keys = [key_of(number, step.key_bytes) for number in range(KEYS)]
    with closing(open_log(address_of(step))) as log:
        log.admin.create_topic(SOURCE, 1, TopicPolicy())
        producer = log.producer()
        for first in range(0, step.records, FILL_RECORDS):
            numbers = range(first, min(first + FILL_RECORDS, step.records))
            producer.append(
                {INPUT: [Outgoing(rng.choice(keys), values[n % VALUES], START_MS + n * STEP_MS) for n in numbers]}
            )
        log.admin.create_topic(ASKED.topic, 1, TopicPolicy())
        few = range(min(step.records, CALLS_MAX))
        producer.append({ASKED: [Outgoing(rng.choice(keys), values[n % VALUES], START_MS + n * STEP_MS) for n in few]})
        return {"records": step.records}


def count(step: Step) -> Measured:
    """Count per key and window."""
    store = WindowStore("counts", serde.bytes, serde.int64, window_size_ms=WINDOW_MS, retention_ms=10 * WINDOW_MS)

    def build(app: App) -> None:
        stream = app.stream(SOURCE, key=serde.bytes, value=serde.bytes)
        stream.group_by_key().window(TumblingWindows(WINDOW_MS)).count("counts")

    return _run(step, build, [store])


def idle(step: Step) -> Measured:
    """Process the records with `Nothing`."""
    return _run(step, lambda app: app.source(SOURCE, key=serde.bytes, value=serde.bytes)(Nothing), [])


def calls(step: Step) -> Measured:
    """Ask a service for each record."""

    async def ask(value: bytes) -> bytes:
        await asyncio.sleep(ANSWER_S)
        return value

    def build(app: App) -> None:
        app.stream(ASKED.topic, key=serde.bytes, value=serde.bytes).map_values_async(ask, parallel=PARALLEL)

    return _run(step, build, [], ASKED, min(step.records, CALLS_MAX))


PROCESS_STEPS: dict[str, Callable[[Step], Measured]] = {"source": source, "count": count, "idle": idle, "calls": calls}


def _run(
    step: Step,
    build: Callable[[App], object],
    stores: list[WindowStore],
    at: TopicPartition = INPUT,
    records: int = 0,
) -> Measured:
    """`records` of a topic that has so many; by default the source's."""
    records = records or step.records
    stopper = StopAtEnd(at, records)
    app = App(
        f"{APP}-{step.step}-{step.run}",
        log=address_of(step),
        state_dir=Path(step.folder) / f"{step.step}-{step.run}",
        stores=stores,
        commit_interval_ms=COMMIT_INTERVAL_MS,
        memory_bytes=step.memory_bytes,
        listeners=[stopper],
    )
    stopper.app = app
    build(app)
    session = app.open()
    while not (session.all_tasks() and session.ready):
        session.clock.sleep_ms(1)
    measured = timed(app.run, records)
    with closing(open_log(address_of(step))) as log:
        committed = log.group(app.name).committed([at])[at].offset
    # A run that stopped before the end would look fast.
    assert committed == records, f"{committed} of {records} records are committed"
    return measured
