"""The split of large changelog partitions on Spark: pieces of offsets, each read by a task, and buckets of keys, each
folded by a task.

    offsets   begin ── piece 0 ──┬── piece 1 ──┬── piece 2 ── end       a task each: read, watch, choose the bucket
                                 │   shuffle   │
    keys      (first) ─ bucket 0 ┴─ bucket 1 ──┴─ bucket 2 ── (last)    a task each: sort, fold or merge, files

A partition is split if it is larger than a bound set by the user, or else if it is larger than SPLIT_BYTES and than one
core's share of the whole: smaller ones fill the cores by themselves, and a shuffle writes and reads all records once
more.

Rules of this file: pure; sizes are estimates, so that parts are about equal and never exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from standfast.store.errors import InternalError

SPLIT_BYTES = 1 << 30  # bytes of keys and values: 20 to 40 s of one core
PARTS_MAX = 512
SPARK_HASH_SEED = 42  # fixed in Spark
_LOW_32 = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class OffsetSample:
    """Sample of a partition at one offset: records and bytes for each offset from there on, and some keys."""

    offset: int
    density: float
    bytes_per_offset: float
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Split:
    """One partition in parts.

    edges     first offset of each piece, ascending; reading begins at the first one
    keys      first key of each bucket but the first one, ascending, all of them different
    tickets   for each bucket, the number that Spark's hash partitioning sends to a task of its own
    """

    edges: tuple[int, ...]
    keys: tuple[bytes, ...]
    tickets: tuple[int, ...]

    @property
    def buckets(self) -> int:
        """Number of buckets."""
        return len(self.keys) + 1

    def span(self, bucket: int) -> tuple[bytes | None, bytes | None]:
        """Keys of a bucket: low <= key < high, None for an open end."""
        low = self.keys[bucket - 1] if bucket else None
        return low, self.keys[bucket] if bucket < len(self.keys) else None

    def dump(self) -> dict[str, Any]:
        """The split as JSON values."""
        return {"edges": self.edges, "keys": [key.hex() for key in self.keys], "tickets": self.tickets}

    @classmethod
    def load(cls, found: Mapping[str, Any]) -> Split:
        """Inverse of dump."""
        return cls(tuple(found["edges"]), tuple(map(bytes.fromhex, found["keys"])), tuple(found["tickets"]))


def parts_of(sizes: Mapping[int, float], cores: int, asked_bytes: int | None = None) -> dict[int, int]:
    """Number of parts of each partition that is split, by its size in bytes."""
    bound = float(asked_bytes) if asked_bytes else max(SPLIT_BYTES, sum(sizes.values()) / max(cores, 1))
    # A partition just above a share would gain nothing from two halves, which the shuffle writes and reads once more.
    slack = 1.0 if asked_bytes else 1.25
    return {
        number: min(max(-int(-size // bound), 2), PARTS_MAX) for number, size in sizes.items() if size > bound * slack
    }


def split(samples: Sequence[tuple[int, float]], end: int, parts: int, least: int) -> list[tuple[int, int]]:
    """Ranges [from, to) of about as many records each, at most `parts`, with about `least` records or more.

    A compacted log has few records in its old part, so `samples` are (offset, records per offset from there on),
    ascending; the first range begins at the first one. At least one range results, also for an empty changelog.
    """
    start = samples[0][0]
    if start > end or parts < 1:
        raise InternalError(f"offsets {start} to {end} cannot be split into {parts}")
    stretches = [
        (offset, upto - offset, density * (upto - offset))
        for (offset, density), (upto, _) in zip(samples, [*samples[1:], (end, 0.0)], strict=True)
    ]
    total = sum(records for *_, records in stretches)
    parts = max(min(parts, int(total / max(least, 1))), 1)
    edges, passed = [start], 0.0
    for offset, length, records in stretches:
        while len(edges) < parts and records and passed + records >= total * len(edges) / parts:
            share = (total * len(edges) / parts - passed) / records
            edges.append(max(offset + int(share * length), edges[-1]))
        passed += records
    return list(zip(edges, [*edges[1:], end], strict=True))


def split_at(places: Sequence[OffsetSample], end: int, parts: int) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
    """(first offsets of pieces, first keys of buckets but the first) of a sampled partition.

    Places are ascending; the partition begins at the first one. The result may have fewer parts: a key is never in two
    buckets, so that one key of many records, or a partition of one key, stays together.
    """
    edges = [begin for begin, upto in split([(one.offset, one.bytes_per_offset) for one in places], end, parts, 1)
             if begin < upto]  # fmt: skip
    weighted: list[tuple[bytes, float]] = []
    for one, behind in zip(places, [*(one.offset for one in places[1:]), end], strict=True):
        if one.keys:
            share = one.bytes_per_offset * (behind - one.offset) / len(one.keys)
            weighted += [(key, share) for key in one.keys]
    weighted.sort()
    total, passed = sum(share for _, share in weighted), 0.0
    keys: list[bytes] = []
    smallest = weighted[0][0] if weighted else b""
    for key, share in weighted:
        # No bucket begins with the smallest key of all, since the bucket before it would be empty.
        if len(keys) < parts - 1 and passed >= total * (len(keys) + 1) / parts and key > (keys or [smallest])[-1]:
            keys.append(key)
        passed += share
    return tuple(edges) or (places[0].offset,), tuple(keys)


def numbered(found: Mapping[int, tuple[tuple[int, ...], tuple[bytes, ...]]]) -> dict[int, Split]:
    """Splits of one job, by partition: every bucket of all of them has a ticket of its own."""
    tickets = tickets_of(sum(len(keys) + 1 for _, keys in found.values()))
    splits, at = {}, 0
    for number, (edges, keys) in sorted(found.items()):
        splits[number] = Split(edges, keys, tuple(tickets[at : at + len(keys) + 1]))
        at += len(keys) + 1
    return splits


def tickets_of(count: int) -> list[int]:
    """Numbers that hash partitioning into `count` sends to 0, 1, 2, ...: Spark hashes the column, and by plain numbers
    some tasks would have two buckets, which would mix, and others none."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < count:
        found.setdefault(spark_hash(number) % count, number)
        number += 1
    return [found[place] for place in range(count)]


def spark_hash(number: int) -> int:
    """Spark's `hash` of an int: Murmur3, 32 bits, signed."""
    mixed = _rotated((number & _LOW_32) * 0xCC9E2D51 & _LOW_32, 15) * 0x1B873593 & _LOW_32
    found = (_rotated(SPARK_HASH_SEED ^ mixed, 13) * 5 + 0xE6546B64) & _LOW_32
    found ^= 4  # bytes of an int
    found = (found ^ found >> 16) * 0x85EBCA6B & _LOW_32
    found = (found ^ found >> 13) * 0xC2B2AE35 & _LOW_32
    found ^= found >> 16
    return found - (1 << 32) if found >> 31 else found


def _rotated(number: int, bits: int) -> int:
    return (number << bits | number >> (32 - bits)) & _LOW_32


def pieces_of(split_: Split, end: int) -> list[tuple[int, int]]:
    """[from, to) of each piece."""
    return list(pairwise([*split_.edges, end]))
