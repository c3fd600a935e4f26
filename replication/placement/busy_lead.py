"""When a follower takes the lead from a live leader: it does not look at the placement, and a decision waits.

    the leader looked less than a third of the lease ago ───────────────────────> it leads
    it did not, and a round of this instance would change nothing ──────────────> it leads: a busy leader costs nothing
    it did not, and the round decides something (a death, a join, no room) ─────> the first idle member claims the lead,
                                                                                  the next ones a moment later each

The claim's epoch fences a publish that the former leader is in the middle of.

Rules of this file: pure; times are monotonic milliseconds of this instance.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from standfast.replication.leases import IDLE, Busy

LEASE_PARTS = 3
TURN_MS = 200  # two looks of a leader that just came back, and about the time of a claim
TURNS_MAX = 4  # members of a version that claims no lead of a live leader must not keep the others for long


def is_busy(busy: Mapping[str, Busy], member: str, lease_ms: int) -> bool:
    """Whether a member has not looked at the placement for more than a third of the lease, as of its last renewal."""
    return busy.get(member, IDLE).look_ms * LEASE_PARTS > lease_ms


class BusyLead:
    """Whether this instance, `me`, takes the lead now."""

    def __init__(self, me: str) -> None:
        self._me = me
        self.watches = False  # beside a leader that does not look, without a break
        self._due_ms: int | None = None  # when the decision was first seen to wait

    def begins(self) -> None:
        """The leader does not look: this instance decides as the leader would, from here on."""
        self.watches = True

    def ends(self) -> None:
        """The leader looks, or this instance leads."""
        self.watches = False
        self.rests()

    def rests(self) -> None:
        """Nothing waits for the leader."""
        self._due_ms = None

    def takes(self, busy: Mapping[str, Busy], members: Collection[str], lease_ms: int, now_ms: int) -> bool:
        """Whether it is this instance's turn to claim. A decision waits, and `members` may lead."""
        if self._due_ms is None:
            self._due_ms = now_ms
        idle = sorted(one for one in {*members, self._me} if one == self._me or not is_busy(busy, one, lease_ms))
        turn = min(idle.index(self._me) + 1, TURNS_MAX)
        return now_ms - self._due_ms >= turn * TURN_MS
