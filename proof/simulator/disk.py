"""The disk of a simulated machine: real files in a folder in memory, and its condition.

    power is lost ──> each database loses a part of what was written since its last flush (SYNCED has the size then),
                      and each file a part of what was written and not synced; renames and removals stay done
    full, read-only, failing ──> each change is refused, with this errno; slow ──> each call waits first

A process that ends keeps all that it wrote. Rules of this file: it knows files and their names, and no format.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from simulator.calls import Calls
from simulator.draws import Draws
from standfast.store.file_errors import no_room

T = TypeVar("T")

# A closed database is copied by names (standfast.store.rocks.files): a file of this one is copied and never linked.
ROWS_FILE = "OPTIONS-000001"
SYNCED = "SYNCED"  # the bytes of the rows that a loss of power leaves; absent: all


class OpenDatabase(Protocol):
    """What a disk asks of an engine that is open on it."""

    path: Path

    def look_again(self) -> None:
        """Read the files again, whose bytes were damaged."""
        ...

    def let_go(self) -> None:
        """Close the files: the process has ended."""
        ...


class SimDisk:
    """One machine's disk; it outlives processes, of which one at a time runs. Its calls go through `calls`."""

    def __init__(self, root: Path, calls: Calls) -> None:
        self.root = root
        self._calls = calls
        self.refuses = 0  # the errno of each change: ENOSPC, EROFS or EIO; 0: none
        self.slow_ms = 0.0
        self.opened: list[OpenDatabase] = []
        self.unsynced: dict[Path, None] = {}  # files that were written and not synced, in this order
        self.locks: dict[tuple[int, int], int] = {}  # the handle that has the lock of a file, by device and inode
        self.in_call = False

    def run(self, name: str, effect: Callable[[], T]) -> T:
        """A call of the machine's process. Whatever the effect does to files is a part of it."""

        def call() -> T:
            self.in_call = True
            try:
                return effect()
            finally:
                self.in_call = False

        if self.slow_ms:
            self._calls.wait(self.slow_ms)
        return self._calls.run(name, call)

    def refuse(self, where: str) -> None:
        """Raise NoRoom, as RocksDB's engine does, if the disk takes no writes."""
        if self.refuses:
            raise no_room(where, self.refuses)  # without the folder: free bytes of the real disk are in its text

    def end_process(self) -> None:
        """The machine's process has ended: its files are closed, and with that its locks are free."""
        for one in list(self.opened):
            one.let_go()
        self.opened.clear()
        self.locks.clear()  # their handles are closed with the world: an object of the process may still close one

    def lose_power(self, draws: Draws, *question: str | int) -> None:
        """Cut what was not synced off at a drawn byte. The machine's process has ended before."""
        assert not self.opened, "the process of this machine still runs"
        least = {path: 0 for path in self.unsynced if path.is_file()}
        for path in sorted(self.root.rglob(ROWS_FILE)):
            noted = path.with_name(SYNCED)
            if noted.exists():
                least[path] = int(noted.read_text(encoding="ascii"))
        for number, (path, synced) in enumerate(least.items()):
            # All and nothing are kept now and then.
            kept = min(max(1.5 * draws.number(*question, number) - 0.25, 0), 1)
            os.truncate(path, synced + round(kept * (path.stat().st_size - synced)))
        self.unsynced.clear()

    def damage(self, path: Path, at: int) -> None:
        """Flip a bit of the byte at this place of a file."""
        content = bytearray(path.read_bytes())
        content[at] ^= 1
        path.write_bytes(content)
        for one in self.opened:
            if one.path == path.parent:
                one.look_again()


def place_of(handle: int) -> tuple[int, int]:
    """Device and inode of an open file."""
    found = os.fstat(handle)
    return found.st_dev, found.st_ino


def is_open(handle: int, place: tuple[int, int]) -> bool:
    """Whether a handle is still that of this file: it may be closed, and its number another file's by now."""
    try:
        return place_of(handle) == place
    except OSError:
        return False
