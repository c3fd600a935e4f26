"""Starts on folders of snapshots that were made, copied or removed by half: each ends soon, with every row.

Rules of this file: the changelog has all rows, so a snapshot that is of no use may cost time alone, and little of it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from standfast.restore.snapshot.catalogue import listed
from standfast.restore.snapshot.names import file_key
from standfast.restore.snapshot.opening import open_storage
from support.crash.snapshot_child import APP, STORE, session_of

pytestmark = pytest.mark.slow
START_S = 20
SNAPSHOTS = 3
ROWS = {f"k{number}": f"{SNAPSHOTS - 1}" for number in range(40)} | {"later": "1"}


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[: len(content) // 2])


def empty(path: Path) -> None:
    path.unlink()
    path.touch()


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def fill(root: Path) -> None:
    """Rows of an application, some after its last snapshot, and three snapshots in `root/snaps`."""
    with closing(session_of(root, "a")) as session:
        for value in range(SNAPSHOTS):
            for number in range(40):
                session.task(0).store(STORE).put(f"k{number}", f"{value}")
            session.task(0).commit()
            session.snapshot(0)
        session.task(0).store(STORE).put("later", "1")
        session.task(0).commit()


def check_start(root: Path, name: str) -> None:
    began = time.monotonic()
    with closing(session_of(root, name)) as session, session.task(0).store(STORE).all() as rows:
        assert dict(rows) == ROWS
    assert time.monotonic() - began <= START_S


def objects(root: Path) -> list[Path]:
    """The objects of the newest snapshot: its manifest, and a file of each kind."""
    newest = listed(open_storage(str(root / "snaps"), APP)).whole[0].snapshot
    kinds = {Path(file.name).suffix or file.name.partition("-")[0]: file for file in newest.files}
    folder = root / "snaps" / APP
    return [folder / newest.name.key, *(folder / file_key(one.sha256) for one in kinds.values())]


@pytest.mark.parametrize("damage", [Path.unlink, cut, empty, folder])
def test_start_ends_soon_where_an_object_of_the_newest_snapshot_is_half_made(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    fill(tmp_path)
    whole = tmp_path / "whole"
    shutil.copytree(tmp_path / "snaps", whole)
    for number, path in enumerate(objects(tmp_path)):
        damage(path)
        check_start(tmp_path, f"start-{number}")
        shutil.rmtree(tmp_path / "snaps")
        shutil.copytree(whole, tmp_path / "snaps")


@pytest.mark.parametrize("kept", ["tasks", "files", ""])
def test_start_ends_soon_where_half_of_the_folder_is_gone(tmp_path: Path, kept: str) -> None:
    fill(tmp_path)
    for part in (tmp_path / "snaps" / APP).iterdir():
        if part.name != kept:
            shutil.rmtree(part)
    check_start(tmp_path, "start")
