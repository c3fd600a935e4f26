"""One client of the RESP server on the event loop: bytes from its socket into its connection, replies back, and limits.

    data_received ─> RequestReader ─> Connection.run ─> one write
                                          │ more to do        next turn of the loop
                                          │ it waits          replies so far are written; reading stops at the bounds
    pause_writing    the client does not read: nothing runs and nothing is read until it does, or until it is cut off
    before login     one command at a time, few and small; bytes after AUTH are read on as any other

Rules of this file: the only place that touches a transport. Nothing blocks. A client's error ends its own connection;
the server's sweep, once a second, ends those that wait too long (see `overdue`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, cast

from standfast.ops.sidecar.engine.engine import Engine
from standfast.ops.sidecar.resp.connection import Connection
from standfast.ops.sidecar.resp.requests import BadRequest, RequestReader

POLL_S = 0.02
BACKLOG_REQUESTS_MAX = 1_000  # waiting requests beyond which nothing more is read
# A number of requests is no bound: a thousand sets of 1 MiB could wait for a commit.
BACKLOG_BYTES_MAX = 1 << 20  # bytes since no request waited
LOGIN_ARGUMENTS_MAX = 16  # of a command before login
LOGIN_COMMAND_BYTES = 4 << 10
LOGIN_BYTES_MAX = 16 << 10  # in all, before login; replies to so few bytes are few, too
LOGIN_REQUESTS_MAX = 64


class ClientLimits(Protocol):
    """Limits of one client; see RespLimits."""

    @property
    def command_bytes(self) -> int: ...
    @property
    def output_bytes(self) -> int: ...
    @property
    def stalled_s(self) -> int: ...
    @property
    def unfinished_s(self) -> int: ...
    @property
    def login_s(self) -> int: ...
    @property
    def idle_s(self) -> int: ...


class Host(Protocol):
    """The server, as its clients see it. `ticks`: seconds, as far as sweeps went; `backlog_bytes`: of all clients.

    `output_bytes`: replies of all clients since unread ones were last counted, and those.
    """

    engine: Engine
    loop: asyncio.AbstractEventLoop
    ticks: int
    backlog_bytes: int
    output_bytes: int

    @property
    def limits(self) -> ClientLimits: ...
    @property
    def backlog_full(self) -> bool: ...
    @property
    def output_full(self) -> bool: ...
    def refuses(self, peer: Any) -> bytes | None: ...
    def connect(self, client: Any, on_resume: Callable[[], None]) -> Connection: ...
    def disconnect(self, client: Any) -> None: ...


class RespProtocol(asyncio.Protocol):
    """See above. `data_received` runs for every read of the socket, so it is short."""

    __slots__ = (
        "_asked", "_asked_bytes", "_came_bytes", "_paused", "_reader", "_scheduled", "_server", "_since", "_stalled",
        "_strange_s", "_transport", "connection", "ending",
    )  # fmt: skip

    def __init__(self, server: Host) -> None:
        self._server = server
        self._reader = RequestReader(server.limits.command_bytes)
        self._transport: asyncio.Transport | None = None
        self.connection: Connection | None = None
        self._since = server.ticks  # when it was last seen to move
        self._stalled = False  # the client does not read
        self._paused = False  # we do not read
        self._scheduled = False
        self._came_bytes = 0  # since no request waited
        self._asked = 0  # requests before login
        self._asked_bytes = 0
        self._strange_s = 0  # without login
        self.ending = False

    # -- the loop's calls ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = stream = cast(asyncio.Transport, transport)
        refusal = self._server.refuses(stream.get_extra_info("socket"))
        if refusal is not None:
            self.ending = True
            stream.write(refusal)
            stream.close()
            return
        stream.set_write_buffer_limits(high=self._server.limits.output_bytes)
        self.connection = self._server.connect(self, self.advance)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        connection, server = self.connection, self._server
        if connection is None or self.ending or connection.finishing:
            return
        self._since = server.ticks
        counters = server.engine.counters
        counters.bytes_in += len(data)
        self._came_bytes += len(data)
        server.backlog_bytes += len(data)
        try:
            # A stranger's bytes do not reach hiredis, which makes room for as much as a header says.
            if connection.stores.grant is None:
                data = self._before_login(connection, data)
            requests = self._reader.feed(data) if data else []
        except BadRequest as error:
            counters.cut_off["protocol"] += 1
            connection.fail(str(error))
            self.advance()
            return
        if requests:
            counters.batches.observe(len(requests))
            connection.push(requests)
            self.advance()
        else:
            self._read_on(connection)

    def _before_login(self, connection: Connection, data: bytes) -> bytes:
        """Answer one command after the other until a login; returns the bytes after it. Raises BadRequest."""
        reader = self._reader
        data = reader.joined(data)
        at, size = 0, len(data)
        while at < size and connection.stores.grant is None and not self.ending:
            # No more than a stranger may still send goes to the reader.
            room = min(size, at + LOGIN_BYTES_MAX - self._asked_bytes)
            request, end = reader.first(data[:room], at, LOGIN_ARGUMENTS_MAX, LOGIN_COMMAND_BYTES)
            self._asked_bytes += end - at
            at = end
            if request is not None:
                self._asked += 1
                connection.push([request])
                self.advance()
            full = self._asked_bytes >= LOGIN_BYTES_MAX or self._asked >= LOGIN_REQUESTS_MAX
            if full and connection.stores.grant is None:
                raise BadRequest(
                    f"more than {LOGIN_REQUESTS_MAX} requests or {LOGIN_BYTES_MAX} bytes before AUTH: log in first"
                )
        if connection.stores.grant is not None:
            self._asked = self._asked_bytes = 0
        return b"" if self.ending else data[at:]

    def pause_writing(self) -> None:
        """See asyncio.Protocol: the client reads slower than it asks."""
        self._stalled = True
        self._since = self._server.ticks
        self._read(False)

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._stalled = False
        self._since = self._server.ticks
        self.advance()

    def eof_received(self) -> bool:
        """See asyncio.Protocol: the client sends no more; its requests are answered, a commit too, and it ends."""
        connection = self.connection
        if connection is None or self.ending:
            return False
        connection.finish()
        self._paused = True  # there is nothing to read
        self.advance()
        return not self.ending

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.ending = True
        self._transport = None
        self._none_waits()
        if self.connection is not None:
            self._server.disconnect(self)
            self.connection.close()

    # -- running ------------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Run waiting requests, write the replies, and schedule the rest."""
        connection, transport = self.connection, self._transport
        if connection is None or transport is None or self.ending:
            return
        server = self._server
        full = connection.stores.grant is not None and server.output_full  # strangers have few replies
        more = not self._stalled and not full and connection.run()
        out = connection.take()
        if out:
            server.engine.counters.bytes_out += len(out)
            server.output_bytes += len(out)
            transport.write(out)
        if connection.ending:
            self.ending = True
            transport.close()
            return
        if full:
            self._later(POLL_S, self._turn)
        elif more:
            self._later(0, self._turn)
        elif connection.waiting is not None and connection.polls:
            self._later(POLL_S, self._poll)
        self._read_on(connection)

    def overdue(self, ticks: int) -> str | None:
        """The cause for which this client is cut off now, or None; `ticks` are seconds."""
        limits, connection = self._server.limits, self.connection
        waited = ticks - self._since
        if connection is None or self.ending:
            # It is to end, and does not take its last replies.
            return "slow reader" if waited > limits.stalled_s else None
        if self._stalled:
            return "slow reader" if waited > limits.stalled_s else None
        self._strange_s = self._strange_s + 1 if connection.stores.grant is None else 0
        # The server is the slow one here: a long commit must not cost the client its connection.
        if connection.waiting is not None or connection.backlog:
            return None
        if self._strange_s > limits.login_s:
            return "no login"
        if self._reader.partial:
            return "half a command" if waited > limits.unfinished_s else None
        # A quiet topic must not end a client that takes part in its task's session.
        if limits.idle_s and waited > limits.idle_s and not connection.binding.took_part:
            return "idle"
        return None

    @property
    def unread_bytes(self) -> int:
        """Bytes of replies that wait in the transport, because the client does not read them."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """Cut the client off, without its last replies."""
        self.ending = True
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """End the connection once its replies are written."""
        self.ending = True
        if self._transport is not None:
            self._transport.close()

    def _read_on(self, connection: Connection) -> None:
        """Pause or resume reading by the backlog, of this client or of all. A client with nothing waiting is read."""
        backlog = connection.backlog
        if not backlog:
            self._none_waits()
        full = backlog > BACKLOG_REQUESTS_MAX or (
            backlog > 0 and (self._came_bytes > BACKLOG_BYTES_MAX or self._server.backlog_full)
        )
        self._read(not self._stalled and not full and not connection.finishing)

    def _none_waits(self) -> None:
        self._server.backlog_bytes -= self._came_bytes
        self._came_bytes = 0

    def _read(self, on: bool) -> None:
        if on is self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = not on
            if on:
                self._since = self._server.ticks
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        if not self._scheduled:
            self._scheduled = True
            loop = self._server.loop
            if seconds:
                loop.call_later(seconds, call)
            else:
                loop.call_soon(call)

    def _turn(self) -> None:
        self._scheduled = False
        self.advance()

    def _poll(self) -> None:
        self._scheduled = False
        if self.connection is not None and not self.ending and self.connection.poll():
            self._later(POLL_S, self._poll)
