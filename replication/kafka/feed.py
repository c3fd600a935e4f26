"""Where a Kafka reader gets its records: one client, behind one small interface.

    NativeFeed    native_feed.py: our own compiled client; records stay in its memory until they are asked for
    PythonFeed    the client of confluent_kafka, everywhere and for every setting

    consume ──> Piece(partition, records) and Event(partition, error), in the client's order

Both give the same records, events and errors; the contract of the log runs on both. `open_feed` of native_feed.py
chooses, and native_library.py has the reasons against the compiled one.

Rules of this file: it turns the client's answers into values and decides nothing about them. Errors are KafkaException
alone (`client_errors`), which `Cluster.run` translates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as KafkaPartition

from standfast.replication.columns import RecordColumns
from standfast.replication.kafka.cluster import Cluster
from standfast.replication.kafka.errors import client_errors
from standfast.replication.kafka.records import keys_of, to_columns
from standfast.replication.offsets import TopicPartition
from standfast.replication.uncollected import uncollected

CHUNK = 1_000  # messages taken from the client at once; smaller batches stay in the processor's cache


class Piece(NamedTuple):
    """Records of one partition, at least one."""

    source: TopicPartition
    records: RecordColumns


class FeedEvent(NamedTuple):
    """A message without a record: the end of a partition, or an error."""

    source: TopicPartition
    error: KafkaError
    offset: int | None


News: TypeAlias = Piece | FeedEvent


class Feed(Protocol):
    """A client that reads assigned partitions. One thread at a time may use it."""

    chunk: int  # messages to ask for at once

    def consume(self, count: int, timeout_ms: int) -> Sequence[News]:
        """Up to `count` messages, as soon as they are here; empty if none came in time."""
        ...

    def learn(self, topic: str, timeout_s: float) -> None:
        """Ask for a topic's leaders. Measured: without that, it may learn of a second topic's a second late."""
        ...

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Assign further partitions."""
        ...

    def unassign(self, sources: Iterable[TopicPartition]) -> None:
        """Unassign these; their prefetched records are dropped."""
        ...

    def pause(self, source: TopicPartition) -> None:
        """Fetch no more of a partition; its prefetched records are dropped."""
        ...

    def resume(self, source: TopicPartition) -> None:
        """Fetch it again."""
        ...

    def fetched_end(self, source: TopicPartition) -> int:
        """The end of the partition that the last fetch reported; -1 if none did."""
        ...

    def close(self) -> None:
        """Destroy the client."""
        ...


class PythonFeed:
    """The client of confluent_kafka."""

    chunk = CHUNK

    def __init__(self, cluster: Cluster, *, narrow: bool) -> None:
        self._cluster = cluster
        self._client: Consumer = cluster.consumer(narrow=narrow)
        self._assigned = 0

    def consume(self, count: int, timeout_ms: int) -> Sequence[News]:
        """See Feed."""
        if timeout_ms:  # other threads go on meanwhile, and so must their collector
            with client_errors():
                messages = self._client.consume(count, timeout_ms / 1_000)
            return self._news(messages)
        with uncollected():  # measured: else the collector walks through every batch, a quarter of the time
            with client_errors():
                messages = self._client.consume(count, 0)
            return self._news(messages)

    def _news(self, messages: list[Message]) -> Sequence[News]:
        if not messages:
            return ()
        keys = keys_of(messages)
        if all(keys) or not any(map(Message.error, messages)):  # an event has no key
            return self._pieces(messages, keys)
        news: list[News] = []
        run: list[Message] = []
        for message in messages:
            error = message.error()
            if error is None:
                run.append(message)
                continue
            news += self._pieces(run)
            run = []
            news.append(FeedEvent(_source_of(message), error, message.offset()))
        return [*news, *self._pieces(run)]

    def _pieces(self, messages: list[Message], keys: list[bytes | None] | None = None) -> Sequence[Piece]:
        if not messages:
            return ()
        source = _source_of(messages[0])
        # With one partition assigned, records of another can only come first: the client drops unassigned ones.
        single = self._assigned == 1 and source == _source_of(messages[-1])
        if single or len(set(map(Message.partition, messages))) == len(set(map(Message.topic, messages))) == 1:
            return (Piece(source, to_columns(messages, keys)),)
        by_source: dict[Any, list[Message]] = {}
        for message in messages:
            by_source.setdefault((message.topic(), message.partition()), []).append(message)
        return [Piece(TopicPartition(*own), to_columns(some)) for own, some in by_source.items()]

    def learn(self, topic: str, timeout_s: float) -> None:
        """See Feed."""
        with client_errors():
            self._client.list_topics(topic, timeout_s)

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """See Feed."""
        with client_errors():
            self._client.incremental_assign([KafkaPartition(*source, offset) for source, offset in positions.items()])
        self._assigned += len(positions)

    def unassign(self, sources: Iterable[TopicPartition]) -> None:
        """See Feed."""
        gone = [KafkaPartition(*source) for source in sources]
        self._assigned -= len(gone)
        with client_errors():
            self._client.incremental_unassign(gone)

    def pause(self, source: TopicPartition) -> None:
        """See Feed."""
        with client_errors():
            self._client.pause([KafkaPartition(*source)])

    def resume(self, source: TopicPartition) -> None:
        """See Feed."""
        with client_errors():
            self._client.resume([KafkaPartition(*source)])

    def fetched_end(self, source: TopicPartition) -> int:
        """See Feed."""
        with client_errors():
            bounds = self._client.get_watermark_offsets(KafkaPartition(*source), cached=True)
        return int(bounds[1]) if bounds else -1

    def close(self) -> None:
        """See Feed."""
        self._cluster.release(self._client)


def _source_of(message: Message) -> TopicPartition:
    return TopicPartition(message.topic() or "", message.partition() or 0)
