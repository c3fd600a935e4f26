"""The owner of a lease, as its lease process watches it: the signs of its end, and how sure each is.

    the thread that started this process has ended ── a signal, within 2 ms ──> GOING   a hint
    the process has ended ── its pidfd, after 3 ms to 0.2 s, by its memory ───> GONE    a fact

A word ends the lease of that process, and of no other: a process that came in its place has another token. A thread may
end although its process lives on; so GOING is for logs that fence each write by themselves, and costs no row there. A
process that is stopped, or slow, says nothing: its lease runs out.

Rules of this file: plain system calls, one thread. Handles are lent by the owner.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading

from standfast.replication.lease.renewal import Word
from standfast.store.clock import SystemClock
from standfast.store.process.parent import signal_at_parents_end

END_MS = 1_000  # this process ends so long after its owner, whatever it still does: a service manager waits for that
SIGNAL = signal.SIGUSR1


class OwnerWatch:
    """The process whose lease this one renews, by its pidfd."""

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd
        self._going = False
        self._wakes, woken = socket.socketpair()
        self._woken = woken  # kept open: the signal's handler writes to it
        self._wakes.setblocking(False)
        woken.setblocking(False)
        signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        signal.signal(SIGNAL, lambda *_: self._note())
        signal_at_parents_end(SIGNAL)
        threading.Thread(target=self._end, name="standfast-lease-end", daemon=True).start()

    @property
    def handles(self) -> tuple[int, int]:
        """Handles to wait at."""
        return self._pidfd, self._wakes.fileno()

    def word(self) -> Word | None:
        """Whether the owner has ended, as far as it is known now."""
        with contextlib.suppress(BlockingIOError):
            self._wakes.recv(64)  # so that a wait begins again after a signal that says nothing
        if _ended(self._pidfd, 0):
            return Word.GONE
        return Word.GOING if self._going else None

    def gone_within(self, wait_ms: int) -> bool:
        """Wait for the end of the process; returns whether it has come."""
        return _ended(self._pidfd, wait_ms)

    def _note(self) -> None:
        self._going = True

    def _end(self) -> None:
        _ended(self._pidfd, None)
        SystemClock().sleep_ms(END_MS)
        os._exit(0)


def _ended(pidfd: int, wait_ms: int | None) -> bool:
    waiting = select.poll()
    waiting.register(pidfd, select.POLLIN)
    return bool(waiting.poll(wait_ms))
