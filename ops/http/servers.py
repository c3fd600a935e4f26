"""The servers of `http_port=`, as `stream/http_servers.py` declares them. The front door names this module.

Rules of this file: it makes them, and decides nothing. Those of worker processes are imported where there are some.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from standfast.ops.http.door import Door
from standfast.ops.http.server import OpsServer

if TYPE_CHECKING:
    from standfast.ops.http.supervisor import SupervisorServer
    from standfast.stream.session.session import Session
    from standfast.stream.workers.supervisor import Supervisor


def door(port: int, host: str, token_file: str | os.PathLike[str] | None, tls: Mapping[str, Any] | None) -> Door:
    """A bound port. Raises BadConfig, Held."""
    return Door(port, host, token_file=token_file, tls=tls, allow_remote=True)


def of_session(session: Session, door: Door) -> OpsServer:
    """The server of a session."""
    return OpsServer(session, door=door)


def of_supervisor(supervisor: Supervisor, door: Door) -> SupervisorServer:
    """The server of an instance with worker processes."""
    from standfast.ops.http.supervisor import SupervisorServer

    return SupervisorServer(supervisor, door=door)


def answer(session: Session, line: socket.socket) -> None:
    """Answer the server of the supervisor through a line, by threads of this worker process."""
    from standfast.ops.http.worker_answers import WorkerAnswers

    WorkerAnswers(session, line)
