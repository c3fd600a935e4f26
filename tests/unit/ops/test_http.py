"""The HTTP server: a real one over a real session, called through the loopback."""

from __future__ import annotations

import json
import logging
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPMessage
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import standfast as sf
from standfast.ops.http.server import OpsServer
from standfast.ops.http.session import CONNECTIONS_MAX
from standfast.ops.shared.run_file import RUN_FILE, read_run_file
from standfast.store.clock import ManualClock
from support.groups import costly
from support.sessions import Bench

Answer = tuple[int, dict[str, Any]]
Ask = Callable[[str], Answer]
HOUR_MS = 3_600_000


def request(server: OpsServer, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes, HTTPMessage]:
    with closing(HTTPConnection(server.host, server.port, timeout=10)) as connection:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read(), response.headers


def document(server: OpsServer, path: str) -> Answer:
    status, body, _ = request(server, path)
    return status, json.loads(body)


def text_to_upper(raw: bytes) -> str:
    return raw.decode().upper()


def stores() -> list[Any]:
    text = sf.serde.string
    return [
        sf.KeyValueStore("kv", text, sf.serde.json),
        sf.KeyValueStore("numbers", sf.serde.int64, sf.serde.float64, timestamped=False),
        sf.KeyValueStore("raw", sf.serde.bytes, sf.serde.bytes),
        sf.KeyValueStore("own", sf.serde.pair("shout", str.encode, text_to_upper), text),
        sf.WindowStore("win", text, text, window_size_ms=HOUR_MS, retention_ms=24 * HOUR_MS),
        sf.SessionStore("ses", text, text, retention_ms=24 * HOUR_MS),
        sf.VersionedStore("ver", text, text, history_retention_ms=24 * HOUR_MS),
    ]


def fill(session: sf.Session) -> None:
    task = session.task(0)
    for number in range(5):
        task.store("kv").put(f"k{number}", {"n": number}, timestamp=number)
    task.store("kv").put("other", [1, None, "é"], timestamp=9)
    task.store("numbers").put_all([(number, float("inf")) for number in (7, -5, 0, -300, 5)])
    task.store("raw").put(b"\x00\xff", b"text")
    task.store("own").put("a", "value")
    for start in (0, HOUR_MS, 2 * HOUR_MS):
        task.store("win").put("k", f"w{start}", start)
        task.store("win").put("kk", "longer key", start)
    task.store("ses").put("k", 10, 20, "s1")
    task.store("ses").put("k", 100, 200, "s2")
    task.store("ver").put("k", "v1", 100)
    task.store("ver").put("k", "v2", 200)
    task.commit({("in", 0): 5})
    task.store("kv").put("uncommitted", 1)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sf.Session]:
    """One session for the tests that only read."""
    bench = Bench(tmp_path_factory.mktemp("http"), ManualClock(1_356_998_400_000))
    session = bench.active("a", partitions=(0, 1), stores=stores())
    fill(session)
    yield session
    bench.close()


@pytest.fixture(scope="module")
@costly()
def server(session: sf.Session) -> Iterator[OpsServer]:
    with OpsServer(session) as server:
        yield server


@pytest.fixture
def ask(server: OpsServer) -> Ask:
    return lambda path: document(server, path)


def rows(answer: Answer) -> list[dict[str, Any]]:
    assert answer[0] == 200, answer
    assert answer[1]["schema"] == "standfast.rows/1"
    return answer[1]["rows"]


