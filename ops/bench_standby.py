"""The steps of `standfast bench standby`: changelogs of several tasks that are there already.

    spread     write them: as many records for each task
    standby    stand by for every task, from an empty directory to the end of its changelog; then take all of them over
    cold       take all of them over with an empty directory

Rules of this file: only the public path (Session) is timed. How long it takes to find out that an instance is gone is
no part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from standfast.ops.bench_step import (
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
    timed,
    values_of,
)
from standfast.replication.changelog import changelog_policy
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.open_log import open_log
from standfast.store.cut import Position
from standfast.stream.session import Session

LOOK_MS = 2


def spread(step: Step) -> Measured:
    """Write the changelogs: distinct keys, dealt out to the tasks in turn."""
    values, topic = values_of(step.value_bytes), step.changelog.topic
    log = open_log(address_of(step))
    try:
        log.admin.create_topic(step.source, step.tasks, TopicPolicy())
        log.admin.create_topic(topic, step.tasks, changelog_policy(bench_store()))
        producer = log.producer()
        for first in range(0, step.records, FILL_RECORDS):
            batches: dict[TopicPartition, list[Outgoing]] = {}
            for number in range(first, min(first + FILL_RECORDS, step.records)):
                record = Outgoing(key_of(number, step.key_bytes), values[number % VALUES], START_MS + number)
                batches.setdefault(TopicPartition(topic, number % step.tasks), []).append(record)
            producer.append(batches)
        return {"records": step.records}
    finally:
        log.close()


def standby(step: Step) -> Measured:
    """Tail all changelogs to their ends, then be assigned all tasks, until the gate is open."""
    with _session(step) as session:

        def tail() -> None:
            session.assign(standby=range(step.tasks))
            tasks = session.all_tasks().values()
            while sum(task.stores.cut.positions.get(STORE, Position(0)).offset for task in tasks) < step.records:
                session.clock.sleep_ms(LOOK_MS)

        return {"tail": timed(tail, step.records), "take_over": _take_over(session, step)}


def cold(step: Step) -> Measured:
    """Be assigned all tasks with nothing here, until the gate is open."""
    with _session(step) as session:
        return {"take_over": _take_over(session, step)}


STANDBY_STEPS: dict[str, Callable[[Step], Measured]] = {"spread": spread, "standby": standby, "cold": cold}


def _session(step: Step) -> Session:
    return Session(
        step.app,
        log=address_of(step),
        state_dir=Path(step.folder) / f"{step.step}-{step.run}",
        stores=[bench_store()],
        partitions=step.tasks,
        memory_bytes=step.memory_bytes,
        take_over=False,
    )


def _take_over(session: Session, step: Step) -> Measured:
    def run() -> None:
        session.assign(active=range(step.tasks))
        session.wait_ready(READY_S)

    measured = timed(run, step.tasks)
    for number in range(min(step.tasks, step.records)):
        found = session.task(number).store(STORE).get(key_of(number, step.key_bytes))
        assert found is not None, f"a key of task {number} is missing"
    return measured
