"""The bare consume loop of the Kafka client: the upper bound of reading, without any work on the records.

    consumer with a Kafka log's own settings ──> consume(BATCH, ...) until the end ──> keys and values, thrown away

Rules of this file: a yardstick for benchmarks, used for nothing else. It has the same settings as a log's reader (read
committed, fetch sizes, queues), so that the two differ only in their work on the records.
"""

from __future__ import annotations

from confluent_kafka import TopicPartition as KafkaPartition

from standfast.replication.kafka.address import parse_kafka_address
from standfast.replication.kafka.cluster import Cluster
from standfast.replication.offsets import TopicPartition
from standfast.store.clock import SystemClock
from standfast.store.errors import Unavailable

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
        client.incremental_assign([KafkaPartition(*source, 0)])
        heard_ms = clock.monotonic_ms()
        while position < end:
            messages = client.consume(BATCH, WAIT_S)
            if not messages:
                if clock.monotonic_ms() - heard_ms > SILENCE_MS_MAX:
                    raise Unavailable(
                        f"{cluster.where} sent no record of {source} for {SILENCE_MS_MAX} ms at {position}"
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
