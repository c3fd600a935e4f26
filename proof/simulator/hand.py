"""The world's own hand on its log: it writes inputs and reads results, and meets no fault.

Rules of this file: calls of the log port alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from simulator.log import SimLog, SimLogClient
from simulator.world import World
from standfast.replication.log import Committed, Outgoing, Record, TopicPolicy
from standfast.replication.offsets import TopicPartition

T = TypeVar("T")
APP = "world"


class HandCalls:
    """Calls that are carried out at once; a wait takes the time of the actor that waits, if one does."""

    def __init__(self, world: World) -> None:
        self._world = world

    def run(self, name: str, effect: Callable[[], T]) -> T:
        """As of `Calls`."""
        return effect()

    def wait(self, wait_ms: float, ready: Callable[[], bool] | None = None) -> None:
        """As of `Calls`."""
        if self._world.scheduler.current is not None:
            self._world.scheduler.wait(wait_ms, ready)


class Hand:
    """See the head of this file."""

    def __init__(self, world: World, log: SimLog) -> None:
        self.log = log
        self._client = SimLogClient(log, world, HandCalls(world))
        self._producer = self._client.producer()
        self._reader = self._client.reader()

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic that keeps everything."""
        self._client.admin.create_topic(topic, partitions, TopicPolicy())

    def write(self, topic: str, partition: int, key: str, value: str, timestamp: int) -> int:
        """Append one record; returns its offset."""
        record = Outgoing(key.encode(), value.encode(), timestamp)
        return self._producer.append({(at := TopicPartition(topic, partition)): [record]})[at] - 1

    def partitions(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic; none if it does not exist."""
        found = self._client.admin.describe_topic(topic)
        return [] if found is None else [TopicPartition(topic, number) for number in range(found.partitions)]

    def topics(self) -> list[str]:
        """Names of all topics."""
        return self._client.admin.topic_names()

    def care(self) -> None:
        """Compact now, as brokers do when it suits them, and as a member with an embedded log does."""
        now_ms = self.log.clock.wall_ms()
        self._client.care(now_ms)  # of an embedded log
        for topic in self.log.topics.values() if self.log.kafka else ():
            for partition in topic.partitions if "compact" in topic.policy.cleanup else ():
                partition.clean_up(now_ms, partition.end)
        self.log.version += 1

    def repartitions(self) -> list[str]:
        """Names of the application's repartition topics."""
        return [name for name in self.topics() if name.startswith(f"{APP}-") and "-repartition" in name]

    def ends(self, topic: str) -> dict[TopicPartition, int]:
        """Ends as readers of committed records see them."""
        return {at: found.end for at, found in self._reader.bounds(self.partitions(topic)).items()}

    def committed(self, topic: str) -> Mapping[TopicPartition, Committed]:
        """Offsets that the application has committed."""
        found = self.log.group(APP).committed  # a client would wait for the end of open transactions
        return {at: found[at] for at in self.partitions(topic) if at in found}

    def records(self, at: TopicPartition) -> Iterator[Record]:
        """All committed records of a partition."""
        self._reader.assign({at: self._reader.bounds([at])[at].begin})
        while batches := [one for one in self._reader.fetch(10_000) if one.records]:
            for batch in batches:
                yield from batch.records
        self._reader.assign({})


def offset_of(found: Committed | None) -> int:
    """The offset of a commit; 0 where there is none."""
    return 0 if found is None else found.offset
