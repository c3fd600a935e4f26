"""The spare worker process of an instance: its session is open and holds no task, to be the next worker that one needs.

    keep ──> starts the program ── Ready, Opened ──> waits ──> take: it is a worker now; keep starts the next one
                 └── ended, or stopped before run(): started again after a pause that doubles

A new process takes a second and more to start its interpreter, to import the program and to connect to the log, and the
tasks of a dead worker stand still for as long. The spare has done that before.

Rules of this file: one thread, as `pool.py`. A spare holds no task, so its end costs nothing.
"""

from __future__ import annotations

from standfast.store.clock import Clock
from standfast.store.log import as_event, logger
from standfast.store.process.child import Restarts
from standfast.store.timestamps import duration_text
from standfast.stream.workers.process import Starter, WorkerProcess
from standfast.stream.workers.watch import START_MS

PAUSE_MS_MAX = 60_000


class Spare:
    """See the head of this file."""

    def __init__(self, start: Starter, clock: Clock) -> None:
        self._start = start
        self._clock = clock
        self._restarts = Restarts(PAUSE_MS_MAX)
        self._process: WorkerProcess | None = None
        self._start_ms = 0

    @property
    def pid(self) -> int | None:
        """Id of the process that waits; None if none has opened its session yet."""
        return self._process.child.pid if self._process is not None and self._process.opened else None

    @property
    def fileno(self) -> int | None:
        """Handle to wait at for its words and its end."""
        return None if self._process is None else self._process.child.fileno()

    def keep(self) -> None:
        """Start the process if there is none, and take notice of its words and its end."""
        now_ms = self._clock.monotonic_ms()
        if self._process is None:
            if now_ms >= self._start_ms:
                self._begin(now_ms)
            return
        process, child = self._process, self._process.child
        process.hear()
        if not process.ready and now_ms - child.started_ms > START_MS:
            child.give_up(f"it did not come to run() within {START_MS // 1_000} s")
            process.hear()
        if child.ended is not None:
            how = f"{child.ended}" if process.failed is None else process.failed.message
            self._later(now_ms, now_ms - child.started_ms, how, child.ended.words)

    def take(self) -> WorkerProcess | None:
        """The process that has come to run(), which is the caller's from now on; None if there is none."""
        if self._process is not None:
            self.keep()  # it may have ended since
        if self._process is None or not self._process.ready:
            return None
        taken, self._process = self._process, None
        return taken

    def wishes(self) -> list[str]:
        """As `WorkerProcess.take_wishes`, of the process that waits."""
        return [] if self._process is None else self._process.take_wishes()

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def _begin(self, now_ms: int) -> None:
        try:
            self._process = self._start()
        except OSError as error:
            self._later(now_ms, 0, f"it could not be started: {error}", "")
            return
        pid = self._process.child.pid
        logger.info("a spare worker starts as process %d", pid, extra=as_event("spare_started", pid=pid))

    def _later(self, now_ms: int, lived_ms: int, how: str, words: str) -> None:
        self.kill()
        pause_ms = self._restarts.pause_ms(lived_ms)
        self._start_ms = now_ms + pause_ms
        logger.warning(
            "the spare worker ended (%s), it starts again in %s: until then the tasks of a worker that dies wait "
            "for a new process%s",
            how,
            duration_text(pause_ms),
            f"; its last lines:\n{words}" if words else "",
            extra=as_event("spare_ended", how=how, restart_ms=pause_ms),
        )
