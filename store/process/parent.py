"""The child's side of a parent process: this process ends with it, and a `ChildProcess` exchanges lines with it.

    parent.py PID COMMAND ...     as a script: bound to process PID, this process becomes the command

Rules of this file: Linux, plain system calls; it imports no other file of ours, so that small processes start quickly.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
from typing import NamedTuple

PR_SET_PDEATHSIG = 1
PARENT_VARIABLE = "STANDFAST_PARENT_FD"  # the lent handle (pidfd) of the process that started this one
# Of a program: "PID:ORDERS:ANSWERS:PIDFD", its parent and the lent handles; PIDFD may be empty.
CHANNEL_VARIABLE = "STANDFAST_WORKER"
READ_BYTES = 1 << 16


class ParentChannel(NamedTuple):
    """Lent handles of a program: its orders, its answers, and the pidfd of its parent, -1 for none."""

    orders: int
    answers: int
    parent: int


def lent_channel() -> ParentChannel | None:
    """The channel to the process that started this one as a `ProgramProcess`; None for any other process.

    Later calls return None, and children of this process inherit neither the variable nor the handles.
    """
    words = os.environ.pop(CHANNEL_VARIABLE, "").split(":")
    # A process that the program started may have inherited the variable: its parent is another one.
    if len(words) != 4 or words[0] != str(os.getppid()):
        return None
    channel = ParentChannel(int(words[1]), int(words[2]), int(words[3] or -1))
    for handle in channel:
        if handle >= 0:
            os.set_inheritable(handle, False)
    return channel


def bind_to_parent(parent: int) -> bool:
    """Have the kernel kill this process as soon as the thread that started it ends, however that thread ends.

    False if the process `parent` had ended before the call: the caller must then end by itself.
    """
    signal_at_parents_end(signal.SIGKILL)
    # A parent that ended before the prctl sends no signal; this process then has another parent already.
    return os.getppid() == parent


def signal_at_parents_end(number: signal.Signals) -> None:
    """Have the kernel send this process a signal as soon as the thread that started it ends, however that ends."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


class Parent:
    """The child's side of a `ChildProcess`: orders in, answers out, and this process ends when the parent has ended.

    It ends at once and closes nothing: the log has all rows that are not durable here, and hung threads must not hold
    the parent's locks. Standard output becomes standard error, so that no other text comes between the answers.
    `beat_ms` is the interval of heartbeats to the parent, however long this process works; None for no heartbeats.
    With a `channel` orders and answers go through it, and standard input and output stay as they are.
    """

    def __init__(self, beat_ms: int | None = None, channel: ParentChannel | None = None) -> None:
        if channel is None:
            self._orders, self._answers = 0, os.dup(1)
            os.dup2(2, 1)
        else:
            self._orders, self._answers = channel.orders, channel.answers
        self._telling = threading.Lock()
        self._pending = b""
        ended = _ended() if channel is None else _watched(channel.parent, channel.orders)
        threading.Thread(target=_end_with, args=(ended,), name="standfast-parent", daemon=True).start()
        if beat_ms is not None:
            threading.Thread(target=self._beat, args=(beat_ms,), name="standfast-beat", daemon=True).start()

    def orders(self, wait_ms: int | None) -> list[bytes]:
        """Orders that have arrived, after at most `wait_ms` for the first; None waits without bound.

        The end of the orders ends this process.
        """
        ready = select.poll()
        ready.register(self._orders, select.POLLIN)
        if not ready.poll(wait_ms):
            return []
        piece = os.read(self._orders, READ_BYTES)
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
    lent = os.environ.pop(PARENT_VARIABLE, "")  # children of this process must not inherit it: their parent is this one
    if lent:
        os.set_inheritable(int(lent), False)
    return _watched(int(lent or -1), 0)


def _watched(parent: int, orders: int) -> select.poll:
    ended = select.poll()
    if parent >= 0:
        ended.register(parent, select.POLLIN)
    else:
        ended.register(orders, 0)  # no events: POLLHUP comes unasked, and orders must not wake this thread
    return ended


def _end_with(ended: select.poll) -> None:
    ended.poll()
    os._exit(0)


if __name__ == "__main__":
    # The binding lasts over exec, so that the program ends with its parent from its first line on.
    if bind_to_parent(int(sys.argv[1])):
        try:
            os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - the command of the program that calls
        except OSError as error:
            sys.exit(f"{sys.argv[2]} cannot be started: {error.strerror}")
