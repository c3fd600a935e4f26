"""The one lock of the embedded log: a flock on `<file>.lock`, whose text names its holder and since when it has it.

    "4711 1769000000000 86400000"     process id, milliseconds since the epoch, monotonic milliseconds; empty: free

A process that is stopped (SIGSTOP, a debugger, a frozen container) while it has the lock keeps it: the kernel gives it
to another only when that process goes on or ends. No process can write then, so the waiters name the holder.

    hold()                     waits for as long as it takes, in the kernel's queue, and logs the holder
    hold(give_up_ms=STUCK_MS)  Unavailable once one holder has had it for so long: for work that is tried again anyway
    hold(give_up_ms=SOON_MS)   for requests of a client, which must get an answer within two seconds
    hold(give_up_ms=OPEN_MS)   for a program's start, which a holder that gets little processor time must not end

Rules of this file: no SQL. Times are the machine's own, even if the log was given another clock.
"""

from __future__ import annotations

import _thread
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from standfast.replication.embedded.watch import held_by_program, sqlite_writer
from standfast.replication.log import LockHolder
from standfast.store.clock import SystemClock
from standfast.store.errors import Closed, Unavailable
from standfast.store.log import as_event, logger

STUCK_MS = 1_000
SOON_MS = 1_500
OPEN_MS = 5_000
LOOK_S = 0.25
QUICK_LOOKS, QUICK_LOOK_MS = 10, 10
SAY_AGAIN_LOOKS = 120  # half a minute
_TEXT_BYTES = 64
_NOBODY = b" " * _TEXT_BYTES

_clock = SystemClock()
# Texts of holders for which a thread of this process waited in vain, by log: other threads need not wait for the same.
_gone: dict[str, bytes] = {}


class LogLock:
    """The lock of one connection; one thread has it at a time."""

    def __init__(self, path: str) -> None:
        """Raises OSError."""
        self._log = path
        self._path = f"{path}.lock"
        self._fd = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        # A flock belongs to the open file: two threads would both have it. Reentrant only for its `_is_owned`.
        self._turn: Any = threading.RLock()
        self._tried = False  # whether `_fd` may have the lock
        self._wait: _Wait | None = None  # the queued open file that has the lock or waits for it

    @contextmanager
    def hold(self, *, give_up_ms: int | None = None) -> Iterator[None]:
        """Have the lock. Raises Unavailable as the header says."""
        try:
            if not self._turn.acquire(timeout=-1 if give_up_ms is None else 2 * give_up_ms / 1_000):
                raise self._stuck(holder_of(self._log))
            if self._fd < 0:
                raise Closed(f"log {self._log} was closed: open a new one")
            os.pwrite(self._lock(give_up_ms), _text(), 0)
            yield
        finally:
            # A signal handler may raise after any call, in here as well: then the second call does the rest.
            try:
                self._release()
            finally:
                self._release()

    def close(self) -> None:
        """Close the lock's file. Twice is fine."""
        fd, self._fd = self._fd, -1  # another file soon has this number, and our text must not be written to that
        if fd >= 0:
            os.close(fd)

    def _release(self) -> None:
        """Release the lock, the place in the queue and the turn, if this thread has them; each step may be repeated."""
        if not self._turn._is_owned():
            return
        if self._wait is not None:
            self._wait.give_up()
            self._wait = None
        if self._tried:
            if self._fd >= 0:  # else a close has released the lock with the file
                os.pwrite(self._fd, _NOBODY, 0)
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            self._tried = False
        self._turn.release()

    def _lock(self, give_up_ms: int | None) -> int:
        """Get the lock; returns the descriptor that has it."""
        if self._try():
            return self._fd
        gone = _gone.get(self._log, b"")
        if give_up_ms is not None and gone and gone == os.pread(self._fd, _TEXT_BYTES, 0):
            # Not at once: when the holder ends, waiters that gave up get the lock for a moment, one by one.
            for _ in range(QUICK_LOOKS):
                _clock.sleep_ms(QUICK_LOOK_MS)
                if self._try():
                    return self._fd
            raise self._stuck(holder_of(self._log))
        try:
            self._wait = _Wait(self._path)
        except OSError as error:  # our own file is still open, but the next process would lock a different file
            raise Unavailable(
                f"the lock of log {self._log} cannot be opened ({error}): if it was removed, end every process that "
                "uses the log, and start them again"
            ) from error
        self._wait.start()
        self._await(self._wait, give_up_ms)
        return self._wait.fd

    def _try(self) -> bool:
        self._tried = True
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._tried = False
        return self._tried

    def _await(self, wait: _Wait, give_up_ms: int | None) -> None:
        nameless = looks = 0
        said = -SAY_AGAIN_LOOKS
        while not wait.done(LOOK_S):
            looks += 1
            holder, _, by_program = holders_of(self._log)
            nameless = nameless + 1 if holder is not None and not holder.pid else 0
            held_ms = 0 if holder is None else max(holder.held_ms, nameless * LOOK_S * 1_000)
            if by_program:  # processes that wait for the program's transaction hold our lock by turns, none for long
                held_ms = max(held_ms, looks * LOOK_S * 1_000)
            if holder is None or held_ms < STUCK_MS:
                continue  # no holder is stuck: many processes wait, and the lock goes round
            if looks - said >= SAY_AGAIN_LOOKS:
                said = looks
                logger.warning("%s", self._stuck(holder), extra=as_event("log_lock_stuck"))
            if give_up_ms is not None and held_ms >= give_up_ms:
                _gone[self._log] = os.pread(self._fd, _TEXT_BYTES, 0) if holder.pid and not by_program else b""
                raise self._stuck(holder)

    def _stuck(self, holder: LockHolder | None) -> Unavailable:
        return stuck(self._log, holder)


