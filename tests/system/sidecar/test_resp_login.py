"""Clients of the RESP server that have not logged in, and replies that no client reads: both are few bytes in all."""

from __future__ import annotations

import threading

import pytest

from standfast.ops.sidecar.resp.protocol import LOGIN_BYTES_MAX, LOGIN_COMMAND_BYTES, LOGIN_REQUESTS_MAX
from standfast.ops.sidecar.resp.server import RespLimits, RespServer
from standfast.ops.sidecar.resp.stores import Grant
from support.processes import resident_bytes
from support.resp import Client, RespBench, pack

TOKEN = b"t0ken"
MIB = 1 << 20
LARGE = b"x" * 500_000


def guarded(bench: RespBench, **limits: int) -> RespServer:
    """A server that requires a token."""
    return bench.open(limits=RespLimits(**limits), authenticate={TOKEN: Grant("app")}.get)  # type: ignore[arg-type]


def login(client: Client) -> Client:
    assert client("AUTH", "kv", TOKEN) == b"OK"
    return client


def ends(client: Client) -> list[object]:
    """The replies that a client still gets, until the server closes."""
    found = []
    try:
        while True:
            found.append(client.reply())
    except (EOFError, BrokenPipeError):
        return found


@pytest.mark.parametrize(
    "data",
    [
        b"*99999\r\n" * 1_000,
        b"*17\r\n",
        b"*2\r\n*2\r\n",
        b"*1\r\n$%d\r\n" % (LOGIN_COMMAND_BYTES + 1),
        b"*3\r\n" + b"$2000\r\n%b\r\n" % (b"x" * 2000) * 3,
        b"%1\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_strangers_command_is_small_and_flat(resp_bench: RespBench, data: bytes) -> None:
    guarded(resp_bench)
    client = resp_bench.client(None)
    client.socket.sendall(data)
    (refusal,) = ends(client)
    assert str(refusal).startswith("ERR Protocol error")
    assert login(resp_bench.client(None))("PING") == b"PONG"


def test_many_strangers_with_many_headers_take_no_room(resp_bench: RespBench) -> None:
    guarded(resp_bench)
    before = resident_bytes()
    clients = [resp_bench.client(None) for _ in range(100)]
    for number, client in enumerate(clients):
        client.socket.sendall(b"*16\r\n$4000\r\n" + b"x" * (4_000 - number % 2))
        client.socket.sendall(b"\r\n*99999\r\n" * 1_000 if number % 2 else b"")
    for client in clients[1::2]:
        assert len(ends(client)) == 1
    assert resident_bytes() - before < 16 * MIB


@pytest.mark.parametrize("kept", [True, False])
def test_stranger_asks_little_in_all(resp_bench: RespBench, kept: bool) -> None:
    guarded(resp_bench)
    client = resp_bench.client(None)
    requests = [pack("GET", "a")] * 1_000 if kept else [pack("GET", "x" * 4_000)] * 1_000
    try:
        client.socket.sendall(b"".join(requests))
    except (BrokenPipeError, ConnectionResetError):
        pass
    *found, last = ends(client)
    assert all(str(one).startswith("NOAUTH") for one in found)
    assert len(found) == (LOGIN_REQUESTS_MAX if kept else LOGIN_BYTES_MAX // 4_022)
    assert "before AUTH: log in first" in str(last)


def test_what_came_with_the_login_is_answered_however_it_is_cut(resp_bench: RespBench) -> None:
    guarded(resp_bench)
    value = b"v" * 100_000
    keys = [f"k{number}" for number in range(60)]
    requests = [pack("PING"), pack("HELLO", 2, "AUTH", "kv", TOKEN), pack("SET", "a", value), pack("MSET", *keys)]
    requests += [pack("GET", "a"), pack("MGET", *keys[::2])]
    data = b"".join(requests)
    head = len(data) - len(b"".join(requests[2:]))
    for at in (*range(1, head + 12), len(data) - 7, len(data)):
        client = Client(resp_bench.path)
        client.socket.sendall(data[:at])
        client.socket.sendall(data[at:])
        refusal, hello, *found = [client.reply() for _ in requests]
        assert str(refusal).startswith("NOAUTH")
        assert hello[:2] == [b"server", b"standfast"]
        assert found == [b"OK", b"OK", value, [key.encode() for key in keys[1::2]]]
        client.close()


def test_client_that_logs_in_and_asks_no_more_is_answered(resp_bench: RespBench) -> None:
    guarded(resp_bench)
    client = resp_bench.client(None)
    client.socket.sendall(pack("AUTH", "kv", TOKEN) + pack("SET", "a", "1") * 1_000)
    client.socket.shutdown(1)
    assert ends(client) == [b"OK"] * 1_001


def test_stranger_has_so_long_to_log_in(resp_bench: RespBench) -> None:
    server = guarded(resp_bench, login_s=3)
    stranger, known = resp_bench.client(None), login(resp_bench.client(None))
    assert stranger.refused("PING").startswith("NOAUTH")
    for _ in range(4):
        assert stranger.refused("PING").startswith("NOAUTH")
        resp_bench.call(server.sweep)
    assert ends(stranger) == []
    assert known("PING") == b"PONG"
    assert known("RESET") == b"RESET"
    for _ in range(4):
        resp_bench.call(server.sweep)
    assert ends(known) == []
    assert resp_bench.call(server.engine.statistics).cut_off == {"no login": 2}


def test_strangers_make_room_and_those_who_logged_in_do_not(resp_bench: RespBench) -> None:
    server = guarded(resp_bench, connections=10)
    known = [login(resp_bench.client(None)) for _ in range(5)]
    strangers = [resp_bench.client(None) for _ in range(20)]
    more = [login(resp_bench.client(None)) for _ in range(5)]
    assert all(ends(one) == [] for one in strangers)
    (refusal,) = ends(resp_bench.client(None))
    assert str(refusal) == "ERR max number of clients reached"
    assert all(one("PING") == b"PONG" for one in known + more)
    assert resp_bench.call(server.engine.statistics).cut_off == {"no login": 20}


def test_replies_that_nobody_reads_are_bounded_in_all_and_a_reader_gets_its_own(resp_bench: RespBench) -> None:
    server = resp_bench.open(limits=RespLimits(outputs_bytes=16 * MIB, output_bytes=4 * MIB))
    reader = resp_bench.client()
    assert reader("SET", "k", LARGE) == b"OK"
    reader("SF.COMMIT")
    before = resident_bytes()
    deaf = [resp_bench.client() for _ in range(20)]
    get = pack("GET", "k") * 32
    rounds, read = 8, 0
    for _ in range(rounds):
        for client in deaf:
            try:
                client.socket.sendall(get)
            except (BrokenPipeError, ConnectionResetError):
                pass
        sender = threading.Thread(target=reader.socket.sendall, args=(get,))
        sender.start()
        for _ in range(32):
            assert reader.reply() == LARGE
            read += 1
        sender.join()
        unread = resp_bench.call(lambda: sum(one.unread_bytes for one in server._clients))
        assert unread < 24 * MIB, "over the limit by what one turn of the loop may add"
    assert read == rounds * 32
    assert resident_bytes() - before < 120 * MIB
    assert set(resp_bench.call(server.engine.statistics).cut_off) == {"unread replies"}


def test_client_with_most_unread_replies_is_the_one_that_is_cut_off(resp_bench: RespBench) -> None:
    server = resp_bench.open(limits=RespLimits(outputs_bytes=10 * MIB, output_bytes=8 * MIB))
    first = resp_bench.client()
    assert first("SET", "k", LARGE) == b"OK"
    small = resp_bench.client()
    small.socket.sendall(pack("GET", "k") * 6)
    large = resp_bench.client()
    large.socket.sendall(pack("GET", "k") * 18)
    while not resp_bench.call(server.engine.statistics).cut_off:
        assert first("GET", "k") == LARGE
    assert [small.reply() for _ in range(6)] == [LARGE] * 6
    assert len(ends(large)) < 18
    assert resp_bench.call(server.engine.statistics).cut_off == {"unread replies": 1}


def test_long_ranges_that_nobody_reads_are_bounded_in_all_and_a_reader_gets_its_own(resp_bench: RespBench) -> None:
    resp_bench.open(limits=RespLimits(outputs_bytes=16 * MIB, output_bytes=8 * MIB))
    reader = resp_bench.client()
    for number in range(66):
        reader("SET", f"{number:02}", b"x" * 90_000)
    reader("SF.COMMIT")
    before = resident_bytes()
    deaf = [resp_bench.client() for _ in range(80)]
    for client in deaf:
        client.send("SF.RANGE", "kv", "", "")
    for _ in range(4):
        assert len(reader("SF.RANGE", "kv", "", "")) == 132
        assert reader("SF.COMMIT")[0] == 1
        assert resident_bytes() - before < 200 * MIB, "of 80 times 6 MB"
