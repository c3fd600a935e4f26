"""Membership: one process as a member of its application's group, with the tasks that it holds.

    join ──> member, lease runs ──> heartbeat ──> ... ──> leave: others may take over at once
                  ^                     │ Fenced: the lease had run out
                  └─────────────────────┘ joined again; tasks taken over meanwhile are fenced at the log

Rules of this file: `heartbeat` comes from the lease's thread, everything else under the session's lock. `take_over.py`
and `follow.py` decide about the tasks of a member that is gone.
"""

from __future__ import annotations

from collections.abc import Callable

from standfast.replication.log import EnteredView, Group, GroupView
from standfast.replication.takeover import MemberPlan
from standfast.store.errors import BadConfig, Fenced, Unavailable
from standfast.store.log import as_event, logger
from standfast.stream.session.lease import LeaseKeeper
from standfast.stream.session.statistics import LEASE_LATE, LEASE_STALLED, SessionCounters


class Membership:
    """This process in its group. `plan` (of the instance) lists the tasks held here; `stale`: not published yet.

    `view` is the group as it was last read, None before the first join.
    """

    def __init__(
        self, group: Group, member: str, lease_ms: int, keeper: LeaseKeeper, counters: SessionCounters
    ) -> None:
        self.member = member
        self.view: GroupView | None = None
        self.plan: Callable[[], MemberPlan] = lambda: MemberPlan(frozenset(), frozenset())
        self.stale = False
        self._group = group
        self._lease_ms = lease_ms
        self._keeper = keeper
        self._counters = counters
        self._joined = False

    def look(self) -> GroupView:
        """Read and return the group's present view."""
        self.view = self._group.view()
        return self.view

    def publish(self) -> None:
        """Join, or publish the tasks that are held here now."""
        # First, so that a join that fails is repeated by the next round.
        self.stale = True
        self._join(self._group)
        self.stale = False

    def heartbeat(self, group: Group) -> None:
        """Renew the lease; after it ran out, join again (tasks lost meanwhile are fenced at the log)."""
        try:
            self.view = group.heartbeat(self.member)
        except Fenced:
            self._join(group)

    def leave(self) -> None:
        """Leave the group."""
        try:
            self._group.leave(self.member)
        except (Unavailable, BadConfig) as error:  # a permission may be gone, too: all other steps are closed
            logger.warning(
                "%s could not leave the group, its lease runs out by itself: %s",
                self.member,
                error,
                extra=as_event("leave_failed", member=self.member),
            )

    def _join(self, group: Group) -> None:
        self.view = group.join(self.member, self.plan().to_json(), lease_ms=self._lease_ms)
        # The group did not hold this member any more, although it had joined before.
        if isinstance(self.view, EnteredView) and self._joined:
            reason = LEASE_STALLED if self._keeper.was_stalled() else LEASE_LATE
            self._counters.leases_lost[reason] += 1
            logger.warning(
                "lease of %s had run out (%s): joined again",
                self.member,
                reason,
                extra=as_event("lease_lost", member=self.member),
            )
        self._joined = True
