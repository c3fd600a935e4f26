"""How the processes of the demo share its tasks, and when each task moved, from the statuses that they report.

    statuses ──┬─> is_shared   every task runs once and has its standby; no process has two tasks more than another
               ├─> is_whole    the same, and no standby lacks a change
               ├─> has_all     one process runs every task, and its directory has all of their counts
               ├─> pauses      a task's close at its old owner ──> it runs at its new one
               └─> times       a task's first time of a state after a moment

Rules of this file: pure. Times are the machine's monotonic milliseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from standfast.ops.demo.board import BOARD_TASKS, TASKS
from standfast.ops.demo.process import Status
from standfast.ops.demo.worker import TICK_MS

SETTLE_MS = 2 * TICK_MS  # a status is at most this old


def is_shared(statuses: Sequence[Status]) -> bool:
    """Whether these processes run all tasks, none of them two more than another, and stand by for all of them."""
    active, standby = ([one.tasks(role) for one in statuses] for role in ("active", "standby"))
    loads = [len(one) for one in active]
    once = all(sum(map(len, one)) == len(frozenset[str]().union(*one)) == TASKS for one in (active, standby))
    return once and max(loads) - min(loads) <= 1


def is_whole(statuses: Sequence[Status], since_ms: int) -> bool:
    """Whether these processes share the tasks, and their standbys have every change that was made until a moment."""
    # An older status may show the lag of 0 that a standby had before the last change.
    fresh = min(one.at_ms for one in statuses) > since_ms + SETTLE_MS
    return fresh and is_shared(statuses) and not sum(one.stores("lag", "standby") for one in statuses)


def has_all(status: Status) -> bool:
    """Whether a process runs all tasks, and has committed those of `Board` since."""
    # A copy has the rows alone: the counts of flights are in the log, and in the directory from the first commit on.
    return len(status.tasks("active")) == TASKS and all("committed" in status.times[task] for task in BOARD_TASKS)


def times(state: str, tasks: Iterable[str], statuses: Collection[Status], since_ms: int) -> list[int]:
    """When each of these tasks was first in a state after a moment, at any process; of those that were."""
    found = []
    for task in tasks:
        seen = [one.times.get(task, {}).get(state, -1) for one in statuses]
        found += [min(at_ms for at_ms in seen if at_ms > since_ms)] if max(seen, default=-1) > since_ms else []
    return found


def pauses(taker: Status, owners: Collection[Status]) -> list[int]:
    """Milliseconds from the close of each task of `taker` at one of its owners to its start there, as far as known."""
    found = []
    for task in taker.tasks("active"):
        closed_ms = max(one.times.get(task, {}).get("closed", -1) for one in owners)
        found += [taker.times[task]["running"] - closed_ms] if closed_ms >= 0 else []
    return found
