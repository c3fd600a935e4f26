"""The child's side of a parent process: this process ends with it, and a `ChildProcess` exchanges lines with it.

Rules of this file: Linux, plain system calls; it imports no other file of ours, so that small processes start quickly.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading

PR_SET_PDEATHSIG = 1
PARENT_VARIABLE = "STANDFAST_PARENT_FD"  # the lent handle (pidfd) of the process that started this one
READ_BYTES = 1 << 16


def bind_to_parent(parent: int) -> bool:
    """Have the kernel kill this process as soon as the thread that started it ends, however that thread ends.

    False if the process `parent` had ended before the call: the caller must then end by itself.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # A parent that ended before the prctl sends no signal; this process then has another parent already.
    return os.getppid() == parent


class Parent:
    """The child's side of a `ChildProcess`: orders in, answers out, and this process ends when the parent has ended.

    It ends at once and closes nothing: the log has all rows that are not durable here, and hung threads must not hold
    the parent's locks. Standard output becomes standard error, so that no other text comes between the answers.
    `beat_ms` is the interval of heartbeats to the parent, however long this process works; None for no heartbeats.
    """

    def __init__(self, beat_ms: int | None = None) -> None:
        self._answers = os.dup(1)
        os.dup2(2, 1)
        self._telling = threading.Lock()
        self._pending = b""
        threading.Thread(target=_end_with, args=(_ended(),), name="standfast-parent", daemon=True).start()
        if beat_ms is not None:
            threading.Thread(target=self._beat, args=(beat_ms,), name="standfast-beat", daemon=True).start()

    def orders(self, wait_ms: int | None) -> list[bytes]:
        """Orders that have arrived, after at most `wait_ms` for the first; None waits without bound.

        The end of standard input ends this process.
        """
        ready = select.poll()
        ready.register(0, select.POLLIN)
        if not ready.poll(wait_ms):
            return []
        piece = os.read(0, READ_BYTES)
        if not piece:
            os._exit(0)
        *lines, self._pending = (self._pending + piece).split(b"\n")
        return lines

    def tell(self, line: bytes) -> None:
        """Send a whole answer, from any thread; a parent that has ended ends this process."""
        with self._telling:
            while line:
                try:
                    line = line[os.write(self._answers, line) :]
                except BrokenPipeError:
                    os._exit(0)

    def _beat(self, beat_ms: int) -> None:
        pause = select.poll()
        while True:
            self.tell(b"\n")
            pause.poll(beat_ms)


def _ended() -> select.poll:
    """A poll that is ready once the parent has ended: on its pidfd, or without one on the orders' pipe's hang-up."""
    ended = select.poll()
    lent = os.environ.pop(PARENT_VARIABLE, "")  # children of this process must not inherit it: their parent is this one
    if lent:
        os.set_inheritable(int(lent), False)
        ended.register(int(lent), select.POLLIN)
    else:
        ended.register(0, 0)  # no events: POLLHUP comes unasked, and orders must not wake this thread
    return ended


def _end_with(ended: select.poll) -> None:
    ended.poll()
    os._exit(0)
