"""The only file that reads the system clock.

Rules of this file: shells get a `Clock`; pure code gets `now_ms`. Leases and wall-clock schedules use monotonic
time, record timestamps and reports use wall time. All times are milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from standfast.store.outside import Replaceable

MEASURED_NS: Final = Replaceable[Callable[[], int]](time.perf_counter_ns)


def measured_ns() -> int:
    """A reading for measuring durations, in nanoseconds; no decision may depend on it."""
    return MEASURED_NS.ask()


class Clock(Protocol):
    """The time functions that a shell may use."""

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        ...

    def monotonic_ms(self) -> int:
        """Milliseconds since the machine's boot: equal in all processes of one boot, never goes back."""
        ...

    def sleep_ms(self, duration_ms: float) -> None:
        """Block the calling thread."""
        ...


class SystemClock:
    """The machine's own clock."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def sleep_ms(self, duration_ms: float) -> None:
        time.sleep(duration_ms / 1_000)


REAL_CLOCK: Final = Replaceable[Callable[[], Clock]](SystemClock)


def real_clock() -> Clock:
    """The machine's own clock, for bounds of work and waits that take real time under any clock of the caller."""
    return REAL_CLOCK.ask()


class ManualClock:
    """A clock that moves only by `advance` and `sleep_ms`; ships with the library for deterministic tests."""

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return self.now_ms

    def sleep_ms(self, duration_ms: float) -> None:
        self.now_ms += int(duration_ms)

    def advance(self, duration_ms: int) -> None:
        """Move both readings forward."""
        if duration_ms < 0:
            raise ValueError(f"a clock does not go back: {duration_ms} ms")
        self.now_ms += duration_ms


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        # Not Linux: derive the boot instant; a second of rounding hides clock slew between calls.
        return f"boot-{round(time.time() - time.monotonic(), -1):.0f}"


BOOT_ID: Final = Replaceable[Callable[[], str]](_boot_id)


def boot_id() -> str:
    """Identity of this boot of the machine: monotonic readings compare only within one boot."""
    return BOOT_ID.ask()
