"""Changes of files: a watch hears of each before it happens, and may refuse it."""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast.store import files
from standfast.store.errors import Held, Unavailable
from standfast.store.task.state_dir import StateDir

Change = tuple[str, str]


class Ended(BaseException):
    """The end of a simulated process: no handler of the library may take it for an error."""


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[list[Change]]:
    found: list[Change] = []

    def watch(kind: str, path: Path) -> None:
        name = path.name
        stem, dot, rest = name.partition(".")
        found.append((kind, f"{stem}.*" if dot and rest.endswith(".tmp") else name))

    with files.WATCH.replaced(watch):
        yield found


def test_a_file_is_replaced_in_the_order_that_a_crash_survives(tmp_path: Path, heard: list[Change]) -> None:
    files.write_atomically(tmp_path / "INSTANCE", "one\n")
    assert heard == [
        ("create", "INSTANCE.*"),
        ("sync", "INSTANCE.*"),
        ("rename", "INSTANCE"),
        ("sync", tmp_path.name),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["INSTANCE"]


def test_each_change_of_an_opening_is_heard(tmp_path: Path, heard: list[Change]) -> None:
    state = StateDir(tmp_path, "app")
    task = state.task_path("0_1")
    task.mkdir()
    aside = state.set_aside("0_1", "wiped")
    assert aside is not None
    state.keep_aside(aside)
    state.drop_aside("0_1")
    state.close()
    kinds = [kind for kind, _ in heard]
    assert ("lock", "LOCK") in heard
    assert kinds[-2:] == ["truncate", "unlock"]
    assert {"make folder", "create", "rename", "sync", "remove"} <= set(kinds)


@pytest.mark.parametrize("kind", ["make folder", "create", "lock", "truncate", "sync", "rename"])
def test_a_refused_change_of_an_opening_is_our_error_and_the_next_opening_works(tmp_path: Path, kind: str) -> None:
    def refuse(what: str, path: Path) -> None:
        if what == kind and path.name != "0_1":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with files.WATCH.replaced(refuse), pytest.raises(Unavailable, match="No space left"):
        StateDir(tmp_path, "app")
    StateDir(tmp_path, "app").close()


def test_a_process_that_ended_changes_nothing_any_more(tmp_path: Path) -> None:
    ended = False

    def end(kind: str, path: Path) -> None:
        nonlocal ended
        ended = ended or kind == "rename"
        if ended:
            raise Ended

    (tmp_path / "INSTANCE").write_text("old\n", encoding="ascii")
    with files.WATCH.replaced(end), pytest.raises(Ended):
        files.write_atomically(tmp_path / "INSTANCE", "new\n")
    assert (tmp_path / "INSTANCE").read_text(encoding="ascii") == "old\n"
    assert len(list(tmp_path.glob("INSTANCE.*.tmp"))) == 1, "as after a kill"
    with files.WATCH.replaced(end), pytest.raises(Ended):
        files.clear(tmp_path)
    assert tmp_path.exists()


def test_a_world_keeps_the_locks_of_its_processes(tmp_path: Path) -> None:
    owners: list[int] = []

    def flock(handle: int, operation: int) -> None:
        if operation == fcntl.LOCK_UN:
            owners[:] = [one for one in owners if one != handle]
        elif owners:
            raise BlockingIOError
        else:
            owners.append(handle)

    with files.FLOCK.replaced(flock):
        state = StateDir(tmp_path, "app")
        with pytest.raises(Held):
            StateDir(tmp_path, "app")
        state.close()
        assert owners == []
        StateDir(tmp_path, "app").close()
