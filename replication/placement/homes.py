"""Tasks on their way home: an instance that restarts gets back what it ran before, and nothing else moves for it.

    a restarts ── its tasks go to their standbys on b and c, home a
    a is back  ── room of a: kept for its own tasks, each of which moves once the copy there has caught up
               ── tasks of b and c that have copies on a: they stay, also if such a copy is ready sooner

Rules of this file: pure numbers, by group and member in the order of the given lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from standfast.replication.offsets import TaskId
from standfast.replication.placement.quotas import Matrix


def returning_tasks(
    away: Mapping[TaskId, str], active: Mapping[TaskId, str], goal: Matrix, groups: list[int], names: list[str]
) -> dict[TaskId, str]:
    """The tasks of `away` (task -> home) for which the goal has room at home, beside those that stay there."""
    staying = counts_of(groups, names, {task: name for task, name in active.items() if task not in away})
    room = above(groups, names, goal, staying)
    found = {}
    for task, home in away.items():
        if room[task.group, home] > 0:
            room[task.group, home] -= 1
            found[task] = home
    return found


def counts_of(groups: list[int], names: list[str], active: Mapping[TaskId, str]) -> Matrix:
    """How many tasks of each group are on each member."""
    counts = [[0] * len(names) for _ in groups]
    at = {name: place for place, name in enumerate(names)}
    row = {group: place for place, group in enumerate(groups)}
    for task, name in active.items():
        counts[row[task.group]][at[name]] += 1
    return counts


def above(groups: list[int], names: list[str], one: Matrix, other: Matrix) -> Counter[tuple[int, str]]:
    """By how much counts of `one` are above those of `other`, where they are."""
    return Counter(
        {
            (group, name): more - less
            for group, row, others in zip(groups, one, other, strict=True)
            for name, more, less in zip(names, row, others, strict=True)
            if more > less
        }
    )
