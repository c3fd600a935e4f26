"""The worker's reader: pages of committed rows of what it holds, standbys and restoring tasks, for the server's door.

Rules of this file: one thread, one request after the other, beside the session's own work. An answer has ROWS_MAX rows
and BYTES_MAX bytes at most, and says where it goes on. Nothing is logged: paths hold keys.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from standfast.ops.http.routes import ERROR_SCHEMA, Refusal, Routes
from standfast.ops.shared.reasons import message_of, reason_of
from standfast.ops.sidecar.worker.protocol import ReadRows, Rows
from standfast.store.errors import StandfastError

ROWS_MAX = 1_000
BYTES_MAX = 1 << 20


class Reader:
    """Answers with `tell`, in a thread of its own."""

    def __init__(self, routes: Routes, tell: Callable[[Rows], None]) -> None:
        self._routes = routes
        self._tell = tell
        self._asked: queue.SimpleQueue[ReadRows] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="standfast-reader", daemon=True)
        self.thread.start()

    def ask(self, request: ReadRows) -> None:
        """Answer this after those before it."""
        self._asked.put(request)

    def _run(self) -> None:
        while True:
            try:
                self._tell(page(self._routes, self._asked.get()))
            except BrokenPipeError:
                return  # the server was killed; the next heartbeat, or the kernel before it, ends this process


def page(routes: Routes, request: ReadRows) -> Rows:
    """The answer to one request; errors are answers too."""
    try:
        return Rows(request.id, 200, routes.rows(request.path, request.query, ROWS_MAX, BYTES_MAX))
    except Refusal as refusal:
        return Rows(request.id, refusal.status, refusal.document())
    except Exception as error:  # noqa: BLE001  told to who asked; an error that is none of ours tells its class only
        reason, name = reason_of(error), type(error).__name__
        shown = message_of(error) if isinstance(error, StandfastError) else f"{name}: the rows cannot be read"
        document = {"schema": ERROR_SCHEMA, "error": name, "reason": reason.name, "message": shown}
        return Rows(request.id, reason.http, document)
