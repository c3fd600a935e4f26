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
from standfast.store.serde import Serde
from standfast.stream.record import Record
from standfast.stream.session.task import Task
from standfast.stream.topology.nodes import SinkNode
from standfast.stream.topology.processor import Forward

Drop = Callable[[str, str, str], None]  # node, reason, detail


def make_sink(node: SinkNode, task: Task, partitions_of: Mapping[str, int], drop: Drop) -> Forward:
    """The function that writes a record to the sink's topic."""
    topic, partitions = node.topic, partitions_of[node.topic]
    # The topic may have fewer partitions than there are tasks.
    own = task.id.partition % partitions
    suffix = _window_bytes(node.key)
    everywhere = tuple(range(partitions)) if node.internal == "broadcast" else ()
    needs_key = node.internal == "repartition" and not node.null_keys

    def write(record: Record) -> None:
        key, value = record.key, record.value
        if key is None and needs_key:
            drop(node.name, "null_key", f"a record at {record.timestamp} has no key, which {topic} needs")
            return
        raw_key = None if key is None else _encode(node.key, key, node, "key")
        raw_value = None if value is None else _encode(node.value, value, node, "value")
        if everywhere:
            targets: tuple[int, ...] = everywhere
        elif node.partitioner is not None:
            targets = (_named(node, node.partitioner(key, value, partitions), partitions),)
        elif raw_key is None:
            targets = (own,)
        else:
            # Without the window's times, so that all windows of a key are in one partition.
            plain = raw_key[: len(raw_key) - suffix] if type(key) is Windowed else raw_key
            targets = (partition_of(plain, partitions),)
        for partition in targets:
            task.send(topic, raw_key, raw_value, record.timestamp, partition=partition, headers=record.headers)

    return write


def partition_of(raw_key: bytes, partitions: int) -> int:
    """Partition of a serialised key: librdkafka's `consistent` partitioner."""
    return zlib.crc32(raw_key) % partitions


def _window_bytes(serde: Serde[Any]) -> int:
    """The number of bytes behind the plain key: 16 for a session, with two times of 8 bytes, 8 for other windows."""
    if serde.name.startswith("session_windowed("):
        return 16
    return 8 if serde.name.startswith("windowed(") else 0


def _encode(serde: Serde[Any], given: Any, node: SinkNode, part: str) -> bytes:
    try:
        return serde.serialize(given)
    except Exception as error:
        raise InvalidRequest(
            f"sink {node.name!r}: the {part} serde {serde.name!r} cannot serialise this {part} for topic {node.topic} "
            f"({type(error).__name__}: {error}): give .to(...) or the step before it the right {part} serde"
        ) from error


def _named(node: SinkNode, partition: object, partitions: int) -> int:
    if type(partition) is not int or not 0 <= partition < partitions:
        raise InvalidRequest(
            f"sink {node.name!r}: the partitioner named partition {partition!r} of {node.topic}, which has "
            f"{partitions}: it must return a whole number below that"
        )
    return partition
