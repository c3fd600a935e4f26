"""`standfast restore --dry-run`: the plan is that of the next start, and nothing is written."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.restore.snapshot.catalogue import listed
from standfast.restore.snapshot.names import file_key
from standfast.restore.snapshot.opening import open_storage
from standfast.store.clock import ManualClock, SystemClock
from standfast.store.rocks.damage import Block, keep_noted
from support.sessions import DAY_MS, Bench

TEXT = sf.serde.string
KV = [sf.KeyValueStore("kv", TEXT, TEXT)]
Plan = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(autouse=True)
def present(clock: ManualClock) -> None:
    """Positions as of now: the command asks the system's clock how old they are."""
    clock.now_ms = SystemClock().wall_ms()


@pytest.fixture
def plan(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Plan:
    def plan(directory: str, *arguments: str, snapshots: bool = True) -> tuple[int, dict[str, Any]]:
        before = contents(tmp_path)
        where = ["--state-dir", str(tmp_path / directory), "--app", "app", "--log", bench.address]
        storage = ["--snapshots", str(tmp_path / "snaps")] if snapshots else []
        code = main(["restore", "--dry-run", *where, *storage, *arguments, "--json"])
        assert contents(tmp_path) == before, "a dry run has written something"
        return code, json.loads(capsys.readouterr().out)

    return plan


def contents(root: Path) -> dict[str, bytes]:
    """Every file but those of the log, whose reader keeps files of SQLite's own beside it."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.relative_to(root).parts[0].startswith("log")
    }


def policy(tmp_path: Path) -> sf.SnapshotPolicy:
    return sf.SnapshotPolicy(to=str(tmp_path / "snaps"))


def written(bench: Bench, tmp_path: Path, before: int, after: int) -> None:
    """`before` records, a snapshot, and `after` further ones."""
    session = bench.active(stores=KV, snapshots=policy(tmp_path))
    for number in range(before):
        session.task(0).store("kv").put(f"k{number}", "v" * 50)
    session.task(0).commit()
    session.snapshot(0)
    for number in range(after):
        session.task(0).store("kv").put(f"n{number}", "v" * 50)
    session.task(0).commit()
    session.close()


def store(found: dict[str, Any], task: int = 0) -> dict[str, Any]:
    one: dict[str, Any] = found["tasks"][task]["stores"][0]
    return one


def test_a_lost_directory_begins_with_the_snapshot_as_the_start_then_does(
    bench: Bench, plan: Plan, tmp_path: Path
) -> None:
    written(bench, tmp_path, 40, 7)
    code, found = plan("b")
    task = found["tasks"][0]
    assert (code, task["source"], task["snapshot"], task["records"]) == (0, "snapshot", "0_0/1-40", 7)
    assert (found["schema"], found["records"]) == ("standfast.restore-plan/2", 7)
    assert store(found) == {"store": "kv", "source": "snapshot", "reason": "resume", "records": 7, "message": ""}
    # The second partition has no directory, no snapshot and no record.
    assert [one["source"] for one in found["tasks"][1]["stores"]] == ["changelog"]
    again = bench.active("b", stores=KV, snapshots=policy(tmp_path))
    assert dict(again.counters.restored_records) == {("kv", 0, "resume"): 7}
    assert again.counters.snapshots.downloaded_bytes > 0


def test_good_local_state_is_used_and_only_its_tail_is_read(bench: Bench, plan: Plan, tmp_path: Path) -> None:
    written(bench, tmp_path, 40, 0)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b/app/LOCK").unlink()
    written(bench, tmp_path, 0, 9)
    code, found = plan("b")
    assert (code, store(found)["source"], store(found)["reason"], found["records"]) == (0, "local", "resume", 9)
    assert (found["tasks"][0]["snapshot"], found["tasks"][0]["local"]) == (None, "")


def test_a_store_that_is_too_old_begins_with_its_rows_of_a_newer_snapshot_as_the_start_then_does(
    bench: Bench, plan: Plan, tmp_path: Path
) -> None:
    bench.clock.now_ms -= 8 * DAY_MS  # changelogs keep deletes for seven days
    written(bench, tmp_path, 40, 0)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    bench.clock.advance(8 * DAY_MS)
    written(bench, tmp_path, 5, 3)
    code, found = plan("b")
    assert (code, store(found)["source"], store(found)["reason"]) == (0, "snapshot", "tombstones-expired")
    newest = listed(open_storage(str(tmp_path / "snaps"), "app")).whole[0].snapshot.name
    assert (found["tasks"][0]["snapshot"], newest.position, found["records"]) == (str(newest), 45, 3)
    assert store(plan("b", snapshots=False)[1])["source"] == "changelog"
    again = bench.active("b", stores=KV, snapshots=policy(tmp_path))
    assert dict(again.counters.restored_records) == {("kv", 0, "tombstones-expired"): 3}
    assert again.counters.snapshots.restores["store"] == 1


def test_a_snapshot_that_is_of_no_use_is_named_with_the_reason(bench: Bench, plan: Plan, tmp_path: Path) -> None:
    written(bench, tmp_path, 10, 0)
    written(bench, tmp_path, 5, 0)
    storage = open_storage(str(tmp_path / "snaps"), "app")
    newest, older = (one.snapshot for one in listed(storage).whole)
    for sha in newest.contents - older.contents:
        (tmp_path / "snaps/app" / file_key(sha)).unlink()
    code, found = plan("b")
    assert (code, found["tasks"][0]["snapshot"]) == (0, str(older.name))
    assert "is missing" in found["tasks"][0]["passed_over"][str(newest.name)]


def test_a_recreated_topic_is_read_from_its_beginning_and_no_snapshot_of_the_old_one_is_used(
    bench: Bench, plan: Plan, tmp_path: Path
) -> None:
    written(bench, tmp_path, 10, 0)
    bench.log.admin.delete_topic("app-kv-changelog")
    other = bench.active("c", stores=KV)
    other.task(0).store("kv").put("new", "1")
    other.task(0).commit()
    other.close()
    code, found = plan("b")
    assert (code, found["tasks"][0]["source"], found["records"]) == (0, "changelog", 1)
    assert "topic-recreated" in found["tasks"][0]["passed_over"]["0_0/1-10"]
    assert store(plan("a")[1])["reason"] == "topic-recreated"


def test_a_start_that_would_be_refused_is_a_negative_answer(bench: Bench, plan: Plan, tmp_path: Path) -> None:
    written(bench, tmp_path, 10, 0)
    bench.log.admin.delete_topic("app-kv-changelog")
    bench.active("c", stores=KV).close()
    code, found = plan("a")
    assert (code, store(found)["source"], store(found)["reason"]) == (1, "refused", "log-empty")
    assert "may be the last copy" in store(found)["message"]


def test_a_damaged_directory_is_said_to_be_of_no_use(bench: Bench, plan: Plan, tmp_path: Path) -> None:
    written(bench, tmp_path, 10, 0)
    (tmp_path / "a/app/0_0/CURRENT").unlink()
    found = plan("a")[1]
    assert "CURRENT is gone" in found["tasks"][0]["local"]
    assert found["tasks"][0]["source"] == "snapshot"
    assert store(plan("a", snapshots=False)[1])["source"] == "changelog"


def test_a_store_whose_damage_a_read_has_found_is_read_again_as_the_start_then_does(
    bench: Bench, plan: Plan, tmp_path: Path
) -> None:
    written(bench, tmp_path, 100, 0)
    table = max((tmp_path / "a/app/0_0").glob("*.sst"), key=lambda path: path.stat().st_size)
    content = bytearray(table.read_bytes())
    content[0] ^= 0xFF
    table.write_bytes(content)
    keep_noted(table.parent, [Block(table.name, 0, len(content), zlib.crc32(content))])
    found = store(plan("a", snapshots=False)[1])
    assert (found["source"], found["reason"], found["records"]) == ("changelog", "corrupt", 100)
    again = bench.active(stores=KV)
    assert dict(again.counters.restored_records) == {("kv", 0, "corrupt"): 100}


def test_the_table_says_sources_and_records(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(bench, tmp_path, 10, 2)
    where = ["--state-dir", str(tmp_path / "b"), "--app", "app", "--log", bench.address]
    assert main(["restore", "-n", *where, "--task", "0_0", "--snapshots", str(tmp_path / "snaps")]) == 0
    said = capsys.readouterr()
    assert "0_0 begins with snapshot 0_0/1-10" in said.out
    assert said.out.splitlines()[1].split() == ["0_0", "kv", "snapshot", "2", "resume"]
    assert "there is no directory with a database" in said.err
    assert not (tmp_path / "b").exists()


def test_a_snapshot_restore_plans_with_the_rest_of_the_log(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(bench, tmp_path, 10, 3)
    where = ["--from", str(tmp_path / "snaps"), "--app", "app", "--state-dir", str(tmp_path / "b"), "--json"]
    assert main(["snapshot", "restore", "-n", *where]) == 0
    assert json.loads(capsys.readouterr().out)["records"] is None
    assert main(["snapshot", "restore", "-n", *where, "--log", bench.address]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["records"], found["restored"][0]["snapshot"]) == (3, "0_0/1-10")
    assert found["restored"][0]["bytes"] > 0
    assert not (tmp_path / "b").exists()


def test_a_plan_names_what_it_lacks(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.log.address
    where = ["--state-dir", str(tmp_path / "b"), "--app", "app", "--log", bench.address]
    for arguments, words in (
        (["restore", "-n", *where], "neither a directory nor a snapshot has them"),
        (["restore", "-n", *where, "--task", "zero"], "--task is 'zero'"),
        (["restore", "-n", *where, "--snapshots", str(tmp_path / "none")], "has no snapshots of application 'app'"),
        (["restore", *where], "name a folder with a manifest by --from"),
        (["restore", "--from", str(tmp_path), "--snapshots", "x"], "leave them out"),
    ):
        assert main(arguments) == 2
        assert words in capsys.readouterr().err
