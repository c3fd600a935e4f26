"""The HTTP server of a session: a thread with an event loop, and the info file that names its port.

    client ──> [ at most 32 connections and requests ] ──> guard ──> application ──> session (own lock, committed rows)

Rules of this file: the thread, limits and the info file; the door decides the rights of callers. It can be imported
without the extra `serve`; only an open server needs it. Requests are not logged: their paths hold keys.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from standfast.ops.http.door import Door
from standfast.ops.shared.run_file import RunInfo, remove_run_file, write_run_file
from standfast.store.base.version import __version__
from standfast.store.closing import Closing
from standfast.stream.http_port import LOOPBACK
from standfast.stream.session.session import Session

if TYPE_CHECKING:
    from standfast.stream.workers.supervisor import Supervisor

RELOAD_S = 20.0


class OpsServer(Closing):
    """Serves a session until closed, at `port` of `host`, or at a `door`, which it then owns.

    On loopback it gives rows to the user of this process and to root. `token_file`: a file of mode 0600 with a token
    for others; beyond loopback (`allow_remote`) all but health and metrics needs it. `tls`: as `http_tls` of a session.
    Raises the errors of `Door`.
    """

    def __init__(
        self,
        session: Session | Supervisor,
        port: int = 0,
        host: str = LOOPBACK,
        *,
        allow_remote: bool = False,
        token_file: str | os.PathLike[str] | None = None,
        tls: Mapping[str, Any] | None = None,
        door: Door | None = None,
    ) -> None:
        self._door = door or Door(port, host, token_file=token_file, tls=tls, allow_remote=allow_remote)
        self.host, self.port = self._door.host, self._door.port
        self._state_path = session.state_path
        self._info = RunInfo(
            *(session.app, session.instance_id, os.getpid(), self.host, self.port, session.clock.wall_ms()),
            __version__,
            self._door.scheme,
        )
        # For the user's own tools, also where the kernel does not know the user of a connection.
        token = self._door.tokens.issue()
        self._server = self._make(session)
        self._thread = threading.Thread(target=self._run, name="standfast-http", daemon=True)
        self._thread.start()
        self._closed = False
        try:
            write_run_file(self._state_path, self._info, token)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """`http://host:port`, or https."""
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

    def _make(self, session: Any) -> Any:
        # Imported after the door has named a missing extra: the module needs Starlette and uvicorn.
        from standfast.ops.http.session import session_server

        return session_server(session, self._door)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        renewing = asyncio.create_task(self._renew())
        try:
            await self._server.serve([self._door.socket])
        finally:
            renewing.cancel()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_S)
            self._door.reload()
