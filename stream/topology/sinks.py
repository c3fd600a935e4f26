"""Sinks: records of a sub-topology written to topics, as bytes of the task's next commit.

Rules of this file: a record goes to the partition of its key, to the one that a partitioner names, or to all of a
broadcast. The default is librdkafka's `consistent` partitioner (CRC-32 of the serialised key); a windowed key goes
to the partition of its plain key; a record without a key goes to the partition of the task's own number. Before a
repartition such a record is dropped and counted, unless a left join behind it processes it: Kafka Streams drops it
uncounted.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

from standfast.store.errors import InvalidRequest
from standfast.store.results import Windowed
from standfast.store.serde import Serde, beyond_record, sorted_keys
from standfast.stream.record import Record
from standfast.stream.task.task import Task
from standfast.stream.topology.nodes import Partitioner, SinkNode
from standfast.stream.topology.processor import Forward
from standfast.stream.trace import Inject

Drop = Callable[[str, str, str], None]  # node, reason, detail
FIX = "give .to(...) or the step before it the right"


def make_sink(
    node: SinkNode, task: Task, partitions_of: Mapping[str, int], drop: Drop, inject: Inject | None = None
) -> Forward:
    """The function that writes a record to the sink's topic. `inject` puts the current span into its headers."""
    topic, partitions = node.topic, partitions_of[node.topic]
    key = sorted_keys(node.key, task.keys_sorted(topic))
    route = Route(f"sink {node.name!r}", topic, key, node.value, partitions, node.partitioner, FIX)
    # The topic may have fewer partitions than there are tasks.
    own = task.id.partition % partitions
    everywhere = tuple(range(partitions)) if node.internal == "broadcast" else ()
    needs_key = node.internal == "repartition" and not node.null_keys

    def write(record: Record) -> None:
        key, value = record.key, record.value
        if key is None and needs_key:
            drop(node.name, "null_key", f"a record at {record.timestamp} has no key, which {topic} needs")
            return
        raw_key, raw_value = route.encode(key, value)
        for partition in everywhere or (route.partition(key, value, raw_key, own),):
            task.send(topic, raw_key, raw_value, record.timestamp, partition=partition, headers=record.headers)

    if inject is None:
        return write
    return lambda record: write(record._replace(headers=inject(record.headers)))


class Route:
    """The bytes of a topic's records, and their partitions. `where` and `fix` are parts of its errors."""

    __slots__ = ("_fix", "_key", "_partitioner", "_partitions", "_suffix", "_topic", "_value", "_where")

    def __init__(
        self,
        where: str,
        topic: str,
        key: Serde[Any],
        value: Serde[Any],
        partitions: int,
        partitioner: Partitioner | None,
        fix: str,
    ) -> None:
        self._where = where
        self._topic = topic
        self._key = key.of_topic(topic, "key")
        self._value = value.of_topic(topic, "value")
        self._partitions = partitions
        self._partitioner = partitioner
        self._fix = fix
        self._suffix = _window_bytes(key)

    def encode(self, key: Any, value: Any) -> tuple[bytes | None, bytes | None]:
        """Key and value as bytes. Raises InvalidRequest for one that its serde refuses, and errors `beyond_record`."""
        raw_key = None if key is None else self._encode(self._key, key, "key")
        return raw_key, None if value is None else self._encode(self._value, value, "value")

    def partition(self, key: Any, value: Any, raw_key: bytes | None, keyless: int) -> int:
        """The partition of a record; `keyless` without a key, unless a partitioner names one."""
        if self._partitioner is not None:
            return self._named(self._partitioner(key, value, self._partitions))
        if raw_key is None:
            return keyless
        # Without the window's times, so that all windows of a key are in one partition.
        plain = raw_key[: len(raw_key) - self._suffix] if type(key) is Windowed else raw_key
        return partition_of(plain, self._partitions)

    def _encode(self, serde: Serde[Any], given: Any, part: str) -> bytes:
        try:
            return serde.serialize(given)
        except Exception as error:
            what = (
                f"{self._where}: the {part} serde {serde.name!r} cannot serialise this {part} for topic {self._topic}"
            )
            if (beyond := beyond_record(error, what)) is not None:
                raise beyond from error
            raise InvalidRequest(f"{what} ({type(error).__name__}: {error}): {self._fix} {part} serde") from error

    def _named(self, partition: object) -> int:
        if type(partition) is not int or not 0 <= partition < self._partitions:
            raise InvalidRequest(
                f"{self._where}: the partitioner named partition {partition!r} of {self._topic}, which has "
                f"{self._partitions}: it must return a whole number below that"
            )
        return partition


def partition_of(raw_key: bytes, partitions: int) -> int:
    """Partition of a serialised key: librdkafka's `consistent` partitioner."""
    return zlib.crc32(raw_key) % partitions


def _window_bytes(serde: Serde[Any]) -> int:
    """The number of bytes behind the plain key: 16 for a session, with two times of 8 bytes, 8 for other windows."""
    if serde.name.startswith("session_windowed("):
        return 16
    return 8 if serde.name.startswith("windowed(") else 0
