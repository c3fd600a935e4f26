"""Helpers for tests of a source topic as changelog: a table read from the topic `prices`, and the loop that reads it.

Rules of this file: `pump` is the application: it reads the topic from the task's source offset on, puts every readable
record, and commits. No other code writes to the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import standfast as sf
from standfast.replication.log import Outgoing, Record, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.restore.verify.verify import StoreVerdict, committed_views, verify_task
from standfast.stream.task.statistics import StoreStatistics
from standfast.stream.task.task import Task
from support.sessions import Bench

COMPACT = TopicPolicy(frozenset({"compact"}))
SOURCE = TopicPartition("prices", 0)
TABLE = sf.KeyValueStore("table", sf.serde.string, sf.serde.json, source_topic="prices")
COUNTS = sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)


def table(bench: Bench, directory: str = "a", **settings: Any) -> sf.Session:
    """A session that runs partition 0 of the table, restored."""
    arguments: dict[str, Any] = {"stores": [TABLE, COUNTS], **settings}
    return bench.active(directory, **arguments)


def produce(bench: Bench, first: int, count: int) -> None:
    """Records of seven keys; every fifth is a delete; values have spaces, which our serde would not write."""
    records = [
        Outgoing(b"k%d" % (number % 7), None if number % 5 == 4 else b'{"n": %d}' % number, 1_000 + number)
        for number in range(first, first + count)
    ]
    bench.log.producer().append({SOURCE: records})


def read(bench: Bench, start: int, stop: int) -> Iterator[Record]:
    reader = bench.log.reader()
    reader.assign({SOURCE: start})
    for batch in reader.fetch(10_000):
        yield from (record for record in batch.records if record.offset < stop)
    reader.close()


def pump(bench: Bench, task: Task, stop: int, *, commit: bool = True) -> None:
    """Process the topic up to `stop`."""
    store, counts = task.store("table"), task.store("counts")
    for record in read(bench, task.source_offsets().get(SOURCE, 0), stop):
        if record.key is None:
            continue
        try:
            key = TABLE.key.deserialize(record.key)
            value = None if record.value is None else TABLE.value.deserialize(record.value)
        except ValueError:
            continue
        store.put(key, value, record.timestamp)
        counts.put(key, (counts.get(key) or 0) + 1, record.timestamp)
    if commit:
        task.commit({SOURCE: stop})


def rows(session: sf.Session, store: str = "table") -> list[Any]:
    """Committed rows as the changelog has them: key, timestamp, raw value."""
    return list(session.read(store, 0, allow_stale=True).store.logical_rows())


def position(task: Task) -> int:
    return task.stores.cut.positions["table"].offset


def statistics(session: sf.Session) -> StoreStatistics:
    (found,) = [one for one in session.statistics().tasks[0].stores if one.store == "table"]
    return found


def expected(stop: int) -> list[Any]:
    """The rows that `produce(bench, 0, ...)` amounts to below `stop`."""
    latest = {b"k%d" % (number % 7): number for number in range(stop)}
    return [(key, 1_000 + number, b'{"n":%d}' % number) for key, number in sorted(latest.items()) if number % 5 != 4]


def topics(bench: Bench) -> list[str]:
    return [info.name for info in bench.log.admin.topics()]


def pump_table(bench: Bench, task: Task, stop: int) -> None:
    for record in read(bench, 0, stop):
        assert record.key is not None
        value = None if record.value is None else TABLE.value.deserialize(record.value)
        task.store("table").put(record.key.decode(), value, record.timestamp)
    task.commit({SOURCE: stop})


def verify_live(bench: Bench, session: sf.Session) -> tuple[StoreVerdict, ...]:
    task = session.task(0)
    views, positions = committed_views(task.stores), task.stores.cut.positions
    return verify_task(task.id, views, positions, bench.log, "app", now_ms=bench.clock.wall_ms())
