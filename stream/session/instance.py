"""One process among others: its tasks, its part in the group, and the code that decides which tasks it holds.

    task_manager.py   opens and closes tasks                   writers.py      which instance may write a task
    membership.py     this process in the group                readiness.py    restore, standbys, gate
    managed.py        a leader decides                         peers.py        each instance decides for itself

Rules of this file: driven by `poll_once` under the session's lock, by one thread at a time; it owns no thread. Pure
code decides on take-overs and placements; the task manager carries the decisions out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack

from standfast.replication.checkpoint_flow import Flow
from standfast.replication.offsets import TaskId
from standfast.replication.placement.model import PlacementSettings
from standfast.replication.placement.topic import PlacementTopic
from standfast.replication.takeover import MemberPlan, MemberTraits
from standfast.store.clock import Clock
from standfast.store.errors import (
    Fenced,
    InvalidRequest,
    ListenerFailed,
    StandfastError,
    Unavailable,
)
from standfast.store.log import as_event, logger
from standfast.stream.session.local_part import LocalPart
from standfast.stream.session.managed import ManagedPlacement
from standfast.stream.session.membership import Membership
from standfast.stream.session.peers import PeerPlacement
from standfast.stream.session.task_manager import Deciders, TaskManager
from standfast.stream.session.writers import Writers
from standfast.stream.snapshots.keeper import SnapshotKeeper
from standfast.stream.snapshots.parts import CheckpointParts
from standfast.stream.task.groups import all_task_ids, program_of, shapes_of
from standfast.stream.task.opener import TaskOpener
from standfast.stream.task.readiness import Readiness
from standfast.stream.task.settings import SessionSettings
from standfast.stream.task.states import GONE
from standfast.stream.task.statistics import SessionCounters
from standfast.stream.tasks.attempts import Refused, raise_worst
from standfast.stream.tasks.commit_plan import lost_task

TAKE_OVER_TICK_MS = 100
FOLLOW_TICK_MS = 500  # where a consumer group decides
ORDERED_TICK_MS = 500  # in a worker process: orders come at once, and a newer owner fences it at the log
RESTORING_TICK_MS = 500  # the same beside a restore: measured on Kafka, a look every 100 ms took a tenth of its time


class Instance:
    """The tasks of one process and the parts that drive them."""

    def __init__(
        self,
        opener: TaskOpener,
        writers: Writers,
        membership: Membership,
        readiness: Readiness,
        settings: SessionSettings,
        *,
        clock: Clock,
        counters: SessionCounters,
        learn_partitions: Callable[[], None],
        placement_topic: PlacementTopic | None = None,
    ) -> None:
        # The tasks that live instances share out by take-over; None: the caller assigns.
        spread = settings.placement in ("shared", "managed")
        self.app = opener.app
        self.manager = TaskManager(
            opener,
            writers,
            membership,
            readiness,
            counters,
            clock,
            Deciders(caller=settings.placement == "static", peers=spread, led=placement_topic is not None),
        )
        self.tasks = self.manager.tasks
        self.writers = writers
        self.lives = readiness.lives
        self.membership = membership
        membership.plan = self._plan
        self.readiness = readiness
        self.counters = counters
        self.standbys_missing = 0
        self.shared = all_task_ids(opener.groups) if spread else None
        self.by_group = settings.placement == "group"  # the application's own consumer group decides the actives
        self._traits = MemberTraits(1, settings.tags, program_of(opener.groups), settings.max_tasks)
        self.managed: ManagedPlacement | None = None
        if placement_topic is not None:
            self.managed = ManagedPlacement(
                self,
                LocalPart(self, clock),
                placement_topic,
                PlacementSettings(
                    settings.standby_replicas,
                    settings.warmups_max,
                    settings.acceptable_lag,
                    settings.restart_grace_ms,
                ),
                self._traits,
                frozenset(number for number, group in opener.groups.items() if not group.specs),
                opener.rows_on_disk(),
                shapes=shapes_of(opener.groups),
                replace=settings.replace,
            )
            self.managed.coordinator.opening = True
        self.parts: CheckpointParts | None = None  # of coordinated checkpoints
        self.ordered: Callable[[], None] | None = None  # in a worker process: the round that follows its supervisor
        self._peers = PeerPlacement(
            self,
            settings.standby_replicas,
            by_group=self.by_group,
            allowed=settings.take_over,
            learn=learn_partitions,
        )
        self._opener = opener
        self._clock = clock
        self._next_take_over_ms = 0

    def assign(
        self, active: Iterable[TaskId], standby: Iterable[TaskId], *, take_back: frozenset[TaskId] | None = None
    ) -> Refused:
        """Make exactly these the tasks of the process; others are closed, and held ones stay as they are.

        Returns the refused tasks, each with its error; raises errors of the log as a whole. Of the tasks that another
        instance took over, those in `take_back` are taken back, None: all of them. The others stay lost (`Lives.lost`),
        however recent the loss.
        """
        wanted_active, wanted_standby = frozenset(active), frozenset(standby)
        both = wanted_active & wanted_standby
        if both:
            raise InvalidRequest(f"task {min(both)} cannot be active and standby on one instance: choose one")
        stay_lost: frozenset[TaskId] = frozenset()
        if take_back is not None:
            held = take_back & self.manager.active
            if held:  # a task that commits nothing would not meet a newer owner at the log
                self.writers.give_way(self.tasks, self.writers.owners(held))
            self.manager.look_for_fenced(wanted_active)
            stay_lost = wanted_active & self.lives.lost.keys() - take_back
        self.lives.assign(wanted_active, wanted_standby, stay_lost=stay_lost)
        return self.manager.hold(wanted_active - stay_lost, wanted_standby)

    def take_part(self, keeper: SnapshotKeeper | None) -> None:
        """Take part in coordinated checkpoints, with the storage of `keeper`; without one every part fails."""
        if self.managed is None and self.ordered is None:
            return
        self.parts = CheckpointParts(keeper, self.counters.snapshots)
        if self.managed is not None:
            self.managed.parts = self.parts
            self.managed.coordinator.keeper = keeper
            self.managed.coordinator.opening = False

    def join_checkpoints(self, flow: Flow) -> CheckpointParts | None:
        """The parts for the loop of an application, whose groups are joined so; None if its placement has none."""
        if self.managed is not None:
            self.managed.coordinator.flow = flow
        return self.parts

    def grow(self, group: int, partitions: int) -> None:
        """Grow the changelogs of a group to that many partitions."""
        self._opener.grow(group, partitions)

    def share_out(self, tasks: frozenset[TaskId]) -> None:
        """Replace the set of tasks that instances share out, where they do."""
        self.shared = None if self.shared is None else tasks

    def adopt(self, added: Iterable[TaskId]) -> None:
        """Make these active here, beside the tasks that are, as the application's own consumer was assigned them."""
        self.leave_offsets()
        active, added = self.manager.active, frozenset(added)
        self.lives.adopt(added)
        try:
            raise_worst(self.manager.hold(frozenset(active | added), frozenset(self.tasks) - active - added))
        except (Unavailable, Fenced) as error:
            if not self.by_group:
                raise
            # Fenced: a former owner claimed one while it was opened here; the group's decision stands.
            logger.warning(
                "the tasks that the group assigned are opened as soon as the log answers: %s",
                error,
                extra=as_event("log_away"),
            )

    def leave_offsets(self) -> None:
        """Follow every committed offset: a consumer of the application's own is in the group."""
        self._opener.foreign_offsets.judges = False

    def give_up(self, tasks: Iterable[TaskId]) -> None:
        """Give these up, because they are active elsewhere: uncommitted changes are discarded."""
        gone = frozenset(tasks)
        self.lives.give_back(gone)
        for task_id in gone & self.manager.active:
            self.manager.revoke(task_id)
        self.membership.publish()

    def poll_once(self) -> int:
        """Run one round of restore, standby and take-over work; returns the number of applied records."""
        try:
            return self._round()
        except StandfastError:
            raise
        except BaseException as error:
            self.manager.begin_again(error)
            raise

    def _round(self) -> int:
        now_ms, manager = self._clock.monotonic_ms(), self.manager
        readiness, membership = self.readiness, self.membership
        manager.monitor_failed()
        manager.open_due(now_ms)
        restored = readiness.restore_round(now_ms)
        manager.handle(restored.failed)
        ran, failed = readiness.run_whole()
        manager.handle(failed)
        if ran:
            manager.has_run = True
            self.follow_now()  # reported at once: the leader plans the next moves by it
        # After the restores: standbys get no records while an active task restores.
        tailed = readiness.standby_round()
        manager.handle(tailed.failed)
        manager.handle(readiness.standby_tick(now_ms))
        # Tried again each round until the log takes it: other members decide by this instance's plan.
        if membership.stale:
            membership.publish()
        if ran and self.ordered is not None:  # standbys are opened a round later: that holds the session's lock
            return restored.records + tailed.applied + ran
        if now_ms >= self._next_take_over_ms or (self.managed is not None and self.managed.has_news()):
            self._next_take_over_ms = now_ms + self._interval_ms()
            if self.managed is not None:
                self.managed.tick(now_ms)
            elif self.ordered is not None:
                self.ordered()
            else:
                self._peers.tick(now_ms)
            if self._next_take_over_ms:  # again: the next look would delay restores that began just now
                self._next_take_over_ms = now_ms + self._interval_ms()
        return restored.records + tailed.applied

    def _interval_ms(self) -> int:
        """Time to the next look at the tasks that come or leave."""
        if self.by_group:
            return FOLLOW_TICK_MS
        if self.ordered is not None:
            return ORDERED_TICK_MS
        # Each look reads all members: in a group of hundreds a second of looks would cost more than all else.
        return max(RESTORING_TICK_MS if self.readiness.restorer.tasks else TAKE_OVER_TICK_MS, self.membership.size)

    def rests_for(self, for_ms: int) -> bool:
        """Whether no task is on its way to another state, or to this instance, or will be within that time."""
        waits = self.managed is not None and self.managed.waits_for_owner
        until_ms = self._clock.monotonic_ms() + for_ms
        return not (waits or self.readiness.restorer.tasks) and self.lives.rests_until(until_ms)

    def follow_now(self) -> None:
        """Decide about tasks in the next round, and not after the interval."""
        self._next_take_over_ms = 0

    def hasten(self) -> None:
        """The session closes, and waits for a round that is under way: it is to end soon. Any thread may call it."""
        self._opener.hasten()

    def close(self) -> None:
        """Close every task and leave the group, so that other members may take over at once."""
        # Run in reverse: tasks close before the group is left, or are committed and given up.
        with ExitStack() as last:  # every step runs, whatever errors the earlier ones raise
            readiness = self.readiness
            for close in (self._opener.close, readiness.close, self.membership.leave):
                last.callback(close)
            if self.managed is not None:
                last.callback(self.managed.close)
            for task_id in reversed(list(self.tasks)):
                last.callback(self.manager.revoke, task_id)
            if self.parts is not None:
                last.callback(self.parts.stop)  # it copies files of open tasks
            if self.managed is not None:
                last.callback(self.managed.leave_first)

    def _plan(self) -> MemberPlan:
        # A copy, because the lease's thread calls this while tasks come and go.
        if self.managed is not None:
            return MemberPlan(managed=self._traits)
        held = {task_id: task.role for task_id, task in dict(self.tasks).items() if task.state not in GONE}
        return MemberPlan(
            active=frozenset(task_id for task_id, role in held.items() if role == "active"),
            standby=frozenset(task_id for task_id, role in held.items() if role == "standby"),
            takes_any=self.shared is not None,
            warm=self._peers.warm(),
        )

    def absent(self) -> dict[TaskId, str]:
        """Tasks that are to be active here and are not, and why; where tasks are shared, those that wait."""
        here = {task_id for task_id, task in dict(self.tasks).items() if task.role == "active"}
        waiting = self.lives.awaited(active=True)
        wanted = self.lives.wanted if self.shared is None else frozenset()
        return {
            task_id: self.lives.why_lost(task_id)
            or "could not be opened yet" + (f" ({waiting[task_id]})" if task_id in waiting else "")
            for task_id in (wanted | waiting.keys()) - here
        }

    def unplaced(self) -> str:
        """Why it is not known yet which tasks this instance is to hold; empty once it is, or the caller names them."""
        return "" if self.managed is None else self.managed.unplaced()

    def check_lost(self) -> None:
        """Raise Fenced, or ListenerFailed, of a task that only the caller can bring back."""
        absent = {} if self.by_group else self.absent()
        for task_id in sorted(absent.keys() & self.lives.lost.keys()):
            raise lost_task(task_id, absent[task_id])
        for task in self.tasks.values():
            if task.role == "active" and isinstance(task.error, ListenerFailed):
                raise ListenerFailed(str(task.error)) from task.error.__cause__
