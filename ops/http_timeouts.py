"""A deadline for requests of the HTTP door: who connects and sends none, or half of one, is cut off.

    connected, or first bytes of a request ──> timeout_s ──> whole?  the answer may take its time
                                                             not?    the connection ends

Rules of this file: a layer around uvicorn's protocol class, which limits only how long a connection idles after an
answer. Without it as many connections as the door takes, each with half a request, would keep everybody else out.
"""

from __future__ import annotations

import asyncio
from typing import Any


def timed(protocol: type[Any], timeout_s: float) -> type[Any]:
    """The protocol class with a deadline of so many seconds for each request to come in."""

    class Timed(protocol):  # type: ignore[misc]
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch(waiting=True)

        def connection_lost(self, exc: Exception | None) -> None:
            self._watch(waiting=False)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            state = repr(self.conn.their_state)
            self._watch(waiting=state == "SEND_BODY" or (state == "IDLE" and bool(self.conn.trailing_data[0])))

        def _watch(self, *, waiting: bool) -> None:
            """A clock that runs goes on: bytes that drip do not move the deadline."""
            if waiting and self._timer is None:
                self._timer = self.loop.call_later(timeout_s, self._overdue)
            elif not waiting and self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _overdue(self) -> None:
            self._timer = None
            self.transport.abort()

    return Timed
