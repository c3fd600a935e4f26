"""Where the parts of a checkpoint are while tasks move: with the instance that cut each, whoever has the task since.

    task 0_1 on a ── cut, uploads ──────────────> stored          its part counts, from a's reports
             goes to b ── b follows the order ──> goes on, or stands where the part was cut
    task 0_2, not cut yet, goes to b ── b read the order before the generation ──> stops, and has the part

So instances that come cost a checkpoint nothing. One that goes costs it only the parts that it had not stored.

Rules of this file: pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from standfast.replication.offsets import TaskId


class PartHolders:
    """The instances that have cut the parts of one checkpoint."""

    def __init__(self, tasks: Collection[TaskId]) -> None:
        self._tasks = frozenset(tasks)
        self._at: dict[TaskId, str] = {}

    def where(self, owners: Mapping[TaskId, str]) -> dict[TaskId, str]:
        """The instance whose report tells of each task's part: the one that cut it, else its present owner."""
        return {**owners, **self._at}

    def broken(self, tasks: Collection[TaskId], members: Collection[str], stored: Collection[TaskId]) -> str:
        """Why no part of a task can come any more; empty if all can. `tasks` are those of the application now."""
        if self._tasks != frozenset(tasks):
            return "tasks were added, of new partitions"
        for task, name in sorted(self._at.items()):
            if name not in members and task not in stored:
                return f"instance {name} has gone, which had not stored the part of task {task}"
        return ""

    def note(self, cut: Collection[TaskId], owners: Mapping[TaskId, str]) -> None:
        """Each of these has its part, from its present owner unless another instance had it before."""
        for task in cut:
            if task in owners:
                self._at.setdefault(task, owners[task])
