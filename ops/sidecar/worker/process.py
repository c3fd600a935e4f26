"""The server's side of its standby worker: starts the process, orders tasks, takes reports, restarts it when it dies.

    want(active, standby) ──> Hold, once a change            poll() ──> its tasks now, None while it is starting
    died ──> all its tasks count as closed; after a pause that doubles up to RESTART_MS_MAX: a new one
    Reads.ask(path, query) ──> ReadRows ──> worker: Reader (reader.py)
               future      <── Rows     <──

Rules of this file: used by one thread. No call waits, but for `close`. The process itself is a `ChildProcess`, to
which the handle of the state directory's lock is lent, so that no process opens a task that a worker of a dead server
still has. Open reads are bounded, so that a pipe to a worker never fills, and not logged: paths hold keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from standfast.ops.shared.error_codes import LIMIT, TOO_LARGE, Refused
from standfast.ops.sidecar.worker.moves import Holding
from standfast.ops.sidecar.worker.protocol import (
    HoldTails,
    OpenTails,
    ReadRows,
    Report,
    RowsPage,
    StopTails,
    TailsFailed,
    TailsState,
    order_line,
    parse_report,
)
from standfast.store.clock import Clock
from standfast.store.errors import Unavailable
from standfast.store.log import as_event, logger
from standfast.store.process.child import ChildProcess, ChildSilence, Restarts
from standfast.store.timestamps import duration_text

MODULE = "standfast.ops.sidecar.worker.worker"
RESTART_MS_MAX = 2_000  # tasks that it is to restore wait for it, and are to open within 5 s
CLOSE_MS = 10_000
SILENT_MS = 8_000  # the worker reports every second that it lives
START_MS = 60_000  # until its first report: that needs a second of processor time, which a busy machine gives late

# The control thread writes the requests, and must not wait for a pipe.
ASKED_MAX = 16
ASKED_BYTES_MAX = 24 << 10  # below the size of a pipe's buffer, however they are escaped


class StandbyWorker:
    """One standby worker process at a time."""

    def __init__(self, order: OpenTails, clock: Clock) -> None:
        self._order = order
        self._clock = clock
        self._child: ChildProcess[Report] | None = None
        self._round = 0
        self._wanted: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
        self._sent: tuple[frozenset[int], frozenset[int]] | None = None
        self._state: TailsState | None = None
        self._reads = Reads()
        self._start_ms = 0
        self._restarts = Restarts(RESTART_MS_MAX)
        self.heard_ms = clock.monotonic_ms()
        self.status: Mapping[str, Any] | None = None
        self.restarts = 0
        self.error = ""

    @property
    def pid(self) -> int | None:
        """Id of the running process; None if there is none."""
        return None if self._child is None else self._child.pid

    def want(self, active: frozenset[int], standby: frozenset[int]) -> None:
        """Order the worker to hold exactly these tasks."""
        self._wanted = (active, standby)
        self._send()

    @property
    def settled(self) -> bool:
        """Whether the worker has carried out the last order."""
        return self._state is not None and self._state.round == self._round and self._sent == self._wanted

    def poll(self) -> Mapping[int, Holding] | None:
        """Tasks of the worker; None until it has carried out the last order, because tasks to close are still its own.

        A worker that died holds nothing.
        """
        now_ms = self._clock.monotonic_ms()
        if self._child is None:
            if now_ms < self._start_ms:
                return {}
            self._start(now_ms)
        self._hear(now_ms)
        if self._child is None:
            return {}
        if self._state is None and self._sent == (frozenset(), frozenset()):
            return {}  # ordered to hold nothing, and still starting: no caller waits for that
        self._send()
        return self._state.tasks if self._state is not None and self.settled else None

    def read(self, path: str, query: str) -> Future[RowsPage]:
        """A page of committed rows of a task there. Raises Unavailable while none runs, Refused: TOO_LARGE, LIMIT."""
        if self._child is None or self._state is None:
            raise Unavailable("the standby worker is starting: ask again")
        order, future = self._reads.ask(path, query)
        self._child.order(order_line(order))
        return future

    def close(self) -> None:
        """End the worker: cleanly if it does so in time."""
        child, self._child = self._child, None
        # Before the process ends: its HTTP requests get an answer instead of waiting for rows that never come.
        self._reads.lose()
        if child is not None:
            child.stop(order_line(StopTails()), CLOSE_MS)

    def _start(self, now_ms: int) -> None:
        try:
            self._child = ChildProcess(
                MODULE,
                parse=parse_report,
                clock=self._clock,
                lend=(self._order.lock,),
                silence=ChildSilence(START_MS, SILENT_MS),
            )
        except OSError as error:
            self._later(now_ms, 0, f"it could not be started: {error}")
            return
        # A new process holds nothing, so the wanted tasks are sent whole and no earlier state counts.
        self._sent, self._state = None, None
        self._child.order(order_line(self._order))
        self._send()

    def _send(self) -> None:
        if self._child is None or self._sent == self._wanted:
            return
        self._round += 1
        self._sent = self._wanted
        active, standby = self._wanted
        self._child.order(order_line(HoldTails(self._round, tuple(sorted(active)), tuple(sorted(standby)))))

    def _hear(self, now_ms: int) -> None:
        child = self._child
        if child is None:
            return
        for report in child.poll():
            self._take(report)
        self.heard_ms = child.heard_ms
        if child.ended is not None:
            if child.ended.why:
                logger.error(
                    "the sidecar ended the standby worker: %s", child.ended.why, extra=as_event("standby_worker_killed")
                )
                self.heard_ms = now_ms
            self._child = None
            self._later(now_ms, now_ms - child.started_ms, str(child.ended))

    def _take(self, report: Report) -> None:
        if isinstance(report, TailsFailed):
            self.error = report.message
            logger.error(
                "the standby worker failed: %s: %s",
                report.kind,
                report.message,
                extra=as_event("standby_worker_failed", error_class=report.kind),
            )
        elif isinstance(report, RowsPage):
            self._reads.answer(report)
        else:
            self._state = report
            self.error = report.error
            if report.status is not None:
                self.status = report.status

    def _later(self, now_ms: int, lived_ms: int, how: str) -> None:
        pause_ms = self._restarts.pause_ms(lived_ms)
        logger.warning(
            "the standby worker ended (%s): it starts again in %s",
            how,
            duration_text(pause_ms),
            extra=as_event("standby_worker_ended", restart_ms=pause_ms),
        )
        self._start_ms = now_ms + pause_ms
        self._state = None
        # Reads that the dead process had are answered as lost; a new one knows nothing of them.
        self._reads.lose()
        self.status = None
        self.restarts += 1


class Reads:
    """Requests to one worker that it has not answered. Used by one thread."""

    def __init__(self) -> None:
        self._asked: dict[int, tuple[Future[RowsPage], int]] = {}
        self._last = 0

    def ask(self, path: str, query: str) -> tuple[ReadRows, Future[RowsPage]]:
        """Add a request. Raises Refused: TOO_LARGE, LIMIT."""
        size = len(path) + len(query)
        if size > ASKED_BYTES_MAX:
            raise Refused(TOO_LARGE, f"a request for rows of a standby has {ASKED_BYTES_MAX} bytes at most")
        if len(self._asked) >= ASKED_MAX or size + sum(one for _, one in self._asked.values()) > ASKED_BYTES_MAX:
            raise Refused(LIMIT, f"the standby worker has {len(self._asked)} other requests: ask again")
        self._last += 1
        future: Future[RowsPage] = Future()
        self._asked[self._last] = future, size
        return ReadRows(self._last, path, query), future

    def answer(self, rows: RowsPage) -> None:
        """Pass the worker's answer on."""
        # The request may have timed out meanwhile.
        future, _ = self._asked.pop(rows.id, (None, 0))
        if future is not None and future.set_running_or_notify_cancel():
            future.set_result(rows)

    def lose(self) -> None:
        """Fail all open requests: the worker is gone, and its answers with it."""
        asked, self._asked = self._asked, {}
        for future, _ in asked.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(Unavailable("the standby worker ended: ask again"))
