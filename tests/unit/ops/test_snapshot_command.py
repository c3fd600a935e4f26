"""`standfast snapshot` on a storage: each verb, its document, its exit code, and nothing removed by a dry run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.restore.snapshot.catalogue import listed
from standfast.restore.snapshot.names import file_key
from standfast.restore.snapshot.opening import open_storage
from support.sessions import Bench

KV = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(verb: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        at = "--to" if verb == "create" else "--from"
        code = main(["snapshot", verb, *arguments, at, str(tmp_path / "snaps"), "--app", "app", "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def written(bench: Bench, *keys: str, tasks: tuple[int, ...] = (0,)) -> None:
    session = bench.active(partitions=tasks, stores=KV)
    for number in tasks:
        for key in keys:
            session.task(number).store("kv").put(key, "1")
        session.task(number).commit()
    session.close()


def state(tmp_path: Path, name: str = "a") -> tuple[str, str]:
    return "--state-dir", str(tmp_path / name)


def test_closed_tasks_are_stored_listed_shown_and_restored(bench: Bench, run: Run, tmp_path: Path) -> None:
    written(bench, "a", "b", tasks=(0, 1))
    code, made = run("create", *state(tmp_path))
    assert code == 0
    assert [one["snapshot"] for one in made["created"]] == ["0_0/1-2", "0_1/1-2"]
    assert all(one["new"] and one["uploaded_bytes"] for one in made["created"])
    assert not any(one["new"] for one in run("create", *state(tmp_path))[1]["created"])
    code, found = run("list")
    assert (code, [one["snapshot"] for one in found["snapshots"]]) == (0, ["0_0/1-2", "0_1/1-2"])
    code, shown = run("show", "0_0/1-2")
    assert (code, shown["manifest"]["cut"]["positions"]["kv"]["offset"], shown["faults"]) == (0, 2, [])
    assert shown["manifest"]["format"] == "standfast.snapshot/1"

    code, looked = run("restore", *state(tmp_path, "b"), "--dry-run")
    assert (code, [one["snapshot"] for one in looked["restored"]]) == (0, ["0_0/1-2", "0_1/1-2"])
    assert not (tmp_path / "b/app/0_0").exists()
    code, done = run("restore", *state(tmp_path, "b"))
    assert code == 0
    assert [one["bytes"] > 0 for one in done["restored"]] == [True, True]
    again = bench.active("b", (0, 1), stores=KV)
    assert again.task(1).store("kv").get("b") == "1"
    assert not again.counters.restored_records
    again.close()
    assert [one["kept"] for one in run("restore", *state(tmp_path, "b"))[1]["restored"]] == [True, True]


def test_verify_finds_a_damaged_snapshot_and_restore_takes_the_one_before(
    bench: Bench, run: Run, tmp_path: Path
) -> None:
    written(bench, "a")
    run("create", *state(tmp_path))
    written(bench, "b")
    run("create", *state(tmp_path))
    newest, older = (one.snapshot for one in listed(open_storage(str(tmp_path / "snaps"), "app")).whole)
    assert run("verify")[0] == 0
    damaged = tmp_path / "snaps/app" / file_key(sorted(newest.contents - older.contents)[0])
    damaged.write_bytes(b"x" * len(damaged.read_bytes()))
    code, found = run("verify")
    assert code == 1
    assert [bool(one["faults"]) for one in found["verified"]] == [True, False]
    assert run("verify", str(older.name))[0] == 0
    shutil.rmtree(tmp_path / "a/app/0_0")
    code, done = run("restore", *state(tmp_path))
    assert (code, done["restored"][0]["snapshot"]) == (0, str(older.name))
    assert str(newest.name) in done["restored"][0]["passed_over"]


def test_a_prune_shows_first_and_keeps_the_newest(bench: Bench, run: Run, tmp_path: Path) -> None:
    for key in ("a", "b", "c"):
        written(bench, key)
        run("create", *state(tmp_path))
    code, looked = run("prune", "--keep", "1", "--dry-run")
    assert (code, len(looked["snapshots"])) == (0, 2)
    assert len(run("list")[1]["snapshots"]) == 3
    assert run("prune", "--keep", "1", "--keep-for", "1h")[1]["snapshots"] == []
    code, done = run("prune", "--keep", "1")
    assert (done["snapshots"], done["files"], done["bytes"]) == (looked["snapshots"], looked["files"], looked["bytes"])
    assert run("verify")[0] == 0


def test_tables_name_the_snapshots(bench: Bench, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(bench, "a")
    run("create", *state(tmp_path))
    at = ("--from", str(tmp_path / "snaps"), "--app", "app")
    for verb, word in (("list", "0_0/1-1"), ("verify", "whole"), ("prune", "0 snapshots")):
        assert main(["snapshot", verb, *at]) == 0
        assert word in capsys.readouterr().out
    assert main(["snapshot", "show", "0_0/1-1", *at]) == 0
    assert "app-kv-changelog" in capsys.readouterr().out


def test_a_running_instance_keeps_its_directory(bench: Bench, tmp_path: Path) -> None:
    bench.active(stores=KV)
    arguments = ["snapshot", "create", "--to", str(tmp_path / "snaps"), "--app", "app", *state(tmp_path)]
    assert main(arguments) == 73


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["create", "--app", "app"], "create takes NAME"),
        (["list", "--from", "/dev/shm/none"], "which application"),
        (["list", "--from", "/nowhere/at/all", "--app", "app"], "no snapshots of application 'app'"),
        (["show", "0_0", "--from", "{}", "--app", "app"], "not the name of a snapshot"),
        (["show", "0_0/1-1", "--from", "{}", "--app", "app"], "has no snapshot"),
        (["prune", "--from", "{}", "--app", "app", "--keep", "0"], "--keep is 0"),
        (["prune", "--from", "{}", "--app", "app", "--grace", "1ms"], "--grace is 1ms"),
        (["prune", "--from", "{}", "--app", "app", "--grace", "soon"], "expected a time"),
        (["list", "--from", "s3://k:hidden@b/x", "--app", "app"], "holds credentials"),
        (["restore", "--from", "{}", "--app", "app"], "which state directory"),
        (["restore", "--from", "{}", "--app", "app", "--task", "0_1", "--snapshot", "0_0/1-1"], "different tasks"),
    ],
)
def test_wrong_arguments_are_refused_with_the_fix(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "app").mkdir()
    code = main(["snapshot", *(one.format(tmp_path) if one == "{}" else one for one in arguments)])
    assert code == (78 if words == "holds credentials" else 2)
    said = capsys.readouterr().err
    assert words in said
    assert "hidden" not in said
