"""The session of a worker process: the supervisor is the member of the group, and decides which tasks it holds.

    join_gate(Gate) ──> no task is open, and no standby begins, before the supervisor says so
    order(Order) ──> each round: give way to newer owners ──> LocalPart.follow ──> report(): its tasks, the round

A task of an order is opened once under the number that the order gives it. A task that is not here after that was lost
to another instance: it is reported as lost, and opened again only under a new number.

Rules of this file: the session's lock guards the order, so that a report never misses a task that an older order had
opened. The directory's lock is lent; rows go to the log in the name of the instance.
"""

from __future__ import annotations

from typing import Any

from standfast.replication.leases import IDLE, Busy
from standfast.replication.log import Group, GroupView
from standfast.replication.offsets import TaskId
from standfast.replication.pauses import Left, newest
from standfast.replication.placement.checkpoint import Order as CheckpointOrder
from standfast.replication.placement.checkpoint import PartReport
from standfast.replication.progress import LeaseProgress
from standfast.replication.takeover import Free
from standfast.store.errors import InternalError
from standfast.store.task.state_dir import StateDir
from standfast.stream.session.background import Repeated
from standfast.stream.session.host import CARE_THREAD
from standfast.stream.session.instance import Instance
from standfast.stream.session.local_part import LocalPart
from standfast.stream.session.membership import Membership
from standfast.stream.session.session import Session
from standfast.stream.task.states import TaskState
from standfast.stream.task.task import Task
from standfast.stream.workers.orders import ACTIVE, LOST, RESTORING, ReportedTask, WorkerOrder
from standfast.stream.workers.protocol import GateOrder

SETTLED = frozenset({TaskState.RUNNING, TaskState.STANDBY, TaskState.FAILED})  # no state on the way to another one


class LentMembership(Membership):
    """The instance's membership, as its workers see it: the supervisor joins, renews and leaves."""

    def look(self) -> GroupView:
        """The group is none of a worker's business."""
        raise InternalError("a worker decides nothing about other members")

    def publish(self) -> None:
        """Nothing to publish: the supervisor reports the tasks of all workers."""
        self.stale = False

    def heartbeat(self, group: Group, busy: Busy = IDLE) -> None:
        """The supervisor renews the lease."""

    def leave(self) -> None:
        """The supervisor leaves the group."""


