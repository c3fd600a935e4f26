"""The compiled client as a feed of a Kafka reader: see `feed.py`.

Its records are parts (`standfast.replication.columns.LazyColumns`), so a restore folds them without a Python object.

Rules of this file: complaints and log lines come with a batch, in the thread of the reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from confluent_kafka import KafkaError

from standfast.replication.columns import LazyColumns, Span
from standfast.replication.kafka.cluster import Cluster
from standfast.replication.kafka.feed import Feed, FeedEvent, News, Piece, PythonFeed
from standfast.replication.kafka.native_calls import errors, hear
from standfast.replication.kafka.native_library import module_for
from standfast.replication.offsets import TopicPartition

CHUNK = 4_000  # a part of so many small records still fits in the processor's cache
_EVENT = 0


class NativeFeed:
    """The compiled client."""

    chunk = CHUNK

    def __init__(self, module: Any, cluster: Cluster, *, narrow: bool) -> None:
        """Raises KafkaException for a setting that librdkafka refuses."""
        self._cluster = cluster
        self._module = module
        settings = list(cluster.consumer_options(narrow=narrow).items())
        with self._errors():
            self._client: Any = cluster.keep(self._module.Client(settings, headers=not narrow))

    def consume(self, count: int, timeout_ms: int) -> Sequence[News]:
        """See Feed."""
        with self._errors():
            found = self._client.consume(count, timeout_ms)
        return [news for one in found if (news := self._news(one)) is not None]

    def _news(self, found: Any) -> News | None:
        if not isinstance(found, tuple):
            return Piece(TopicPartition(found.topic, found.partition), LazyColumns((Span(found, 0, len(found)),)))
        kind, code, *more = found
        if kind == _EVENT:
            text, topic, partition, offset = more
            source = TopicPartition(topic, max(partition, 0))
            return FeedEvent(source, KafkaError(code, text), offset if offset >= 0 else None)
        hear(self._cluster.callbacks, kind, code, *more)
        return None

    def learn(self, topic: str, timeout_s: float) -> None:
        """See Feed."""
        with self._errors():
            self._client.learn(topic, round(timeout_s * 1_000))

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """See Feed."""
        with self._errors():
            self._client.assign([(*source, offset) for source, offset in positions.items()])

    def unassign(self, sources: Iterable[TopicPartition]) -> None:
        """See Feed."""
        with self._errors():
            self._client.unassign([(*source, 0) for source in sources])

    def pause(self, source: TopicPartition) -> None:
        """See Feed."""
        with self._errors():
            self._client.pause([(*source, 0)])

    def resume(self, source: TopicPartition) -> None:
        """See Feed."""
        with self._errors():
            self._client.resume([(*source, 0)])

    def fetched_end(self, source: TopicPartition) -> int:
        """See Feed."""
        with self._errors():
            found: int = self._client.end(*source)
        return found

    def close(self) -> None:
        """See Feed."""
        self._cluster.release(self._client)

    def _errors(self) -> AbstractContextManager[None]:
        return errors(self._module)


def open_feed(cluster: Cluster, *, narrow: bool = False) -> Feed:
    """The feed of a reader; see `Log.reader` for `narrow`."""
    module = module_for(cluster.callbacks.named())
    return PythonFeed(cluster, narrow=narrow) if module is None else NativeFeed(module, cluster, narrow=narrow)
