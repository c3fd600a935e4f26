"""Sessions of the product on a simulated disk and storage, with the embedded log."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.simulator.test_sim_engine import AllLost

import standfast as sf
from simulator.calls import DirectCalls
from simulator.disk import ROWS_FILE, SimDisk
from simulator.draws import Draws
from simulator.engine import SimEngine, opener
from simulator.files import SimFiles
from simulator.storage import SimBucket
from simulator.storage import opener as storage_opener
from standfast.restore.snapshot.address import OTHERS
from standfast.store.clock import ManualClock
from standfast.store.rocks.open_engine import OPEN_ENGINE
from standfast.store.rocks.opening import RocksShared
from standfast.store.task.commit_record import Position
from standfast.store.task.task_stores import TaskStores
from support.sessions import Bench, four_stores

TEXT = sf.serde.string
KV = [sf.KeyValueStore("kv", TEXT, TEXT)]
TWO = [*KV, sf.KeyValueStore("other", TEXT, TEXT)]
POLICY = sf.SnapshotPolicy


@pytest.fixture
def disk(tmp_path: Path, clock: ManualClock) -> Iterator[SimDisk]:
    calls = DirectCalls(clock)
    disk, bucket = SimDisk(tmp_path, calls), SimBucket(calls, clock.wall_ms)
    with ExitStack() as world:
        world.enter_context(OPEN_ENGINE.replaced(opener([disk])))
        world.enter_context(OTHERS.added("sim", storage_opener({"world": bucket})))
        world.enter_context(SimFiles([disk]).watched())
        yield disk


@pytest.fixture
def bench(disk: SimDisk, tmp_path: Path, clock: ManualClock) -> Iterator[Bench]:
    bench = Bench(tmp_path, clock)
    yield bench
    bench.close()


def put(session: sf.Session, **rows: str) -> None:
    task = session.task(0)
    for key, value in rows.items():
        for store in task.stores.specs:
            task.store(store).put(key, value)
    task.commit()


def rows(session: sf.Session, store: str = "kv") -> dict[str, str]:
    with session.task(0).store(store).all() as found:
        return dict(found)


def restored(session: sf.Session) -> dict[Any, int]:
    return {at[0]: count for at, count in session.counters.restored_records.items() if count}


def test_rows_survive_a_reopen_and_are_not_restored(bench: Bench):
    first = bench.active(stores=four_stores())
    assert isinstance(first.task(0).stores.engine, SimEngine)
    first.task(0).store("kv").put("a", "1")
    first.task(0).commit()
    first.close()
    again = bench.active(stores=four_stores())
    assert (rows(again), restored(again)) == ({"a": "1"}, {})


def test_a_lost_directory_is_restored_from_the_log(bench: Bench, tmp_path: Path):
    first = bench.active(stores=KV)
    put(first, a="1", b="2")
    first.close()
    shutil.rmtree(tmp_path / "a/app/0_0")
    again = bench.active(stores=KV)
    assert (rows(again), restored(again)) == ({"a": "1", "b": "2"}, {"kv": 2})


def test_what_a_loss_of_power_took_comes_back_from_the_log(bench: Bench, disk: SimDisk):
    first = bench.active(stores=KV)
    written = {f"k{number}": "1" for number in range(20)}
    for key, value in written.items():
        put(first, **{key: value})
    bench.opened.remove(first)  # no close of it would change anything
    disk.end_process()
    bench.clock.advance(60_000)
    disk.lose_power(Draws(0), "power")
    again = bench.active(stores=KV)
    assert rows(again) == written
    assert 0 < restored(again)["kv"] < 20


def test_a_commit_that_a_full_disk_refused_is_in_the_log_and_comes_back(bench: Bench, disk: SimDisk):
    session = bench.active(stores=KV)
    put(session, a="1")
    disk.refuses = errno.ENOSPC
    with pytest.raises(sf.CommitUnknown, match="No space left"):
        put(session, b="2")
    disk.refuses = 0
    session.close()
    again = bench.active(stores=KV)
    assert rows(again) == {"a": "1", "b": "2"}
    assert restored(again) == {"kv": 1}


def test_damage_of_one_store_is_mended_and_the_other_store_stays(bench: Bench, disk: SimDisk):
    first = bench.active(stores=TWO)
    put(first, a="1", b="2")
    first.task(0).store("kv").put("c", "words")
    first.task(0).commit()
    first.close()
    path = disk.root / "a/app/0_0" / ROWS_FILE
    disk.damage(path, path.read_bytes().index(b"words"))
    again = bench.active(stores=TWO)
    assert rows(again) == {"a": "1", "b": "2", "c": "words"}
    assert rows(again, "other") == {"a": "1", "b": "2"}
    assert restored(again) == {"kv": 3}


def opened(directory: Path, *stores: Any, careful: bool = False) -> TaskStores:
    return TaskStores(
        directory, "app", "0_0", stores or TWO, RocksShared(4 << 20), now_ms=lambda: 0, careful=careful
    )  # fmt: skip


@pytest.mark.parametrize("dropped", ["to be restored", "since it is declared no more"])
def test_a_store_that_was_dropped_has_no_position_after_a_loss_of_power(disk: SimDisk, dropped: str):
    """RocksDB syncs the drop of a family at once, and the record without the store was not synced yet."""
    with closing(opened(disk.root / "0_0")) as stores:
        for name in ("kv", "other"):
            stores.store(name).put("a", "1")
        stores.commit(replace(stores.cut, positions={"kv": Position(7), "other": Position(7)}))
        stores.flush()
    if dropped == "to be restored":
        opened(disk.root / "0_0", careful=True).forget({"other"}, {})
    else:
        opened(disk.root / "0_0", *KV)
    disk.end_process()
    disk.lose_power(AllLost(0), "power")
    with closing(opened(disk.root / "0_0")) as stores:
        assert not stores.has_rows("other")
        assert stores.cut.positions == {"kv": Position(7)}


def test_a_snapshot_is_made_and_a_new_directory_begins_with_it(bench: Bench):
    policy = POLICY(to="sim://world")
    first = bench.active(stores=KV, snapshots=policy)
    put(first, **{f"k{number}": "1" for number in range(50)})
    assert first.snapshot(0) == "0_0/1-50"
    put(first, new="2")
    first.close()
    second = bench.active("b", stores=KV, snapshots=policy)
    assert rows(second) == {**{f"k{number}": "1" for number in range(50)}, "new": "2"}
    assert second.counters.snapshots.restores["restored"] == 1
    assert restored(second) == {"kv": 1}
