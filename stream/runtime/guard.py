"""Work that may fail without failing the task: a savepoint around it, and counts of skipped records once certain.

    attempt ──> savepoint ──> work ──> release            its effects stay
                                └───> rollback            no trace: rows, outputs, held results and counts are as before
    attempt within an attempt         the inner one is undone by itself; the outer one undoes all of it

Rules of this file: counts made within a savepoint are published when the outermost one has ended well, so that a
skipped record counts once, whatever it skipped before it failed. An error that is not the record's fault, or that a
step with on_error="fail" raised, propagates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from standfast.store.errors import InvalidRequest, StandfastError, is_of_serde
from standfast.stream.deaths.exits import failure_of
from standfast.stream.runtime.task_calls import TaskCalls
from standfast.stream.task.task import Task
from standfast.stream.topology.drops import Drops

T = TypeVar("T")
_FAILS = "standfast_fails_the_task"


class TaskGuard:
    """The attempts of one task, and its counts of skipped records and results."""

    def __init__(self, task: Task, drops: Drops) -> None:
        self._task = task
        self._drops = drops
        self._where = f"task {task.id}"
        self._unpublished: list[tuple[str, str, str]] = []  # counts of the open savepoints, not published yet
        self._marks: list[int] = []  # of each open savepoint: the length of `_unpublished` before it
        self.calls: TaskCalls | None = None  # of asynchronous steps, where the task has any

    def drop(self, node: str | None, reason: str, detail: str) -> None:
        """Count one skipped record or result."""
        where = self._where if node is None else f"{self._where}, {node}"
        if self._marks:
            self._unpublished.append((reason, where, detail))
        else:
            self._drops.drop(reason, where, detail)

    def attempt(self, work: Callable[[Any], object], given: Any) -> Exception | None:
        """Do `work(given)`; if it fails and may be skipped, undo it and return the error."""
        task, calls = self._task, self.calls
        made = 0 if calls is None else calls.made
        task.savepoint()
        self._marks.append(len(self._unpublished))
        try:
            work(given)
        except BaseException as error:
            # Undone before anything is decided: an error that propagates must not leave half of a record behind, nor
            # the savepoint open, for which other threads wait.
            task.rollback()
            if calls is not None:
                calls.undo(made)
            del self._unpublished[self._marks.pop() :]
            failure = failure_of(error)
            if isinstance(failure, Exception) and can_skip(failure):
                return failure
            if failure is error:
                raise
            raise failure from error
        task.release()
        self._marks.pop()
        if self._unpublished and not self._marks:
            unpublished, self._unpublished = self._unpublished, []
            for one in unpublished:
                self._drops.drop(*one)
        return None


def can_skip(error: Exception) -> bool:
    """Whether skipping the record may help: an error of the task or of the log would meet the next record, too."""
    if getattr(error, _FAILS, False) or (isinstance(error, StandfastError) and error.beyond_record):
        return False
    # A serde that cannot read is the record's fault, whatever class of ours its error has.
    return isinstance(error, InvalidRequest) or not isinstance(error, StandfastError) or is_of_serde(error)


def failing(work: Callable[[T], object]) -> Callable[[T], None]:
    """`work` of a step with on_error="fail": its errors fail the task, whatever attempts are around it."""

    def insist(given: T) -> None:
        try:
            work(given)
        except BaseException as error:
            # A mark on the exception, because the attempts around it see nothing else of this step.
            failure = failure_of(error)
            setattr(failure, _FAILS, True)
            if failure is error:
                raise
            raise failure from error

    return insist
