"""A commit in steps: each call that waits for the log is handed out, and everything else is done in between.

    steps = task.commit_steps(...)      next(steps) ──> call ──> steps.send(result) ──> call ──> ... ──> StopIteration
                                                              └─> steps.throw(error)

The same generator serves a caller that waits (`run_steps`) and a loop that lets other threads wait, so that there is
one order of durability. A call uses the writer of its task, and nothing else of it.

Rules of this file: pure control flow; it knows no task, log or thread.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

LogCall: TypeAlias = Callable[[], Any]  # may take as long as the log's time-outs; any one thread may make it
Steps: TypeAlias = Generator[LogCall, Any, T]


class NotBegun(Exception):
    """Steps were not begun, and nothing has changed: their caller has gone."""


def run_steps(steps: Steps[T]) -> T:
    """Make every call here and now, and return the generator's result. Raises its error."""
    try:
        call = next(steps)
        while True:
            try:
                outcome = call()
            except BaseException as error:  # noqa: BLE001 - the generator decides, and raises it again
                call = steps.throw(error)
            else:
                call = steps.send(outcome)
    except StopIteration as end:
        result: T = end.value
        return result
    except BaseException as error:
        # A signal handler may raise between two steps: the generator must see it, or it would stay half done.
        if is_suspended(steps):
            steps.throw(error)
        raise


def is_suspended(steps: Steps[Any]) -> bool:
    """Whether the generator waits for the outcome of a call."""
    return inspect.getgeneratorstate(steps) == inspect.GEN_SUSPENDED
