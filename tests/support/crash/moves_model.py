"""The required content of a partition's stores: operation n follows from its number, so an offset implies all its rows.

    operation(partition, n) ──> requests to the RESP server, and the rows that they write and remove
    Folds.at(store, n)      ──> a digest of the rows after the operations below n: any whole scan has one of them

Rules of this file: pure, and the same in every process. Rows are tuples of a key's bytes, times and a value's bytes.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

KEYS = 800
WINDOW_MS = 1_000
HOUR_MS = 3_600_000
STORES: list[dict[str, Any]] = [
    {"name": "kv", "kind": "keyvalue"},
    {"name": "win", "kind": "window", "window_size_ms": WINDOW_MS, "retention_ms": HOUR_MS},
    {"name": "ses", "kind": "session", "retention_ms": HOUR_MS},
    {"name": "ver", "kind": "versioned", "history_retention_ms": HOUR_MS},
]
NAMES = tuple(store["name"] for store in STORES)
SESSION_BACK = 30  # a removed session is one of so many operations ago

Place: TypeAlias = tuple[Any, ...]  # a row without its value
Row: TypeAlias = tuple[Any, ...]
Request: TypeAlias = tuple[bytes | str | int, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One written (`value`) or removed (None) row, and the request that does it."""

    store: str
    place: Place
    value: bytes | None
    request: Request


def _session(partition: int, number: int) -> Place:
    return key_of(partition, number), number * 10, number * 10 + 5


@cache
def _drawn(partition: int, number: int) -> tuple[bytes, float]:
    rng = random.Random(partition * 1_000_003 + number)
    return b"k%04d" % rng.randrange(KEYS), rng.random()


def key_of(partition: int, number: int) -> bytes:
    """The key of an operation."""
    return _drawn(partition, number)[0]


@cache
def operation(partition: int, number: int) -> tuple[Change, ...]:
    """Operation `number` of a partition: every store is written, sessions and versions by some operations only."""
    key, draw = _drawn(partition, number)
    value, stamp = b"%d" % number, number + 1
    gone = draw < 0.1
    changes = [
        Change("kv", (key,), None, ("SF.DEL", "kv", key))
        if gone
        else Change("kv", (key,), value, ("SF.PUT", "kv", key, value, "TS", stamp))
    ]
    start = number // 50 * WINDOW_MS
    changes.append(Change("win", (key, start), value, ("SF.WPUT", "win", key, start, value, "TS", stamp)))
    if number % 3 == 0:
        place = _session(partition, number)
        changes.append(Change("ses", place, value, ("SF.SPUT", "ses", *place, value, "TS", stamp)))
    if number % 9 == 0 and number >= SESSION_BACK:
        place = _session(partition, number - SESSION_BACK)
        changes.append(Change("ses", place, None, ("SF.SDEL", "ses", *place)))
    if number % 2 == 0:
        changes.append(
            Change("ver", (key, stamp), None, ("SF.VDEL", "ver", key, "TS", stamp))
            if gone
            else Change("ver", (key, stamp), value, ("SF.VPUT", "ver", key, value, "TS", stamp))
        )
    return tuple(changes)


def digest(rows: Iterable[Row]) -> int:
    """Digest of a set of rows, in any order."""
    found = 0
    for row in rows:
        found ^= hash(row)
    return found


class Folds:
    """Digests of each store of one partition, after each number of operations. Used by any thread."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self._lock = threading.Lock()
        self._rows: dict[str, dict[Place, bytes]] = {name: {} for name in NAMES}
        self._now = dict.fromkeys(NAMES, 0)
        self._digests: dict[str, list[int]] = {name: [0] for name in NAMES}

    def between(self, store: str, first: int, last: int) -> frozenset[int]:
        """The digests after `first` to `last` operations."""
        with self._lock:
            while len(self._digests[store]) <= last:
                self._step(len(self._digests[store]) - 1)
            return frozenset(self._digests[store][first : last + 1])

    def at(self, store: str, number: int) -> int:
        """The digest after so many operations."""
        return next(iter(self.between(store, number, number)))

    def rows(self, store: str, number: int) -> set[Row]:
        """The rows after so many operations, for a message."""
        found: dict[Place, bytes] = {}
        for one in range(number):
            for change in operation(self.partition, one):
                if change.store == store:
                    found.pop(change.place, None)
                    if change.value is not None:
                        found[change.place] = change.value
        return {(*place, value) for place, value in found.items()}

    def wrong(self, store: str, row: Row, attempted: int) -> str:
        """Why no operation below `attempted` can have written this row; empty if one did."""
        value = row[-1]
        number = int(value) if value.isdigit() else attempted
        if number >= attempted:
            return f"{store} {row}: nothing was written yet by operation {value!r}, of {attempted}"
        written = {(*one.place, one.value) for one in operation(self.partition, number) if one.store == store}
        return "" if tuple(row) in written else f"{store} {row}: operation {number} wrote {written}"

    def _step(self, number: int) -> None:
        for change in operation(self.partition, number):
            rows = self._rows[change.store]
            old = rows.pop(change.place, None)
            if old is not None:
                self._now[change.store] ^= hash((*change.place, old))
            if change.value is not None:
                rows[change.place] = change.value
                self._now[change.store] ^= hash((*change.place, change.value))
        for name in NAMES:
            self._digests[name].append(self._now[name])


def differences(found: set[Row], wanted: set[Row]) -> str:
    """Some rows that only one side has."""
    return (
        f"{len(found)} rows, not {len(wanted)}; more: {sorted(found - wanted)[:5]}, less: {sorted(wanted - found)[:5]}"
    )
