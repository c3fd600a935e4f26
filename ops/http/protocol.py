"""Deadlines and limits of HTTP connections: a client that begins a request must finish its head and body in time.

    connected, or first byte of a request ──timer──> whole request: the timer ends      else: the connection ends
    connections above the limit ──> the oldest idle one ends; if all are busy, beyond SPARE, the new one

    body with two lengths, or not readable ──> 400 (a head that is too long: 431) unless an answer has begun, and the
                                               connection ends
    client hung up within a request ──> one line in the log

Rules of this file: the timer and the end of one connection, and the number of connections; uvicorn does the rest (its
own limits are for idle connections between requests, and for the size of the head).
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

from standfast.ops.shared.error_codes import BAD_REQUEST, ERROR_SCHEMA
from standfast.ops.shared.text import dumps
from standfast.store.log import as_event, logger

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_WAITS = (h11.IDLE, h11.SEND_BODY)  # states in which the server waits for the client
HEAD_BYTES = 16 << 10  # bound of a request's head, unless the settings name another
HUNG_UP = 499  # status that counts an answer whose client had gone
SPARE = 8  # connections beyond the limit, so that a probe gets through while all others are busy


class _Unambiguous(h11.Connection):
    """Rejects requests that a proxy in front of the server may read differently (RFC 9112, 6.1).

    If the proxy goes by the length and the server by the chunks, bytes of the body become a further request, which the
    proxy never checked.
    """

    refused = HTTPStatus.BAD_REQUEST  # the status of the answer to a request that could not be read
    with_body = True  # whether that answer has a body

    def __init__(self, head_bytes_max: int) -> None:
        super().__init__(h11.SERVER, head_bytes_max)
        self._head_bytes_max = head_bytes_max

    def next_event(self) -> Any:
        if self.their_state is h11.IDLE:  # a new request: until its method is known, the answer may have a body
            self.with_body = True
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                # h11 refuses to send a body for HEAD, and then the client would get no answer at all.
                self.with_body = event.method != b"HEAD"
                self._check(event)
        except h11.RemoteProtocolError as error:
            self.refused = HTTPStatus(error.error_status_hint)
            raise
        return event

    def _check(self, event: h11.Request) -> None:
        names = {name for name, _ in event.headers}
        if b"transfer-encoding" in names and (b"content-length" in names or event.http_version < b"1.1"):
            raise h11.RemoteProtocolError("the length of the body is ambiguous")
        # h11 bounds a head only while it is incomplete, so a long head that comes in one piece would pass.
        if len(event.target) + sum(len(name) + len(value) for name, value in event.headers) > self._head_bytes_max:
            raise h11.RemoteProtocolError("the head is too long", error_status_hint=431)


def _refusal(conn: _Unambiguous) -> bytes:
    """The answer to a request that could not be read; it repeats none of the request's bytes."""
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


def ends_with_client(app: App) -> App:
    """An ASGI layer that turns a client's hang-up within its request into one log line: it is no application error."""

    async def layer(scope: Message, receive: Receive, send: Send) -> None:
        begun = False

        async def marking(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await app(scope, receive, marking)
        except ClientDisconnect:
            # The method alone, since the path holds keys.
            logger.info(
                "http: a client disconnected during its request (%s)",
                scope["method"][:10],
                extra=as_event("http_client_gone"),
            )
            # Without any answer the counters took the hang-up for a failure (500).
            if not begun:
                await send({"type": "http.response.start", "status": HUNG_UP, "headers": []})

    return layer


def timed(
    timeout_s: float, protocol: type[H11Protocol] = H11Protocol, *, connections_max: int | None = None
) -> type[H11Protocol]:
    """The protocol with `timeout_s` for receiving each request, and at most `connections_max` connections."""

    class Timed(protocol):  # type: ignore[misc, valid-type]
        _deadline: asyncio.TimerHandle | None = None
        _since = 0.0

        def __init__(self, config: uvicorn.Config, *args: Any, **options: Any) -> None:
            super().__init__(config, *args, **options)
            self.conn = _Unambiguous(config.h11_max_incomplete_event_size or HEAD_BYTES)
            self.access_log = False  # paths hold keys, and uvicorn logs them if the program has any log handler

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._since = asyncio.get_running_loop().time()
            self._begin()
            if connections_max is not None and len(self.connections) > connections_max:
                self._make_room(connections_max)

        def _make_room(self, most: int) -> None:
            # End idle connections that never sent a request first, then the oldest. Without that, as many idle
            # connections as there may be turned every probe into a 503, and the sidecar was started again.
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
            # Mark the client of an answer under way as gone: that answer may neither read on nor begin a second time.
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
            # A request that came whole meanwhile may take as long as its answer does.
            if self.conn.their_state in _WAITS:
                self.transport.abort()

    return Timed
