"""The guard of the HTTP server: hosts, origins, tokens and roles, decided from a request's head."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.ops.security.audit import Audit
from standfast.ops.security.http_guard import GuardRules, HttpGuard, Refusal, role_needed
from standfast.ops.security.peer_uid import uid_of_peer
from standfast.ops.security.tokens import OWNER, READER, Actor, Role, Tokens
from standfast.store.clock import ManualClock

HOST = (b"host", b"127.0.0.1:8080")
TOKENS = """
[[tokens]]
name = "viewer"
role = "read"
token = "viewer-viewer-viewer"
[[tokens]]
name = "app"
role = "write"
stores = ["mine"]
token = "app-app-app-app-app"
[[tokens]]
name = "ops"
role = "admin"
token = "ops-ops-ops-ops-ops"
"""


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application behind the guard."""


def scope(method: str, path: str, *headers: tuple[bytes, bytes], host: bool = True) -> dict[str, Any]:
    head = [HOST, *headers] if host else [*headers]
    return {"type": "http", "method": method, "path": path, "headers": head, "client": ("127.0.0.1", 5)}


def as_(name: str) -> tuple[bytes, bytes]:
    return (b"authorization", f"Bearer {'-'.join([name] * (3 if name == 'viewer' else 5))}".encode())


@pytest.fixture
def guard(tmp_path: Path, clock: ManualClock) -> HttpGuard:
    path = tmp_path / "tokens.toml"
    path.write_text(TOKENS, encoding="utf-8")
    path.chmod(0o600)
    rules = GuardRules(origins=frozenset({"https://board.example"}), anyone=None)
    return HttpGuard(nothing, rules, Tokens(path), Audit(clock))


def reason(found: Actor | Refusal) -> str:
    return found.reason if isinstance(found, Refusal) else found.name


@pytest.mark.parametrize("path", ["/livez", "/startupz", "/readyz", "/metrics"])
def test_probes_and_metrics_need_no_token(guard: HttpGuard, path: str) -> None:
    assert guard.judge(scope("GET", path)) == READER
    assert reason(guard.judge(scope("POST", path))) == "NOAUTH"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/status", {"viewer", "app", "ops"}),
        ("GET", "/", {"viewer", "app", "ops"}),
        ("GET", "/v1/stores/mine/get", {"viewer", "app", "ops"}),
        ("GET", "/v1/stores/theirs/get", {"viewer", "ops"}),
        ("PUT", "/v1/assignment", {"app", "ops"}),
        ("PUT", "/v1/stores", {"app", "ops"}),
        ("DELETE", "/v1/schedule/5", {"app", "ops"}),
        ("POST", "/v1/drain", {"ops"}),
        ("POST", "/v1/wipe", {"ops"}),
        ("POST", "/v1/wipe/x", {"ops"}),
        ("POST", "/v1/verify", {"ops"}),
        ("POST", "/v1/snapshots", {"ops"}),
    ],
)
def test_role_and_store_decide(guard: HttpGuard, method: str, path: str, allowed: set[str]) -> None:
    found = {name: reason(guard.judge(scope(method, path, as_(name)))) for name in ("viewer", "app", "ops")}
    assert found == {name: name if name in allowed else "NOPERM" for name in found}
    assert reason(guard.judge(scope(method, path))) == "NOAUTH"
    assert reason(guard.judge(scope(method, path, (b"authorization", b"Bearer wrong")))) == "NOAUTH"


def test_without_tokens_whoever_reaches_the_server_is_who_the_rules_say(clock: ManualClock) -> None:
    server = HttpGuard(nothing, GuardRules(anyone=OWNER), Tokens(), Audit(clock))
    assert server.judge(scope("POST", "/v1/drain")) == OWNER
    server = HttpGuard(nothing, GuardRules(anyone=READER), Tokens(), Audit(clock))
    assert server.judge(scope("GET", "/v1/status")) == READER
    assert reason(server.judge(scope("PUT", "/v1/assignment"))) == "NOPERM"
    assert reason(server.judge(scope("GET", "/v1/status", (b"authorization", b"Bearer wrong")))) == "NOAUTH"


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_user_at_the_other_end_of_loopback_is_known(family: int, host: str) -> None:
    with socket.socket(family) as listening, socket.socket(family) as caller:
        listening.bind((host, 0))
        listening.listen()
        caller.connect(listening.getsockname()[:2])
        accepted, client = listening.accept()
        with accepted:
            server = accepted.getsockname()[:2]
            assert uid_of_peer(client[:2], server) == os.getuid()
            assert uid_of_peer((client[0], client[1] ^ 1), server) is None
            assert uid_of_peer(("nonsense", 5), server) is None
            caller.close()
            assert uid_of_peer(client[:2], server) is None  # a peer that hangs up has no user, not root


