"""The guard of a session's HTTP server: its own user, root, other users, tokens, other machines, TLS."""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import standfast as sf
from standfast.ops.client.client import Client
from standfast.ops.http import OpsServer
from standfast.ops.http.door import Door
from standfast.ops.security import peer_uid
from standfast.ops.shared.run_file import TOKEN_FILE, read_run_file, run_token
from standfast.store.clock import ManualClock
from standfast.stream.http_port import http_problems
from standfast.stream.workers.counts import worker_count, worker_options
from support.sessions import Bench
from support.tls import Issue
from support.users import NOBODY, ask_as

TOKEN = "a-token-of-this-test"
PASSWORD = base64.b64encode(f"anyone:{TOKEN}".encode()).decode()
ROW = "/v1/stores/kv/get?key=k"
OPEN = ("/livez", "/readyz", "/startupz", "/metrics")
REST = ("/", "/page.json", "/page.css", "/v1/status", "/v1/tasks")
ROWS = (
    ROW,
    "/v1/stores/kv/scan",
    "/v1/stores//scan",
    "/v1/stores/none/get?key=k",
    "/v1/stores/k%76/scan",
    "/peek/kv/0",
)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[sf.Session]:
    bench = Bench(tmp_path, ManualClock(1_356_998_400_000))
    opened = bench.active("a", partitions=(0,))
    opened.task(0).store("kv").put("k", "v")
    opened.task(0).commit()
    yield opened
    bench.close()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return path


def bearer(token: str = TOKEN) -> dict[str, Any]:
    return {"Authorization": f"Bearer {token}"}


def statuses(address: str, uid: int, paths: tuple[str, ...], **headers: Any) -> dict[str, int]:
    return {path: ask_as(uid, address, path, **headers)[0] for path in paths}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_other_user_of_loopback_gets_everything_but_rows(session: sf.Session, host: str) -> None:
    with OpsServer(session, host=host) as server:
        for path in (*OPEN, *REST):
            assert ask_as(NOBODY, server.address, path)[0] == 200, path
        for path in ROWS:
            status, told = ask_as(NOBODY, server.address, path)
            assert status == 401 and "token" in told and f"user {NOBODY} " in told, (path, told)
        assert ask_as(NOBODY, server.address, "/v1/drain", "POST")[0] == 401
        assert ask_as(0, server.address, ROW)[0] == 200
        page = ask_as(NOBODY, server.address, "/")[1]
        assert 'href="peek/' not in page and "lookup" not in page and "<button" not in page


def test_user_of_a_socket_of_ipv6_to_an_address_of_ipv4_is_known(session: sf.Session) -> None:
    with OpsServer(session) as server:
        assert ask_as(0, server.address, ROW, mapped=True)[0] == 200
        assert ask_as(NOBODY, server.address, ROW, mapped=True)[0] == 401


