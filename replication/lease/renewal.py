"""The rule of lease renewal: a member renews only while its work makes progress.

    counts of work done  ──> StallWatch ──> the parts that stand still; none: renew

Every watched part of a process counts its steps: the session's background thread its rounds and the tasks it opens,
the application's loop its rounds and records. A part whose count is 0 has not begun, or has ended, and is not watched.
A part announces a native call of known length: its allowance is added to `max_stall` until the call ends.

Each renewal says how long the work stands still (`BusyWatch`): others then decide and take over in its place.

A renewal reaches every member, so in a large group leases are longer: the group's renewals together stay at most 333 a
second, whatever its size.

Rules of this file: pure; `now_ms` is the watcher's own monotonic time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from standfast.replication.busy import Busy

RENEWALS_PER_LEASE = 5
MEMBER_MS = 15  # of lease for each member of the group


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


class BusyWatch:
    """Measures for how long each loop of a process has made no step: the time that its record in hand has run."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}  # loop -> its count, and the time at which it was new

    def look(self, loops: Sequence[int], looked_ms: int, lease_ms: int, now_ms: int) -> Busy:
        """How busy the process is. `looked_ms`: its last look at the placement, 0 if it never looks."""
        found = []
        for loop, count in enumerate(loops):
            if loop not in self._seen or self._seen[loop][0] != count:
                self._seen[loop] = (count, now_ms)
            found.append(now_ms - self._seen[loop][1] if count else 0)
        least_ms = renewal_interval_ms(lease_ms)  # a shorter time is no news, which each other member would read
        look_ms = now_ms - looked_ms if looked_ms else 0
        return Busy(look_ms if look_ms >= least_ms else 0, tuple(one if one >= least_ms else 0 for one in found))


def lease_in_group_ms(lease_ms: int, members: int) -> int:
    """The lease of a member in a group of so many: as many times `lease_ms` as MEMBER_MS for each of them take."""
    # In whole leases, so that the length seldom changes while a group grows member by member.
    return lease_ms * max(-(-members * MEMBER_MS // lease_ms), 1)


def renewal_interval_ms(lease_ms: int) -> int:
    """Interval between renewals: a fifth of the lease, so that some may fail."""
    return max(lease_ms // RENEWALS_PER_LEASE, 1)
