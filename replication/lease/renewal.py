"""The rule of lease renewal: a member renews only while its work makes progress.

    counts of work done  ──> StallWatch ──> the parts that stand still; none: renew

Every watched part of a process counts its steps: the session's background thread its rounds and the tasks it opens,
the application's loop its rounds and records. A part whose count is 0 has not begun, or has ended, and is not watched.
A part announces a native call of known length: its allowance is added to `max_stall` until the call ends.

Each renewal says how long the work stands still (`BusyWatch`): others then decide and take over in its place.

Rules of this file: pure; `now_ms` is the watcher's own monotonic time.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Word(Enum):
    """The word of a lease process that ends the lease of its owner; see `owner.py`."""

    GOING = "going"
    GONE = "gone"


class StallWatch:
    """Finds the parts of a process that make no progress."""

    def __init__(self, max_stall_ms: int) -> None:
        self._max_stall_ms = max_stall_ms
        self._allowance_ms = 0
        self._seen: dict[str, tuple[int, int]] = {}  # part -> its count, and the time at which it was new

    def look(self, counts: Mapping[str, int], allowance_ms: int, now_ms: int) -> tuple[str, ...]:
        """The parts whose count has not changed for longer than `max_stall` and the allowance together."""
        over = allowance_ms != self._allowance_ms  # the other parts could not run during the call either
        self._allowance_ms = allowance_ms
        for part, count in counts.items():
            if over or self._seen.get(part, (0, 0))[0] != count:
                self._seen[part] = (count, now_ms)
        limit_ms = self._max_stall_ms + allowance_ms
        return tuple(part for part, count in counts.items() if count and now_ms - self._seen[part][1] > limit_ms)
