"""Fixtures for tests of the RESP server: a session on the embedded log, the engine, and a server on a real socket.

Rules of this file: the server runs on an event loop in a thread of its own, and only that thread calls the engine;
tests pass it work with `call` and wait for the result. No sleeps: each wait is for a condition.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import hiredis
import pytest
import uvloop

import standfast as sf
from standfast.ops.sidecar.engine.engine import TaskEngine
from standfast.ops.sidecar.resp.budget import Budget
from standfast.ops.sidecar.resp.connection import Authenticate, Connection, Offload, RespContext
from standfast.ops.sidecar.resp.requests import RequestReader
from standfast.ops.sidecar.resp.scans import Cursors
from standfast.ops.sidecar.resp.server import RespLimits, RespServer
from standfast.ops.sidecar.resp.table import CommandTable
from standfast.store.clock import ManualClock
from support.session_source import SessionSource

T = TypeVar("T")

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
TIMEOUT_S = 20.0


def raw_stores(**overrides: Any) -> list[Any]:
    """One store of each kind, of bytes, as the sidecar declares them, and a second key-value store."""
    raw = sf.serde.bytes
    return [
        sf.KeyValueStore("kv", raw, raw, **overrides),
        sf.KeyValueStore("other", raw, raw, **overrides),
        sf.WindowStore("win", raw, raw, window_size_ms=HOUR_MS, retention_ms=DAY_MS, **overrides),
        sf.SessionStore("ses", raw, raw, retention_ms=DAY_MS, **overrides),
        sf.VersionedStore("ver", raw, raw, history_retention_ms=DAY_MS, **overrides),
    ]


_pack_command: Any = hiredis.pack_command  # its stub knows one-word requests only


def pack(*args: bytes | str | int) -> bytes:
    """The bytes of one request."""
    packed: bytes = _pack_command(args)
    return packed


def connected(path: Path) -> socket.socket:
    """A connection; while too many wait to be accepted, we wait, too."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(TIMEOUT_S)
        try:
            made.connect(str(path))
            return made
        except BlockingIOError:
            made.close()
            assert time.monotonic() < deadline, "the server takes no connection"
            time.sleep(0.005)


class Client:
    """A plain socket that speaks the protocol: requests in any bytes, replies as values."""

    def __init__(self, path: Path) -> None:
        self.socket = connected(path)
        self._reader = hiredis.Reader()

    def send(self, *args: bytes | str | int) -> None:
        """One request, without waiting for its reply."""
        self.socket.sendall(pack(*args))

    def reply(self) -> Any:
        """The next reply; errors as values, EOFError once the server closed."""
        while (found := self._reader.gets()) is False:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                raise EOFError
            self._reader.feed(data)
        return found

    def __call__(self, *args: bytes | str | int) -> Any:
        self.send(*args)
        return self.reply()

    def refused(self, *args: bytes | str | int) -> str:
        """The text of this request's error."""
        answer = self(*args)
        assert isinstance(answer, hiredis.ReplyError), answer
        return str(answer)

    def close(self) -> None:
        self.socket.close()


def open_session(root: Path, clock: ManualClock, **settings: Any) -> sf.Session:
    """A session on the embedded log of this test, without background threads."""
    arguments: dict[str, Any] = {
        "log": f"sqlite:///{root}/log",
        "state_dir": root / "state",
        "stores": raw_stores(),
        "partitions": 4,
        "background": False,
        "clock": clock,
    }
    return sf.Session("app", **{**arguments, **settings})


