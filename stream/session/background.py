"""The work of a session beside its caller: in threads of its own, or in steps of `poll_once`.

    with threads      start ──> a thread     repeat ──> a thread: wait for the interval, work, ...
                                             an error ends it, and is raised by the next call of the session
    without           no `start`             repeat ──> `step`: all work whose interval is over by the session's clock;
                                             an error is raised to the caller

Rules of this file: it knows no work and takes no lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TypeAlias

from standfast.store.clock import Clock
from standfast.store.log import as_event, logger
from standfast.store.process.interrupts import Flag
from standfast.store.process.threads import NoThreads, Running, Threads

Repeated: TypeAlias = tuple[Callable[[], float], Callable[[], object]]  # interval in milliseconds, and the work


@dataclass(slots=True)
class _Due:
    """Repeated work of a session without threads."""

    every_ms: Callable[[], float]
    work: Callable[[], object]
    next_ms: float


class Background:
    """The background work of one session."""

    def __init__(self, clock: Clock, *, threads: bool) -> None:
        self.threads = Threads() if threads else NoThreads(clock)
        self.stop = Flag()  # set when the session closes
        self.fatal: BaseException | None = None  # the error that ended a thread
        self.fatal_trace: TracebackType | None = None
        self._clock = clock
        self._running: dict[str, Running] = {}
        self._repeated: list[_Due] = []

    def start(self, name: str, run: Callable[[], object]) -> None:
        """Start a thread that runs this until `stop`."""

        def guarded() -> None:
            try:
                run()
            except BaseException as error:  # noqa: BLE001 - raised again at the next call
                logger.exception("%s stopped", name, extra=as_event("thread_stopped", what=name))
                # The traceback first: other threads look at `fatal` alone, and then need both.
                self.fatal_trace = error.__traceback__
                self.fatal = error

        self._running[name] = self.threads.start(name, guarded)

    def repeat(self, name: str, every_ms: Callable[[], float], work: Callable[[], object]) -> None:
        """Do this work after each interval until `stop`, in a thread of that name or by `step`."""
        if self.threads.stepped:
            self._repeated.append(_Due(every_ms, work, self._clock.monotonic_ms() + every_ms()))
            return

        def run() -> None:
            while not self.stop.wait(every_ms() / 1_000):
                work()

        self.start(name, run)

    def step(self) -> None:
        """Do the repeated work that is due, where there are no threads."""
        for one in self._repeated:
            now_ms = self._clock.monotonic_ms()
            if now_ms >= one.next_ms:
                one.next_ms = now_ms + one.every_ms()
                one.work()

    def end(self, *, but: str = "") -> None:
        """End the threads and wait for them; not for the one of that name."""
        self.stop.set()
        self._repeated.clear()
        for name, thread in self._running.items():
            if name != but and thread is not threading.current_thread():
                thread.join()
