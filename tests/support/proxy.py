"""A proxy in front of an HTTP server on loopback that answers some requests itself, as an overloaded service does.

    with proxy(server.port) as front:
        front.refusal = Refusal(503, "SlowDown", lambda number: number % 2 == 0)     every other request
        front.host                        127.0.0.1:PORT
        front.refused, front.passed       numbers of requests
        front.bytes_per_s = 1 << 20                                                  each answer, as on a slow line

Rules of this file: headers pass unchanged, so that signatures over them hold. Requests are numbered from 1 since the
refusal was set.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler

from support.http_server import listening

HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})
WITHIN_S = 30.0
PIECES_A_SECOND = 20


@dataclass(frozen=True)
class Refusal:
    """The answer of a service, with S3's code, to the requests that `chosen` names by number."""

    status: int
    code: str
    chosen: Callable[[int], bool] = lambda number: True


class Proxy:
    """A proxy; any number of requests at a time."""

    def __init__(self, port: int) -> None:
        self.behind = port
        self.port = 0
        self.refused = self.passed = 0
        self.bytes_per_s: int | None = None
        self._number = 0
        self._refusal: Refusal | None = None
        self._lock = threading.Lock()

    @property
    def host(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    @property
    def refusal(self) -> Refusal | None:
        """The refusal that is in force."""
        return self._refusal

    @refusal.setter
    def refusal(self, refusal: Refusal | None) -> None:
        with self._lock:
            self._refusal, self._number = refusal, 0

    def next(self) -> Refusal | None:
        """Count a request; returns the refusal if it gets one."""
        with self._lock:
            self._number += 1
            chosen = self._refusal if self._refusal is not None and self._refusal.chosen(self._number) else None
            self.refused += chosen is not None
            self.passed += chosen is None
            return chosen


@contextmanager
def proxy(port: int) -> Iterator[Proxy]:
    """A proxy in front of the server at that port."""
    front = Proxy(port)

    class Handler(_Handler):
        proxy = front

    with listening(Handler) as front.port:
        yield front


class _Handler(BaseHTTPRequestHandler):
    proxy: Proxy
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        refusal = self.proxy.next()
        if refusal is not None:
            text = f"<?xml version='1.0'?><Error><Code>{refusal.code}</Code><Message>.</Message></Error>".encode()
            self._send(refusal.status, [("Content-Type", "application/xml")], text)
            return
        behind = http.client.HTTPConnection("127.0.0.1", self.proxy.behind, timeout=WITHIN_S)
        try:
            behind.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                behind.putheader(name, value)
            behind.endheaders(body)
            found = behind.getresponse()
            self._send(found.status, found.getheaders(), found.read(), found.getheader("Content-Length"))
        except OSError:
            self.close_connection = True  # the client sees a broken connection, as without a proxy
        finally:
            behind.close()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

    def _send(self, status: int, headers: list[tuple[str, str]], body: bytes, length: str | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        # The answer to HEAD has the length of a body that does not follow.
        self.send_header("Content-Length", length or str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self._write(body)

    def _write(self, body: bytes) -> None:
        rate = self.proxy.bytes_per_s
        if rate is None:
            self.wfile.write(body)
            return
        for begin in range(0, len(body), rate // PIECES_A_SECOND):
            self.wfile.write(body[begin : begin + rate // PIECES_A_SECOND])
            time.sleep(1 / PIECES_A_SECOND)

    def log_message(self, format: str, *_args: object) -> None:
        """Log nothing."""
