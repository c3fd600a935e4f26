"""The HTTP server of a supervisor whose workers never come to run(): health, guard, TLS, and its end.

Rules of this file: a real supervisor that the test drives by hand, on an embedded log; `sleep` is the program.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import standfast as sf
from standfast.ops.client.client import Client
from standfast.ops.shared.run_file import RUN_FILE, read_run_file
from standfast.store.clock import SystemClock
from standfast.stream.task.groups import TaskGroup
from standfast.stream.workers.command import Program
from standfast.stream.workers.supervisor import Supervisor
from support.serve import wait_for
from support.tls import Issue
from support.users import NOBODY, ask_as

pytestmark = pytest.mark.slow
TOKEN = "a-token-of-this-test"
Open = Callable[..., Supervisor]


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Open]:
    with ExitStack() as stack:

        def supervise(**options: Any) -> Supervisor:
            store = sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)
            given: Any = {"placement": "managed", "http_port": 0, **options}
            opened = Supervisor(
                "app",
                log=f"sqlite:///{tmp_path}/log",
                state_dir=tmp_path / "state",
                groups={0: TaskGroup(partitions=2, specs=(store,))},
                options=given,
                restart=sf.NoRestart(),
                workers=2,
                program=Program(("/bin/sleep", "100"), str(tmp_path)),
                clock=SystemClock(),
            )
            return stack.enter_context(opened)

        yield supervise


def test_instance_is_alive_and_not_ready_until_its_workers_have_its_tasks(supervise: Open) -> None:
    supervisor = supervise()
    client = Client.of_state_path(supervisor.state_path)
    assert supervisor.http_address == read_run_file(supervisor.state_path).address
    for path in ("/livez", "/startupz"):
        assert client.ask(path)[0] == 200
    status, answer = client.ask("/readyz")
    assert status == 503 and answer["reasons"] == ["the supervisor has not looked at the placement of tasks yet"]

    def waits() -> bool:
        supervisor.poll_once()
        return "task 0_1 is not open yet" in client.ask("/readyz")[1]["reasons"]

    wait_for(waits, 60)
    assert client.ask("/livez")[0] == 200
    document = client.get("/v1/status")
    assert not document["ready"] and document["tasks"] == [] and "task 0_0 is not open yet" in document["missing"]
    assert abs(document["at_ms"] - supervisor.clock.wall_ms()) < 60_000  # without it metrics have no age of a clock
    workers = document["worker_processes"]
    assert [(one["worker"], one["state"], one["active"], one["error"]) for one in workers] == [
        (1, "starting", [], ""),
        (2, "starting", [], ""),
    ]
    for where in ({}, {"partition": 1}):
        status, answer = client.ask("/v1/stores/kv/scan", where)
        assert status == 503 and "are in no worker yet" in answer["message"], answer
    assert "standfast_ready 0.0" in ask_as(0, str(supervisor.http_address), "/metrics")[1]
    assert (
        "RESTORING" in ask_as(0, str(supervisor.http_address), "/")[1]
        or "NOT READY" in ask_as(0, str(supervisor.http_address), "/")[1]
    )


def test_supervisor_that_makes_no_progress_is_not_alive(supervise: Open) -> None:
    supervisor = supervise(max_stall_ms=1_500)
    client = Client.of_state_path(supervisor.state_path)
    wait_for(lambda: client.ask("/livez")[0] == 503, 30)
    assert "the last round of the supervisor was" in client.ask("/livez")[1]["reasons"][0]
    supervisor.poll_once()
    assert client.ask("/livez")[0] == 200


def test_beyond_loopback_a_supervisor_speaks_tls_and_needs_a_token(
    supervise: Open, tmp_path: Path, issue: Issue
) -> None:
    pair = issue("supervisor", "IP:127.0.0.1")
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    token.chmod(0o600)
    tls = {"certificate": str(pair.certificate), "key_file": str(pair.key)}
    supervisor = supervise(http_host="0.0.0.0", http_token_file=str(token), http_tls=tls)
    assert read_run_file(supervisor.state_path).scheme == "https"
    port = urlsplit(str(supervisor.http_address)).port
    context = ssl.create_default_context(cafile=str(pair.certificate))

    def status_of(path: str, **headers: str) -> int:
        with closing(HTTPSConnection("127.0.0.1", port, timeout=10, context=context)) as connection:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status

    assert [status_of(path) for path in ("/livez", "/readyz", "/metrics")] == [200, 503, 200]
    rest = ("/", "/v1/status", "/v1/stores/kv/scan")
    assert [status_of(path) for path in rest] == [401, 401, 401]
    told = [status_of(path, Authorization=f"Bearer {TOKEN}") for path in rest]
    assert told[:2] == [200, 200] and told[2] in (409, 503)


def test_guard_on_loopback_is_that_of_a_session(supervise: Open) -> None:
    address = str(supervise().http_address)
    assert ask_as(NOBODY, address, "/v1/stores/kv/scan")[0] == 401
    assert ask_as(NOBODY, address, "/v1/status")[0] == 200
    assert json.loads(ask_as(0, address, "/", Host="evil.example")[1])["error"] == "BAD_HOST"


def test_server_ends_with_the_supervisor(supervise: Open) -> None:
    supervisor = supervise()
    address, path = str(supervisor.http_address), supervisor.state_path
    supervisor.close()
    assert not (path / RUN_FILE).exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", urlsplit(address).port or 0))
    assert supervise(http_port=urlsplit(address).port).http_address == address
