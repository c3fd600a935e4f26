"""A client that begins a request has to end it: a deadline for each request's head and body.

    connected, or first byte of a request ──timer──> whole request: the timer ends      else: the connection ends
    one connection more than there may be ──> the oldest that asks nothing ends; if all ask, beyond SPARE, the new one

Rules of this file: the clock of one connection, and how many there are; uvicorn does the rest (its own limits are for
idle connections between requests, and for the size of the head).
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_WAITS = (h11.IDLE, h11.SEND_BODY)  # for the client
SPARE = 8  # connections beyond the limit, so that a probe gets through while all others are busy


def timed(
    timeout_s: float, protocol: type[H11Protocol] = H11Protocol, *, connections_max: int | None = None
) -> type[H11Protocol]:
    """The protocol with a deadline of `timeout_s` for each request to have come whole, for so many connections."""

    class Timed(protocol):  # type: ignore[misc, valid-type]
        _deadline: asyncio.TimerHandle | None = None
        _since = 0.0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._since = asyncio.get_running_loop().time()
            self._begin()
            if connections_max is not None and len(self.connections) > connections_max:
                self._make_room(connections_max)

        def _make_room(self, most: int) -> None:
            # Whoever asked something is kept longer than who never did; then the oldest goes first.
            connections: list[Any] = list(self.connections)
            others = [one for one in connections if one is not self and not one.transport.is_closing()]
            idle = [one for one in others if not one.cycle or one.cycle.response_complete]
            if idle:
                min(idle, key=lambda one: (one.cycle is not None, one._since)).transport.abort()
            elif len(self.connections) > most + SPARE:
                self.transport.abort()

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
