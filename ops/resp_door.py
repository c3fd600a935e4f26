"""The data door: a Unix socket that speaks the Redis protocol, its clients, and what they may use up.

    open        socket under umask 0177 (mode 0600) ─> listen            a client of another uid is refused
    sweep       once a second: clients that wait too long are cut off    close: no new ones, replies are written

Rules of this file: one event loop, whose thread also calls the engine; commits and long scans run in a small pool of
threads. The path's lock is the caller's: a live socket's path would be taken over without a word.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import stat
import struct
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from standfast._version import __version__
from standfast.ops.engine import Engine
from standfast.ops.reasons import NOPERM
from standfast.ops.resp_connection import USUAL, Authenticate, CallLimits, Connection, Door, Offload
from standfast.ops.resp_protocol import RespProtocol
from standfast.ops.resp_replies import error
from standfast.ops.resp_requests import COMMAND_DEFAULT_BYTES
from standfast.ops.resp_scans import Cursors
from standfast.ops.resp_table import Table
from standfast.ops.serve_files import Identity, identity, remove_own
from standfast.store.errors import Held, InvalidRequest

THREADS = 4
BACKLOG_BYTES_MAX = 64 << 20
SWEEP_S = 1.0
LISTEN_BACKLOG = 512
FILES_KEPT = 256  # of the process's open files, for stores and logs
PATH_BYTES_MAX = 107  # of a Unix socket, on Linux
_PEER = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class RespLimits:
    """What clients may use. `connections`: beyond, or beyond what the process may have open, one is refused.

    `command_bytes`: one command. `output_bytes`: replies that a client has not read, before it is answered no more;
    after `stalled_s` seconds of that it is cut off. `unfinished_s`: half a command may stand so long. `idle_s`: a
    client that asks nothing, and has no part in its task's session, is closed after so long; 0: never. `calls`: step.
    """

    connections: int = 1_024
    command_bytes: int = COMMAND_DEFAULT_BYTES
    output_bytes: int = 1 << 20
    stalled_s: int = 10
    unfinished_s: int = 10
    idle_s: int = 0
    calls: CallLimits = USUAL


class RespDoor:
    """See above. `uids`: who may connect; None: whoever the socket's mode lets in."""

    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        *,
        limits: RespLimits | None = None,
        authenticate: Authenticate | None = None,
        revision: Callable[[], int] = int,
        uids: Iterable[int] | None = None,
    ) -> None:
        self.engine = engine
        self.loop = loop
        self._limits = limits or RespLimits()
        self.backlog_bytes = 0  # of requests that wait
        self.ticks = 0  # seconds, as far as sweeps went
        self._uids = None if uids is None else frozenset(uids)
        self._clients: set[RespProtocol] = set()
        self._most = min(self._limits.connections, max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_KEPT, 1))
        self._numbers = 0
        self._listening: list[tuple[asyncio.AbstractServer, Path, Identity]] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="standfast-resp")
        table = Table(engine.counters)
        shared = Door(engine, table.commands, table.find, self._offload, Cursors(), __version__)
        self._door = shared._replace(authenticate=authenticate, revision=revision, limits=self._limits.calls)

    async def open(self, path: Path, mode: int = 0o600) -> None:
        """Listen at `path` (several are fine); a socket that was left there is replaced.

        The caller holds the lock of the folder. `mode`: 0600, or 0660 for a group. Raises InvalidRequest for a path
        that cannot be, Held for one that is something else.
        """
        if len(os.fsencode(path)) > PATH_BYTES_MAX:
            raise InvalidRequest(f"{path}: a socket's path has at most {PATH_BYTES_MAX} bytes: choose a shorter one")
        if mode not in (0o600, 0o660):
            raise InvalidRequest(f"mode {mode:04o} of {path}: a socket is for its owner (0600) or its group (0660)")
        try:
            left = path.lstat()
        except FileNotFoundError:
            left = None
        if left is not None and not stat.S_ISSOCK(left.st_mode):
            raise Held(f"{path} is there and is no socket: choose another path")
        if left is not None and _is_used(path):
            raise Held(f"another program listens at {path}: stop it, or choose another path")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)  # the socket is never open to others, not even between bind and chmod
        try:
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            made = identity(path)
        except OSError as failure:
            listener.close()
            raise InvalidRequest(f"{path}: a socket cannot be made there: {failure}") from failure
        finally:
            os.umask(before)
        if mode != 0o600:
            path.chmod(mode)
        listener.setblocking(False)
        server = await self.loop.create_unix_server(lambda: RespProtocol(self), sock=listener, backlog=LISTEN_BACKLOG)
        self._listening.append((server, path, made))
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)

    async def close(self, timeout_s: float = 5.0) -> None:
        """Take no new clients, let commits that run end, write replies, close. Twice is fine."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        listening, self._listening = self._listening, []
        for server, *_ in listening:
            server.close()
        deadline = self.loop.time() + timeout_s
        while self.engine.statistics().committing and self.loop.time() < deadline:
            await asyncio.sleep(0.005)
        for client in list(self._clients):
            client.close()
        while self._clients and self.loop.time() < deadline:
            await asyncio.sleep(0.005)
        for client in list(self._clients):
            client.abort()
        await asyncio.sleep(0)
        self._threads.shutdown(wait=False)
        for _, path, made in listening:
            remove_own(path, made)

    @property
    def limits(self) -> RespLimits:
        """What clients may use."""
        return self._limits

    @property
    def backlog_full(self) -> bool:
        """Whether requests of all clients that wait are so many bytes that none of these clients is read on."""
        return self.backlog_bytes > BACKLOG_BYTES_MAX

    # -- for its clients ----------------------------------------------------------------------------------------------

    def refuses(self, peer: socket.socket | None) -> bytes | None:
        """What to tell a client that is not let in; None lets it in."""
        if peer is not None and peer.family == socket.AF_UNIX:
            _, uid, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            if self._uids is not None and uid not in self._uids:
                self.engine.counters.refused_connections += 1
                return error(NOPERM, f"user {uid} may not use this socket")
        if len(self._clients) >= self._most:
            self.engine.counters.refused_connections += 1
            return b"-ERR max number of clients reached\r\n"
        return None

    def connect(self, client: RespProtocol, on_resume: Callable[[], None]) -> Connection:
        """A new client."""
        self._clients.add(client)
        self._numbers += 1
        return Connection(self._door, self._numbers, on_resume)

    def disconnect(self, client: RespProtocol) -> None:
        """A client is gone."""
        self._clients.discard(client)

    @property
    def clients(self) -> int:
        """How many there are."""
        return len(self._clients)

    def sweep(self) -> None:
        """Cut off who is overdue; a second has passed."""
        self.ticks += 1
        for client in list(self._clients):
            why = client.overdue(self.ticks)
            if why == "idle":
                client.close()
            elif why is not None:
                client.abort()
            if why is not None:
                self.engine.counters.cut_off[why] += 1

    def _sweep(self) -> None:
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)
        self.sweep()

    def _offload(self, connection: Connection, offload: Offload) -> None:
        def ended(_: Future[None]) -> None:
            self.loop.call_soon_threadsafe(connection.done, offload)

        self._threads.submit(offload.work).add_done_callback(ended)


def _is_used(path: Path) -> bool:
    """Whether a program listens at this socket. Not a sidecar on this run directory: its lock is ours."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # a full backlog, or a socket of datagrams
            return True
    return True
