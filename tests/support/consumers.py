"""Consumers of Kafka's protocol and a log beside them: those of the real client, or of the simulator.

Rules of this file: the consumer's own methods alone, so that both kinds do the same; it polls until something is so.
"""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from standfast.replication.log import Committed, ConsumerMember, GroupCommit, Log, Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition

JOIN_S = 30
MakeConsumer = Callable[[dict[str, Any]], Any]


def poll_until(consumers: Iterable[Any], reached: Callable[[], bool], what: str) -> list[Any]:
    """Poll these until something is so; returns their messages."""
    end, found = time.monotonic() + JOIN_S, []
    while not reached():
        assert time.monotonic() < end, what
        for consumer in consumers:
            message = consumer.poll(0.1)
            found += [] if message is None else [message]
    return found


class Joined:
    """A consumer of a group with one source topic, and a writer of the log beside it."""

    def __init__(self, log: Log, make: MakeConsumer, settings: Mapping[str, Any], *, partitions: int = 1) -> None:
        self.group = f"g-{secrets.token_hex(4)}"
        self.log = log
        self.sources = [TopicPartition(f"{self.group}-in", number) for number in range(partitions)]
        self.source = self.sources[0]
        self.out = TopicPartition(f"{self.group}-out", 0)
        for at in (self.source, self.out):
            log.admin.create_topic(at.topic, partitions, TopicPolicy())
        self._make = make
        fixed = {"group.id": self.group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        self._settings = {**settings, **fixed}
        self._opened: list[Any] = []  # consumers
        self._got: list[Any] = []
        self.consumer = self.join()
        raw: bytes = self.consumer.consumer_group_metadata()
        self.generation = struct.unpack("=i", raw[7:11])[0]
        self.member = raw[11:].split(b"\0")[1].decode()
        self.writer = log.writer(f"{self.group}-0-0", group=self.group, owner="sidecar")

    def join(self, *others: Any, **callbacks: Any) -> Any:
        """One more consumer, once it has partitions."""
        consumer = self._make(self._settings)
        self._opened.append(consumer)
        consumer.subscribe([self.source.topic], **callbacks)
        self._got = poll_until([consumer, *others], lambda: bool(consumer.assignment()), "the consumer gets partitions")
        return consumer

    @property
    def last(self) -> Any:
        """The last consumer, also one that failed to join."""
        return self._opened[-1]

    def replace_consumer(self) -> None:
        """Another consumer gets the partition."""
        self.consumer.close()
        self.consumer = self.join()

    def feed(self, *values: str, partition: int = 0) -> None:
        """Append records to a partition of the source topic."""
        producer = self.log.producer()
        records = [Outgoing(b"k", value.encode(), 1_000) for value in values]
        producer.append({self.sources[partition]: records})
        producer.close()

    def read(self, count: int) -> list[tuple[int, int, str]]:
        """So many messages of the first consumer: partition, offset and value, in the order of partitions."""
        found, self._got = self._got, []  # one may have come with the assignment
        end = time.monotonic() + JOIN_S
        while len(found) < count:
            assert time.monotonic() < end, f"{len(found)} of {count} messages have come"
            found += self.consumer.consume(count - len(found), 0.1)
        return sorted((one.partition(), one.offset(), one.value().decode()) for one in found)

    def commit(self, offset: int, member: ConsumerMember | None) -> None:
        """Commit as exactly once: records and offsets."""
        commit = GroupCommit(self.group, {self.source: Committed(offset, "m")}, member)
        self.writer.transact({self.out: [Outgoing(b"k", b"%d" % offset, 1_000)]}, commit)

    def commit_offsets(self, offset: int, member: ConsumerMember | None) -> None:
        """Commit as at least once: the offsets alone, after the state."""
        group = self.log.group(self.group)
        try:
            group.commit({self.source: Committed(offset, "m")}, member)
        finally:
            group.close()

    def found(self) -> int | None:
        """The committed offset."""
        group = self.log.group(self.group)
        committed = group.committed([self.source]).get(self.source)
        group.close()
        return None if committed is None else committed.offset

    def close(self) -> None:
        """Close the consumers, and the log."""
        for consumer in self._opened:
            consumer.close()
        self.log.close()
