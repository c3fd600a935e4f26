"""Several pieces of work at once, in threads of the driver, up to a budget of tasks.

    begun in order, while their tasks fit into the budget; results in order, whichever ends first
    an error: work under way is finished, no other begins, every error is reported, the first one in order is raised

Work under way is not cut off for another's error: a rebuilt store is kept, and a next run begins with the others.

Rules of this file: no Spark and no stores; each piece of work brings its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Work(Generic[Result]):
    """`tasks`: the most tasks that it runs at once; the caller's thread calls `began`."""

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
    """Results of all works, in order. `budget` bounds the tasks under way, or `at_once`, if given, the works.

    At least one work runs, however many tasks it has. Raises the first error in order, after passing the others to the
    callback as text; calls `cancel` if the caller itself is interrupted.
    """
    futures: dict[Future[Result], int] = {}
    errors: dict[int, BaseException] = {}
    results: dict[int, Result] = {}
    left = list(range(len(works)))[::-1]
    with ThreadPoolExecutor(max_workers=max(1, min(len(works), at_once or len(works)))) as pool:
        try:
            while left or futures:
                # After an error none is begun, but those under way end: a rebuilt store is kept.
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
            # The pool waits for its threads at the end, and these for their jobs, which end only by a cancel.
            cancel()
            raise
    if errors:
        first = min(errors)
        for index in sorted(errors.keys() - {first}):
            tell(f"{works[index].name} failed, too: {errors[index]}")
        if left:
            tell(f"not started: {', '.join(works[index].name for index in reversed(left))}")
        raise errors[first]
    return [results[index] for index in range(len(works))]


def _fits(works: Sequence[Work[Result]], running: Sequence[int], index: int, budget: int, at_once: int | None) -> bool:
    if not running:  # work larger than the budget runs alone
        return True
    if at_once is not None:
        return len(running) < at_once
    return sum(works[one].tasks for one in running) + works[index].tasks <= budget
