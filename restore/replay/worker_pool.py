"""Worker processes: each is started when a job waits, does one job at a time, and ends when no job is left.

    submit ──> queue ── hand_out ──> worker, with its job in its pipe ──> poll: events, or that it died

Rules of this file: pipes and processes; it knows nothing of a job's meaning. No call here waits. A worker ends when its
input is closed, and so with this process, whatever ends it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

from standfast.restore.replay.worker_protocol import Done, Event, Failed, Job, job_line, parse_event
from standfast.store.errors import StandfastError
from standfast.store.log import as_event, child_environment, logger

MODULE = "standfast.restore.replay.worker"
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Died:
    """The worker of a job ended before the job was done."""

    number: int
    how: str


Answer: TypeAlias = Event | Died


class WorkerPool:
    """At most `workers` processes at once. Used by one thread."""

    def __init__(self, workers: int) -> None:
        self._limit = workers
        self._queue: deque[Job] = deque()
        self._workers: list[_Worker] = []
        self._ending: list[_Worker] = []
        self.peak_rss_bytes = 0  # largest resident size that a worker reported
        self.phases_ns: Counter[str] = Counter()  # the workers' time by phase

    @property
    def pids(self) -> list[int]:
        """Ids of the processes that run now."""
        return [worker.pid for worker in self._workers]

    @property
    def quiet(self) -> bool:
        """Whether no worker runs or ends, and no job waits."""
        return not (self._workers or self._ending or self._queue)

    def submit(self, job: Job) -> None:
        """Queue a job; jobs begin in the order of their submission."""
        self._queue.append(job)

    def cancel(self, numbers: Collection[int]) -> None:
        """Forget these jobs; workers that are doing one of them are killed."""
        gone = frozenset(numbers)
        self._queue = deque(job for job in self._queue if job.number not in gone)
        for worker in [one for one in self._workers if one.job is not None and one.job.number in gone]:
            self._workers.remove(worker)
            worker.kill()

    def poll(self) -> list[Answer]:
        """Events and deaths of workers since the last call."""
        self._ending = [worker for worker in self._ending if not worker.reaped()]
        return [answer for worker in list(self._workers) for answer in self._hear(worker)]

    def hand_out(self, expected: int = 0) -> list[Died]:
        """Give waiting jobs to workers, up to the limit; a worker without a job ends.

        `expected`: the number of further jobs to come soon; workers for them are started, and kept.
        """
        failed: list[Died] = []
        idle = [worker for worker in self._workers if worker.job is None]
        while self._queue and (idle or len(self._workers) < self._limit):
            job = self._queue.popleft()
            try:
                worker = idle.pop() if idle else self._start()
                worker.give(job)
            except OSError as error:
                failed.append(Died(job.number, f"it could not be started: {error}"))
        try:
            while len(idle) < expected and len(self._workers) < self._limit:
                idle.append(self._start())
        except OSError:
            pass  # reported as soon as a job needs the worker
        for worker in idle[expected:]:
            self._workers.remove(worker)
            worker.end()
            self._ending.append(worker)
        return failed

    def close(self) -> None:
        """End all workers."""
        self._queue.clear()
        for worker in (*self._workers, *self._ending):
            worker.kill()
        self._workers.clear()
        self._ending.clear()

    def _start(self) -> _Worker:
        worker = _Worker()
        self._workers.append(worker)
        return worker

    def _hear(self, worker: _Worker) -> list[Answer]:
        answers: list[Answer] = []
        try:
            for line in worker.lines():
                event = parse_event(line)
                answers.append(event)
                if isinstance(event, Done):
                    self.peak_rss_bytes = max(self.peak_rss_bytes, event.peak_rss_bytes)
                    self.phases_ns.update(event.phases_ns)
                if isinstance(event, Done | Failed):
                    worker.job = None
        except StandfastError as error:
            worker.kill()
            logger.error(
                "a worker process of a bulk restore is killed: %s", error, extra=as_event("restore_worker_killed")
            )
        # After its lines: a worker that has reported the end of its job did not die with it.
        ended = worker.ended()
        if ended is not None:
            self._workers.remove(worker)
            if worker.job is not None:
                answers.append(Died(worker.job.number, ended))
        return answers


class _Worker:
    """One worker process and its pipes."""

    def __init__(self) -> None:
        # -P: a file of the working directory must not stand in for a module.
        # A process group of its own: Ctrl-C is for the owner, which ends its workers itself.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # jobs must leave at once, and lines are split here
            process_group=0,
            env=os.environ | child_environment(),
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        # `poll` reads it on the session's thread, which must not wait.
        os.set_blocking(self._stdout.fileno(), False)
        self._said = b""
        self._silent = False
        self.job: Job | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def give(self, job: Job) -> None:
        """Send a job; it fits the pipe, so this does not wait."""
        self.job = job
        with contextlib.suppress(BrokenPipeError):  # the worker died: `ended` reports it
            self._stdin.write(job_line(job))

    def lines(self) -> list[bytes]:
        """Whole lines that the worker wrote since the last call."""
        while not self._silent:
            try:
                piece = os.read(self._stdout.fileno(), READ_BYTES)
            except BlockingIOError:
                break
            self._said += piece
            self._silent = not piece
        *lines, self._said = self._said.split(b"\n")
        return lines

    def ended(self) -> str | None:
        """How the process ended; None while it runs."""
        if not self._silent:
            return None
        self.kill()  # its output is closed, so that it can report nothing more, whether it lives or not
        code = self._process.returncode
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def end(self) -> None:
        """Close the worker's input; an idle worker ends at once."""
        self._stdin.close()

    def reaped(self) -> bool:
        """Whether the process has ended, after `end`."""
        if self._process.poll() is None:
            return False
        self._stdout.close()
        return True

    def kill(self) -> None:
        """Kill the process now; a worker holds no state that could be lost."""
        self._silent = True
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        self._stdout.close()
