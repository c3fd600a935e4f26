"""The session of a sidecar's process, which assigns tasks so that one that cannot be opened keeps no other back.

Rules of this file: errors of the log as a whole are raised, because then the state of no task is known; every other
refusal (another definition, state that may be the last copy, a directory that is held) concerns its task alone, and is
returned by its partition. A task that another instance took over is taken back only if the application names it again:
the same order, carried out again by the sidecar itself, does not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from standfast.replication.log import Log
from standfast.replication.offsets import TaskId
from standfast.replication.tail.open_log import open_log
from standfast.store.errors import StandfastError, is_of_log
from standfast.stream.session.instance import Instance
from standfast.stream.session.session import Session
from standfast.stream.session.snapshot import restores_of
from standfast.stream.task.states import TaskState
from standfast.stream.task.statistics import RestoreStatistics
from standfast.stream.task.task import Task


class AssignedTask(NamedTuple):
    """A task, and its role and state at the moment of the snapshot. `is_open`: it runs, behind an open gate."""

    task: Task
    role: str
    state: TaskState
    is_open: bool


@dataclass(frozen=True, slots=True)
class HeldTasks:
    """Snapshot of a session, by partition. `lost`: tasks that another instance took over, and that stay with it."""

    tasks: Mapping[int, AssignedTask]
    restores: tuple[RestoreStatistics, ...]
    lost: frozenset[int]

    @property
    def running(self) -> dict[int, Task]:
        """Tasks that may process."""
        return {partition: one.task for partition, one in self.tasks.items() if one.is_open}


class SidecarSession(Session):
    """A session whose caller repeats the application's assignment by itself.

    A call that the log does not answer within a second raises Unavailable, since a client waits for each answer; a
    damaged log is tried again as well, so that open tasks can be read meanwhile.
    """

    def _open_log(self, address: str) -> Log:
        return open_log(address, clock=self.clock, patient=False)

    def _make_instance(self) -> Instance:
        instance = super()._make_instance()
        instance.leave_offsets()  # the client's consumer is in the group
        return instance

    def _retries(self, error: StandfastError) -> bool:
        return super()._retries(error) or is_of_log(error)

    def hold(
        self, active: Iterable[int], standby: Iterable[int], take_back: Iterable[int] = ()
    ) -> dict[int, StandfastError]:
        """`assign`, but of the tasks that another instance took over only those in `take_back` are taken back.

        Returns the refused ones, each with its error.
        """
        refused = self._assign(active, standby, frozenset(TaskId(0, partition) for partition in take_back))
        return {task_id.partition: error for task_id, error in refused.items()}

    def held(self) -> HeldTasks:
        """The tasks that the session holds now: one look under its lock."""
        # Everything at once: a control tick asked for these facts 11 times, each under a lock that restore work holds.
        with self._usable():
            instance = self._instance
            tasks = {}
            for task_id, task in instance.tasks.items():
                state = task.state  # another thread may fail the task meanwhile
                is_open = state is TaskState.RUNNING and instance.readiness.gate.is_open(task_id)
                tasks[task_id.partition] = AssignedTask(task, task.role, state, is_open)
            restores = restores_of(instance, self.clock.monotonic_ms())
            return HeldTasks(tasks, restores, frozenset(task_id.partition for task_id in instance.lives.lost))

    def reopen_if_free(self, partition: int) -> None:
        """Open a failed task again. Held if a live member took it over meanwhile: it is lost then."""
        with self._usable():
            self._instance.manager.reopen(TaskId(0, partition), if_free=True)
        self._wake.set()


def assign_each(
    session: SidecarSession, active: Iterable[int], standby: Iterable[int], take_back: Collection[int] = ()
) -> dict[int, StandfastError]:
    """Make exactly these the session's tasks; returns the refused ones, each with its error.

    Raises errors of the log as a whole (`is_of_log`): Unavailable, Corruption.
    Tasks that are lost and not in `take_back` stay lost (`HeldTasks.lost`), without a refusal.
    """
    active, standby = frozenset(active), frozenset(standby)
    refused = session.hold(active, standby, take_back)
    if refused:  # they are not this instance's, so that its gate does not wait for them
        session.hold(active - refused.keys(), standby - refused.keys(), take_back)
    return refused
