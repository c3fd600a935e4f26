"""One damaged store of a task begins with its rows of a snapshot: its neighbours keep rows and positions."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.restore.snapshot.catalogue import listed
from standfast.restore.snapshot.names import file_key
from standfast.restore.snapshot.opening import open_storage
from standfast.store.types.segments import store_of_family
from support.crash.refill_child import STORES
from support.crash.snapshot_child import session_of
from support.places import SUPPORT
from support.sessions import DAY_MS, KINDS, Bench, operate

ROWS, TAIL = 2_000, 100
WITHIN_S = 60
POINTS = ("snapshot.rows", "ingest.marked", "ingest.family", "ingest.positioned")


@pytest.fixture
def policy(tmp_path: Path) -> sf.SnapshotPolicy:
    return sf.SnapshotPolicy(to=str(tmp_path / "snaps"))


def fill(session: sf.Session, first: int, last: int) -> None:
    """The same rows in all stores."""
    task = session.task(0)
    for number in range(first, last):
        for store in STORES:
            task.store(store.name).put(f"{number:06}", f"{store.name}{number:06}" * 8)
    task.commit({("src", 0): last})


def files_of(session: sf.Session, name: str) -> list[Path]:
    """Table files of a store's families, all of its rows in them."""
    stores = session.tasks()[0].stores
    stores.flush()
    found = []
    for family in sorted(stores.engine.families()):
        if store_of_family(family) == name:
            stores.engine.compact(family)
            text = stores.engine._held(family, "measuring").property_value("rocksdb.sstables")  # type: ignore[attr-defined]
            numbers = [int(line.split(":")[0]) for line in text.splitlines() if line[:1] == " " and ":" in line]
            found += [stores.directory / f"{number:06}.sst" for number in numbers]
    return found


def damage(files: list[Path]) -> None:
    for path in files:
        data = bytearray(path.read_bytes())
        data[0] ^= 0xFF  # of its first block, which the opening of a task reads
        path.write_bytes(data)


def prepared(session: sf.Session) -> list[Path]:
    """A snapshot with ROWS rows, TAIL further ones; returns the files of `kv`."""
    fill(session, 0, ROWS)
    session.snapshot(0)
    fill(session, ROWS, ROWS + TAIL)
    return files_of(session, "kv")


def whole(session: sf.Session, last: int = ROWS + TAIL) -> None:
    for store in STORES:
        wanted = [(f"{number:06}", f"{store.name}{number:06}" * 8) for number in range(last)]
        assert list(session.task(0).store(store.name).all()) == wanted, store.name


def restores(session: sf.Session) -> dict[str, int]:
    return {outcome: count for outcome, count in session.counters.snapshots.restores.items() if count}


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_damaged_store_begins_with_its_rows_of_a_snapshot_and_its_neighbours_stay(
    bench: Bench, policy: sf.SnapshotPolicy, guarantee: str
) -> None:
    first = bench.active(stores=STORES, snapshots=policy, guarantee=guarantee)
    files = prepared(first)
    position = first.task(0).stores.cut.positions["other"]
    first.close()
    damage(files)
    again = bench.active(stores=STORES, snapshots=policy, guarantee=guarantee)
    whole(again)
    assert again.task(0).source_offsets() == {("src", 0): ROWS + TAIL}
    assert again.task(0).stores.cut.positions["other"] == position
    assert again.counters.store_wipes == {("kv", "corrupt"): 1}
    (records,) = again.counters.restored_records.values()
    assert TAIL <= records <= TAIL + 2, "the whole changelog was read"
    assert restores(again) == {"store": 1}
    assert list((again.state_path / ".copying").iterdir()) == []
    assert list((again.state_path / ".aside").iterdir()) == []
    fill(again, ROWS + TAIL, ROWS + 2 * TAIL)
    again.close()
    whole(bench.active(stores=STORES, snapshots=policy, guarantee=guarantee), ROWS + 2 * TAIL)


def test_damage_that_a_read_of_a_running_task_finds_is_mended_from_a_snapshot(
    bench: Bench, policy: sf.SnapshotPolicy
) -> None:
    first = bench.active(stores=STORES, snapshots=policy)
    files = prepared(first)
    first.close()
    for path in files:
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 0xFF
        path.write_bytes(data)
    again = bench.active(stores=STORES, snapshots=policy)
    with pytest.raises(sf.Corruption):
        list(again.task(0).store("kv").all())
    again.poll_once()
    again.wait_ready(30)
    whole(again)
    assert restores(again) == {"store": 1}


