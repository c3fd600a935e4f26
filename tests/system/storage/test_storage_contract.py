"""The contract of a storage of snapshots, on a folder, simulated, and on real servers of S3, Azure and Google.

Rules of this file: one application's name for each test, so that a server may be shared.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from unit.stream.test_session_snapshots import KV, put, restored, rows

import standfast as sf
from simulator.calls import DirectCalls
from simulator.storage import SimBucket, opener
from standfast.restore.snapshot.address import OTHERS
from standfast.restore.snapshot.catalogue import listed, verify_files
from standfast.restore.snapshot.names import file_key
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.planning import Retention
from standfast.restore.snapshot.prune import prune
from standfast.restore.snapshot.storage import PART_BYTES, RANGE_BYTES, Storage
from standfast.store.clock import ManualClock, SystemClock
from standfast.store.errors import Corruption
from support.clients import given_tool
from support.groups import costly
from support.sessions import Bench
from support.storages.fixtures import SERVERS
from support.storages.served import serving

pytestmark = pytest.mark.slow
NUMBERS = itertools.count()
SIZES = (0, 5, PART_BYTES, 2 * PART_BYTES + 12_345)


@pytest.fixture(scope="module", params=["folder", "simulated", *SERVERS])
@costly()
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a storage."""
    kind, folder = request.param, tmp_path_factory.mktemp(request.param)
    if kind == "folder":
        yield str(folder)
        return
    if kind == "simulated":
        bucket = SimBucket(DirectCalls(ManualClock(0)), SystemClock().wall_ms)
        with OTHERS.added("sim", opener({"contract": bucket})):
            yield "sim://contract"
        return
    with serving(kind, given_tool(request, kind), folder) as served, pytest.MonkeyPatch.context() as environment:
        for name, value in served.right.items():
            environment.setenv(name, value)
        yield served.address("some/prefix")


@pytest.fixture
def storage(place: str) -> Storage:
    return open_storage(place, f"app-{next(NUMBERS)}")


def written(path: Path, size: int, seed: int = 4711) -> tuple[bytes, str]:
    content = Random(seed).randbytes(size)
    path.write_bytes(content)
    return content, hashlib.sha256(content).hexdigest()


def test_the_start_probe_passes_and_leaves_nothing(storage: Storage) -> None:
    storage.prove()
    assert storage.list("") == []


def test_of_many_that_create_one_object_exactly_one_does(storage: Storage) -> None:
    start = threading.Barrier(8)

    def create(number: int) -> bool:
        start.wait()
        return storage.put_new("tasks/0_0/one.json", b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(create, range(8)))
    assert done.count(True) == 1
    assert storage.read("tasks/0_0/one.json") == b"%d" % done.index(True)


def test_an_object_is_created_once_and_by_the_same_content_again(storage: Storage) -> None:
    assert storage.put_new("notes/a", b"first")
    assert storage.put_new("notes/a", b"first"), "as a request that was repeated after a lost answer"
    assert not storage.put_new("notes/a", b"second")
    assert storage.read("notes/a") == b"first"
    storage.delete("notes/a")
    assert storage.put_new("notes/a", b"second")


@pytest.mark.parametrize("paced", [False, True])
def test_files_of_any_size_come_back_whole(storage: Storage, tmp_path: Path, paced: bool) -> None:
    for size in SIZES:
        content, sha = written(tmp_path / "up", size)
        sent: list[int] = []
        storage.put_file(file_key(sha), tmp_path / "up", pace=sent.append if paced else None)
        assert sum(sent) == (size if paced else 0)
        storage.download(file_key(sha), tmp_path / f"down-{size}", size, sha)
        assert (tmp_path / f"down-{size}").read_bytes() == content
    assert sorted(one.bytes for one in storage.list("files")) == sorted(SIZES)


def test_a_file_that_is_uploaded_twice_is_the_later_one(storage: Storage, tmp_path: Path) -> None:
    for size in (PART_BYTES + 1, 7, PART_BYTES + 2):
        content, _ = written(tmp_path / "up", size, seed=size)
        storage.put_file("files/one", tmp_path / "up")
        assert storage.read("files/one") == content
    assert len(storage.list("files")) == 1


def test_a_listing_has_the_objects_below_a_prefix_with_sizes_and_times(storage: Storage) -> None:
    keys = ["tasks/0_1/1-5.json", "tasks/0_10/1-5.json", "tasks/0_1/2-9.json", "intents/a.json"]
    before_ms = int(time.time() * 1_000)
    for number, key in enumerate(keys):
        assert storage.put_new(key, b"x" * number)
    found = storage.list("tasks/0_1")
    assert [(one.key, one.bytes) for one in found] == [("tasks/0_1/1-5.json", 0), ("tasks/0_1/2-9.json", 2)]
    assert [one.key for one in storage.list("tasks")] == sorted(keys[:3])
    assert storage.list("prunes") == []
    # Services say whole seconds.
    assert all(before_ms - 2_000 <= one.modified_ms <= time.time() * 1_000 + 2_000 for one in found)
    assert storage.head("tasks/0_1/2-9.json") == found[1]


def test_an_absent_object_is_none_and_its_removal_no_error(storage: Storage) -> None:
    assert storage.read("notes/none") is None
    assert storage.head("notes/none") is None
    storage.delete("notes/none")
    assert storage.put_new("notes/one", b"1")
    storage.delete("notes/one")
    storage.delete("notes/one")
    assert storage.read("notes/one") is None
    assert storage.list("notes") == []


def test_a_missing_short_long_or_other_file_is_damage(storage: Storage, tmp_path: Path) -> None:
    size = 2 * RANGE_BYTES + 9
    content, sha = written(tmp_path / "right", size)
    wrong = {
        "short": content[:-1],
        "shorter": content[:RANGE_BYTES],
        "empty": b"",
        "long": content + b"x",
        "other": content[: RANGE_BYTES + 1] + bytes(len(content) - RANGE_BYTES - 1),
    }
    for name, damaged in wrong.items():
        (tmp_path / name).write_bytes(damaged)
        storage.put_file(f"files/{name}", tmp_path / name)
    for name in (*wrong, "none"):
        with pytest.raises(Corruption):
            storage.download(f"files/{name}", tmp_path / f"down-{name}", size, sha)


def test_applications_and_prefixes_see_only_their_own_objects(storage: Storage, place: str) -> None:
    other = open_storage(place, f"{storage.where.rpartition('/')[2]}-2")
    assert storage.put_new("notes/a", b"mine")
    assert other.read("notes/a") is None
    assert other.list("notes") == []
    other.delete("notes/a")
    assert storage.read("notes/a") == b"mine"


def test_an_application_stores_prunes_and_begins_with_snapshots(bench: Bench, place: str) -> None:
    to = f"{place}/whole" if "?" not in place else place.replace("?", "/whole?")
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
