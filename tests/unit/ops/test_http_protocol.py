"""Unfinished requests: cut off at their deadline, without harm to others."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from time import monotonic
from typing import Any

import pytest
import uvicorn
import uvloop
from starlette.requests import Request
from starlette.responses import Response

from standfast.ops.http.protocol import HEAD_BYTES, ends_with_client, timed
from standfast.ops.observe.metrics_servers import HttpNumbers, counted

pytestmark = pytest.mark.slow
DEADLINE_S = 0.5


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Reads the whole body, then answers."""
    while (message := await receive())["type"] == "http.request" and message.get("more_body"):
        pass
    if scope["path"] == "/slow":
        await asyncio.sleep(3 * DEADLINE_S)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else b"hi"})


@contextmanager
def serving(connections_max: int | None = None, app: Any = echo) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    settings = uvicorn.Config(
        app, http=timed(DEADLINE_S, connections_max=connections_max), lifespan="off", log_config=None
    )
    settings.timeout_graceful_shutdown = 1
    server = uvicorn.Server(settings)

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


def ask(port: int, *parts: bytes, pause_s: float = 0.0) -> tuple[bytes, float]:
    """The bytes received until the server ended or fell silent after an answer, and when."""
    started, answer = monotonic(), b""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        try:
            for number, part in enumerate(parts):
                if number:
                    threading.Event().wait(pause_s)
                sock.sendall(part)
            while not answer.endswith(b"hi") and (chunk := sock.recv(4_096)):
                answer += chunk
        except ConnectionError:
            pass
    return answer, monotonic() - started


HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"


@pytest.mark.parametrize("parts", [(b"",), (b"GET / HT",), (HEAD,), (HEAD + b"\r\nab",)], ids=range(4))
def test_request_that_does_not_end_is_cut_off(parts: tuple[bytes, ...]) -> None:
    with serving() as port:
        answer, took = ask(port, *parts)
        assert answer == b"" and DEADLINE_S * 0.8 < took < 10 * DEADLINE_S
        assert ask(port, HEAD + b"\r\nabcd")[0].endswith(b"hi")


def test_request_in_drops_is_cut_off_all_the_same() -> None:
    with serving() as port:
        drops = [bytes([byte]) for byte in HEAD + b"\r\nabcd"]
        answer, _ = ask(port, *drops, pause_s=2 * DEADLINE_S / len(drops))
        assert answer == b""


def test_answer_may_take_longer_than_the_request() -> None:
    with serving() as port:
        answer, took = ask(port, HEAD.replace(b"/ ", b"/slow ") + b"\r\nabcd")
        assert answer.endswith(b"hi") and took > 2 * DEADLINE_S


def test_each_request_of_a_connection_has_its_own_deadline() -> None:
    with serving() as port, socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        for _ in range(3):
            threading.Event().wait(0.7 * DEADLINE_S)  # the server keeps connections that are idle between requests
            sock.sendall(HEAD + b"\r\nabcd")
            answer = b""
            while not answer.endswith(b"hi"):
                answer += sock.recv(4_096)
        sock.sendall(b"GET / HT")
        assert sock.recv(10) == b""


def test_connections_that_ask_nothing_make_room_oldest_first_and_busy_ones_stay() -> None:
    with serving(connections_max=3) as port, ExitStack() as held:
        busy = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        busy.sendall(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n")
        idle = [held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)) for _ in range(6)]
        answer, _ = ask(port, b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200")
        assert idle[0].recv(1) == b""
        assert busy.recv(100).startswith(b"HTTP/1.1 200")


CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"
AMBIGUOUS = [
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n",
    b"POST / HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
]
PIPELINED = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("head", AMBIGUOUS, ids=["length first", "chunked first", "http/1.0"])
def test_request_whose_length_has_two_meanings_is_refused_and_nothing_behind_it_is_answered(
    head: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with serving() as port:
        answer, _ = ask(port, head + CHUNKS + PIPELINED)
        assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1 ") == 1
        assert b"connection: close" in answer.lower()
        assert ask(port, PIPELINED + head + CHUNKS + PIPELINED)[0].count(b"HTTP/1.1 200") == 1
    assert [record.exc_info for record in caplog.records] == [None] * len(caplog.records)


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
@pytest.mark.parametrize("before", [b"", PIPELINED], ids=["alone", "pipelined"])
def test_head_that_is_too_long_is_refused_with_a_body_only_where_one_may_follow(
    before: bytes, method: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    head = method + b" /" + b"x" * HEAD_BYTES + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving() as port:
        answer, _ = ask(port, before + head)
        # `ask` ends at the first answer's body.
        if not before:
            assert answer.startswith(b"HTTP/1.1 431") and answer.count(b"HTTP/1.1 ") == 1
            assert answer.endswith(b"}\n" if method == b"GET" else b"\r\n\r\n")
        # Unreadable bytes after a HEAD have no method: their refusal has a body.
        assert ask(port, b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\nno request\r\n\r\n")[0].endswith(b"}\n")
        assert ask(port, PIPELINED)[0].startswith(b"HTTP/1.1 200")
    assert [record.exc_info for record in caplog.records] == [None] * len(caplog.records)


async def refuses_at_once(scope: Any, receive: Any, send: Any) -> None:
    """Answers before the body has arrived, as a refusal does."""
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"no"})


@pytest.mark.parametrize("app", [echo, refuses_at_once])
def test_chunk_that_cannot_be_read_ends_the_connection_without_a_traceback(
    app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n"
    with serving(app=ends_with_client(app)) as port:
        answer, _ = ask(port, head, b"zz\r\n" + PIPELINED, pause_s=0.1)
        assert answer.count(b"HTTP/1.1 ") == 1
    assert [record.exc_info for record in caplog.records] == [None] * len(caplog.records)


async def reads(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body as the servers do, and signals its begin."""
    READING.set()
    await Response(await Request(scope, receive).body())(scope, receive, send)


READING = threading.Event()


def test_client_that_hangs_up_within_its_body_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    numbers = HttpNumbers()
    READING.clear()
    with caplog.at_level("INFO"), serving(app=counted(ends_with_client(reads), numbers)) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
            sock.sendall(HEAD + b"\r\nab")
            assert READING.wait(10)
        while not numbers.requests:
            threading.Event().wait(0.01)
    assert numbers.requests == {("POST /", "499"): 1}
    assert [(record.message, record.exc_info) for record in caplog.records if "disconnected" in record.message] == [
        ("http: a client disconnected during its request (POST)", None)
    ]
    assert not [record for record in caplog.records if record.exc_info]
