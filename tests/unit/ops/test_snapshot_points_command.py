"""`standfast snapshot restore` to a point, into a folder or under another name: documents, tables, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.command.command_line import main

KV = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
Run = Callable[..., tuple[int, dict[str, Any]]]


def session_of(root: Path, app: str = "app", directory: str = "a", tasks: int = 2) -> sf.Session:
    policy = sf.SnapshotPolicy(to=str(root / "snaps"), restore=False)
    session = sf.Session(app, log=f"sqlite:///{root}/log", state_dir=root / directory, stores=KV, partitions=tasks,
                         background=False, snapshots=policy)  # fmt: skip
    session.assign(active=range(tasks))
    session.wait_ready(30)
    return session


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two tasks, each with a snapshot at 2 and one more record."""
    session = session_of(tmp_path)
    for task in (0, 1):
        store = session.task(task).store("kv")
        store.put("a", "1", 1_000)
        store.put("b", "2", 2_000)
        session.task(task).commit()
        session.snapshot(task)
        store.put("a", "3", 3_000)
        session.task(task).commit()
    session.close()
    return tmp_path


@pytest.fixture
def run(root: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        at = ("--from", str(root / "snaps"), "--app", "app", "--log", f"sqlite:///{root}/log", "--json")
        code = main(["snapshot", "restore", *arguments, *at])
        return code, json.loads(capsys.readouterr().out)

    return run


def test_a_point_in_time_comes_into_a_folder(root: Path, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    then = str(root / "then")
    code, looked = run("-o", then, "--to-time", "3000", "-n")
    assert (code, [one["point"] for one in looked["restored"]]) == (0, [{"kv": 2}, {"kv": 2}])
    assert not (root / "then").exists()
    code, done = run("-o", then, "--task", "0_1", "--to-offset", "3")
    assert (code, done["folder"]) == (0, f"{then}/app")
    assert [(one["task"], one["point"], one["tail"], one["records"]) for one in done["restored"]] == [
        ("0_1", {"kv": 3}, 1, 1)
    ]
    assert main(["get", "kv", "a", "--offline", then, "--partition", "1"]) == 0
    assert "3" in capsys.readouterr().out


def test_an_application_gets_another_name(root: Path, run: Run) -> None:
    place = ("--as", "copy", "--state-dir", str(root / "b"))
    code, looked = run(*place, "--dry-run")
    assert (code, looked["dry_run"], looked["topics"]) == (0, True, ["copy-kv-changelog"])
    assert not (root / "b").exists()
    code, done = run(*place)
    assert (code, [(one["task"], one["rows"]) for one in done["restored"]]) == (0, [("0_0", 2), ("0_1", 2)])
    for directory in ("b", "cold"):
        session = session_of(root, "copy", directory)
        with session.task(1).store("kv").all() as rows:
            assert dict(rows) == {"a": "1", "b": "2"}
        session.close()


def test_tables_say_what_was_restored(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ["--from", str(root / "snaps"), "--app", "app", "--log", f"sqlite:///{root}/log"]
    assert main(["snapshot", "restore", *at, "-o", str(root / "then"), "--to-time", "9999"]) == 0
    told = capsys.readouterr().out
    assert "kv=3" in told
    assert f"restored into {root / 'then/app'}" in told
    assert main(["snapshot", "restore", *at, "--as", "copy", "--state-dir", str(root / "b")]) == 0
    assert "application app is restored as copy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--to-time", "1"], "never over a live application"),
        (["--to-offset", "1"], "never over a live application"),
        (["-o", "{}/then", "--to-offset", "2"], "name one with --task"),
        (["-o", "{}/then", "--task", "0_0", "--to-offset", "x"], "give N, or STORE=N"),
        (["-o", "{}/then", "--task", "0_0", "--to-offset", "1", "--to-offset", "2"], "names a store twice"),
        (["-o", "{}/then", "--task", "0_0", "--to-offset", "other=2"], "has the changelogs of kv"),
        (["-o", "{}/then", "--task", "0_0", "--to-offset", "1"], "the nearest point above is kv=2"),
        (["-o", "{}/then", "--task", "0_0", "--to-offset", "4"], "beyond its end 3"),
        (["-o", "{}/then", "--to-time", "noon"], "'noon' is not a time"),
        (["-o", "{}/then", "--task", "0_7"], "has no whole snapshot of task 0_7"),
        (["-o", "{}/then", "--snapshot", "0_0/1-2", "--snapshot", "0_0/1-3"], "two snapshots of one task"),
        (["-o", "{}/then", "--task", "0_1", "--snapshot", "0_0/1-2"], "--snapshot names task 0_0"),
        (["-o", "{}/snaps"], "makes a new folder and replaces none"),
        (["--as", "copy"], "--as needs the state directory"),
        (["--as", "app", "--state-dir", "{}/b"], "own name"),
        (["--as", "../copy", "--state-dir", "{}/b"], "is not usable"),
        (["--as", "copy", "--task", "0_0", "--state-dir", "{}/b"], "restores the whole application"),
        (["--as", "copy", "--snapshot", "0_0/9-9", "--state-dir", "{}/b"], "has no snapshot 0_0/9-9"),
        (["--as", "copy", "--to-time", "9999", "--state-dir", "{}/b"], "the nearest point below is kv=2"),
        (["--as", "copy", "--to-time", "9999", "--state-dir", "{}/b"], "source offsets are known at the point of a"),
    ],
)
def test_what_cannot_be_restored_is_refused_and_changes_nothing(
    root: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path for path in root.rglob("*") if path.is_file() and path.suffix not in (".db", ""))
    at = ["--from", str(root / "snaps"), "--app", "app", "--log", f"sqlite:///{root}/log"]
    assert main(["snapshot", "restore", *(one.replace("{}", str(root)) for one in arguments), *at]) == 2
    assert words in capsys.readouterr().err
    assert not (root / "then").exists()
    assert not (root / "b").exists()
    assert sorted(path for path in root.rglob("*") if path.is_file() and path.suffix not in (".db", "")) == before


def test_the_point_of_an_idle_application_is_that_of_its_last_snapshot(root: Path, run: Run) -> None:
    code, done = run("--as", "copy", "--to-time", "2500", "--state-dir", str(root / "b"))
    assert (code, [one["rows"] for one in done["restored"]]) == (0, [2, 2])
