"""The control API against bytes that are no requests: a clear error each, other clients unharmed; its pure parts."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.ops.shared.control_stores import Conflict, declare, shape_of, spec_of
from standfast.ops.sidecar.control import schema as schemas
from standfast.ops.sidecar.control.assignment import (
    ApplicationLease,
    StaleGeneration,
    WantedTasks,
    check_generation,
    decide,
    wanted_of,
    without,
)
from standfast.ops.sidecar.systemd import Notifier
from standfast.replication.shapes import plain
from standfast.store.errors import InvalidRequest
from support.serve import FOUR, KEYVALUE, Sidecar, Sidecars

ALL = {
    kind.__name__: kind
    for kind in (
        schemas.Stores,
        schemas.Assignment,
        schemas.Revoke,
        schemas.Heartbeat,
        schemas.Schedule,
        schemas.Snapshot,
        schemas.Verify,
        schemas.Wipe,
        schemas.Drain,
    )
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["generation", "tasks", "partition", "role", "stores", "name", "kind", "x"]), inner
        )
    ),
    max_leaves=20,
)


@settings(max_examples=settings().max_examples // 3)
@given(st.sampled_from(sorted(ALL)), st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_an_object_of_the_schema_or_a_clear_refusal(name: str, body: bytes) -> None:
    try:
        found = schemas.parse_body(body, ALL[name])
    except InvalidRequest as error:
        assert str(error) and len(str(error)) < 500
    else:
        assert type(found).__name__ == name


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"[" * 100_000, "not JSON"),
        (b'{"generation": NaN, "tasks": []}', "not JSON"),
        (b'{"generation": 1e400, "tasks": []}', "`int`"),
        (b'{"generation": ' + b"9" * 4_000 + b', "tasks": []}', "generation"),
        (b'{"generation": ' + b"9" * 5_000 + b', "tasks": []}', "not JSON"),
        (b'{"generation": true, "tasks": []}', "Expected `int`, got `bool` - at `$.generation`"),
        (b'{"generation": 1}', "missing required field `tasks`"),
        (b'{"generation": 1, "tasks": [], "more": 1}', "unknown field `more` (there are generation, tasks, lease_ms)"),
        (
            b'{"generation": 1, "tasks": [], "' + b"m" * 10_000 + b'": 1}',
            "mmm... (there are generation, tasks, lease_ms)",
        ),
        (
            b'{"generation": 1, "tasks": [{"partition": 0, "role": "leader"}]}',
            "'leader' - at `$.tasks[0].role` (there are active, standby)",
        ),
        (b'{"generation": 1, "tasks": [], "lease_ms": null}', "got `null` - at `$.lease_ms`"),
        (b'{"generation": 1, "tasks": [], "lease_ms": 99}', "`int` >= 100 - at `$.lease_ms`"),
        (b'{"generation": 1, "tasks": [], "lease_ms": "100"}', "got `str` - at `$.lease_ms`"),
        (
            b'{"generation": 1, "tasks": [{"partition": 100000, "role": "active"}]}',
            "<= 99999 - at `$.tasks[0].partition`",
        ),
        (b'{"generation": 1, "tasks": [%b0]}' % (b"0," * 99_999), "length <= 99999 - at `$.tasks`"),
        (b'{"generation": 1, "tasks": {}}', "Expected `array`, got `object` - at `$.tasks`"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}{}", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"\xff\xfe{\x00}\x00", "not JSON"),
    ],
)
def test_wrong_bodies_say_where_they_are_wrong(body: bytes, told: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        schemas.parse_body(body, schemas.Assignment)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("store", "told"),
    [
        ({"name": "a" * 129}, "$.stores[0].name"),
        ({"name": ""}, "$.stores[0].name"),
        ({"name": "../a"}, "$.stores[0].name"),
        ({"kind": "queue"}, "`$.stores[0].kind` (there are keyvalue, session, versioned, window)"),
        ({"retention_ms": 0}, ">= 1 - at `$.stores[0].retention_ms`"),
        ({"retention_ms": 2**63}, "$.stores[0].retention_ms"),
        ({"caching": 1}, "Expected `bool`, got `int` - at `$.stores[0].caching`"),
        ({"changelog": {"a": "x" * 201}}, "length <= 200 - at `$.stores[0].changelog[...]`"),
        ({"changelog": {str(at): "x" for at in range(51)}}, "length <= 50 - at `$.stores[0].changelog`"),
        ({"changelog": {"a": 1}}, "Expected `str`, got `int` - at `$.stores[0].changelog[...]`"),
        ({"changelog": {"a": "\ud800"}}, "not JSON"),
        ({"changelog": []}, "$.stores[0].changelog"),
    ],
)
def test_texts_and_lists_of_a_declaration_have_their_bounds(store: dict[str, Any], told: str) -> None:
    body = {"stores": [{"name": "kv", "kind": "keyvalue"} | store]}
    with pytest.raises(InvalidRequest) as refused:
        schemas.parse_body(json.dumps(body).encode(), schemas.Stores)
    assert told in str(refused.value)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    ("count", "told"), [(0, "length >= 1 - at `$.stores`"), (101, "length <= 100 - at `$.stores`")]
)
def test_a_declaration_has_one_to_a_hundred_stores(count: int, told: str) -> None:
    def body(number: int) -> bytes:
        return json.dumps({"stores": [{"name": f"s{at}", "kind": "keyvalue"} for at in range(number)]}).encode()

    with pytest.raises(InvalidRequest) as refused:
        schemas.parse_body(body(count), schemas.Stores)
    assert told in str(refused.value)
    assert len(schemas.parse_body(body(100), schemas.Stores).stores) == 100


def test_what_a_request_leaves_out_is_left_out_and_no_body_is_an_empty_object() -> None:
    assert plain(schemas.parse_body(b'{"stores": [{"name": "kv", "kind": "window"}]}', schemas.Stores)) == {
        "stores": ({"name": "kv", "kind": "window"},)
    }
    assert schemas.parse_body(b"", schemas.Verify) == schemas.Verify()
    assert schemas.given(schemas.parse_body(b"{}", schemas.Drain).wait_ms, 7) == 7


def test_definitions_of_stores_go_there_and_back() -> None:
    for shape in FOUR:
        spec = spec_of(shape)
        assert spec_of(shape_of(spec)) == spec
        assert declare([spec], [shape]).created == ()
    with pytest.raises(Conflict):
        declare([spec_of(KEYVALUE)], [{**KEYVALUE, "logging": False}])
    with pytest.raises(InvalidRequest, match="twice"):
        declare([], [KEYVALUE, KEYVALUE])
    with pytest.raises(InvalidRequest, match="has no retention_ms"):
        spec_of({**KEYVALUE, "retention_ms": 5})


def test_generations_and_leases() -> None:
    present = wanted_of(schemas.Assignment(4, (schemas.Task(0, "active"),)))
    lease = ApplicationLease(100).renewed(1_000)
    assert not decide(present, lease, present)
    assert decide(present, lease, WantedTasks(5))
    with pytest.raises(StaleGeneration):
        decide(present, lease, WantedTasks(3))
    with pytest.raises(InvalidRequest, match="larger generation"):
        decide(present, lease, WantedTasks(4, frozenset({1})))
    assert not lease.is_over(1_099) and lease.is_over(1_100)
    assert not ApplicationLease().renewed(0).is_over(10**12)
    ended = ApplicationLease(100, 0, ended=True)
    assert not ended.is_over(10**12), "it ends once"
    for call in (lambda: decide(present, ended, present), lambda: check_generation(present, ended, 4)):
        with pytest.raises(StaleGeneration):
            call()
    with pytest.raises(StaleGeneration):
        check_generation(present, lease, 5)
    check_generation(present, lease, 4)
    assert without(present, {0}) == WantedTasks(4)
    with pytest.raises(InvalidRequest, match="twice"):
        wanted_of(schemas.Assignment(1, (schemas.Task(0, "active"), schemas.Task(0, "standby"))))


def test_notifier_is_silent_where_nobody_asks() -> None:
    assert not Notifier({}).tell(READY=1)
    assert not Notifier({"NOTIFY_SOCKET": "/nowhere/at/all"}).tell(READY=1)
    assert Notifier({"WATCHDOG_USEC": "3000000"}).watchdog_ms == 3_000
    assert Notifier({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}).watchdog_ms is None


# -- over real sockets ------------------------------------------------------------------------------------------------


def raw(sidecar: Sidecar, sent: bytes, wait_s: float = 10.0) -> bytes:
    """The bytes received until the server closes the connection, or sends no more."""
    host, port = sidecar.info["http"].removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=wait_s) as connection:
        connection.sendall(sent)
        found = b""
        try:
            while piece := connection.recv(65_536):
                found += piece
        except ConnectionResetError:
            pass
        return found


@pytest.mark.slow
def test_half_requests_are_cut_off_and_others_are_answered_meanwhile(sidecars: Sidecars) -> None:
    sidecar = sidecars.start(limits__http_timeout="1s", limits__http_connections=8)
    host, port = sidecar.info["http"].removeprefix("http://").split(":")
    halves = (b"", b"GET /livez HTT", b"PUT /v1/stores HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
    held = []
    for number in range(12):  # more than the limit: idle clients keep no other out
        connection = socket.create_connection((host, int(port)), timeout=10)
        connection.sendall(halves[number % 3])
        held.append(connection)
    assert sidecar.http is not None and sidecar.http.get("/livez").status_code == 200
    began = time.monotonic()
    for connection in held:
        try:
            while connection.recv(65_536):
                pass
        except ConnectionResetError:
            pass
        connection.close()
    assert time.monotonic() - began < 5
    assert sidecar.http.get("/livez").status_code == 200


@pytest.mark.slow
def test_bytes_that_are_no_request_get_an_error_and_the_server_lives(sidecars: Sidecars) -> None:
    sidecar = sidecars.start()
    host = b"host: localhost\r\n"
    wrong: list[tuple[bytes, bytes]] = [
        (b"\x00\xff\xfe\r\n\r\n", b"400"),
        (b"NONSENSE\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + host + b"connection: close\r\n\r\n", b"4"),
        (b"GET /nothing HTTP/1.1\r\nconnection: close\r\n" + host + b"x: " + b"y" * 400_000 + b"\r\n\r\n", b"4"),
        (b"GET /v1/hello HTTP/1.1\r\nhost: elsewhere.example\r\nconnection: close\r\n\r\n", b"421"),
        (b"PUT /v1/stores HTTP/1.1\r\n" + host + b"origin: http://evil.example\r\nconnection: close\r\n\r\n", b"403"),
        (b"BREW /v1/stores HTTP/1.1\r\n" + host + b"connection: close\r\n\r\n", b"405"),
        (b"GET /v1/stores/%2e%2e%2f/get?key=a HTTP/1.1\r\n" + host + b"connection: close\r\n\r\n", b"40"),
    ]
    for sent, status in wrong:
        answer = raw(sidecar, sent)
        assert answer.split(b" ")[1].startswith(status), (sent[:60], answer[:200])
    assert sidecar.http is not None and sidecar.http.get("/livez").status_code == 200
    told = [line for line in sidecar.told().splitlines() if "Invalid HTTP request" in line]
    assert len(told) == 1 and " WARNING uvicorn.error: " in told[0], told


def test_tokens_are_asked_for_where_there_are_some(sidecars: Sidecars, tmp_path: Any) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text('[[tokens]]\nname = "app"\nrole = "write"\ntoken = "a-token-of-the-app-0"\n')
    tokens.chmod(0o600)
    sidecar = sidecars.start(auth__tokens_file=str(tokens))
    assert sidecar.http is not None
    assert sidecar.http.get("/v1/status").status_code == 401
    assert sidecar.http.get("/readyz").status_code == 200
    bearer = {"Authorization": "Bearer a-token-of-the-app-0"}
    assert sidecar.http.get("/v1/status", headers=bearer).status_code == 200
    assert sidecar.http.post("/v1/drain", headers=bearer, json={}).status_code == 403


def test_whole_numbers_may_be_written_with_a_point() -> None:
    """As in JSON Schema: 7.0 is an integer, 7.5 and numbers beyond a float's exact integers are none."""
    found = schemas.parse_body(b'{"generation": 7.0}', schemas.Heartbeat).generation
    assert (found, type(found)) == (7, int)
    for text in (b"7.5", b"1e300", b"-1.0", b"1e16"):
        with pytest.raises(InvalidRequest, match=r"Expected `int`.* - at `\$.generation`"):
            schemas.parse_body(b'{"generation": %b}' % text, schemas.Heartbeat)
