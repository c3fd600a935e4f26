"""The HTTP servers of an instance, as stream asks for them: a port of this room that the room above it fills.

    standfast/__init__.py ──> found_by(function that imports ops.http.servers)
    http_port.py, workers/worker.py ──> http_servers() ──> the function, once there is a port

Python imports a package before each of its modules. So the function is there before anything asks for it: in a
checkout, from a wheel without its metadata, in a frozen program, and in a worker process.

Rules of this file: the interface alone, since each `import standfast` reads it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, Protocol


class HttpDoor(Protocol):
    """A bound port, and the rights of its callers."""

    def close(self) -> None:
        """Give the port back."""
        ...


class Server(Protocol):
    """A running server, which owns its door."""

    @property
    def address(self) -> str:
        """`http://host:port`."""
        ...

    def close(self) -> None:
        """Stop it. Closing twice is fine."""
        ...


class SupervisorHttpServer(Server, Protocol):
    """The server of an instance with worker processes, which it asks."""

    def began(self, pid: int, line: socket.socket) -> None:
        """Take the line to a new worker process, and close it in the end."""
        ...

    def ended(self, pid: int) -> None:
        """A worker process has ended."""
        ...


class HttpServers(Protocol):
    """What makes them. `session` and `supervisor` are those of this room."""

    def door(
        self, port: int, host: str, token_file: str | os.PathLike[str] | None, tls: Mapping[str, Any] | None
    ) -> HttpDoor:
        """Bind the port and read its files. Raises BadConfig, Held."""
        ...

    def of_session(self, session: Any, door: Any) -> Server:
        """Serve a session."""
        ...

    def of_supervisor(self, supervisor: Any, door: Any) -> SupervisorHttpServer:
        """Serve an instance with worker processes."""
        ...

    def answer(self, session: Any, line: socket.socket) -> None:
        """Have threads of this worker process answer its supervisor's server through a line."""
        ...


Finder = Callable[[], HttpServers]
_finders: list[Finder] = []


def found_by(finder: Finder) -> Finder:
    """Take the function that imports the servers; a decorator."""
    _finders[:] = [finder]
    return finder


def http_servers() -> HttpServers:
    """The servers."""
    return _finders[0]()
