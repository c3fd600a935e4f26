"""Tasks as text: ranges of partitions, `0_0-5,0_8`, so that a record of thousands of tasks stays small.

Rules of this file: pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from standfast.replication.offsets import TaskId


def task_ranges(tasks: Iterable[TaskId]) -> str:
    """Tasks as text: `0_0-5,0_8`."""
    runs: list[tuple[TaskId, int]] = []
    for task in sorted(tasks):
        if runs and runs[-1][0].group == task.group and runs[-1][1] + 1 == task.partition:
            runs[-1] = (runs[-1][0], task.partition)
        else:
            runs.append((task, task.partition))
    return ",".join(str(first) if first.partition == last else f"{first}-{last}" for first, last in runs)


def parse_ranges(text: str, tasks_max: int = 1_000_000) -> frozenset[TaskId]:
    """Inverse of `task_ranges`. Raises ValueError for other text, and for more than `tasks_max` tasks."""
    found: set[TaskId] = set()
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        task = TaskId.parse(first)
        end = int(last) if last else task.partition
        # Before the range is expanded: a few characters could else take all memory.
        if not 0 <= task.partition <= end or end - task.partition + len(found) >= tasks_max:
            raise ValueError(f"{part!r} is no range of at most {tasks_max} tasks")
        found.update(TaskId(task.group, number) for number in range(task.partition, end + 1))
    return frozenset(found)
