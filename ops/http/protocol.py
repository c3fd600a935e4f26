"""A client that begins a request has to end it: a deadline for each request's head and body.

    connected, or first byte of a request ──timer──> whole request: the timer ends      else: the connection ends
    one connection more than there may be ──> the oldest that asks nothing ends; if all ask, beyond SPARE, the new one

    length of the body told in two ways, or not readable ──> 400 (a head that is too long: 431) where there is no answer
                                                             yet, and the connection ends
    hung up within a request ──> one line in the log

Rules of this file: the clock and the end of one connection, and how many there are; uvicorn does the rest (its own
limits are for idle connections between requests, and for the size of the head).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

from standfast.ops.shared.reasons import BAD_REQUEST, ERROR_SCHEMA
from standfast.ops.shared.text import dumps
from standfast.store.log import logger

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_WAITS = (h11.IDLE, h11.SEND_BODY)  # for the client
HEAD_BYTES = 16 << 10  # of a request, where the settings name no other bound
HUNG_UP = 499  # counted as the status of an answer that nobody was there for
SPARE = 8  # connections beyond the limit, so that a probe gets through while all others are busy


class _Unambiguous(h11.Connection):
    """Refuses what a proxy before us may understand otherwise than we do (RFC 9112, 6.1).

    Where one goes by the length and the other by the chunks, bytes of the body are a further request, which the proxy
    never checked.
    """

    refused = HTTPStatus.BAD_REQUEST  # the status for what could not be read
    with_body = True  # whether its answer has one

    def __init__(self, head_bytes_max: int) -> None:
        super().__init__(h11.SERVER, head_bytes_max)
        self._head_bytes_max = head_bytes_max

    def next_event(self) -> Any:
        if self.their_state is h11.IDLE:  # a new request, whose method is not read yet
            self.with_body = True
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                self.with_body = event.method != b"HEAD"
                self._check(event)
        except h11.RemoteProtocolError as error:
            self.refused = HTTPStatus(error.error_status_hint)
            raise
        return event

    def _check(self, event: h11.Request) -> None:
        names = {name for name, _ in event.headers}
        if b"transfer-encoding" in names and (b"content-length" in names or event.http_version < b"1.1"):
            raise h11.RemoteProtocolError("the length of the body has two meanings")
        # h11 itself bounds a head only while it has not come whole.
        if len(event.target) + sum(len(name) + len(value) for name, value in event.headers) > self._head_bytes_max:
            raise h11.RemoteProtocolError("the head is too long", error_status_hint=431)


def _refusal(conn: _Unambiguous) -> bytes:
    """An answer that repeats nothing of what came."""
    status = conn.refused
    message = f"the request was refused: {status.phrase}"
    document = {"schema": ERROR_SCHEMA, "error": "BadRequest", "reason": BAD_REQUEST.name, "message": message}
    body = dumps(document).encode() + b"\n"
    headers = {
        "content-type": "application/json; charset=utf-8",
        "content-length": str(len(body)),
        "connection": "close",
    }
    head = h11.Response(status_code=status, reason=status.phrase.encode(), headers=list(headers.items()))
    data = h11.Data(data=body if conn.with_body else b"")
    return b"".join(conn.send(event) or b"" for event in (head, data, h11.EndOfMessage()))


def let_go(app: App) -> App:
    """An ASGI layer: a client that hangs up within its request is no fault of the application."""

    async def layer(scope: Message, receive: Receive, send: Send) -> None:
        begun = False

        async def marking(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await app(scope, receive, marking)
        except ClientDisconnect:
            logger.info("http: a client hung up within its request (%s)", scope["method"][:10])  # its path holds keys
            if not begun:
                await send({"type": "http.response.start", "status": HUNG_UP, "headers": []})

    return layer


def timed(
    timeout_s: float, protocol: type[H11Protocol] = H11Protocol, *, connections_max: int | None = None
) -> type[H11Protocol]:
    """The protocol with a deadline of `timeout_s` for each request to have come whole, for so many connections."""

    class Timed(protocol):  # type: ignore[misc, valid-type]
        _deadline: asyncio.TimerHandle | None = None
        _since = 0.0

        def __init__(self, config: uvicorn.Config, *args: Any, **options: Any) -> None:
            super().__init__(config, *args, **options)
            self.conn = _Unambiguous(config.h11_max_incomplete_event_size or HEAD_BYTES)
            self.access_log = False  # paths hold keys; uvicorn decides by whether the program logs at all

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._since = asyncio.get_running_loop().time()
            self._begin()
            if connections_max is not None and len(self.connections) > connections_max:
                self._make_room(connections_max)

        def _make_room(self, most: int) -> None:
            # End idle connections that never sent a request first, then the oldest.
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

        def send_400_response(self, msg: str) -> None:
            # What is being answered, if anything, is let go: it may neither read on nor answer a second time.
            cycle = self.cycle
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                self.transport.write(_refusal(self.conn))
            self.transport.close()

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