def test_without_a_token_only_users_on_the_list_are_let_in(clock: ManualClock, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with socket.create_connection(listening.getsockname()) as caller:
            request = scope("GET", "/v1/status")
            request |= {"client": caller.getsockname(), "server": listening.getsockname()}
            for uids, found in (({os.getuid()}, "owner"), ({os.getuid() + 1}, "NOAUTH"), (set(), "NOAUTH")):
                server = HttpGuard(nothing, GuardRules(uids=frozenset(uids)), Tokens(), Audit(clock))
                assert reason(server.judge(request)) == found
                assert server.judge(request | {"path": "/livez"}) == READER
                unknown = server.judge(request | {"client": ("127.0.0.1", 1)})
                assert isinstance(unknown, Refusal) and "user of the connection is unknown" in unknown.message


@pytest.mark.parametrize("host", [b"127.0.0.1", b"localhost:1", b"[::1]:8080", b"LOCALHOST"])
def test_host_of_this_machine_is_let_in(guard: HttpGuard, host: bytes) -> None:
    assert guard.judge(scope("GET", "/livez", (b"host", host), host=False)) == READER


@pytest.mark.parametrize(
    "hosts",
    [
        *([b"evil.example"], [b""], [], [b"localhost", b"localhost"], [b"127.0.0.1.evil.example"]),
        *([b"[::1].evil.example"], [b"[::1]evil.example:80"], [b"[::1"], [b"::1"], [b"localhost:80:80"]),
        *([b"localhost:80@evil.example"], [b"evil@localhost"], [b"localhost:evil"], [b"[localhost]"], [b"localhost/x"]),
    ],
)
def test_name_of_another_machine_gets_nothing(clock: ManualClock, hosts: list[bytes]) -> None:
    server = HttpGuard(nothing, GuardRules(hosts=frozenset({"ours.example"})), Tokens(), Audit(clock))
    request = scope("GET", "/livez", *((b"host", host) for host in hosts), host=False)
    assert reason(server.judge(request)) == "BAD_HOST"
    assert server.judge(scope("GET", "/livez", (b"host", b"ours.example:1"), host=False)) == READER


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ([], True),
        ([(b"origin", b"http://127.0.0.1:8080")], True),
        ([(b"origin", b"https://board.example")], True),
        ([(b"origin", b"http://127.0.0.1:9")], False),
        ([(b"origin", b"https://127.0.0.1:8080")], False),
        ([(b"origin", b"null")], False),
        ([(b"origin", b"http://evil.example")], False),
        ([(b"origin", b"https://board.example"), (b"origin", b"http://evil.example")], False),
        ([(b"sec-fetch-site", b"cross-site")], False),
        ([(b"sec-fetch-site", b"same-site")], False),
        ([(b"sec-fetch-site", b"same-origin")], True),
    ],
)
def test_only_our_own_page_may_change_something(
    guard: HttpGuard, headers: list[tuple[bytes, bytes]], allowed: bool
) -> None:
    assert reason(guard.judge(scope("POST", "/v1/drain", as_("ops"), *headers))) == ("ops" if allowed else "BAD_ORIGIN")
    assert reason(guard.judge(scope("GET", "/v1/status", as_("ops"), *headers))) == "ops"


def test_refusal_is_answered_as_json_and_audited_without_the_path_of_a_row(clock: ManualClock) -> None:
    audit = Audit(clock)
    server = HttpGuard(nothing, GuardRules(anyone=None), Tokens(), audit)
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("nobody reads")

    asyncio.run(server(scope("GET", "/v1/stores/secret-store/get"), receive, send))
    headers = dict(sent[0]["headers"])
    assert sent[0]["status"] == 401 and headers[b"www-authenticate"].startswith(b"Basic")
    assert json.loads(sent[1]["body"])["error"] == "NOAUTH"
    (event,) = audit.recent()
    assert (event.outcome, event.fields["reason"], event.fields["path"]) == ("refused", "NOAUTH", "/v1/stores")


@pytest.mark.parametrize(("status", "outcome"), [(200, "done"), (409, "failed")])
def test_change_is_audited_with_who_asked_and_how_it_ended(clock: ManualClock, status: int, outcome: str) -> None:
    audit = Audit(clock)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["actor"] == OWNER
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def call(*requests: tuple[str, str]) -> None:
        server = HttpGuard(app, GuardRules(), Tokens(), audit)
        for method, path in requests:
            await server(scope(method, path), None, ignore)  # type: ignore[arg-type]

    async def ignore(message: Any) -> None:
        """Drops the reply."""

    asyncio.run(call(("PUT", "/v1/assignment"), ("GET", "/v1/status"), ("POST", "/v1/heartbeat")))
    (event,) = audit.recent()
    assert (event.event, event.actor, event.outcome) == ("/v1/assignment", "owner", outcome)
    assert event.fields == {"method": "PUT", "status": status}


NAMES = st.one_of(st.sampled_from([b"host", b"Origin", b"authorization", b"sec-fetch-site"]), st.binary(max_size=20))
HEADERS = st.lists(st.tuples(NAMES, st.one_of(st.sampled_from([b"localhost", b"Basic e30="]), st.binary(max_size=60))))


@pytest.mark.slow
@given(headers=HEADERS, method=st.text(max_size=12), path=st.text(max_size=60).map(lambda text: "/" + text))
def test_any_head_is_let_in_or_refused(headers: list[tuple[bytes, bytes]], method: str, path: str) -> None:
    server = HttpGuard(nothing, GuardRules(anyone=None), Tokens(), Audit(ManualClock(0)))
    found = server.judge(scope(method, path, *headers, host=False))
    assert isinstance(found, Refusal) or (found == READER and path in ("/livez", "/startupz", "/readyz", "/metrics"))


def test_changes_need_at_least_the_role_write() -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "NONSENSE"):
        assert role_needed(method, "/anything") is Role.WRITE