class WorkerSession(Session):
    """See the head of this file. `progress` is shared with the supervisor, which watches it."""

    _leased = False
    alone = False  # whether the instance starts, and no other one lives

    def __init__(self, app: str, *, state_dir: StateDir, progress: LeaseProgress, **arguments: Any) -> None:
        self._shared_progress = progress
        self._order = WorkerOrder()
        self._misses_partitions = False
        self._gate_waits: tuple[str, ...] = ()  # the tasks that keep the instance's gate shut
        super().__init__(app, state_dir=state_dir, **arguments)

    def connect(self) -> None:
        """Look at the group and connect for claims, which a spare then has behind it. Raises Unavailable."""
        self._group.owners()
        self.log.prepare(())

    def order(self, order: WorkerOrder) -> None:
        """Hold exactly these tasks from now on. Raises the error that ended the background work."""
        with self._usable():
            self._order = order
            self._instance.follow_now()
        self._wake.set()

    def join_gate(self, gate: GateOrder) -> None:
        """Follow the restore gate of the instance."""
        self._gate_waits = gate.missing
        self._instance.readiness.join_gate(is_open=gate.open, standbys=gate.standbys)
        self._wake.set()

    def missing(self) -> tuple[str, ...]:
        """As of a session, with the tasks of other workers that keep the instance's gate shut."""
        lines = super().missing()
        if not self._instance.readiness.gate.is_held:
            return lines
        here = tuple(f"task {task_id} " for task_id in self._order.active)
        found = (*lines, *(f"{one} in another worker" for one in self._gate_waits if not one.startswith(here)))
        return found or ("the supervisor has not opened the restore gate of this instance yet",)

    def _waits(self) -> bool:
        return self._instance.readiness.gate.is_held or super()._waits()

    def report(self) -> tuple[int, dict[TaskId, ReportedTask]]:
        """The round of the present order, and all tasks that are here. Raises as `order`."""
        with self._usable():
            order, tasks = self._order, dict(self._instance.tasks)
            facts = self._part.facts()
            found = {
                task_id: ReportedTask(
                    task.role,
                    task.state.value if task.state is not TaskState.RUNNING or task_id in facts.running else RESTORING,
                    facts.lags.get(task_id, 0),
                    self.lives[task_id].opening,
                )
                for task_id, task in tasks.items()
            }
            for task_id, opening in order.active.items():
                if self.lives[task_id].opening == opening and not _is_active(tasks.get(task_id)):
                    found[task_id] = ReportedTask(ACTIVE, LOST, 0, opening)
            return order.round, found

    def follow_checkpoint(self, order: CheckpointOrder) -> None:
        """Follow the order of a coordinated checkpoint, from the loop's next round on."""
        parts = self._instance.parts
        assert parts is not None, "a worker takes part from the opening of its session on"
        parts.follow(order)

    def parts(self) -> PartReport | None:
        """The parts of the last checkpoint that had any in this process."""
        return None if self._instance.parts is None else self._instance.parts.report()

    @property
    def no_room(self) -> str:
        """Why the tasks of this instance are to go to others: the state directory takes no writes."""
        return self.disk.room.reported

    @property
    def stands(self) -> bool:
        """Whether tasks are to stand still for a checkpoint, so that each part is reported at once."""
        return self._instance.parts is not None and self._instance.parts.under_way

    def times(self) -> tuple[dict[TaskId, int], dict[TaskId, Left]]:
        """Since when tasks run here, and those given up in order; also of a session that is closed."""
        with self._lock:
            facts = self._part.facts()
            return dict(facts.since), newest(facts.left)

    @property
    def misses_partitions(self) -> bool:
        """Whether the supervisor ordered tasks of partitions that this process has not found yet."""
        return self._misses_partitions

    @property
    def settled(self) -> bool:
        """Whether the order is carried out: no further task leaves or comes soon. Some may be opened later."""
        order, tasks = self._order, dict(self._instance.tasks)
        waiting = self._instance.lives.awaited().keys() & order.tasks
        busy = {task_id for task_id, task in tasks.items() if task.state not in SETTLED}
        return tasks.keys() | waiting == order.tasks and busy <= waiting

    def _follow(self) -> None:
        """One round; called under the session's lock."""
        order, writers, known = self._order, self._instance.writers, self._instance.shared or frozenset()
        held = [task_id for task_id, task in self._instance.tasks.items() if task.role == ACTIVE]
        if held:
            self._part.give_way(writers.owners(held))
        self._misses_partitions = not known >= order.tasks
        self._part.follow(known.intersection(order.active), known & order.standby, self._may_open)

    def _may_open(self, task_id: TaskId) -> Free:
        opening, life = self._order.active[task_id], self.lives[task_id]
        if life.opening == opening:
            return Free.NO
        # Before the attempt: one that fails counts too, and the supervisor decides whether there is another.
        life.opening = opening
        return Free.UNOWNED if task_id in self._order.unowned else Free.GIVEN

    def _make_instance(self) -> Instance:
        instance = super()._make_instance()
        self._part = LocalPart(instance, self.clock, shares=True)
        instance.ordered = self._follow
        instance.manager.alone = lambda: self.alone
        instance.readiness.join_gate(is_open=False, standbys=False)  # until the first message of the supervisor
        return instance

    def _make_progress(self) -> LeaseProgress:
        return self._shared_progress

    def _make_membership(self) -> Membership:
        member, path = self._state.instance_id, self._state.path
        return LentMembership(self._group, member, self._settings.lease_ms, self._keeper, self.counters, path)

    def _repeats(self) -> dict[str, Repeated]:
        # The supervisor cares for the log.
        return {name: one for name, one in super()._repeats().items() if name != CARE_THREAD}


def _is_active(task: Task | None) -> bool:
    return task is not None and task.role == ACTIVE
