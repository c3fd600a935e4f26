"""TLS of the HTTP server: real handshakes against uvicorn on loopback, mutual, with new files while it runs."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
import uvloop
from uvicorn.protocols.http.h11_impl import H11Protocol

from standfast.ops.security.tls import ServerTls, guarded
from standfast.store.errors import BadConfig

if TYPE_CHECKING:
    from support.tls import Issue, Pair

SERVER = "DNS:localhost,IP:127.0.0.1"
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """The whole application."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


@contextmanager
def serving(tls: ServerTls) -> Iterator[int]:
    """The port of a server in a thread of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(hello, http=guarded(H11Protocol, tls), lifespan="off", log_level="critical")
    config.load()
    config.ssl = tls.context
    server = uvicorn.Server(config)

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the sidecar does
            runner.run(server.serve([listener]))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def client(trusted: Path, own: Pair | None = None, *, most: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=trusted)
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    if most is not None:
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = most
    return context


def fetch(port: int, context: ssl.SSLContext, name: str | None = "localhost") -> bytes:
    """The reply; b"" where the server ended the connection."""
    context.check_hostname = name is not None
    with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
        try:
            with context.wrap_socket(raw, server_hostname=name) as sock:
                sock.sendall(REQUEST)
                answer = b""
                while chunk := sock.recv(4_096):
                    answer += chunk
                return answer
        except (ConnectionError, ssl.SSLEOFError):
            return b""


@pytest.mark.slow
def test_server_speaks_tls_and_takes_new_files_while_it_runs(issue: Issue, tmp_path: Path) -> None:
    old, new = issue("old", SERVER), issue("new", SERVER)
    certificate, key = tmp_path / "c.pem", tmp_path / "c.key"
    shutil.copy(old.certificate, certificate)
    shutil.copy(old.key, key)
    tls = ServerTls(certificate, key)
    with serving(tls) as port:
        assert fetch(port, client(old.certificate)).endswith(b"hi")
        shutil.copy(new.certificate, certificate)
        with pytest.raises(BadConfig, match="cannot be used"):  # not yet the key that belongs to it
            tls.reload()
        assert fetch(port, client(old.certificate)).endswith(b"hi")
        shutil.copy(new.key, key)
        tls.reload()
        assert fetch(port, client(new.certificate)).endswith(b"hi")
        assert fetch(port, client(new.certificate), None).endswith(b"hi")  # a client that names no host
        with pytest.raises(ssl.SSLCertVerificationError):
            fetch(port, client(old.certificate))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_protocols_are_refused(issue: Issue) -> None:
    pair = issue("versions", SERVER)
    with serving(ServerTls(*pair)) as port:
        assert fetch(port, client(pair.certificate, most=ssl.TLSVersion.TLSv1_2)).endswith(b"hi")
        with pytest.raises(ssl.SSLError):
            fetch(port, client(pair.certificate, most=ssl.TLSVersion.TLSv1_1))


@pytest.mark.slow
def test_mutual_tls_lets_in_who_is_on_the_list(issue: Issue) -> None:
    server, ca, other_ca = issue("server", SERVER), issue("ca"), issue("other-ca")
    good = issue("good", "DNS:Board.example,URI:spiffe://ops/board", by=ca)
    stranger = issue("stranger", "DNS:board.example.evil", by=ca)
    unnamed = issue("board.example", by=ca)  # its CN alone does not count
    foreign = issue("foreign", "DNS:board.example", by=other_ca)
    tls = ServerTls(*server, client_ca=ca.certificate, client_names=["DNS:board.example"])
    with serving(tls) as port:
        assert fetch(port, client(server.certificate, good)).endswith(b"hi")
        assert fetch(port, client(server.certificate, stranger)) == b""
        assert fetch(port, client(server.certificate, unnamed)) == b""
        for pair in (foreign, None):
            try:
                assert fetch(port, client(server.certificate, pair)) == b""
            except ssl.SSLError as error:  # shown by an alert, or only by the end of the connection
                assert "alert" in str(error).lower()


@pytest.mark.slow
def test_key_with_a_password_is_read_by_its_file(issue: Issue, tmp_path: Path) -> None:
    pair = issue("locked", SERVER, password="hunter2hunter2")
    password = tmp_path / "password"
    password.write_text("hunter2hunter2\n", encoding="utf-8")
    ServerTls(*pair, key_password=password)
    password.write_text("wrong-wrong-wrong\n", encoding="utf-8")
    for given in (password, None, tmp_path / "absent"):
        with pytest.raises(BadConfig, match="cannot be used") as caught:
            ServerTls(*pair, key_password=given)
        assert "wrong-wrong" not in str(caught.value)


def test_files_that_are_none_are_told(tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(b"\xff")
    for name in ("junk", "absent"):
        with pytest.raises(BadConfig, match=name):
            ServerTls(tmp_path / name, tmp_path / name)
