"""The HTTP door of an instance: a small threaded server on loopback, and the info file that tells where it is.

    client ──> [ at most 32 connections, one request each ] ──> Routes ──> session (its own lock, committed rows)

Rules of this file: sockets, limits and the info file; what is answered is in `routes.py`. One request a
connection, bounded in size and time. Beyond loopback only where that was asked for. Requests are not logged: their
paths hold keys.
"""

from __future__ import annotations

import os
import socket
import threading
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BufferedIOBase
from socketserver import TCPServer, ThreadingMixIn
from types import TracebackType
from typing import Any

from standfast._version import __version__
from standfast.ops.http.routes import Reply, Routes, error_reply
from standfast.ops.shared.loopback import is_loopback
from standfast.ops.shared.run_file import RunInfo, remove_run_file, write_run_file
from standfast.store.errors import BadConfig, Held
from standfast.store.log import logger
from standfast.stream.session.session import Session

URL_BYTES_MAX = 8 << 10
HEAD_BYTES_MAX = 32 << 10
CONNECTIONS_MAX = 32
SOCKET_TIMEOUT_S = 10.0
POLL_S = 0.1
INSTANCE_HEADER = "Standfast-Instance"
METHODS = "GET, HEAD"


class OpsServer:
    """Serves a session until closed; `port` 0 takes a free one. Raises Held if the port is taken, BadConfig for a host
    beyond loopback without `allow_remote`: what is served has no password and no encryption.
    """

    def __init__(self, session: Session, port: int = 0, host: str = "127.0.0.1", *, allow_remote: bool = False) -> None:
        if not allow_remote and not is_loopback(host):
            raise BadConfig(
                [
                    f"host {host!r} is reachable from other machines, and this door has no password: use 127.0.0.1, or "
                    "pass allow_remote=True where the network is your own"
                ]
            )
        try:
            self._server = _Server((host, port), Routes(session), session.instance_id, check_host=not allow_remote)
        except OSError as error:
            raise Held(f"{host}:{port} cannot be served ({error}): choose another port, 0 takes a free one") from error
        self.host = host
        self.port = int(self._server.server_address[1])
        self._state_path = session.state_path
        self._info = RunInfo(
            session.app, session.instance_id, os.getpid(), host, self.port, session.clock.wall_ms(), __version__
        )
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_S,), name="standfast-http", daemon=True
        )
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
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def close(self) -> None:
        """Stop serving and remove the info file. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        remove_run_file(self._state_path, self._info)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> OpsServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Server(ThreadingMixIn, HTTPServer):
    """A thread per connection, but never more than CONNECTIONS_MAX."""

    daemon_threads = True
    request_queue_size = CONNECTIONS_MAX

    def __init__(self, address: tuple[str, int], routes: Routes, instance: str, *, check_host: bool) -> None:
        self.routes = routes
        self.instance = instance
        self.check_host = check_host
        self._slots = threading.BoundedSemaphore(CONNECTIONS_MAX)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # HTTPServer would look its own name up in the DNS here.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away. Its request, which may hold keys, is not shown."""
        logger.debug("http: a connection ended early")


class _Bounded:
    """The request's bytes: the whole head may have HEAD_BYTES_MAX."""

    def __init__(self, stream: BufferedIOBase) -> None:
        self._stream = stream
        self._left = HEAD_BYTES_MAX

    def readline(self, limit: int = -1) -> bytes:
        line = self._stream.readline(min(limit, self._left + 1) if limit >= 0 else self._left + 1)
        self._left -= len(line)
        if self._left < 0:
            raise LineTooLong("head of the request")
        return line

    def close(self) -> None:
        self._stream.close()

    @property
    def closed(self) -> bool:
        return self._stream.closed


class _Handler(BaseHTTPRequestHandler):
    """One request; HTTP/1.0 semantics, so the connection closes after the answer."""

    timeout = SOCKET_TIMEOUT_S
    default_request_version = "HTTP/1.0"  # so that even what is no HTTP gets a status line

    def setup(self) -> None:
        super().setup()
        self.rfile = _Bounded(self.rfile)  # type: ignore[assignment]

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except LineTooLong:
            self.close_connection = True

    @property
    def door(self) -> _Server:
        assert isinstance(self.server, _Server)
        return self.server

    def do_GET(self) -> None:
        self._send(self._answer())

    def do_HEAD(self) -> None:
        self._send(self._answer(), body=False)

    def do_POST(self) -> None:
        self._send(error_reply(405, "MethodNotAllowed", f"this door only reads: use {METHODS}"), Allow=METHODS)

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_POST

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class refuses (bad syntax, head too long), as a document that repeats nothing of it."""
        self.close_connection = True
        known = self.responses.get(code, ("refused", ""))[0]
        self._send(error_reply(code, "BadRequest", f"the request was refused: {known}"))

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: their paths hold keys."""

    def version_string(self) -> str:
        return f"standfast/{__version__}"

    def _answer(self) -> Reply:
        if len(self.path) > URL_BYTES_MAX:
            return error_reply(414, "BadRequest", f"the path is longer than {URL_BYTES_MAX} bytes")
        if self.door.check_host and not self._host_is_ours():
            return error_reply(403, "Forbidden", "the Host header names another machine: use 127.0.0.1 or localhost")
        return self.door.routes.answer(self.path)

    def _host_is_ours(self) -> bool:
        """A page of another site that points its own name at 127.0.0.1 gets nothing from here."""
        name = self.headers.get("Host")
        if name is None:
            return True
        bare = name[1 : name.find("]")] if name.startswith("[") else name.partition(":")[0]
        return is_loopback(bare)

    def _send(self, reply: Reply, *, body: bool = True, **headers: str) -> None:
        self.send_response(reply.status)
        standing = {
            "Content-Type": reply.content_type,
            "Content-Length": str(len(reply.body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            INSTANCE_HEADER: self.door.instance,
        }
        for name, value in (standing | dict(reply.headers) | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(reply.body)
