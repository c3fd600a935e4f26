"""What the product does to files of a state directory, as calls of the process of that machine.

    files.rename(...) ──> WATCH ──> call file.rename: delayed, refused, or the end of the process before it
    files.lock(...)   ──> FLOCK ──> a lock that the machine's disk releases at the end of the process
    a look at space   ──> SPACE ──> a terabyte is free, or nothing on a full disk

The product tells the watch before a change, so a process ends before a change and never between it and its answer.
Rules of this file: a path outside of the disks is none of the world, and a change within a call of the engine a part of
that call.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from simulator.disk import SimDisk, is_open, place_of
from standfast.store.file_errors import SPACE
from standfast.store.files import FLOCK, WATCH

WRITES = frozenset({"create", "write", "copy"})  # their bytes are there for good once the file is synced
NEEDS_SPACE = frozenset({"make folder", "write", "copy"})
SPACE_BYTES = 1 << 40
CHANGES_NOTHING = frozenset({"sync", "lock", "unlock"})


class SimFiles:
    """The disks of a world, one for each machine."""

    def __init__(self, disks: Sequence[SimDisk]) -> None:
        self._disks = disks
        self._locking: SimDisk | None = None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Stand between the product and its files within the block."""
        with WATCH.replaced(self._watch), FLOCK.replaced(self._flock), SPACE.replaced(self._space):
            yield

    def _of(self, path: Path) -> SimDisk | None:
        text = str(path)  # is_relative_to takes ten times as long
        return next((one for one in self._disks if text.startswith(f"{one.root}/") or path == one.root), None)

    def _space(self, path: Path) -> tuple[int, int]:
        disk = self._of(path)
        return (0 if disk is not None and disk.refuses == errno.ENOSPC else SPACE_BYTES), SPACE_BYTES

    def _watch(self, kind: str, path: Path) -> None:
        disk = self._of(path)
        if disk is not None and not disk.in_call:
            disk.run(f"file.{kind.replace(' ', '_')}", lambda: _change(disk, kind, path))
        self._locking = disk

    def _flock(self, handle: int, operation: int) -> None:
        disk = self._locking  # the watch was told of this lock just now
        if disk is None:
            fcntl.flock(handle, operation)
        elif operation & fcntl.LOCK_UN:
            disk.locks.pop(place_of(handle), None)
        else:
            place = place_of(handle)
            holder = disk.locks.get(place, handle)
            if holder != handle and is_open(holder, place):
                raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
            disk.locks[place] = handle


def _change(disk: SimDisk, kind: str, path: Path) -> None:
    refused = disk.refuses and kind not in CHANGES_NOTHING
    if disk.refuses == errno.ENOSPC:
        refused = kind in NEEDS_SPACE or (kind == "create" and not path.exists())
    if refused:
        raise OSError(disk.refuses, os.strerror(disk.refuses), str(path))
    if kind in WRITES:
        disk.unsynced[path] = None
    elif kind in ("sync", "remove"):
        disk.unsynced.pop(path, None)
