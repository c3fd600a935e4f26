"""Several pieces of work at once, in threads of the driver: as many as a budget of tasks allows.

    begun in order, while their tasks fit into the budget; results in order, whichever ends first
    an error: what is under way ends, nothing else begins, every error is told, the first one in order is raised

What is under way is not cut off for another's error: a store that is rebuilt is kept, and a next run begins with the
others.

Rules of this file: no Spark and no stores; the work brings its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Work(Generic[Result]):
    """`tasks`: how many run at once at most; `began` is called by the thread of the caller."""

    name: str
    tasks: int
    run: Callable[[], Result]
    began: Callable[[], None] = lambda: None


def side_by_side(
    works: Sequence[Work[Result]],
    *,
    budget: int,
    at_once: int | None = None,
    tell: Callable[[str], None],
    cancel: Callable[[], None] = lambda: None,
) -> list[Result]:
    """Results of all, in order. `budget` bounds the tasks under way, `at_once` the works, if it is given.

    At least one is under way, however many tasks it has. Raises the first error in order, after `tell` has had the
    others; `cancel` is called where the caller itself is interrupted.
    """
    futures: dict[Future[Result], int] = {}
    errors: dict[int, BaseException] = {}
    results: dict[int, Result] = {}
    left = list(range(len(works)))[::-1]
    with ThreadPoolExecutor(max_workers=max(1, min(len(works), at_once or len(works)))) as pool:
        try:
            while left or futures:
                while left and not errors and _fits(works, list(futures.values()), left[-1], budget, at_once):
                    index = left.pop()
                    works[index].began()
                    futures[pool.submit(works[index].run)] = index
                if not futures:
                    break
                for done in wait(futures, return_when=FIRST_COMPLETED).done:
                    index = futures.pop(done)
                    error = done.exception()
                    if error is None:
                        results[index] = done.result()
                    else:
                        errors[index] = error
        except BaseException:
            cancel()
            raise
    if errors:
        first = min(errors)
        for index in sorted(errors.keys() - {first}):
            tell(f"{works[index].name} failed, too: {errors[index]}")
        if left:
            tell(f"not begun: {', '.join(works[index].name for index in reversed(left))}")
        raise errors[first]
    return [results[index] for index in range(len(works))]


def _fits(works: Sequence[Work[Result]], running: Sequence[int], index: int, budget: int, at_once: int | None) -> bool:
    if not running:
        return True
    if at_once is not None:
        return len(running) < at_once
    return sum(works[one].tasks for one in running) + works[index].tasks <= budget
