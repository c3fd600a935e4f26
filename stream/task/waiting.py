"""Tasks that cannot be opened yet although the log answers: a transaction, a storage or a directory keeps their rows.

    opening  ──> TransactionOpen, SnapshotsAway, Held ──┐
    any write of the task's files ──> NoRoom ───────────┤
    restored ──> OffsetsOpen ───────────────────────────┴──> add ──> later another attempt ──> open, lost, left: drop

Rules of this file: it notes tasks and opens none. Driven by the instance; other threads read copies.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import NamedTuple, TypeAlias

from standfast.replication.log import TransactionOpen
from standfast.replication.offsets import TaskId
from standfast.replication.record_limits import RecordRefused
from standfast.store.clock import Clock
from standfast.store.errors import Held, Unavailable
from standfast.store.file_errors import NoRoom
from standfast.store.log import as_event, logger
from standfast.stream.snapshots.beginning import SnapshotsAway

LATER_MS = 10_000  # between two attempts: each opens a writer
HELD_LATER_MS = 500  # where the directory is held: its holder may end soon
Wait: TypeAlias = SnapshotsAway | TransactionOpen | NoRoom
WAITS = (SnapshotsAway, TransactionOpen, NoRoom)  # also of committed offsets


class Waiting(NamedTuple):
    """When to try a task again, the reason, and whether it is to be active here."""

    due_ms: int
    why: str
    active: bool


class WaitingTasks:
    """See the head of this file."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: dict[TaskId, Waiting] = {}

    def add(self, task_id: TaskId, why: Wait | Held, *, active: bool = True) -> Unavailable:
        """Note a task for a later attempt, so that the others do not wait for it; returns the error."""
        later_ms, event = (HELD_LATER_MS, "task_held") if isinstance(why, Held) else (LATER_MS, why.event)
        self._tasks[task_id] = Waiting(self._clock.monotonic_ms() + later_ms, str(why), active)
        # Of a full disk the instance speaks for all of its tasks, once a minute.
        level = logging.DEBUG if isinstance(why, NoRoom) else logging.WARNING
        logger.log(level, "task %s cannot be opened yet: %s", task_id, why, extra=as_event(event, task=task_id))
        return why

    def holds_back(self, task_id: TaskId) -> bool:
        """Whether the next attempt at a task is not due yet."""
        found = self._tasks.get(task_id)
        return found is not None and self._clock.monotonic_ms() < found.due_ms

    def drop(self, task_id: TaskId) -> None:
        """The task is open, or not this instance's."""
        self._tasks.pop(task_id, None)

    def keep(self, active: Collection[TaskId], standby: Collection[TaskId] | None = None) -> None:
        """Forget the tasks that are not to come here any more; None: whatever their standbys."""
        self._tasks = {
            task_id: one
            for task_id, one in self._tasks.items()
            if task_id in active or (not one.active if standby is None else task_id in standby)
        }

    @property
    def tasks(self) -> frozenset[TaskId]:
        """All of them, standbys too."""
        return frozenset(self._tasks.copy())

    def active(self) -> dict[TaskId, str]:
        """Those that are to be active here, and why they are not."""
        return {task_id: one.why for task_id, one in self._tasks.copy().items() if one.active}


def tell_waits(task_id: TaskId, service: str, error: Exception) -> None:
    """Say that a task is opened again as soon as a service answers."""
    about = as_event("task_waits_for_log", task=task_id, service=service)
    logger.warning("task %s is opened again when %s answers: %s", task_id, service, error, extra=about)


def tell_refused(task_id: TaskId, error: RecordRefused) -> None:
    """Say that the log refused a record for its size, and that its sources are processed again up to there."""
    about = as_event("record_refused", task=task_id, topic=error.topic, bytes=error.size)
    logger.warning("task %s is opened again at once, to leave a record out or to fail at it: %s", task_id, error,
                   extra=about)  # fmt: skip
