"""A process that forks: its child keeps no lock, all that it inherited is closed in it, and it harms nothing.

Rules of this file: each process that forks is a program of its own (`support/forking.py`), never pytest's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import standfast as sf
from standfast.replication.embedded.lock import SOON, LogLock
from standfast.store.task.state_dir import StateDir
from support import forking
from support.forking import answer, program

pytestmark = pytest.mark.slow


def end(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def session(folder: Path, address: str | None = None) -> sf.Session:
    return forking.session(str(folder), address or f"sqlite:///{folder}/log")


def test_forked_children_of_a_killed_process_keep_neither_the_directorys_lock_nor_the_logs(tmp_path: Path) -> None:
    with program("crowd", tmp_path) as parent:
        children = answer(parent)
        try:
            os.kill(parent.pid, signal.SIGKILL)
            parent.wait()
            began_s = time.monotonic()
            with session(tmp_path) as opened:
                opened.assign(active=[0])
                opened.wait_ready(30)
                opened.task(0).store("kv").put("k", "v", 1)
                opened.task(0).commit()
            assert time.monotonic() - began_s < 20  # beside a lock that a child kept, it ends with Held or Unavailable
        finally:
            end(children)


@pytest.mark.parametrize("how", ["exit", "with"])
def test_all_that_a_child_inherited_is_closed_in_it_and_its_end_changes_nothing(tmp_path: Path, how: str) -> None:
    with program("dead", tmp_path, f"sqlite:///{tmp_path}/log", how) as parent:
        found = answer(parent)
    assert set(found["calls"].values()) == {"Closed"}, found["calls"]
    assert found["code"] == 0
    assert found["seconds"] < 20  # no destructor waits for a thread of the parent
    assert found["rows"] == {"before": "1", "after": "2"}
    assert found["lease_process_lives"] and found["driver_folder_stays"]


def test_second_session_of_the_parent_opens_beside_a_child_of_the_first(tmp_path: Path) -> None:
    with program("again", tmp_path) as parent:
        child = answer(parent)
        try:
            assert answer(parent) == "opened again"
        finally:
            end([child])


def test_directory_is_unlocked_before_its_handle_is_closed_unless_it_was_lent(tmp_path: Path) -> None:
    """A copy of the handle stands for a process that was forked without the hooks of Python."""
    first = StateDir(tmp_path, "app")
    (handle,) = [int(path.name) for path in Path("/proc/self/fd").iterdir() if is_lock(path, first.path / "LOCK")]
    copy = os.dup(handle)
    first.close()
    second = StateDir(tmp_path, "app")
    lent = os.dup(second.lock)
    second.close()
    with pytest.raises(sf.Held, match=f"held by pid {os.getpid()}: stop that process"):
        StateDir(tmp_path, "app")
    os.close(lent)
    StateDir(tmp_path, "app").close()
    os.close(copy)


def is_lock(path: Path, lock: Path) -> bool:
    with contextlib.suppress(OSError):
        return path.readlink() == lock
    return False


def test_worker_that_outlives_its_owner_keeps_the_directory_and_is_named(tmp_path: Path) -> None:
    with program("lend", tmp_path) as owner:
        worker = answer(owner)
        try:
            owner.kill()
            owner.wait()
            with pytest.raises(sf.Held, match=f"is held by pid {worker}: stop that process"):
                StateDir(tmp_path, "app")
        finally:
            end([worker])
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s:
            with contextlib.suppress(sf.Held):
                return StateDir(tmp_path, "app").close()
    pytest.fail("the directory is held although its worker has ended")


def test_logs_lock_is_unlocked_before_its_file_is_closed(tmp_path: Path) -> None:
    lock = LogLock(str(tmp_path / "log"))
    with lock.take() as file:
        copy = os.dup(file.fileno())
        lock.leave()
    with lock.take(SOON):
        pass
    os.close(copy)


def test_lock_of_a_dead_process_in_a_child_without_the_hooks_is_that_of_the_child(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with path.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        kept = subprocess.Popen(["/bin/sleep", "60"], pass_fds=(file.fileno(),))
    try:
        with path.open("rb") as again:
            assert forking.holders(again.fileno()) == [kept.pid]
    finally:
        kept.kill()
        kept.wait()
