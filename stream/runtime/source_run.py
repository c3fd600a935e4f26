"""One run of a source of one's own: its thread, the bounded queue to the loop, and its end.

    run(context) ── collect ──> queue (at most RECORDS_MAX) ── take ──> the loop, which processes and commits
      own thread     waits for room                                        │
      <── cancel(), in a thread of its own <──────────────────────── stop ─┘

    RUNNING ──> FINISHED     run returned
       │   └──> FAILED       run raised, or collected an offset that does not grow
       └─ stop ─> CANCELLED  nothing is taken any more; `ended` once run and cancel have returned

Rules of this file: `stop` never waits, since `run` or `cancel` may hang; the caller gives up after a deadline of its
own, and `hanging` names the line of the thread then. Threads are daemons: one that hangs does not keep the process.
A session without threads has these all the same, since `run` waits by its nature; a simulator gives others.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from enum import Enum

from standfast.store.clock import Clock
from standfast.store.errors import Closed, InvalidRequest, StandfastError
from standfast.store.log import as_event, logger
from standfast.store.process.interrupts import Flag
from standfast.store.process.threads import THREADS, Running, Threads
from standfast.stream.record import Record
from standfast.stream.source import Source, SourceContext

RECORDS_MAX = 1_000  # collected records that wait for the loop
ROOM_WAIT_MS = 500  # between two looks for room, where no wake-up comes


class RunState(Enum):
    """The state of a run."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


class SourceRun:
    """One run of one partition of a source. `wake` is set whenever the loop has something to look at."""

    def __init__(
        self,
        source: Source,
        where: str,
        place: tuple[str, int, int],
        position: int,
        clock: Clock,
        wake: Flag,
        threads: Threads = THREADS,
    ) -> None:
        self.where = where
        self._source = source
        self._context = SourceContext(*place, position, self)
        self._clock = clock
        self._wake = wake
        self._queue: deque[tuple[Record, int]] = deque()
        self._lock = threading.Lock()
        self._room = Flag()
        self._stopped = Flag()
        self._error: BaseException | None = None
        self._returned = False
        self._name = f"standfast-source-{place[0]}-{place[1]}"
        self._threads = threads
        self._running: Running | None = None  # `run`
        self._cancelling: Running | None = None  # `cancel`

    # --- the loop's side ---

    def start(self) -> None:
        """Begin `run` in its thread."""
        self._running = self._threads.start(self._name, self._work)

    @property
    def state(self) -> RunState:
        """The present state; records may wait in every state but CANCELLED."""
        if self._stopped.is_set():
            return RunState.CANCELLED
        if self._error is not None:
            return RunState.FAILED
        return RunState.FINISHED if self._returned else RunState.RUNNING

    @property
    def waiting(self) -> int:
        """The number of collected records that the loop has not taken."""
        return len(self._queue)

    @property
    def position(self) -> int:
        """The offset of the last collected record."""
        return self._context.position

    def take(self, limit: int) -> list[tuple[Record, int]]:
        """Up to `limit` collected records."""
        with self._lock:
            taken = [self._queue.popleft() for _ in range(min(limit, len(self._queue)))]
        self._room.set()
        return taken

    @property
    def error(self) -> Exception | None:
        """The error of a failed run, for the loop to raise; None until all that it collected before is taken."""
        with self._lock:
            failed = None if self._queue else self._error
        return None if failed is None else self._told(failed)

    def stop(self) -> None:
        """Cancel the run, without waiting for its end. Calling it again is fine."""
        with self._lock:
            if self._stopped.is_set():
                return
            self._stopped.set()
            self._queue.clear()
        self._room.set()
        if _works(self._running):
            self._cancelling = self._threads.start(f"{self._name}-cancel", self._cancel)

    @property
    def ended(self) -> bool:
        """Whether neither `run` nor `cancel` is at work any more."""
        return not _works(self._running) and not _works(self._cancelling)

    def join(self, seconds: float) -> bool:
        """Wait for the end for so long; returns whether it has ended."""
        for one in (self._running, self._cancelling):
            if one is not None and one.is_alive():
                one.join(seconds)
        return self.ended

    def hanging(self) -> str:
        """The call that does not return, and the line that it is at."""
        call, running, ours = (
            ("run()", self._running, SourceRun._work)
            if _works(self._running)
            else ("cancel()", self._cancelling, SourceRun._cancel)
        )
        ident = None if running is None else running.ident
        frame = sys._current_frames().get(ident or -1)
        # The outermost frame of the application's own, which names the line of its `run` or `cancel`.
        while frame is not None and frame.f_back is not None and frame.f_back.f_code is not ours.__code__:
            frame = frame.f_back
        at = "" if frame is None else f" (at {frame.f_code.co_filename}:{frame.f_lineno})"
        return f"its {call} does not return{at}"

    # --- the port of the context: the source's side ---

    @property
    def cancelled(self) -> bool:
        """Whether the run should end."""
        return self._stopped.is_set()

    def put(self, record: Record, offset: int) -> None:
        """Hand a record over; waits while the queue is full."""
        while not self._put(record, offset):
            self._threads.wait(self._room, ROOM_WAIT_MS)
        self._wake.set()

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until the run is cancelled."""
        return self._threads.wait(self._stopped, seconds * 1_000)

    def fail(self, error: BaseException) -> None:
        """Keep the first error, which the loop raises behind the records that were collected before it."""
        with self._lock:
            self._error = self._error or error
        self._wake.set()

    def wall_ms(self) -> int:
        """The wall clock."""
        return self._clock.wall_ms()

    # --- inside ---

    def _put(self, record: Record, offset: int) -> bool:
        """Hand a record over if there is room."""
        with self._lock:
            if self._stopped.is_set():
                raise Closed(f"{self.where} was cancelled: return from run()")
            if self._error is not None:
                raise Closed(f"{self.where} failed before: return from run()")
            self._room.clear()
            if has_room := len(self._queue) < RECORDS_MAX:
                self._queue.append((record, offset))
        return has_room

    def _work(self) -> None:
        try:
            if not self._stopped.is_set():
                self._source.run(self._context)
        except BaseException as error:  # noqa: BLE001 - the loop raises it in its own thread
            if self._stopped.is_set():
                # The task is gone or starts again either way; `collect` raises Closed to end the run.
                if not isinstance(error, Closed):
                    about = as_event("source_failed", source=self.where)
                    logger.warning("%s ended with an error after it was cancelled", self.where, exc_info=error,
                                   extra=about)  # fmt: skip
            else:
                self.fail(error)
        finally:
            self._returned = True
            self._wake.set()

    def _cancel(self) -> None:
        try:
            self._source.cancel()
        except BaseException as error:  # noqa: BLE001 - `run` may end all the same; else the deadline reports it
            about = as_event("source_failed", source=self.where)
            logger.error("%s: its cancel() failed", self.where, exc_info=error, extra=about)
        finally:
            self._wake.set()

    def _told(self, error: BaseException) -> Exception:
        """The error to raise in the loop; a class of ours would be read as one of the log or of the task."""
        behind = f"{self.where} failed behind offset {self.position}"
        plain = isinstance(error, Exception) and not isinstance(error, StandfastError)
        if isinstance(error, Exception) and (plain or type(error) is InvalidRequest):
            error.add_note(behind)
            return error
        told = InvalidRequest(f"{behind} ({type(error).__name__}: {error})")
        told.__cause__ = error
        return told


def _works(one: Running | None) -> bool:
    return one is not None and one.is_alive()
