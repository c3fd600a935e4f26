"""The run directory of a sidecar: its owner, the links followed in it, and the files removed from it."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from standfast.ops.shared.serve_files import INFO_NAME, TOKEN_NAME, RunDir, read_info
from standfast.store.errors import BadConfig, Held, InvalidRequest
from standfast.store.files import write_atomically
from standfast.store.task.state_dir import StateDir, check_marker

if TYPE_CHECKING:
    from support.resp import RespBench

OTHER_UID = 61_234


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run"


def names(folder: Path) -> set[str]:
    return {one.name for one in folder.iterdir()}


def test_directory_is_made_for_its_owner_alone(path: Path) -> None:
    run = RunDir(path)
    run.write_info({"pid": os.getpid()}, "secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((path / INFO_NAME).stat().st_mode) == 0o600
    assert read_info(path)["token"] == "secret"
    run.close()
    assert names(path) == {"LOCK"}


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777, 0o720])
def test_directory_that_others_can_write_is_refused_and_stays_as_it_is(path: Path, mode: int) -> None:
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(BadConfig, match=rf"run directory {path}: .*{mode & 0o7777:04o}.*chmod 0700 {path}"):
        RunDir(path)
    assert not names(path)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_own_directory_that_was_opened_to_others_is_closed_to_them(path: Path) -> None:
    RunDir(path).close()
    path.chmod(0o2770)  # as a volume's group makes all folders of a volume
    RunDir(path).close()
    assert stat.S_IMODE(path.stat().st_mode) & 0o777 == 0o700


def test_directory_of_another_user_is_refused(path: Path) -> None:
    if os.getuid() != 0:
        return
    path.mkdir(mode=0o700)
    os.chown(path, OTHER_UID, -1)
    with pytest.raises(BadConfig, match=f"user {OTHER_UID}, not to this user.*serve.run_dir"):
        RunDir(path)
    assert not names(path)


def test_link_in_the_place_of_the_directory_is_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadConfig, match="is a symbolic link"):
        RunDir(path)
    assert not names(tmp_path / "elsewhere")
    path.unlink()
    path.write_text("mine")
    with pytest.raises(BadConfig, match="is not a directory"):
        RunDir(path)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("planted", ["LOCK", INFO_NAME, TOKEN_NAME])
def test_planted_link_is_neither_followed_nor_removed(path: Path, tmp_path: Path, planted: str) -> None:
    path.mkdir(mode=0o700)
    target = tmp_path / "target"
    target.write_text("theirs")
    (path / planted).symlink_to(target)
    with pytest.raises(BadConfig, match=rf"{planted} .*not a file of this sidecar"):
        RunDir(path)
    assert target.read_text() == "theirs"
    assert (path / planted).is_symlink()


@pytest.mark.parametrize(("name", "text"), [("LOCK", "9"), (INFO_NAME, '{"mine": 1}'), (TOKEN_NAME, "mine")])
def test_file_of_somebody_else_is_neither_changed_nor_removed(path: Path, name: str, text: str) -> None:
    path.mkdir(mode=0o700)
    (path / name).write_text(text)
    with pytest.raises(BadConfig, match=rf"{name} .*not a file of this sidecar"):
        RunDir(path)
    assert (path / name).read_text() == text


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
@pytest.mark.parametrize("name", ["LOCK", INFO_NAME, TOKEN_NAME])
def test_what_is_no_file_is_refused_and_stays(path: Path, name: str, make: Callable[[Path], None]) -> None:
    path.mkdir(mode=0o700)
    make(path / name)
    with pytest.raises(BadConfig, match=rf"{name} .*not a file of this sidecar"):
        RunDir(path)
    assert names(path) >= {name}


def test_what_a_killed_process_left_is_removed_at_the_start(path: Path) -> None:
    RunDir(path).close()
    (path / INFO_NAME).write_text(json.dumps({"schema": "standfast.serve/1", "pid": 1}))
    (path / TOKEN_NAME).write_text("a" * 43 + "\n")
    run = RunDir(path)
    assert names(path) == {"LOCK"}
    run.close()


def test_planted_name_of_the_temporary_file_is_not_followed(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("theirs")
    run = RunDir(path)
    for name in (INFO_NAME, TOKEN_NAME):
        (path / f"{name}.tmp").symlink_to(target)
    run.write_info({"pid": os.getpid()}, "secret", group=None)
    run.close()
    assert target.read_text() == "theirs"
    assert names(path) == {"LOCK", f"{INFO_NAME}.tmp", f"{TOKEN_NAME}.tmp"}


def test_file_that_cannot_be_replaced_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="folder"):
        write_atomically(tmp_path / "folder", "text")
    assert names(tmp_path) == {"folder"}


def test_closing_removes_only_the_socket_that_was_made_here(path: Path) -> None:
    run = RunDir(path)
    (path / "resp.sock").write_text("mine")
    run.close()
    assert (path / "resp.sock").read_text() == "mine"
    (path / "resp.sock").unlink()
    run = RunDir(path)
    with socket.socket(socket.AF_UNIX) as ours:
        ours.bind(str(path / "resp.sock"))
        run.made("resp.sock")
        run.close()
    assert names(path) == {"LOCK"}
    run = RunDir(path)
    with socket.socket(socket.AF_UNIX) as ours, socket.socket(socket.AF_UNIX) as theirs:
        ours.bind(str(path / "resp.sock"))
        run.made("resp.sock")
        (path / "resp.sock").rename(path / "moved")
        theirs.bind(str(path / "resp.sock"))
        run.close()
    assert names(path) == {"LOCK", "resp.sock", "moved"}


def test_socket_at_which_another_program_listens_is_not_taken_over(resp_bench: RespBench, tmp_path: Path) -> None:
    server = resp_bench.open()
    taken = tmp_path / "taken"
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(taken))
        theirs.listen()
        with pytest.raises(Held, match=r"another program listens at .*taken"):
            resp_bench.run(server.open(taken))
        assert taken.is_socket()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as theirs:
        theirs.bind(str(tmp_path / "datagrams"))
        with pytest.raises(Held, match="another program"):
            resp_bench.run(server.open(tmp_path / "datagrams"))


def test_socket_that_another_user_left_is_not_removed(
    resp_bench: RespBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "left"
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(left))
    server = resp_bench.open()
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_UID)  # as only root can give a socket away
    with pytest.raises(Held, match=rf"left is a socket of another user \({os.getuid()}\)"):
        resp_bench.run(server.open(left))
    assert left.is_socket()


def test_server_removes_only_the_socket_that_it_made(resp_bench: RespBench) -> None:
    server = resp_bench.open()
    resp_bench.path.unlink()
    resp_bench.path.write_text("mine")
    resp_bench.run(server.close())
    assert resp_bench.path.read_text() == "mine"


def test_linked_task_directory_is_refused_and_its_target_stays_as_it_is(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (tmp_path / "0_0").symlink_to(target)
    with pytest.raises(InvalidRequest, match=r"0_0 is a symbolic link"):
        check_marker(tmp_path / "0_0", "app", "0_0")
    assert not names(target)


@pytest.mark.parametrize("planted", ["LOCK", "STANDFAST", "INSTANCE", ".aside", ".bulk", ".mending"])
def test_link_within_the_state_directory_is_refused_and_not_followed(tmp_path: Path, planted: str) -> None:
    target = tmp_path / "target"
    if planted.isupper():
        target.write_text('{"format": 1, "app": "app", "task": null}')
    else:
        (target / "inside").mkdir(parents=True)
    (tmp_path / "state" / "app").mkdir(parents=True)
    (tmp_path / "state" / "app" / planted).symlink_to(target)
    with pytest.raises(InvalidRequest, match=rf"{planted} is a symbolic link"):
        StateDir(tmp_path / "state", "app")
    assert "app" in target.read_text() if planted.isupper() else names(target) == {"inside"}
