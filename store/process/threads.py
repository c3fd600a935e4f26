"""Where work goes on beside its caller: in threads, or, for a session without threads, in the caller's own.

    Threads      start ──> a daemon thread      pool ──> threads                    wait ──> real time
    NoThreads    start ──> runs at once         pool ──> each call runs at once     wait ──> the clock sleeps

A part gets one of them from its session and never asks which; only work that repeats, or that an attempt does not end,
is cut into steps (`standfast.stream.session.background`). A simulator brings a class of its own.

Rules of this file: it knows no work. `clock` is the one that moves while `wait` waits, so that deadlines of waits are
judged by it, whatever clock the session has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, ParamSpec, Protocol, TypeVar

from standfast.store.clock import Clock, real_clock
from standfast.store.process.interrupts import Flag

P = ParamSpec("P")
T = TypeVar("T")


class Running(Protocol):
    """Work that was started, as a thread is."""

    @property
    def ident(self) -> int | None: ...
    def is_alive(self) -> bool: ...
    def join(self, timeout: float | None = None) -> None: ...


class Threads:
    """The threads of this process."""

    stepped = False  # whether work that repeats is done in steps of the caller

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or real_clock()

    def start(self, name: str, run: Callable[[], object]) -> Running:
        """Run this beside the caller."""
        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def pool(self, most: int, name: str) -> Executor:
        """Runs calls beside the caller, so many at once at most."""
        return ThreadPoolExecutor(most, name)

    def wait(self, flag: Flag, wait_ms: float) -> bool:
        """Wait until the flag is set, for so many milliseconds at most; returns whether it is."""
        return flag.wait(max(wait_ms, 0) / 1_000)


class NoThreads(Threads):
    """Everything runs in the caller's thread; waits move `clock`."""

    stepped = True

    def start(self, name: str, run: Callable[[], object]) -> Running:
        run()
        return _Ended()

    def pool(self, most: int, name: str) -> Executor:
        return _AtOnce()

    def wait(self, flag: Flag, wait_ms: float) -> bool:
        if not flag.is_set():  # no other thread could set it meanwhile
            self.clock.sleep_ms(max(wait_ms, 0))
        return flag.is_set()


class _Ended:
    """Work that ran at once."""

    ident = None

    def is_alive(self) -> bool:
        return False

    def join(self, timeout: float | None = None) -> None:
        pass


class _AtOnce(Executor):
    """Makes each call in the caller's thread. An end that is no `Exception` leaves at once."""

    def submit(self, call: Callable[P, T], /, *given: P.args, **named: P.kwargs) -> Future[T]:
        answer: Future[Any] = Future()
        try:
            answer.set_result(call(*given, **named))
        except Exception as error:  # noqa: BLE001 - raised by the answer's reader
            answer.set_exception(error)
        return answer


THREADS = Threads()
