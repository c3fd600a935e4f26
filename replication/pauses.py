"""Pauses: how long no one processed a task that moved from one owner to another.

    former owner   last commit begins ── commit, flush, close ── report ··┐
    new owner                                                             └·· sees it free ── open, restore ── RUNS
                   └───────────── took ─────────────┘                         └──────────── here ────────────┘
                   └──────────────────────── one machine: the whole of it ───────────────────────────────────┘

    planned    the former owner gave the task up, in order, and reports since when. On one machine, whose processes
               share the monotonic clock, the pause is exact: from the begin of that owner's last commit until the task
               runs here. Over two machines no clocks are compared: the pause is `took` + `here`, and leaves out the
               way of the report between them (two trips to the log, and at most one look of the new owner).
    failover   the former owner was killed, or fenced, and reports nothing: the pause counts from its death. That lies
               between its last renewal, which was a lease before the group lost it, and the next one, a fifth of the
               lease later: the pause counts from the former. Where the end of the process has ended the
               lease, it counts from the last look that saw the owner live. The death of a worker process is seen within
               milliseconds. An instance that starts after the death counts from the moment when it found the task free.

Neither has the wait of a restore gate for other tasks, nor the first round of the loop after the task runs. The restart
of an instance that gets its own tasks back is no move and has no pause here.

Rules of this file: pure. Times are milliseconds of the machine's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

from standfast.replication.offsets import TaskId

PLANNED, FAILOVER = "planned", "failover"
KEPT_MAX = 1_000  # tasks in one report: the oldest are left out, so that no report outgrows a record
V = TypeVar("V")


class Left(NamedTuple):
    """A task that its owner gave up in order: when its last commit began, and how long it then took to close it."""

    at_ms: int
    took_ms: int


class Pause(NamedTuple):
    """A pause that has ended. `generation`: of the placement that brought the task here; 0: from worker to worker."""

    ms: int
    kind: str
    generation: int = 0


class _Free(NamedTuple):
    since_ms: int
    took_ms: int
    kind: str
    generation: int


class Deaths:
    """When the members that are gone renewed their leases for the last time, as far as this instance saw them live."""

    def __init__(self) -> None:
        self._seen: Collection[str] = ()
        self._seen_ms = 0
        self._gone: dict[str, tuple[int, int, int]] = {}  # between these two times, so long before it was seen

    def look(self, members: Collection[str], lease_ms: int, now_ms: int, ended: Collection[str] = ()) -> None:
        """Note the members of a look at the group, and those whose lease did not run out (`GroupView.ended`)."""
        if members is not self._seen:  # a large group is the same for most looks
            for name in self._gone.keys() & set(members):
                del self._gone[name]
            for name in set(self._seen).difference(members):
                ago_ms = 0 if name in ended else lease_ms
                self._gone[name] = self._seen_ms - ago_ms, now_ms - ago_ms, ago_ms
        self._seen, self._seen_ms = members, now_ms

    def since(self, name: str, placed_ms: int) -> int | None:
        """When a member that is gone last lived; None if it was never seen to live. `placed_ms`: of its tasks."""
        if name not in self._gone:
            return None
        # An instance that could not look for long knows the time of the leader's decision, which saw the death at once.
        first_ms, last_ms, ago_ms = self._gone[name]
        return min(max(placed_ms - ago_ms, first_ms), last_ms)


class PauseWatch:
    """The tasks that are on their way to one owner, and since when."""

    def __init__(self) -> None:
        self._free: dict[TaskId, _Free] = {}

    def __contains__(self, task: object) -> bool:
        return task in self._free

    def __bool__(self) -> bool:
        return bool(self._free)

    def frees(self, task: TaskId, kind: str, since_ms: int, *, took_ms: int = 0, generation: int = 0) -> None:
        """The task is free since then; `took_ms` was lost before, by another clock. A pause begins once."""
        self._free.setdefault(task, _Free(since_ms, took_ms, kind, generation))

    def left(self, task: TaskId, left: Left, now_ms: int, *, same_clock: bool, generation: int = 0) -> None:
        """The task is free after its owner gave it up; `same_clock`: that owner's clock is this machine's."""
        # A time ahead of the present is no time of this clock, whatever the boot id says.
        if same_clock and left.at_ms <= now_ms:
            self.frees(task, PLANNED, left.at_ms, generation=generation)
        else:
            self.frees(task, PLANNED, now_ms, took_ms=max(left.took_ms, 0), generation=generation)

    def runs(self, task: TaskId, at_ms: int) -> Pause | None:
        """The task runs since then: its pause, None if it was on no way."""
        free = self._free.pop(task, None)
        if free is None:
            return None
        return Pause(max(at_ms - free.since_ms, 0) + free.took_ms, free.kind, free.generation)

    def keep(self, tasks: Collection[TaskId]) -> None:
        """Forget all other tasks: they do not come here any more."""
        for task in self._free.keys() - tasks:
            del self._free[task]


def newest(found: Mapping[TaskId, V], among: Iterable[TaskId] | None = None) -> dict[TaskId, V]:
    """The last KEPT_MAX entries of a mapping in order of insertion; `among`: of these tasks alone."""
    wanted = found.keys() if among is None else found.keys() & set(among)
    return dict([(task, one) for task, one in found.items() if task in wanted][-KEPT_MAX:])
