"""Placement `static` and `shared`: a task whose owner is gone is taken over; shared tasks also get their standbys.

    each tick   view of the group ──> lost to a newer owner?  ──> decide (pure) ──> take, if it is free
                                  ──> shared: stand by for what others own

Rules of this file: driven by the instance under the session's lock; who takes what is decided by
`standfast.replication.takeover`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from standfast.replication.log import GroupView
from standfast.replication.offsets import TaskId
from standfast.replication.tail.tailer import Tailer
from standfast.replication.takeover import decide, plans, standby_wanted
from standfast.store.errors import Fenced
from standfast.stream.session.task import GONE, Task


class Holder(Protocol):
    """An instance, as those see it who say what it shall hold."""

    app: str
    member: str
    tasks: dict[TaskId, Task]
    tailer: Tailer
    standbys_missing: int

    @property
    def shared(self) -> frozenset[TaskId] | None: ...
    def look_at_group(self) -> GroupView: ...
    def owners(self, candidates: frozenset[TaskId]) -> Mapping[TaskId, str]: ...
    def connect(self, tasks: Iterable[TaskId]) -> None: ...
    def take(self, task_id: TaskId, *, if_free: bool = True) -> None: ...
    def reopen(self, task_id: TaskId) -> None: ...
    def revoke(self, task_id: TaskId) -> None: ...
    def try_standby(self, task_id: TaskId) -> None: ...
    def publish(self) -> None: ...


def give_way(instance: Holder, owners: Mapping[TaskId, str]) -> None:
    """Fail the active tasks that run here and have a newer owner."""
    for task_id, owner in owners.items():
        task = instance.tasks.get(task_id)
        runs = task is not None and task.role == "active" and task.state not in GONE
        if task is not None and runs and task.error is None and owner != instance.member:
            task.fail(Fenced(f"{owner} owns task {task_id} now"))


class TakeOver:
    """What one instance does about tasks that nobody runs."""

    def __init__(self, instance: Holder, replicas: int, *, allowed: bool) -> None:
        self._instance = instance
        self._replicas = replicas
        self._allowed = allowed

    def tick(self) -> None:
        """Look at the group and take what falls to this instance."""
        if not self._allowed:
            return
        instance = self._instance
        members = plans(instance.look_at_group())
        if instance.member not in members:
            return
        candidates = instance.shared if instance.shared is not None else frozenset(instance.tasks)
        owners = instance.owners(candidates)
        give_way(instance, owners)
        due = sorted(decide(instance.member, members, owners, candidates))
        instance.connect(due)
        for task_id in due:
            instance.take(task_id)
        if instance.shared is not None:
            self._stand_by(frozenset(members), instance.owners(candidates), candidates)

    def _stand_by(self, members: frozenset[str], owners: Mapping[TaskId, str], candidates: frozenset[TaskId]) -> None:
        """Stand by for what others own, as far as replicas are asked for."""
        instance = self._instance
        instance.standbys_missing = max(self._replicas - (len(members) - 1), 0) * len(candidates)
        changed = False
        for task_id in sorted(candidates - frozenset(instance.tasks)):
            if standby_wanted(instance.member, members, owners.get(task_id), self._replicas):
                instance.try_standby(task_id)
                changed = True
        if changed:
            instance.publish()
