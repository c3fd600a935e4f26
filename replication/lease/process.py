"""The parent's side of the lease process: starts it, names the member to renew, watches it and restarts it.

    start ──> it connects while the session opens ──> renew(group, member) ──> poll: whether it renews
    close ──> "done": it ends without a word        this process ends without that ──> it ends the lease
    ended, or without an attempt for SILENT_MS ──> a new process, after a pause that doubles up to RESTART_MS_MAX

Rules of this file: a pipe and a process. `start`, `poll` and `close` belong to one thread, which must live as long as
the process: its end is a word to the lease process. Any thread may call `renew`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import NamedTuple

from standfast.replication.progress import LOST, RENEWED, STALLED, TRIES, LeaseProgress
from standfast.store.clock import Clock
from standfast.store.log import as_event, child_environment, logger
from standfast.store.process import forks
from standfast.store.timestamps import duration_text

MODULE = "standfast.replication.lease.worker"
READ_BYTES = 1 << 16
RESTART_MS = 200
RESTART_MS_MAX = 10_000
WELL_MS = 30_000
SILENT_MS = 30_000  # the client waits at most so long for a log that does not answer
END_S = 1.0


class LeaseEnd(NamedTuple):
    """How a lease ends with its process, of which `process` is the token: at a word of `owner.py`, which "" forbids."""

    process: str
    word: str


class LeaseProcess:
    """Starts, watches and ends the lease process, one at a time."""

    def __init__(self, address: str, progress: LeaseProgress, max_stall_ms: int, clock: Clock) -> None:
        self._address = address
        self._progress = progress
        self._max_stall_ms = max_stall_ms
        self._clock = clock
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._target = b""
        self._heard = b""
        self._renewed = self._renewed_ms = 0
        self._tries = self._tried_ms = 0
        self._start_ms = self._started_ms = 0
        self._wait_ms = RESTART_MS
        self._lost = 0
        forks.dies_in_child(self)

    def forked(self) -> None:
        """As in `forks.Owned`: the process is the parent's."""
        self._lock = threading.Lock()
        if self._process is not None:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.close()
            self._process.stdout.close()
        forks.keep_for_good(self._process)
        self._process = None

    @property
    def pid(self) -> int | None:
        """Id of the running process, or None."""
        process = self._process
        return None if process is None else process.pid

    def start(self) -> None:
        """Start the process now; it connects to the log, and renews nothing yet."""
        self._start(self._clock.monotonic_ms())

    def renew(self, group: str, member: str, lease_ms: int, end: LeaseEnd) -> None:
        """Make the process renew this member's lease from now on, and end it as `end` says."""
        with self._lock:
            self._target = _line({"group": group, "member": member, "lease_ms": lease_ms, **end._asdict()})
            self._tell(self._target)

    def poll(self, within_ms: int) -> bool:
        """Watch the process; True if it renewed the lease in the last `within_ms`, or withholds it on purpose."""
        now_ms, words = self._clock.monotonic_ms(), self._progress.words
        if words[RENEWED] != self._renewed:
            self._renewed, self._renewed_ms = words[RENEWED], now_ms
        if words[TRIES] != self._tries:
            self._tries, self._tried_ms = words[TRIES], now_ms
        # After reading the words: this thread may have waited for the interpreter much longer than SILENT_MS.
        self._monitor(now_ms)
        well = words[STALLED] == 1 or (self._renewed_ms > 0 and now_ms - self._renewed_ms <= within_ms)
        return self._process is not None and well

    def lost(self) -> bool:
        """Whether the log refused a renewal since the last call: the lease had run out."""
        before, self._lost = self._lost, self._progress.words[LOST]
        return before != self._lost

    def close(self) -> None:
        """End the process: the end of its input ends it within milliseconds, unless it waits for the log."""
        with self._lock:
            self._tell(_line({"done": True}))
            process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _monitor(self, now_ms: int) -> None:
        process = self._process
        if process is None:
            if now_ms >= self._start_ms:
                self._start(now_ms)
            return
        assert process.stdout is not None
        # Without a target it makes no attempts, so its silence means nothing.
        silent = now_ms - max(self._tried_ms, self._started_ms) > SILENT_MS and bool(self._target)
        ended = False
        with contextlib.suppress(BlockingIOError):
            while not ended:
                piece = os.read(process.stdout.fileno(), READ_BYTES)
                self._heard += piece
                ended = not piece
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            logger.warning(
                "the lease process: %s", line.decode(errors="replace"), extra=as_event("lease_process_trouble")
            )
        if ended or silent:
            process.kill()  # first: `close` would wait for a process that hangs in a call to the log
            self.close()
            code = process.returncode
            self._later(now_ms, "it made no attempt for too long" if silent else f"exit status {code}")

    def _start(self, now_ms: int) -> None:
        self._started_ms = now_ms
        try:
            owner = os.pidfd_open(os.getpid())
        except OSError:  # an old kernel, or a container that forbids it: the process ends with this one, without a word
            owner = -1
        order = {
            "log": self._address,
            "parent": os.getpid(),
            "owner": owner,
            "max_stall_ms": self._max_stall_ms,
            "words": self._progress.fd,
        }
        try:
            # -P: a file of the working directory must not replace a module. A session of its own: Ctrl-C is for the
            # parent, and Linux (autogroup) then shares the processor between this process and a crowd of others as a
            # whole, not between it and each of them.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                pass_fds=(self._progress.fd, *((owner,) if owner >= 0 else ())),
                start_new_session=True,
                env=os.environ | child_environment(),
            )
        except OSError as error:
            self._later(now_ms, f"it could not be started: {error}")
            return
        finally:
            if owner >= 0:
                os.close(owner)
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        with self._lock:
            self._process, self._heard = process, b""
            # The word of the ended process: left at 1, `poll` would take the start of this one for a wanted pause.
            self._progress.words[STALLED] = 0
            self._tell(_line(order) + self._target)

    def _tell(self, line: bytes) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # the process died: poll finds out
                self._process.stdin.write(line)

    def _later(self, now_ms: int, how: str) -> None:
        if now_ms - self._started_ms >= WELL_MS:
            self._wait_ms = RESTART_MS
        logger.warning(
            "the lease process ended (%s): started again in %s, a thread renews the lease meanwhile",
            how,
            duration_text(self._wait_ms),
            extra=as_event("lease_process_ended", restart_ms=self._wait_ms),
        )
        self._start_ms = now_ms + self._wait_ms
        self._wait_ms = min(self._wait_ms * 2, RESTART_MS_MAX)


def _line(order: Mapping[str, object]) -> bytes:
    return json.dumps(order).encode() + b"\n"
