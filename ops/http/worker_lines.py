"""The supervisor's side of the lines to its workers: the newest status of each, and pages of rows.

    began(pid, line) ──> WorkerLine: a thread reads STATUS, BEAT and ANSWER ──> status, heard_ms
    ask(...) ──> ASK ──> ... ANSWER    Unavailable: the worker is silent, has ASKED_MAX requests already, or has ended

Rules of this file: the newest status is kept as bytes and parsed when it is asked for. Only `ask` waits, for a worker
that is heard; a silent one is named after SILENT_MS. No path is logged: paths hold keys.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from typing import Any

from standfast.ops.http.worker_frames import (
    ANSWER,
    ASK,
    ASKED_MAX,
    SILENT_MS,
    STATUS,
    Frame,
    read_frame,
    send_frame,
)
from standfast.store.clock import Clock
from standfast.store.errors import InternalError, StandfastError, Unavailable
from standfast.store.log import as_event, logger
from standfast.store.timestamps import duration_text

ANSWER_MS_MAX = 9_000  # below the time after which clients give up
SEND_BYTES = 512 << 10
LOOK_S, CLOSE_S = 0.25, 5.0
HOW = "its interpreter is held, as by a record in one long call, or the machine is busy"


class WorkerLine:
    """The line to one worker process. `ended` is called once it has closed."""

    def __init__(self, pid: int, line: socket.socket, clock: Clock, ended: Callable[[WorkerLine], None]) -> None:
        self.pid = pid
        self.name = f"process {pid}"  # with its number once that is known
        self.status: bytes | None = None
        self.status_ms = 0  # monotonic
        self.heard_ms: int | None = None  # None: it has not opened its session yet
        self._line = line
        # Room for ASKED_MAX requests of the longest path, so that a send never waits for a worker that does not read.
        line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        self._clock = clock
        self._ended = ended
        self._closed = False
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._last = 0
        self._open: set[int] = set()  # requests that the worker has not answered
        self._waited: dict[int, bytes | None] = {}  # those of them with a client, and their answers
        self._thread = threading.Thread(target=self._run, name="standfast-worker-line", daemon=True)
        self._thread.start()

    def silent_ms(self) -> int:
        """For how long the worker has not been heard, in milliseconds; 0 within SILENT_MS, and before it has opened."""
        heard_ms = self.heard_ms
        silent_ms = 0 if heard_ms is None else self._clock.monotonic_ms() - heard_ms
        return silent_ms if silent_ms > SILENT_MS else 0

    def ask(self, path: str, query: str, rows_max: int, bytes_max: int) -> tuple[int, dict[str, Any], int]:
        """Status and document of one page, and its size in bytes. Raises Unavailable."""
        body = json.dumps({"path": path, "query": query, "rows": rows_max, "bytes": bytes_max}).encode()
        number = self._begin()
        try:
            with self._sending:
                try:
                    send_frame(self._line, ASK, number, body)
                except OSError as error:
                    raise Unavailable(f"{self.name} has ended: ask again") from error
            raw = self._await(number)
        finally:
            with self._changed:
                self._waited.pop(number, None)
        answer = json.loads(raw)
        return answer["status"], answer["document"], len(raw)

    def close(self) -> None:
        """End the line; its thread ends, and all requests fail. Closing twice is fine."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        try:
            self._line.shutdown(socket.SHUT_RDWR)  # else a forked child of the worker would keep it open
        except OSError:
            pass  # the worker has ended

    def wait_closed(self) -> None:
        """Wait for the end of the thread, after `close`."""
        self._thread.join(CLOSE_S)

    def _begin(self) -> int:
        with self._changed:
            self._check()
            # Those whose clients have given up count too: they still wait in the worker.
            if len(self._open) >= ASKED_MAX:
                raise Unavailable(f"{self.name} has {len(self._open)} requests for rows already: ask again")
            self._last += 1
            self._open.add(self._last)
            self._waited[self._last] = None
            return self._last

    def _check(self) -> None:
        if self._closed:
            raise Unavailable(f"{self.name} has ended: ask again")
        if self.heard_ms is None:
            raise Unavailable(f"{self.name} is starting: ask again")
        if silent_ms := self.silent_ms():
            raise Unavailable(f"{self.name} has not answered for {duration_text(silent_ms)} ({HOW}): ask again")

    def _await(self, number: int) -> bytes:
        until_ms = self._clock.monotonic_ms() + ANSWER_MS_MAX
        with self._changed:
            while (found := self._waited[number]) is None:
                self._check()
                if self._clock.monotonic_ms() >= until_ms:
                    took = duration_text(ANSWER_MS_MAX)
                    raise Unavailable(f"{self.name} has not read the rows within {took}: ask for fewer, or ask again")
                self._changed.wait(LOOK_S)
        return found

    def _run(self) -> None:
        try:
            while (frame := read_frame(self._line)) is not None:
                self._take(frame)
        except OSError:
            pass  # the worker was killed, or the line was closed here
        except StandfastError as error:
            logger.error("%s: %s", self.name, error, extra=as_event("worker_line_broken", pid=self.pid))
        self.close()
        with self._sending:  # its number may belong to another file at once
            self._line.close()
        self._ended(self)

    def _take(self, frame: Frame) -> None:
        now_ms = self._clock.monotonic_ms()
        with self._changed:
            self.heard_ms = now_ms
            if frame.kind == STATUS:
                self.status_ms, self.status = now_ms, frame.body  # in this order: others look without the lock
            elif frame.kind == ANSWER:
                self._open.discard(frame.number)
                if frame.number in self._waited:
                    self._waited[frame.number] = frame.body
            self._changed.notify_all()


class WorkerLines:
    """The lines to all worker processes, by process id. `gone` is called with the last status of one that has ended."""

    def __init__(self, clock: Clock, gone: Callable[[int, bytes | None], None]) -> None:
        self._clock = clock
        self._gone = gone
        self._lock = threading.Lock()
        self._lines: dict[int, WorkerLine] = {}

    def began(self, pid: int, line: socket.socket) -> None:
        """Take the line to a new worker process."""
        with self._lock:
            self._lines[pid] = WorkerLine(pid, line, self._clock, self._lost)

    def ended(self, pid: int) -> None:
        """A worker process has ended."""
        with self._lock:
            line = self._lines.get(pid)
        if line is not None:
            line.close()

    def find(self, pid: int) -> WorkerLine:
        """The line to a worker. Raises Unavailable if it has ended."""
        with self._lock:
            line = self._lines.get(pid)
        if line is None:
            raise Unavailable(f"process {pid} has ended: ask again")
        return line

    def all(self) -> list[WorkerLine]:
        """The lines to the workers that live."""
        with self._lock:
            return list(self._lines.values())

    def close(self) -> None:
        """End all lines, and wait for their threads."""
        lines = self.all()
        for line in lines:
            line.close()
        for line in lines:
            line.wait_closed()

    def _lost(self, line: WorkerLine) -> None:
        with self._lock:
            if self._lines.get(line.pid) is line:
                del self._lines[line.pid]
        self._gone(line.pid, line.status)


def parsed(status: bytes) -> dict[str, Any]:
    """A status document of a worker. Raises InternalError."""
    try:
        found = json.loads(status)
    except ValueError as error:
        raise InternalError(f"a worker sent a status that is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InternalError("a worker sent a status that is not a JSON object")
    return found
