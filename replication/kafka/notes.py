"""Notes of other groups: their members topics, read once from begin to end.

Rules of this file: it reads, creates nothing and keeps nothing. A board (members_topic.py) would go on reading the
topic of a group of which this process is no member. A topic that this login may not read is no error here: READ of
others' members topics is optional.
"""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from standfast.replication.kafka.bounds import bounds_of
from standfast.replication.kafka.cluster import Cluster
from standfast.replication.kafka.errors import PERMISSION, UNKNOWN_TOPIC, error_of
from standfast.replication.kafka.members import MEMBERS_SUFFIX, Members
from standfast.replication.kafka.records import to_columns
from standfast.replication.log import Notes
from standfast.replication.offsets import TopicPartition
from standfast.replication.permissions import TOPIC, Need
from standfast.store.clock import SystemClock
from standfast.store.errors import InvalidRequest, Unavailable, UnknownStore
from standfast.store.names import is_topic

CHUNK, WAIT_MS = 1_000, 100


def notes_of(cluster: Cluster, groups: Iterable[str]) -> dict[str, Notes | None]:
    """The notes of each group; None if this login may not read its members topic."""
    topics = {group: group + MEMBERS_SUFFIX for group in groups}
    there = _there(cluster, [topic for topic in topics.values() if is_topic(topic)])
    return {
        group: _read(cluster, topic) if there.get(topic) else None if there.get(topic, False) is None else {}
        for group, topic in topics.items()
    }


def _there(cluster: Cluster, topics: list[str]) -> dict[str, bool | None]:
    """Whether each topic exists; None if this login may not know."""
    found: dict[str, bool | None] = {}
    if not topics:
        return found
    answers = cluster.answers("describing members topics", lambda left_s: cluster.describe_later(topics, left_s))
    for topic, answer in answers.items():
        if not isinstance(answer, KafkaException):
            found[topic] = True
        elif error_of(answer).code() in PERMISSION:
            found[topic] = None
        elif error_of(answer).code() in UNKNOWN_TOPIC:
            found[topic] = False
        else:
            raise cluster.translate(answer, f"describing topic {topic!r}", Need(TOPIC, topic, "READ")) from answer
    return found


def _read(cluster: Cluster, topic: str) -> Notes | None:
    source = TopicPartition(topic, 0)
    try:
        position, end = bounds_of(cluster, [source], committed=False)[source]
    except UnknownStore:
        return {}  # deleted meanwhile
    members, clock = Members(), SystemClock()
    deadline_ms = clock.monotonic_ms() + cluster.timeout_ms
    consumer = cluster.consumer(isolation_level="read_uncommitted")
    try:
        with cluster.translating(f"reading {source}"):
            consumer.assign([KafkaPartition(*source, position)])
        while position < end:
            with cluster.translating(f"reading {source}"):
                found: list[Message] = consumer.consume(1, WAIT_MS / 1_000)
                found += consumer.consume(CHUNK, 0)
            good: list[Message] = []
            for message in found:
                error = message.error()
                if error is None:
                    good.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    position = max(position, message.offset() or 0)
                elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    return None
                elif message.topic() is not None:  # others are about the consumer's group, which it never joins
                    raise cluster.translate(error, f"reading {source}", Need(TOPIC, topic, "READ"))
            members.apply(to_columns(good), clock.monotonic_ms(), old=True)
            if good:
                position = max(position, (good[-1].offset() or 0) + 1)
            elif clock.monotonic_ms() > deadline_ms:
                raise Unavailable(f"{cluster.where} sent no record of {source} for {cluster.timeout_ms} ms: try again")
    except InvalidRequest:
        return {}  # another program writes to it: its group has no claims that could be understood
    finally:
        cluster.release(consumer)
    return members.notes
