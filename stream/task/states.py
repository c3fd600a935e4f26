"""The states of a task.

         assign              restored            revoke
    CREATED ──> RESTORING ──────────> RUNNING ──────────> CLOSED
       │            ^                    │ error
       └─> STANDBY ─┘ promote            └──> FAILED ───> CLOSED

Rules of this file: values alone, and the error of a call that needs another state.
"""

from __future__ import annotations

from enum import Enum

from standfast.replication.offsets import TaskId
from standfast.store.errors import Closed, Fenced, NotReady, StandfastError


class TaskState(Enum):
    """The state of a task's life cycle."""

    CREATED = "created"
    RESTORING = "restoring"
    RUNNING = "running"
    STANDBY = "standby"
    FAILED = "failed"
    CLOSED = "closed"


GONE = (TaskState.FAILED, TaskState.CLOSED)

ALLOWED = {
    TaskState.CREATED: {TaskState.RESTORING, TaskState.STANDBY, TaskState.FAILED, TaskState.CLOSED},
    TaskState.RESTORING: {TaskState.RUNNING, TaskState.FAILED, TaskState.CLOSED},
    TaskState.RUNNING: {TaskState.FAILED, TaskState.CLOSED},
    TaskState.STANDBY: {TaskState.RESTORING, TaskState.FAILED, TaskState.CLOSED},
    TaskState.FAILED: {TaskState.CLOSED},
    TaskState.CLOSED: set(),
}


def not_running(task: TaskId, state: TaskState, error: BaseException | None) -> StandfastError:
    """The error of a call that needs a running task."""
    if isinstance(error, Fenced):
        return Fenced(f"task {task} was taken over by a newer owner: {error}")
    if state is TaskState.FAILED:
        kind = type(error).__name__ if isinstance(error, StandfastError) else repr(type(error))
        return Closed(f"task {task} failed ({kind}: {error}): it must be opened again")
    if state is TaskState.CLOSED:
        why = f" and could not be opened again: {error}" if error is not None else ""
        return Closed(f"task {task} is closed{why}")
    if state is TaskState.STANDBY:
        return NotReady(f"task {task} is a standby here: only the active task is read and written this way")
    return NotReady(f"task {task} is {state.value}: wait for the restore gate with wait_ready()")
