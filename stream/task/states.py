"""The states of a task.

         assign              restored            revoke
    CREATED ──> RESTORING ──────────> RUNNING ──────────> CLOSED
       │            ^                    │ error
       └─> STANDBY ─┘ promote            └──> FAILED ───> CLOSED

Rules of this file: values alone.
"""

from __future__ import annotations

from enum import Enum


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
