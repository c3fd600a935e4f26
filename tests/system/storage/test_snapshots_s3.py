"""Snapshots in a bucket of a real server: put-if-absent, parts, outages, wrong credentials, a whole application."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from unit.stream.test_session_snapshots import KV, keeper_of, put, restored, rows

import standfast as sf
from standfast.restore.snapshot.catalogue import listed, verify_files
from standfast.restore.snapshot.names import file_key
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.planning import Retention
from standfast.restore.snapshot.prune import prune
from standfast.restore.snapshot.storage import PART_BYTES
from standfast.store.clock import SystemClock
from support.buckets import CREDENTIALS, Buckets, buckets
from support.fetched import Tool
from support.sessions import Bench

pytestmark = pytest.mark.slow


@pytest.fixture
def server(s3_server: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Buckets]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with buckets(s3_server, tmp_path / "served") as server:
        yield server


def test_of_many_that_create_one_object_exactly_one_does(server: Buckets) -> None:
    storage = open_storage(server.address("x"), "app")
    storage.prove()
    start = threading.Barrier(8)

    def create(number: int) -> bool:
        start.wait()
        return storage.put_new("tasks/0_0/one.json", b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(create, range(8)))
    assert done.count(True) == 1
    assert storage.read("tasks/0_0/one.json") == b"%d" % done.index(True)
    assert storage.list("probes") == []


@pytest.mark.parametrize("paced", [False, True])
def test_large_files_go_in_parts_and_come_back_whole(server: Buckets, tmp_path: Path, paced: bool) -> None:
    storage = open_storage(server.address("x"), "app")
    content = os.urandom(2 * PART_BYTES + 12_345)
    (tmp_path / "up").write_bytes(content)
    sha = hashlib.sha256(content).hexdigest()
    sent: list[int] = []
    storage.put_file(file_key(sha), tmp_path / "up", pace=sent.append if paced else None)
    assert sum(sent) == (len(content) if paced else 0)
    storage.download(file_key(sha), tmp_path / "down", len(content), sha)
    assert (tmp_path / "down").read_bytes() == content
    assert [one.bytes for one in storage.list("files")] == [len(content)]


def test_an_application_stores_prunes_and_begins_with_snapshots_of_a_bucket(bench: Bench, server: Buckets) -> None:
    to = server.address("state")
    first = bench.active(stores=KV, snapshots=sf.SnapshotPolicy(to=to))
    put(first, *(f"k{number}" for number in range(50)))
    first.snapshot(0)
    put(first, "k1", value="2")
    newest = first.snapshot(0)
    put(first, "new")
    first.close()
    storage = open_storage(to, "app")
    assert len(listed(storage).whole) == 2
    assert len(prune(storage, Retention(1), clock=SystemClock()).plan.snapshots) == 1
    (kept,) = listed(storage).whole
    assert str(kept.snapshot.name) == newest
    assert verify_files(storage, kept.snapshot) == []
    second = bench.active("b", stores=KV, snapshots=sf.SnapshotPolicy(to=to))
    assert rows(second) == {**{f"k{number}": "1" for number in range(50)}, "k1": "2", "new": "1"}
    assert restored(second)["restored"] == 1


def test_an_outage_of_the_storage_disturbs_no_commit_and_ends_with_a_snapshot(
    bench: Bench, server: Buckets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("standfast.restore.snapshot.storage.PATIENCE_S", 1)
    session = bench.active(stores=KV, snapshots=sf.SnapshotPolicy(to=server.address("x"), every_records=1))
    keeper, made = keeper_of(session), session.counters.snapshots.made
    keeper.round()
    put(session, "a")
    server.stop()
    keeper.round()
    put(session, "b")
    assert (made["failed"], rows(session)) == (1, {"a": "1", "b": "1"})
    server.start()
    bench.clock.advance(60_000)
    keeper.round()
    assert made["made"] == 1


def test_wrong_credentials_are_said_and_never_shown(
    bench: Bench, server: Buckets, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-and-secret")
    session = bench.active(stores=KV, snapshots=sf.SnapshotPolicy(to=server.address("x"), every_records=1))
    keeper_of(session).round()
    put(session, "a")
    keeper_of(session).round()
    with pytest.raises(sf.Unavailable, match="credentials") as refused:
        session.snapshot(0)
    assert "403" in str(refused.value)
    assert rows(session) == {"a": "1"}
    for text in (caplog.text, str(refused.value)):
        assert "wrong-and-secret" not in text
        assert "AWS4-HMAC" not in text


def test_a_bucket_that_is_not_there_is_said(server: Buckets) -> None:
    address = server.address("x").replace("s3://bucket", "s3://none")
    with pytest.raises(sf.Unavailable, match="s3://none/x/app"):
        open_storage(address, "app").prove()
