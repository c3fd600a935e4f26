"""Room on disk: writes end at a floor, so that accepted writes can be committed and no write meets a full disk.

    free bytes  ────────────── floor ────────────── reserve ────────────── 0
    puts        until here: DiskFull
    deletes, commits, flushes   go on ───> until here: DiskFull, before any part of them began

    look      statvfs of each place, now and then in the background                  ──> full, why; room
    grant     a write buffer asks for credit of some bytes, all buffers share the room   no room left: another look

Free bytes fall long after a write was accepted: at its commit, its flush, the log's next checkpoint. So the bytes that
buffers hold, or may take by their credit, are subtracted from the free bytes; between two looks the guard grants no
more than was free at the first. A full disk counts as full until an eighth of the floor is free above it.

Rules of this file: the guard asks the file system and decides about numbers; callers refuse the writes. Any thread may
use it: `full` and `spaces` are read without the lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakSet

from standfast.store.errors import DiskFull
from standfast.store.log import as_event, logger

# Bytes on disk for each buffered byte, at most: a buffer counts row and change, and either is written twice on the way
# (RocksDB: WAL and table file; the embedded log: its WAL and the file).
AMPLIFICATION: Final = 2
CREDIT_BYTES: Final = 64 << 10  # the least that a buffer gets at a time, so that it seldom asks
COMMIT_BYTES: Final = 64 << 10  # pages of the embedded log that any commit writes
RESUME_SHARE: Final = 8  # this share of the floor must be free above it before writes go on
RESERVE_SHARE: Final = 4  # commits and deletes leave this share of the floor, too: RocksDB and the log also write alone


class Borrower(Protocol):
    """A write buffer as the guard sees it."""

    @property
    def claim_bytes(self) -> int:
        """Bytes that the buffer holds, or may take without asking again."""
        ...

    def revoke(self) -> None:
        """Make the buffer ask before its next write."""
        ...


@dataclass(frozen=True, slots=True)
class Space:
    """One place at the last look; `what` names it ("state directory", "log"). An `error` counts as no space at all."""

    what: str
    path: Path
    free_bytes: int
    total_bytes: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class DiskState:
    """A guard at one moment; `full` as in the guard, `spaces` with the least free one first."""

    floor_bytes: int
    full: str
    spaces: tuple[Space, ...]


class DiskGuard:
    """Watches the places that one process writes to. With a floor of 0 it measures and refuses nothing."""

    def __init__(self, places: Mapping[str, Path], floor_bytes: int = 0) -> None:
        self.floor_bytes = floor_bytes
        self.full = ""  # why new writes are refused; empty while there is room
        self.spaces: tuple[Space, ...] = ()  # the least free one first
        self._places = dict(places)
        self._room = 0  # bytes that may still be granted before the next look
        self._borrowers: WeakSet[Borrower] = WeakSet()  # weak: the buffer of a task that failed must not claim for ever
        self._lock = threading.Lock()

    @property
    def state(self) -> DiskState:
        """The guard's state, for reports."""
        return DiskState(self.floor_bytes, self.full, self.spaces)

    @property
    def free_bytes(self) -> int | None:
        """Free bytes of the place that has the least; None before the first look."""
        return self.spaces[0].free_bytes if self.spaces else None

    @property
    def reserve_bytes(self) -> int:
        """Free bytes below which no write, delete or commit begins."""
        return self.floor_bytes // RESERVE_SHARE

    @property
    def resume_bytes(self) -> int:
        """Free bytes from which refused writes go on."""
        # Above the floor itself, so that a disk near its floor does not flip between full and open at each look.
        return self.floor_bytes + self.floor_bytes // RESUME_SHARE

    def watch(self, borrower: Borrower) -> None:
        """Count the borrower's claim from now on."""
        with self._lock:
            self._borrowers.add(borrower)

    def forget(self, borrower: Borrower) -> None:
        """Stop counting a borrower that writes no more."""
        with self._lock:
            self._borrowers.discard(borrower)

    def look(self) -> None:
        """Measure the places and decide whether writes go on. Never raises: an unreadable place counts as full."""
        spaces = self._measure()  # outside of the lock: statvfs of a hung mount would hold every writer
        with self._lock:
            self._take(spaces)

    def grant(self, wanted_bytes: int) -> int:
        """Credit for a write: at least `wanted_bytes`. Raises DiskFull, and then no buffer gets any credit."""
        if not self.full and wanted_bytes > self._room:
            self.look()
        with self._lock:
            if not self.full and wanted_bytes <= self._room:
                credit = max(wanted_bytes, min(CREDIT_BYTES, self._room))
                self._room -= credit
                return credit
            if not self.full:
                self._fill(f"has no room for {wanted_bytes} bytes more above its floor of {self.floor_bytes}")
            raise DiskFull(self.full)

    def check_reserve(self, wanted_bytes: int, what: str) -> None:
        """Raise DiskFull, before `what` begins, unless `wanted_bytes` leave the reserve free by a new measurement."""
        if not self.floor_bytes:
            return
        least = self._measure()[0]  # the buffers' claims are left out: every commit comes here
        needed = self.reserve_bytes + AMPLIFICATION * wanted_bytes + COMMIT_BYTES
        if least.free_bytes < needed:
            raise DiskFull(
                f"{what} needs {needed} bytes free, {self.reserve_bytes} of them as a reserve, and {least.what} "
                f"{least.path} {_has(least)}: nothing was changed; free space there"
            )

    # -- inside -------------------------------------------------------------------------------------------------------

    def _measure(self) -> tuple[Space, ...]:
        found = (_space(what, path) for what, path in self._places.items())
        return tuple(sorted(found, key=lambda one: one.free_bytes))

    def _take(self, spaces: tuple[Space, ...]) -> None:
        least = spaces[0]
        if least.error and not (self.spaces and self.spaces[0].error):
            logger.error(
                "%s %s cannot be measured: %s",
                least.what,
                least.path,
                least.error,
                extra=as_event("disk_unmeasured", path=str(least.path)),
            )
        self.spaces = spaces
        if not self.floor_bytes:
            return
        claims = AMPLIFICATION * sum(one.claim_bytes for one in self._borrowers)
        over = least.free_bytes - claims - self.floor_bytes
        self._room = max(over // AMPLIFICATION, 0)
        if over <= 0 or (self.full and least.free_bytes - claims < self.resume_bytes):
            claimed = f", {claims} of them for writes that are accepted already" if claims else ""
            self._fill(f"{_has(least)}{claimed}; the floor (disk_floor) is {self.floor_bytes}")
        elif self.full:
            self.full = ""
            logger.warning(
                "%s %s has %d bytes free: writes go on",
                least.what,
                least.path,
                least.free_bytes,
                extra=as_event("writes_resumed", path=str(least.path), free_bytes=least.free_bytes),
            )

    def _fill(self, why: str) -> None:
        least, before = self.spaces[0], self.full
        self._room = 0
        self.full = (
            f"{least.what} {least.path} {why}: nothing new is written until {self.resume_bytes} bytes are free; reads, "
            "deletes and commits go on. Free space there, or lower the floor"
        )
        if not before:
            logger.error("writes are refused: %s", self.full, extra=as_event("writes_refused", reason="disk_full"))
            # From every buffer at once: credit granted before would let a fast writer pass the floor.
            for borrower in self._borrowers:
                borrower.revoke()


def _has(space: Space) -> str:
    return f"cannot be measured ({space.error})" if space.error else f"has {space.free_bytes} bytes free"


def _space(what: str, path: Path) -> Space:
    """Measure a place; one that does not exist yet is measured at its nearest existing parent."""
    try:
        while not path.exists() and path != path.parent:
            path = path.parent
        found = os.statvfs(path)
    except OSError as error:
        return Space(what, path, 0, 0, str(error))
    return Space(what, path, found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)
