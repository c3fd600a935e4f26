"""A digest of logical rows that does not depend on their order: count, xor of hashes, sum of their low 32 bits.

    hash(row) = xxh64(value, seed = xxh64(timestamp as int64 little-endian, seed = xxh64(key, seed = 42)))

The hash equals Spark's `xxhash64(key, timestamp, value)` over binary, bigint and binary (taken as unsigned), so that a
store, a changelog and a Spark job can be compared without moving rows. It is not cryptographic: good against faults,
not against tampering. Sums of whole 64-bit hashes would overflow in Spark; sums of 32-bit halves do not.

    text    count-xor-low_sum in hex, as 3-1f00000000000000-2a; xor has 16 digits

Rules of this file: pure; the only file that imports xxhash. Digests of disjoint row sets add up to that of their union.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import TypeAlias

import xxhash

from standfast.store.errors import InvalidRequest

# (key as in the changelog, timestamp or -1 in a store that keeps none, raw value)
LogicalRow: TypeAlias = tuple[bytes, int, bytes]

SEED = 42  # the seed of Spark's xxhash64; never change
_LOW_32 = 0xFFFF_FFFF  # sums of 64-bit hashes end with ARITHMETIC_OVERFLOW in Spark 4, whose ANSI mode is on
_pack_long = Struct("<q").pack
_xxh64 = xxhash.xxh64_intdigest
_TEXT = re.compile(r"([0-9a-f]+)-([0-9a-f]{16})-([0-9a-f]+)")


@dataclass(frozen=True, slots=True)
class Digest:
    """Digest of a set of rows; Digest() for no rows."""

    count: int = 0
    xor: int = 0
    low_sum: int = 0

    def __add__(self, other: Digest) -> Digest:
        """Digest of the union of both row sets, which must not share rows."""
        return Digest(self.count + other.count, self.xor ^ other.xor, self.low_sum + other.low_sum)

    def hex(self) -> str:
        """The text form; equal digests have equal texts."""
        return f"{self.count:x}-{self.xor:016x}-{self.low_sum:x}"

    @classmethod
    def from_hex(cls, text: str) -> Digest:
        """Inverse of hex(). Raises InvalidRequest."""
        found = _TEXT.fullmatch(text)
        if found is None:
            raise InvalidRequest(f"{text!r} is not a digest: write count-xor-sum in hex, as 3-1f00000000000000-2a")
        return cls(*(int(part, 16) for part in found.groups()))


def row_hash(key: bytes, timestamp: int, value: bytes) -> int:
    """Unsigned 64-bit hash of one row. `timestamp` is a signed 64-bit number."""
    return _xxh64(value, _xxh64(_pack_long(timestamp), _xxh64(key, SEED)))


def key_hash(key: bytes) -> int:
    """Unsigned 64-bit hash of a key alone: Spark's `xxhash64(key)`."""
    return _xxh64(key, SEED)


def digest_rows(rows: Iterable[LogicalRow]) -> Digest:
    """Digest of rows in any order. The loop is written out: a call per row would halve its speed."""
    xxh64, pack = _xxh64, _pack_long
    count = xor = low_sum = 0
    for key, timestamp, value in rows:
        hashed = xxh64(value, xxh64(pack(timestamp), xxh64(key, 42)))
        count += 1
        xor ^= hashed
        low_sum += hashed & _LOW_32
    return Digest(count, xor, low_sum)
