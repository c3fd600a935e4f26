"""The tasks of one instance over its worker processes: even within each group, in total to one task, with few moves.

    spread({0_0 .. 0_5}, {0_0: 1}, workers=2)     {0_0: 1, 0_1: 0, ...}: three tasks each, and 0_0 stays

Rules of this file: pure. A task without a place goes to the worker with the most room, the first one of equals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from standfast.replication.offsets import TaskId
from standfast.replication.placement.quotas import quotas


def spread(tasks: Iterable[TaskId], where: Mapping[TaskId, int], workers: int) -> dict[TaskId, int]:
    """The worker of each task, from 0. `where`: the workers that tasks are at now, also of other tasks."""
    wanted = sorted(tasks)
    groups = sorted({task.group for task in wanted})
    row = {group: at for at, group in enumerate(groups)}
    present = [[0] * workers for _ in groups]
    totals = [0] * len(groups)
    for task in wanted:
        totals[row[task.group]] += 1
        if task in where:
            present[row[task.group]][where[task]] += 1
    room = quotas([1] * workers, totals, present)
    placed: dict[TaskId, int] = {}
    for task in wanted:
        at, left = where.get(task), room[row[task.group]]
        if at is not None and left[at] > 0:
            placed[task] = at
            left[at] -= 1
    for task in wanted:
        if task not in placed:
            left = room[row[task.group]]
            at = max(range(workers), key=lambda one: (left[one], -one))
            placed[task] = at
            left[at] -= 1
    return placed
