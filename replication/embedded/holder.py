"""The holder of the embedded log's lock, by its text and the kernel: the process, since when, and its progress.

    "4711 1769000000000 86400000"     the lock's text: process id, milliseconds since the epoch, monotonic milliseconds

    text ────────┐                    each holder writes its own: a new text is progress
    /proc/locks ─┼─> Progress.look() ──> Look: holder, for how long, stopped or not, a program beside our lock
    /proc/PID ───┘                    one look after the other, by one waiter

The text is for people and waiters, and may be that of the holder before: one that was killed leaves its text, and the
next one may not have written its own yet. So the kernel's list decides who the holder is, where it shows one; it shows
no process of another container.

Rules of this file: no SQL, and nothing here waits for the lock. Times are the machine's own.
"""

from __future__ import annotations

import fcntl
import os
from typing import NamedTuple

from standfast.replication.embedded.watch import held_by_program, kernel_locks
from standfast.replication.log import LockHolder
from standfast.store.clock import SystemClock
from standfast.store.errors import Unavailable
from standfast.store.process.holders import PROC, lock_holders

TEXT_BYTES = 64
BLANK = b" " * TEXT_BYTES
STUCK_MS = 1_000  # a holder that is named in a log line and in the status
LONGEST_MS = 60_000  # the longest wait for the lock, and the time without progress after which a holder may be ended
_STOPPED = ("T", "t")  # by a signal, by a debugger

_clock = SystemClock()


class LockLook(NamedTuple):
    """The findings of one look. `still_ms`: the time without progress; `program`: the process of another program that
    has a transaction open on the file, 0 if there is none."""

    text: bytes
    holder: LockHolder | None
    still_ms: int = 0
    stopped: bool = False
    program: int = 0


class LockProgress:
    """Looks of one waiter at one log's lock."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._text: bytes | None = None  # of the last look, and since when
        self._text_ms = 0
        self._program = 0  # SQLite's writer, if another program, and since when
        self._program_ms = 0

    def look(self) -> LockLook:
        """Look now."""
        text, holder, program = _seen(self._path)
        now_ms = _clock.monotonic_ms()
        if program is None:  # by the look before: our lock changes hands all the time while its holders wait for one
            program = self._program
        if text != self._text or holder is None:
            self._text, self._text_ms = text, now_ms
        if program != self._program:
            self._program, self._program_ms = program, now_ms
        if program:  # our lock goes round among processes that wait for the program: that is no progress
            return LockLook(text, holder, now_ms - self._program_ms, program=program)
        if holder is None:
            return LockLook(text, None)
        holder = holder._replace(held_ms=max(holder.held_ms, now_ms - self._text_ms))
        return LockLook(text, holder, holder.held_ms, stopped=is_stopped(holder.pid))


def holder_of(path: str) -> LockHolder | None:
    """Holder of the lock of the log at `path` now; None if the lock is free, or there is no such log."""
    return _seen(path)[1]


def is_stopped(pid: int) -> bool:
    """Whether this process is stopped (state T in ps)."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] in _STOPPED
    except (OSError, IndexError):
        return False


def stuck(path: str, seen: LockLook, *, waited_ms: int = 0) -> Unavailable:
    """The error for a caller that waited for the lock of the log at `path` in vain."""
    if seen.program:
        return held_by_program(path, seen.program, seen.still_ms)  # the holder of our lock waits for it as well
    error = Unavailable(f"log {path}: nothing can be written, its lock {_why(seen, waited_ms)}")
    error.unwritten = True
    return error


def _why(seen: LockLook, waited_ms: int) -> str:
    who = "another thread of this process" if seen.holder is None else str(seen.holder)
    end = "end it with kill -KILL, which rolls its write back"
    if seen.stopped:
        return (
            f"has been held by {who}, and that process is stopped (state T in ps); reads go on. Continue it with "
            f"kill -CONT, or {end}"
        )
    if seen.still_ms >= LONGEST_MS:
        return (
            f"has been held by {who} without any progress; reads go on. Look whether its machine's disk answers, and "
            f"whether its container is frozen; if neither is so, {end}"
        )
    if waited_ms >= LONGEST_MS:
        return f"went round among other processes for {waited_ms / 1_000:.0f} s: let fewer of them write, then retry"
    return f"has been held by {who}, which may just be slow (its disk, its machine); reads go on. Retry"


def parse(text: bytes) -> LockHolder:
    """The holder by the lock's text; of process 0 if it names none."""
    words = text.split()
    if len(words) != 3 or not all(word.isdigit() for word in words):
        return LockHolder(0, 0, 0)
    pid, since_ms, monotonic_ms = map(int, words)
    return LockHolder(pid, since_ms, max(_clock.monotonic_ms() - monotonic_ms, 0))


def own_text() -> bytes:
    """The text of this process, as it gets the lock."""
    return (b"%d %d %d" % (os.getpid(), _clock.wall_ms(), _clock.monotonic_ms())).ljust(TEXT_BYTES)


def _seen(path: str) -> tuple[bytes, LockHolder | None, int | None]:
    """The lock's text, its holder, and SQLite's writer if that is a process of another program.

    No writer, None, if the lock changed hands between the looks at holder and writer: it may be one of ours.
    """
    try:
        fd = os.open(f"{path}.lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return b"", None, 0
    try:
        text = os.pread(fd, TEXT_BYTES, 0)
        locks = kernel_locks(path)
        after = os.pread(fd, TEXT_BYTES, 0)
        holder = _holder(fd, after, None if locks is None else locks.holder)
    finally:
        os.close(fd)
    writer = (locks and locks.writer) or 0
    if writer and text != after:
        return after, holder, None
    return after, holder, 0 if holder is not None and writer == holder.pid else writer


def _holder(fd: int, text: bytes, pid: int | None) -> LockHolder | None:
    """`pid`: the holder by the kernel's list; 0 if it shows none, None if there is no such list."""
    found = parse(text)
    if not pid:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return found if pid is None else LockHolder(0, 0, 0)  # a process of another container
        return None
    if not (PROC / str(pid)).exists():  # it has ended, and a process that it forked has the lock
        pid = next(iter(lock_holders(fd)), 0)
    return found if found.pid == pid else LockHolder(pid, 0, 0)
