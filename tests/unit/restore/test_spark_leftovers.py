"""Folders of rebuilds and reports after a kill: files of an interrupted run do not refuse the next run."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from standfast.restore.files.manifest import FILE_NAME
from standfast.restore.spark.folder import Folder
from standfast.restore.spark.pipeline import check_out
from standfast.restore.spark.rebuild import check_target, orphans
from standfast.store.errors import InvalidRequest

# The process dies with the text in a temporary file, before the file has its name.
WRITER = """
import os, signal, sys
from standfast.restore.spark.folder import Folder
os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
Folder(sys.argv[1]).write(sys.argv[2], b"{}")
"""


def killed_while_writing(folder: Path, name: str) -> str:
    """The name of the file that a process killed in the middle of `Folder.write` leaves in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    before = {one.name for one in folder.iterdir()}
    ended = subprocess.run([sys.executable, "-P", "-c", WRITER, str(folder), name], check=False)
    assert ended.returncode == -signal.SIGKILL
    (left,) = {one.name for one in folder.iterdir()} - before
    assert left != name
    return left


def test_rebuild_goes_on_over_a_manifest_that_a_kill_left_without_its_name(tmp_path: Path) -> None:
    left = killed_while_writing(tmp_path, FILE_NAME)
    folder = Folder(str(tmp_path))
    check_target(folder)
    assert [one.name for one in orphans(folder)] == [left]


def test_pipeline_goes_on_over_files_that_kills_left_without_their_names(tmp_path: Path) -> None:
    killed_while_writing(tmp_path / "rebuilt/kv", FILE_NAME)
    killed_while_writing(tmp_path, "report.html")
    killed_while_writing(tmp_path, "summary.json")
    check_out(Folder(str(tmp_path)))


@pytest.mark.parametrize("name", ["precious", "precious.12345678.tmp", f"{FILE_NAME}.tmp", f"{FILE_NAME}.1234567x.tmp"])
def test_file_of_somebody_else_is_refused_and_is_no_orphan(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    folder = Folder(str(tmp_path))
    for check in (check_target, check_out):
        with pytest.raises(InvalidRequest, match="is not empty"):
            check(folder)
    assert list(orphans(folder)) == []


def test_complete_files_are_refused_beside_leftovers(tmp_path: Path) -> None:
    killed_while_writing(tmp_path / "kv", FILE_NAME)
    (tmp_path / "kv" / FILE_NAME).write_text("{}")
    with pytest.raises(InvalidRequest, match="holds a manifest already"):
        check_target(Folder(str(tmp_path / "kv")))
    killed_while_writing(tmp_path / "out", "summary.json")
    (tmp_path / "out/summary.json").write_text("{}")
    with pytest.raises(InvalidRequest, match="holds a report already"):
        check_out(Folder(str(tmp_path / "out")))
