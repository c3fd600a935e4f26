"""Files of object storage on this machine: fetched once, by store, and opened as the whole task would be."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast.replication.offsets import TaskId
from standfast.restore.spark.files import files_of, remove
from standfast.restore.spark.folder import Folder
from standfast.restore.spark.places import TaskPlace, open_place, read_database, stores_in
from standfast.restore.spark.task_files import wal_is_whole
from standfast.restore.verify.at_rest import StoreAtRest
from standfast.store.errors import InvalidRequest, StandfastError, Unavailable
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from standfast.store.rocks.wal import HEADER_BYTES, records, wal_files
from standfast.store.task.definitions_file import STORES_FILE, dump, parse
from support.s3 import Bucket, serving
from support.sessions import START_MS, Bench, four_stores

ROWS = 200


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with serving(tmp_path / "served") as bucket:
        yield bucket


@pytest.fixture
def task(bench: Bench, bucket: Bucket) -> TaskPlace:
    """A task of four stores in object storage: half of its rows in table files, half in the write-ahead log."""
    rng = random.Random(1)
    session = bench.active(stores=four_stores(), partitions=(0,))
    task = session.task(0)
    for half in range(2):
        for number in range(ROWS):
            at_ms = START_MS + number * 3_600_000
            task.store("kv").put(f"k{number:03}", rng.randbytes(100).hex(), at_ms)
            task.store("win").put(f"k{number % 7}", f"v{half}", at_ms, at_ms)
            task.store("ver").put(f"k{number % 7}", f"v{number}", at_ms)
        task.commit()
        if not half:
            task.stores.flush()
    # As a copy of a machine that lost its power: the log of the database has rows that no table file has.
    shutil.copytree(bench.root / "a/app/0_0", bucket.folder / "app/0_0", ignore=shutil.ignore_patterns("LOCK", "LOG*"))
    session.close()
    return TaskPlace("app", TaskId(0, 0), bucket.address("app/0_0"))


def rows_of(at_rest: StoreAtRest) -> list[tuple[object, ...]]:
    return list(at_rest.store.logical_rows())


def both(bucket: Bucket, place: TaskPlace, store: str) -> tuple[StoreAtRest, list[tuple[object, ...]]]:
    """The fetched store, and the rows of the same on this machine."""
    with open_place(TaskPlace("app", TaskId(0, 0), str(bucket.folder / "app/0_0")), store) as whole:
        rows = rows_of(whole)
        assert rows
        with open_place(place, store) as fetched:
            assert rows_of(fetched) == rows
            assert (fetched.position, fetched.times) == (whole.position, whole.times)
            return fetched, rows


@pytest.mark.parametrize("store", ["kv", "win", "ver"])
def test_store_is_read_from_its_own_files_and_the_log_alone(bucket: Bucket, task: TaskPlace, store: str) -> None:
    both(bucket, task, store)
    tables = {name for name in bucket.reads if name.endswith(".sst")}
    assert 0 < len(tables) < len(list((bucket.folder / "app/0_0").glob("*.sst")))


def test_what_stores_there_are_is_one_small_file(bucket: Bucket, task: TaskPlace) -> None:
    found = stores_in(task)
    assert found.keys() == {"kv", "win", "ses", "ver"}
    assert {one.known for one in found.values()} == {False}
    assert bucket.reads.keys() == {f"app/0_0/{STORES_FILE}"}
    assert bucket.bytes < 16 << 10


@pytest.mark.parametrize(("content", "fault"), [(None, "no file"), (b"{", "not readable"), (b"spoilt", "damaged")])
def test_without_that_file_the_database_tells_and_no_table_of_a_store_is_fetched(
    bucket: Bucket, task: TaskPlace, content: bytes | None, fault: str
) -> None:
    file = bucket.folder / "app/0_0" / STORES_FILE
    whole, raw = stores_in(task), file.read_bytes()
    if content is None:
        file.unlink()
    else:
        file.write_bytes(raw.replace(b'"logging": true', b'"logging": false') if content == b"spoilt" else content)
    found = stores_in(task)
    assert {name: one.definition for name, one in found.items()} == {
        name: one.definition for name, one in whole.items()
    }
    assert all(one.known and fault in one.note for one in found.values())
    assert found["kv"].position is not None
    assert sum(name.endswith(".sst") for name in bucket.reads) <= 1


def test_file_that_contradicts_the_database_is_an_error_that_names_both(bucket: Bucket, task: TaskPlace) -> None:
    file = bucket.folder / "app/0_0" / STORES_FILE
    stores = parse(file.read_bytes()).stores
    assert stores is not None
    file.write_text(dump(stores | {"kv": stores["kv"] | {"logging": False}}))
    with pytest.raises(InvalidRequest, match=r"STORES and its database have different definitions of kv .*False.*True"):
        read_database(task)
    with (
        pytest.raises(InvalidRequest, match="STORES and its database"),
        open_place(task, "kv", stores_in(task)["kv"].definition),
    ):
        pass
    file.write_text(dump({name: one for name, one in stores.items() if name != "ver"}))  # the file lacks that store
    with pytest.raises(InvalidRequest, match="different definitions of ver"):
        read_database(task)


def test_a_run_fetches_a_file_once_whoever_asks(bucket: Bucket, task: TaskPlace) -> None:
    place = TaskPlace(task.app, task.task, task.address, run="r1")
    for store in ("kv", "win", "ver", "kv"):
        both(bucket, place, store)
    read_database(place)
    assert set(bucket.reads.values()) - {bucket.reads[f"app/0_0/{STORES_FILE}"]} <= {1}
    assert max(count for name, count in bucket.reads.items() if not name.endswith(STORES_FILE)) == 1
    folder = Path(tempfile.gettempdir()) / f"standfast-files-{os.getuid()}"
    assert (folder / "r1").is_dir()
    remove("r1")
    assert not list(folder.iterdir())


def test_workers_of_one_machine_share_what_one_of_them_fetches(bucket: Bucket, task: TaskPlace) -> None:
    child = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[2]; "
        "from standfast.replication.offsets import TaskId; from standfast.restore.spark.places import *; "
        "place = TaskPlace('app', TaskId(0, 0), sys.argv[1], run='r2')\n"
        "with open_place(place, 'kv') as one: print(len(list(one.store.logical_rows())))"
    )
    workers = [
        subprocess.Popen([sys.executable, "-c", child, task.address, tempfile.gettempdir()], stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    assert {worker.communicate(timeout=120)[0] for worker in workers} == {f"{ROWS}\n".encode()}
    assert max(bucket.reads.values()) == 1


def test_what_was_uploaded_anew_is_not_mixed_with_what_was_there(bucket: Bucket, task: TaskPlace) -> None:
    place = TaskPlace(task.app, task.task, task.address, run="r3")
    both(bucket, place, "kv")
    engine = RocksEngine(bucket.folder / "app/0_0", shared=RocksShared(8 << 20))
    engine.write({"kv": {b"new": b"\0" * 8 + b"row"}})
    engine.close()
    _, rows = both(bucket, place, "kv")
    assert len(rows) == ROWS + 1


def test_file_that_is_replaced_while_it_is_read_is_an_error(bucket: Bucket, task: TaskPlace) -> None:
    with files_of(Folder(task.address), "") as files:
        (bucket.folder / "app/0_0/CURRENT").write_text("MANIFEST-000001000\n")
        with pytest.raises(Unavailable, match=r"CURRENT of .* was replaced meanwhile"):
            files.take(["CURRENT"])
        assert not (files.path / "CURRENT").exists()


def test_old_files_of_a_run_that_was_killed_go_and_those_in_use_stay(bucket: Bucket, task: TaskPlace) -> None:
    folder = Path(tempfile.gettempdir()) / f"standfast-files-{os.getuid()}"
    with files_of(Folder(task.address), "in-use"), files_of(Folder(task.address), "killed"):
        pass
    held = files_of(Folder(task.address), "in-use")
    with held:
        for run in ("in-use", "killed"):
            os.utime(folder / run, (0, 0))
        with files_of(Folder(task.address), "next"):
            assert {one.name for one in folder.iterdir()} == {"in-use", "next"}


def test_folder_of_another_user_s_making_is_refused(bucket: Bucket, task: TaskPlace, tmp_path: Path) -> None:
    folder = Path(tempfile.gettempdir()) / f"standfast-files-{os.getuid()}"
    folder.symlink_to(tmp_path)
    with pytest.raises(Unavailable, match="is not a folder of this user's own"), files_of(Folder(task.address), "r"):
        pass
    folder.unlink()
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with pytest.raises(Unavailable, match="is not a folder of this user's own"), files_of(Folder(task.address), "r"):
        pass


def test_damaged_files_say_what_they_say_of_a_directory_of_this_machine(bucket: Bucket, task: TaskPlace) -> None:
    """Never other rows: as in the directory itself, but that damage in files of other stores alone is not met."""
    rng, folder = random.Random(7), bucket.folder / "app/0_0"
    local = TaskPlace("app", TaskId(0, 0), str(folder))
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    whole = outcome(task, "kv")
    fetched = {name.rpartition("/")[2] for name in bucket.reads}
    tables = [name for name in sorted(kept) if name.endswith(".sst")]
    others = [name for name in tables if name not in fetched][:1]
    ours = [name for name in tables if name in fetched]
    logs = [path.name for path in (*folder.glob("MANIFEST-*"), *wal_files(folder))]
    for name in ["CURRENT", "rocksdict-config.json", *logs, *logs, *others, *ours]:
        content = bytearray(kept[name])
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        (folder / name).write_bytes(content)
        here, there = outcome(local, "kv"), outcome(task, "kv")
        assert there == (whole if name in others else here), name
        (folder / name).unlink()
        here, there = outcome(local, "kv"), outcome(task, "kv")
        assert there == here, name
        (folder / name).write_bytes(kept[name])


def outcome(place: TaskPlace, store: str) -> object:
    """The rows, or the kind of error."""
    try:
        with open_place(place, store) as at_rest:
            return at_rest.position, rows_of(at_rest)
    except StandfastError as error:
        return type(error)


def test_log_of_the_database_is_whole_only_with_every_checksum_right(bucket: Bucket, task: TaskPlace) -> None:
    raw = wal_files(bucket.folder / "app/0_0")[-1].read_bytes()
    assert wal_is_whole(b"")
    assert wal_is_whole(raw)
    assert wal_is_whole(raw, arrays_from=0)
    assert wal_is_whole(raw[:-1])  # a power loss within the last record
    found = list(records(raw))
    assert found
    rng = random.Random(3)
    for _ in range(4):
        at, length = rng.choice(found)
        damaged = bytearray(raw)
        damaged[at + HEADER_BYTES + rng.randrange(length)] ^= 1 << rng.randrange(8)
        assert not wal_is_whole(bytes(damaged))
        assert not wal_is_whole(bytes(damaged), arrays_from=0)
