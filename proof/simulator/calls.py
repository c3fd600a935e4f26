"""The calls of simulated processes: every call of a port passes here.

    log, engine, file, storage ──> run(name, effect) ──> delayed, done, answered with an error, or its process ends
    sleep, fetch               ──> wait(...)         ──> simulated time passes, and other processes run

Rules of this file: it knows no scheduler and no port. `ProcessEnded` is no `Exception`, since no handler of the product
may take the end of its process for an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from standfast.store.clock import ManualClock

T = TypeVar("T")


class ProcessEnded(BaseException):
    """The process of the caller ended at this call, or before it: each further call raises this again."""


class Calls(Protocol):
    """The place where a scheduler delays a call, answers it with an error, or ends its process."""

    def run(self, name: str, effect: Callable[[], T]) -> T:
        """Carry out a call such as `log.append`. Its error may come before the effect, or after it."""
        ...

    def wait(self, wait_ms: float, ready: Callable[[], bool] | None = None) -> None:
        """Let simulated time pass, `wait_ms` milliseconds at most; it ends early once `ready` holds."""
        ...


class DirectCalls:
    """Carries every call out at once, and moves a clock by each wait: for contract tests of single parts."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def run(self, name: str, effect: Callable[[], T]) -> T:
        """As of `Calls`."""
        return effect()

    def wait(self, wait_ms: float, ready: Callable[[], bool] | None = None) -> None:
        """As of `Calls`. There are no others, so that nothing gets ready meanwhile."""
        if ready is None or not ready():
            self._clock.sleep_ms(wait_ms)
