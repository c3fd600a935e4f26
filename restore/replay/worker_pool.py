"""Worker threads of a bulk restore: each does one job, at most so many at once.

    submit ──> queue ── hand_out ──> thread: worker.py ──> poll: its reports

Rules of this file: threads and a queue; it knows nothing of a job's meaning. No call here waits, but `close`, which
joins the threads within `JOIN_S`. Reports of a job that was cancelled may still come.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection
from queue import Empty, SimpleQueue

from standfast.replication.log import Log
from standfast.restore.replay.jobs import Done, Event, Failed, Job, JobProgress
from standfast.restore.replay.worker import Worker
from standfast.store.clock import real_clock
from standfast.store.errors import Unavailable
from standfast.store.log import as_event, logger
from standfast.store.process.interrupts import Flag

JOIN_S = 10.0


class WorkerPool:
    """At most `workers` threads at once, which read `log`. Used by one thread.

    `wake` is called, by any thread, when there is a report to act on: every kind but `JobProgress`.
    """

    def __init__(self, log: Log, workers: int, wake: Callable[[], None]) -> None:
        self._log = log
        self._limit = workers
        self._wake = wake
        self._waiting: deque[Job] = deque()
        self._running: dict[int, tuple[threading.Thread, Flag]] = {}  # by job
        self._said: SimpleQueue[Event] = SimpleQueue()
        self.peak_bytes = 0  # the most memory that the rows of one job took
        self.phases_ns: Counter[str] = Counter()  # the workers' time by phase

    @property
    def threads(self) -> list[str]:
        """Names of the threads that run now."""
        return [thread.name for thread, _ in self._running.values()]

    @property
    def quiet(self) -> bool:
        """Whether no thread runs and no job waits."""
        return not (self._running or self._waiting)

    def submit(self, job: Job) -> None:
        """Queue a job; jobs begin in the order of their submission."""
        self._waiting.append(job)

    def cancel(self, numbers: Collection[int]) -> None:
        """Forget these jobs; threads that are doing one of them end soon."""
        self._waiting = deque(job for job in self._waiting if job.number not in numbers)
        for number in numbers:
            if number in self._running:
                self._running[number][1].set()

    def poll(self) -> list[Event]:
        """Reports since the last call."""
        for number, (thread, _) in list(self._running.items()):
            if not thread.is_alive():
                del self._running[number]
        found: list[Event] = []
        while True:
            try:
                event = self._said.get_nowait()
            except Empty:
                return found
            if isinstance(event, Done):
                self.peak_bytes = max(self.peak_bytes, event.peak_bytes)
                self.phases_ns.update(event.phases_ns)
            found.append(event)

    def hand_out(self) -> None:
        """Start threads for queued jobs, up to the limit; one that cannot be started is reported as `Failed`."""
        while self._waiting and len(self._running) < self._limit:
            job = self._waiting.popleft()
            stop = Flag()
            worker = Worker(self._log, job, self._say, stop)
            thread = threading.Thread(target=worker.run, name=f"standfast-build-{job.changelog}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the machine allows no more threads
                self._say(Failed(job.number, Unavailable(f"its thread could not be started: {error}")))
                continue
            self._running[job.number] = thread, stop

    def _say(self, event: Event) -> None:
        self._said.put(event)
        if not isinstance(event, JobProgress):
            self._wake()

    def close(self) -> None:
        """End all threads."""
        self._waiting.clear()
        for _, stop in self._running.values():
            stop.set()
        clock = real_clock()
        deadline_ms = clock.monotonic_ms() + JOIN_S * 1_000
        for thread, _ in self._running.values():
            thread.join(max(deadline_ms - clock.monotonic_ms(), 0) / 1_000)
            if thread.is_alive():
                logger.warning(
                    "thread %s of a bulk restore still runs after %s s: it ends with its present call",
                    thread.name,
                    JOIN_S,
                    extra=as_event("restore_worker_late", thread=thread.name),
                )
        self._running.clear()
