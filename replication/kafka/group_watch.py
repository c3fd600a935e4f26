"""Waits for changes of a group on Kafka: a consumer at the end of its members topic, which the broker answers at once.

    join, leave, removal ──> the broker ──long poll──> `wait` returns        beat ──> nothing; the wait goes on

Rules of this file: one consumer, no lock, and no list of members: `members_topic.py` reads the topic for that. While
it cannot read, the next look at the group finds the members.
"""

from __future__ import annotations

import threading

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from standfast.replication.kafka.cluster import Cluster
from standfast.replication.kafka.errors import client_errors
from standfast.replication.kafka.members import changes_members
from standfast.replication.offsets import TopicPartition
from standfast.store.clock import real_clock
from standfast.store.errors import StandfastError

CHUNK = 1_000
SLICE_MS = 100  # a wait of the client cannot be ended: so long may `wake` take
REST_MS = 10  # after beats: a group of a hundred has 333 a second, which need not each wake this process
LONG_POLL_MS = "500"


class KafkaGroupWatch:
    """GroupWatch of a group on Kafka; `source` is its members topic."""

    def __init__(self, cluster: Cluster, source: TopicPartition) -> None:
        self._cluster = cluster
        self._source = source
        self._consumer: Consumer | None = None
        self._clock = real_clock()
        self._woken = threading.Event()

    def wait(self, within_ms: int) -> bool:
        """See GroupWatch."""
        until_ms = self._clock.monotonic_ms() + within_ms
        while not self._woken.is_set() and (left_ms := until_ms - self._clock.monotonic_ms()) > 0:
            try:
                found = self._read(min(left_ms, SLICE_MS))
            except (KafkaException, StandfastError):
                # The looks at the group say why the broker does not answer, and the consumer connects again by itself.
                self._woken.wait(left_ms / 1_000)
                return False
            if any(changes_members(one.value()) for one in found):
                return True
            if found:
                self._woken.wait(REST_MS / 1_000)
        return False

    def wake(self) -> None:
        """See GroupWatch."""
        self._woken.set()

    def close(self) -> None:
        """See GroupWatch."""
        consumer, self._consumer = self._consumer, None
        self._cluster.release(consumer)

    def _read(self, within_ms: int) -> list[Message]:
        if self._consumer is None:
            self._consumer = self._cluster.consumer(isolation_level="read_uncommitted", fetch_wait_max_ms=LONG_POLL_MS)
            with client_errors():
                self._consumer.assign([KafkaPartition(*self._source, OFFSET_END)])
        with client_errors():
            found: list[Message] = self._consumer.consume(1, within_ms / 1_000)
            found += self._consumer.consume(CHUNK, 0) if found else []
        errors = [error for one in found if (error := one.error()) is not None]
        if any(error.code() != KafkaError._PARTITION_EOF for error in errors):
            raise KafkaException(errors[-1])
        return [one for one in found if one.error() is None]
