"""Snapshots in a bucket that misbehaves: throttled, versioned, locked, away, with credentials that expire."""

from __future__ import annotations

import hashlib
import json
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from unit.stream.test_session_snapshots import KV, keeper_of, put, restored, rows

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.restore.snapshot.catalogue import listed, verify_files
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.planning import Retention
from standfast.restore.snapshot.prune import prune
from standfast.restore.snapshot.storage import Storage
from standfast.store.clock import SystemClock
from support.buckets import CREDENTIALS, OTHER_CREDENTIALS, Buckets, buckets
from support.fetched import Tool
from support.proxy import Proxy, Refusal, proxy
from support.sessions import Bench

pytestmark = pytest.mark.slow
LOCK = (
    "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention>"
    "<Mode>COMPLIANCE</Mode><Days>1</Days></DefaultRetention></Rule></ObjectLockConfiguration>"
)
VERSIONING = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"


@pytest.fixture
def server(s3_server: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Buckets]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with buckets(s3_server, tmp_path / "served") as server:
        yield server


@pytest.fixture
def versioned(s3_server: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Buckets]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with buckets(s3_server, tmp_path / "served", versioned=True) as server:
        server.ask("PUT", "versioning", VERSIONING)
        yield server


@pytest.fixture
def front(server: Buckets) -> Iterator[Proxy]:
    with proxy(server.port) as front:
        yield front


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("standfast.restore.snapshot.storage.PATIENCE_S", 1)


def files_of(storage: Storage) -> int:
    return len(storage.list("files"))


def test_throttled_requests_are_repeated_until_the_snapshot_is_whole(
    bench: Bench, server: Buckets, front: Proxy
) -> None:
    to = server.address("x", host=front.host)
    session = bench.active(stores=KV, snapshots=sf.SnapshotPolicy(to=to))
    put(session, "a")
    front.refusal = Refusal(503, "SlowDown", lambda number: number % 2 == 1)
    name = session.snapshot(0)
    assert front.refused > 10
    front.refusal = None
    storage = open_storage(server.address("x"), "app")
    (kept,) = listed(storage).whole
    assert (str(kept.snapshot.name), verify_files(storage, kept.snapshot)) == (name, [])


def test_a_slow_line_costs_a_download_its_time_and_not_its_patience(
    server: Buckets, front: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("standfast.restore.snapshot.storage.REQUEST_MIN_S", 1)
    content = random.Random(1).randbytes(6 << 20)
    (tmp_path / "up").write_bytes(content)
    open_storage(server.address("x"), "app").put_file("files/large", tmp_path / "up")
    front.bytes_per_s = 1 << 20  # a range takes four seconds
    slow = open_storage(server.address("x", host=front.host), "app", patience_s=1)
    slow.download("files/large", tmp_path / "down", len(content), hashlib.sha256(content).hexdigest())
    assert (tmp_path / "down").read_bytes() == content


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (403, "RequestTimeTooSkewed"), (500, "InternalError")])
def test_a_storage_that_refuses_for_long_is_named_with_its_code_and_disturbs_no_commit(
    bench: Bench, server: Buckets, front: Proxy, caplog: pytest.LogCaptureFixture, status: int, code: str
) -> None:
    to = server.address("x", host=front.host)
    session = bench.active(stores=KV, snapshots=sf.SnapshotPolicy(to=to, every_records=1))
    keeper, made = keeper_of(session), session.counters.snapshots.made
    keeper.round()
    put(session, "a")
    front.refusal = Refusal(status, code)
    keeper.round()
    put(session, "b")
    assert (made["failed"], rows(session)) == (1, {"a": "1", "b": "1"})
    assert code in caplog.text
    front.refusal = None
    bench.clock.advance(60_000)
    keeper.round()
    assert (made["failed"], made["made"]) == (1, 1)


