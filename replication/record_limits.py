"""The largest record, and the largest batch of records, that each topic of a log takes.

    max.message.bytes    bounds a batch: all records of one partition that a client sends in one request
    note                 the log describes the topic so: records are measured against it before they are sent
    narrow               a batch was refused, and the limit is not known: from here on batches are half as large
    refuse               a batch of one record was refused: the topic takes no record of that size

    topic's limit >= the client's batch    records are given to the client as they are
    topic's limit < the client's batch     in pieces that fit (`pieces`), each acknowledged before the next

The sizes are those of Kafka's batches (format 2). A client that compresses sends smaller ones, so that its records are
not judged before the log has refused them, and only the very record that was refused is refused here.

Rules of this file: pure, no I/O. Several threads may use one TopicLimits: each step replaces one entry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from standfast.store.errors import TooLarge

Headers: TypeAlias = Sequence[tuple[str, str | bytes | None]]

MESSAGE_BYTES = "max.message.bytes"
BATCH_HEAD_BYTES = 61
CLIENT_BATCH_BYTES = 1_000_000  # librdkafka's batch.size
BESIDE_MOST_BYTES = 80  # of a batch with one record without headers, beside key and value
NO_LIMIT = 2**63 - 1
REFUSED_MAX = 1_000  # records remembered for a topic whose client compresses

_STAMP_BYTES, _PLACE_BYTES = 10, 3  # the most that a record's time and place in its batch take, of 10,000 records


class RecordRefused(TooLarge):
    """The log refused this very record for its size; nothing of its transaction was written.

    `of_output`: a record that the application sent. Its topic's limit is known from here on, so that the same record
    is refused as it is sent, once the task is open again and has processed its sources up to there.
    """

    of_output = True

    def __init__(self, message: str, topic: str, partition: int, key: bytes | None, size: int) -> None:
        super().__init__(message)
        self.topic, self.partition, self.key, self.size = topic, partition, key, size


class TopicLimits:
    """The limits of a log's topics, as far as they are known."""

    def __init__(self, *, batch_bytes: int = CLIENT_BATCH_BYTES, compresses: bool = False) -> None:
        """`batch_bytes`: the most that the client sends in one batch of several records."""
        self.least = NO_LIMIT  # a record whose key and value have no more bytes is within the limit of each topic
        self._batch_bytes = batch_bytes
        self._compresses = compresses
        self._asked: set[str] = set()
        self._records: dict[str, int] = {}
        self._batches: dict[str, int] = {}
        self._refused: dict[str, dict[bytes, None]] = {}
        self._least_refused: dict[str, int] = {}  # where the log's own limit is not known, or not the whole truth

    def unasked(self, topics: Iterable[str]) -> list[str]:
        """Those of the topics whose limit was never looked up."""
        return [topic for topic in dict.fromkeys(topics) if topic not in self._asked]

    def begin(self, topics: Mapping[str, int | None]) -> None:
        """Note limits that were looked up before, by another access to the log; those known here are newer."""
        for topic in self.unasked(topics):
            if topics[topic] is not None:
                self.note(topic, topics[topic])

    def note(self, topic: str, most_bytes: int | None) -> None:
        """The log's own limit of a topic; None: it does not say."""
        self._asked.add(topic)
        if most_bytes is None:
            return
        self._batches.pop(topic, None)
        self._least_refused.pop(topic, None)
        self._records[topic] = most_bytes
        self._look_least()

    def record_bytes(self, topic: str) -> int | None:
        """The most bytes of a batch with one record; None if unknown."""
        return self._records.get(topic)

    def batch_bytes(self, topic: str) -> int | None:
        """The most bytes of a batch; None if no batch of the client is larger than the topic takes."""
        most = min(self._records.get(topic, NO_LIMIT), self._batches.get(topic, NO_LIMIT))
        return most if most < self._batch_bytes else None

    def narrow(self, topic: str, refused_bytes: int) -> None:
        """A batch of up to so many bytes was refused: the next ones are half as large."""
        known = self.batch_bytes(topic)
        self._batches[topic] = max(min(refused_bytes, self._batch_bytes, known or NO_LIMIT) // 2, 1)

    def refuse(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> None:
        """A batch of this record alone was refused."""
        size = alone_bytes(key, value, headers)
        if size <= self._records.get(topic, NO_LIMIT):
            self._least_refused[topic] = min(size, self._least_refused.get(topic, NO_LIMIT))
        if self._compresses:
            refused = self._refused.setdefault(topic, {})
            refused[_digest(key, value)] = None
            if len(refused) > REFUSED_MAX:
                del refused[next(iter(refused))]
        else:
            self._records[topic] = min(self._records.get(topic, NO_LIMIT), size - 1)
        self._look_least()

    def problem(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers) -> str | None:
        """Why the topic does not take a record; None if it does, as far as is known."""
        if self._compresses:
            if _digest(key, value) not in self._refused.get(topic, {}):
                return None
            return f"the log has refused this record of {len(key or b'') + len(value or b'')} bytes before"
        most, size = self._records.get(topic, NO_LIMIT), alone_bytes(key, value, headers)
        return None if size <= most else f"it has {size} bytes, above the topic's limit of {most} bytes"

    def room(self, topic: str, key: bytes | None, headers: Headers) -> int:
        """The most bytes of a value beside this key and these headers; below 0 if they are too large."""
        most = min(self._records.get(topic, NO_LIMIT), self._least_refused.get(topic, NO_LIMIT) // 2)
        # The lengths before the value and before the record may grow with it.
        return most - alone_bytes(key, None, headers) - 2 * _varint_bytes(most)

    def _look_least(self) -> None:
        if self._compresses:
            self.least = 0 if self._refused else NO_LIMIT
        else:
            self.least = min(self._records.values(), default=NO_LIMIT) - BESIDE_MOST_BYTES


def fix_of(topic: str) -> str:
    """The correction of a record above a topic's limit."""
    return (
        f"raise {MESSAGE_BYTES} of {topic} (and message.max.bytes of the log address, if it is set) and start again, "
        "or write smaller records"
    )


def alone_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """The size of a batch with this record alone."""
    body = 3 + _body_bytes(key, value, headers)  # attributes, time and place, a byte each
    return BATCH_HEAD_BYTES + _varint_bytes(body) + body


def most_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """The most bytes that a record takes in a batch of several."""
    body = 1 + _STAMP_BYTES + _PLACE_BYTES + _body_bytes(key, value, headers)
    return _varint_bytes(body) + body


def pieces(sizes: Sequence[int], most_bytes: int) -> Iterator[tuple[int, int]]:
    """The records, by the sizes of `most_bytes`, cut into runs (first, behind the last) whose batches fit.

    A record that does not fit is a piece of its own.
    """
    first, size = 0, BATCH_HEAD_BYTES
    for at, more in enumerate(sizes):
        if size + more > most_bytes and at > first:
            yield first, at
            first, size = at, BATCH_HEAD_BYTES
        size += more
    if first < len(sizes):
        yield first, len(sizes)


def _body_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    size = _part_bytes(key) + _part_bytes(value) + _varint_bytes(len(headers))
    for name, content in headers:
        size += _part_bytes(name) + _part_bytes(content)
    return size


def _part_bytes(part: str | bytes | None) -> int:
    if isinstance(part, str):
        part = part.encode()
    return 1 if part is None else _varint_bytes(len(part)) + len(part)


def _varint_bytes(number: int) -> int:
    # Zigzag: one bit is the sign.
    return (number.bit_length() + 7) // 7


def _digest(key: bytes | None, value: bytes | None) -> bytes:
    whole = hashlib.blake2b(repr(None if key is None else len(key)).encode(), digest_size=16)
    whole.update(bytes(key or b""))
    whole.update(bytes(value or b""))
    return whole.digest()
