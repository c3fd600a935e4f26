"""A view made ready to be asked: able members, copies by task, and the previous assignment.

    previous published     it is the truth about roles; reports say how far each copy is
    none is readable       roles come from the reports: a new leader continues from the tasks that run

`MemberRoom` counts the tasks that each member has so far in a round, and those that it may have.

Rules of this file: pure; it decides nothing about where a task goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

from standfast.replication.offsets import TaskId
from standfast.replication.placement.model import TAILING, Assignment, Copy, CopyState, Fact, PlacedMember, View
from standfast.store.errors import InvalidRequest
from standfast.store.names import few

NO_COPIES: Mapping[str, Copy] = {}
UNKNOWN_LAG = 1 << 62  # sorts behind each known lag
OPENED = frozenset((CopyState.RUNNING, CopyState.RESTORING))


class Look:
    """The facts of one round."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.settings = view.settings
        self.tasks = sorted(view.tasks)
        everyone = sorted(view.members, key=lambda member: member.id)
        twice = [one.id for one, other in pairwise(everyone) if one.id == other.id]
        if twice:
            raise InvalidRequest(f"instance ids used twice: {few(twice)}; each instance needs an id of its own")
        slotless = [f"{member.id!r} has {member.slots}" for member in everyone if member.slots < 1]
        if slotless:
            raise InvalidRequest(f"instances need a slot or more: {few(slotless)}")
        closed = [
            f"{one.id!r} has {one.max_tasks}" for one in everyone if one.max_tasks is not None and one.max_tasks < 1
        ]
        if closed:
            raise InvalidRequest(f"max_tasks of an instance is 1 or more, or None for no bound: {few(closed)}")
        able = [member for member in everyone if not member.waits]
        self.members: dict[str, PlacedMember] = {member.id: member for member in able if member.no_room_ms is None}
        # Members without room keep the tasks that no other can take, and get none: see `no_room.py`.
        self.short = {member.id: member.no_room_ms for member in able if member.no_room_ms is not None}
        self.copies: dict[TaskId, dict[str, Copy]] = {}
        for member in everyone:
            for task, copy in member.copies.items():
                self.copies.setdefault(task, {})[member.id] = copy
        self.previous = self._from_reports() if view.previous is None else view.previous
        there = {member.id for member in everyone}
        self.expected = {
            name
            for name, away in view.away.items()
            if away.for_ms < self.settings.restart_grace_ms and name not in there
        }

    @property
    def has_run(self) -> bool:
        """Whether the application has run before: a task has an owner, or an instance has a copy of one."""
        return self.view.ran or bool(self.previous.active or self.previous.held or self.copies)

    def lag(self, task: TaskId, name: str) -> int:
        """Records that a copy lacks; UNKNOWN_LAG without a copy, or before its lag is known."""
        copy = self.copies.get(task, NO_COPIES).get(name)
        return UNKNOWN_LAG if copy is None or copy.lag is None else copy.lag

    def lag_fact(self, task: TaskId, name: str) -> dict[str, Fact]:
        """`lag`, if it is known, as a fact of a reason."""
        lag = self.lag(task, name)
        return {} if lag == UNKNOWN_LAG else {"lag": lag}

    def is_caught_up(self, task: TaskId, name: str) -> bool:
        """Whether an open standby or warm-up may take the task from an owner that serves it."""
        copy = self.copies.get(task, NO_COPIES).get(name)
        return copy is not None and copy.state in TAILING and self.is_near(copy)

    def is_near(self, copy: Copy) -> bool:
        """Whether a copy lacks at most the acceptable number of records."""
        return copy.lag is not None and copy.lag <= self.settings.acceptable_lag

    def tailing(self, task: TaskId) -> list[str]:
        """Able members with an open standby or warm-up: the most caught-up first, then by id.

        Of those that have caught up the idle ones come first: a busy one opens the task after its record in hand.
        """
        found = [
            (*self.rank(copy), name)
            for name, copy in self.copies.get(task, NO_COPIES).items()
            if copy.state in TAILING and name in self.members
        ]
        return [name for *_, name in sorted(found)]

    def rank(self, copy: Copy) -> tuple[bool, int, int]:
        """Order of copies: the one that can serve soonest first."""
        near = self.is_near(copy)
        return not near, copy.busy_ms if near else 0, UNKNOWN_LAG if copy.lag is None else copy.lag

    def is_open(self, task: TaskId, name: str) -> bool:
        """Whether a member has the task open as active."""
        copy = self.copies.get(task, NO_COPIES).get(name)
        return copy is not None and copy.state in OPENED

    def holder(self, task: TaskId, besides: str | None) -> str | None:
        """Another member that has the task open as active; one that runs it before one that restores it."""
        open_ = [
            (copy.state is not CopyState.RUNNING, name)
            for name, copy in self.copies.get(task, NO_COPIES).items()
            if name != besides and copy.state in OPENED
        ]
        return min(open_)[1] if open_ else None

    def former(self, task: TaskId) -> str | None:
        """The owner that is gone; None for a task without one."""
        former = self.previous.active.get(task, self.previous.held.get(task))
        return None if former in self.members else former

    def _from_reports(self) -> Assignment:
        """The assignment that the members carry out, as their reports show it."""
        active: dict[TaskId, str] = {}
        standbys: dict[TaskId, tuple[str, ...]] = {}
        warmups: dict[TaskId, str] = {}
        # In one order, so that each leader decides the same from the same reports.
        for task, copies in sorted(self.copies.items()):
            able = sorted(name for name in copies if name in self.members or name in self.short)
            state = {name: copies[name].state for name in able}
            running = [name for name in able if state[name] is CopyState.RUNNING]
            restoring = [name for name in able if state[name] is CopyState.RESTORING]
            # A task that no member runs goes on where its restore is furthest.
            if running or restoring:
                active[task] = running[0] if running else min(restoring, key=lambda one: (self.lag(task, one), one))
            standing = tuple(name for name in able if state[name] is CopyState.STANDBY)
            if standing:
                standbys[task] = standing
            warming = [name for name in able if state[name] is CopyState.WARMUP]
            if warming:
                warmups[task] = min(warming, key=lambda one: (self.lag(task, one), one))
        return Assignment(active=active, standbys=standbys, warmups=warmups)


class MemberRoom:
    """The tasks of each member in one round (`load`), and the most that it takes."""

    def __init__(self, look: Look) -> None:
        self._members = look.members
        self.load: Counter[str] = Counter()
        self._closing: Counter[str] = Counter()  # tasks that a member has open, and that go to others
        bounds = {name: member.max_tasks for name, member in look.members.items()}
        self.is_bounded = any(bound is not None for bound in bounds.values())
        self.most = {name: UNKNOWN_LAG if bound is None else bound for name, bound in bounds.items()}

    def left(self, name: str) -> int:
        """How many more tasks the member takes."""
        return self.most[name] - self.load[name] - self._closing[name]

    def fullness(self, name: str) -> float:
        """Tasks for each of its slots."""
        return self.load[name] / self._members[name].slots

    def leave(self, name: str) -> None:
        """Count a task that goes to another member: this one has it open until it is closed."""
        self.load[name] -= 1
        self._closing[name] += 1

    def count_closing(self, look: Look, active: Mapping[TaskId, str]) -> None:
        """Count the tasks that members have open, and that others run now."""
        for task, copies in look.copies.items():
            owner = active.get(task)
            self._closing.update(name for name, copy in copies.items() if name != owner and copy.state in OPENED)
