"""The bare loops of the Kafka client: the upper bounds of reading and of writing, without any work on the records.

    consumer with a Kafka log's own settings ──> consume(BATCH, ...) until the end ──> keys and values, thrown away
    producer with those of its writers ──> produce a record after the other, flush each batch ──> acknowledged by all
    the same in transactions           ──> begin, produce each record of a batch, its offset, commit

Rules of this file: yardsticks for benchmarks, used for nothing else. They have the same settings as a log's reader and
writers (read committed, fetch sizes, queues, acks), so that the two differ only in their work on the records.
"""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition as KafkaPartition

from standfast.replication.kafka.address import parse_kafka_address
from standfast.replication.kafka.cluster import Cluster
from standfast.replication.kafka.errors import client_errors
from standfast.replication.offsets import TopicPartition
from standfast.store.clock import SystemClock
from standfast.store.errors import Unavailable
from standfast.store.timestamps import duration_text

Sent = tuple[bytes, bytes, int]  # key, value, timestamp in ms

BATCH = 1_000  # measured: 500 and 1,000 are equal, 2,000 up to a tenth slower, 5,000 a quarter
WAIT_S = 0.1
SILENCE_MS_MAX = 10_000


def consume_bare(address: str, source: TopicPartition, end: int) -> int:
    """Read a partition of a Kafka log from its beginning to `end`; returns the number of records.

    Raises Unavailable if no record arrives for 10 seconds.
    """
    cluster = Cluster(parse_kafka_address(address))
    clock = SystemClock()
    client = cluster.consumer()
    count = position = 0
    try:
        with cluster.translating("assigning"):
            client.incremental_assign([KafkaPartition(*source, 0)])
        heard_ms = clock.monotonic_ms()
        while position < end:
            with cluster.translating("fetching"):
                messages = client.consume(BATCH, WAIT_S)
            if not messages:
                if clock.monotonic_ms() - heard_ms > SILENCE_MS_MAX:
                    raise Unavailable(
                        f"{cluster.where} sent no record of {source} for {duration_text(SILENCE_MS_MAX)} at {position}"
                    )
                continue
            heard_ms = clock.monotonic_ms()
            last = messages[-1]
            error = last.error()  # only the last of a batch can be the end-of-partition event
            if error is not None:
                messages.pop()
                position = last.offset() or 0
            else:
                position = (last.offset() or 0) + 1
            count += len([(message.key(), message.value()) for message in messages])
        return count
    finally:
        cluster.release(client)


class BareProducer:
    """The client's own producer, connected to the log at `address`."""

    def __init__(self, address: str, topic: str) -> None:
        """Raises Unavailable if no broker answers."""
        self._cluster = Cluster(parse_kafka_address(address))
        self._client = self._cluster.keep(KafkaProducer(self._cluster.producer_options()))
        self._cluster.run("connecting", lambda: self._client.list_topics(topic, self._cluster.timeout_s))

    def produce(self, source: TopicPartition, records: Iterable[Sent]) -> None:
        """Write records to a partition, and wait for the answers to all; raises Unavailable if some have none in time.

        As a bare loop does, it does not look at single answers: its caller compares the partition's end.
        """
        with self._cluster.translating("writing"):
            _produce(self._client, source, records)
            left = self._client.flush(self._cluster.timeout_s)
        if left:
            raise Unavailable(f"{self._cluster.where} did not acknowledge {left} records of {source}")

    def close(self) -> None:
        """Destroy the client."""
        self._cluster.release(self._client)


class BareTransactions:
    """The client's own transactional producer, connected to the log at `address`, for one group's offsets."""

    def __init__(self, address: str, topic: str, group: str) -> None:
        """Raises Unavailable if no broker answers."""
        self._cluster = Cluster(parse_kafka_address(address))
        settings = {
            "transactional.id": f"{group}-bare",
            "transaction.timeout.ms": str(self._cluster.transaction_ms),
        }
        self._client = self._cluster.keep(KafkaProducer(self._cluster.producer_options() | settings))
        self._cluster.run("connecting", lambda: self._client.list_topics(topic, self._cluster.timeout_s))
        self._cluster.run("connecting", lambda: self._client.init_transactions(self._cluster.timeout_s))
        consumer = self._cluster.consumer(group)
        self._group = self._cluster.run("connecting", lambda: consumer.consumer_group_metadata())
        self._cluster.release(consumer)

    def transact(self, source: TopicPartition, records: Iterable[Sent], read: TopicPartition, offset: int) -> None:
        """Write records to a partition and commit the offset of another one, all or nothing.

        Raises Unavailable and others if it fails.
        """
        timeout_s = self._cluster.timeout_s
        with self._cluster.translating("writing"):
            self._client.begin_transaction()
            _produce(self._client, source, records)
            self._client.send_offsets_to_transaction([KafkaPartition(*read, offset)], self._group, timeout_s)
            self._client.commit_transaction(timeout_s)

    def close(self) -> None:
        """Destroy the client."""
        self._cluster.release(self._client)


def _produce(client: KafkaProducer, source: TopicPartition, records: Iterable[Sent]) -> None:
    topic, partition = source
    with client_errors():
        produce = client.produce
        for key, value, timestamp in records:
            # Arguments by position, the fastest call: keywords cost a third of it.
            produce(topic, value, key, partition, None, None, timestamp)
