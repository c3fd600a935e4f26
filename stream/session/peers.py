"""Placements without a leader: each instance decides its own part, by its view of the group.

    each tick   view of the group, owners ──> lost to a newer owner? ──> take ──> close ──> stand by ──> publish

    static      a task whose owner is gone is taken over where its standby is
    shared      likewise, or by any instance; the first other members by id stand by
    group       the application's own consumer group decides the actives; standbys are spread evenly

Rules of this file: driven by the instance under the session's lock, and the task manager carries the wishes out.
`replication/takeover.py` and `replication/placement/group_standbys.py` decide; work that failed because the log did not
answer is tried again at the next tick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from standfast.replication.log import GroupView
from standfast.replication.offsets import TaskId
from standfast.replication.placement.group_standbys import may_release, place_standbys
from standfast.replication.takeover import MemberPlan, decide, plans, standby_wanted
from standfast.store.errors import StandfastError, Unavailable
from standfast.store.log import as_event, logger
from standfast.stream.session.membership import Membership
from standfast.stream.session.task_manager import TaskManager
from standfast.stream.task.settings import WARM_LAG_RECORDS
from standfast.stream.task.states import GONE, TaskState
from standfast.stream.tasks.attempts import WAITS

RETAKE_MS = 2_000  # an owner that is alive and has not run its task for so long counts as having given it up
Members = Mapping[str, MemberPlan]
Owners = Mapping[TaskId, str]


class PeerHost(Protocol):
    """An instance, as the code that decides its tasks needs it."""

    app: str
    shared: frozenset[TaskId] | None
    manager: TaskManager
    membership: Membership
    standbys_missing: int

    def follow_now(self) -> None: ...


class PeerStandbys(NamedTuple):
    """PeerStandbys to have and to close here, and the number of wanted ones for which no instance has a place."""

    wanted: frozenset[TaskId]
    closes: frozenset[TaskId]
    missing: int


class PeerPlacement:
    """One instance's part in a placement without a leader; `by_group`: a consumer group decides the actives."""

    def __init__(
        self, instance: PeerHost, replicas: int, *, by_group: bool, allowed: bool, learn: Callable[[], None]
    ) -> None:
        """`allowed`: False, and nothing is taken over. `learn` the partitions: without a task they may be unknown."""
        self._instance = instance
        self._replicas = replicas
        self._by_group = by_group
        self._allowed = allowed or by_group
        self._learn = learn
        self._warm: frozenset[TaskId] = frozenset()  # as last published

    def warm(self) -> frozenset[TaskId]:
        """PeerStandbys here that are close enough to the end to take their task over at once, where a group decides."""
        if not self._by_group:
            return frozenset()
        manager = self._instance.manager
        behind = {one.task for one in manager.readiness.tailer.changelogs.values() if one.lag > WARM_LAG_RECORDS}
        standing_by = (task_id for task_id, task in manager.tasks.items() if task.state is TaskState.STANDBY)
        return frozenset(task_id for task_id in standing_by if task_id not in behind)

    def tick(self, now_ms: int) -> None:
        """Look at the group and carry this instance's part out."""
        if not self._allowed:
            return
        instance, manager = self._instance, self._instance.manager
        view = instance.membership.look()
        members = plans(view)
        if instance.membership.member not in members:
            return  # the lease ran out: the next heartbeat joins again
        candidates = instance.shared
        if candidates is None:
            candidates = manager.lives.wanted.union(manager.tasks) if self._by_group else frozenset(manager.tasks)
        owners = manager.writers.owners(candidates)
        manager.writers.give_way(manager.tasks, owners)
        self._take(self._takes(view, members, owners, candidates, now_ms))
        if self._by_group:
            self._stand_by(self._of_group(members))
        elif instance.shared is not None:
            self._stand_by(self._of_shared(members, candidates))

    def _takes(
        self, view: GroupView, members: Members, owners: Owners, candidates: frozenset[TaskId], now_ms: int
    ) -> Mapping[TaskId, bool]:
        """The tasks to run here, each with whether only if no live member owns it."""
        if self._by_group:
            wanted = self._instance.manager.lives.wanted
            return {one: not self._left_idle(one, owners.get(one), members, now_ms) for one in wanted}
        return dict.fromkeys(decide(self._instance.membership.member, members, owners, candidates, view.busy), True)

    def _take(self, takes: Mapping[TaskId, bool]) -> None:
        manager = self._instance.manager
        held = manager.tasks
        manager.come(manager.lives.wanted.union(takes))
        due = [one for one in sorted(takes) if not manager.attempts.holds_back(one)]
        manager.writers.connect(one for one in due if one not in held or held[one].role == "standby")
        for task_id in due:
            task = held.get(task_id)
            if task is None or task.role == "standby":
                manager.take(task_id, if_free=takes[task_id])
            elif self._by_group and task.state in GONE and isinstance(task.error, Unavailable):
                self._reopen(task_id)  # its consumer reads on once it runs

    def _reopen(self, task_id: TaskId) -> None:
        manager = self._instance.manager
        try:
            manager.reopen(task_id)
        except WAITS as waits:
            manager.attempts.later(task_id, waits)
        except StandfastError as error:  # its owner's next call raises it; the other tasks are served
            about = as_event("task_not_reopened", task=task_id)
            logger.warning("task %s is not opened again: %s", task_id, error, extra=about)

    def _left_idle(self, task_id: TaskId, owner: str | None, members: Members, now_ms: int) -> bool:
        """Whether a task's last owner is alive but has not run it for RETAKE_MS: the group took the task from it."""
        plan = None if owner is None or owner == self._instance.membership.member else members.get(owner)
        life = self._instance.manager.lives[task_id]
        if plan is None or task_id in plan.active:
            life.idle_since_ms = None
            return False
        if life.idle_since_ms is None:
            life.idle_since_ms = now_ms
        return now_ms - life.idle_since_ms >= RETAKE_MS

    def _of_shared(self, members: Members, candidates: frozenset[TaskId]) -> PeerStandbys:
        me, owners = self._instance.membership.member, self._instance.manager.writers.owners(candidates)
        # By owners read again, because the tasks taken just now changed them.
        wanted = (one for one in candidates if standby_wanted(me, members, owners.get(one), self._replicas))
        # The owner of a task cannot be its standby, so one member fewer counts.
        missing = max(self._replicas - (len(members) - 1), 0) * len(candidates)
        return PeerStandbys(frozenset(wanted), frozenset(), missing)

    def _of_group(self, members: Members) -> PeerStandbys:
        me, manager = self._instance.membership.member, self._instance.manager
        placed = place_standbys(members, self._replicas)
        mine = placed.standbys[me]
        surplus = {one for one, task in manager.tasks.items() if task.role == "standby" and one not in mine}
        # A surplus standby stays until its successor has caught up, or a failure in between would find none.
        closes = frozenset(one for one in surplus if may_release(me, one, placed, members))
        return PeerStandbys(mine - manager.lives.wanted, closes, placed.missing)

    def _stand_by(self, found: PeerStandbys) -> None:
        instance, manager = self._instance, self._instance.manager
        for task_id in sorted(found.closes):
            manager.revoke(task_id)
        new = sorted(found.wanted - manager.tasks.keys())
        if new:
            self._learn()
        for task_id in new:
            manager.try_standby(task_id)
        before, instance.standbys_missing = instance.standbys_missing, found.missing
        if found.missing not in (0, before):
            about = as_event("standbys_missing", app=instance.app, missing=found.missing, wanted=self._replicas)
            logger.warning(
                "application %s: %d of the standbys asked for (%d a task) have no instance to run on: start more "
                "instances, or lower standby_replicas", instance.app, found.missing, self._replicas, extra=about,
            )  # fmt: skip
        before_warm, self._warm = self._warm, self.warm()
        if found.closes or new or self._warm != before_warm:
            instance.membership.publish()
