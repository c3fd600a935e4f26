"""The RESP server: a Unix socket that speaks the Redis protocol, its clients, and the limits of their use.

    open        socket under umask 0177 (mode 0600) ─> listen            a client of another uid is refused
    sweep       once a second: clients that wait too long are cut off    close: no new ones, replies are written
    full        of clients: the oldest that has not logged in makes room; of unread replies: none is answered until
                they were read, or those with most of them are cut off

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

from standfast.ops.config.rules import SOCKET_PATH_MAX
from standfast.ops.shared.error_codes import NOPERM
from standfast.ops.shared.serve_files import Identity, identity, remove_own
from standfast.ops.sidecar.engine.engine import TaskEngine
from standfast.ops.sidecar.resp.budget import Budget
from standfast.ops.sidecar.resp.connection import USUAL, Authenticate, CallLimits, Connection, Offload, RespContext
from standfast.ops.sidecar.resp.protocol import RespProtocol
from standfast.ops.sidecar.resp.replies import error
from standfast.ops.sidecar.resp.requests import COMMAND_DEFAULT_BYTES
from standfast.ops.sidecar.resp.scans import Cursors, Scans
from standfast.ops.sidecar.resp.table import CommandTable
from standfast.ops.sidecar.resp.turns import Turns
from standfast.store.base.version import __version__
from standfast.store.errors import Held, InvalidRequest
from standfast.store.log import as_event, logger

THREADS = 4
SCANS = THREADS - 1  # one is left for commits
# Of all clients; each has a bound of its own in `protocol.py`.
BACKLOG_BYTES_MAX = 64 << 20
READ_BYTES = 32 << 10  # of one read: more would let a client that sends much keep the loop from others
SWEEP_S = 1.0
GRACE_S = 0.2  # to take replies, when there are too many
LISTEN_BACKLOG = 512
FILES_KEPT = 256  # of the process's open files, for stores and logs
_PEER = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class RespLimits:
    """Limits of the clients' use. `connections`: beyond, or beyond the process's open files, a client is refused.

    `command_bytes`: one command. `output_bytes`: replies that a client has not read, before it is answered no more;
    after `stalled_s` seconds of that it is cut off. `outputs_bytes`: those of all clients together, with the requests
    of MULTIs and the commands that came in part (see `budget.py`); beyond, the client with most unread is cut off.
    `unfinished_s`: half a command may stand so long. `multi_idle_s`: where that memory is scarce, a MULTI whose client
    sends nothing is ended after so long. `login_s`: so long until AUTH. `idle_s`: a
    client without requests, and without part in its task's session, is closed after so long; 0: never. `calls`: step.
    """

    connections: int = 1_024
    command_bytes: int = COMMAND_DEFAULT_BYTES
    output_bytes: int = 1 << 20
    outputs_bytes: int = 256 << 20
    stalled_s: int = 10
    unfinished_s: int = 10
    login_s: int = 30
    idle_s: int = 0
    multi_idle_s: int = 60
    calls: CallLimits = USUAL


class RespServer:
    """See above. `uids`: the users who may connect; None: those whom the socket's mode admits."""

    def __init__(
        self,
        engine: TaskEngine,
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
        self.budget = Budget(self._limits.outputs_bytes)
        self.buffer = memoryview(bytearray(READ_BYTES))
        self.turns = Turns(loop, engine.clock)
        self._sheds = False
        self.ticks = 0  # seconds, as far as sweeps went
        self._uids = None if uids is None else frozenset(uids)
        self._clients: set[RespProtocol] = set()
        self._most = min(self._limits.connections, max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_KEPT, 1))
        self._numbers = 0
        self._listening: list[tuple[asyncio.AbstractServer, Path, Identity]] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="standfast-resp")
        table = CommandTable(engine.counters)
        shared = RespContext(engine, table.commands, table.find, self._offload, Cursors(), __version__)
        self._context = shared._replace(
            authenticate=authenticate,
            revision=revision,
            limits=self._limits.calls,
            scans=Scans(SCANS),
            budget=self.budget,
        )

    async def open(self, path: Path, mode: int = 0o600) -> None:
        """Listen at `path` (several are fine); a socket that was left there is replaced.

        The caller holds the lock of the folder. `mode`: 0600, or 0660 for a group. Raises InvalidRequest for a path
        that
        cannot be, Held for one that is in use or another's.
        """
        if len(os.fsencode(path)) > SOCKET_PATH_MAX:
            raise InvalidRequest(f"{path}: a socket's path has at most {SOCKET_PATH_MAX} bytes: choose a shorter one")
        if mode not in (0o600, 0o660):
            raise InvalidRequest(
                f"mode {mode:04o} of {path}: a socket has the mode 0600 (its owner) or 0660 (its group)"
            )
        try:
            left = path.lstat()
        except FileNotFoundError:
            left = None
        if left is not None and not stat.S_ISSOCK(left.st_mode):
            raise Held(f"{path} exists and is not a socket: choose another path")
        # A stale socket of another user was removed once, and a socket in use was taken over.
        if left is not None and left.st_uid != os.geteuid():
            raise Held(f"{path} is a socket of another user ({left.st_uid}): remove it, or choose another path")
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
            raise InvalidRequest(f"{path}: cannot create a socket: {failure}") from failure
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
        """Refuse new clients, let running commits end, write replies, close. Twice is fine."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        listening, self._listening = self._listening, []
        for server, *_ in listening:
            server.close()
        deadline = self.loop.time() + timeout_s
        # A commit that ran was not acknowledged where its connection ended first.
        while self.engine.statistics().committing and self.loop.time() < deadline:
            await asyncio.sleep(0.005)
        for client in list(self._clients):
            client.close()
        while self._clients and self.loop.time() < deadline:
            await asyncio.sleep(0.005)
        for client in list(self._clients):
            client.abort()
        # One turn of the loop, in which aborted clients are disconnected.
        await asyncio.sleep(0)
        # A scan that hangs must not keep the stop waiting.
        self._threads.shutdown(wait=False)
        # By identity: another process may have made its own socket at the path by now.
        for _, path, made in listening:
            remove_own(path, made)

    @property
    def limits(self) -> RespLimits:
        """Limits of the clients' use."""
        return self._limits

    @property
    def backlog_full(self) -> bool:
        """Whether waiting requests of all clients are so many bytes that none of these clients is read on."""
        return self.budget.backlog > BACKLOG_BYTES_MAX

    @property
    def output_full(self) -> bool:
        """Whether unread replies are too many, or must be counted, before anything more is answered."""
        # A reply adds to one number; the buffers of all clients are counted only once that passes the limit.
        if self.budget.replies > self.budget.room and not self._sheds:
            self._sheds = True
            self.loop.call_soon(self._count)  # once the sockets took their share
        return self._sheds

    def _count(self) -> None:
        """Count unread replies; if they are too many, readers have a moment to take theirs, in which none are added."""
        unread = {client: client.unread_bytes for client in self._clients}
        self.budget.replies = sum(unread.values())
        if self.budget.replies > self.budget.room:
            # A client that reads takes its replies meanwhile, and is cut off only if all of them read.
            self.loop.call_later(GRACE_S, self._shed, unread)
        else:
            self._sheds = False

    def _shed(self, before: dict[RespProtocol, int]) -> None:
        """Cut off the clients with most unread replies, until there is room: first those that took none meanwhile."""
        unread = {client: client.unread_bytes for client in self._clients}
        budget = self.budget
        budget.replies, most = sum(unread.values()), budget.room
        deafest = sorted(unread, key=lambda one: (unread[one] >= before.get(one, 0), unread[one]), reverse=True)
        for client in deafest:
            # With an eighth of room, so that the next reply does not count and cut off again.
            if budget.replies <= most - most // 8:
                break
            logger.warning(
                "resp: clients have not read %d bytes of replies, near the limit of %d (limits.replies_max): "
                "the client with %d of them is cut off",
                *(budget.replies, most, unread[client]),
                extra=as_event(
                    "resp_client_cut_off", bytes=unread[client], waiting_bytes=budget.replies, limit_bytes=most
                ),
            )
            self._cut_off(client, "unread replies")
            budget.replies -= unread[client]
        self._sheds = False

    def _cut_off(self, client: RespProtocol, why: str) -> None:
        client.abort()
        self._clients.discard(client)  # its bytes and its place are free from now on
        self.engine.counters.cut_off[why] += 1

    # -- called by its clients ----------------------------------------------------------------------------------------

    def refuses(self, peer: socket.socket | None) -> bytes | None:
        """The error for a client that is refused; None lets it in."""
        if peer is not None and peer.family == socket.AF_UNIX:
            _, uid, _ = _PEER.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            if self._uids is not None and uid not in self._uids:
                self.engine.counters.refused_connections += 1
                return error(NOPERM, f"user {uid} may not use this socket")
        if len(self._clients) >= self._most and not self._make_room():
            self.engine.counters.refused_connections += 1
            return b"-ERR max number of clients reached\r\n"
        return None

    def _make_room(self) -> bool:
        """Cut off the oldest client that has not logged in, if there is one: strangers keep no place."""
        strange = [
            (client.connection.id, client)
            for client in self._clients
            if client.connection is not None and client.connection.stores.grant is None
        ]
        if strange:
            self._cut_off(min(strange)[1], "no login")
        return bool(strange)

    def connect(self, client: RespProtocol, on_resume: Callable[[], None]) -> Connection:
        """Add a client."""
        self._clients.add(client)
        self._numbers += 1
        return Connection(self._context, self._numbers, on_resume)

    def disconnect(self, client: RespProtocol) -> None:
        """Remove a client that is gone."""
        self._clients.discard(client)

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self._clients)

    def sweep(self) -> None:
        """Cut off overdue clients; a second has passed."""
        self.ticks += 1
        for client in list(self._clients):
            why = client.overdue(self.ticks)
            if why == "idle":
                client.close()
            elif why is not None:
                client.abort()
            if why is not None:
                self.engine.counters.cut_off[why] += 1
        if not self.budget.takes(self.budget.most // 8):
            self._end_multis()

    def _end_multis(self) -> None:
        """End MULTIs whose clients send nothing, the oldest first, until there is room for others."""
        silent = ((client.silent_in_multi(self.ticks), client) for client in self._clients)
        idle = sorted(((s, c) for s, c in silent if s > self._limits.multi_idle_s), key=lambda one: -one[0])
        for silent_s, client in idle:
            if self.budget.takes(self.budget.most // 8) or client.connection is None:
                break
            client.connection.end_multi_early()
            logger.warning(
                "resp: a MULTI without requests for %d s is ended: the memory of limits.replies_max is full",
                silent_s,
                extra=as_event("resp_multi_ended", silent_s=silent_s),
            )

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
