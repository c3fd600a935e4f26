"""Placement `static` and `shared`: a task whose owner is gone is taken over; shared tasks also get their standbys.

    each tick   view of the group ──> lost to a newer owner?  ──> decide (pure) ──> take, if it is free
                                  ──> shared: standbys of tasks of other owners

Rules of this file: driven by the instance under the session's lock; `standfast.replication.takeover` decides which
member takes which task.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from standfast.replication.offsets import TaskId
from standfast.replication.takeover import decide, plans, standby_wanted
from standfast.stream.session.membership import Membership
from standfast.stream.session.writers import Writers
from standfast.stream.task.readiness import Readiness
from standfast.stream.task.task import Task
from standfast.stream.tasks.attempts import Attempts
from standfast.stream.tasks.life import Lives


class Holder(Protocol):
    """An instance, as the code that decides its tasks needs it."""

    app: str
    tasks: dict[TaskId, Task]
    shared: frozenset[TaskId] | None
    writers: Writers
    membership: Membership
    readiness: Readiness
    lives: Lives
    attempts: Attempts
    standbys_missing: int

    def take(self, task_id: TaskId, *, if_free: bool = True) -> None: ...
    def reopen(self, task_id: TaskId) -> None: ...
    def revoke(self, task_id: TaskId) -> None: ...
    def try_standby(self, task_id: TaskId) -> None: ...
    def follow_now(self) -> None: ...


class TakeOver:
    """One instance's part in the take-over of tasks that no member runs."""

    def __init__(self, instance: Holder, replicas: int, *, allowed: bool) -> None:
        self._instance = instance
        self._replicas = replicas
        self._allowed = allowed

    def tick(self) -> None:
        """Look at the group and take the tasks that this instance must take."""
        if not self._allowed:
            return
        instance, writers, member = self._instance, self._instance.writers, self._instance.membership.member
        view = instance.membership.look()
        members = plans(view)
        # The lease ran out: the next heartbeat joins again.
        if member not in members:
            return
        candidates = instance.shared if instance.shared is not None else frozenset(instance.tasks)
        owners = writers.owners(candidates)
        writers.give_way(instance.tasks, owners)
        due = sorted(decide(member, members, owners, candidates, view.busy))
        here = (task_id for task_id, task in instance.tasks.items() if task.role == "active")
        instance.lives.keep({*due, *here, *instance.lives.wanted})
        due = [one for one in due if not instance.attempts.holds_back(one)]
        writers.connect(due)
        for task_id in due:
            instance.take(task_id)
        if instance.shared is not None:
            # Owners are read again, because the tasks taken just now changed them.
            self._stand_by(frozenset(members), writers.owners(candidates), candidates)

    def _stand_by(self, members: frozenset[str], owners: Mapping[TaskId, str], candidates: frozenset[TaskId]) -> None:
        """Open standbys of tasks with other owners, as far as replicas are configured."""
        instance = self._instance
        # The owner of a task cannot be its standby, so one member fewer counts.
        instance.standbys_missing = max(self._replicas - (len(members) - 1), 0) * len(candidates)
        changed = False
        for task_id in sorted(candidates - frozenset(instance.tasks)):
            if standby_wanted(instance.membership.member, members, owners.get(task_id), self._replicas):
                instance.try_standby(task_id)
                changed = True
        if changed:
            instance.membership.publish()
