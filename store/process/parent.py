"""The process that started this one: bound to it, and, for a `ChildProcess`, in talk with it.

Rules of this file: Linux, plain system calls; it imports nothing of ours, so that small processes start quickly.
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
    """Have the kernel kill this process as soon as the thread that started it ends, however that ends.

    False if the process `parent` had ended before the kernel knew: the caller must end by itself.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    return os.getppid() == parent


class Parent:
    """The child's side of a `ChildProcess`: orders in, answers out, and this process ends when the parent has ended.

    That end is at once, without anything closed: what is not durable is the log's, and threads that hang must not hold
    the parent's locks. From here on standard output is standard error, so that nothing else comes between the answers.
    `beat_ms`: how often the parent hears that this process lives, however long its work takes; None for never.
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
        """Orders that have come, after at most `wait_ms` for the first; None: however long that takes.

        Their end ends this process.
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
        """Give an answer, whole, from any thread; a parent that has ended ends this process."""
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
    """Ready once the parent has ended: its pidfd, or where there is none, the hang-up of the orders' pipe."""
    ended = select.poll()
    lent = os.environ.pop(PARENT_VARIABLE, "")  # not for children of this process: this one is their parent
    if lent:
        os.set_inheritable(int(lent), False)
        ended.register(int(lent), select.POLLIN)
    else:
        ended.register(0, 0)
    return ended


def _end_with(ended: select.poll) -> None:
    ended.poll()
    os._exit(0)
