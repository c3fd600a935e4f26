"""Changes of files by the product, as calls of a simulated process."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from unit.simulator.test_sim_engine import AllLost, EndedCalls

from simulator.calls import DirectCalls, ProcessEnded
from simulator.disk import SimDisk
from simulator.engine import SimEngine
from simulator.files import SimFiles
from standfast.store import files
from standfast.store.clock import ManualClock
from standfast.store.engine import DEFAULT_FAMILY
from standfast.store.errors import Held
from standfast.store.file_errors import space_of
from standfast.store.task.state_dir import StateDir

Watched = Callable[..., SimDisk]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with ExitStack() as world:

        def watch(calls: Any = None) -> SimDisk:
            disk = SimDisk(tmp_path / "machine", calls or DirectCalls(ManualClock(0)))
            disk.root.mkdir(exist_ok=True)
            world.enter_context(SimFiles([disk]).watched())
            return disk

        yield watch


def test_the_end_of_a_process_releases_its_state_directory(watched: Watched):
    disk = watched()
    first = StateDir(disk.root, "app")
    with pytest.raises(Held):
        StateDir(disk.root, "app")
    disk.end_process()
    again = StateDir(disk.root, "app")
    assert again.instance_id == first.instance_id
    again.close()
    StateDir(disk.root, "app").close()


@pytest.mark.parametrize("kind", ["create", "sync", "rename"])
def test_a_process_that_ends_before_a_change_leaves_the_old_file(watched: Watched, kind: str):
    disk = watched(EndedCalls(f"file.{kind}", after=False))
    path = disk.root / "RATES"
    path.write_text("old")
    with pytest.raises(ProcessEnded):
        files.write_atomically(path, "new")
    with pytest.raises(ProcessEnded):
        files.write_atomically(path, "new")
    assert path.read_text() == "old"


def test_a_disk_that_takes_no_writes_refuses_each_change_as_the_system_does(watched: Watched):
    disk = watched()
    path = disk.root / "RATES"
    files.write_atomically(path, "old")
    changes: dict[str, Callable[[], object]] = {
        "folder": lambda: files.make_folder(disk.root / "folder"),
        "new": lambda: files.write_atomically(path, "new"),
        "rename": lambda: files.rename(path, disk.root / "RATES"),
        "remove": lambda: files.remove(disk.root / "absent", missing_ok=True),
    }
    for number, allowed in ((errno.ENOSPC, {"rename", "remove"}), (errno.EROFS, set()), (errno.EIO, set())):
        disk.refuses = number
        for name, change in changes.items():
            if name in allowed:
                change()
                continue
            with pytest.raises(OSError) as met:
                change()
            assert met.value.errno == number
    assert path.read_text() == "old"


def test_a_full_disk_has_no_free_bytes(watched: Watched):
    disk = watched()
    free, total = space_of(disk.root)
    assert free == total > 0
    disk.refuses = errno.ENOSPC
    assert space_of(disk.root) == (0, total)


def test_a_loss_of_power_takes_bytes_that_were_not_synced(watched: Watched):
    disk = watched()
    files.write_atomically(disk.root / "synced", "whole")
    files.write(disk.root / "written", b"in memory")
    files.copy(disk.root / "synced", disk.root / "copied")
    files.write(disk.root / "synced later", b"whole")
    files.sync_file(disk.root / "synced later")
    disk.end_process()
    disk.lose_power(AllLost(0), "power")
    left = {path.name: path.read_text() for path in disk.root.iterdir()}
    assert left == {"synced": "whole", "written": "", "copied": "", "synced later": "whole"}


def test_what_an_engine_does_to_files_is_one_call(watched: Watched):
    heard: list[str] = []

    class Hears(DirectCalls):
        def run(self, name: str, effect: Callable[[], Any]) -> Any:
            heard.append(name)
            return effect()

    disk = watched(Hears(ManualClock(0)))
    engine = SimEngine(disk.root / "0_0", disk)
    engine.create_family("made")
    engine.write({DEFAULT_FAMILY: {b"k": b"v"}})
    engine.flush()
    engine.close()
    assert heard == ["engine.open", "engine.create_family", "engine.write", "engine.flush", "engine.close"]


def test_files_elsewhere_are_none_of_the_world(watched: Watched, tmp_path: Path):
    watched().refuses = errno.EROFS
    files.write_atomically(tmp_path / "elsewhere", "written")
    assert (tmp_path / "elsewhere").read_text() == "written"