class _Wait:
    """A thread in the kernel's queue for the lock: flock has no time limit, and retries would let others overtake.

    The caller can look at the holder meanwhile and give up. The thread opens the file once more: of two waits on one
    open file, a release by the first would take the lock from the second.
    """

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._mutex = threading.Lock()
        self._given_up = False
        self._has = False
        # No Event here and no Thread below: when a signal handler raises within these, they raise errors of their own.
        self._waiting = threading.Lock()
        self._waiting.acquire()

    def start(self) -> None:
        """Start the thread that waits in the queue."""
        _thread.start_new_thread(self._run, ())

    def done(self, timeout_s: float) -> bool:
        """Whether `fd` has the lock by now."""
        return self._has or self._waiting.acquire(timeout=timeout_s)

    def give_up(self) -> None:
        """Release the lock: now if `fd` has it, else as soon as the kernel grants it. Twice is fine."""
        with self._mutex:
            self._given_up = True
            if self._has and self.fd >= 0:
                os.pwrite(self.fd, _NOBODY, 0)
                self._close()

    def _run(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        with self._mutex:
            self._has = True
            self._waiting.release()
            if self._given_up and self.fd >= 0:
                os.pwrite(self.fd, _NOBODY, 0)  # a holder that was killed has left its text
                self._close()

    def _close(self) -> None:
        fd, self.fd = self.fd, -1  # first, so that a second call cannot close another file of that number
        os.close(fd)


def stuck(path: str, holder: LockHolder | None) -> Unavailable:
    """The error for a caller that waited for the lock of the log at `path` in vain; `holder` None: another thread."""
    who = "another thread of this process" if holder is None else str(holder)
    found = holders_of(path)
    if found.sure:
        return held_by_program(path, found.writer)  # the holder of our lock waits for the program as well
    error = Unavailable(
        f"log {path}: nothing can be written, its lock has been held by {who}; reads go on. If that process "
        "is stopped (state T in ps), continue it with kill -CONT, or end it with kill -KILL, which rolls its write "
        "back"
    )
    error.unwritten = True
    return error


def holder_of(path: str) -> LockHolder | None:
    """Holder of the lock of the log at `path` now; None if the lock is free, or there is no such log."""
    return _look(path, programs=False).holder


class Holders(NamedTuple):
    """Holder of our lock, and id of the process that has SQLite's write lock; `sure`: it is another program."""

    holder: LockHolder | None = None
    writer: int | None = None
    sure: bool = False


def holders_of(path: str) -> Holders:
    """Holders of the locks of the log at `path` now."""
    return _look(path, programs=True)


def _look(path: str, *, programs: bool) -> Holders:
    try:
        fd = os.open(f"{path}.lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return Holders()
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _parse(os.pread(fd, _TEXT_BYTES, 0))
            writer = sqlite_writer(path) if programs else None
            if writer == holder.pid:
                return Holders(holder)
            # Our lock may have changed hands between the two looks, unless one holder has had it for long.
            return Holders(holder, writer, sure=writer is not None and holder.held_ms >= STUCK_MS // 4)
        writer = sqlite_writer(path) if programs else None
        return Holders(None, writer, sure=writer is not None)  # none of our processes writes beside LOCK_SH
    finally:
        os.close(fd)


def _text() -> bytes:
    return (b"%d %d %d" % (os.getpid(), _clock.wall_ms(), _clock.monotonic_ms())).ljust(_TEXT_BYTES)


def _parse(text: bytes) -> LockHolder:
    words = text.split()
    if len(words) != 3 or not all(word.isdigit() for word in words):
        return LockHolder(0, 0, 0)
    pid, since_ms, monotonic_ms = map(int, words)
    return LockHolder(pid, since_ms, max(_clock.monotonic_ms() - monotonic_ms, 0))
