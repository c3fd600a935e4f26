"""Helpers for tests of the fetch thread: a log with three partitions, a reader that fails on command, thread positions.

Rules of this file: a real embedded log under the machine's own clock, so that idle fetches really wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.log import Fetched, LogReader, Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.fetch_thread import FetchThread

P0, P1, P2 = (TopicPartition("flights", number) for number in range(3))
COUNT = 20
WAIT_S = 30.0


@contextmanager
def flights_log(folder: Path) -> Iterator[EmbeddedLog]:
    """Three partitions of COUNT records each."""
    opened = EmbeddedLog(folder / "log.sqlite", synchronous="normal")
    opened.admin.create_topic("flights", 3, TopicPolicy())
    write(opened, COUNT)
    yield opened
    opened.close()


def write(log: EmbeddedLog, count: int) -> None:
    producer = log.producer()
    producer.append({part: [Outgoing(b"k", b"%d" % n, n) for n in range(count)] for part in (P0, P1, P2)})
    producer.close()


class Wrapped:
    """A real reader whose next fetches are replaced by those of `instead`, one after another."""

    def __init__(self, reader: LogReader, *instead: Callable[[], list[Fetched]]) -> None:
        self.reader = reader
        self.instead = list(instead)

    def fetch(self, max_records: int, timeout_ms: int = 0) -> list[Fetched]:
        if self.instead:
            return self.instead.pop(0)()
        return self.reader.fetch(max_records, timeout_ms)

    def fetch_ready(self, max_records: int) -> list[Fetched]:
        return [] if self.instead else self.reader.fetch_ready(max_records)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reader, name)


def failing(error: BaseException) -> Callable[[], list[Fetched]]:
    def fail() -> list[Fetched]:
        raise error

    return fail


def started(log: EmbeddedLog, *instead: Callable[[], list[Fetched]], records: int = 1) -> FetchThread:
    reader: Any = Wrapped(log.reader(), *instead)
    return FetchThread(reader, fetch_records_max=records, fetch_timeout_ms=5)


def position(thread: FetchThread, partition: TopicPartition = P0) -> int:
    return thread.call(lambda reader: reader.assignment()[partition])


def wait_until_full(thread: FetchThread, wanted: int = 2) -> None:
    """Wait until one batch is in the slot and the next is fetched: the position shows it with one-record batches."""
    for _ in range(10_000):
        if position(thread) == wanted:
            return
    raise AssertionError(f"the position is {position(thread)}")


def offsets(fetched: list[Fetched], partition: TopicPartition = P0) -> list[int]:
    return [record.offset for one in fetched if one.source == partition for record in one.records]


def drain(thread: FetchThread, partition: TopicPartition = P0, end: int = COUNT) -> list[int]:
    """Offsets of the records up to the partition's end."""
    came: list[int] = []
    while True:
        fetched = thread.poll_next()
        came += offsets(fetched, partition)
        if any(one.source == partition and one.next_offset >= end for one in fetched):
            return came
