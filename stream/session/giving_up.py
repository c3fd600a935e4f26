"""Tasks that leave this instance in order: reported as given up first, and closed after that.

    the loop has committed the task and ended its run ──> given up: reported ──> another instance opens it
                                                               └──> flushed and closed here, meanwhile

The new owner needs nothing of this instance's directory: the log has all commits, and its claim fences the writer that
is still open here. Flush and close took 40 to 90 ms on a busy machine, and the task stood still for as long. A task
that no loop has let go is closed first: a commit of it may come at any moment.

Rules of this file: driven by the placement under the session's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from standfast.replication.offsets import TaskId
from standfast.replication.pauses import Left
from standfast.store.clock import Clock
from standfast.stream.task.states import TaskState
from standfast.stream.task.task import Task


class GivenUp:
    """The tasks that are open here, and that others may open."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left: dict[TaskId, Left] = {}

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._left

    @property
    def left(self) -> Mapping[TaskId, Left]:
        """Since when no instance processes them."""
        return self._left

    def add(self, task: Task) -> bool:
        """Give a task up; False if it must be closed first, or was given up before."""
        if task.id in self._left or not is_committed(task):
            return False
        self._left[task.id] = Left(task.last_commit_ms, self._clock.monotonic_ms() - task.last_commit_ms)
        return True

    def pop(self, task_id: TaskId) -> Left | None:
        """Forget a task: it is closed, or comes back."""
        return self._left.pop(task_id, None)

    def add_all(self, tasks: Iterable[Task]) -> bool:
        """Give up all active tasks of an instance that stops; False, and none, if one must be closed first."""
        active = [one for one in tasks if one.role == "active" and one.state is TaskState.RUNNING]
        if not all(map(is_committed, active)):
            return False
        for task in active:
            self.add(task)
        return True


def is_committed(task: Task) -> bool:
    """Whether a loop has had the last commit of a task, and has ended its run."""
    return not task.looped and task.last_commit_ms >= 0 and not task.committing and not task.uncommitted
