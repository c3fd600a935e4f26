"""An instance with worker processes behind the HTTP application: its supervisor serves them all.

    /livez        the supervisor's own thread; asks no worker, so that a slow record never gets a pod killed
    /readyz       the last reports of the workers
    /v1/status, /metrics, page    the supervisor's figures and the newest status of each worker, which waits for none
    rows          the worker that has the task: `worker_rows.py`

Rules of this file: as `session.py`. A worker that is silent is named beside its last figures, and the rest is answered.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from standfast.ops.http.application import Json, answer
from standfast.ops.http.door import Door
from standfast.ops.http.server import OpsServer
from standfast.ops.http.session import instance_server
from standfast.ops.http.worker_lines import HOW, WorkerLine, WorkerLines, parsed
from standfast.ops.http.worker_rows import WorkerRows
from standfast.ops.observe.health import Health, HealthFacts, of_session, startup
from standfast.ops.observe.metrics import Metrics
from standfast.ops.observe.metrics_values import Sample, session_samples
from standfast.ops.observe.placement import move_events
from standfast.ops.observe.status import status_document
from standfast.ops.observe.status_merge import WorkerNumbers, statistics_of
from standfast.ops.observe.store_totals import StoreTotals
from standfast.ops.shared.in_thread import in_thread
from standfast.store.base.version import __version__
from standfast.store.errors import StandfastError
from standfast.store.log import as_event, logger
from standfast.store.timestamps import duration_text
from standfast.stream.task.statistics import SessionStatistics, TaskStatistics
from standfast.stream.workers.orders import ACTIVE
from standfast.stream.workers.seen import InstanceSeen, WorkerSeen
from standfast.stream.workers.supervisor import Supervisor


class SupervisorServer(OpsServer):
    """Serves an instance with worker processes until closed."""

    def __init__(self, supervisor: Supervisor, *, door: Door) -> None:
        self._figures = WorkerFigures(supervisor)
        super().__init__(supervisor, door=door)

    def began(self, pid: int, line: socket.socket) -> None:
        """Take the line to a new worker process."""
        self._figures.lines.began(pid, line)

    def ended(self, pid: int) -> None:
        """A worker process has ended."""
        self._figures.lines.ended(pid)

    def close(self) -> None:
        """As of any server; the lines to the workers end, too."""
        super().close()
        self._figures.lines.close()

    def _make(self, session: Any) -> Any:
        instance = SupervisorInstance(session, self._figures)
        return instance_server(instance, self._door, session.instance_id, session.clock)


class WorkerFigures:
    """The figures of all workers and of those that have ended, by any thread."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._lock = threading.Lock()
        self._numbers = WorkerNumbers()
        self._totals = StoreTotals()
        self._taken: dict[int, bytes] = {}
        self.lines = WorkerLines(supervisor.clock, self._gone)

    def statistics(self) -> SessionStatistics:
        """Statistics of the whole instance. Waits for no worker."""
        own, seen = self._supervisor.statistics(), self._supervisor.seen
        with self._lock:
            # Looked at under the lock: `_gone` takes a line that ends meanwhile after this, and counts it once.
            lines = self.lines.all()
            for line in lines:
                if line.status is not None:
                    self._take(line.pid, line.status, seen)
            merged = self._numbers.merged(replace(own, tasks=()))
            figures = self._totals.totals(merged.tasks)
        now_ms = self._supervisor.clock.monotonic_ms()
        ages = [now_ms - line.status_ms for line in lines if line.status is not None]
        tasks = _reported(own.tasks, {task.task: task for task in figures})
        return replace(merged, tasks=tasks, log_read_ms_ago=merged.log_read_ms_ago + max(ages, default=0))

    def processes(self) -> list[Json]:
        """Each worker, with the reason for which it does not answer."""
        seen, now_ms = self._supervisor.seen, self._supervisor.clock.monotonic_ms()
        lines = {line.pid: line for line in self.lines.all()}
        return [self._process(one, None if one.pid is None else lines.get(one.pid), now_ms) for one in seen.workers]

    def _process(self, worker: WorkerSeen, line: WorkerLine | None, now_ms: int) -> Json:
        held = worker.held()
        running = worker.pid is not None
        return {
            "worker": worker.number,
            "pid": worker.pid,
            "starts": worker.starts,
            "state": "running" if worker.opened else "starting" if running else "ended",
            "running_ms": now_ms - worker.began_ms if running else 0,
            "active": sorted(str(task) for task, one in held.items() if one.role == ACTIVE),
            "standby": sorted(str(task) for task, one in held.items() if one.role != ACTIVE),
            "status_ms_ago": None if line is None or line.status is None else now_ms - line.status_ms,
            "error": _trouble(worker, line),
        }

    def _take(self, pid: int, status: bytes, seen: InstanceSeen | None) -> None:
        """Take a worker's newest document; called with the lock."""
        name = f"{pid}"
        try:
            document = parsed(status)
            if self._taken.get(pid) is not status:
                self._totals.take(name, statistics_of(document))
                self._taken[pid] = status
            if seen is not None:  # a task that changes hands is in two documents: the reports name its worker
                mine = {str(task) for one in seen.workers if one.pid == pid for task in one.tasks}
                document = document | {"tasks": [task for task in document["tasks"] if task["task"] in mine]}
            self._numbers.take(name, document)
        except (StandfastError, KeyError, TypeError, ValueError) as error:
            logger.warning(
                "the status of process %d cannot be read: %r", pid, error, extra=as_event("worker_status_unreadable")
            )

    def _gone(self, pid: int, status: bytes | None) -> None:
        """Keep the counters of a worker that has ended: a counter that fell would look like a reset."""
        with self._lock:
            if status is not None:
                self._take(pid, status, None)
            self._numbers.gone(f"{pid}")
            self._totals.gone(f"{pid}")
            self._taken.pop(pid, None)


