"""One timed run of a bench of restores, in a process of its own: so its memory is its own and it leaves nothing warm.

    python -m standfast.ops.bench.child '{"step": "restore", "folder": ..., ...}'   ->   a JSON document as its answer

    fill       write a changelog, as fast as the log takes it
    log        read that changelog and do nothing with it
    bare       the same with the Kafka client alone
    restore    open a session on an empty directory, wait until its restore gate opens

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

from standfast.ops.bench.step import (
    FETCH_RECORDS,
    FILL_RECORDS,
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
    parent.tell(json_line(STEPS[step.step](step)))
    return 0


STEPS: dict[str, Callable[[Step], Measured]] = {
    "fill": fill,
    "log": read_log,
    "bare": read_bare,
    "restore": restore,
}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
