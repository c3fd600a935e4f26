"""A model of instances that carry out placements: copies restore at each instance's own speed, processes come and go.

    tick    events ──> reports ──> place (the real one) ──> instances close, open, restore ──> reports of the next tick

The log's claims are modelled: an active opens a task only while no other instance has it open, and a killed instance
keeps its claims until its lease ends. Instances may see an assignment a tick or two late.

Rules of this file: the model only, driven by the seeded `Random` that it is given; `checks` judges, `play` chooses the
events. No clock: a tick is TICK_MS.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from standfast.replication.offsets import TaskId
from standfast.replication.placement.model import (
    Assignment,
    Away,
    Copy,
    CopyState,
    PlacedMember,
    PlacementSettings,
    Round,
    View,
)
from standfast.replication.placement.place import place

TICK_MS = 1_000
LEASE_TICKS = 3
LATE_TICKS_MAX = 2


@dataclass(slots=True)
class Instance:
    """One process and its disk. `rows` are the positions of its copies, `open` the roles of the open ones."""

    id: str
    slots: int
    rack: str | None
    tags: dict[str, str]
    speed: int  # records that it restores in a tick, over all copies
    up: bool = True
    lease: int = LEASE_TICKS
    rows: dict[TaskId, int] = field(default_factory=dict)
    open: dict[TaskId, CopyState] = field(default_factory=dict)
    late: int = 0  # ticks in a row in which it has not seen the assignment
    max_tasks: int | None = None


@dataclass(slots=True)
class Cluster:
    """All instances, the log's ends and claims, and the leader's memory."""

    chance: Random
    settings: PlacementSettings
    ends: dict[TaskId, int]
    writes: dict[TaskId, int]
    stateless: frozenset[int] = frozenset()
    instances: dict[str, Instance] = field(default_factory=dict)
    claims: dict[TaskId, str] = field(default_factory=dict)
    previous: Assignment | None = None
    away: dict[str, tuple[int, bool]] = field(default_factory=dict)  # since tick, stopped
    tick: int = 0
    late_share: float = 0.2

    # --- events -----------------------------------------------------------------------------------------------------

    def start(self, instance: Instance) -> None:
        """A process starts, on a new disk or its old one."""
        self.instances[instance.id] = instance
        instance.up, instance.lease = True, LEASE_TICKS
        instance.open.clear()
        self._release(instance.id)  # its writers of before are gone: others may fence them

    def stop(self, name: str) -> None:
        """A process stops cleanly: it closes its tasks and leaves."""
        instance = self.instances[name]
        self.kill(name)
        instance.lease = 0
        self._release(name)
        self.away[name] = (self.tick, True)

    def kill(self, name: str) -> None:
        """A process ends at once: its lease and claims stay until the lease runs out."""
        instance = self.instances[name]
        instance.up = False
        instance.open.clear()

    # --- one tick ---------------------------------------------------------------------------------------------------

    def view(self) -> View:
        """The leader's view: members are processes whose lease lives."""
        members = tuple(self._report(one) for one in self.instances.values() if one.up or one.lease > 0)
        there = {member.id for member in members}
        away = {
            name: Away((self.tick - since) * TICK_MS, stopped)
            for name, (since, stopped) in self.away.items()
            if name not in there
        }
        return View(members, tuple(self.ends), self.settings, self.previous, away, self.stateless)

    def round(self, view: View) -> Round:
        """One placement, published."""
        result = place(view)
        self.previous = result.assignment
        return result

    def carry_out(self) -> None:
        """Instances follow the assignment, restore, and their leases go on."""
        assignment = self.previous
        assert assignment is not None
        wanted: dict[str, dict[TaskId, CopyState]] = {name: {} for name in self.instances}
        for task, name in assignment.active.items():
            wanted[name][task] = CopyState.RUNNING
        for task, names in assignment.standbys.items():
            for name in names:
                wanted[name][task] = CopyState.STANDBY
        for task, name in assignment.warmups.items():
            wanted[name][task] = CopyState.WARMUP
        followers = [one for one in self.instances.values() if one.up and not self._is_late(one)]
        for instance in followers:
            self._close(instance, wanted[instance.id])
        for instance in followers:
            self._open(instance, wanted[instance.id], assignment)
        for instance in self.instances.values():
            if instance.up:
                self._restore(instance)
            elif instance.lease > 0:
                instance.lease -= 1
                if instance.lease == 0:
                    self.away[instance.id] = (self.tick, False)
                    self._release(instance.id)
        for task, name in self.claims.items():
            if self.instances[name].open.get(task) is CopyState.RUNNING:
                self.ends[task] += self.writes[task]
                self.instances[name].rows[task] = self.ends[task]
        self.tick += 1

    def _is_late(self, instance: Instance) -> bool:
        # Not for ever, or a course would end before an instance has followed its last assignment.
        late = instance.late < LATE_TICKS_MAX and self.chance.random() < self.late_share
        instance.late = instance.late + 1 if late else 0
        return late

    def serving(self, task: TaskId) -> str | None:
        """The instance that processes the task's records now."""
        name = self.claims.get(task)
        return name if name is not None and self.instances[name].open.get(task) is CopyState.RUNNING else None

    def is_up(self) -> list[str]:
        """Ids of the processes that run."""
        return [one.id for one in self.instances.values() if one.up]

    def _report(self, instance: Instance) -> PlacedMember:
        copies = {}
        stored = instance.rows.keys() | instance.open.keys()
        for task in stored if instance.up else ():
            state = instance.open.get(task, CopyState.STORED)
            lag = self.ends[task] - instance.rows.get(task, 0)
            copies[task] = Copy(state, lag, self.ends[task])
        if not instance.up:  # killed, and its lease lives: the leader has its last report, in which it ran its tasks
            copies = {task: Copy(CopyState.RUNNING, 0) for task, owner in self.claims.items() if owner == instance.id}
        return PlacedMember(
            instance.id, instance.slots, instance.rack, instance.tags, copies, max_tasks=instance.max_tasks
        )

    def _close(self, instance: Instance, wanted: dict[TaskId, CopyState]) -> None:
        for task, state in list(instance.open.items()):
            active = state in (CopyState.RUNNING, CopyState.RESTORING)
            if active and wanted.get(task) is not CopyState.RUNNING:
                del instance.open[task]
                self.claims.pop(task, None)
            elif not active and task not in wanted:
                del instance.open[task]

    def _open(self, instance: Instance, wanted: dict[TaskId, CopyState], assignment: Assignment) -> None:
        for task, state in wanted.items():
            free = self.claims.get(task, instance.id) == instance.id
            if state is CopyState.RUNNING and free and task not in self._active(instance):
                self.claims[task] = instance.id
                instance.open[task] = CopyState.RESTORING
        restoring = CopyState.RESTORING in instance.open.values()
        for task, state in wanted.items():
            # Standbys begin only after all actives of the instance are restored.
            if state is not CopyState.RUNNING and (task in instance.open or not restoring):
                instance.open[task] = state

    def _active(self, instance: Instance) -> set[TaskId]:
        return {task for task, one in instance.open.items() if one in (CopyState.RUNNING, CopyState.RESTORING)}

    def _restore(self, instance: Instance) -> None:
        behind = [task for task in instance.open if instance.rows.get(task, 0) < self.ends[task]]
        for task in behind:
            share = max(1, instance.speed // len(behind))
            instance.rows[task] = min(self.ends[task], instance.rows.get(task, 0) + share)
        for task, state in instance.open.items():
            if state is CopyState.RESTORING and instance.rows.get(task, 0) >= self.ends[task]:
                instance.open[task] = CopyState.RUNNING
                instance.rows[task] = self.ends[task]

    def _release(self, name: str) -> None:
        for task in [task for task, owner in self.claims.items() if owner == name]:
            del self.claims[task]


def new_instances(chance: Random, names: Iterable[str], *, racks: int, hosts: bool, slots_max: int) -> list[Instance]:
    """Instances on new disks."""
    made = []
    for number, name in enumerate(names):
        rack = f"r{chance.randrange(racks)}" if racks else None
        tags = {"host": f"h{number // 2}"} if hosts else {}
        made.append(Instance(name, chance.randint(1, slots_max), rack, tags, chance.choice((2_000, 5_000, 50_000))))
    return made
