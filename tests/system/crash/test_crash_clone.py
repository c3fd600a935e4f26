"""Kill -9 during the restore of an application under another name: never half a state that starts as whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import standfast as sf
from standfast.replication.tail.open_log import open_log
from standfast.restore.snapshot.catalogue import listed
from standfast.restore.snapshot.opening import open_storage
from standfast.store.errors import InvalidRequest
from support.crash.snapshot_child import APP, STORE, STORES, session_of
from support.places import SUPPORT

# Before anything is in the log, with the mark alone, amid its rows, and with the task in its place.
PLACES = ("snapshot.fetched:1", "clone.marked:1", "clone.rows:3", "clone.placed:1")
FURTHER = (
    "snapshot.download:1",
    "log.locked:1",
    "clone.topics:1",
    "clone.written:1",
    "clone.whole:1",
    "engine.written:1",
)
WITHIN_S = 60
pytestmark = [pytest.mark.crash, pytest.mark.slow]


def child(root: Path, directory: str, failpoint: str = "") -> subprocess.CompletedProcess[str]:
    given = {"root": str(root), "log": f"sqlite:///{root}/log", "name": "copy", "directory": directory, "batch": 7}
    return subprocess.run(
        [sys.executable, str(SUPPORT / "crash/clone_child.py"), json.dumps(given)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=WITHIN_S,
        check=False,
        env={**os.environ, "STANDFAST_FAILPOINT": failpoint},
    )


def opened(root: Path, directory: str) -> sf.Session:
    session = sf.Session(
        "copy",
        log=f"sqlite:///{root}/log",
        state_dir=root / directory,
        stores=STORES,
        partitions=1,
        background=False,
        take_over=False,
    )
    try:
        session.assign(active=[0])
        session.wait_ready(60)
    except BaseException:
        session.close()
        raise
    return session


def rows(session: sf.Session) -> dict[str, str]:
    with session.task(0).store(STORE).all() as found:
        return dict(found)


@pytest.mark.parametrize("place", [*PLACES, *(pytest.param(place, marks=pytest.mark.long) for place in FURTHER)])
def test_a_killed_restore_starts_nothing_and_is_completed_by_the_same_command(tmp_path: Path, place: str) -> None:
    with closing(session_of(tmp_path, "a")) as session:
        for number in range(40):
            session.task(0).store(STORE).put(f"k{number}", f"v{number}")
        session.task(0).commit()
        expected = rows(session)
        session.snapshot(0)
        session.task(0).store(STORE).put("later", "1")
        session.task(0).commit()
    name, _, times = place.partition(":")
    killed = child(tmp_path, "b", f"{name}=kill:{times}")
    assert killed.returncode == -signal.SIGKILL
    with closing(open_log(f"sqlite:///{tmp_path}/log")) as log:
        begun = "copy-standfast-restoring" in log.admin.topic_names()
        if not begun:
            assert "copy-kv-changelog" not in log.admin.topic_names()
    if begun:
        for directory in ("b", "elsewhere"):
            with pytest.raises(InvalidRequest, match="is being restored under this name"):
                opened(tmp_path, directory)
    completed = child(tmp_path, "b")
    assert (completed.returncode, completed.stdout[:4]) == (0, "done")
    for directory in ("b", "cold"):
        with closing(opened(tmp_path, directory)) as session:
            assert rows(session) == expected
    # The snapshots and the application that they are of have not changed.
    assert len(listed(open_storage(str(tmp_path / "snaps"), APP)).whole) == 1
    with closing(session_of(tmp_path, "a")) as session:
        assert rows(session) == {**expected, "later": "1"}
