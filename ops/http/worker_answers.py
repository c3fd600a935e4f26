"""A worker's answers to the HTTP server of its supervisor, by threads of their own beside its processing.

    status thread   status document of its session, about once a second ──> STATUS
    line thread     ASK ──> queue;  BEAT every BEAT_MS
    rows thread     queue ──> one page of committed rows after the other ──> ANSWER

Rules of this file: a supervisor that reads slowly holds up these threads and no processing: each sends without the
session's lock. No path is logged: paths hold keys.
"""

from __future__ import annotations

import contextlib
import json
import queue
import select
import socket
import threading
from collections.abc import Callable

from standfast.ops.http.rows import Rows
from standfast.ops.http.worker_frames import (
    ANSWER,
    ASK,
    BEAT,
    BEAT_MS,
    BODY_BYTES_MAX,
    STATUS,
    Frame,
    read_frame,
    send_frame,
)
from standfast.ops.observe.status import status_document
from standfast.ops.shared.error_codes import error_document, reason_of
from standfast.store.errors import Closed, TooLarge
from standfast.store.log import as_event, logger
from standfast.store.process.interrupts import Flag
from standfast.stream.session.session import Session

PUSH_MS = 1_000
PUSH_SHARE, PUSH_MS_MAX = 50, 5_000  # a status that takes long to make is sent more seldom, up to this interval


class WorkerAnswers:
    """Answers through a line until the supervisor or this process ends."""

    def __init__(self, session: Session, line: socket.socket) -> None:
        self._session = session
        self._rows = Rows(session)
        self._line = line
        self._sending = threading.Lock()
        self._gone = Flag()  # the line has ended
        self._asked: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()  # None: the line has ended
        for name, run in (("line", self._hear), ("rows", self._answer), ("status", self._push)):
            thread = threading.Thread(target=_until_gone, args=(run,), name=f"standfast-{name}", daemon=True)
            thread.start()

    def _send(self, kind: bytes, number: int = 0, body: bytes = b"") -> None:
        with self._sending:
            send_frame(self._line, kind, number, body)

    def _hear(self) -> None:
        try:
            self._listen()
        finally:
            self._gone.set()
            self._asked.put(None)
            with contextlib.suppress(OSError):
                self._line.shutdown(socket.SHUT_RDWR)  # ends a send that waits for the supervisor
            with self._sending:
                self._line.close()

    def _listen(self) -> None:
        ready = select.poll()
        ready.register(self._line, select.POLLIN)
        while True:
            if ready.poll(BEAT_MS):
                frame = read_frame(self._line)
                if frame is None:
                    return
                if frame.kind == ASK:
                    self._asked.put(frame)
            self._send(BEAT)

    def _answer(self) -> None:
        while (frame := self._asked.get()) is not None:
            self._send(ANSWER, frame.number, self._page(frame.body))

    def _page(self, body: bytes) -> bytes:
        try:
            asked = json.loads(body)
            page = self._rows.page(asked["path"], asked["query"], asked["rows"], asked["bytes"])
            found = _json({"status": 200, "document": page})  # may fail: a serde makes any value
            if len(found) > BODY_BYTES_MAX:
                raise TooLarge(f"the rows have {len(found)} bytes as JSON, over the limit of {BODY_BYTES_MAX}")
        except Exception as error:  # noqa: BLE001  answered; an error that is none of ours gives its class only
            return _json({"status": reason_of(error).http, "document": error_document(error)})
        return found

    def _push(self) -> None:
        clock = self._session.clock
        while not self._gone.is_set():
            began_ms = clock.monotonic_ms()
            try:
                document = _json(status_document(self._session.statistics()))
            except Closed:
                return
            except Exception as error:  # noqa: BLE001  the next round tries again, and the status shows its age
                logger.warning("no status of this worker: %r", error, extra=as_event("worker_status_failed"))
            else:
                self._send(STATUS, 0, document)
            took_ms = clock.monotonic_ms() - began_ms
            self._gone.wait(max(PUSH_MS - took_ms, min(took_ms * PUSH_SHARE, PUSH_MS_MAX)) / 1_000)


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _until_gone(run: Callable[[], None]) -> None:
    try:
        run()
    except OSError:
        return  # the supervisor was killed, or has closed the line: this process ends, or answers no more
