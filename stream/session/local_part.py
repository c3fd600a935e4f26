"""The tasks of one instance, as placement gives and takes them, and those of one process.

    follow   active tasks that are no longer wanted: the loop commits them, they are reported as free and closed later
             active tasks that come: opened once they are free, several at a time
             copies: opened and closed for a bounded time a round, after the active tasks

Rules of this file: driven under the session's lock, as `managed.py`, whose `InstancePart` it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from standfast.replication.leases import BusyWatch
from standfast.replication.offsets import TaskId
from standfast.replication.pauses import Left
from standfast.replication.takeover import Free
from standfast.store.clock import Clock
from standfast.store.log import as_event, logger
from standfast.stream.session.giving_up import give, give_all
from standfast.stream.session.peers import PeerHost
from standfast.stream.task.states import GONE, TaskState
from standfast.stream.task.task import Task

LEAVE_EVERY_MS = 100  # about the time in which a task is closed, reported and opened elsewhere
ACTIVES_FIRST_MS = 1_000  # for so long after the opening of an active task standbys are opened after it
COPIES_MS, CALM_COPIES_MS = 150, 1_000  # of opening and closing copies in one round, while tasks move and else
LEAVE_PART = 50  # of more tasks than this, a fiftieth leaves at once: 1,000 are gone in 18 s, not in 100


class InstanceFacts(NamedTuple):
    """The tasks of an instance: `running` and `restoring` are active; `lags` are the records that each copy lacks.

    A task that was opened while the loop has a record of another one in hand is `restoring` until the loop begins it.
    `since`: from when on the running ones run, in monotonic milliseconds; `left`: tasks that were given up in order.
    `workers` are the tasks of each worker process; empty if the instance is one process. `no_room`: why the state
    directory takes no writes, so that tasks are to go to other instances.
    """

    running: frozenset[TaskId]
    restoring: frozenset[TaskId]
    lags: Mapping[TaskId, int]
    since: Mapping[TaskId, int]
    left: Mapping[TaskId, Left]
    workers: tuple[frozenset[TaskId], ...] = ()
    no_room: str = ""


class InstancePart(Protocol):
    """The tasks of one instance, as placement gives and takes them."""

    def follow(self, active: frozenset[TaskId], standby: frozenset[TaskId], is_free: Callable[[TaskId], Free]) -> None:
        """Hold these tasks and no others. An active task is opened once it `is_free`: no other instance runs it.

        One that no live instance owns is claimed if that is so at the log as well.
        """
        ...

    def facts(self) -> InstanceFacts:
        """The tasks that are held now."""
        ...

    def held(self) -> Collection[TaskId]:
        """Tasks whose directories may be open."""
        ...

    def give_way(self, owners: Mapping[TaskId, str]) -> None:
        """Give up the active tasks that have a newer owner."""
        ...

    def give_up(self) -> bool:
        """Give up all active tasks, as the instance stops; False, and none, if one must be closed first."""
        ...


class LocalPart:
    """The tasks of this process. `shares`: the next owner may open the same directory, so that tasks close first."""

    def __init__(self, instance: PeerHost, clock: Clock, *, shares: bool = False) -> None:
        self._instance = instance
        self._manager = instance.manager
        instance.manager.readiness.gives_away = True
        self._clock = clock
        self._shares = shares
        self._next_leave_ms = 0
        self._opened_ms = -ACTIVES_FIRST_MS
        self._busy = BusyWatch()

    def follow(self, active: frozenset[TaskId], standby: frozenset[TaskId], is_free: Callable[[TaskId], Free]) -> None:
        """As in `InstancePart`."""
        instance, manager = self._instance, self._manager
        lives = manager.lives
        waiting, surplus, closes = [], [], False
        for task_id, task in list(manager.tasks.items()):
            if task.role == "active" and task_id in active:
                task.leaving = False  # the move was taken back before the loop had let it go
                lives[task_id].given = False
            elif task.role == "active" and task.looped and task.state is TaskState.RUNNING:
                if not task.leaving:
                    waiting.append(task)
            elif task.role == "active":
                if lives[task_id].given:
                    surplus.append(task_id)
                    continue
                closes = True
                if self._shares or not give(lives, task, self._clock.monotonic_ms()):
                    self._close(task_id)
                else:
                    task.leaving = True  # others may open it at once: the loop neither runs it nor opens it again
            elif task.role == "standby" and task_id not in active | standby:
                surplus.append(task_id)
        self._let_go(waiting)
        held = manager.tasks
        manager.come(active)
        coming = [one for one in sorted(active) if one not in held or held[one].role == "standby"]
        coming = [one for one in coming if not manager.attempts.holds_back(one)]
        manager.writers.connect(coming)  # also for those that their owner still serves
        # `is_free` last: in a worker process it begins the opening that an order numbers.
        due = {one: free is Free.UNOWNED for one in coming if (free := is_free(one))}
        with manager.writers.opened(due):
            for task_id, if_free in due.items():
                # Else its former owner reported that it runs the task no more: it may be taken from a live member.
                manager.take(task_id, if_free=if_free)
        if closes:
            instance.follow_now()
            return  # others wait for the report that these tasks are free
        now_ms = self._clock.monotonic_ms()
        late_ms = now_ms + (COPIES_MS if waiting or coming else CALM_COPIES_MS)
        for task_id in surplus:
            if self._is_late(late_ms):
                return
            self._close(task_id)
        if due:
            self._opened_ms = now_ms
        if now_ms - self._opened_ms < ACTIVES_FIRST_MS and any(
            task.role == "active" and task.state is TaskState.RESTORING for task in manager.tasks.values()
        ):
            return  # a task with warm rows runs a round later; standbys get no records before, so opening them can wait
        for task_id in sorted(standby - manager.tasks.keys()):
            if self._is_late(late_ms):
                return
            manager.try_standby(task_id)

    def _is_late(self, late_ms: int) -> bool:
        """Whether copies are for the next round, since others wait for this one's report and for tasks that come."""
        late = self._clock.monotonic_ms() >= late_ms
        if late:
            self._instance.follow_now()
        return late

    def facts(self) -> InstanceFacts:
        """As in `InstancePart`."""
        manager = self._manager
        tasks, lives = dict(manager.tasks), manager.lives
        active = frozenset(
            one for one, task in tasks.items()
            if task.role == "active" and task.state not in GONE and not lives[one].given
        )  # fmt: skip
        # As the lease process measures it: the leader learns of both together, and an idle copy takes the task.
        now_ms, lease_ms = self._clock.monotonic_ms(), self._instance.membership.lease_ms
        loops = manager.readiness.progress.loops()
        held_up = any(self._busy.look(loops, 0, lease_ms, now_ms).loops_ms)
        running = frozenset(
            one for one in active if tasks[one].state is TaskState.RUNNING and (tasks[one].looped or not held_up)
        )
        lags = {one: 0 for one, task in tasks.items() if task.state is TaskState.STANDBY}
        for tailed in manager.readiness.tailer.changelogs.values():
            if tailed.task in lags:
                lags[tailed.task] += tailed.lag
        restores = manager.readiness.restorer.tasks
        lags |= {one: restores[one].remaining for one in active if one in restores}
        since = {one: tasks[one].runs_since_ms for one in running}
        left = {one: left for one, left in lives.left.items() if one not in active}
        no_room = manager.readiness.room.reported
        return InstanceFacts(running, active - running, lags, since, left, no_room=no_room)

    def held(self) -> Collection[TaskId]:
        """As in `InstancePart`."""
        return self._manager.tasks.keys()

    def give_way(self, owners: Mapping[TaskId, str]) -> None:
        """As in `InstancePart`."""
        # Not those that it has given up: their new owner comes before they are closed here.
        manager = self._manager
        theirs = {task_id: owner for task_id, owner in owners.items() if not manager.lives[task_id].given}
        manager.writers.give_way(manager.tasks, theirs)

    def give_up(self) -> bool:
        """As in `InstancePart`."""
        if self._shares:
            return False
        return give_all(self._manager.lives, self._manager.tasks.values(), self._clock.monotonic_ms())

    def _close(self, task_id: TaskId) -> None:
        logger.info("task %s leaves this instance", task_id, extra=as_event("task_left", task=task_id))
        self._manager.revoke(task_id)

    def _let_go(self, waiting: Sequence[Task]) -> None:
        """Let the loop commit the next of the tasks that leave and end its run; the round after that closes it."""
        # One after the other, each served until its turn: of many that leave at once, the last would stand still until
        # the first ones are closed here and open there.
        now_ms = self._clock.monotonic_ms()
        if waiting and now_ms >= self._next_leave_ms:
            self._next_leave_ms = now_ms + LEAVE_EVERY_MS
            for task in waiting[: leaving_at_once(len(waiting))]:
                task.leaving = True


def leaving_at_once(waiting: int) -> int:
    """How many of the tasks that wait to leave an instance do so now."""
    return -(-waiting // LEAVE_PART)
