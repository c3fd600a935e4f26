"""The simulated storage of snapshots. Its contract: tests/system/storage/test_storage_contract.py."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator.calls import DirectCalls
from simulator.storage import SimBucket, opener
from standfast.restore.snapshot.address import OTHERS
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.storage import DamagedReads, Storage
from standfast.store.clock import ManualClock
from standfast.store.errors import Corruption, Unavailable

CONTENT = b"rows of a task"
SHA = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def bucket(clock: ManualClock) -> SimBucket:
    return SimBucket(DirectCalls(clock), clock.wall_ms)


@pytest.fixture
def storage(bucket: SimBucket) -> Storage:
    with OTHERS.added("sim", opener({"world": bucket})):
        return open_storage("sim://world", "app", patience_s=20)


def uploaded(storage: Storage, tmp_path: Path) -> Callable[[], bytes]:
    """Upload a file; the answer downloads it."""
    (tmp_path / "up").write_bytes(CONTENT)
    storage.put_file("files/one", tmp_path / "up")
    target = tmp_path / "down"

    def download() -> bytes:
        target.unlink(missing_ok=True)
        storage.download("files/one", target, len(CONTENT), SHA)
        return target.read_bytes()

    return download


def test_a_storage_that_does_not_answer_is_unavailable_after_its_patience(
    storage: Storage, bucket: SimBucket, clock: ManualClock
):
    assert storage.put_new("notes/a", b"1")
    bucket.away = True
    requests: list[Callable[[], object]] = [
        lambda: storage.put_new("notes/b", b"1"),
        lambda: storage.read("notes/a"),
        lambda: storage.list(""),
        lambda: storage.delete("notes/a"),
        storage.prove,
    ]
    for request in requests:
        before = clock.monotonic_ms()
        with pytest.raises(Unavailable, match="does not answer"):
            request()
        assert clock.monotonic_ms() - before >= 20_000
    bucket.away = False
    assert [one.key for one in storage.list("")] == ["notes/a"]


def test_an_object_that_vanished_and_damaged_bytes_are_corruption(storage: Storage, bucket: SimBucket, tmp_path: Path):
    download = uploaded(storage, tmp_path)
    assert download() == CONTENT
    bucket.damage("app/files/one", 3)
    with pytest.raises(Corruption, match="sha256"):
        download()
    bucket.lose("app/files/one")
    with pytest.raises(Corruption, match="missing"):
        download()


def test_reads_that_come_back_damaged_are_found_by_the_product_itself(storage: Storage, bucket: SimBucket):
    storage.check_reads()
    bucket.damages_reads = True
    with pytest.raises(DamagedReads):
        storage.check_reads()
    with pytest.raises(DamagedReads):
        storage.put_new("notes/a", b"1")


def test_the_time_of_an_object_is_the_time_of_the_world(storage: Storage, clock: ManualClock):
    for key in ("notes/a", "notes/b"):
        clock.advance(1_000)
        storage.put_new(key, b"1")
    first, second = storage.list("notes")
    assert (first.modified_ms, second.modified_ms) == (clock.wall_ms() - 1_000, clock.wall_ms())