@pytest.mark.parametrize("name", [*KINDS[:2], *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS[2:])])
def test_every_kind_of_store_comes_back_as_from_the_log(bench: Bench, policy: sf.SnapshotPolicy, name: str) -> None:
    rng = random.Random(4711)
    first = bench.active(snapshots=policy)
    operate(first.task(0), rng, 400)
    first.snapshot(0)
    operate(first.task(0), rng, 60)
    files = files_of(first, name)
    times = first.task(0).stores.cut.stores
    first.close()
    assert files
    damage(files)
    again = bench.active(snapshots=policy)
    kept = {one: list(again.task(0).store(one).all()) for one in ("kv", "win", "ses")}
    assert restores(again) == {"store": 1}
    assert again.task(0).stores.cut.stores == times
    versions = [list(again.task(0).store("ver").range(f"k{number}", 0, 1 << 50)) for number in range(30)]
    again.close()
    from_log = bench.active("c")
    assert {one: list(from_log.task(0).store(one).all()) for one in ("kv", "win", "ses")} == kept
    assert [list(from_log.task(0).store("ver").range(f"k{number}", 0, 1 << 50)) for number in range(30)] == versions


def test_two_damaged_stores_come_from_one_download(bench: Bench, policy: sf.SnapshotPolicy) -> None:
    first = bench.active(stores=STORES, snapshots=policy)
    files = prepared(first) + files_of(first, "other")
    first.close()
    damage(files)
    again = bench.active(stores=STORES, snapshots=policy)
    whole(again)
    assert restores(again) == {"store": 2}
    assert sum(again.counters.restored_records.values()) <= 2 * (TAIL + 2)


def test_a_damaged_snapshot_leaves_the_store_to_its_changelog(
    bench: Bench, policy: sf.SnapshotPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    first = bench.active(stores=STORES, snapshots=policy)
    files = prepared(first)
    first.close()
    damage(files)
    storage = open_storage(policy.to, "app")
    for sha in listed(storage).whole[0].snapshot.contents:
        file = Path(policy.to) / "app" / file_key(sha)
        file.write_bytes(b"x" * file.stat().st_size)
    again = bench.active(stores=STORES, snapshots=policy)
    whole(again)
    assert (restores(again), "is passed over" in caplog.text) == ({}, True)
    assert sum(again.counters.restored_records.values()) >= ROWS + TAIL


def test_a_snapshot_of_damaged_rows_gives_none(bench: Bench, policy: sf.SnapshotPolicy) -> None:
    """Its files are as its manifest says, and were damaged before: a block's checksum finds that."""
    first = bench.active(stores=STORES, snapshots=policy)
    fill(first, 0, ROWS)
    damage_later = files_of(first, "kv")
    for path in damage_later:
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 0xFF
        path.write_bytes(data)
    first.snapshot(0)
    first.close()
    again = bench.active(stores=STORES, snapshots=policy)
    with pytest.raises(sf.Corruption):
        list(again.task(0).store("kv").all())
    again.poll_once()
    again.wait_ready(30)
    whole(again, ROWS)
    assert restores(again) == {}


def test_a_snapshot_older_than_the_deletes_that_compaction_keeps_gives_no_store(
    bench: Bench, policy: sf.SnapshotPolicy
) -> None:
    first = bench.active(stores=STORES, snapshots=policy)
    fill(first, 0, ROWS)
    first.snapshot(0)
    bench.clock.advance(8 * DAY_MS)
    fill(first, ROWS, ROWS + TAIL)
    files = files_of(first, "kv")
    first.close()
    damage(files)
    again = bench.active(stores=STORES, snapshots=policy)
    whole(again)
    assert restores(again) == {}


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_kill_on_the_way_leaves_the_store_to_be_restored_again_and_its_neighbours_whole(
    tmp_path: Path, point: str
) -> None:
    with closing(session_of(tmp_path, "a", stores=STORES)) as first:
        files = prepared(first)
        position = first.task(0).stores.cut.positions["other"]
    damage(files)
    given = json.dumps({"root": str(tmp_path), "directory": "a"})
    environment: dict[str, Any] = {**os.environ, "STANDFAST_FAILPOINT": f"{point}=kill:1"}
    child = subprocess.run(
        [sys.executable, str(SUPPORT / "crash/refill_child.py"), given],
        env=environment,
        timeout=WITHIN_S,
        check=False,
        capture_output=True,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()
    with closing(session_of(tmp_path, "a", stores=STORES)) as again:
        whole(again)
        assert again.task(0).stores.cut.positions["other"] == position
        assert again.task(0).source_offsets() == {("src", 0): ROWS + TAIL}
        records = dict(again.counters.restored_records)
        print(point, records, restores(again))
        assert {store for store, _, _ in records} <= {"kv"}
