"""One client of the RESP server on the event loop: bytes from its socket into its connection, replies back, and limits.

    data_received ─> RequestReader ─> Connection.run ─> one write
          │                               │ more to do        its next turn
          │ much, and others had much     │ it waits          replies so far are written; reading stops at the bounds
          └─> its turn (see `turns.py`)
    pause_writing    the client does not read: nothing runs and nothing is read until it does, or until it is cut off
    before login     one command at a time, few and small; bytes after AUTH are read on as any other

Rules of this file: the only place that touches a transport. Nothing blocks. A client's error ends its own connection;
the server's sweep, once a second, ends those that wait too long (see `overdue`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, cast

from standfast.ops.sidecar.engine.engine import TaskEngine
from standfast.ops.sidecar.resp.budget import Budget, request_bytes
from standfast.ops.sidecar.resp.connection import Connection
from standfast.ops.sidecar.resp.requests import BadRequest, HeldBytes, RequestReader
from standfast.ops.sidecar.resp.turns import Turns

POLL_S = 0.02
BACKLOG_REQUESTS_MAX = 1_000  # waiting requests beyond which nothing more is read
# A number of requests is no bound: a thousand sets of 1 MiB could wait for a commit.
BACKLOG_BYTES_MAX = 1 << 20  # bytes since no request waited
LIGHT_BYTES = 1 << 10  # of a read that is answered at once, before the large ones of others
RAW_BYTES_MAX = 16 << 10  # that wait as they came, beyond which nothing more is read
PIECE_BYTES = 4 << 10  # of requests that are read at a time where memory is scarce
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


class RespHost(Protocol):
    """The server, as its clients see it. `ticks`: seconds, as far as sweeps went; `budget`: bytes of all clients.

    `buffer` takes each read of a socket; `turns` has the clients with more to do.
    """

    engine: TaskEngine
    loop: asyncio.AbstractEventLoop
    ticks: int
    budget: Budget
    buffer: memoryview
    turns: Turns

    @property
    def limits(self) -> ClientLimits: ...
    @property
    def backlog_full(self) -> bool: ...
    @property
    def output_full(self) -> bool: ...
    def refuses(self, peer: Any) -> bytes | None: ...
    def connect(self, client: Any, on_resume: Callable[[], None]) -> Connection: ...
    def disconnect(self, client: Any) -> None: ...


class RespProtocol(asyncio.BufferedProtocol):
    """See above. `data_received` runs for every read of the socket, so it is short."""

    __slots__ = (
        "_asked", "_asked_bytes", "_held", "_paused", "_raw", "_reader", "_scheduled", "_server", "_since",
        "_stalled", "_strange_s", "_transport", "connection", "ending",
    )  # fmt: skip

    def __init__(self, server: RespHost) -> None:
        self._server = server
        self._reader = RequestReader(server.limits.command_bytes)
        self._transport: asyncio.Transport | None = None
        self.connection: Connection | None = None
        self._since = server.ticks  # when it was last seen to move
        self._stalled = False  # the client does not read
        self._paused = False  # we do not read
        self._scheduled = False
        self._held = HeldBytes(server.budget)
        self._raw = b""  # bytes that wait for their turn
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

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio.BufferedProtocol: one buffer for all clients, of a size that gives others their turn."""
        return self._server.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio.BufferedProtocol."""
        self.data_received(bytes(self._server.buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Take bytes of the socket."""
        connection, server = self.connection, self._server
        if connection is None or self.ending or connection.finishing:
            return
        self._since = server.ticks
        server.engine.counters.bytes_in += len(data)
        self._held.count_in(len(data))
        if self._raw or not self._runs(connection):
            self._raw += data
            self._read_on(connection)
        elif len(data) > LIGHT_BYTES and not server.turns.free():
            self._raw = data
            server.turns.add(self)
            self._read_on(connection)
        else:
            self._take(connection, data)

    def _runs(self, connection: Connection) -> bool:
        """Whether a request that comes now is run now."""
        return not (connection.backlog or self._stalled) and connection.waiting is None

    def _take(self, connection: Connection, data: bytes) -> None:
        """Read requests and run them; bytes after a request that waits are kept as they are."""
        budget, at, size = self._server.budget, 0, len(data)
        while at < size and self._runs(connection) and not (self.ending or connection.finishing):
            # In pieces where memory is scarce, since a request in Python's lists takes many times its bytes.
            end = at + PIECE_BYTES if budget.tight and connection.stores.grant is not None else size
            if not self._feed(connection, data[at:end] if end < size or at else data):
                return
            at = end
        self._raw = b"" if self.ending or connection.finishing else data[at:]
        if self._raw and not connection.backlog:
            self._held.count_in(len(self._raw))  # the requests that were counted before are answered
        self._read_on(connection)

    def _feed(self, connection: Connection, data: bytes) -> bool:
        """Read and run; False for bytes that cannot be read, after which no more are."""
        counters = self._server.engine.counters
        try:
            # A stranger's bytes do not reach hiredis, which makes room for as much as a header says.
            if connection.stores.grant is None:
                data = self._before_login(connection, data)
            requests = self._reader.feed(data) if data else []
            self._held.hold_half(self._reader, self._server.ticks, ended=bool(requests))
        except BadRequest as error:
            counters.cut_off["protocol"] += 1
            self._give_up(connection, str(error))
            return False
        if requests:
            counters.batches.observe(len(requests))
            connection.push(requests)
            self.advance()
            if connection.backlog:
                self._held.count_in(sum(map(request_bytes, requests)) - len(data))
        return True

    def _give_up(self, connection: Connection, why: str) -> None:
        """Answer an error after the requests that came whole, and end; the rest of the bytes is not held."""
        self._release()
        connection.fail(why)
        self.advance()

    def _release(self) -> None:
        """Hold no bytes of requests any more."""
        self._held.forget_half()
        self._raw = b""
        self._reader = RequestReader(self._server.limits.command_bytes)

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
        if self._raw:  # requests that wait for their turn come before the end
            raw, self._raw = self._raw, b""
            self._feed(connection, raw)
        connection.finish()
        self._paused = True  # there is nothing to read
        self.advance()
        return not self.ending

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.ending = True
        self._transport = None
        self._held.none_waits()
        self._release()
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
            server.budget.replies += len(out)
            transport.write(out)
        if connection.ending:
            self.ending = True
            transport.close()
            return
        if full:
            self._later(POLL_S, self._turn)
        elif more or (self._raw and self._runs(connection)):
            server.turns.add(self)
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
        if connection.waiting is not None or connection.backlog or self._raw:
            return None
        if self._strange_s > limits.login_s:
            return "no login"
        if self._reader.partial:
            # Since it began, and not since its last byte: one byte a second would keep it for ever.
            return "half a command" if ticks - self._held.half_since > limits.unfinished_s else None
        # A quiet topic must not end a client that takes part in its task's session.
        if limits.idle_s and waited > limits.idle_s and not connection.binding.took_part:
            return "idle"
        return None

    def silent_in_multi(self, ticks: int) -> int:
        """Seconds since this client sent something, if it has a MULTI that waits for it; else -1."""
        connection = self.connection
        if connection is None or not connection.in_multi or connection.backlog or connection.waiting is not None:
            return -1
        return ticks - self._since

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
        if not backlog and not self._raw:
            self._held.none_waits()
        full = backlog > BACKLOG_REQUESTS_MAX or (
            backlog > 0 and (self._held.came_bytes > BACKLOG_BYTES_MAX or self._server.backlog_full)
        )
        full = full or len(self._raw) > RAW_BYTES_MAX  # with fewer reading goes on, so that a client's end is seen
        self._read(not (self._stalled or full or connection.finishing))

    def _read(self, on: bool) -> None:
        if on is self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = not on
            if on:
                self._since = self._held.half_since = self._server.ticks
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._server.loop.call_later(seconds, call)

    def turn(self) -> None:
        """Go on where the last turn ended; called by `Turns`."""
        connection = self.connection
        if self._raw and connection is not None and not self.ending and self._runs(connection):
            raw, self._raw = self._raw, b""
            self._take(connection, raw)
        else:
            self.advance()

    def _turn(self) -> None:
        self._scheduled = False
        self.turn()

    def _poll(self) -> None:
        self._scheduled = False
        if self.connection is not None and not self.ending and self.connection.poll():
            self._later(POLL_S, self._poll)
