"""The commits of a session's tasks, one after the other, and the offsets that a commit did not reach.

Rules of this file: it calls tasks, and decides nothing about which of them are due (`commit_plan.py` does).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from standfast.replication.offsets import TaskId
from standfast.store.errors import DiskFull
from standfast.store.log import as_event, logger
from standfast.stream.steps import NotBegun, run_steps
from standfast.stream.task.states import GONE, TaskState
from standfast.stream.task.task import Task

Offsets = Mapping[tuple[str, int], int]


class TaskCommits:
    """Commits the tasks of one session. After a failure the offsets of the remaining tasks must not be lost: rows
    without their offsets would be committed alone, and the records processed twice after a crash."""

    def __init__(self) -> None:
        self._unreached: Mapping[TaskId, tuple[Task, Offsets]] = {}

    def each(
        self, due: Mapping[TaskId, tuple[Task, Offsets]], begin: AbstractContextManager[object] | None = None
    ) -> None:
        """Commit these tasks with their offsets, and stop at the first that fails.

        `begin` is entered while each takes its task's changes; it raises NotBegun to stop there.
        """
        unreached = self._unreached
        left = {task_id: (task, {**self._uncommitted(task), **own}) for task_id, (task, own) in due.items()}
        for task, own in left.values():
            if task.state is TaskState.RUNNING and not task.dropped:  # the others raise their own error in commit
                task.checked_offsets(own)
        if self._unreached is unreached:  # else a commit of another thread has failed meanwhile
            # Those of tasks that this commit does not take, as within an `exclusive` block, are left for the next one.
            self._unreached = {
                task_id: one for task_id, one in unreached.items() if task_id not in due and one[0].state not in GONE
            }
        for task_id in list(left):
            task, own = left.pop(task_id)
            try:
                run_steps(task.commit_steps(own, begin=begin))
            except BaseException as error:
                if isinstance(error, DiskFull | NotBegun):  # its rows stay in the buffer, its offsets stay with them
                    left[task_id] = (task, own)
                self._unreached = {**self._unreached, **left}
                logger.warning(
                    "task %s was not committed: %s", task_id, error, extra=as_event("commit_failed", task=task_id)
                )
                raise

    def put_off(self, task: Task, offsets: Offsets) -> None:
        """Let the next commit take these offsets of a commit that was not begun, if it is of the same opening."""
        self._unreached = {**self._unreached, task.id: (task, {**self._uncommitted(task), **offsets})}

    def _uncommitted(self, task: Task) -> Offsets:
        """Offsets that no commit reached; those of an earlier opening went with its rows, and the task may have been
        committed by itself since."""
        opening, own = self._unreached.get(task.id, (None, {}))
        return task.ahead(own) if opening is task else {}
