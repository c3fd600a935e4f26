"""An instance with worker processes as its supervisor last saw it, for readers in other threads.

    supervisor, each round ──> InstanceSeen, replaced as a whole ──> HTTP server: health, status, the way to rows

Rules of this file: pure; immutable values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from standfast.replication.offsets import TaskId
from standfast.stream.task.statistics import TaskStatistics
from standfast.stream.workers.orders import ACTIVE, LOST, ReportedTask

_SAID = {"": "is not open yet", "failed": "failed", "closed": "failed"}


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """One worker. `number`: from 1; `pid` None: no process runs, the next one starts later; `opened`: it takes tasks.

    `starts`: processes so far; `began_ms`: monotonic, when the present one became this worker; `tasks`: of its last
    report.
    """

    number: int
    pid: int | None
    opened: bool
    starts: int
    began_ms: int
    tasks: Mapping[TaskId, ReportedTask]

    def held(self) -> Mapping[TaskId, ReportedTask]:
        """Its tasks, without those that another instance took over."""
        return {task: one for task, one in self.tasks.items() if one.state != LOST}


@dataclass(frozen=True, slots=True)
class InstanceSeen:
    """All workers, and what keeps the instance from processing.

    `missing`: active tasks that are to run and do not, by their states ("": not open). `unplaced`: why the instance
    has no tasks yet; `no_room`: why the state directory takes no writes; `gate_open`: as of the restore gate.
    """

    workers: tuple[WorkerSeen, ...] = ()
    missing: Mapping[TaskId, str] = field(default_factory=dict)
    unplaced: str = ""
    no_room: str = ""
    gate_open: bool = False
    paused: bool = False

    def reasons(self) -> tuple[str, ...]:
        """Reasons against processing; empty if the instance may process. Standbys and their lag never count."""
        lines = [self.unplaced] if self.unplaced else []
        where = {task: worker for worker in self.workers for task in worker.tasks}
        for task, state in sorted(self.missing.items()):
            worker = where.get(task)
            at = "" if worker is None else f", in worker {worker.number}"
            lines.append(f"task {task} {_SAID.get(state, f'is {state}')}{at}")
        if self._holds_active() and not self.gate_open and not lines:
            lines.append("the supervisor has not opened the restore gate of this instance yet")
        return tuple(lines)

    def tasks(self) -> tuple[TaskStatistics, ...]:
        """The tasks of all workers, by their last reports alone: without figures of their stores."""
        found = {task: one for worker in self.workers for task, one in worker.held().items()}
        return tuple(
            TaskStatistics(str(task), task.partition, one.role, one.state, 0, "", 0, {}, {}, ())
            for task, one in sorted(found.items())
        )

    def _holds_active(self) -> bool:
        return any(one.role == ACTIVE for worker in self.workers for one in worker.held().values())
