"""The records of the comparison, and the rows that a store must hold after them.

    keyvalue    `keys` keys, all of them once in one order, then all again: no key twice within a commit; keys of 12
                bytes, values of 100 whose first 12 are the record's number
    window      the same keys and values; a row a record, over 20 times the retention, so that 95 % expire
    lost        a window store: 1,000 rows, five minutes later 60,000 rows of 1 kB (a segment further on)

Rules of this file: pure except `feed`. The same arguments give the same data, except the time of the newest record.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

if TYPE_CHECKING:
    from standfast.replication.log import Log

KEY_BYTES, VALUE_BYTES, NUMBER_BYTES = 12, 100, 12
VALUES = 1_000
FEED_RECORDS = 5_000
RETENTIONS = 20  # a window store's records span so many times its retention: 95 % are expired
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
OLD_ROWS, NEW_ROWS, NEW_BYTES = 1_000, 60_000, 1_000


class Row(NamedTuple):
    """One record of a source. timestamp in ms."""

    partition: int
    key: bytes
    value: bytes
    timestamp: int


@dataclass(frozen=True)
class Shape:
    """The records of a source. `now_ms` is the time of the newest one; retention and window only for a window store."""

    kind: str
    records: int
    keys: int
    partitions: int
    seed: int
    now_ms: int
    window_ms: int = 60_000
    retention_ms: int = 3_600_000
    value_bytes: int = VALUE_BYTES

    def all_keys(self) -> list[bytes]:
        """Keys that look random; all are different."""
        salt = self.seed.to_bytes(8, "big")
        half = KEY_BYTES // 2
        made = [
            hashlib.blake2b(number.to_bytes(8, "big"), digest_size=half, salt=salt).hexdigest().encode()
            for number in range(self.keys)
        ]
        assert len(set(made)) == self.keys, "two keys are alike: take another seed"
        return made

    def rows(self, first: int, upto: int) -> Iterator[Row]:
        """Records number `first` to `upto`, exclusive."""
        keys, values = self.all_keys(), some_values(self.seed, self.value_bytes)
        span_ms = RETENTIONS * self.retention_ms if self.kind == "window" else self.records
        for number in range(first, upto):
            # One order again and again: no key is twice in a commit, so that every system's cache logs every record.
            key = number % self.keys
            value = b"%0*d%s" % (NUMBER_BYTES, number, values[number % VALUES])
            yield Row(key % self.partitions, keys[key], value, self.now_ms - span_ms + number * span_ms // self.records)

    def probe(self, partition: int, number: int) -> Row:
        """A record for a restored application to process."""
        value = b"%0*d%s" % (NUMBER_BYTES, number, b"x" * (VALUE_BYTES - NUMBER_BYTES))
        return Row(partition, b"probe-%06d" % partition, value, self.now_ms)


def some_values(seed: int, value_bytes: int) -> list[bytes]:
    """Random ends of values, which follow the record's number."""
    rng = random.Random(seed)
    return ["".join(rng.choices(LETTERS, k=value_bytes - NUMBER_BYTES)).encode() for _ in range(VALUES)]


def lost_rows(seed: int, now_ms: int, *, old: bool) -> Iterator[Row]:
    """The rows of the earlier segment (`old`) or of the later one; segments are of five minutes."""
    segment_ms = 300_000
    start_ms = now_ms // segment_ms * segment_ms - 2 * segment_ms
    values = some_values(seed, VALUE_BYTES if old else NEW_BYTES)
    count, span_ms = (OLD_ROWS, 60_000) if old else (NEW_ROWS, 240_000)
    first_ms = start_ms if old else start_ms + segment_ms
    for number in range(count):
        value = b"%0*d%s" % (NUMBER_BYTES, number, values[number % VALUES])
        yield Row(0, b"%s-%08d" % (b"old" if old else b"new", number), value, first_ms + number * span_ms // count)


@dataclass
class Expected:
    """The content that a store must have: rows within retention, and the sum of their CRC-32."""

    # From the records alone: two sides with equal rows could be wrong together.
    shape: Shape
    probes: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Add a probe; it overwrites the former probe of its partition."""
        self.probes[row.partition] = 1, crc_of(self.shape, row)

    def digest(self) -> tuple[int, int]:
        """Number of rows, and the sum of their CRC-32."""
        found = [base_digest(self.shape), *self.probes.values()]
        return sum(count for count, _ in found), sum(total for _, total in found)


@cache
def base_digest(shape: Shape) -> tuple[int, int]:
    """Digest of all records without probes, at the time of the newest."""
    first_ms = shape.now_ms - shape.retention_ms + 1 if shape.kind == "window" else 0
    first = 0 if shape.kind == "window" else max(shape.records - shape.keys, 0)  # each key once
    found = [
        crc_of(shape, row)
        for row in shape.rows(first, shape.records)
        if row.timestamp - row.timestamp % shape.window_ms >= first_ms
    ]
    return len(found), sum(found)


def crc_of(shape: Shape, row: Row) -> int:
    """CRC-32 of a stored row: key, window start (0 without one), value. Java and Python can both compute it."""
    start_ms = row.timestamp - row.timestamp % shape.window_ms if shape.kind == "window" else 0
    return crc32(row.value, crc32(start_ms.to_bytes(8, "big"), crc32(row.key)))


def feed(log: Log, topic: str, rows: Iterable[Row]) -> int:
    """Write records to a topic; returns their number."""
    from standfast.replication.offsets import TopicPartition

    producer = log.producer()
    batches: dict[TopicPartition, list[tuple[bytes, bytes, int, tuple[()]]]] = {}
    count = waiting = 0
    for row in rows:
        batches.setdefault(TopicPartition(topic, row.partition), []).append((row.key, row.value, row.timestamp, ()))
        count, waiting = count + 1, waiting + 1
        if waiting == FEED_RECORDS:
            producer.append(batches)  # type: ignore[arg-type]
            batches, waiting = {}, 0
    if batches:
        producer.append(batches)  # type: ignore[arg-type]
    return count