class SupervisorInstance:
    """The `Instance` of a supervisor."""

    def __init__(self, supervisor: Supervisor, figures: WorkerFigures) -> None:
        self._supervisor = supervisor
        self._figures = figures
        self._rows = WorkerRows(supervisor, figures.lines)
        self._metrics = Metrics(self._samples, supervisor.clock, supervisor.state_path)

    async def health(self, path: str, exclude: Collection[str]) -> Health:
        """Of the instance; no answer waits for a worker, for the log, or for a lock."""
        if path == "/startupz":
            return startup(HealthFacts(), exclude)  # the port is served only once the supervisor is there
        what = path.strip("/z")
        wrong = self._supervisor.not_ready_reasons() if what == "ready" else []
        if stalled := self._supervisor.stalled():
            wrong.append(stalled)
        return of_session(what, wrong, exclude)

    async def scrape(self) -> bytes:
        """The metrics of the whole instance."""
        return await in_thread(self._metrics.exposition)

    async def status(self) -> Json:
        """The status document of the whole instance."""
        return await in_thread(self._status)

    async def rows(self, request: Request) -> Response:
        """Rows, by the workers that have their tasks."""
        path, query = request.scope["raw_path"].decode("ascii"), request.scope["query_string"].decode("ascii")
        return answer(200, await in_thread(partial(self._rows.document, path, query)))

    def page_status(self) -> Json:
        """As of a session."""
        status = self._status()
        events = {} if status["placement"] is None else {"events": move_events(status["placement"])}
        return status | {"version": __version__} | events

    def _status(self) -> Json:
        seen = self._supervisor.seen
        return status_document(self._figures.statistics()) | {
            "paused": seen.paused,
            "worker_processes": self._figures.processes(),
        }

    def _samples(self) -> Iterator[Sample]:
        yield from session_samples(self._figures.statistics())
        for one in self._figures.processes():
            labels = (str(one["worker"]),)
            yield "worker_answers", labels, float(one["state"] == "running" and not one["error"])
            yield "worker_starts_total", labels, one["starts"]


def _trouble(worker: WorkerSeen, line: WorkerLine | None) -> str:
    """Why a worker does not answer; "" if it does, or is about to."""
    if worker.pid is None:
        return f"worker {worker.number} has ended, and starts again: its tasks wait"
    name = f"worker {worker.number} (process {worker.pid})"
    if line is None:
        return f"{name} can be asked no more: its line to this process has ended" if worker.opened else ""
    silent_ms = line.silent_ms()
    if not silent_ms:
        return ""
    return f"{name} has not answered for {duration_text(silent_ms)}: {HOW}"


def _reported(reports: tuple[TaskStatistics, ...], figures: dict[str, TaskStatistics]) -> tuple[TaskStatistics, ...]:
    """The tasks by the workers' reports, which are newer than their status documents, with the figures of those."""
    return tuple(
        replace(known, role=one.role, state=one.state) if (known := figures.get(one.task)) is not None else one
        for one in reports
    )
