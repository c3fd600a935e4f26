"""Fuzzers of the RESP server, on a real sidecar: before login and after it. See support.fuzz."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Any

import pytest

from standfast.ops.sidecar.resp.table import COMMANDS, REFUSED
from support.fuzz import FUZZ_S, NUMBERS, Watched, fuzzes, mutated, pieces, quietly, rounds, seeded
from support.resp import Client, connected, pack
from support.serve import FOUR, Sidecar, Sidecars

pytestmark = [pytest.mark.slow, fuzzes]
TOKEN = "correct-horse-battery"
ANSWER_S = 60.0
OPEN_MAX = 48  # connections that stay open
BEFORE_LOGIN_MIB = 48
AFTER_LOGIN_MIB = 256
NAMES = [one[0] for one in COMMANDS] + sorted({name for names in REFUSED.values() for name in names.split()})
WORDS = ("kv", "win", "ses", "ver", "nix", "", "flights", "app", "*", "k*", "0", "-", "+", "default")
OPTIONS = (
    *("LIMIT", "REV", "AFTER", "MATCH", "COUNT", "NX", "GET", "EX", "TS", "ASOF", "SEQ", "GROUP", "GEN", "MEMBER"),
    *("OFFSETS", "EPOCH", "CHECKPOINT", "AUTH", "SETNAME", "ID", "INFO", "DOCS", "LIST"),
)


class Crowd:
    """Open connections; the oldest ones hang up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: list[socket.socket] = []

    def connect(self) -> socket.socket:
        return connected(self.path)

    def leave(self, one: socket.socket, rng: random.Random) -> None:
        """Hang up, send no more, or stay without reading."""
        what = rng.randrange(4)
        if what == 0:
            one.close()
            return
        if what == 1:
            quietly(lambda: one.shutdown(socket.SHUT_WR))
        self._open.append(one)
        if len(self._open) > OPEN_MAX:
            self._open.pop(rng.randrange(len(self._open))).close()

    def close(self) -> None:
        for one in self._open:
            one.close()


def headers(rng: random.Random) -> bytes:
    """Headers that announce much, nested or one after the other."""
    head = b"%c%d\r\n" % (rng.choice(b"*$%~>|"), rng.choice(NUMBERS))
    if rng.random() < 0.5:
        head = b"*%d\r\n" % rng.choice((2, 9, 16, 99, 999, 99_999))
    between = rng.choice((b"", b"", b"$0\r\n\r\n", b"$4\r\nPING\r\n"))
    return rng.choice((b"", pack("PING"))) + (head + between) * rng.choice((1, 2, 50, 1_000, 8_000))


def argument(rng: random.Random) -> bytes:
    """One argument: a name, a number, an option, a key, or any bytes."""
    what = rng.randrange(8)
    if what < 2:
        return rng.choice(WORDS).encode()
    if what < 4:
        return b"%d" % rng.choice(NUMBERS)
    if what == 4:
        return rng.choice(OPTIONS).encode()
    if what == 5:
        return rng.randbytes(rng.choice((0, 1, 16, 100, 5_000, 70_000)))
    return b"k%d" % rng.randrange(50)


def request(rng: random.Random) -> bytes:
    """A command with arguments that may fit it."""
    name, most = rng.choice(NAMES), rng.choice((1, 2, 3, 4, 6, 12))
    if rng.random() < 0.3:
        name, most = rng.choice(("SET", "GET", "SF.COMMIT", "SF.RANGE", "MULTI", "EXEC", "SF.WALL", "MGET")), 3
    return pack(name, *(argument(rng) for _ in range(rng.randrange(most + 1))))


def attack(rng: random.Random, login: bytes) -> bytes:
    """The bytes of one client."""
    what = rng.randrange(6)
    if what == 0:
        return login + headers(rng)
    if what == 1:
        return mutated(rng, login + b"".join(request(rng) for _ in range(rng.randrange(1, 5))))
    if what == 2:
        return login + rng.randbytes(rng.choice((1, 10, 1_000, 20_000)))
    requests = [request(rng) for _ in range(rng.choice((1, 5, 50, 200)))]
    if what == 3:
        requests = [pack("MULTI"), *requests, pack("EXEC")]
    if what == 4:  # requests of large replies
        requests = [pack(rng.choice(("MGET", "EXISTS")), *["large"] * rng.choice((1, 100)))] * rng.choice((1, 60))
    whole = login + b"".join(requests)
    return whole if rng.random() < 0.8 else whole[: rng.randrange(len(whole))]


