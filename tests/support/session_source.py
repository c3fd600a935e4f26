"""The engine's tasks, found in a session: the active ones run here, and any other is refused with its reason.

Rules of this file: it changes nothing. Every call may wait for a round of the session's background work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from standfast.ops.shared.error_codes import NOT_ACTIVE, NOT_ASSIGNED, RESTORING, Refused
from standfast.replication.offsets import TaskId
from standfast.stream.session.session import Session
from standfast.stream.task.states import GONE, TaskState
from standfast.stream.task.task import Task

# State of a partition that this session does not hold, as another process knows it: "standby", "restoring: 41 %", None.
Elsewhere = Callable[[int], str | None]


class SessionSource:
    """Tasks of group 0 of a session. `elsewhere` reports partitions that another process of the sidecar holds."""

    def __init__(self, session: Session, elsewhere: Elsewhere = lambda partition: None) -> None:
        self._session = session
        self._elsewhere = elsewhere

    def running(self, partition: int) -> Task:
        """See TaskSource.running."""
        task = self._session.all_tasks().get(TaskId(0, partition))
        if task is None:
            raise self._not_here(partition)
        if task.id in self._session.open_tasks():
            return task
        if task.state is TaskState.STANDBY:
            raise _standby(partition)
        if task.state in GONE:
            task.source_offsets()  # raises the task's own error
        raise Refused(RESTORING, f"partition {partition} is not ready: the restore gate is shut, wait (SF.WAITREADY)")

    def partitions(self) -> Mapping[int, str]:
        """See TaskSource.partitions."""
        return {partition: task.state.value for partition, task in sorted(self._session.tasks().items())}

    def missing(self) -> Sequence[str]:
        """See TaskSource.missing."""
        return self._session.missing()

    def _not_here(self, partition: int) -> Refused:
        what = self._elsewhere(partition)
        if what is None:
            return Refused(NOT_ASSIGNED, f"partition {partition} is not assigned to this instance: assign it first")
        if what.startswith("standby"):
            return _standby(partition)
        return Refused(RESTORING, f"partition {partition} is not ready ({what}): wait (SF.WAITREADY)")


def _standby(partition: int) -> Refused:
    return Refused(NOT_ACTIVE, f"partition {partition} is a standby here: read and write at the active instance")
