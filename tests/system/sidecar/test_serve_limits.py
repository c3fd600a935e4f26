"""Limits in the reply of GET /v1/hello: both servers enforce each, before any byte is kept or written to the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.groups import costly
from support.resp import Client
from support.serve import FOUR, Sidecar, Sidecars

pytestmark = pytest.mark.slow
TOLD = {
    "command_bytes": 65_536,
    "batch_ops": 4,
    "batch_bytes": 8_192,
    "key_bytes": 64,
    "value_bytes": 4_096,
    "body_bytes": 2_048,
    "wait_ms": 1_500,
}


@pytest.fixture(scope="module")
@costly()
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """A sidecar whose limits are all small and all different from the defaults."""
    made = Sidecars(tmp_path_factory.mktemp("limits"))
    sidecar = made.start(
        limits__command_max="64KiB",
        limits__batch_ops="4",
        limits__batch_max="8KiB",
        limits__key_max="64B",
        store__value_max="4KiB",
        limits__http_body_max="2KiB",
        limits__wait_max="1500ms",
    )
    sidecar.declare(FOUR)
    sidecar.assign(1, active=(0, 1))
    sidecar.wait_ready(1_000)
    yield sidecar
    made.close()


@pytest.fixture
def client(small: Sidecar) -> Iterator[Client]:
    made = Client(Path(small.info["resp_socket"]))
    assert made("AUTH", "kv", "x") == b"OK"
    yield made
    made.close()


def ends(sidecar: Sidecar) -> list[int]:
    return [one["position"] for one in sidecar.call("GET", "/v1/lags")["lags"]]


def test_everything_that_is_told_is_a_limit_of_this_file(small: Sidecar) -> None:
    assert small.call("GET", "/v1/hello")["limits"] == TOLD


def test_resp_server_refuses_what_is_too_large_and_keeps_and_logs_nothing(small: Sidecar, client: Client) -> None:
    before = ends(small)
    long, large = b"k" * 65, b"v" * 4_097
    for request in (
        ("SET", long, "v"),
        ("SET", "k", large),
        ("SET", "k", large, "NX"),
        ("MSET", "a", "1", long, "2"),
        ("SF.PUT", "kv", "k", large),
        ("SF.WPUT", "win", long, 0, "v"),
        ("SF.SPUT", "ses", long, 0, 9, "v"),
        ("SF.VPUT", "ver", "k", large),
    ):
        assert "over the limit" in client.refused(*request), request
    for request in (("MSET", *"a1b2c3d4e5"), ("DEL", *"abcde"), ("SF.DEL", "kv", *"abcde")):
        assert "4 at most" in client.refused(*request), request
    for words in ([("SET", key, "v") for key in "abcde"], [("SET", key, b"v" * 4_000) for key in "abc"]):
        assert client("MULTI") == b"OK"
        assert "MULTI takes 4 requests and 8192 bytes" in [str(client(*one)) for one in words][-1]
        assert client.refused("EXEC").startswith("EXECABORT")
    assert client("SF.COMMIT") == [1, None, 0]
    assert client("MGET", *"abck") == [None] * 4
    assert ends(small) == before
    assert client("SET", b"k" * 64, b"v" * 4_096) == b"OK", "what is just within is taken"
    assert client("SF.COMMIT") == [1, None, 1]
    assert "from 0 to 1500" in client.refused("SF.WAITREADY", 1_501)


def test_command_over_its_limit_ends_its_client(small: Sidecar, client: Client) -> None:
    assert "more than 65536 bytes" in client.refused("SET", "k", b"v" * 70_000)
    with pytest.raises(EOFError):
        client.reply()
    again = Client(Path(small.info["resp_socket"]))
    assert again("PING") == b"PONG"
    again.close()


def test_control_server_refuses_what_is_too_large(small: Sidecar) -> None:
    assert small.call("GET", "/v1/ready?wait=1501", status=400)["reason"] == "BAD_REQUEST"
    body = {"stores": [{"name": "x" * 100, "kind": "keyvalue"}], "pad": "x" * 2_000}
    assert small.call("PUT", "/v1/stores", body, status=413)["reason"] == "TOO_LARGE"
    for query in ("get?key=" + "k" * 65, "scan?from=" + "k" * 65, "scan?prefix=" + "k" * 65):
        assert small.call("GET", f"/v1/stores/kv/{query}", status=413)["reason"] == "TOO_LARGE"
    hexed = "get?key_format=hex&key=" + "6b" * 64
    assert small.call("GET", f"/v1/stores/kv/{hexed}&partition=1", status=404)["error"] == "NotFound"
    assert small.call("GET", f"/v1/stores/kv/{hexed}6b", status=413)["reason"] == "TOO_LARGE"
    assert small.call("GET", "/v1/stores/kv/scan?limit=10001", status=400)["error"] == "InvalidRequest"
