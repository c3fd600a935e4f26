"""The account of a pause: the metric and the line of the log, for moves between instances and between workers.

Rules of this file: it counts a pause that has ended; `standfast.replication.placement.pauses` says what a pause is.
"""

from __future__ import annotations

from standfast.replication.offsets import TaskId
from standfast.replication.placement.pauses import Pause
from standfast.store.log import as_event, logger
from standfast.stream.session.statistics import SessionCounters


def note_pause(counters: SessionCounters, task: TaskId, pause: Pause, *, worker: int | None = None) -> None:
    """Count a pause; `worker`: the number of the worker process that runs the task now, from 1."""
    counters.pause_seconds[(pause.kind,)].observe(pause.ms / 1_000)
    where = "this instance" if worker is None else f"worker {worker}"
    about = as_event("task_arrived", task=task, pause_ms=pause.ms, kind=pause.kind, generation=pause.generation)
    logger.info("task %s runs on %s, after a %s pause of %d ms", task, where, pause.kind, pause.ms, extra=about)
