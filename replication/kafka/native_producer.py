"""The compiled client as the producer of a Kafka writer: see `producer.py`.

Rules of this file: complaints and log lines are passed on after each call, in the thread of the writer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaError

from standfast.replication.kafka.callbacks import Callbacks
from standfast.replication.kafka.native_calls import errors, hear
from standfast.replication.kafka.producer import Delivered
from standfast.replication.kafka.records import Columns
from standfast.replication.log import Committed
from standfast.replication.offsets import TopicPartition

Result = TypeVar("Result")


class NativeProducer:
    """The compiled client."""

    def __init__(self, module: Any, options: Mapping[str, str], callbacks: Callbacks) -> None:
        """Raises KafkaException for a setting that librdkafka refuses."""
        self._callbacks = callbacks
        self._module = module
        self._given: list[TopicPartition] = []  # the partition of each call that gave records, as of `delivered`
        with errors(self._module):
            self._client: Any = self._module.Producer(list(options.items()))

    def __len__(self) -> int:
        return len(self._client)

    def __bool__(self) -> bool:
        return True

    def _call(self, call: Callable[..., Result], *arguments: Any) -> Result:
        try:
            with errors(self._module):
                return call(*arguments)
        finally:
            with errors(self._module):
                said = self._client.said()
            for one in said:
                hear(self._callbacks, *one)

    def learn(self, topic: str, timeout_s: float) -> None:
        """See Producer."""
        self._call(self._client.learn, topic, _ms(timeout_s))

    def end(self, source: TopicPartition, timeout_s: float) -> int | None:
        """See Producer."""
        found: int = self._call(self._client.end, *source, _ms(timeout_s))
        return found

    def init_transactions(self, timeout_s: float) -> None:
        """See Producer."""
        self._call(self._client.init_transactions, _ms(timeout_s))

    def begin(self) -> None:
        """See Producer."""
        self._call(self._client.begin)

    def offsets(self, offsets: Mapping[TopicPartition, Committed], group: bytes, timeout_s: float) -> None:
        """See Producer."""
        given = [(*source, *committed) for source, committed in offsets.items()]
        self._call(self._client.offsets, given, group, _ms(timeout_s))

    def produce(self, source: TopicPartition, columns: Columns, start: int, wait_ms: int) -> int:
        """See Producer."""
        taken: int = self._call(
            self._client.produce, *source, columns.keys, columns.values, columns.timestamps, columns.headers, start,
            wait_ms,
        )  # fmt: skip
        if taken > start:
            self._given.append(source)
        return taken

    def flush(self, timeout_s: float) -> None:
        """See Producer."""
        self._call(self._client.flush, _ms(timeout_s))

    def poll(self) -> None:
        """See Producer."""
        self._call(self._client.poll, 0)

    def delivered(self) -> Mapping[TopicPartition, Delivered]:
        """See Producer."""
        found: dict[TopicPartition, Delivered] = {}
        given, self._given = self._given, []
        for source, (_, last, code, text, size) in zip(given, self._call(self._client.delivered), strict=True):
            before = found.get(source, Delivered(None, None, 0))
            end = before.next_offset if last < 0 else last + 1
            error = before.error or (KafkaError(code, text) if code else None)
            found[source] = Delivered(end, error, before.size or size)
        return found

    def commit(self, timeout_s: float) -> None:
        """See Producer."""
        self._call(self._client.commit, _ms(timeout_s))

    def abort(self, timeout_s: float) -> None:
        """See Producer."""
        self._call(self._client.abort, _ms(timeout_s))

    def close(self) -> None:
        """Destroy the client in bounded time: drops unsent records, and leaves an open transaction to the brokers."""
        with errors(self._module):
            self._client.close()


def _ms(timeout_s: float) -> int:
    return max(round(timeout_s * 1_000), 0)
