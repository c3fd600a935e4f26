"""The HTTP server of a session: declared here, implemented in ops, imported only where a port is given.

    Session(http_port=9100) ──> HttpPort ── by name ──> standfast.ops.http.server: listen, OpsServer

Rules of this file: stream has no import statement for ops, and a session without a port loads no HTTP library. The port
is bound before anything else is opened, so that a taken port, or a missing extra, changes nothing.
"""

from __future__ import annotations

import socket
from importlib import import_module
from typing import Any, Protocol

SERVER = "standfast.ops.http.server"


class Server(Protocol):
    """A running server."""

    @property
    def address(self) -> str:
        """`http://host:port`."""
        ...

    def close(self) -> None:
        """Stop it. Closing twice is fine."""
        ...


class HttpPort:
    """A port, and the server on it while the session is open; None: no server. Raises BadConfig, Held."""

    def __init__(self, port: int | None) -> None:
        self._module: Any = None
        self._listening: socket.socket | None = None
        self.server: Server | None = None
        if port is not None:
            # By name: an import statement would point from stream up to ops, and would load the HTTP library always.
            self._module = import_module(SERVER)
            self._listening = self._module.listen(port)

    def open(self, session: Any) -> None:
        """Serve the session, if there is a port."""
        if self._listening is not None:
            self.server = self._module.OpsServer(session, listening=self._listening)

    def close(self) -> None:
        """Serve no more. Closing twice is fine."""
        if self.server is not None:
            self.server.close()
        elif self._listening is not None:
            self._listening.close()
