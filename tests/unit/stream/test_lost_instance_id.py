"""The file of the instance's id is damaged: read where the id is whole, else refused with the id that the log has."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import standfast as sf
from standfast.store.clock import SystemClock
from standfast.store.task.state_dir import StateDir
from standfast.stream.task.groups import TaskGroup
from standfast.stream.workers.command import Program
from standfast.stream.workers.supervisor import Supervisor
from support.sessions import Bench

TEXT = sf.serde.string
KV = [sf.KeyValueStore("kv", TEXT, TEXT)]
ID = b"0123456789ab"


@pytest.mark.parametrize(
    "behind",
    [b"\n\0\0\0\0", b"\n" + b"\xff" * 5_000, b"\nother\n", b"\xf5", b"\0" * 500, b" \n", b"\r\n\0", b"\xff\xfe"],
)
def test_bytes_behind_a_valid_id_count_for_nothing(tmp_path: Path, behind: bytes) -> None:
    StateDir(tmp_path, "app").close()
    path = tmp_path / "app" / "INSTANCE"
    path.write_bytes(ID + behind)
    again = StateDir(tmp_path, "app")
    assert again.instance_id == ID.decode()
    again.close()
    assert path.read_bytes() == ID + behind


def test_id_of_another_form_is_read_by_its_line(tmp_path: Path) -> None:
    StateDir(tmp_path, "app").close()
    (tmp_path / "app" / "INSTANCE").write_bytes(b"my-host.1\n\0\0\0")
    with_id = StateDir(tmp_path, "app")
    assert with_id.instance_id == "my-host.1"
    with_id.close()


@pytest.mark.parametrize(
    "held", [b"0123\xff6789ab\n", b"0123 6789ab\n", b"my-host\0\0\0", b"012345\0\0\0\0\0\0\n", b"\xff" + ID]
)
def test_id_that_may_have_lost_a_part_is_refused(tmp_path: Path, held: bytes) -> None:
    StateDir(tmp_path, "app").close()
    (tmp_path / "app" / "INSTANCE").write_bytes(held)
    with pytest.raises(sf.InvalidRequest, match="which is not an instance id"):
        StateDir(tmp_path, "app")


def killed(bench: Bench, source: str, target: str) -> Path:
    """A state directory as a kill leaves it, with a damaged file of the id."""
    shutil.copytree(bench.root / source, bench.root / target)
    path = bench.root / target / "app"
    (path / "INSTANCE").write_bytes(b"\xff" * 13)
    return path


def test_refusal_names_the_id_that_the_log_has_for_the_tasks_of_the_directory(bench: Bench) -> None:
    session = bench.active(partitions=(0, 1), stores=KV)
    session.close()
    path = session.state_path
    (path / "INSTANCE").write_bytes(b"\xff" * 13)
    with pytest.raises(sf.InvalidRequest) as refused:
        bench.session(stores=KV)
    assert "which is not an instance id" in str(refused.value)
    assert f"last owner by the log: {session.instance_id!r} of task 0_0, 0_1" in str(refused.value)
    (path / "INSTANCE").write_text(session.instance_id)
    assert bench.active(stores=KV).instance_id == session.instance_id


def test_former_owner_is_named_in_a_process_with_workers(bench: Bench) -> None:
    session = bench.active(stores=KV)
    session.close()
    (session.state_path / "INSTANCE").write_bytes(b"")
    with pytest.raises(sf.InvalidRequest, match=rf"last owner by the log: '{session.instance_id}' of task 0_0"):
        Supervisor(
            "app",
            log=bench.address,
            state_dir=bench.root / "a",
            groups={0: TaskGroup(partitions=2, specs=tuple(KV))},
            options={"placement": "managed"},
            restart=sf.NoRestart(),
            workers=2,
            program=Program((), ""),
            clock=SystemClock(),
        )


def test_owner_that_runs_elsewhere_is_not_named(bench: Bench) -> None:
    session = bench.active(stores=KV)
    killed(bench, "a", "b")
    with pytest.raises(sf.InvalidRequest, match="the log knows no owner of its tasks"):
        bench.session("b", stores=KV)
    assert session.ready


def test_log_that_does_not_exist_is_said_and_not_made(bench: Bench) -> None:
    StateDir(bench.root / "a", "app").close()
    (bench.root / "a" / "app" / "INSTANCE").write_bytes(b"\xff")
    with pytest.raises(sf.InvalidRequest, match="the log could not be asked for that id"):
        sf.Session("app", log=f"sqlite:///{bench.root}/absent", state_dir=bench.root / "a", stores=KV)
    assert not (bench.root / "absent").exists()
