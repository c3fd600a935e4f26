"""The end of a client of the RESP server: its earlier requests are answered, whatever work is running then."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

from standfast.ops.sidecar.resp.server import RespLimits
from support.resp import Client, RespBench, pack


def ends(client: Client) -> list[Any]:
    """All replies until the server closes."""
    found = []
    while True:
        try:
            found.append(client.reply())
        except EOFError:
            return found


class HeldCommits:
    """Commits of partition 0 that run until `free` is set."""

    def __init__(self, bench: RespBench) -> None:
        self.begun, self.free = threading.Event(), threading.Event()
        task = bench.current.task(0)
        real: Callable[..., Any] = task.commit

        def held(*args: Any, **named: Any) -> None:
            self.begun.set()
            assert self.free.wait(20)
            real(*args, **named)

        task.commit = held  # type: ignore[method-assign]


def test_client_that_only_asks_no_more_gets_its_acknowledgement(resp_bench: RespBench) -> None:
    server = resp_bench.open()
    commits, client = HeldCommits(resp_bench), resp_bench.client()
    client.socket.sendall(pack("SET", "a", "1") + pack("SF.COMMIT", "SEQ", 1) + pack("PING") * 2_000)
    assert commits.begun.wait(20)
    client.socket.shutdown(socket.SHUT_WR)
    resp_bench.call(server.sweep)
    commits.free.set()
    assert ends(client) == [b"OK", [1, 1, 1], *[b"PONG"] * 2_000]
    assert resp_bench.client()("GET", "a") == b"1"


def test_bytes_that_are_no_request_are_answered_after_a_commit_that_runs(resp_bench: RespBench) -> None:
    resp_bench.open()
    commits, client = HeldCommits(resp_bench), resp_bench.client()
    client.socket.sendall(pack("SET", "a", "1") + pack("SF.COMMIT", "SEQ", 1) + pack("GET", "a"))
    assert commits.begun.wait(20)
    client.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
    for _ in range(3):
        resp_bench.client()("PING")
    commits.free.set()
    *found, refusal = ends(client)
    assert found == [b"OK", [1, 1, 1], b"1"]
    assert str(refusal).startswith("ERR Protocol error")


def test_client_that_is_gone_while_its_commit_runs_leaves_no_connection(resp_bench: RespBench) -> None:
    server = resp_bench.open()
    commits, client = HeldCommits(resp_bench), resp_bench.client()
    client.socket.sendall(pack("SET", "a", "1") + pack("SF.COMMIT", "SEQ", 1) + pack("SET", "a", "2"))
    waits = resp_bench.client()
    waits.socket.sendall(pack("SF.WAITREADY", 100_000) + pack("SELECT", 3) + pack("SF.WAITREADY", 100_000))
    assert commits.begun.wait(20)
    client.close()
    waits.socket.shutdown(socket.SHUT_WR)
    assert len(ends(waits)) in (2, 3)
    commits.free.set()
    while resp_bench.call(lambda: server.clients):
        pass
    last = resp_bench.client()
    assert last("GET", "a") == b"1"


def flood(client: Client, value_bytes: int) -> int:
    """Send sets until the server stops reading; returns the bytes that it, or its socket, took."""
    client.socket.settimeout(0.2)
    request = pack("SET", "k", b"x" * value_bytes)
    requests, sent = memoryview(request * ((32 << 20) // len(request))), 0
    try:
        while sent < len(requests):
            sent += client.socket.send(requests[sent : sent + (1 << 20)])
    except TimeoutError:
        client.socket.settimeout(20)
    return sent


def test_client_that_floods_while_a_commit_runs_is_held_within_bounds(resp_bench: RespBench) -> None:
    server = resp_bench.open()
    commits, client, other = HeldCommits(resp_bench), resp_bench.client(), resp_bench.client()
    client.socket.sendall(pack("SF.COMMIT"))
    assert commits.begun.wait(20)
    assert flood(client, 900_000) < 8 << 20
    assert 0 < resp_bench.call(lambda: server.budget.backlog) < 8 << 20
    server.budget.backlog += 64 << 20  # as if other clients had done so, too
    assert flood(other, 100_000) < 3 << 20
    assert resp_bench.client()("SELECT", 1) == b"OK", "a client that waits for nothing is answered"
    server.budget.backlog -= 64 << 20
    commits.free.set()
    assert client.reply()[1] is None
    for one in (client, other):
        one.socket.shutdown(socket.SHUT_WR)
    assert set(ends(other)) == {b"OK"} >= set(ends(client)), "of the large ones none came whole"
    while resp_bench.call(lambda: server.clients > 1):
        pass
    assert resp_bench.call(lambda: server.budget.backlog) == 0


def test_who_takes_part_in_a_session_is_not_idle(resp_bench: RespBench) -> None:
    server = resp_bench.open(limits=RespLimits(idle_s=5))
    reader, began, wrote = resp_bench.client(), resp_bench.client(), resp_bench.client()
    assert reader("GET", "a") is None
    assert began("SF.OFFSETS") == []
    assert wrote("SET", "a", "1") == b"OK"
    assert wrote("SF.COMMIT") == [1, None, 1]
    for _ in range(7):
        resp_bench.call(server.sweep)
    assert ends(reader) == []
    assert began("SET", "a", "2") == wrote("SET", "a", "3") == b"OK"
    resp_bench.call(lambda: server.engine.begin_generation(1))
    for _ in range(7):
        resp_bench.call(server.sweep)
    assert ends(began) == ends(wrote) == [], "its session is over"
