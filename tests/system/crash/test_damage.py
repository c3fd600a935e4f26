"""Damaged files: an error, never a short answer; the directory is set aside and the task restored from the log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import standfast as sf
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.restore.replay.restorer import SHAPE_LATER_RECORDS_MIN
from support.sessions import Bench

STORES = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
ROWS = 4_000


def fill(session: sf.Session) -> None:
    """Rows in several blocks of one SST file."""
    task = session.task(0)
    for number in range(ROWS):
        task.store("kv").put(f"{number:06}", f"{number:06}" * 20)
    task.commit({("src", 0): ROWS})
    task.stores.flush()
    task.stores.engine.compact("kv")


def flip_a_byte(directory: Path) -> None:
    """Damage the middle of the largest SST file."""
    path = max(directory.glob("*.sst"), key=lambda file: file.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    path.write_bytes(data)


def test_flipped_byte_is_an_error_never_a_short_scan_and_the_task_is_restored(bench: Bench) -> None:
    first = bench.active(stores=STORES)
    fill(first)
    directory = first.state_path / "0_0"
    first.close()
    flip_a_byte(directory)
    lost: list[str] = []

    class Ears(sf.Listener):
        def on_state_lost(self, task: TaskId, reason: str) -> None:
            lost.extend([reason, *(path.name.split(".")[1] for path in (again.state_path / ".aside").iterdir())])

    again = bench.active(stores=STORES, listeners=[Ears()])
    task = again.task(0)
    seen = 0
    with pytest.raises(sf.Corruption):
        for _ in task.store("kv").all():
            seen += 1
    assert seen < ROWS
    again.poll_once()  # the session's driver meets the damage that a reader found
    again.wait_ready(30)
    assert sum(1 for _ in again.task(0).store("kv").all()) == ROWS
    assert again.task(0).source_offsets() == {("src", 0): ROWS}
    assert again.counters.wipes == {"corrupt": 1}
    assert lost == ["corrupt", "corrupt"]  # reported while the damaged directory lay aside
    assert list((again.state_path / ".aside").iterdir()) == []


def test_database_that_does_not_open_is_set_aside_and_restored(bench: Bench) -> None:
    first = bench.active(stores=STORES)
    fill(first)
    directory = first.state_path / "0_0"
    first.close()
    max(directory.glob("MANIFEST-*")).write_bytes(b"not a manifest")
    again = bench.active(stores=STORES)
    assert sum(1 for _ in again.task(0).store("kv").all()) == ROWS
    assert again.counters.wipes == {"corrupt": 1}


class FolderGone(sf.Listener):
    """Removes the directory of a task once, when its restore has applied every record."""

    def __init__(self, directory: Path, end: int) -> None:
        self.directory = directory
        self.end = end
        self.removed = False

    def on_batch_restored(
        self, task: TaskId, store: str, changelog: TopicPartition, position: int, records: int
    ) -> None:
        if str(task) == self.directory.name and position == self.end and not self.removed:
            self.removed = True
            shutil.rmtree(self.directory)


def test_disk_that_refuses_at_the_end_of_a_restore_has_that_task_opened_again_and_no_other(bench: Bench) -> None:
    first = bench.active(partitions=(0, 1), stores=STORES)
    for partition in (0, 1):
        task = first.task(partition)
        for number in range(SHAPE_LATER_RECORDS_MIN):
            task.store("kv").put(f"{number:05}", "v")
        task.commit()
    first.close()
    cold = bench.session("cold", stores=STORES)
    gone = FolderGone(cold.state_path / "0_0", SHAPE_LATER_RECORDS_MIN)
    cold.listeners.add(gone)
    cold.assign(active=[0, 1])
    cold.wait_ready(30)
    assert gone.removed
    assert cold.counters.restored_records == {
        ("kv", 0, "no-local-state"): 2 * SHAPE_LATER_RECORDS_MIN,
        ("kv", 1, "no-local-state"): SHAPE_LATER_RECORDS_MIN,
    }
    assert [cold.task(partition).store("kv").get("00001") for partition in (0, 1)] == ["v", "v"]