class RespBench:
    """One sidecar's RESP server over a session without background threads."""

    def __init__(self, root: Path, clock: ManualClock) -> None:
        self.root = root
        self.clock = clock
        self.path = root / "s"
        self._clients: list[Client] = []
        self.servers: list[RespServer] = []
        self._sessions: list[sf.Session] = []
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="resp", daemon=True)
        self._thread.start()

    def session(self, **settings: Any) -> sf.Session:
        """A session on the embedded log of this test."""
        session = open_session(self.root, self.clock, **settings)
        self._sessions.append(session)
        return session

    def open(
        self, *, active: tuple[int, ...] = (0, 1), limits: RespLimits | None = None, session: sf.Session | None = None,
        **options: Any,
    ) -> RespServer:  # fmt: skip
        """A server over a session that runs these partitions, restored."""
        if session is None:
            session = self.session()
            session.assign(active=active)
            session.wait_ready(TIMEOUT_S)
        self.current = session
        engine = TaskEngine(SessionSource(session), session.clock, source_group="app")
        server = RespServer(engine, self.loop, limits=limits, **options)
        self.servers.append(server)
        self.run(server.open(self.path))
        return server

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(TIMEOUT_S)

    def call(self, work: Callable[[], T]) -> T:
        """Call a function in the thread of the loop."""

        async def called() -> T:
            return work()

        return self.run(called())

    def client(self, store: str | None = "kv") -> Client:
        """A connected client with this default store."""
        client = Client(self.path)
        self._clients.append(client)
        if store is not None:
            assert client("AUTH", store, "x") == b"OK"
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for server in self.servers:
            self.run(server.close())
        for session in self._sessions:
            session.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def resp_bench(tmp_path: Path, clock: ManualClock) -> Iterator[RespBench]:
    """A RESP server on a Unix socket in a temporary directory."""
    bench = RespBench(tmp_path, clock)
    yield bench
    bench.close()


class Talk:
    """One connection without a socket: requests are answered at once, unless they wait."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._reader = hiredis.Reader()
        self._requests = RequestReader()
        self.resumed = 0
        self.connection = Connection(desk.context, len(desk.talks), self._resume)
        desk.talks.append(self)

    def _resume(self) -> None:
        self.resumed += 1
        self.run()

    def run(self) -> None:
        while self.connection.run():
            pass
        if not self._desk.hold:
            self._desk.release()
        self._reader.feed(self.connection.take())

    def send(self, *args: bytes | str | int) -> None:
        self.connection.push(self._requests.feed(pack(*args)))
        self.run()

    def replies(self) -> list[Any]:
        """Replies not read yet."""
        found = []
        while (reply := self._reader.gets()) is not False:
            found.append(reply)
        return found

    def __call__(self, *args: bytes | str | int) -> Any:
        self.send(*args)
        (reply,) = self.replies()
        return reply

    def refused(self, *args: bytes | str | int) -> str:
        """The text of this request's error."""
        answer = self(*args)
        assert isinstance(answer, hiredis.ReplyError), answer
        return str(answer)

    def exec(self, *requests: tuple[bytes | str | int, ...]) -> Any:
        """Send these requests in one MULTI."""
        assert self("MULTI") == b"OK"
        for request in requests:
            self.send(*request)
        kept = self.replies()
        answer = self("EXEC")
        return answer if kept == [b"QUEUED"] * len(requests) else (kept, answer)


class Desk:
    """The engine and connections without sockets. Offloaded work runs at once; with `hold`, when the test says so."""

    def __init__(self, session: sf.Session, authenticate: Authenticate | None = None) -> None:
        self.session = session
        self.engine = TaskEngine(SessionSource(session), session.clock, source_group="app")
        self.talks: list[Talk] = []
        self.held: list[tuple[Connection, Offload]] = []
        self.hold = False
        table = CommandTable(self.engine.counters)
        self.context = RespContext(
            self.engine, table.commands, table.find, self._offload, Cursors(), "test", authenticate
        )._replace(budget=Budget(256 << 20))

    def talk(self, store: str | None = "kv", partition: int = 0) -> Talk:
        """A new connection, bound to a partition and a default store."""
        talk = Talk(self)
        if store is not None:
            assert talk("AUTH", store, "x") == b"OK"
        if partition:
            assert talk("SELECT", partition) == b"OK"
        return talk

    def _offload(self, connection: Connection, offload: Offload) -> None:
        self.held.append((connection, offload))

    def release(self) -> None:
        """Let offloaded work run and end."""
        held, self.held = self.held, []
        for connection, offload in held:
            offload.work()
            connection.done(offload)


@pytest.fixture
def desk(tmp_path: Path, clock: ManualClock) -> Iterator[Desk]:
    """The engine over a session that runs partitions 0 and 1 on the embedded log."""
    with open_session(tmp_path, clock) as session:
        session.assign(active=[0, 1])
        session.wait_ready(TIMEOUT_S)
        yield Desk(session)
