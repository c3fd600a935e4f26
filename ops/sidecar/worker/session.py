"""The session of a sidecar's process: a task that cannot be opened keeps no other back, and is opened again later.

Rules of this file: errors of the log as a whole are raised, because then the state of no task is known; every other
refusal (another definition, state that may be the last copy, a directory that is held) concerns its task alone, which
stays closed with the error. A task that another instance took over is taken back only if the application names it
again: the same order, carried out again by the sidecar itself, does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from standfast.replication.log import Log
from standfast.replication.offsets import TaskId
from standfast.replication.tail.open_log import open_log
from standfast.store.errors import Fenced, StandfastError, is_of_log
from standfast.store.log import as_event, logger
from standfast.stream.restart import ExponentialDelay, RestartHistory
from standfast.stream.session.instance import Instance
from standfast.stream.session.session import Session
from standfast.stream.session.snapshot import restores_of
from standfast.stream.task.states import GONE, TaskState
from standfast.stream.task.statistics import RestoreStatistics
from standfast.stream.task.task import Task
from standfast.stream.tasks.attempts import PUT_OFF

# A failed task is opened again without an end: the application decides when it goes elsewhere.
RESTARTS = ExponentialDelay(
    initial_ms=100, max_ms=10_000, reset_after_ms=60_000, same_offset=None, without_commit_ms=None
)


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

    def hold(self, active: Iterable[int], standby: Iterable[int], take_back: Iterable[int] = ()) -> None:
        """`assign`, but of the tasks that another instance took over only those in `take_back` are taken back.

        A refused task stays closed here with its error, and is opened again later (`open_failed`). Raises errors of the
        log as a whole (`is_of_log`): Unavailable, Corruption.
        """
        refused = self._assign(active, standby, frozenset(TaskId(0, partition) for partition in take_back))
        with self._usable():
            manager = self._instance.manager
            for task_id, error in refused.items():
                role, task = "active" if self.lives[task_id].wanted else "standby", manager.tasks.get(task_id)
                if task is None:
                    manager.tasks[task_id] = manager.opener.closed(task_id, error, role)
                elif task.state not in GONE and not isinstance(error, PUT_OFF):  # a standby that cannot be promoted
                    manager.readiness.remove(task_id, "failed")
                    task.role = role
                    task.fail(error)

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

    def open_failed(self) -> None:
        """Have the background work open every failed task again, each at its time; one that a live member took over
        meanwhile is lost then."""
        now_ms = self.clock.monotonic_ms()
        with self._usable():
            for task_id, task in self._instance.tasks.items():
                life = self.lives[task_id]
                # A commit that fails still uses the task, and ends within the log's time-outs.
                waits = life.attempt is not None or task.committing or isinstance(task.error, Fenced)
                if task.state in GONE and not waits:
                    life.failures = life.failures or RestartHistory(RESTARTS)
                    delay_ms = life.failures.failed(now_ms) or 0
                    about = as_event("task_failed", task=task_id, restart_ms=delay_ms)
                    logger.error("task %s is opened again in %d ms: %s", task_id, delay_ms, task.error, extra=about)
                    self.open_later(task, str(task.error), delay_ms)
