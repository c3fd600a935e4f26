"""The one lock of the embedded log: a flock on `<file>.lock`, whose text names its holder and since when it has it.

    "4711 1769000000000 86400000"     process id, milliseconds since the epoch, monotonic milliseconds; empty: free

A process that is stopped (SIGSTOP, a debugger, a frozen container) while it has the lock keeps it: the kernel gives it
to another only when that process goes on or ends. No process can write then, so the waiters name the holder.

    take()                     waits for as long as it takes, in the kernel's queue, and logs the holder
    take(give_up_ms=STUCK_MS)  Unavailable once one holder has had it for so long: for work that is tried again anyway
    take(give_up_ms=SOON_MS)   for requests of a client, which must get an answer within two seconds
    take(give_up_ms=OPEN_MS)   for a program's start, which a holder that gets little processor time must not end

The lock's holder stands in the kernel alone: the lock is that of an open file, which `with` closes, in C, wherever a
signal handler raises (`store/process/interrupts.py`). The text is for people and for waiters, and for a moment it may
still be that of the holder before.

Rules of this file: no SQL. Times are the machine's own, even if the log was given another clock.
"""

from __future__ import annotations

import _thread
import fcntl
import io
import os
import threading
import weakref
from typing import NamedTuple

from standfast.replication.embedded.watch import held_by_program, sqlite_writer
from standfast.replication.log import LockHolder
from standfast.store.clock import SystemClock
from standfast.store.errors import Unavailable
from standfast.store.file_errors import NO_DESCRIPTORS, no_descriptors
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
    """The lock of the log at `path`, for one connection."""

    def __init__(self, path: str) -> None:
        """Raises OSError."""
        self._log = path
        self._path = f"{path}.lock"
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        # The last one; weak, so that a file which no `with` has got to closes by itself.
        self._taken: weakref.ref[io.FileIO] | None = None

    def take(self, *, give_up_ms: int | None = None) -> io.FileIO:
        """Take the lock: it is that of the file returned, and `with` on it releases it. Raises as the header says."""
        taken: io.FileIO | None = None
        wait: _Wait | None = None
        try:
            # Each time: a flock belongs to the open file, so that threads exclude each other, too.
            taken = self._opened()
            if not self._try(taken, give_up_ms):
                wait = _Wait(taken)
                wait.start()
                self._await(wait, give_up_ms)
            os.pwrite(taken.fileno(), _text(), 0)
            self._taken = weakref.ref(taken)
            return taken
        except BaseException:
            # A traceback may keep this frame, and the files with it.
            if wait is not None:
                wait.give_up()
            elif taken is not None:
                taken.close()
            raise

    def leave(self) -> None:
        """Remove the holder's text, just before the release."""
        taken = None if self._taken is None else self._taken()
        if taken is not None and not taken.closed:
            os.pwrite(taken.fileno(), _NOBODY, 0)

    def _opened(self) -> io.FileIO:
        try:
            return io.FileIO(self._path, "r+")
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:
                raise no_descriptors(f"opening {self._path}") from error
            raise Unavailable(
                f"the lock of log {self._log} cannot be opened ({error}): if it was removed, end every process that "
                "uses the log, and start them again"
            ) from error

    def _try(self, file: io.FileIO, give_up_ms: int | None) -> bool:
        """Take the lock if it is free now. Raises Unavailable where another thread waited in vain for this holder."""
        if _free(file):
            return True
        gone = _gone.get(self._log, b"")
        if give_up_ms is None or not gone or gone != os.pread(file.fileno(), _TEXT_BYTES, 0):
            return False
        # Not at once: when the holder ends, waiters that gave up get the lock for a moment, one by one.
        for _ in range(QUICK_LOOKS):
            _clock.sleep_ms(QUICK_LOOK_MS)
            if _free(file):
                return True
        raise self._stuck(holder_of(self._log))

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
                text = os.pread(wait.file.fileno(), _TEXT_BYTES, 0)
                _gone[self._log] = text if holder.pid and not by_program else b""
                raise self._stuck(holder)

    def _stuck(self, holder: LockHolder | None) -> Unavailable:
        return stuck(self._log, holder)


class _Wait:
    """A thread in the kernel's queue for the lock: flock has no time limit, and retries would let others overtake.

    The caller can look at the holder meanwhile and give up. The file is the wait's own from then on.
    """

    def __init__(self, file: io.FileIO) -> None:
        self.file = file
        self._mutex = threading.Lock()
        self._started = self._given_up = False
        self._has = False
        # No Event here and no Thread below: when a signal handler raises within these, they raise errors of their own.
        self._waiting = threading.Lock()
        self._waiting.acquire()

    def start(self) -> None:
        """Start the thread that waits in the queue."""
        self._started = True
        _thread.start_new_thread(self._run, ())

    def done(self, timeout_s: float) -> bool:
        """Whether `file` has the lock by now."""
        return self._has or self._waiting.acquire(timeout=timeout_s)

    def give_up(self) -> None:
        """Release the lock: now if `file` has it, else as soon as the kernel grants it. Twice is fine."""
        with self._mutex:
            self._given_up = True
            if self._has or not self._started:
                self._release()

    def _run(self) -> None:
        fcntl.flock(self.file.fileno(), fcntl.LOCK_EX)
        with self._mutex:
            self._has = True
            self._waiting.release()
            if self._given_up:
                self._release()

    def _release(self) -> None:
        if not self.file.closed:
            if self._has:
                os.pwrite(self.file.fileno(), _NOBODY, 0)  # a holder that was killed has left its text
            self.file.close()


def _free(file: io.FileIO) -> bool:
    """Take the lock if it is free."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
