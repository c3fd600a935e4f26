"""Writes into a write buffer without a store, and a plain buffer to compare with.

    put, log, write, write_headed     one entry of one mode, by a writer that checks nothing
    PlainBuffer                       rows and changes in dictionaries, copied for each savepoint

Rules of this file: no store; the plain buffer shares no code with those that it is compared with.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from standfast.store.buffer.buffer import EACH, HEADED, LATEST, UNLOGGED, Buffer, Writer


def writer(buffer: Buffer, store: str, mode: int, *, stamped: bool = False) -> Writer:
    """A writer without limits."""
    made = buffer.writer(store, lambda *_: None)
    made.mode, made.stamped, made.most_bytes = mode, stamped, 1 << 40
    return made


def put(buffer: Buffer, family: str, key: bytes, row: bytes | None) -> None:
    """A row without a change."""
    writer(buffer, family, UNLOGGED).enter(family, {key: row}, key, row, 0)


def log(buffer: Buffer, store: str, key: bytes, value: bytes | None, timestamp: int, *, latest_only: bool) -> None:
    """A change without a row."""
    writer(buffer, store, LATEST if latest_only else EACH).enter(store, {}, key, value, timestamp)


def write(
    buffer: Buffer, family: str, key: bytes, row: bytes | None, store: str, value: bytes | None, timestamp: int
) -> None:
    """A row and its change, the last of the key."""
    writer(buffer, store, LATEST).enter(family, {key: row}, key, value, timestamp)


def write_headed(
    buffer: Buffer, family: str, key: bytes, row: bytes | None, store: str, value: bytes | None, timestamp: int
) -> None:
    """A row that is timestamp and value."""
    writer(buffer, store, HEADED, stamped=True).enter(family, {key: row}, key, value, timestamp)


class PlainBuffer:
    """What a buffer should hold."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[bytes, bytes | None]] = {}
        self.changes: dict[str, dict[Any, Any]] = {}
        self._marks: list[Any] = []

    def write(
        self, family: str, key: bytes, row: bytes | None, store: str, value: bytes | None, timestamp: int, *, each: bool
    ) -> None:
        """A row and its change."""
        self.rows.setdefault(family, {})[key] = row
        changes = self.changes.setdefault(store, {})
        changes[len(changes) if each else key] = (key, value, timestamp, ())

    def begin(self) -> None:
        """Open a savepoint."""
        self._marks.append((deepcopy(self.rows), deepcopy(self.changes)))

    def rollback(self) -> None:
        """End it, without the writes since."""
        self.rows, self.changes = self._marks.pop()

    def release(self) -> None:
        """End it."""
        self._marks.pop()

    @property
    def size_bytes(self) -> int:
        """100 bytes for each row and each change beside their own."""
        rows = [row for rows in self.rows.values() for row in rows.items()]
        changes = [change[:2] for changes in self.changes.values() for change in changes.values()]
        return sum(100 + len(key) + len(value or b"") for key, value in [*rows, *changes])
