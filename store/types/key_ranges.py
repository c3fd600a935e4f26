"""Ranges over keys that are numbers: rows are chosen and ordered by number, and the bytes of keys stay as they are.

    int64      00 to 7f   0 and above, rising        80 to ff   below 0, rising
    float64    00 to 7f   0.0 and above, rising      80 to ff   -0.0 and below, falling; NaN beyond both infinities

    -5 to 5    int64      fffffffffffffffb to ffffffffffffffff forwards, then 00...00 to 00...05 forwards
               float64    8000000000000000 to c014000000000000 backwards, then 00...00 to 4014...00 forwards

Rules of this file: pure, bytes in and byte ranges out. Every reader of a range of keys takes its byte ranges from here;
readers of all keys and of prefixes do not, and stay in byte order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from standfast.store import serde as serdes
from standfast.store.errors import InvalidRequest
from standfast.store.serde import Serde

T = TypeVar("T")

KEY_BYTES = 8
ZERO = 1 << 63  # the rank of 0; that of -0.0 is one less
RANK_MAX = (1 << 64) - 1
_INFINITY_BITS = 0x7FF << 52


class KeySpan(NamedTuple):
    """Keys from low to high in byte order, both included, None is open; read backwards if `reverse`."""

    low: bytes | None
    high: bytes | None
    reverse: bool = False

    @property
    def empty(self) -> bool:
        """Whether no key can lie within."""
        return self.low is not None and self.high is not None and self.low > self.high

    def bounds(self, prefix: bytes = b"") -> tuple[bytes, bytes | None]:
        """[low, high) of the keys, each behind the prefix, which goes with a high end."""
        return prefix + (self.low or b""), None if self.high is None else prefix + self.high + b"\x00"

    def takes(self, key: bytes) -> bool:
        """Whether a key lies within."""
        return (self.low is None or key >= self.low) and (self.high is None or key <= self.high)


EVERY_KEY = KeySpan(None, None)


@dataclass(frozen=True, slots=True)
class NumberOrder:
    """The order of one serde's numbers. A rank is a number's place among all keys of 8 bytes, from 0 to 2**64 - 1."""

    name: str
    lowest: int  # ranks of the least and the largest number
    highest: int
    mirrored: bool  # below zero the bytes rise where the numbers fall

    def rank(self, key: bytes) -> int:
        """The place of a key of 8 bytes."""
        bits = int.from_bytes(key, "big")
        if self.mirrored and bits >= ZERO:
            return RANK_MAX - bits
        return bits ^ ZERO

    def spans(
        self, low: bytes | None, high: bytes | None, *, store: str, reverse: bool = False, behind: bytes | None = None
    ) -> list[KeySpan]:
        """Byte ranges of the numbers from low to high, both included, in the order of reading; None is an open end.

        `behind`: only keys after this one in the order of reading, which need not lie within. Raises InvalidRequest for
        a key that is not 8 bytes or is NaN, naming the store.
        """
        first = self.lowest if low is None else self._checked(low, store)
        last = self.highest if high is None else self._checked(high, store)
        if self.mirrored:  # -0.0 equals 0.0, so that an end at either includes both
            first -= first == ZERO
            last += last == ZERO - 1
        if behind is not None and reverse:
            last = min(last, self._checked(behind, store) - 1)
        elif behind is not None:
            first = max(first, self._checked(behind, store) + 1)
        below, above = (first, min(last, ZERO - 1)), (max(first, ZERO), last)
        found = [self._span(*half, reverse) for half in (below, above) if half[0] <= half[1]]
        return found[::-1] if reverse else found

    def _span(self, first: int, last: int, reverse: bool) -> KeySpan:
        if self.mirrored and last < ZERO:
            return KeySpan(self._key(last), self._key(first), not reverse)
        return KeySpan(self._key(first), self._key(last), reverse)

    def _key(self, rank: int) -> bytes:
        bits = RANK_MAX - rank if self.mirrored and rank < ZERO else rank ^ ZERO
        return bits.to_bytes(KEY_BYTES, "big")

    def _checked(self, key: bytes, store: str) -> int:
        if len(key) != KEY_BYTES:
            raise InvalidRequest(
                f"store {store!r}: an end of a range over {self.name} keys is {KEY_BYTES} bytes, not {len(key)}"
            )
        rank = self.rank(key)
        if not self.lowest <= rank <= self.highest:
            raise InvalidRequest(
                f"store {store!r}: a range cannot begin or end at NaN, which is neither above nor below a number: give "
                "a number, or None for an open end"
            )
        return rank


_ORDERS = {
    serdes.int64.name: NumberOrder(serdes.int64.name, 0, RANK_MAX, mirrored=False),
    serdes.float64.name: NumberOrder(
        serdes.float64.name, ZERO - 1 - _INFINITY_BITS, ZERO + _INFINITY_BITS, mirrored=True
    ),
}


def number_order(key: Serde[Any]) -> NumberOrder | None:
    """The order of a serde's numbers; None for a serde whose ranges are in byte order."""
    return _ORDERS.get(key.name)


def key_spans(
    key: Serde[Any], low: bytes | None, high: bytes | None, *, store: str, reverse: bool = False
) -> list[KeySpan]:
    """Byte ranges of the keys from low to high by a serde, both included: see `NumberOrder.spans`."""
    order = number_order(key)
    return [KeySpan(low, high, reverse)] if order is None else order.spans(low, high, store=store, reverse=reverse)


def raw_keys(key: Serde[Any]) -> Serde[bytes]:
    """A serde of bytes with the ranges of another one: for readers that serialise keys themselves."""
    return replace(serdes.bytes, name=key.name) if key.name in _ORDERS else serdes.bytes


def turned(rows: Iterator[T], key_of: Callable[[T], object]) -> Iterator[T]:
    """Rows with those of each key in the opposite order; keys come as before. Holds the rows of one key."""
    for _, of_key in groupby(rows, key_of):
        yield from list(of_key)[::-1]
