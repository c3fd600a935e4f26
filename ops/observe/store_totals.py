"""Counters of stores over the processes that had them: a task that is opened in another process begins at 0 there.

    worker ── its newest statistics ──> take        a counter that fell, or a store that left: its last value is kept
    worker has ended ──> gone                       likewise
    totals(tasks) ──> the same tasks, each counter of a store with the values of all processes before

Rules of this file: pure. Only counters are summed; the other figures are those of the process that has the task now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from standfast.stream.task.statistics import SessionStatistics, StoreStatistics, TaskStatistics

_COUNTED = ("logged_records", "logged_bytes", "late_dropped", "segments_expired", "corruptions", "skipped")
_STALL = "write_stall_ms"  # of a task, under no store
_Key = tuple[str, str]  # task, store


class StoreTotals:
    """See the head of this file. `worker` names a process for its whole life."""

    def __init__(self) -> None:
        self._now: dict[str, dict[_Key, Counter[str]]] = {}
        self._before: dict[_Key, Counter[str]] = {}

    def take(self, worker: str, statistics: SessionStatistics) -> None:
        """Take a worker's newest statistics."""
        former, now = self._now.get(worker, {}), _counters(statistics.tasks)
        for key, last in former.items():
            if key not in now or any(now[key][name] < count for name, count in last.items()):
                self._keep(key, last)
        self._now[worker] = now

    def gone(self, worker: str) -> None:
        """A worker has ended with its tasks."""
        for key, last in self._now.pop(worker, {}).items():
            self._keep(key, last)

    def totals(self, tasks: Iterable[TaskStatistics]) -> tuple[TaskStatistics, ...]:
        """The tasks with the counters of all processes: two have a task in their documents while it moves."""
        sums: dict[_Key, Counter[str]] = {key: count.copy() for key, count in self._before.items()}
        for counters in self._now.values():
            for key, count in counters.items():
                sums.setdefault(key, Counter()).update(count)
        return tuple(_summed(task, sums) for task in tasks)

    def _keep(self, key: _Key, last: Counter[str]) -> None:
        self._before.setdefault(key, Counter()).update(last)


def _counters(tasks: Iterable[TaskStatistics]) -> dict[_Key, Counter[str]]:
    found: dict[_Key, Counter[str]] = {}
    for task in tasks:
        found[task.task, ""] = Counter({_STALL: task.write_stall_ms})
        for one in task.stores:
            counts = {name: getattr(one, name) for name in _COUNTED}
            found[task.task, one.store] = Counter({**counts, **{f"op {op}": count for op, count in one.ops.items()}})
    return found


def _summed(task: TaskStatistics, sums: dict[_Key, Counter[str]]) -> TaskStatistics:
    stores = tuple(_counted(one, sums[task.task, one.store]) for one in task.stores)
    return replace(task, stores=stores, write_stall_ms=sums[task.task, ""][_STALL])


def _counted(store: StoreStatistics, sums: Counter[str]) -> StoreStatistics:
    counts: dict[str, Any] = {name: sums[name] for name in _COUNTED}
    return replace(store, ops={op: sums[f"op {op}"] for op in store.ops}, **counts)
