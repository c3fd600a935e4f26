"""Records between the port and the Kafka client: checks of outgoing records, columns of incoming messages, offsets.

Rules of this file: no I/O. It takes the client's messages as they are and must not know of topics or transactions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, cast

from confluent_kafka import Message
from confluent_kafka import TopicPartition as KafkaPartition

from standfast.replication.checks import check_bytes, check_timestamps
from standfast.replication.columns import RecordColumns
from standfast.replication.log import Committed, Headers, Outgoing
from standfast.replication.offsets import TopicPartition
from standfast.replication.record_limits import Headers as SomeHeaders
from standfast.replication.record_limits import TopicLimits, most_bytes, pieces
from standfast.store.errors import InvalidRequest
from standfast.store.native_module import compiled
from standfast.store.timestamps import TIMESTAMP_MAX_MS
from standfast.store.value_timestamp import TIMESTAMP_BYTES, RowChanges, headed_columns

LEAST_TIMESTAMP_MS = 1  # the client reads 0 as "now"

_stamp = itemgetter(1)


def keys_of(messages: Sequence[Message]) -> list[bytes | None]:
    """The keys of messages; an event has no key."""
    return cast("list[bytes | None]", list(map(Message.key, messages)))


def to_columns(messages: Sequence[Message], keys: list[bytes | None] | None = None) -> RecordColumns:
    """Messages without error, all of one partition, as records by column; `keys`: their keys, if known already.

    Give it few messages at a time, while they are still in the processor's cache.
    """
    count = len(messages)
    if not count:
        return RecordColumns((), (), (), ())
    first, last = messages[0].offset() or 0, messages[-1].offset() or 0
    offsets: Sequence[int] = range(first, last + 1)
    if len(offsets) != count:  # compaction or a transaction marker left gaps
        offsets = cast("list[int]", list(map(Message.offset, messages)))
    headers: list[Headers] | None = None
    if any(map(Message.headers, messages)):
        headers = [cast(Headers, tuple(message.headers() or ())) for message in messages]
    return RecordColumns(
        offsets,
        list(map(_stamp, map(Message.timestamp, messages))),
        keys_of(messages) if keys is None else keys,
        cast("list[bytes | None]", list(map(Message.value, messages))),
        headers,
    )


@dataclass(frozen=True, slots=True)
class Columns:
    """Outgoing records of one partition, checked. Tuples, so that none changes while a client reads them.

    Without `timestamps` each value has its own before it, in 8 bytes, and none is null: rows of a store as they are.
    """

    keys: tuple[bytes | None, ...]
    values: tuple[bytes | None, ...]
    timestamps: tuple[int, ...] | None
    headers: tuple[Sequence[tuple[str, str | bytes | None]] | None, ...] | None = None  # None if no record has any

    def __len__(self) -> int:
        return len(self.keys)

    def size_of(self, index: int) -> int:
        """Bytes of a record's key and value."""
        head = TIMESTAMP_BYTES if self.timestamps is None else 0
        return len(self.keys[index] or b"") + len(self.values[index] or b"") - head

    def record(self, index: int) -> tuple[bytes | None, bytes | None, SomeHeaders]:
        """Key, value and headers of a record."""
        head, value = TIMESTAMP_BYTES if self.timestamps is None else 0, self.values[index]
        headers = None if self.headers is None else self.headers[index]
        return self.keys[index], None if value is None else value[head:], headers or ()

    def piece(self, first: int, end: int) -> Columns:
        """The records from `first` on, below `end`."""
        of = slice(first, end)
        timestamps = None if self.timestamps is None else self.timestamps[of]
        return Columns(self.keys[of], self.values[of], timestamps, None if self.headers is None else self.headers[of])

    def pieces(self, most: int | None) -> list[Columns]:
        """The records in pieces of at most `most` bytes each; None: in one."""
        if most is None or len(self) < 2:
            return [self]
        sizes = [most_bytes(*self.record(index)) for index in range(len(self))]
        return [self.piece(first, end) for first, end in pieces(sizes, most)]

    def plain(self) -> tuple[tuple[bytes | None, ...], tuple[int, ...]]:
        """Values without timestamps, and these."""
        if self.timestamps is not None:
            return self.values, self.timestamps
        return headed_columns(cast("tuple[bytes, ...]", self.values))


