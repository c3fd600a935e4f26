"""Placement `group`: the application's own consumer group decides the actives; this file places the standbys.

    each tick   view of the group ──> lost to a newer owner?  ──> place_standbys (pure) ──> open, keep, close
                                  ──> a wanted task that does not run here: open it, if it is free

Rules of this file: driven by the instance under the session's lock; `replication/placement/group_standbys.py` decides
which member has which standby. Work that failed because the log was unavailable is tried again at the next tick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from standfast.replication.offsets import TaskId
from standfast.replication.placement.group_standbys import may_release, place_standbys
from standfast.replication.takeover import MemberPlan, plans
from standfast.store.errors import StandfastError, Unavailable
from standfast.store.log import as_event, logger
from standfast.stream.session.take_over import Holder
from standfast.stream.task.settings import WARM_LAG_RECORDS
from standfast.stream.task.states import GONE, TaskState
from standfast.stream.tasks.attempts import WAITS

FOLLOW_TICK_MS = 500
RETAKE_MS = 2_000  # an owner that is alive and has not run its task for so long counts as having given it up


class GroupFollower:
    """One instance's part in the placement of standbys beside its consumer group."""

    def __init__(self, instance: Holder, replicas: int, learn_partitions: Callable[[], None]) -> None:
        self._instance = instance
        self._replicas = replicas
        self._learn_partitions = learn_partitions  # an instance without an active task may not know the partition count
        self._told: tuple[frozenset[TaskId], int] = (frozenset(), 0)  # warm, missing: as last published

    def warm(self) -> frozenset[TaskId]:
        """Standbys here that are close enough to the end to take their task over at once."""
        behind = {
            tailed.task
            for tailed in self._instance.readiness.tailer.changelogs.values()
            if tailed.lag > WARM_LAG_RECORDS
        }
        standing_by = (task_id for task_id, task in self._instance.tasks.items() if task.state is TaskState.STANDBY)
        return frozenset(task_id for task_id in standing_by if task_id not in behind)

    def tick(self, now_ms: int) -> None:
        """Look at the group, open the wanted tasks, and bring the standbys in line with the group."""
        instance, writers, member = self._instance, self._instance.writers, self._instance.membership.member
        members = plans(instance.membership.look())
        if member not in members:
            return  # the lease ran out: the next heartbeat joins again
        wanted = instance.lives.wanted  # active here, as the group decided
        owners = writers.owners(instance.tasks.keys() | wanted)
        writers.give_way(instance.tasks, owners)
        held = instance.tasks
        instance.lives.keep(wanted)
        due = [one for one in sorted(wanted) if not instance.attempts.holds_back(one)]
        writers.connect(one for one in due if one not in held or held[one].role == "standby")
        for task_id in due:
            task = instance.tasks.get(task_id)
            if task is None or task.role == "standby":
                instance.take(task_id, if_free=not self._left_idle(task_id, owners.get(task_id), members, now_ms))
            elif task.state in GONE and isinstance(task.error, Unavailable):  # closed: an earlier attempt failed
                try:
                    instance.reopen(task_id)
                except WAITS as waits:
                    instance.attempts.later(task_id, waits)
                except StandfastError as error:  # its owner's next call raises it; the other tasks are served
                    logger.warning(
                        "task %s is not opened again: %s",
                        task_id,
                        error,
                        extra=as_event("task_not_reopened", task=task_id),
                    )
        placed = place_standbys(members, self._replicas)
        changed = False
        mine = placed.standbys[member]
        for task_id, task in list(instance.tasks.items()):
            surplus = task.role == "standby" and task_id not in mine
            # A surplus standby stays until its successor has caught up, or a failure in between would find none.
            if surplus and may_release(member, task_id, placed, members):
                instance.revoke(task_id)
                changed = True
        new = sorted(mine - frozenset(instance.tasks) - wanted)
        if new:
            self._learn_partitions()
        for task_id in new:
            instance.try_standby(task_id)
            changed = True
        self._tell(placed.missing, changed)

    def _left_idle(self, task_id: TaskId, owner: str | None, members: Mapping[str, MemberPlan], now_ms: int) -> bool:
        """Whether a task's last owner is alive but has not run it for RETAKE_MS: the group took the task from it."""
        plan = None if owner is None or owner == self._instance.membership.member else members.get(owner)
        life = self._instance.lives[task_id]
        if plan is None or task_id in plan.active:
            life.idle_since_ms = None
            return False
        if life.idle_since_ms is None:
            life.idle_since_ms = now_ms
        return now_ms - life.idle_since_ms >= RETAKE_MS

    def _tell(self, missing: int, changed: bool) -> None:
        warm, missed = self._told
        self._told = (self.warm(), missing)
        self._instance.standbys_missing = missing
        if missing and missing != missed:
            logger.warning(
                "application %s: %d of the standbys asked for (%d a task) have no instance to run on: start more "
                "instances, or lower standby_replicas",
                self._instance.app,
                missing,
                self._replicas,
                extra=as_event("standbys_missing", app=self._instance.app, missing=missing, wanted=self._replicas),
            )
        if changed or warm != self._told[0]:
            self._instance.membership.publish()
