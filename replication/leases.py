"""Leases: how long they are, how often they are renewed, and how busy a renewal says that its member is.

    [2900, 3100]             2.9 s since its last look at the placement; the record in hand of its loop runs for 3.1 s
    [0, 0, 4000]             an instance of two worker processes: the second one has had a record in hand for 4 s
    nothing                  idle, and every member of a version that does not publish it

A renewal of an idle member has no such numbers, so that its records stay equal, byte by byte. A renewal reaches every
member, so in a large group leases are longer: the group's renewals together stay at most 333 a second, whatever its
size.

Rules of this file: pure. Durations are milliseconds by the member's own clock, as of the renewal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

RENEWALS_PER_LEASE = 5
MEMBER_MS = 15  # of lease for each member of the group


class Busy(NamedTuple):
    """`look_ms`: since the last look at the placement; `loops_ms`: since each loop last made a step, by worker.

    An instance of one process has one loop. 0 stands for any time that is too short to matter.
    """

    look_ms: int = 0
    loops_ms: tuple[int, ...] = ()

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Busy:
        """Inverse of `numbers`."""
        look_ms, *loops_ms = tuple(numbers) or (0,)
        return cls(look_ms, tuple(loops_ms))

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers to publish; none of an idle member."""
        return (self.look_ms, *self.loops_ms) if self.look_ms or any(self.loops_ms) else ()

    def of_worker(self, number: int | None) -> int:
        """How long a worker process, by its number from 1, has been busy; None: any of them, or the only process."""
        if number is not None and number <= len(self.loops_ms):
            return max(self.look_ms, self.loops_ms[number - 1])
        return max(self.look_ms, *self.loops_ms, 0)


IDLE = Busy()


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


def has_most_left(lease_ms: int, deadline_ms: int, now_ms: int) -> bool:
    """Whether more than half of a lease is left: it did not run out, for it is renewed every fifth of it."""
    return deadline_ms - now_ms > lease_ms // 2
