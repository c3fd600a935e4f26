"""Records that a program writes to the topics of its application: input for trying, corrections, messages of a service.

    producer.send("clicks", "ada", {"page": 7})  ──> bytes by the topic's serdes, partition as a sink would choose it
    BATCH_BYTES, or flush()                      ──> append: written and acknowledged, one batch for all partitions

Rules of this file: it uses the log's port only. Every record is checked as it is sent, so that the call that gave a
wrong one refuses it. A batch that could not be written stays, and the next flush writes it again: at least once.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from standfast.replication.log import Headers, Log, Outgoing, TopicInfo
from standfast.replication.offsets import TopicPartition
from standfast.replication.topics.fixes import Fixes
from standfast.store.arguments import checked
from standfast.store.buffer.rows import BESIDE_VALUE_BYTES, VALUE_MAX_BYTES
from standfast.store.clock import Clock
from standfast.store.closing import Closing
from standfast.store.errors import Closed, InvalidRequest, TooLarge
from standfast.store.names import check_topic
from standfast.store.serde import Serde
from standfast.stream.outgoing import check_output, check_taken, headers_bytes
from standfast.stream.topology.nodes import Partitioner, Serdes, SinkNode, SourceNode
from standfast.stream.topology.sinks import Route
from standfast.stream.topology.topology import TopologyBuilder
from standfast.stream.trace import Inject

BATCH_BYTES = 1 << 20
RECORD_BYTES = 100  # estimate of a waiting record beside its key, value and headers
LOOK_MS = 30_000  # after so long a topic is described again: it may have more partitions
FIX = "give one that it can write, or another"


@dataclass(frozen=True, slots=True)
class Format:
    """Serdes of a topic's records, and their partitioner."""

    key: Serde[Any]
    value: Serde[Any]
    partitioner: Partitioner | None = None


class Checked(NamedTuple):
    """A record that its topic takes: its partition, and its key, value and headers in bytes, `size` together."""

    at: TopicPartition
    record: Outgoing
    size: int


@dataclass(slots=True)
class _Topic:
    """A topic that was written to; `turn`: the partition of the next record without a key."""

    info: TopicInfo
    route: Route
    looked_ms: int
    turn: int = 0


def formats_of(builder: TopologyBuilder) -> dict[str, Format]:
    """The formats of an application's topics: as its sinks write them, else as its sources read them."""
    found: dict[str, Format] = {}
    for node in builder.nodes.values():
        if isinstance(node, SourceNode) and not node.internal:
            found.setdefault(node.topic, Format(node.settings.key, node.settings.value))
    for node in builder.nodes.values():
        if isinstance(node, SinkNode) and node.internal is None:
            found[node.topic] = Format(node.key, node.value, node.partitioner)
    return found