def send(crowd: Crowd, rng: random.Random, data: bytes) -> None:
    """Send as a client that may read, hang up at any time, or never read."""
    one = crowd.connect()
    reads = rng.random() < 0.5
    one.setblocking(False)
    for piece in pieces(rng, data):
        if not quietly(lambda piece=piece: one.send(piece)):  # bytes that the socket does not take are not sent
            break
        if reads:
            quietly(lambda: one.recv(1 << 16))
    crowd.leave(one, rng)


def started(sidecars: Sidecars, tokens: Path) -> Sidecar:
    tokens.write_text(f'[[tokens]]\nname = "ops"\nrole = "admin"\ntoken = "{TOKEN}"\n')
    tokens.chmod(0o600)
    sidecar = sidecars.start(
        auth__tokens_file=str(tokens),
        store__memory="32MiB",
        limits__replies_max="48MiB",
        limits__reply_max="8MiB",
        limits__uncommitted_max="16MiB",
        limits__connections=100,
        limits__wait_max="2s",
        serve__lease="600s",
    )
    assert sidecar.http is not None
    sidecar.http.headers["Authorization"] = f"Bearer {TOKEN}"
    sidecar.declare(FOUR)
    sidecar.assign(1, active=(0,), lease_ms=3_600_000)
    sidecar.wait_ready(2_000)
    return sidecar


def logged_in(path: Path) -> Client:
    """A well-behaved client, which logs in however many others are there."""
    connected(path).close()  # as many earlier connections were accepted
    client = Client(path)
    assert client("AUTH", "kv", TOKEN) == b"OK"
    return client


def still_answers(sidecar: Sidecar, path: Path, rng: random.Random) -> None:
    """Sets, gets, commits, and a batch work."""
    client = logged_in(path)
    value = rng.randbytes(20)
    client("SF.OFFSETS")
    assert client("SET", "own", value) == b"OK"
    assert client("GET", "own") == value
    epoch, _, _ = client("SF.COMMIT")
    assert epoch >= 1
    assert [client("MULTI"), client("SET", "own", "2"), client("GET", "own")] == [b"OK", b"QUEUED", b"QUEUED"]
    assert client("EXEC") == [b"OK", b"2"]
    client("SF.COMMIT")
    client.close()
    assert sidecar.call("GET", "/v1/ready")["ready"]


def answered(sidecar: Sidecar) -> tuple[dict[str, int], int]:
    """The number of replies by reason, and how many of the commands got a reply that was no refusal."""
    assert sidecar.http is not None
    reasons, done = dict[str, int](), 0
    for line in sidecar.http.get("/metrics").text.splitlines():
        if line.startswith("standfast_rpc_requests_total{") and 'door="resp"' in line:
            reason, count = line.partition('code="')[2].partition('"')[0], int(float(line.rpartition(" ")[2]))
            reasons[reason] = reasons.get(reason, 0) + count
            done += reason == "OK" and count > 0
    return reasons, done


def fuzz(sidecars: Sidecars, tokens: Path, name: str, login: bytes, growth_mib: int) -> None:
    sidecar = started(sidecars, tokens)
    path = Path(sidecar.info["resp_socket"])
    large: Any = logged_in(path)
    assert large("SET", "large", b"x" * 100_000) == b"OK"
    large("SF.COMMIT")
    large.close()
    rng, crowd = seeded(name), Crowd(path)
    still_answers(sidecar, path, rng)
    watched = Watched(sidecar, name, growth_mib)
    for number, one in enumerate(rounds(rng, name)):
        if not quietly(lambda one=one: send(crowd, one, attack(one, login))):
            continue
        if number % 500 == 499:
            watched.check()
    crowd.close()
    still_answers(sidecar, path, rng)
    watched.end()
    reasons, done = answered(sidecar)
    print(f"fuzz {name}: answers by reason: {reasons}; {done} commands did something")
    assert "INTERNAL" not in reasons
    assert len(reasons) > 2 or FUZZ_S < 10
    assert sidecar.stop() == 0


def test_resp_server_bears_anything_before_login(sidecars: Sidecars, tmp_path: Path) -> None:
    fuzz(sidecars, tmp_path / "tokens", "resp before login", b"", BEFORE_LOGIN_MIB)


def test_resp_server_bears_anything_after_login(sidecars: Sidecars, tmp_path: Path) -> None:
    login = pack("AUTH", "kv", TOKEN)
    fuzz(sidecars, tmp_path / "tokens", "resp after login", login, AFTER_LOGIN_MIB)
