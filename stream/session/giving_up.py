"""Tasks that leave this instance in order: reported as given up first, and closed after that.

    the loop has committed the task and ended its run ──> given up: reported ──> another instance opens it
                                                               └──> flushed and closed here, meanwhile

The new owner needs nothing of this instance's directory: the log has all commits, and its claim fences the writer that
is still open here. Flush and close took 40 to 90 ms on a busy machine, and the task stood still for as long. A task
that no loop has let go is closed first: a commit of it may come at any moment.

Rules of this file: driven by the placement under the session's lock.
"""

from __future__ import annotations

from collections.abc import Iterable

from standfast.replication.pauses import Left
from standfast.stream.task.states import TaskState
from standfast.stream.task.task import Task
from standfast.stream.tasks.life import Lives


def give(lives: Lives, task: Task, now_ms: int) -> bool:
    """Give a task up; False if it must be closed first, or was given up before."""
    life = lives[task.id]
    if life.given or not is_committed(task):
        return False
    life.left, life.given = Left(task.last_commit_ms, now_ms - task.last_commit_ms), True
    return True


def give_all(lives: Lives, tasks: Iterable[Task], now_ms: int) -> bool:
    """Give up all active tasks of an instance that stops; False, and none, if one must be closed first."""
    active = [one for one in tasks if one.role == "active" and one.state is TaskState.RUNNING]
    if not all(map(is_committed, active)):
        return False
    for task in active:
        give(lives, task, now_ms)
    return True


def is_committed(task: Task) -> bool:
    """Whether a loop has had the last commit of a task, and has ended its run."""
    return not task.looped and task.last_commit_ms >= 0 and not task.committing and not task.uncommitted