@checked(InvalidRequest, exact=("send", "check"))
class Producer(Closing):
    """Writes records as the application's sinks do. Get one with `app.producer()`; use it in a with block, or close it.

    Not part of a task's commit: records stand in the log once `flush` returns, whatever the application does. Any
    thread may call it.
    """

    def __init__(
        self,
        log: Log,
        formats: Mapping[str, Format],
        defaults: Serdes,
        clock: Clock,
        *,
        batch_bytes: int = BATCH_BYTES,
        value_max_bytes: int = VALUE_MAX_BYTES,
        inject: Inject | None = None,
    ) -> None:
        self._log = log
        self._writer = log.producer()
        self._formats = formats
        self._default = Format(*defaults)
        self._clock = clock
        self._batch_bytes = batch_bytes
        self._record_bytes_max = max(value_max_bytes, VALUE_MAX_BYTES) + BESIDE_VALUE_BYTES  # as for a task's outputs
        self._inject = inject  # of the caller's current span
        self._topics: dict[str, _Topic] = {}
        self._batches: dict[TopicPartition, list[Outgoing]] = {}
        self._bytes = 0
        self._closed = False
        self._mutex = threading.RLock()

    def send(
        self,
        topic: str,
        key: Any,
        value: Any,
        timestamp: int | None = None,
        headers: Headers = (),
        *,
        partition: int | None = None,
    ) -> None:
        """Add a record to the batch; a full batch is written first, and then `send` waits for the log.

        topic      must exist; the application's serdes of this topic apply, or its default ones
        key        None: no key, and the partitions take turns
        value      None: a delete
        timestamp  milliseconds; None: now
        headers    (name, bytes or None) each
        partition  instead of the one of the key

        Raises InvalidRequest for a record that the topic cannot take, Closed, and errors of `flush`.
        """
        with self._mutex:
            self.add(self.check(topic, key, value, timestamp, headers, partition=partition))

    def add(self, checked: Checked) -> int:
        """Add a record that `check` gave; a full batch is written first. Returns the number of records written."""
        with self._mutex:
            written = self.flush() if self._bytes >= self._batch_bytes else 0
            self._batches.setdefault(checked.at, []).append(checked.record)
            self._bytes += checked.size + RECORD_BYTES
            self._topics[checked.at.topic].turn += checked.record.key is None
            return written

    def check(
        self,
        topic: str,
        key: Any,
        value: Any,
        timestamp: int | None = None,
        headers: Headers = (),
        *,
        partition: int | None = None,
    ) -> Checked:
        """The record that `send` would add; raises InvalidRequest and Closed as it does, and writes nothing."""
        with self._mutex:
            self._check_open()
            known = self._known(topic)
            partitions, now_ms = known.info.partitions, self._clock.wall_ms()
            raw_key, raw_value = known.route.encode(key, value)
            at = partition
            if at is None:
                at = known.route.partition(key, value, raw_key, known.turn % partitions)
            stamp = now_ms if timestamp is None else timestamp
            check_output(topic, raw_key, raw_value, stamp, at, headers, self._log.least_timestamp_ms)
            check_taken(known.info, raw_key, stamp, now_ms)
            if self._inject is not None:
                headers = self._inject(headers)
            size = len(raw_key or b"") + len(raw_value or b"") + headers_bytes(headers)
            if size > self._record_bytes_max:
                raise TooLarge(
                    f"record for topic {topic!r}: key, value and headers have {size} bytes, the limit is "
                    f"{self._record_bytes_max}: split it, or raise value_max_bytes with the topic's max.message.bytes"
                )
            if at >= partitions:
                raise InvalidRequest(f"record for topic {topic!r}: it has {partitions} partitions, none numbered {at}")
            return Checked(TopicPartition(topic, at), Outgoing(raw_key, raw_value, stamp, tuple(headers)), size)

    def flush(self) -> int:
        """Write all records of the batch, and wait until the log has acknowledged them; returns their number.

        Raises Unavailable and the log's other errors. The records stay, and the next call writes them again, so a
        record may then be in the log twice. InvalidRequest if the log refuses one of them for good: the batch is given
        up, and its other records may be in the log.
        """
        with self._mutex:
            self._check_open()
            batches, size = self._batches, self._bytes
            self._batches, self._bytes = {}, 0
            if not batches:
                return 0
            count = sum(map(len, batches.values()))
            try:
                self._writer.append(batches)
            except InvalidRequest as error:
                # It would be refused again, and each time the records beside it would be written once more.
                raise InvalidRequest(
                    f"{error}; the batch of {count} records is given up, and the log may have some of it"
                ) from error
            except BaseException:
                # Before those that a signal handler has sent meanwhile.
                for at, later in self._batches.items():
                    batches.setdefault(at, []).extend(later)
                self._batches, self._bytes = batches, self._bytes + size
                raise
            return count

    def close(self) -> None:
        """Write the rest of the batch, then release the log, also if that failed. Twice is fine."""
        with self._mutex:
            if self._closed:
                return
            try:
                self.flush()
            finally:
                self._closed = True
                self._writer.close()
                self._log.close()

    def topic(self, topic: str) -> TopicInfo:
        """The description of a topic. Raises InvalidRequest for an absent one, with the command that creates it."""
        with self._mutex:
            self._check_open()
            return self._known(topic).info

    def _known(self, topic: str) -> _Topic:
        now_ms = self._clock.monotonic_ms()
        known = self._topics.get(topic)
        if known is not None and now_ms - known.looked_ms < LOOK_MS:
            return known
        check_topic(topic)
        info = self._log.admin.describe_topic(topic)
        if info is None:
            raise InvalidRequest(f"topic {Fixes(self._log.address).absent(topic)}")
        form = self._formats.get(topic, self._default)
        route = Route("producer", topic, form.key, form.value, info.partitions, form.partitioner, FIX)
        self._topics[topic] = _Topic(info, route, now_ms, 0 if known is None else known.turn)
        return self._topics[topic]

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this producer is closed: get another with app.producer()")
