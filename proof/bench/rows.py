"""The steps of the benches of writes and reads, of one process with one task.

    write      put + commit in batches through a session
    produce    write the same records with the Kafka client alone
    transact   write them in transactions of the Kafka client alone
    read       point gets and scans of committed rows

Rules of this file: only the public path (Session, task, store) is timed, with RocksDB, on the embedded log at its
default of synchronous=FULL or on Kafka. Keys and values are made before the clock starts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from bench.step import Step
from standfast.ops.bench.step import (
    FILL_RECORDS,
    READY_S,
    START_MS,
    STORE,
    VALUES,
    Measured,
    address_of,
    bench_store,
    key_of,
    session_of,
    timed,
    values_of,
)
from standfast.replication.log import TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.replication.topics.changelog import changelog_policy
from standfast.stream.session.session import Session

GETS_MAX = 200_000


def write(step: Step) -> Measured:
    """Put `records` rows with distinct keys and commit each batch together with its source offset."""
    keys = [key_of(number, step.key_bytes) for number in range(step.records)]
    values = values_of(step.value_bytes)
    with _session(step, f"write-{step.run}") as session:
        task = session.task(0)
        put = task.store(STORE).put
        source = step.source

        def run() -> None:
            for first in range(0, len(keys), step.batch):
                batch = keys[first : first + step.batch]
                for number, key in enumerate(batch, first):
                    put(key, values[number % VALUES], START_MS + number)
                task.commit({(source, 0): first + len(batch)})

        return timed(run, step.records)


def produce_bare(step: Step) -> Measured:
    """Write the records of `write` with the Kafka client alone, and wait for their answers after each batch."""
    from bench.bare import BareProducer

    keys = [key_of(number, step.key_bytes) for number in range(step.records)]
    values = values_of(step.value_bytes)
    with closing(open_log(address_of(step))) as log:
        log.admin.create_topic(step.changelog.topic, 1, changelog_policy(bench_store()))
        with closing(BareProducer(address_of(step), step.changelog.topic)) as producer:

            def run() -> None:
                for first in range(0, len(keys), step.batch):
                    batch = enumerate(keys[first : first + step.batch], first)
                    producer.produce(
                        step.changelog, ((key, values[number % VALUES], START_MS + number) for number, key in batch)
                    )

            measured = timed(run, step.records)
        end = log.reader().bounds([step.changelog])[step.changelog].end
        assert end == step.records, f"{end} of {step.records} records are in the log"
        return measured


def transact_bare(step: Step) -> Measured:
    """Write the records of `write` in transactions of the Kafka client alone, each with its source offset."""
    from bench.bare import BareTransactions

    keys = [key_of(number, step.key_bytes) for number in range(step.records)]
    values = values_of(step.value_bytes)
    read = TopicPartition(step.source, 0)
    with closing(open_log(address_of(step))) as log:
        log.admin.create_topic(step.source, 1, TopicPolicy())
        log.admin.create_topic(step.changelog.topic, 1, changelog_policy(bench_store()))
        with closing(BareTransactions(address_of(step), step.changelog.topic, step.app)) as producer:

            def run() -> None:
                for first in range(0, len(keys), step.batch):
                    batch = keys[first : first + step.batch]
                    records = (
                        (key, values[number % VALUES], START_MS + number) for number, key in enumerate(batch, first)
                    )
                    producer.transact(step.changelog, records, read, first + len(batch))

            measured = timed(run, step.records)
        end = log.reader().written_ends([step.changelog])[step.changelog]
        commits = -(-step.records // step.batch)
        # Each transaction leaves a marker there, the last one a moment after it was acknowledged.
        assert 0 <= step.records + commits - end <= 1, f"{end} is not the end of {step.records} records"
        return measured


def read(step: Step) -> Measured:
    """Point gets of present and absent keys, and whole scans, over committed and flushed rows."""
    keys = [key_of(number, step.key_bytes) for number in range(step.records)]
    values = values_of(step.value_bytes)
    with _session(step, f"read-{step.run}") as session:
        task = session.task(0)
        store = task.store(STORE)
        for first in range(0, len(keys), FILL_RECORDS):
            for number, key in enumerate(keys[first : first + FILL_RECORDS], first):
                store.put(key, values[number % VALUES], START_MS + number)
            task.commit()
        task.stores.flush()
        # All rows in one level: otherwise the figures depend on how far RocksDB's own compaction has come.
        task.stores.engine.compact(STORE)
        wanted = random.Random(2 + step.run).sample(keys, min(GETS_MAX, len(keys)))
        absent = [key_of(step.records + number, step.key_bytes) for number in range(len(wanted))]
        measured = {
            "get": timed(lambda: _get_all(store.get, wanted, present=True), len(wanted)),
            "get_absent": timed(lambda: _get_all(store.get, absent, present=False), len(absent)),
        }
        for name, reverse in (("scan", False), ("scan_reverse", True)):

            def run(reverse: bool = reverse) -> None:
                found = sum(1 for _ in store.all(reverse))
                assert found == len(keys), f"{found} of {len(keys)} rows were found"

            measured[name] = timed(run, len(keys))
        return measured


ROWS_STEPS: dict[str, Callable[[Step], Measured]] = {
    "write": write,
    "produce": produce_bare,
    "transact": transact_bare,
    "read": read,
}


def _session(step: Step, name: str) -> Session:
    """A session with an empty store and an empty log of its own, ready."""
    own = replace(step, folder=str(Path(step.folder) / name))
    with closing(open_log(address_of(own))) as log:
        log.admin.create_topic(step.source, 1, TopicPolicy())
    session = session_of(own, "state", guarantee=step.guarantee)
    session.assign(active=[0])
    session.wait_ready(READY_S)
    return session


def _get_all(get: Callable[[bytes], bytes | None], keys: list[bytes], *, present: bool) -> None:
    for key in keys:
        assert (get(key) is not None) == present, f"key {key.hex()} gave the wrong answer"
