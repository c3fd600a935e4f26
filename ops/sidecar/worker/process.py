"""The server's side of its worker process: started, told what to hold, heard, and started again when it dies.

    want(active, standby) ──> Hold, once a change            poll() ──> what it holds now, None while it is starting
    died ──> everything it had counts as closed; after a pause that doubles up to RESTART_MS_MAX: a new one

Rules of this file: a pipe and a process, used by one thread. Nothing here waits, but for `close`. The worker inherits
the handle of the state directory's lock, so that nobody opens a task that a worker of a dead server still has.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from standfast.ops.sidecar.worker.moves import Holding
from standfast.ops.sidecar.worker.protocol import (
    Failed,
    Hold,
    Open,
    Report,
    Rows,
    State,
    Stop,
    order_line,
    parse_report,
)
from standfast.ops.sidecar.worker.reads import Reads
from standfast.store.clock import Clock
from standfast.store.errors import StandfastError, Unavailable
from standfast.store.log import logger

MODULE = "standfast.ops.sidecar.worker.worker"
READ_BYTES = 1 << 20
RESTART_MS = 200
RESTART_MS_MAX = 2_000  # tasks that it is to restore wait for it, and are to open within 5 s
WELL_MS = 30_000
CLOSE_MS = 10_000
SILENT_MS = 8_000  # it says every second that it lives
START_MS = 60_000  # until its first word: that needs a second of processor time, which a busy machine gives late


class TailWorker:
    """One worker process at a time."""

    def __init__(self, order: Open, clock: Clock) -> None:
        self._order = order
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._said = b""
        self._spoke = False  # since it was started
        self._round = 0
        self._wanted: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
        self._sent: tuple[frozenset[int], frozenset[int]] | None = None
        self._state: State | None = None
        self._reads = Reads()
        self._start_ms = 0
        self._started_ms = 0
        self._wait_ms = RESTART_MS
        self.heard_ms = clock.monotonic_ms()
        self.status: Mapping[str, Any] | None = None
        self.restarts = 0
        self.error = ""

    @property
    def pid(self) -> int | None:
        """The process that runs now."""
        return None if self._process is None else self._process.pid

    def want(self, active: frozenset[int], standby: frozenset[int]) -> None:
        """Have it hold exactly these."""
        self._wanted = (active, standby)
        self._send()

    @property
    def settled(self) -> bool:
        """Whether it has carried out the last order."""
        return self._state is not None and self._state.round == self._round and self._sent == self._wanted

    def poll(self) -> Mapping[int, Holding] | None:
        """What it holds; None until it has carried out the last order, since what it is about to close is still its.

        A worker that died holds nothing.
        """
        now_ms = self._clock.monotonic_ms()
        if self._process is None:
            if now_ms < self._start_ms:
                return {}
            self._start(now_ms)
        self._hear(now_ms)
        if self._process is not None and not self._spoke and now_ms - self._started_ms <= START_MS:
            self.heard_ms = now_ms
        if self._process is not None and now_ms - self.heard_ms > SILENT_MS:
            logger.error("the worker for restores and standbys says nothing: it is killed")
            self._process.kill()  # its end is heard in the next round
            self.heard_ms = now_ms
        if self._process is None:
            return {}
        if self._state is None and self._sent == (frozenset(), frozenset()):
            return {}  # it was told to hold nothing, and starts: nobody waits for that
        self._send()
        return self._state.tasks if self._state is not None and self.settled else None

    def read(self, path: str, query: str) -> Future[Rows]:
        """A page of committed rows of what it holds. Raises Unavailable while none runs, Refused: TOO_LARGE, LIMIT."""
        if self._process is None or self._state is None:
            raise Unavailable("the worker that is to have the standby is starting: ask again")
        order, future = self._reads.ask(path, query)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it died: its silence says so
            self._process.stdin.write(order_line(order))
        return future

    def close(self) -> None:
        """End it: cleanly if it does so in time."""
        process, self._process = self._process, None
        self._reads.lose()
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.write(order_line(Stop()))
        deadline_ms = self._clock.monotonic_ms() + CLOSE_MS
        while process.poll() is None and self._clock.monotonic_ms() < deadline_ms:
            # Its reports are read to their end, so that it does not wait for a full pipe.
            with contextlib.suppress(BlockingIOError):
                os.read(process.stdout.fileno(), READ_BYTES)
            self._clock.sleep_ms(5)
        if process.poll() is None:
            process.kill()
            process.wait()
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.stdout.close()

    def _start(self, now_ms: int) -> None:
        # -P: a file of the working directory must not stand in for a module.
        # A process group of its own: Ctrl-C is for the server, which ends its worker itself.
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                pass_fds=(self._order.lock,),
                process_group=0,
            )
            assert process.stdin is not None and process.stdout is not None
            os.set_blocking(process.stdout.fileno(), False)
            process.stdin.write(order_line(self._order))
        except OSError as error:
            self._later(now_ms, f"it could not be started: {error}")
            return
        self._process, self._said, self._sent, self._state = process, b"", None, None
        self._spoke = False
        self._started_ms = self.heard_ms = now_ms
        self._send()

    def _send(self) -> None:
        if self._process is None or self._sent == self._wanted:
            return
        self._round += 1
        self._sent = self._wanted
        active, standby = self._wanted
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it died: its silence says so
            self._process.stdin.write(order_line(Hold(self._round, tuple(sorted(active)), tuple(sorted(standby)))))

    def _hear(self, now_ms: int) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdout is not None
        silent = False
        while not silent:
            try:
                piece = os.read(process.stdout.fileno(), READ_BYTES)
            except BlockingIOError:
                break
            self._said += piece
            silent = not piece
        *lines, self._said = self._said.split(b"\n")
        try:
            for line in lines:
                self._take(parse_report(line), now_ms)
        except StandfastError as error:
            logger.error("the worker for restores and standbys is ended: %s", error)
            silent = True
        if silent:
            process.kill()
            code = process.wait()
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.stdout.close()
            self._process = None
            self._later(now_ms, f"signal {-code}" if code < 0 else f"exit code {code}")

    def _take(self, report: Report, now_ms: int) -> None:
        self._spoke = True
        self.heard_ms = now_ms
        if isinstance(report, Failed):
            self.error = report.message
            logger.error("the worker for restores and standbys failed: %s: %s", report.kind, report.message)
            return
        if isinstance(report, Rows):
            self._reads.answer(report)
        if not isinstance(report, State):
            return
        self._state = report
        self.error = report.error
        if report.status is not None:
            self.status = report.status

    def _later(self, now_ms: int, how: str) -> None:
        if now_ms - self._started_ms >= WELL_MS:
            self._wait_ms = RESTART_MS
        logger.warning("the worker for restores and standbys ended (%s): started again in %d ms", how, self._wait_ms)
        self._start_ms = now_ms + self._wait_ms
        self._wait_ms = min(self._wait_ms * 2, RESTART_MS_MAX)
        self._state = None
        self._reads.lose()
        self.status = None
        self.restarts += 1
