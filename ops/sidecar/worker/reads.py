"""Reads of a standby's rows from the worker that has it: the server's side, with its open requests.

    server: Reads.ask(path, query) ──> ReadRows ──> worker: Reader (reader.py)
            future                 <── Rows     <──

Rules of this file: no pipe and no process. Open requests are bounded, so that a pipe to a worker never fills.
Nothing is logged: paths hold keys.
"""

from __future__ import annotations

from concurrent.futures import Future

from standfast.ops.shared.error_codes import LIMIT, TOO_LARGE, Refused
from standfast.ops.sidecar.worker.protocol import ReadRows, Rows
from standfast.store.errors import Unavailable

# The control thread writes the requests, and must not wait for a pipe.
ASKED_MAX = 16
ASKED_BYTES_MAX = 24 << 10  # below the size of a pipe's buffer, however they are escaped


class Reads:
    """Requests to one worker that it has not answered. Used by one thread."""

    def __init__(self) -> None:
        self._asked: dict[int, tuple[Future[Rows], int]] = {}
        self._last = 0

    def ask(self, path: str, query: str) -> tuple[ReadRows, Future[Rows]]:
        """Add a request. Raises Refused: TOO_LARGE, LIMIT."""
        size = len(path) + len(query)
        if size > ASKED_BYTES_MAX:
            raise Refused(TOO_LARGE, f"a request for rows of a standby has {ASKED_BYTES_MAX} bytes at most")
        if len(self._asked) >= ASKED_MAX or size + sum(one for _, one in self._asked.values()) > ASKED_BYTES_MAX:
            raise Refused(LIMIT, f"the standby worker has {len(self._asked)} other requests: ask again")
        self._last += 1
        future: Future[Rows] = Future()
        self._asked[self._last] = future, size
        return ReadRows(self._last, path, query), future

    def answer(self, rows: Rows) -> None:
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