def test_connection_whose_user_the_kernel_does_not_tell_gets_no_rows(
    session: sf.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    with OpsServer(session) as server:
        assert ask_as(os.getuid(), server.address, ROW)[0] == 200
        monkeypatch.setattr(peer_uid.uid_of_peer, "__defaults__", (Path("/nonexistent"),))
        status, told = ask_as(os.getuid(), server.address, ROW)
        assert status == 401 and "the user of the connection is unknown" in told and "token" in told
        assert statuses(server.address, os.getuid(), REST) == dict.fromkeys(REST, 200)
        # The command line of the same user reads on: the instance left it a token beside its info file.
        assert Client.of_state_path(session.state_path).get("/v1/stores/kv/get", {"key": "k"})["rows"]


def test_token_of_a_file_reads_rows_and_a_wrong_one_nothing(session: sf.Session, token_file: Path) -> None:
    with OpsServer(session, token_file=token_file) as server:
        assert ask_as(NOBODY, server.address, ROW, **bearer())[0] == 200
        assert ask_as(NOBODY, server.address, ROW, Authorization=f"Basic {PASSWORD}")[0] == 200
        assert ask_as(0, server.address, ROW, **bearer("wrong-wrong-wrong-wrong"))[0] == 401
        for path in (f"{ROW}&token={TOKEN}", f"{ROW}&access_token={TOKEN}"):
            assert ask_as(NOBODY, server.address, path)[0] == 401
        assert ask_as(NOBODY, server.address, "/v1/drain", "POST", **bearer())[0] == 403


def test_beyond_loopback_a_token_is_needed_for_all_but_health_and_metrics(
    session: sf.Session, token_file: Path
) -> None:
    with OpsServer(session, host="0.0.0.0", allow_remote=True, token_file=token_file) as server:
        address = f"http://127.0.0.1:{server.port}"
        assert statuses(address, os.getuid(), OPEN) == dict.fromkeys(OPEN, 200)
        closed = (*REST, *ROWS[:2])
        assert statuses(address, os.getuid(), closed) == dict.fromkeys(closed, 401)
        assert statuses(address, os.getuid(), closed, **bearer()) == dict.fromkeys(closed, 200)
        assert Client.of_state_path(session.state_path).get("/v1/status")["app"] == "app"
    with OpsServer(session, host="0.0.0.0", allow_remote=True) as server:
        address = f"http://127.0.0.1:{server.port}"
        assert statuses(address, os.getuid(), OPEN) == dict.fromkeys(OPEN, 200)
        status, told = ask_as(os.getuid(), address, ROW)
        assert status == 401 and "set http_token_file" in told


def test_host_beyond_loopback_is_refused_unless_it_is_allowed(session: sf.Session) -> None:
    with pytest.raises(sf.BadConfig, match=r"reachable from other machines.*token_file="):
        OpsServer(session, host="0.0.0.0")


def test_token_of_the_own_tools_is_in_a_file_of_their_user_and_goes_with_the_server(session: sf.Session) -> None:
    with OpsServer(session):
        path = session.state_path / TOKEN_FILE
        assert path.stat().st_mode & 0o777 == 0o600 and len(str(run_token(session.state_path))) == 43
    assert not path.exists()


def test_files_that_cannot_be_used_are_told_before_anything_is_opened(tmp_path: Path, token_file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    short = tmp_path / "short"
    short.write_text("short")
    short.chmod(0o600)
    for mode, path, problem in (
        (0o644, token_file, "chmod 0600"),
        (0o620, token_file, "chmod 0600"),
        (0o600, short, "holds no token"),
        (None, tmp_path / "none", "cannot be read"),
        (None, tmp_path, "cannot be read"),
    ):
        if mode is not None:
            path.chmod(mode)
        with pytest.raises(sf.BadConfig, match=problem) as caught:
            sf.Session(
                "app", log=f"sqlite:///{tmp_path}/log", state_dir=tmp_path / "s", http_port=port, http_token_file=path
            )
        assert TOKEN not in str(caught.value) and not (tmp_path / "s").exists()
    with socket.create_server(("127.0.0.1", port)):
        pass  # nothing listens there


def test_problems_of_http_settings_name_the_setting_and_the_form() -> None:
    files = {"certificate": "a", "key_file": "b"}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"port": -1}, "http_port must be a whole number"),
        ({"host": ""}, "http_host must be an address"),
        ({"host": 5}, "http_host must be an address"),
        ({"host": "http://x"}, "http_host must be an address"),
        ({"token_file": b"secret"}, "http_token_file must be the path of a file"),
        ({"token_file": ""}, "http_token_file must be the path"),
        ({"tls": "cert.pem"}, "http_tls must be a dict"),
        ({"tls": {}}, "http_tls: certificate is missing"),
        ({"tls": {"certificate": "a"}}, "http_tls: key_file is missing"),
        ({"tls": {**files, "keyfile": "c"}}, "did you mean 'key_file'"),
        ({"tls": {"certificate": 5, "key_file": "b"}}, "http_tls: certificate must be the path"),
        ({"tls": {**files, "client_ca": "c"}}, "client_ca and client_names go together"),
        ({"tls": {**files, "client_names": ["DNS:a"]}}, "client_ca and client_names go together"),
        ({"tls": {**files, "client_ca": "c", "client_names": "DNS:a"}}, "client_names must be a list"),
        ({"tls": {**files, "client_ca": "c", "client_names": 5}}, "client_names must be a list"),
    ]
    right: dict[str, Any] = {"port": 0, "host": "127.0.0.1", "token_file": None, "tls": None}
    assert http_problems(**right) == []
    assert http_problems(**{**right, "tls": {**files, "client_ca": "c", "client_names": ["DNS:a"]}}) == []
    for given, problem in wrong:
        found = http_problems(**{**right, **given})
        assert len(found) >= 1 and problem in found[0], (given, found)
        assert "secret" not in str(found)


def test_workers_of_a_supervisor_get_no_door_of_their_own(tmp_path: Path) -> None:
    given: Any = {"http_host": "0.0.0.0", "http_token_file": tmp_path / "none", "http_tls": {}}
    given["http_port"] = 0
    assert not {name for name in worker_options(given, 2) if name.startswith("http_")}
    assert worker_count(2, 8, {"http_port": 0, "placement": "managed"}) == 2


def test_door_reads_its_token_again_and_a_bad_file_leaves_the_former(
    session: sf.Session, token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    door = Door(0, token_file=token_file)
    with closing(door):
        token_file.write_text("another-token-of-this-test\n")
        door.reload()
        assert door.tokens.find(TOKEN) is None and door.tokens.find("another-token-of-this-test") is not None
        token_file.write_text("short\n")
        door.reload()
        door.reload()
        assert door.tokens.find("another-token-of-this-test") is not None
        assert caplog.text.count("holds no token") == 1


def test_server_with_tls_files_speaks_tls_and_no_plain_http(session: sf.Session, issue: Issue) -> None:
    pair = issue("door", "IP:127.0.0.1")
    with OpsServer(session, tls={"certificate": pair.certificate, "key_file": str(pair.key)}) as server:
        assert server.address == f"https://127.0.0.1:{server.port}"
        assert read_run_file(session.state_path).scheme == "https"
        context = ssl.create_default_context(cafile=pair.certificate)
        with closing(HTTPSConnection("127.0.0.1", server.port, timeout=10, context=context)) as connection:
            connection.request("GET", ROW)
            answer = connection.getresponse()
            assert answer.status == 200 and json.loads(answer.read())["rows"][0]["value"] == "v"
        with closing(HTTPConnection("127.0.0.1", server.port, timeout=10)) as plain:
            plain.request("GET", "/livez")
            with pytest.raises(OSError):
                plain.getresponse()


def test_session_and_replica_have_the_same_guard(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"log": f"sqlite:///{tmp_path}/log", "state_dir": tmp_path / "state", "http_port": 0}
    store = sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)
    with sf.Session("app", stores=[store], **settings) as opened:
        opened.assign(active=[0])
        opened.wait_ready(30)
        assert urlsplit(str(opened.http_address)).hostname == "127.0.0.1"
        assert ask_as(NOBODY, str(opened.http_address), ROW)[0] == 401
        assert ask_as(0, str(opened.http_address), ROW)[0] == 404
        changelog = opened.log.address
        with sf.Replica("app", log=changelog, state_dir=tmp_path / "copy", stores=[store]) as replica:
            with OpsServer(replica) as server:
                assert ask_as(NOBODY, server.address, ROW)[0] == 401
                assert ask_as(NOBODY, server.address, "/v1/status")[0] == 200
