"""The newest figures of a session, for readers that must not wait for the session's lock or for the log.

    take() ──> a thread reads, under the session's lock ──> within WAIT_S: the present figures
                     └── it waits for the lock, or for the log ──> the last figures, with their age

Rules of this file: one reading at a time, each in a thread of its own, so that a reading that hangs costs one thread
and delays no other caller. Figures are immutable. This file must not know their meaning.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from standfast.store.clock import Clock
from standfast.store.process.interrupts import Flag

T = TypeVar("T")
WAIT_S = 1.0


class _Reading(Generic[T]):
    """One reading: done, or running since `began_ms`."""

    def __init__(self, began_ms: int) -> None:
        self.began_ms = began_ms
        self.done = Flag()
        self.figures: T | None = None
        self.error: BaseException | None = None


class Figures(Generic[T]):
    """Reads by `read`; an error of a reading is raised to the callers that wait for it."""

    def __init__(self, read: Callable[[], T], clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._mutex = threading.Lock()
        self._now: _Reading[T] | None = None
        self._last: tuple[T, int] | None = None

    def take(self, wait_s: float = WAIT_S) -> tuple[T, int]:
        """The figures and their age in milliseconds: 0 if they were read for this call.

        Waits `wait_s` for a reading that began after the call, and not at all while one has been running for longer
        than that. Callers wait for the first figures without a limit, since there are no older ones to return.
        """
        reading, late = self._join(wait_s)
        if not late and not reading.done.wait(wait_s):
            late = True
        if late and self._last is not None:
            figures, read_ms = self._last
            return figures, max(self._clock.monotonic_ms() - read_ms, 0)
        reading.done.wait()
        if reading.error is not None:
            raise reading.error
        assert reading.figures is not None
        return reading.figures, 0

    def _join(self, wait_s: float) -> tuple[_Reading[T], bool]:
        """A reading that begins now, or the running one; and whether that is late already."""
        with self._mutex:
            before = self._now
            if before is None:
                return self._begin(), False
            if self._clock.monotonic_ms() - before.began_ms >= wait_s * 1_000:
                return before, True
        # A reading that began before this call may miss a change that the caller has seen: it waits for the next one.
        before.done.wait(wait_s)
        with self._mutex:
            if self._now is None:
                return self._begin(), False
            return self._now, self._now is before

    def _begin(self) -> _Reading[T]:
        reading: _Reading[T] = _Reading(self._clock.monotonic_ms())
        threading.Thread(target=self._run, args=(reading,), name="standfast-figures", daemon=True).start()
        self._now = reading  # afterwards: a start that a signal handler interrupted leaves no reading that never ends
        return reading

    def _run(self, reading: _Reading[T]) -> None:
        try:
            reading.figures = self._read()
        except BaseException as error:  # noqa: BLE001  raised to the callers that wait for it
            reading.error = error
        with self._mutex:
            if self._now is reading:
                self._now = None
            if reading.figures is not None:
                self._last = reading.figures, self._clock.monotonic_ms()
        reading.done.set()
