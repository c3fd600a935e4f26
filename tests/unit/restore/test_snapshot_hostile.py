"""Snapshots beside objects of other programs, sizes that are not true, and prunes during a restore."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.replication.shapes import replace
from standfast.restore.snapshot import catalogue, fetch, one_store, prune, storage, upload
from standfast.restore.snapshot.catalogue import listed, names
from standfast.restore.snapshot.manifest import Snapshot, dump_snapshot
from standfast.restore.snapshot.names import INTENTS, file_key
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.place import find_snapshots
from standfast.restore.snapshot.planning import Judged, Retention
from standfast.restore.snapshot.storage import Storage
from standfast.store.clock import SystemClock
from standfast.store.errors import Corruption
from standfast.store.rocks.opening import RocksShared
from standfast.store.task.commit_record import CommitRecord
from standfast.store.task.task_stores import TaskStores
from support.sessions import Bench
from support.snapshots import STORE, checkpoint

ENDLESS_S = 60.0
KV = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]


@pytest.fixture
def to(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "snaps"), "app")


def stored(to: Storage, folder: Path, *rows: str) -> Snapshot:
    one, directory = checkpoint(folder, rows)
    assert upload.upload(to, one, directory, clock=SystemClock()).new
    return one


def restored(to: Storage, target: Path, step: fetch.Step = lambda snapshot, count: None) -> fetch.Restored:
    return fetch.restore_task(
        to, "0_0", target, target.with_name("scratch"), RocksShared(4 << 20), judge=lambda one: Judged(tail=0),
        step=step,
    )  # fmt: skip


def claimed(to: Storage, snapshot: Snapshot, size: int) -> Snapshot:
    """Store a newer manifest that claims another size of the largest file; its name is that of a later position."""
    shape = json.loads(dump_snapshot(snapshot))
    shape["position"] += 1
    shape["cut"]["positions"]["kv"]["offset"] += 1
    max(shape["files"], key=lambda file: file["bytes"])["bytes"] = size
    name = snapshot.name._replace(position=snapshot.position + 1)
    assert to.put_new(name.key, json.dumps(shape).encode())
    return snapshot


@pytest.mark.parametrize("size", [1, 1 << 62, 1 << 80, 10**400], ids=["1", "2^62", "2^80", "10^400"])
def test_a_claimed_size_that_is_not_true_is_found_before_anything_is_read(
    to: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    one = claimed(to, stored(to, tmp_path, "a"), size)
    parts: list[int] = []
    read = Storage.read_parts

    def counted(self: Storage, key: str, size: int) -> Any:
        parts.append(size)
        assert size < 1 << 30, "the ranges of such a file would fill the memory"
        return read(self, key, size)

    monkeypatch.setattr(Storage, "read_parts", counted)
    done = restored(to, tmp_path / "target")
    assert done.snapshot == one
    assert len(done.passed_over) == 1
    assert set(parts) <= {file.bytes for file in one.files}


def test_an_object_too_large_for_a_note_is_read_by_no_command(
    to: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = stored(to, tmp_path, "a")
    monkeypatch.setattr(storage, "NOTE_BYTES_MAX", len(dump_snapshot(one)))
    large = one.name._replace(position=9)
    for key in (large.key, f"{INTENTS}/large.json"):
        assert to.put_new(key, dump_snapshot(one) + b" " * 10)
    assert restored(to, tmp_path / "target").snapshot == one
    assert "none of ours" in listed(to).broken[large]
    done = prune.prune(to, Retention(1), clock=SystemClock())
    assert (done.plan.files, list(done.unread)) == ({}, [large])
    (tmp_path / "snaps/app" / large.key).unlink()
    assert prune.prune(to, Retention(1), clock=SystemClock()).plan.files == {}  # the intent may name any file


def next_one_while(to: Storage, folder: Path, rows: str) -> Callable[[Snapshot, int], None]:
    """While a snapshot is read for the first time, its owner stores another one, and a prune removes the first."""
    left = [rows]

    def step(snapshot: Snapshot, count: int) -> None:
        if left and not count:
            newer = stored(to, folder, *left.pop())
            prune.prune(to, Retention(1), clock=SystemClock())
            assert names(to) == [newer.name]

    return step


def test_a_restore_whose_snapshot_a_prune_removes_meanwhile_takes_the_newer_one(to: Storage, tmp_path: Path) -> None:
    first = stored(to, tmp_path / "owner", "a")
    done = restored(to, tmp_path / "target", next_one_while(to, tmp_path / "owner", "ab"))
    assert done.snapshot == listed(to).whole[0].snapshot
    assert list(done.passed_over) == [first.name]


def test_a_store_that_is_refilled_takes_the_newer_snapshot_too(to: Storage, tmp_path: Path) -> None:
    stored(to, tmp_path / "owner", "a")
    with closing(TaskStores(tmp_path / "lost", "app", "0_0", [STORE], RocksShared(4 << 20), now_ms=lambda: 0)) as lost:
        lost.commit(CommitRecord())
        done = one_store.refill(
            to, lost, ["kv"], tmp_path / "scratch", RocksShared(4 << 20),
            judge=lambda snapshot, store: Judged(), step=next_one_while(to, tmp_path / "owner", "ab"),
        )  # fmt: skip
        assert done.stores == {"kv": listed(to).whole[0].snapshot.name}
        assert len(list(lost.store("kv").all())) == 2


def test_snapshots_that_go_faster_than_they_can_be_read_are_given_up(to: Storage, tmp_path: Path) -> None:
    stored(to, tmp_path / "owner", "a")
    rows = iter(range(2, 99))

    def step(snapshot: Snapshot, count: int) -> None:
        if not count:
            stored(to, tmp_path / "owner", *map(str, range(next(rows))))
            prune.prune(to, Retention(1), clock=SystemClock())

    done = restored(to, tmp_path / "target", step)
    assert done.snapshot is None
    assert len(done.passed_over) == catalogue.LISTINGS_MAX


def test_the_first_damaged_file_ends_the_downloads_of_the_others(
    to: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, begun = stored(to, tmp_path, "a"), Barrier(2)
    damaged, endless = sorted(file_key(file.sha256) for file in one.files if file.bytes)[:2]
    ended: list[str] = []

    def parts(self: Storage, key: str, size: int) -> Iterator[bytes]:
        if key in (damaged, endless):
            begun.wait(10)
        if key == damaged:
            raise Corruption("it is damaged")
        try:
            until = time.monotonic() + ENDLESS_S  # not a number of parts, which an idle machine has done at once
            while time.monotonic() < until:
                yield b""
            raise AssertionError("the download went on")
        except GeneratorExit:
            ended.append(key)
            raise

    monkeypatch.setattr(Storage, "read_parts", parts)
    assert list(restored(to, tmp_path / "target").passed_over.values()) == ["it is damaged"]
    assert endless in ended


@pytest.fixture
def half(bench: Bench) -> str:
    """A storage with snapshots of two tasks, of which that of task 0_1 has lost a file."""
    policy = sf.SnapshotPolicy(to=str(bench.root / "snaps"))
    session = bench.active(stores=KV, partitions=(0, 1), snapshots=policy)
    for task in (0, 1):
        session.task(task).store("kv").put("a", f"{task}" * 1_000)
        session.task(task).commit()
        session.snapshot(task)
    session.close()
    storage = open_storage(policy.to, "app")
    one, other = (found.snapshot for found in listed(storage).whole)
    (bench.root / "snaps/app" / file_key(min(other.contents - one.contents))).unlink()
    return policy.to


def test_a_restore_into_a_folder_leaves_no_task_out_without_a_word(
    bench: Bench, half: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["snapshot", "restore", "--from", half, "--app", "app", "-o", str(bench.root / "then")]
    assert main(command) == 2
    assert "no whole snapshot of task 0_1" in capsys.readouterr().err
    assert not (bench.root / "then").exists()
    assert main([*command, "--task", "0_0"]) == 0
    assert (bench.root / "then/app/0_0/CURRENT").is_file()


def test_the_newest_snapshots_are_those_of_all_tasks_or_refused(half: str) -> None:
    with pytest.raises(Corruption, match="no whole snapshot of task 0_1"):
        find_snapshots(f"{half}/latest", "app")


@pytest.fixture
def foreign(to: Storage, tmp_path: Path) -> Snapshot:
    """A snapshot of ours, and a newer one that was copied here from another application."""
    one, directory = checkpoint(tmp_path, ("a",))
    upload.upload(to, one, directory, clock=SystemClock())
    other = open_storage(str(tmp_path / "snaps"), "other")
    two, directory = checkpoint(tmp_path / "other", ("a", "b"))
    upload.upload(other, replace(two, app="other"), directory, clock=SystemClock())
    shutil.copytree(tmp_path / "snaps/other", tmp_path / "snaps/app", dirs_exist_ok=True)
    assert len(names(to)) == 2
    return one


def test_a_snapshot_that_was_copied_from_another_application_is_never_the_newest(
    to: Storage, foreign: Snapshot, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = str(tmp_path / "snaps")
    (broken,) = listed(to).broken
    assert "it is of application 'other'" in listed(to).broken[broken]
    assert [str(found.name) for _, found in find_snapshots(f"{at}/latest", "app")] == [str(foreign.name)]
    with pytest.raises(Corruption, match="it is of application 'other'"):
        find_snapshots(f"{at}/{broken}", "app")
    command = ["snapshot", "restore", "--from", at, "--app", "app", "-o", str(tmp_path / "then")]
    assert main([*command, "--snapshot", str(broken)]) == 65
    assert "it is of application 'other'" in capsys.readouterr().err
    assert main(command) == 0
    assert [path.name for path in (tmp_path / "then").iterdir()] == ["app"]


def test_a_restore_into_a_folder_that_fails_leaves_no_file(
    to: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = stored(to, tmp_path, "a")
    largest = max(one.files, key=lambda file: file.bytes)
    (tmp_path / "snaps/app" / file_key(largest.sha256)).write_bytes(bytes(largest.bytes))
    then = tmp_path / "then"
    assert main(["snapshot", "restore", "--from", str(tmp_path / "snaps"), "--app", "app", "-o", str(then)]) == 65
    assert "is damaged" in capsys.readouterr().err
    assert list(then.iterdir()) == []


def test_a_schedule_says_why_its_prunes_remove_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    policy = sf.SnapshotPolicy(to=str(bench.root / "snaps"))
    session = bench.active(stores=KV, snapshots=policy)
    assert session._snapshots is not None
    tasks = bench.root / "snaps/app/tasks/0_1"
    tasks.mkdir(parents=True)
    (tasks / "0000000001-00000000000000000001.json").write_bytes(b"{")
    session._snapshots.prune()
    assert "no file is removed, since the manifest of 0_1/1-1 cannot be read" in caplog.text


def test_a_broken_snapshot_that_a_point_passes_over_is_said(
    to: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = stored(to, tmp_path, "a"), stored(to, tmp_path, "a", "b")
    (tmp_path / "snaps/app" / file_key(min(second.contents - first.contents))).unlink()
    command = ["snapshot", "restore", "--from", str(tmp_path / "snaps"), "--app", "app", "-o", str(tmp_path / "then")]
    assert main([*command, "--json"]) == 0
    (line,) = json.loads(capsys.readouterr().out)["restored"]
    assert line["snapshot"] == str(first.name)
    assert f"snapshot {second.name} of" in caplog.text and "passed over" in caplog.text
