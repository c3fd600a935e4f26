"""Work that may fail without failing the task: a savepoint around it, and what is left out told once it is certain.

    attempt ──> savepoint ──> work ──> release            it stays
                                └───> rollback            as if it had not been: rows, outputs, held results, counts
    attempt within an attempt         the inner one is undone by itself; the outer one undoes all of it

Rules of this file: what was counted within a savepoint is told when the outermost one has ended well, so that a record
that is skipped counts as one thing whatever it left out before it failed. An error that is not the record's doing, or
that a step with on_error="fail" raised, goes through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from standfast.store.errors import InvalidRequest, StandfastError, is_of_serde
from standfast.stream.session.task import Task
from standfast.stream.topology.drops import Drops

T = TypeVar("T")
_FAILS = "standfast_fails_the_task"


class Guard:
    """The attempts of one task, and its counts of what is left out."""

    def __init__(self, task: Task, drops: Drops) -> None:
        self._task = task
        self._drops = drops
        self._where = f"task {task.id}"
        self._untold: list[tuple[str, str, str]] = []
        self._marks: list[int] = []  # of each open savepoint: how many were untold before it

    def drop(self, node: str | None, reason: str, detail: str) -> None:
        """Count one thing that is left out."""
        where = self._where if node is None else f"{self._where}, {node}"
        if self._marks:
            self._untold.append((reason, where, detail))
        else:
            self._drops.drop(reason, where, detail)

    def attempt(self, work: Callable[[Any], object], given: Any) -> Exception | None:
        """Do `work(given)`; returns the error if it failed and may be left out: it is undone then."""
        task = self._task
        task.savepoint()
        self._marks.append(len(self._untold))
        try:
            work(given)
        except Exception as error:
            task.rollback()
            del self._untold[self._marks.pop() :]
            if not can_skip(error):
                raise
            return error
        task.release()
        self._marks.pop()
        if self._untold and not self._marks:
            untold, self._untold = self._untold, []
            for one in untold:
                self._drops.drop(*one)
        return None


def can_skip(error: Exception) -> bool:
    """Whether leaving the record out may help: what the task or the log suffers from is not the record's doing."""
    if getattr(error, _FAILS, False):
        return False
    return isinstance(error, InvalidRequest) or not isinstance(error, StandfastError) or is_of_serde(error)


def failing(work: Callable[[T], object]) -> Callable[[T], None]:
    """`work` of a step with on_error="fail": what it raises fails the task, whatever attempts are around it."""

    def insist(given: T) -> None:
        try:
            work(given)
        except Exception as error:
            setattr(error, _FAILS, True)
            raise

    return insist
