"""Tasks that cannot be opened yet although the log answers: a transaction, a storage or a directory keeps their rows.

    opening  ──> TransactionOpen, SnapshotsAway, Held ──┐
    any write of the task's files ──> NoRoom ───────────┤
    restored ──> OffsetsOpen ───────────────────────────┴──> later another attempt, unless it is lost or left

Rules of this file: it notes tasks and opens none. Driven by the instance.
"""

from __future__ import annotations

import logging
from typing import TypeAlias

from standfast.replication.log import TransactionOpen
from standfast.replication.offsets import TaskId
from standfast.replication.record_limits import RecordRefused
from standfast.store.clock import Clock
from standfast.store.errors import DiskFull, Held, StandfastError, Unavailable
from standfast.store.file_errors import NoRoom
from standfast.store.log import as_event, logger
from standfast.stream.snapshots.beginning import SnapshotsAway
from standfast.stream.tasks.life import Again, Attempt, Lives

AGAIN_MS = 500  # between two attempts, while the log does not answer
LATER_MS = 10_000  # between two attempts: each opens a writer
HELD_LATER_MS = 500  # where the directory is held: its holder may end soon
Refused: TypeAlias = dict[TaskId, StandfastError]
Wait: TypeAlias = SnapshotsAway | TransactionOpen | NoRoom
WAITS = (SnapshotsAway, TransactionOpen, NoRoom)  # also of committed offsets
PUT_OFF = (*WAITS, Held)  # errors of one task's opening that waiting ends


def raise_worst(refused: Refused) -> None:
    """Raise the error of a refused task, if any: first one that waiting does not end. The others are logged."""
    worst = min(refused, key=lambda one: (isinstance(refused[one], Unavailable), one), default=None)
    for task_id, error in refused.items():
        if task_id != worst and not isinstance(error, PUT_OFF):  # logged by `later`
            about = as_event("task_not_opened", task=task_id)
            logger.error("task %s cannot be opened: %s", task_id, error, extra=about)
    if worst is not None:
        raise refused[worst]


class Attempts:
    """Notes further attempts at tasks in their lives."""

    def __init__(self, lives: Lives, clock: Clock) -> None:
        self._lives = lives
        self._clock = clock

    def later(
        self, task_id: TaskId, why: Wait | Held, *, active: bool = True, again: Again | None = None
    ) -> Unavailable:
        """Note a task for a later attempt, so that the others do not wait for it; returns the error."""
        later_ms, event = (HELD_LATER_MS, "task_held") if isinstance(why, Held) else (LATER_MS, why.event)
        self._note(task_id, str(why), later_ms, active, again)
        # Of a full disk the instance speaks for all of its tasks, once a minute.
        level = logging.DEBUG if isinstance(why, NoRoom) else logging.WARNING
        logger.log(level, "task %s cannot be opened yet: %s", task_id, why, extra=as_event(event, task=task_id))
        return why

    def waits(self, task_id: TaskId, error: StandfastError, *, active: bool, again: Again) -> bool:
        """Note another attempt of the instance at a task, if waiting ends the error; returns whether it does."""
        if isinstance(error, PUT_OFF):
            self.later(task_id, error, active=active, again=again)
        elif isinstance(error, (Unavailable, DiskFull)):
            tell_waits(task_id, error)
            self.soon(task_id, str(error), AGAIN_MS, active=active, again=again)
        else:
            return False
        return True

    def soon(self, task_id: TaskId, why: str, later_ms: int, *, active: bool, again: Again) -> None:
        """Note a task that the instance opens again in so many milliseconds."""
        self._note(task_id, why, later_ms, active, again, soon=True)

    def _note(
        self, task_id: TaskId, why: str, later_ms: int, active: bool, again: Again | None, *, soon: bool = False
    ) -> None:
        self._lives[task_id].attempt = Attempt(self._clock.monotonic_ms() + later_ms, why, active, again, soon)

    def holds_back(self, task_id: TaskId) -> bool:
        """Whether the next attempt at a task is not due yet."""
        return self._lives.holds_back(task_id, self._clock.monotonic_ms())


def tell_waits(task_id: TaskId, error: StandfastError) -> None:
    """Say that a task is opened again as soon as a service, or the disk, answers."""
    service = error.service if isinstance(error, Unavailable) else "the disk"
    about = as_event("task_waits_for_log", task=task_id, service=service)
    logger.warning("task %s is opened again when %s answers: %s", task_id, service, error, extra=about)


def tell_refused(task_id: TaskId, error: RecordRefused) -> None:
    """Say that the log refused a record for its size, and that its sources are processed again up to there."""
    about = as_event("record_refused", task=task_id, topic=error.topic, bytes=error.size)
    logger.warning("task %s is opened again at once, to leave a record out or to fail at it: %s", task_id, error,
                   extra=about)  # fmt: skip
