"""Helpers for tests of the fetch pipeline: its reader fails or holds on command, and fetched offsets are noted.

Rules of this file: a real embedded log under the machine's own clock. A fetch that expects records waits up to WAIT_MS;
no test waits for time to pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.log import Fetched, LogReader
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.fetch_lane import Lane
from standfast.replication.tail.fetch_pipeline import FetchPipeline
from support.fetch import Wrapped

WAIT_MS = 30_000


class Readers:
    """A log whose first reader, the fetch thread's, replaces its next fetches."""

    def __init__(self, log: EmbeddedLog, *instead: Callable[[], list[Fetched]]) -> None:
        self._log = log
        self.wrapped = Wrapped(log.reader(), *instead)
        self._given = False

    def reader(self) -> LogReader:
        if self._given:
            return self._log.reader()
        self._given = True
        wrapped: Any = self.wrapped
        return wrapped  # type: ignore[no-any-return]


@contextmanager
def pipeline_of(log: EmbeddedLog, *instead: Callable[[], list[Fetched]], **settings: Any) -> Iterator[FetchPipeline]:
    readers: Any = Readers(log, *instead)
    chosen: dict[str, Any] = {"fetch_records_max": 5, "fetch_timeout_ms": 5, **settings}
    pipeline = FetchPipeline(readers, **chosen)
    try:
        yield pipeline
    finally:
        pipeline.close()


def offsets(fetched: list[Fetched], partition: TopicPartition) -> list[int]:
    return [record.offset for one in fetched if one.source == partition for record in one.records]


def drain(lane: Lane, ends: dict[TopicPartition, int], max_records: int = 1_000) -> dict[TopicPartition, list[int]]:
    """Offsets of the records up to these positions."""
    came: dict[TopicPartition, list[int]] = {source: [] for source in ends}
    while any(lane.assignment()[source] < end for source, end in ends.items()):
        fetched = lane.fetch(max_records, WAIT_MS)
        assert fetched, "nothing comes any more"
        for one in fetched:
            came[one.source] += [record.offset for record in one.records]
    return came
