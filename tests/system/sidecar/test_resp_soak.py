"""A long mixed load on a real sidecar: its memory stays flat, and every client gets its replies.

`STANDFAST_SOAK_S=300 pytest -s tests/system/sidecar/test_resp_soak.py` soaks for five minutes; the default is a few
seconds.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from support.processes import resident_bytes
from support.resp import Client, pack
from support.serve import FOUR, Sidecar, Sidecars

SOAK_S = float(os.environ.get("STANDFAST_SOAK_S", "6"))
SAMPLES_MIN = 12
GROWTH_MAX_MIB = 24 if SOAK_S < 60 else 6  # memtables and block cache of 32 MiB fill up in the first minute
KEYS = 20_000


def started(sidecars: Sidecars, **settings: Any) -> tuple[Sidecar, Path, Client]:
    """A sidecar with an active task, its socket, and a client that is bound to the store kv."""
    sidecar = sidecars.start(**settings)
    sidecar.declare(FOUR)
    sidecar.assign(1, active=(0,), lease_ms=3_600_000)
    sidecar.wait_ready()
    path = Path(sidecar.info["resp_socket"])
    client = Client(path)
    client("AUTH", "kv", "x")
    return sidecar, path, client


def one_round(path: Path, writer: Client, number: int) -> None:
    """500 sets and various other commands, one commit, and clients that come and go, well and badly behaved."""
    requests = [pack("SET", f"k{(number * 500 + one) % KEYS}", b"v" * 100) for one in range(500)]
    now_ms = number * 60_000  # an hour is kept, so the stores soon hold their final number of rows
    requests += [pack("SF.WPUT", "win", "k", now_ms, "w"), pack("SF.VPUT", "ver", "k", "v", "TS", now_ms)]
    requests += [pack("MULTI"), pack("SF.SPUT", "ses", "k", now_ms, now_ms + 1, "s"), pack("EXEC")]
    requests += [pack("SF.RANGE", "kv", "", "", "LIMIT", 300), pack("SF.WALL", "win", 0, 2**40), pack("NIX")]
    requests.append(pack("SF.COMMIT", "SEQ", number, "OFFSETS", "flights", 0, number))
    writer.socket.sendall(b"".join(requests))
    replies = [writer.reply() for _ in requests]
    assert replies[-1][1] == number, replies[-1]
    for bad in (b"*2\r\n$3\r\nGE", b"*99999999\r\n", pack("SCAN", 0) + pack("GET", "k1"), b"\x00" * 100):
        client = Client(path)
        client.socket.sendall(pack("AUTH", "kv", "x") + bad)
        client.reply()
        client.close()


@pytest.mark.slow
@pytest.mark.timeout(SOAK_S * 2 + 120)
@pytest.mark.long
def test_memory_is_flat_under_a_long_mixed_load(sidecars: Sidecars) -> None:
    sidecar, path, writer = started(sidecars, store__memory="32MiB")
    samples: list[float] = []
    number, ends = 1, time.monotonic() + SOAK_S
    while time.monotonic() < ends or len(samples) < SAMPLES_MIN:
        for _ in range(10):
            one_round(path, writer, number)
            number += 1
        samples.append(resident_bytes(sidecar.pid) / 2**20)
    late = samples[len(samples) // 3 :]
    third = len(late) // 3
    before, after = statistics.median(late[:third]), statistics.median(late[-third:])
    print("MiB, a tenth of the time apart:", *(f"{one:.1f}" for one in samples[:: max(len(samples) // 10, 1)]))
    print(f"soak of {SOAK_S:.0f} s: {number} commits; {before:.1f} MiB at a third of it, {after:.1f} MiB at its end")
    assert after < before + GROWTH_MAX_MIB, samples
    writer.close()


@pytest.mark.slow
def test_sidecar_holds_a_thousand_of_ten_thousand_idle_clients_and_refuses_the_others(sidecars: Sidecars) -> None:
    sidecar, path, first = started(sidecars)
    held: list[Client] = []
    refused = 0
    for _ in range(10_000):
        one = Client(path)
        if len(held) < 999:
            assert one("PING") == b"PONG"
            held.append(one)
            continue
        refused += one.socket.recv(100) == b"-ERR max number of clients reached\r\n"
        one.close()
    assert refused == 10_000 - 999
    assert first("SF.OFFSETS") == []
    assert first("SET", "a", "1") == b"OK"
    for one in held:
        one.close()
    assert first("GET", "a") == b"1"
    assert sidecar.call("GET", "/v1/ready")["ready"]
    first.close()
