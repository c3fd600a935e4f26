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
    FILL_RECORDS,
    READY_S,
    START_MS,
    STORE,
    VALUES,
    Measured,
    Step,
    address_of,
    bench_store,
    key_of,
    peak_rss_bytes,
    session_of,
    timed,
    values_of,
)
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.replication.topics.changelog import changelog_policy
from standfast.store.process.child import json_line
from standfast.store.process.parent import Parent

FETCH_RECORDS = 5_000
NEAR_RECORDS = 10_000  # all versions of a key lie within so many records


def key_numbers(records: int, versions: int) -> Iterator[int]:
    """Key number of each record, shuffled in stretches that have all versions of their keys."""
    distinct = max(records // versions, 1)
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
        batches: dict[TopicPartition, list[Outgoing]] = {}
        for number, key in enumerate(key_numbers(step.records, step.versions)):
            record = Outgoing(key_of(key, step.key_bytes), values[number % VALUES], START_MS + number)
            batches.setdefault(changelogs[number % step.tasks], []).append(record)
            if (number + 1) % FILL_RECORDS == 0:
                producer.append(batches)
                batches = {}
        if batches:
            producer.append(batches)
    return {"records": step.records}


def read_log(step: Step) -> Measured:
    """Fetch the whole changelog: the bound that no restore can beat."""
    with closing(open_log(address_of(step))) as log:
        reader = log.reader()
        begin, end = reader.bounds([step.changelog])[step.changelog]

        def run() -> None:
            reader.assign({step.changelog: begin})
            # By position: on Kafka, ends of transactions take offsets, too.
            while reader.assignment()[step.changelog] < end:
                reader.fetch(FETCH_RECORDS)

        return timed(run, end - begin)


def read_bare(step: Step) -> Measured:
    """Consume the whole changelog with the Kafka client alone, from its making to the last record."""
    from standfast.replication.kafka.bare import consume_bare

    found: list[int] = []
    measured = timed(lambda: found.append(consume_bare(address_of(step), step.changelog, step.records)), step.records)
    assert found == [step.records], f"{found[0]} of {step.records} records came"
    return measured


def restore(step: Step) -> Measured:
    """From the assignment of a cold task to its open gate: fencing, plan, replay."""
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

    with closing(session):
        measured = timed(run, step.records) | {"peak_rss_bytes": peak_rss_bytes()}
        last = key_of(max(step.records // step.versions, 1) - 1, step.key_bytes)
        assert session.task(0).store(STORE).get(last) is not None, "a restored key is missing"
        return measured | {"in_bulk": session.statistics().bulk.runs > 0}


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
