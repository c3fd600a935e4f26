"""Counters that a process and its lease process share: steps of work one way, renewals the other way.

    word      written by          meaning
    WORK      this process        rounds of the background thread, tasks it opened
    LOOP      this process        rounds of the application's loop, records it processed
    ALLOWED   this process        milliseconds that a native call under way may take beyond `max_stall`
    TRIES     the lease process   attempts to renew, successful or not
    RENEWED   the lease process   renewals that the log took
    LOST      the lease process   attempts that the log refused: the lease had run out
    STALLED   the lease process   1 while it does not renew because this process makes no progress
    STALLS    the lease process   times that it began to withhold renewals
    GAP       the lease process   the longest time between two renewals so far, milliseconds
    LOOKED    this process        when it last looked at the placement, by the machine's monotonic clock
    further   this process        LOOP of each of its worker processes, of a supervisor

Rules of this file: memory alone. One process writes each word, and reading it needs neither a lock nor the other
process's interpreter.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, MutableSequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

WORK, LOOP, ALLOWED, TRIES, RENEWED, LOST, STALLED, STALLS, GAP, LOOKED = range(10)
_WORDS, _WORD_BYTES = 10, 8
REPLAY_BYTES_PER_MS = 4_096  # measured: reopening replays 26 MB of WAL a second; a fifth of it on a crowded machine


class LeaseProgress:
    """The words; a supervisor has one more for each of its `workers`.

    `shared` makes a file descriptor, by which other processes can map them.
    """

    def __init__(self, *, shared: bool = False, fd: int = -1, workers: int = 0) -> None:
        size = (_WORDS + workers) * _WORD_BYTES if fd < 0 else os.fstat(fd).st_size
        if shared and fd < 0:
            # Closed on exec: only the lease process gets it, and no program that the application starts.
            fd = os.memfd_create("standfast-lease", os.MFD_CLOEXEC)
            os.ftruncate(fd, size)
        self.fd = fd
        self.on_stall: Callable[[str], None] = lambda _why: None  # called in the thread that watches
        self._memory = None if fd < 0 else mmap.mmap(fd, size)
        self.words: MutableSequence[int] = (
            array("Q", bytes(size))
            if self._memory is None
            else cast("MutableSequence[int]", memoryview(self._memory).cast("Q"))
        )

    def step(self, part: int) -> None:
        """Count a step of a part's work; the watch of a part begins with its first step."""
        self.words[part] += 1

    def end(self, part: int) -> None:
        """End the watch of a part that has nothing more to do."""
        self.words[part] = 0

    @contextmanager
    def replaying(self, directory: Path) -> Iterator[None]:
        """Allow the time that replaying this task's WAL takes by its size: the open holds the interpreter meanwhile."""
        self.words[ALLOWED] = replay_allowance_ms(_wal_bytes(directory))
        try:
            yield
        finally:
            self.words[ALLOWED] = 0
            self.step(WORK)  # the open was progress: the watch begins again from here

    def counts(self) -> dict[str, int]:
        """Steps of each part, by the part's name in reports."""
        return {"background work": self.words[WORK], "the application's loop": self.words[LOOP]}

    def loops(self) -> list[int]:
        """Steps of the loop of this process, or of each of its workers; 0 for one that does not run."""
        return list(self.words[_WORDS:]) or [self.words[LOOP]]

    def note_loops(self, counts: Iterable[int]) -> None:
        """Take over the steps of the workers' loops, in the order of their numbers."""
        for number, count in enumerate(counts):
            self.words[_WORDS + number] = count

    def close(self) -> None:
        """Release the descriptor; the words stay readable in this process."""
        fd, self.fd = self.fd, -1  # first: another thread that closes it, too, would close a later file of this number
        if fd >= 0:
            os.close(fd)


def replay_allowance_ms(wal_bytes: int) -> int:
    """Time beyond `max_stall` that an open may take to replay a WAL of this size, in ms."""
    return wal_bytes // REPLAY_BYTES_PER_MS


def _wal_bytes(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total
