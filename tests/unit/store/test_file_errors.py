"""Refusals of the machine: no file descriptors, an impossible state directory, an invalid instance id."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import standfast as sf
from standfast.store.file_errors import file_error, out_of_descriptors
from standfast.store.rocks.errors import translate
from standfast.store.task.state_dir import StateDir
from support.places import SUPPORT


@pytest.mark.slow
def test_too_few_file_descriptors_are_told_wherever_the_session_meets_them(tmp_path: Path) -> None:
    child = SUPPORT / "descriptors_child.py"
    run = subprocess.run(
        [sys.executable, str(child), str(tmp_path)], capture_output=True, text=True, check=False, timeout=300
    )
    assert run.returncode == 0, run.stderr[-2_000:]
    found = json.loads(run.stdout)
    unexpected = [one for one in found if one[1] != "done" and not (one[2] == "Unavailable" and "ulimit -n" in one[3])]
    assert unexpected == []
    assert {one[1] for one in found} >= {"opening", "assigning", "done"}
    assert found[-1][1] == "done"


def test_rocksdb_without_descriptors_is_no_damage() -> None:
    text = "Corruption: IO error: While open a file for random read: 000012.sst: Too many open files"
    told = translate(Exception(text), "reading 'kv' of state/0_0")
    assert type(told) is sf.Unavailable
    assert "ulimit -n" in str(told) and "state/0_0" in str(told)
    assert not out_of_descriptors(1)


@pytest.mark.parametrize(
    ("number", "kind", "fix"),
    [
        (errno.EMFILE, sf.Unavailable, "ulimit -n"),
        (errno.ENFILE, sf.Unavailable, "ulimit -n"),
        (errno.ENOSPC, sf.Unavailable, "free space"),
        (errno.EROFS, sf.InvalidRequest, "mounted read-only"),
        (errno.EACCES, sf.InvalidRequest, "chown"),
        (errno.ENOTDIR, sf.InvalidRequest, "another folder"),
        (errno.EIO, sf.Unavailable, "check disk"),
    ],
)
def test_each_error_of_the_system_has_its_fix(number: int, kind: type[Exception], fix: str, tmp_path: Path) -> None:
    told = file_error(OSError(number, os.strerror(number)), "opening", tmp_path / "x")
    assert type(told) is kind
    assert fix in str(told) and str(tmp_path) in str(told)


def session(place: Path, log: Path) -> sf.Session:
    return sf.Session("app", log=f"sqlite:///{log}/log", state_dir=place, stores=[], background=False)


@pytest.mark.parametrize("below", ["", "deeper"])
def test_file_at_the_place_of_the_state_directory_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "state").write_text("precious")
    with pytest.raises(sf.InvalidRequest, match=r"state.*name another folder"):
        session(tmp_path / "state" / below, tmp_path)
    assert (tmp_path / "state").read_text() == "precious"
    assert not (tmp_path / "log").exists()


def test_read_only_state_directory_says_what_to_do(read_only: Path, tmp_path: Path) -> None:
    with pytest.raises(sf.InvalidRequest, match=r"mounted.*(mounted read-only: mount it for writing|chown)"):
        session(read_only / "state", tmp_path)


@pytest.mark.parametrize("held", ["ünstanz\n".encode(), b"\xff\xfe", b"", b"a b", b"a" * 500])
def test_instance_id_that_is_none_is_refused_and_stays(tmp_path: Path, held: bytes) -> None:
    StateDir(tmp_path, "app").close()
    path = tmp_path / "app" / "INSTANCE"
    path.write_bytes(held)
    with pytest.raises(sf.InvalidRequest, match=r"INSTANCE holds .*write its old content back, or remove the file"):
        StateDir(tmp_path, "app")
    assert path.read_bytes() == held
    path.unlink()
    again = StateDir(tmp_path, "app")
    assert again.instance_id
    again.close()
