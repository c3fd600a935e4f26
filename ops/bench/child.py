"""One timed run of a benchmark, in a process of its own: so its memory is its own and it leaves nothing warm.

    python -m standfast.ops.bench.child '{"step": "restore", "folder": ..., ...}'   ->   a JSON document as its answer

    write      put + commit in batches through a session        fill     write a changelog, as fast as the log takes it
    read       point gets and scans of committed rows           log      read that changelog and do nothing with it
    restore    open a session on an empty directory, wait       bare     the same with the Kafka client alone
               until its restore gate opens            produce  write the same records with the Kafka client alone
    source     write a source topic                         count    an application counts it per key and window
    idle       the same application with a processor that does nothing
    transact   write them in transactions of the Kafka client alone
    failover   an application, until it is killed
    pace       how much work is 100 us                      turns    bare processes do that work for each record
    scale      an application with workers does it in front of a count
    standby    tail changelogs of several tasks, then       cold     take over with an empty directory
               take over

Rules of this file: only the public path (Session, task, store) is timed, with RocksDB, on the embedded log at its
default of synchronous=FULL or on Kafka. Keys and values are made before the clock starts. The same arguments give the
same data.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from standfast.ops.bench.failover import FAILOVER, live
from standfast.ops.bench.process import PROCESS_STEPS
from standfast.ops.bench.scale import SCALE_STEPS
from standfast.ops.bench.standby import STANDBY_STEPS
from standfast.ops.bench.step import (
    FETCH_RECORDS,
    FILL_RECORDS,
    GETS_MAX,
    NEAR_RECORDS,
    READY_S,
    START_MS,
    STORE,
    VALUES,
    Measured,
    Step,
    address_of,
    bench_store,
    key_of,
    memory_bytes,
    session_of,
    timed,
    values_of,
)
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.replication.topics.changelog import changelog_policy
from standfast.store.clock import SystemClock
from standfast.store.process.child import json_line
from standfast.store.process.parent import Parent
from standfast.stream.session.session import Session


def key_numbers(records: int, versions: int, order: str) -> Iterator[int]:
    """Key number of each record. "far": every key once, in one order, then all again. "near": shuffled in stretches."""
    distinct = max(records // versions, 1)
    if order == "far":
        for number in range(records):
            yield number % distinct
        return
    span = max(min(NEAR_RECORDS, records) // versions, 1)
    for first in range(0, distinct, span):
        numbers = list(range(first, min(first + span, distinct))) * versions
        # Seeded: the same arguments give the same data.
        random.Random(first).shuffle(numbers)
        yield from numbers


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
    from standfast.replication.kafka.bare import BareProducer

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
    from standfast.replication.kafka.bare import BareTransactions

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


def fill(step: Step) -> Measured:
    """Write the changelogs that restores and standbys read: records dealt out to the tasks in turn."""
    values = values_of(step.value_bytes)
    changelogs = [step.changelog._replace(partition=number) for number in range(step.tasks)]
    with closing(open_log(address_of(step))) as log:
        log.admin.create_topic(step.source, step.tasks, TopicPolicy())
        log.admin.create_topic(step.changelog.topic, step.tasks, changelog_policy(bench_store()))
        producer = log.producer()
        started_ms = SystemClock().monotonic_ms()
        batches: dict[TopicPartition, list[Outgoing]] = {}
        for number, key in enumerate(key_numbers(step.records, step.versions, step.order)):
            record = Outgoing(key_of(key, step.key_bytes), values[number % VALUES], START_MS + number)
            batches.setdefault(changelogs[number % step.tasks], []).append(record)
            if (number + 1) % FILL_RECORDS == 0:
                producer.append(batches)
                batches = {}
        if batches:
            producer.append(batches)
        end = sum(bounds.end for bounds in log.reader().bounds(changelogs).values())
        return {"records": end, "elapsed_ms": SystemClock().monotonic_ms() - started_ms}


def read_log(step: Step) -> Measured:
    """Fetch the whole changelog: the bound that no restore can beat."""
    changelog = step.changelog
    with closing(open_log(address_of(step))) as log:
        reader = log.reader()
        begin, end = reader.bounds([changelog])[changelog]

        def run() -> None:
            reader.assign({changelog: begin})
            # By position: on Kafka, ends of transactions take offsets, too.
            while reader.assignment()[changelog] < end:
                reader.fetch(FETCH_RECORDS)

        return timed(run, end - begin)


def read_bare(step: Step) -> Measured:
    """Consume the whole changelog with the Kafka client alone, from its making to the last record."""
    from standfast.replication.kafka.bare import consume_bare

    changelog = step.changelog
    with closing(open_log(address_of(step))) as log:
        end = log.reader().bounds([changelog])[changelog].end
    found: list[int] = []
    measured = timed(lambda: found.append(consume_bare(address_of(step), changelog, end)), end)
    assert found == [end], f"{found[0]} of {end} records came"
    return measured


def restore(step: Step) -> Measured:
    """From the assignment of a cold task to its open gate: fencing, plan, replay."""
    with closing(open_log(address_of(step))) as log:
        log.admin.create_topic(step.source, 1, TopicPolicy())
        records = log.reader().bounds([step.changelog])[step.changelog].end
    # No lease process: only the restore is measured.
    session = session_of(
        step,
        f"restore-{step.run}",
        restore_workers=step.workers,
        restore_memory_bytes=step.restore_memory_bytes,
        take_over=False,
    )

    def run() -> None:
        # From the assignment on: opening the session is mostly connections to the broker.
        session.assign(active=[0])
        session.wait_ready(READY_S)

    before = memory_bytes("VmRSS")
    try:
        measured = timed(run, records)
        measured["peak_rss_bytes"] = memory_bytes("VmHWM")
        measured["rss_before_bytes"] = before
        measured |= _of_workers(session)
        store = session.task(0).store(STORE)
        last = key_of(max(records // step.versions, 1) - 1, step.key_bytes)
        assert store.get(last) is not None, "a restored key is missing"
        return measured
    finally:
        session.close()


def _of_workers(session: Session) -> Measured:
    """Figures of the workers of a bulk restore."""
    bulk = session.statistics().bulk
    return {
        "workers": bulk.workers_max if bulk.runs else 0,
        "runs_ingested": bulk.runs,
        "worker_peak_rss_bytes": bulk.worker_peak_rss_bytes,
    }


def main(arguments: list[str]) -> int:
    """Run one step; the answer is its measured figures."""
    parent, step = Parent(), Step(**json.loads(arguments[0]))
    if step.step == FAILOVER:
        live(step, lambda **answer: parent.tell(json_line(answer)))
    else:
        parent.tell(json_line((STEPS | PROCESS_STEPS | SCALE_STEPS | STANDBY_STEPS)[step.step](step)))
    return 0


STEPS: dict[str, Callable[[Step], Measured]] = {
    "write": write,
    "produce": produce_bare,
    "transact": transact_bare,
    "read": read,
    "fill": fill,
    "log": read_log,
    "bare": read_bare,
    "restore": restore,
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


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
