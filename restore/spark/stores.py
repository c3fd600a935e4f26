"""Stores side by side on one Spark: sessions of their own, one budget of tasks, one measure of progress.

    each_store ── a thread for each store, while its tasks fit ── own session ── jobs of one group

Spark gives free cores to the tasks of the first job and then to the next one's. This order is intended, so that stores
are done one after the other: with FAIR pools all of them would be half done for long.

Rules of this file: threads, sessions and progress; the caller decides the work on a store.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from standfast.restore.spark.frames import cancel_group, own_session
from standfast.restore.spark.session import is_connect, parallelism
from standfast.restore.spark.side_by_side import Work, side_by_side

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = TypeVar("Result")

TASKS_PER_CORE = 2  # enough for the cores while the last tasks of a store end


@dataclass(frozen=True, slots=True)
class StoreWork(Generic[Result]):
    """Work on a store, in a session of its own; `tasks`: their estimated number. `what` describes it for people."""

    name: str
    what: str
    tasks: int
    run: Callable[[SparkSession], Result]


class StoresProgress:
    """Progress of all stores together: finished stores, and for those under way the share of Spark's finished tasks.

    It calls `begins(number, total, what)` in order, and `at(part)` from any thread, one at a time, with a `part` that
    never falls.
    """

    def __init__(self, total: int, begins: Callable[[int, int, str], None], at: Callable[[float], None]) -> None:
        self._total = total
        self._begins = begins
        self._tell = at
        self._lock = threading.Lock()
        self._began = self._ended = 0
        self._at = 0.0

    def began(self, what: str) -> None:
        """The next store begins."""
        with self._lock:
            self._began += 1
            self._begins(self._began, self._total, what)

    def ended(self) -> None:
        """A store is done."""
        with self._lock:
            self._ended += 1
            self._move(0.0)

    def tasks(self, done: int, total: int) -> None:
        """Finished and total tasks of all stages that Spark has under way, whichever store's they are."""
        with self._lock:
            self._move((self._began - self._ended) * done / max(total, 1))

    def _move(self, under_way: float) -> None:
        # A store that begins adds tasks to the total: the bar must not go back.
        self._at = max(self._at, min((self._ended + under_way) / max(self._total, 1), 1.0))
        self._tell(self._at)


def each_store(
    spark: SparkSession,
    works: Sequence[StoreWork[Result]],
    progress: StoresProgress,
    *,
    at_once: int | None,
    tell: Callable[[str], None],
) -> list[Result]:
    """Results in order; see `side_by_side` for errors. An interrupted caller cancels the jobs of these stores alone."""
    group = f"standfast-{uuid.uuid4().hex[:12]}"  # a tag of Spark Connect takes no comma
    if is_connect(spark):
        at_once = 1  # its sessions cannot share temporary state, so stores are done one after the other in one

    def threaded(work: StoreWork[Result]) -> Work[Result]:
        def run() -> Result:
            with own_session(spark, group) as own:
                result = work.run(own)
            progress.ended()
            return result

        return Work(work.name, work.tasks, run, lambda: progress.began(work.what))

    return side_by_side(
        [threaded(work) for work in works],
        budget=TASKS_PER_CORE * parallelism(spark),
        at_once=at_once,
        tell=tell,
        cancel=lambda: cancel_group(spark, group),
    )
