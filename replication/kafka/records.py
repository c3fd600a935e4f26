"""Records between the port and the Kafka client: checks of outgoing records, columns of incoming messages.

Rules of this file: no I/O. It takes the client's messages as they are and must not know of topics or transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, cast

from confluent_kafka import Message

from standfast.replication.checks import check_bytes, check_timestamps
from standfast.replication.columns import RecordColumns
from standfast.replication.log import Headers, Outgoing
from standfast.replication.offsets import TopicPartition
from standfast.store.errors import InvalidRequest

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


def checked(source: TopicPartition, batch: Sequence[Outgoing]) -> Sequence[tuple[Any, ...]]:
    """The batch as rows for the client (key, value, timestamp, headers); the batch itself if it fits already.

    Raises InvalidRequest naming partition and record. A timestamp of 0 is refused, because the client reads it as
    "now" and the record would come back changed.
    """
    if not len(batch):
        return []
    try:
        columns = list(zip(*batch, strict=True))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{source}: records of one batch need equal shape ({error})") from error
    if len(columns) not in (3, 4):
        raise InvalidRequest(f"{source}: a record is (key, value, timestamp, headers), got {len(columns)} parts")
    keys, values = _bytes(source, "key", columns[0]), _bytes(source, "value", columns[1])
    check_timestamps(source, columns[2], LEAST_TIMESTAMP_MS)
    headers: Iterable[Any] = repeat(None)
    if len(columns) == 4 and not any(columns[3]):
        if keys is columns[0] and values is columns[1]:
            return batch
    elif len(columns) == 4:
        headers = [_headers(source, index, one) for index, one in enumerate(columns[3])]
    return list(zip(keys, values, columns[2], headers, strict=False))


def _bytes(source: TopicPartition, what: str, column: Sequence[Any]) -> Sequence[bytes | None]:
    return [one if one is None else bytes(one) for one in column] if check_bytes(source, what, column) else column


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
