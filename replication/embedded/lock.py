"""The one lock of the embedded log: a flock on `<file>.lock`, with a text for other processes (holder.py).

    0   "4711 1769000000000 86400000"   the holder and since when it has the lock; blank: free
    64  "86400250 4712 140221"          the last waiter: monotonic milliseconds of its last look, its ids; blank: none

Waiters stand in the kernel's queue, in their order. The kernel hands the lock to none of them: it wakes the first one,
and a process that asks before that one runs overtakes it. So a process that sees others wait does not try first, and
one that had the lock just now gives way until another one has it. Both are courtesies: a waiter that is stopped or
killed keeps no other process from the lock.

    PATIENT   a commit, a call of the application
    AGAIN     work that is tried again anyway (leases, claims): its thread also reads for standbys
    START     a program's start, which must not end because a person looks at a process with a debugger
    SOON      requests of a client, which must get an answer within two seconds, and a close

A wait lasts as long as the holders make progress, at most LONGEST_MS, and then raises Unavailable. A process that is
stopped (SIGSTOP, a debugger) while it has the lock makes none: the kernel gives the lock to another only when that
process goes on or ends.

The lock's holder stands in the kernel alone: the lock is that of an open file, which `with` closes, in C, wherever a
signal handler raises (`store/process/interrupts.py`). It is unlocked before, since a process that was started just then
may have the file open as well.

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

from standfast.replication.embedded.holder import (
    BLANK,
    LONGEST_MS,
    STUCK_MS,
    TEXT_BYTES,
    LockLook,
    LockProgress,
    own_text,
    stuck,
)
from standfast.store.clock import SystemClock
from standfast.store.errors import Closed, Unavailable
from standfast.store.file_errors import NO_DESCRIPTORS, no_descriptors
from standfast.store.log import as_event, logger
from standfast.store.process import forks

LOOK_S = 0.25
SAY_AGAIN_MS = 30_000
STAMP_BYTES = 64
WAITING_MS = 500  # how old a waiter's stamp may be: some waiter has looked since then
GIVE_WAY_MS = 20
GIVE_WAY_LOOK_MS = 0.1
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW

_clock = SystemClock()


class Patience(NamedTuple):
    """How long a wait lasts beside a holder that is stopped, and beside one that makes no progress, in ms."""

    stopped_ms: int
    still_ms: int

    def left_ms(self, seen: LockLook) -> int:
        """How much longer to wait."""
        return (self.stopped_ms if seen.stopped or seen.program else self.still_ms) - seen.still_ms


PATIENT = Patience(LONGEST_MS, LONGEST_MS)
AGAIN = Patience(STUCK_MS, LONGEST_MS)
START = Patience(5_000, LONGEST_MS)
SOON = Patience(1_500, 1_500)


class LogLock:
    """The lock of the log at `path`, for one connection. In the child of a fork it is closed."""

    def __init__(self, path: str) -> None:
        """Raises OSError."""
        self._log = path
        self._path = f"{path}.lock"
        os.close(os.open(self._path, _FLAGS | os.O_CREAT, 0o600))
        # The last one; weak, so that a file which no `with` has got to closes by itself.
        self._taken: weakref.ref[io.FileIO] | None = None
        self._left_ms = 0  # when this connection last had the lock
        self._ignored = b""  # stamp of a waiter for which this connection gave way in vain
        self._forked = False
        forks.dies_in_child(self)

    def take(self, patience: Patience = PATIENT) -> io.FileIO:
        """Take the lock: it is that of the file returned, and `with` on it releases it. Raises Unavailable, Closed."""
        if self._forked:
            raise Closed(f"the lock of log {self._log} is that of the process that forked this one: open the log here")
        taken: io.FileIO | None = None
        wait: _Wait | None = None
        try:
            # Each time: a flock belongs to the open file, so that threads exclude each other, too.
            taken = self._opened()
            if self._others_wait(taken) or not _free(taken):
                wait = _Wait(taken)
                wait.start()
                self._await(wait, patience)
            _write(taken, own_text(), 0)
            self._taken = weakref.ref(taken)
            return taken
        except BaseException:
            # A traceback may keep this frame, and the files with it.
            if wait is not None:
                wait.give_up()
            elif taken is not None:
                taken.close()
            raise

    def leave(self, *, whole: bool = True) -> None:
        """Remove the holder's text, just before the release; unlock if the `whole` work under the lock is done."""
        taken = None if self._taken is None else self._taken()
        if taken is not None and not taken.closed:
            _write(taken, BLANK, 0)
            self._left_ms = _clock.monotonic_ms()
            if whole:
                fcntl.flock(taken.fileno(), fcntl.LOCK_UN)

    def forked(self) -> None:
        """As in `forks.Owned`; its files are closed as handles."""
        self._forked = True

    def _opened(self) -> io.FileIO:
        file: io.FileIO | None = None
        try:
            with forks.taking:
                # In one step of the interpreter: no signal handler runs between opening the file and keeping it.
                (file,) = map(io.FileIO, map(os.open, (self._path,), (_FLAGS,)), ("r+",))
                forks.close_in_child(file)
                return file
        except BaseException as error:
            if file is not None:
                file.close()
            if not isinstance(error, OSError):
                raise
            if error.errno in NO_DESCRIPTORS:
                raise no_descriptors(f"opening {self._path}") from error
            raise Unavailable(
                f"the lock of log {self._log} cannot be opened ({error}): if it was removed, or replaced by a link, "
                "end every process that uses the log, and start them again"
            ) from error

    def _others_wait(self, file: io.FileIO) -> bool:
        """Whether other processes wait for the lock; gives way to them after a turn of this connection."""
        text, stamp = _read(file)
        if not _is_fresh(stamp):
            return False
        end_ms = self._left_ms + GIVE_WAY_MS
        while stamp != self._ignored and not text.strip() and _clock.monotonic_ms() < end_ms:
            _clock.sleep_ms(GIVE_WAY_LOOK_MS)
            text, _ = _read(file)
            if _clock.monotonic_ms() >= end_ms:
                self._ignored = stamp  # of a process that was stopped or killed
        return True

    def _await(self, wait: _Wait, patience: Patience) -> None:
        progress = LockProgress(self._log)
        began_ms = _clock.monotonic_ms()
        said_ms: int | None = None
        stamp = b""
        while True:
            now_ms = _clock.monotonic_ms()
            last = _read(wait.file)[1]
            # The last waiter's stamp stays: the queue is empty when that one has had the lock.
            if not _is_fresh(last) or last == stamp or not stamp:
                stamp = (b"%d %d %d" % (now_ms, os.getpid(), threading.get_ident())).ljust(STAMP_BYTES)
                _write(wait.file, stamp, TEXT_BYTES)
            if wait.done(LOOK_S):
                if _read(wait.file)[1] == stamp:
                    _write(wait.file, b" " * STAMP_BYTES, TEXT_BYTES)
                return
            seen = progress.look()
            waited_ms = _clock.monotonic_ms() - began_ms
            if seen.still_ms >= STUCK_MS and (said_ms is None or now_ms - said_ms >= SAY_AGAIN_MS):
                said_ms = now_ms
                logger.warning("%s", stuck(self._log, seen), extra=as_event("log_lock_stuck"))
            if waited_ms >= LONGEST_MS or (seen.still_ms and patience.left_ms(seen) <= 0):
                raise stuck(self._log, seen, waited_ms=waited_ms)


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
                _write(self.file, BLANK, 0)  # a holder that was killed has left its text
                fcntl.flock(self.file.fileno(), fcntl.LOCK_UN)
            self.file.close()


def _free(file: io.FileIO) -> bool:
    """Take the lock if it is free."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(file: io.FileIO) -> tuple[bytes, bytes]:
    """The holder's text, and the stamp of the last waiter."""
    found = os.pread(file.fileno(), TEXT_BYTES + STAMP_BYTES, 0)
    return found[:TEXT_BYTES], found[TEXT_BYTES:]


def _write(file: io.FileIO, text: bytes, at: int) -> None:
    try:
        os.pwrite(file.fileno(), text, at)
    except OSError:
        pass  # on a full disk: the text is a courtesy


def _is_fresh(stamp: bytes) -> bool:
    looked = stamp.partition(b" ")[0]
    return looked.isdigit() and _clock.monotonic_ms() - int(looked) < WAITING_MS
