"""A client that begins a request has to end it: a deadline for each request's head and body.

    connected, or first byte of a request ──timer──> whole request: the timer ends      else: the connection ends

Rules of this file: only the clock of one connection; uvicorn does the rest (its own limits are for idle connections
between requests, for the size of the head, and for how many connections there are).
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_WAITS = (h11.IDLE, h11.SEND_BODY)  # for the client


def timed(timeout_s: float, protocol: type[H11Protocol] = H11Protocol) -> type[H11Protocol]:
    """The protocol with a deadline of `timeout_s` for each request to have come whole."""

    class Timed(protocol):  # type: ignore[misc, valid-type]
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._begin()

        def data_received(self, data: bytes) -> None:
            if self.conn.their_state in _WAITS:
                self._begin()
            super().data_received(data)
            if self.conn.their_state not in _WAITS:
                self._end()

        def connection_lost(self, exc: Exception | None) -> None:
            self._end()
            super().connection_lost(exc)

        def _begin(self) -> None:
            if self._deadline is None:
                self._deadline = asyncio.get_running_loop().call_later(timeout_s, self._late)

        def _end(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _late(self) -> None:
            self._deadline = None
            if self.conn.their_state in _WAITS:
                self.transport.abort()

    return Timed
