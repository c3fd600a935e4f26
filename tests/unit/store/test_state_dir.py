"""The state directory: its owner, its markers, set-aside parts; foreign ones are refused and stay untouched."""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast.store.errors import Held, InvalidRequest
from standfast.store.files import WATCH
from standfast.store.task.state_dir import MARKER, StateDir, check_marker, write_marker
from support.stores import Open, keyvalue

HOLD_APPLICATION = """
import sys
from standfast.store.task.state_dir import StateDir
held = StateDir(sys.argv[1], "app")
print("held", flush=True)
sys.stdin.read()
"""
HOLD_TASK = """
import sys
from pathlib import Path
from standfast.store import serde
from standfast.store.rocks.opening import RocksShared
from standfast.store.specs import KeyValueStore
from standfast.store.task.task_stores import TaskStores
spec = KeyValueStore("kv", serde.string, serde.string)
held = TaskStores(Path(sys.argv[1]), "app", "0_0", [spec], RocksShared(8 << 20), now_ms=lambda: 0)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the parameter's lock, until the test ends or kills it."""
    command = [sys.executable, "-c", request.param, str(tmp_path / "0_0" if request.param == HOLD_TASK else tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


@pytest.mark.slow
@pytest.mark.parametrize("holder", [HOLD_APPLICATION], indirect=True)
def test_a_second_process_is_told_the_pid_of_the_first(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    with pytest.raises(Held, match=rf"{re.escape(str(tmp_path / 'app'))} is held by pid {holder.pid}: stop that"):
        StateDir(tmp_path, "app")
    other = StateDir(tmp_path, "other")  # another application beside it is fine
    other.close()
    holder.kill()
    holder.wait()
    StateDir(tmp_path, "app").close()  # the lock of a killed process is free at once


@pytest.mark.slow
@pytest.mark.parametrize("holder", [HOLD_TASK], indirect=True)
def test_a_second_process_on_a_tasks_database_is_told_the_pid(
    holder: subprocess.Popen[str], tmp_path: Path, open_task: Open
) -> None:
    with pytest.raises(Held, match=rf"process {holder.pid} holds it"):
        open_task(keyvalue())


def test_a_second_owner_in_the_same_process_is_held_too(tmp_path: Path) -> None:
    first = StateDir(tmp_path, "app")
    with pytest.raises(Held):
        StateDir(tmp_path, "app")
    first.close()
    first.close()
    StateDir(tmp_path, "app").close()


def test_the_instance_id_is_kept_over_restarts(tmp_path: Path) -> None:
    first = StateDir(tmp_path, "app")
    first.close()
    again = StateDir(tmp_path, "app")
    again.close()
    assert again.instance_id == first.instance_id
    assert re.fullmatch(r"[0-9a-f]{12}", again.instance_id)


@pytest.mark.parametrize("app", ["../x", "a/b", "", "."])
def test_no_application_name_leaves_the_directory(tmp_path: Path, app: str) -> None:
    with pytest.raises(InvalidRequest):
        StateDir(tmp_path / "state", app)
    assert contents(tmp_path) == {}


FOREIGN = {
    "newer": (json.dumps({"format": 2, "app": "app", "task": None}), r"format 2, .* knows up to 1: run the version"),
    "other": (json.dumps({"format": 1, "app": "theirs", "task": None}), r"belongs to application 'theirs', not to"),
    "task": (json.dumps({"format": 1, "app": "app", "task": "0_1"}), r"belongs to application 'app', task 0_1, not"),
    "torn": ("{", r"is not readable"),
    "list": ("[]", r"is not readable"),
    "no format": ("{}", r"is not readable"),
}


@pytest.mark.parametrize(("marker", "told"), FOREIGN.values(), ids=FOREIGN)
def test_a_directory_of_another_is_refused_and_stays_as_it_was(tmp_path: Path, marker: str, told: str) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / MARKER).write_text(marker)
    before = contents(tmp_path)
    with pytest.raises(InvalidRequest, match=told):
        StateDir(tmp_path, "app")
    assert contents(tmp_path) == before


def test_a_foreign_database_is_refused_and_stays_as_it_was(tmp_path: Path, open_task: Open) -> None:
    for place in (tmp_path / "app", tmp_path / "0_0"):
        place.mkdir()
        for name in ("CURRENT", "LOCK"):
            (place / name).write_text("theirs")
    before = contents(tmp_path)
    with pytest.raises(InvalidRequest, match=rf"RocksDB that standfast did not make .*no {MARKER} marker"):
        StateDir(tmp_path, "app")
    with pytest.raises(InvalidRequest, match="standfast did not make"):
        open_task(keyvalue())
    assert contents(tmp_path) == before


def test_a_task_of_another_application_is_refused(tmp_path: Path, open_task: Open) -> None:
    open_task(keyvalue(), app="theirs").close()
    before = contents(tmp_path)
    with pytest.raises(InvalidRequest, match=r"belongs to application 'theirs', task 0_0, not to application 'app'"):
        open_task(keyvalue())
    assert contents(tmp_path) == before


def test_a_marker_is_written_once_and_recognised(tmp_path: Path) -> None:
    assert not check_marker(tmp_path, "app", "0_0")
    write_marker(tmp_path, "app", "0_0")
    written = (tmp_path / MARKER).read_bytes()
    write_marker(tmp_path, "other", "0_0")
    assert (tmp_path / MARKER).read_bytes() == written
    assert check_marker(tmp_path, "app", "0_0")


def test_directories_are_set_aside_whole_until_they_are_dropped(tmp_path: Path) -> None:
    state = StateDir(tmp_path, "app")
    for task in ("0_0", "0_1"):
        state.task_path(task).mkdir()
        write_marker(state.task_path(task), "app", task)
        (state.task_path(task) / "000001.sst").write_text(task)
    assert state.set_aside("0_9", "absent") is None
    moved = state.set_aside("0_0", "state-lost")
    assert moved is not None
    assert (moved / "000001.sst").read_text() == "0_0"
    assert moved.name.startswith("0_0.state-lost.")
    assert (state.tasks(), state.aside("0_0"), state.aside("0_1")) == (["0_1"], [moved], [])
    assert state.drop_aside("0_0") == [moved]
    assert (state.aside("0_0"), state.tasks()) == ([], ["0_1"])
    state.close()


def test_a_disk_that_became_read_only_does_not_keep_the_lock(tmp_path: Path) -> None:
    held = StateDir(tmp_path, "app")

    def refuse(kind: str, path: Path) -> None:
        if kind == "truncate":
            raise OSError(errno.EROFS, "Read-only file system", str(path))

    with WATCH.replaced(refuse):
        held.close()
    StateDir(tmp_path, "app").close()
