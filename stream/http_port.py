"""The port of an instance: its settings, and the server on it while the instance is open.

    Session(http_port=9100)       ──> HttpPort ──> a door, and a server of the session
    App(http_port=, workers=2)    ──> HttpPort ──> a door, and a server of the supervisor, which asks the workers

Rules of this file: the servers come by `http_servers.py`, so that a session without a port loads no HTTP library. The
port is bound, and its files are read, before anything else is opened, so that a taken port, a missing extra, or a file
that cannot be used, changes nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

from standfast.store.arguments import is_whole, name_problems
from standfast.stream.http_servers import HttpDoor, Server, SupervisorHttpServer, http_servers

LOOPBACK = "127.0.0.1"
PORT_MAX = 65_535
TLS_FILES = ("certificate", "key_file", "key_password_file", "client_ca")
TLS_FIELDS = (*TLS_FILES, "client_names")
TLS_EXAMPLE = '{"certificate": "server.pem", "key_file": "server.key"}'


class HttpPort:
    """A port, and the server on it while the session is open; None: no server. Raises BadConfig, Held."""

    def __init__(
        self,
        port: int | None,
        host: str = LOOPBACK,
        token_file: str | os.PathLike[str] | None = None,
        tls: Mapping[str, Any] | None = None,
    ) -> None:
        self._door: HttpDoor | None = None if port is None else http_servers().door(port, host, token_file, tls)
        self._workers: SupervisorHttpServer | None = None  # the server, if it is a supervisor's
        self.server: Server | None = None

    def open(self, session: Any) -> None:
        """Serve the session, if there is a port."""
        if self._door is not None:
            self.server = http_servers().of_session(session, self._door)

    def open_supervisor(self, supervisor: Any) -> None:
        """Serve an instance whose tasks are in worker processes, if there is a port."""
        if self._door is not None:
            self.server = self._workers = http_servers().of_supervisor(supervisor, self._door)

    @property
    def serves(self) -> bool:
        """Whether there is a port."""
        return self._door is not None

    def began(self, pid: int, line: socket.socket) -> None:
        """Take the line to a new worker process, which answers through it; the server closes it."""
        assert self._workers is not None, "workers get lines only where the port serves"
        self._workers.began(pid, line)

    def ended(self, pid: int) -> None:
        """A worker process has ended."""
        if self._workers is not None:
            self._workers.ended(pid)

    def close(self) -> None:
        """Serve no more. Closing twice is fine."""
        if self.server is not None:
            self.server.close()
        elif self._door is not None:
            self._door.close()


def http_problems(port: object, host: object, token_file: object, tls: object) -> list[str]:
    """Problems of `http_port`, `http_host`, `http_token_file` and `http_tls`."""
    problems = []
    if port is not None and not is_whole(port, 0, PORT_MAX):
        problems.append(
            f"http_port must be a whole number from 0 to {PORT_MAX}, or None: no HTTP server, not {port!r:.100}"
        )
    if not isinstance(host, str) or not host or not host.isascii() or not host.isprintable() or "/" in host:
        problems.append(f"http_host must be an address such as {LOOPBACK!r} or '0.0.0.0', not {host!r:.100}")
    if token_file is not None and not _is_path(token_file):
        problems.append(
            f"http_token_file must be the path of a file that holds a token, or None, not {_kind(token_file)}"
        )
    return problems + tls_problems(tls)


def tls_problems(tls: object) -> list[str]:
    """Problems of `http_tls`: a dict with the files that the sidecar's [http] names with tls_."""
    if tls is None:
        return []
    if not isinstance(tls, Mapping) or not all(isinstance(name, str) for name in tls):
        return [f"http_tls must be a dict such as {TLS_EXAMPLE}, or None, not {tls!r:.100}"]
    problems = [f"http_tls: {problem}" for problem in name_problems(tls, TLS_FIELDS)]
    problems += [
        f"http_tls: {name} must be the path of a file, not {tls[name]!r:.100}"
        for name in TLS_FILES
        if tls.get(name) is not None and not _is_path(tls[name])
    ]
    problems += [f"http_tls: {name} is missing: give {TLS_EXAMPLE}" for name in TLS_FILES[:2] if tls.get(name) is None]
    names = tls.get("client_names") or ()
    if isinstance(names, str) or not all(isinstance(one, str) for one in _listed(names)):
        problems.append(f'http_tls: client_names must be a list such as ["DNS:prometheus"], not {names!r:.100}')
    elif (tls.get("client_ca") is None) != (not names):
        problems.append("http_tls: client_ca and client_names go together: give both, or neither")
    return problems


def _listed(given: object) -> list[object]:
    return list(given) if isinstance(given, (list, tuple, set, frozenset)) else [None]


def _is_path(given: object) -> bool:
    return isinstance(given, os.PathLike) or (isinstance(given, str) and given != "" and "\0" not in given)


def _kind(given: object) -> str:
    # The value may be the token itself, given in the place of its file.
    return f"a value of type {type(given).__name__}"