class Unsent:
    """The records of one write that have no acknowledgement, by partition, in pieces that its topic takes."""

    def __init__(self, rows: Mapping[TopicPartition, Columns], limits: TopicLimits) -> None:
        self.ends: dict[TopicPartition, int] = {}  # behind the acknowledged records
        self._limits = limits
        self._pieces = {
            source: batch.pieces(limits.batch_bytes(source.topic)) for source, batch in rows.items() if len(batch)
        }

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def round(self) -> dict[TopicPartition, Columns]:
        """The next piece of each partition."""
        return {source: left[0] for source, left in self._pieces.items()}

    def acknowledged(self, source: TopicPartition, end: int) -> None:
        """The next piece of a partition is in the log, below offset `end`."""
        self.ends[source] = end
        left = self._pieces[source]
        del left[0]
        if not left:
            del self._pieces[source]

    def cut(self) -> None:
        """Cut the pieces again, by the limits as they are known now."""
        self._pieces = {
            source: [smaller for one in left for smaller in one.pieces(self._limits.batch_bytes(source.topic))]
            for source, left in self._pieces.items()
        }


def checked(source: TopicPartition, batch: Sequence[Outgoing]) -> Columns:
    """The batch as columns for the client.

    Raises InvalidRequest naming partition and record. A timestamp of 0 is refused, because the client reads it as
    "now" and the record would come back changed.
    """
    if not len(batch):
        return Columns((), (), ())
    module = compiled().module
    if isinstance(batch, RowChanges):
        if module is not None and module.headed(batch.keys, batch.rows, LEAST_TIMESTAMP_MS, TIMESTAMP_MAX_MS):
            return Columns(batch.keys, batch.rows, None)
        changed = batch.columns()
        keys = _bytes(source, "key", changed[0])  # a serde that is wrong may have returned text
        check_timestamps(source, changed[2], LEAST_TIMESTAMP_MS)
        return Columns(keys, *changed[1:])
    if module is not None:
        # Nearly every batch is a list of sound rows: 0.1 us a row instead of 0.4.
        found = module.columns_of(batch, LEAST_TIMESTAMP_MS, TIMESTAMP_MAX_MS)
        if found is not None:
            return Columns(*found)
    try:
        columns = tuple(zip(*batch, strict=True))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{source}: records of one batch need equal shape ({error})") from error
    if len(columns) not in (3, 4):
        raise InvalidRequest(f"{source}: a record is (key, value, timestamp, headers), got {len(columns)} parts")
    keys, values = _bytes(source, "key", columns[0]), _bytes(source, "value", columns[1])
    check_timestamps(source, columns[2], LEAST_TIMESTAMP_MS)
    headers = None
    if len(columns) == 4 and any(columns[3]):
        headers = tuple(_headers(source, index, one) for index, one in enumerate(columns[3]))
    return Columns(keys, values, columns[2], headers)


def _bytes(source: TopicPartition, what: str, column: tuple[Any, ...]) -> tuple[bytes | None, ...]:
    return tuple(None if one is None else bytes(one) for one in column) if check_bytes(source, what, column) else column


def _headers(source: TopicPartition, index: int, headers: Any) -> list[tuple[str, bytes | None]] | None:
    found = []
    try:
        for key, value in headers:
            if not isinstance(key, str) or not isinstance(value, bytes | bytearray | memoryview | None):
                raise TypeError(f"header {key!r} is {type(key).__name__} with {type(value).__name__}, not text, bytes")
            found.append((key, None if value is None else bytes(value)))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{source}: record {index} of the batch has bad headers ({error})") from error
    return found or None


def kafka_offsets(offsets: Mapping[TopicPartition, Committed]) -> list[KafkaPartition]:
    """Offsets with metadata in the client's type."""
    return [
        KafkaPartition(topic, partition, offset, metadata) for (topic, partition), (offset, metadata) in offsets.items()
    ]
