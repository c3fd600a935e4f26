"""Points within a call of Python code, at which something else is done: each start of a line, in any module.

    counted(call)             the number of points of a call
    at_point(k, do, call)     the call, with `do()` at its k-th point, before that line runs
    signalled(k, call)        the call, with a real signal sent to the process before the k-th line

Rules of this file: a trace function of the calling thread alone, put back as it was (a coverage run has one). A signal
is sent by C code that the interpreter calls as the trace function, so that the handler runs where a signal's handler
can: at the next check of the interpreter, in the traced code and never in ours.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

NUMBER = signal.SIGUSR1  # pytest-timeout has SIGALRM
# The interpreter passes frame, event and argument, which `raise` leaves where they are.
_raise = ctypes.PyDLL(None)["raise"]
_raise.argtypes = [ctypes.c_int, ctypes.py_object, ctypes.py_object, ctypes.py_object]
_raise.restype = None
SEND: Any = partial(_raise, int(NUMBER))


class Alarm(Exception):
    """The exception of a program's signal handler."""


class _Tracer:
    """Counts lines; at the wanted one calls `do(frame)`."""

    def __init__(self, at: int = 0, do: Callable[[FrameType], object] | None = None) -> None:
        self.count = 0
        self._at = at
        self._do = do

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.count += 1
            if self.count == self._at and self._do is not None:
                self._do(frame)
                if frame.f_trace is SEND:
                    return SEND
        return self._line


@contextmanager
def _traced(tracer: _Tracer) -> Iterator[_Tracer]:
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        yield tracer
    finally:
        sys.settrace(before)


def counted(call: Callable[[], object]) -> int:
    """Make the call; return the number of its points."""
    with _traced(_Tracer()) as tracer:
        call()
    return tracer.count


def at_point(at: int, do: Callable[[], object], call: Callable[[], object]) -> None:
    """Make the call, and `do()` in its thread before its line number `at`."""
    with _traced(_Tracer(at, lambda _: do())):
        call()


def signalled(at: int, call: Callable[[], object]) -> None:
    """Make the call, with a signal before its line number `at`, whose handler raises Alarm. In the main thread only."""
    assert threading.current_thread() is threading.main_thread()
    armed = True

    def ring(number: int, frame: FrameType | None) -> None:
        nonlocal armed
        sys.settrace(None)  # each further event would send one more
        if armed:
            armed = False
            raise Alarm("the signal came")

    def send(frame: FrameType) -> None:
        frame.f_trace_opcodes = True  # before the first operation of this very line
        frame.f_trace = SEND

    before = signal.signal(NUMBER, ring)
    try:
        with _traced(_Tracer(at, send)):
            call()
    finally:
        armed = False
        signal.signal(NUMBER, before)
