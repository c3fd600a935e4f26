"""The worker's reader: pages of committed rows of its standbys and restoring tasks, for the server's HTTP API.

Rules of this file: one thread, one request after the other, beside the session's own work. An answer has ROWS_MAX rows
and BYTES_MAX bytes at most, and says where it goes on. No path is logged: paths hold keys.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from standfast.ops.http.rows import Rows as SessionRows
from standfast.ops.shared.error_codes import error_document, reason_of
from standfast.ops.sidecar.worker.protocol import ReadRows, RowsPage

ROWS_MAX = 1_000
BYTES_MAX = 1 << 20


class RowsReader:
    """Answers requests, one after the other, in a thread of its own."""

    def __init__(self, source: SessionRows, tell: Callable[[RowsPage], None]) -> None:
        self._source = source
        self._tell = tell
        self._asked: queue.SimpleQueue[ReadRows] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="standfast-reader", daemon=True)
        self.thread.start()

    def ask(self, request: ReadRows) -> None:
        """Answer this request after those before it."""
        self._asked.put(request)

    def _run(self) -> None:
        while True:
            try:
                self._tell(page(self._source, self._asked.get()))
            except BrokenPipeError:
                return  # the server was killed; the next heartbeat, or the kernel before it, ends this process


def page(source: SessionRows, request: ReadRows) -> RowsPage:
    """The answer to one request; errors are answers too."""
    try:
        return RowsPage(request.id, 200, source.document(request.path, request.query, ROWS_MAX, BYTES_MAX))
    except Exception as error:  # noqa: BLE001  answered; an error that is none of ours gives its class only
        return RowsPage(request.id, reason_of(error).http, error_document(error))