@pytest.mark.usefixtures("impatient")
def test_credentials_that_expire_in_the_middle_of_an_upload_list_nothing_and_are_said(
    bench: Bench, server: Buckets, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session = bench.active(stores=KV, snapshots=sf.SnapshotPolicy(to=server.address("x"), every_records=1))
    keeper, made = keeper_of(session), session.counters.snapshots.made
    keeper.round()
    put(session, "a")
    expired = threading.Lock()  # held from the first file on, since files go beside each other

    def expire(file: Any) -> None:
        if expired.acquire(blocking=False):
            server.stop()
            server.start(OTHER_CREDENTIALS)

    monkeypatch.setattr(keeper, "_step", expire)
    keeper.round()
    assert (made["failed"], made["made"]) == (1, 0)
    assert "check address, network, rights and credentials" in caplog.text
    for secret in (CREDENTIALS["AWS_SECRET_ACCESS_KEY"], OTHER_CREDENTIALS["AWS_SECRET_ACCESS_KEY"], "AWS4-HMAC"):
        assert secret not in caplog.text
    put(session, "b")
    assert rows(session) == {"a": "1", "b": "1"}
    server.stop()
    server.start()
    storage = open_storage(server.address("x"), "app")
    assert files_of(storage) > 0, "the upload was broken off in its middle"
    assert listed(storage).whole == () and listed(storage).broken == {}
    bench.clock.advance(60_000)
    keeper.round()
    assert made["made"] == 1
    assert len(listed(storage).whole) == 1


@contextmanager
def token_service(given: dict[str, str]) -> Iterator[str]:
    """A service of short-lived credentials, as containers have it; `given` may change."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shape = {
                "AccessKeyId": given["AWS_ACCESS_KEY_ID"],
                "SecretAccessKey": given["AWS_SECRET_ACCESS_KEY"],
                "Token": "",  # the server knows none
                "Expiration": "2026-01-01T00:00:00Z",  # it is asked again for each request
            }
            content = json.dumps(shape).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *_args: object) -> None:
            """Log nothing."""

    service = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=service.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{service.server_address[1]}/credentials"
    finally:
        service.shutdown()
        service.server_close()
        thread.join()


def test_credentials_of_a_role_are_renewed_without_a_restart(
    bench: Bench, server: Buckets, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    (tmp_path / "token").write_text("of this machine")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
    given = dict(CREDENTIALS)
    with token_service(given) as service:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", service)
        session = bench.active(stores=KV, snapshots=sf.SnapshotPolicy(to=server.address("x")))
        put(session, "a")
        first = session.snapshot(0)
        server.stop()
        server.start(OTHER_CREDENTIALS)
        given |= OTHER_CREDENTIALS
        put(session, "b")
        second = session.snapshot(0)
        storage = open_storage(server.address("x"), "app")
        assert [str(kept.snapshot.name) for kept in listed(storage).whole] == [second, first]


def test_a_bucket_with_versions_shows_no_pruned_object_and_takes_it_again(
    bench: Bench, versioned: Buckets, tmp_path: Path
) -> None:
    to = versioned.address("x")
    session = bench.active(stores=KV, snapshots=sf.SnapshotPolicy(to=to))
    put(session, "a")
    session.snapshot(0)
    put(session, "b")
    newest = session.snapshot(0)
    storage = open_storage(to, "app")
    before = files_of(storage)
    done = prune(storage, Retention(1), clock=SystemClock())
    assert len(done.plan.snapshots) == 1 and done.plan.files
    assert files_of(storage) == before - len(done.plan.files)
    assert [str(kept.snapshot.name) for kept in listed(storage).whole] == [newest]
    assert any(path.is_file() for path in versioned.versions.rglob("*")), "the bucket keeps the former versions"
    assert not prune(storage, Retention(1), clock=SystemClock()).plan.files, "a removed file is no file any more"
    (gone, *_) = done.plan.files
    (tmp_path / "again").write_bytes(b"again")
    storage.put_file(f"files/{gone}", tmp_path / "again")
    assert storage.read(f"files/{gone}") == b"again", "a file that a later snapshot has once more is stored once more"
    session.close()
    second = bench.active("b", stores=KV, snapshots=sf.SnapshotPolicy(to=to))
    assert (rows(second), restored(second)["restored"]) == ({"a": "1", "b": "1"}, 1)


def test_a_locked_bucket_takes_snapshots_and_a_prune_that_it_refuses_is_said(
    bench: Bench, server: Buckets, caplog: pytest.LogCaptureFixture
) -> None:
    server.ask("PUT", "object-lock", LOCK)
    to = server.address("x")
    session = bench.active(stores=KV, snapshots=sf.SnapshotPolicy(to=to, every_records=1, keep=1))
    keeper, made = keeper_of(session), session.counters.snapshots.made
    keeper.round()
    for key in "abc":
        put(session, key)
        keeper.round()
        bench.clock.advance(3_600_000)
    assert (made["made"], made["failed"]) == (3, 0)
    said = [line.getMessage() for line in caplog.records if "old snapshots stay for now" in line.getMessage()]
    assert said and all("AccessDenied" in line and "object lock" in line for line in said)
    storage = open_storage(to, "app")
    assert len(listed(storage).whole) == 3 and listed(storage).broken == {}
    with pytest.raises(sf.Unavailable, match="object lock"):
        prune(storage, Retention(1), clock=SystemClock())
    assert len(listed(storage).whole) == 3
    session.close()
    second = bench.active("b", stores=KV, snapshots=sf.SnapshotPolicy(to=to))
    assert (rows(second), restored(second)["restored"]) == (dict.fromkeys("abc", "1"), 1)


def test_two_applications_with_one_prefix_see_and_prune_only_their_own(server: Buckets, bench: Bench) -> None:
    to = server.address("shared")
    session = bench.active(stores=KV, snapshots=sf.SnapshotPolicy(to=to))
    put(session, "a")
    session.snapshot(0)
    storage, other = open_storage(to, "app"), open_storage(to, "app-2")
    before = [one.key for one in (*storage.list("tasks"), *storage.list("files"))]
    assert listed(other).whole == ()
    assert other.put_new("files/" + "0" * 64, b"an orphan of the other")
    assert len(prune(other, Retention(1), clock=SystemClock()).plan.files) == 1
    assert [one.key for one in (*storage.list("tasks"), *storage.list("files"))] == before
    assert not prune(storage, Retention(1), clock=SystemClock()).plan.files


def test_an_application_starts_beside_a_storage_that_is_away_and_stores_its_first_snapshot_later(
    bench: Bench, server: Buckets, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for place in (
        "restore.snapshot.storage.PATIENCE_S",
        "stream.snapshots.care.START_PATIENCE_S",
        "stream.snapshots.beginning.PATIENCE_S",
    ):
        monkeypatch.setattr(f"standfast.{place}", 1)
    first = bench.active(stores=KV)
    put(first, "a")
    first.close()
    server.stop()
    policy = sf.SnapshotPolicy(to=server.address("x"), every_records=1)
    session = bench.active("b", stores=KV, snapshots=policy)
    assert (rows(session), restored(session)["failed"]) == ({"a": "1"}, 1)
    assert "restored from its changelogs alone" in caplog.text
    keeper, made = keeper_of(session), session.counters.snapshots.made
    keeper.round()
    put(session, "b")
    keeper.round()
    assert (made["failed"], made["made"]) == (1, 0)
    server.start()
    bench.clock.advance(60_000)
    keeper.round()
    assert (made["failed"], made["made"]) == (1, 1)


def test_a_storage_that_never_answers_is_given_up_and_holds_up_no_commit_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    for place in ("storage.PATIENCE_S", "storage.REQUEST_MIN_S"):
        monkeypatch.setattr(f"standfast.restore.snapshot.{place}", 4)
    monkeypatch.setattr("standfast.stream.snapshots.care.START_PATIENCE_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        to = f"s3://bucket/x?endpoint=http://127.0.0.1:{silent.getsockname()[1]}&region=us-east-1"
        session = bench.active(stores=KV, snapshots=sf.SnapshotPolicy(to=to, every_records=1))
        keeper = keeper_of(session)
        keeper.round()
        put(session, "a")
        round_of_snapshots = threading.Thread(target=keeper.round)
        round_of_snapshots.start()
        put(session, "b")
        assert round_of_snapshots.is_alive(), "a request waits for four seconds, a commit for none"
        assert rows(session) == {"a": "1", "b": "1"}
        round_of_snapshots.join(60)
        assert not round_of_snapshots.is_alive()
        assert session.counters.snapshots.made["failed"] == 1


def test_the_command_line_names_the_storage_and_never_a_wrong_secret(
    server: Buckets, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-and-secret")
    for verb in ("list", "verify", "prune"):
        assert main(["snapshot", verb, "--from", server.address("x"), "--app", "app"]) != 0
        said = "".join(capsys.readouterr())
        assert "s3://bucket/x/app" in said and "403" in said and "credentials" in said
        assert "wrong-and-secret" not in said and "AWS4-HMAC" not in said and "Traceback" not in said