def test_metrics_are_served_as_text(server: OpsServer) -> None:
    status, body, headers = request(server, "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "standfast_ready" in {family.name for family in text_string_to_metric_families(body.decode())}


def test_status_is_one_document(ask: Ask, session: sf.Session) -> None:
    status, found = ask("/v1/status")
    assert (status, found["schema"], found["app"], found["ready"]) == (200, "standfast.status/1", "app", True)
    assert found["instance"] == session.instance_id
    assert [task["task"] for task in found["tasks"]] == ["0_0", "0_1"]
    kv = next(store for store in found["tasks"][0]["stores"] if store["store"] == "kv")
    assert (kv["kind"], kv["position"], kv["end"], kv["lag"]) == ("keyvalue", 6, 6, 0)
    assert found["tasks"][0]["sources"] == {"in/0": 5}
    assert found["counters"]["commits"] == {"committed": 1}
    assert found["counters"]["commit_seconds"]["count"] == 1


def test_tasks_are_the_tasks_of_the_status(ask: Ask) -> None:
    _, found = ask("/v1/tasks")
    assert found["schema"] == "standfast.tasks/1"
    assert found["tasks"] == ask("/v1/status")[1]["tasks"]


def test_get_gives_the_decoded_row_with_its_timestamp(ask: Ask) -> None:
    assert rows(ask("/v1/stores/kv/get?key=k3")) == [{"partition": 0, "key": "k3", "timestamp": 3, "value": {"n": 3}}]
    assert rows(ask("/v1/stores/kv/get?key=other"))[0]["value"] == [1, None, "é"]


def test_only_committed_rows_are_seen(ask: Ask) -> None:
    assert ask("/v1/stores/kv/get?key=uncommitted")[0] == 404


def test_numbers_bytes_and_own_serdes_are_json(ask: Ask) -> None:
    assert rows(ask("/v1/stores/numbers/get?key=7")) == [{"partition": 0, "key": 7, "value": "inf"}]
    assert rows(ask("/v1/stores/raw/get?key=00ff&key_format=hex"))[0]["key"] == "0x00ff"
    assert rows(ask("/v1/stores/raw/get?key=0x00ff"))[0]["value"] == "text"
    assert rows(ask("/v1/stores/own/get?key=a"))[0]["key"] == "A"


def test_keys_are_raw_bytes_in_hex_format(ask: Ask) -> None:
    (row,) = rows(ask(f"/v1/stores/kv/get?key={b'k1'.hex()}&key_format=hex"))
    assert (row["key"], row["value"]) == ("0x" + b"k1".hex(), {"n": 1})


def test_scan_takes_a_range_a_prefix_and_a_limit(ask: Ask) -> None:
    assert [row["key"] for row in rows(ask("/v1/stores/kv/scan?from=k1&to=k3"))] == ["k1", "k2", "k3"]
    assert [row["key"] for row in rows(ask("/v1/stores/kv/scan?prefix=k"))] == ["k0", "k1", "k2", "k3", "k4"]
    status, found = ask("/v1/stores/kv/scan?limit=2")
    assert (status, len(found["rows"]), found["truncated"]) == (200, 2, True)
    assert ask("/v1/stores/kv/scan?limit=6")[1]["truncated"] is False


@pytest.mark.parametrize("store", ["kv", "win", "ses", "ver", "numbers"])
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_scan_goes_on_where_the_answer_before_ended(ask: Ask, store: str, limit: int) -> None:
    whole, told, after = rows(ask(f"/v1/stores/{store}/scan")), [], ""
    while after is not None:
        found = ask(f"/v1/stores/{store}/scan?limit={limit}" + (f"&after={after}" if after else ""))[1]
        assert len(found["rows"]) <= limit and found["truncated"] == (found["after"] is not None)
        told += found["rows"]
        after = found["after"]
    assert told == whole
    for wrong in ("x", "e30=", "WzAsICJ6eiIsIDBd", "WzAsIG51bGwsIC0xXQ=="):
        assert ask(f"/v1/stores/{store}/scan?after={wrong}")[0] == 400


def test_scan_goes_on_within_its_prefix_and_its_range(ask: Ask) -> None:
    for query in ("prefix=k", "from=k1&to=k3"):
        whole = rows(ask(f"/v1/stores/kv/scan?{query}"))
        after = ask(f"/v1/stores/kv/scan?{query}&limit=2")[1]["after"]
        assert rows(ask(f"/v1/stores/kv/scan?{query}&after={after}")) == whole[2:]


def test_scan_of_a_range_of_numbers_goes_by_number_over_its_pages(ask: Ask) -> None:
    for query, keys in (("from=-5&to=5", [-5, 0, 5]), ("from=-300", [-300, -5, 0, 5, 7]), ("to=-1", [-300, -5])):
        for limit in (1, 2, 100):
            found, after = [], ""
            while after is not None:
                page = ask(f"/v1/stores/numbers/scan?{query}&limit={limit}" + (f"&after={after}" if after else ""))[1]
                found += [row["key"] for row in page["rows"]]
                after = page["after"]
            assert found == keys, (query, limit)
    assert [row["key"] for row in rows(ask("/v1/stores/numbers/scan"))] == [0, 5, 7, -300, -5]


def test_scan_reads_every_kind(ask: Ask) -> None:
    windows = rows(ask("/v1/stores/win/scan?prefix=kk"))
    assert [(row["key"], row["window_start"], row["window_end"]) for row in windows] == [
        ("kk", start, start + HOUR_MS) for start in (0, HOUR_MS, 2 * HOUR_MS)
    ]
    assert [row["session_end"] for row in rows(ask("/v1/stores/ses/scan"))] == [20, 200]
    assert {(row["valid_from"], row["value"]) for row in rows(ask("/v1/stores/ver/scan"))} == {(100, "v1"), (200, "v2")}


def test_fetch_reads_windows_sessions_and_versions_by_time(ask: Ask) -> None:
    windows = rows(ask(f"/v1/stores/win/fetch?key=k&from={HOUR_MS}&to={2 * HOUR_MS}"))
    assert [row["window_start"] for row in windows] == [HOUR_MS, 2 * HOUR_MS]
    assert [row["value"] for row in rows(ask("/v1/stores/ses/fetch?key=k&from=50"))] == ["s2"]
    versions = rows(ask("/v1/stores/ver/fetch?key=k"))
    assert [(row["valid_from"], row["valid_to"]) for row in versions] == [(100, 200), (200, -1)]


def test_version_is_read_as_of_a_time(ask: Ask) -> None:
    assert rows(ask("/v1/stores/ver/get?key=k"))[0]["value"] == "v2"
    assert rows(ask("/v1/stores/ver/get?key=k&as_of=150"))[0]["value"] == "v1"
    assert ask("/v1/stores/ver/get?key=k&as_of=50")[0] == 404


def test_empty_partition_of_a_segmented_store_has_no_rows(ask: Ask) -> None:
    assert rows(ask("/v1/stores/win/scan?partition=1")) == []


@pytest.mark.parametrize(
    ("path", "status", "error", "words"),
    [
        ("/v1/stores/kv/get?key=absent", 404, "NotFound", "no row"),
        ("/v1/stores/kw/get?key=k", 404, "UnknownStore", "did you mean 'kv'?"),
        ("/v1/stores/kv/get", 400, "InvalidRequest", "needs a key"),
        ("/v1/stores/kv/scan?limit=10001", 400, "InvalidRequest", "10000"),
        ("/v1/stores/kv/scan?limit=0", 400, "InvalidRequest", "limit"),
        ("/v1/stores/kv/scan?limit=-1", 400, "InvalidRequest", "whole number"),
        ("/v1/stores/kv/scan?lmit=1", 400, "InvalidRequest", "did you mean 'limit'?"),
        ("/v1/stores/kv/scan?limit=1&limit=2", 400, "InvalidRequest", "twice"),
        ("/v1/stores/kv/scan?from=a&prefix=b", 400, "InvalidRequest", "not both"),
        ("/v1/stores/kv/get?key=%FF", 400, "InvalidRequest", "percent-encode"),
        ("/v1/stores/kv/get?key=zz&key_format=hex", 400, "InvalidRequest", "not hex"),
        ("/v1/stores/kv/get?key=a&key_format=base64", 400, "InvalidRequest", "utf8 or hex"),
        ("/v1/stores/kv/get?key=a&stale=yes", 400, "InvalidRequest", "0 or 1"),
        ("/v1/stores/numbers/get?key=seven", 400, "InvalidRequest", "not a number"),
        ("/v1/stores/win/get?key=k", 400, "InvalidRequest", "use fetch or scan"),
        ("/v1/stores/kv/fetch?key=k", 400, "InvalidRequest", "use get or scan"),
        ("/v1/stores/kv/get?key=k1&partition=9", 409, "NotAssigned", "it holds: 0, 1"),
        ("/v1/stores/kv/drop", 404, "NotFound", "/v1/stores/NAME/get"),
        ("/nowhere", 404, "NotFound", "/v1/status"),
        ("/v1/stores/..%2F..%2Fetc/get?key=k", 404, "UnknownStore", "there are"),
    ],
)
def test_wrong_request_is_an_error_document(ask: Ask, path: str, status: int, error: str, words: str) -> None:
    found = ask(path)
    assert (found[0], found[1]["schema"], found[1]["error"]) == (status, "standfast.error/1", error)
    assert words in found[1]["message"]


def test_restoring_store_answers_503_and_readiness_says_who_is_missing(bench: Bench) -> None:
    first = bench.active("a", partitions=(0,))
    for number in range(3):
        first.task(0).store("kv").put(f"k{number}", "v")
    first.task(0).commit()
    first.close()
    session = bench.session("b")
    session.assign(active=[0])
    with OpsServer(session) as server:
        status, found = document(server, "/readyz")
        assert (status, found["ok"]) == (503, False)
        assert found["reasons"][0].startswith("task 0_0")
        assert document(server, "/livez")[0] == 200
        status, body, headers = request(server, "/v1/stores/kv/get?key=k1")
        assert (status, json.loads(body)["error"], headers["Retry-After"]) == (503, "NotReady", "1")
        status, found = document(server, "/v1/stores/kv/scan?stale=1")
        assert status == 200
        assert found["partitions"] == [{"partition": 0, "role": "active", "lag_records": 3}]
        session.wait_ready(30)
        assert document(server, "/readyz") == (
            200,
            {
                "schema": "standfast.health/1",
                "check": "ready",
                "ok": True,
                "reasons": [],
                "degraded": [],
                "checks": [{"name": "session", "ok": True, "text": "", "excluded": False}],
            },
        )
        assert len(document(server, "/v1/stores/kv/scan")[1]["rows"]) == 3


def test_standby_is_read_only_if_stale_rows_are_asked_for(bench: Bench) -> None:
    first = bench.active("a", partitions=(0,))
    first.task(0).store("kv").put("k", "v")
    first.task(0).commit()
    second = bench.session("b")
    second.assign(standby=[0])
    bench.settle(first, second)
    with OpsServer(second) as server:
        assert document(server, "/readyz")[0] == 200
        assert document(server, "/v1/stores/kv/get?key=k")[1]["error"] == "NotActive"
        status, found = document(server, "/v1/stores/kv/get?key=k&stale=1")
        assert (status, found["rows"][0]["value"]) == (200, "v")
        assert found["partitions"] == [{"partition": 0, "role": "standby", "lag_records": 0}]


def test_partition_that_leaves_as_its_rows_are_asked_for_is_not_assigned(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = bench.session("a", partitions=2)
    session.assign(active=[0, 1])
    session.wait_ready(30)
    held = session.all_tasks

    def then_one_leaves() -> Any:
        found = held()
        session.assign(active=[0])
        return found

    with OpsServer(session) as server:
        monkeypatch.setattr(session, "all_tasks", then_one_leaves)
        status, answer = document(server, "/v1/stores/kv/scan?partition=1&stale=1")
    assert (status, answer["reason"]) == (409, "NOT_ASSIGNED"), answer


def test_closed_session_is_neither_live_nor_ready(bench: Bench) -> None:
    session = bench.active()
    with OpsServer(session) as server:
        session.close()
        assert document(server, "/livez")[0] == 503
        assert document(server, "/readyz")[0] == 503
        assert document(server, "/v1/status")[1]["error"] == "Closed"
        assert request(server, "/metrics")[0] == 200


def test_only_get_and_head_are_answered(server: OpsServer) -> None:
    status, body, headers = request(server, "/v1/status", "POST")
    assert (status, headers["Allow"], json.loads(body)["error"]) == (405, "GET, HEAD", "MethodNotAllowed")
    status, body, headers = request(server, "/livez", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 0


def test_url_and_head_are_bounded(server: OpsServer) -> None:
    assert request(server, "/v1/stores/kv/get?key=" + "k" * 9_000)[0] == 414
    assert request(server, "/livez", Long="x" * 40_000)[0] == 431


def test_line_that_is_not_http_is_refused_without_repeating_it(server: OpsServer) -> None:
    with socket.create_connection((server.host, server.port), timeout=10) as client:
        client.sendall(b"SECRET what is this\r\n\r\n")
        answered = b""
        while chunk := client.recv(4_096):
            answered += chunk
    assert b" 400 " in answered.splitlines()[0]
    assert b"SECRET" not in answered


def test_page_of_another_site_gets_nothing(server: OpsServer) -> None:
    status, body, _ = request(server, "/v1/status", Host="evil.example")
    assert (status, json.loads(body)["error"]) == (421, "BAD_HOST")
    assert request(server, "/v1/status", Host=f"localhost:{server.port}")[0] == 200
    assert request(server, "/v1/status", Host="[::1]:80")[0] == 200


def test_of_connections_beyond_the_bound_the_oldest_that_asked_nothing_ends_and_the_others_are_served(
    server: OpsServer,
) -> None:
    idle = [socket.create_connection((server.host, server.port), timeout=10) for _ in range(CONNECTIONS_MAX)]
    try:
        with socket.create_connection((server.host, server.port), timeout=10) as newest:
            assert idle[0].recv(1) == b""
            for client in (newest, *idle[1:]):
                client.sendall(b"GET /livez HTTP/1.0\r\nHost: localhost\r\n\r\n")
                assert b" 200 " in client.recv(200)
    finally:
        for client in idle:
            client.close()


def test_no_key_and_no_value_reaches_a_log(server: OpsServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    request(server, "/v1/stores/kv/get?key=k1")
    request(server, "/v1/stores/kv/get?key=secret-key")
    request(server, "/v1/stores/numbers/get?key=secret-key")
    assert "secret-key" not in caplog.text
    assert "'n': 1" not in caplog.text


def test_info_file_tells_where_the_server_is_and_goes_with_it(session: sf.Session) -> None:
    path = session.state_path / RUN_FILE
    server = OpsServer(session)
    info = read_run_file(session.state_path)
    assert (info.host, info.port, info.instance, info.app) == ("127.0.0.1", server.port, session.instance_id, "app")
    assert stat.S_ISREG(path.stat().st_mode)
    assert server.address == f"http://127.0.0.1:{server.port}"
    server.close()
    server.close()
    assert not path.exists()


def test_info_file_of_a_later_server_is_left_alone(session: sf.Session) -> None:
    first = OpsServer(session)
    with OpsServer(session) as second:
        first.close()
        assert read_run_file(session.state_path).port == second.port


def test_host_beyond_loopback_must_be_asked_for(session: sf.Session) -> None:
    with pytest.raises(sf.BadConfig, match="reachable from other machines"):
        OpsServer(session, host="0.0.0.0")
    with OpsServer(session, host="0.0.0.0", allow_remote=True) as server:
        with closing(HTTPConnection("127.0.0.1", server.port, timeout=10)) as connection:
            connection.request("GET", "/livez", headers={"Host": "some.name"})
            assert connection.getresponse().status == 200


def test_port_that_is_taken_is_told(session: sf.Session) -> None:
    with OpsServer(session) as first, pytest.raises(sf.Held, match=f"127.0.0.1:{first.port}"):
        OpsServer(session, port=first.port)
