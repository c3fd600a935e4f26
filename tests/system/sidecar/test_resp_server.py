"""The RESP server over a real Unix socket: access, limits of a client, and isolation of clients."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from standfast.ops.sidecar.resp.server import RespLimits, RespServer
from standfast.ops.sidecar.resp.stores import Grant
from standfast.store.errors import Held, InvalidRequest
from support.resp import Client, RespBench, open_session, pack


def wait_for(bench: RespBench, server: RespServer, clients: int) -> None:
    """Wait until so many clients are connected."""
    done = threading.Event()

    def look() -> None:
        done.set() if server.clients == clients else bench.loop.call_later(0.002, look)

    bench.loop.call_soon_threadsafe(look)
    assert done.wait(20)


def ends(client: Client) -> list[object]:
    """The replies that a client still gets, until the server closes."""
    found = []
    try:
        while True:
            found.append(client.reply())
    except (EOFError, BrokenPipeError):
        return found


def test_data_and_commits_go_through_a_real_socket(resp_bench: RespBench) -> None:
    resp_bench.open()
    client, other = resp_bench.client(), resp_bench.client()
    assert client("SET", "k", "v") == b"OK"
    assert other("GET", "k") == b"v"
    assert client("SF.COMMIT", "SEQ", 1, "GROUP", "app", "OFFSETS", "flights", 0, 12) == [1, 1, 1]
    assert other("SF.OFFSETS") == [b"flights", 0, 12]


def test_pipeline_is_answered_in_order_around_commits_and_long_scans(resp_bench: RespBench) -> None:
    resp_bench.open()
    client = resp_bench.client()
    rounds = 20
    for number in range(rounds):
        for key in range(100):
            client.send("SET", f"{key:03}", number)
        client.send("SF.COMMIT", "SEQ", number)
        client.send("SF.RANGE", "kv", "", "")
        client.send("ECHO", number)
    for number in range(rounds):
        assert [client.reply() for _ in range(100)] == [b"OK"] * 100
        assert client.reply() == [1, number, 100]
        assert client.reply()[1::2] == [b"%d" % number] * 100
        assert client.reply() == b"%d" % number


def test_socket_is_for_its_owner_only_from_the_first_moment(resp_bench: RespBench, tmp_path: Path) -> None:
    before = os.umask(0)
    os.umask(before)
    resp_bench.open()
    assert stat.S_IMODE(resp_bench.path.stat().st_mode) == 0o600
    assert os.umask(before) == before


def test_group_may_be_let_in(resp_bench: RespBench, tmp_path: Path) -> None:
    server = resp_bench.open()
    resp_bench.run(server.open(tmp_path / "group", 0o660))
    assert stat.S_IMODE((tmp_path / "group").stat().st_mode) == 0o660
    with pytest.raises(InvalidRequest, match="0666"):
        resp_bench.run(server.open(tmp_path / "all", 0o666))


def test_user_that_is_not_listed_is_refused(resp_bench: RespBench) -> None:
    resp_bench.open(uids=[os.getuid() + 1])
    client = resp_bench.client(None)
    (refusal,) = ends(client)
    assert str(refusal).startswith(f"NOPERM user {os.getuid()}")
    assert resp_bench.call(resp_bench.servers[0].engine.statistics).refused_connections == 1


def test_path_that_is_too_long_or_taken_is_refused(resp_bench: RespBench, tmp_path: Path) -> None:
    server = resp_bench.open()
    with pytest.raises(InvalidRequest, match="107 bytes"):
        resp_bench.run(server.open(tmp_path / ("x" * 120)))
    (tmp_path / "file").write_text("mine")
    with pytest.raises(Held, match="not a socket"):
        resp_bench.run(server.open(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(InvalidRequest, match="cannot create a socket"):
        resp_bench.run(server.open(tmp_path / "none" / "s"))


def test_socket_that_a_killed_process_left_is_replaced_and_removed_in_the_end(resp_bench: RespBench) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(resp_bench.path))
    left.close()
    server = resp_bench.open()
    assert resp_bench.client()("PING") == b"PONG"
    resp_bench.run(server.close())
    assert not resp_bench.path.exists()
    resp_bench.run(server.close())


def test_token_is_asked_for_on_the_socket(resp_bench: RespBench) -> None:
    resp_bench.open(authenticate={b"t0ken": Grant("app")}.get)
    client = resp_bench.client(None)
    assert client.refused("GET", "a").startswith("NOAUTH")
    assert client("AUTH", "kv", "t0ken") == b"OK"
    assert client("SET", "a", "1") == b"OK"


def test_too_many_clients_are_refused_and_the_others_go_on(resp_bench: RespBench) -> None:
    server = resp_bench.open(limits=RespLimits(connections=20))
    clients = [resp_bench.client() for _ in range(20)]
    for _ in range(30):
        (refusal,) = ends(resp_bench.client(None))
        assert str(refusal) == "ERR max number of clients reached"
    assert all(client("PING") == b"PONG" for client in clients)
    clients.pop().close()
    wait_for(resp_bench, server, 19)
    assert resp_bench.client()("PING") == b"PONG"


def test_idle_clients_are_closed_by_rule_but_not_with_uncommitted_writes(resp_bench: RespBench) -> None:
    server = resp_bench.open(limits=RespLimits(idle_s=5))
    idle, busy, dirty = resp_bench.client(), resp_bench.client(), resp_bench.client()
    dirty("SET", "a", "1")
    for _ in range(5):
        resp_bench.call(server.sweep)
    assert busy("PING") == b"PONG"
    resp_bench.call(server.sweep)
    assert ends(idle) == []
    assert busy("PING") == b"PONG"
    assert dirty("SF.COMMIT") == [1, None, 1]
    assert resp_bench.call(server.engine.statistics).cut_off == {"idle": 1}


@pytest.mark.parametrize(
    "half", [b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100\r\nabc", b"*2\r\n", b"*", b"*1\r\n$", b"*1\r\n$4\r\nPI"]
)
def test_half_a_command_is_cut_off_without_harm_to_others(resp_bench: RespBench, half: bytes) -> None:
    server = resp_bench.open(limits=RespLimits(unfinished_s=3))
    slow, other = resp_bench.client(), resp_bench.client()
    slow("PING")
    slow.socket.sendall(half)
    slow_seen = threading.Event()

    def look() -> None:
        partial = [one._reader.partial for one in server._clients]
        slow_seen.set() if any(partial) else resp_bench.loop.call_later(0.002, look)

    resp_bench.loop.call_soon_threadsafe(look)
    assert slow_seen.wait(20)
    for _ in range(3):
        resp_bench.call(server.sweep)
    assert other("PING") == b"PONG"
    resp_bench.call(server.sweep)
    assert ends(slow) == []
    assert other("SET", "k", "v") == b"OK"
    assert resp_bench.call(server.engine.statistics).cut_off == {"half a command": 1}


def test_command_that_is_too_large_ends_its_client_only(resp_bench: RespBench) -> None:
    resp_bench.open(limits=RespLimits(command_bytes=100_000))
    large, other = resp_bench.client(), resp_bench.client()
    try:
        large.socket.sendall(pack("SET", "k", b"x" * 3_000_000))
    except (BrokenPipeError, ConnectionResetError):
        pass
    found = ends(large)
    assert len(found) <= 1
    assert all("more than 100000 bytes" in str(one) for one in found)
    assert other("GET", "k") is None


def test_bytes_that_are_no_request_are_answered_and_end_the_client(resp_bench: RespBench) -> None:
    server = resp_bench.open()
    for raw in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"*99999999\r\n", b"*1\r\n:5\r\n", bytes(range(256))):
        client = resp_bench.client()
        client.socket.sendall(pack("ECHO", "before"))
        assert client.reply() == b"before"
        client.socket.sendall(raw)
        (refusal,) = ends(client)
        assert str(refusal).startswith("ERR Protocol error")
    assert resp_bench.call(server.engine.statistics).cut_off["protocol"] == 4


@pytest.mark.slow
def test_client_that_stops_reading_is_cut_off_and_held_within_bounds(resp_bench: RespBench) -> None:
    server = resp_bench.open(limits=RespLimits(stalled_s=3, output_bytes=100_000))
    other, greedy = resp_bench.client(), resp_bench.client()
    other("SET", "k", b"x" * 500_000)
    other("SF.COMMIT")
    greedy.socket.settimeout(0.2)
    sent = 0
    get = pack("GET", "k") * 1_000
    try:
        while sent < 200:  # until the server stops reading
            greedy.socket.sendall(get)
            sent += 1
    except TimeoutError:
        pass
    sizes = resp_bench.call(lambda: [one._transport.get_write_buffer_size() for one in server._clients])  # type: ignore[union-attr]
    assert 100_000 < max(sizes) < 4_000_000
    assert resp_bench.call(lambda: max(one.connection.backlog for one in server._clients)) < 50_000  # type: ignore[union-attr]
    for _ in range(4):
        assert other("GET", "k") == b"x" * 500_000
        resp_bench.call(server.sweep)
    wait_for(resp_bench, server, 1)
    assert resp_bench.call(server.engine.statistics).cut_off == {"slow reader": 1}


def test_slow_reader_that_reads_in_time_gets_everything(resp_bench: RespBench) -> None:
    resp_bench.open(limits=RespLimits(output_bytes=10_000))
    client = resp_bench.client()
    client("SET", "k", b"x" * 50_000)
    thread = threading.Thread(target=lambda: [client.send("GET", "k") for _ in range(500)])
    thread.start()
    assert all(client.reply() == b"x" * 50_000 for _ in range(500))
    thread.join()


@pytest.mark.slow
def test_flood_of_one_client_leaves_others_their_turn(resp_bench: RespBench) -> None:
    resp_bench.open()
    flood, other = resp_bench.client(), resp_bench.client()
    pings = pack("PING") * 20_000
    sender = threading.Thread(target=lambda: flood.socket.sendall(pings * 5))
    sender.start()
    waited = 0
    while sender.is_alive() or waited < 5:
        assert other("PING") == b"PONG"
        waited += 1
        flood.socket.recv(1 << 20)
    sender.join()


def test_client_that_goes_in_mid_command_or_commit_leaves_no_trace(resp_bench: RespBench) -> None:
    server = resp_bench.open()
    for number in range(10):
        client = resp_bench.client()
        client.send("SET", "k", number)
        client.send("SF.COMMIT", "SEQ", number)
        client.socket.sendall(b"*2\r\n$3\r\nGE")
        if number % 2:
            client.reply()
        client.close()
    wait_for(resp_bench, server, 0)
    last = resp_bench.client()
    last("SF.OFFSETS")
    assert last("SF.COMMIT", "SEQ", 99)[0] == 1
    assert last("GET", "k") == b"9"


def test_wait_for_the_gate_is_answered_when_it_opens(resp_bench: RespBench) -> None:
    session = resp_bench.session()
    session.assign(active=[0])
    resp_bench.open(session=session)
    client = resp_bench.client()
    client.send("SF.WAITREADY", 20_000)
    client.send("SET", "a", "1")
    other = resp_bench.client()
    assert other.refused("GET", "a").startswith("LOADING")
    session.wait_ready(20)
    assert client.reply() == b"OK"
    assert client.reply() == b"OK"


def test_closing_server_lets_a_commit_end_and_writes_its_reply(resp_bench: RespBench) -> None:
    server = resp_bench.open()
    client, idle = resp_bench.client(), resp_bench.client()
    client.send("SET", "a", "1")
    client.send("SF.COMMIT", "SEQ", 1)
    assert client.reply() == b"OK"
    resp_bench.run(server.close())
    assert ends(client) == [[1, 1, 1]]
    assert ends(idle) == []


@pytest.mark.slow
def test_ten_thousand_idle_connections_are_held_or_refused_by_rule(resp_bench: RespBench) -> None:
    server = resp_bench.open(limits=RespLimits(connections=500))
    first = resp_bench.client()
    held, refused = [], 0
    for _ in range(10_000):
        one = socket.socket(socket.AF_UNIX)
        one.settimeout(20)
        one.connect(str(resp_bench.path))
        if len(held) < 499:
            held.append(one)
            continue
        refused += one.recv(100) == b"-ERR max number of clients reached\r\n"
        one.close()
    assert refused == 10_000 - 499
    assert first("PING") == b"PONG"
    assert resp_bench.call(lambda: server.clients) == 500
    for one in held:
        one.close()
    wait_for(resp_bench, server, 1)
    assert first("SET", "a", "1") == b"OK"


@pytest.mark.slow
def test_writes_beside_commits_of_others_are_all_there(resp_bench: RespBench, tmp_path: Path) -> None:
    resp_bench.open()
    resp_bench.client()("SF.OFFSETS")
    rounds, width = 60, 120
    failures: list[object] = []

    def work(name: str) -> None:
        client = resp_bench.client()
        for number in range(rounds):
            requests = [pack("SET", f"{name}{key}", f"{number}") for key in range(width)]
            requests += [pack("DEL", f"{name}{number % width}"), pack("GET", f"{name}{width - 1}")]
            client.socket.sendall(b"".join([*requests, pack("SF.COMMIT")]))
            replies = [client.reply() for _ in range(len(requests) + 1)]
            expected = [b"OK"] * width + [1, b"%d" % number]
            if replies[:-1] != expected or not isinstance(replies[-1], list):
                failures.append(replies)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    left = {f"{name}{key}".encode(): b"%d" % (rounds - 1) for name in "abc" for key in range(width)}
    for name in "abc":
        del left[f"{name}{rounds - 1}".encode()]
    assert resp_bench.call(lambda: resp_bench.current.task(0).stores.buffer.size_bytes) == 0
    with open_session(tmp_path, resp_bench.clock, state_dir=tmp_path / "elsewhere") as session:
        session.assign(active=[0])
        session.wait_ready(20)
        assert dict(session.task(0).store("kv").all()) == left
    assert dict(resp_bench.current.read("kv", 0, allow_stale=True).store.all()) == left
