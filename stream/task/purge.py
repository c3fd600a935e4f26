"""Processed records of internal topics, deleted at an interval, as Kafka Streams purges its repartition topics.

Rules of this file: the loop's thread alone. Only records below the committed offsets of the tasks that read them.
"""

from __future__ import annotations

from collections.abc import Iterable

from standfast.replication.log import LogAdmin
from standfast.replication.offsets import TopicPartition
from standfast.store.clock import Clock
from standfast.store.errors import StandfastError
from standfast.stream.task.task import Task

PURGE_INTERVAL_MS = 30_000  # Kafka Streams' repartition.purge.interval.ms


class Purge:
    """Deletes records of the `topics` between sub-topologies."""

    def __init__(self, admin: LogAdmin, topics: frozenset[str], clock: Clock) -> None:
        self._admin = admin
        self._topics = topics
        self._clock = clock
        self._next_ms = clock.monotonic_ms() + PURGE_INTERVAL_MS

    def step(self, tasks: Iterable[Task]) -> None:
        """Delete, if the interval is over, the records that these tasks have committed. Raises Unavailable."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + PURGE_INTERVAL_MS
        done: dict[TopicPartition, int] = {}
        for task in tasks:
            try:
                offsets = task.source_offsets()
            except StandfastError:  # lost just now, which the next round finds out
                continue
            done.update({at: offset for at, offset in offsets.items() if at.topic in self._topics})
        if done:
            self._admin.delete_records(done)
