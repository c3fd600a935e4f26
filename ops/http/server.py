"""The HTTP server of a session: a thread with an event loop, and the info file that names its port.

    client ──> [ at most 32 connections and requests ] ──> application ──> session (its own lock, committed rows)

Rules of this file: the socket, the thread, limits and the info file. It can be imported without the extra `serve`; only
an open server needs it. Beyond loopback only with `allow_remote`. Requests are not logged: their paths hold keys.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading

from standfast._version import __version__
from standfast.ops.shared.extras import SERVE, require
from standfast.ops.shared.loopback import is_loopback
from standfast.ops.shared.run_file import RunInfo, remove_run_file, write_run_file
from standfast.ops.shared.serve_files import listen_tcp
from standfast.store.closing import Closing
from standfast.store.errors import BadConfig
from standfast.stream.session.session import Session

LOOPBACK = "127.0.0.1"


def listen(port: int, host: str = LOOPBACK, *, allow_remote: bool = False) -> socket.socket:
    """A listening socket for a server; `port` 0 takes a free one.

    Raises Held if the port is taken, BadConfig without the extra `serve`, or for a host beyond loopback without
    `allow_remote`: the server has no password and no encryption.
    """
    require("serve", *SERVE)
    if not allow_remote and not is_loopback(host):
        raise BadConfig(
            [
                f"host {host!r} is reachable from other machines, and this server has no password: use {LOOPBACK}, or "
                "pass allow_remote=True where the network is your own"
            ]
        )
    return listen_tcp(host, port)


class OpsServer(Closing):
    """Serves a session until closed, at `port` of `host` or at a socket of `listen`, which it then owns.

    Raises the errors of `listen`.
    """

    def __init__(
        self,
        session: Session,
        port: int = 0,
        host: str = LOOPBACK,
        *,
        allow_remote: bool = False,
        listening: socket.socket | None = None,
    ) -> None:
        self._socket = listening or listen(port, host, allow_remote=allow_remote)
        self.host = host
        self.port = int(self._socket.getsockname()[1])
        self._state_path = session.state_path
        self._info = RunInfo(
            session.app, session.instance_id, os.getpid(), host, self.port, session.clock.wall_ms(), __version__
        )
        # Imported after `listen` has named a missing extra: the module needs Starlette and uvicorn.
        from standfast.ops.http.session import session_server

        self._server = session_server(session, check_host=not allow_remote)
        self._thread = threading.Thread(target=self._run, name="standfast-http", daemon=True)
        self._thread.start()
        self._closed = False
        try:
            write_run_file(self._state_path, self._info)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """`http://host:port`."""
        return self._info.address

    def close(self) -> None:
        """Stop serving and remove the info file; answers that have begun get a second. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        # First, so that no client finds a server that is about to end.
        remove_run_file(self._state_path, self._info)
        self._server.should_exit = True
        self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._server.serve([self._socket]))
