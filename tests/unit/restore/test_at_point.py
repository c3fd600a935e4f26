"""Restores of a task at a point into a folder: on a real log, with compaction, kinds of stores and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

import standfast as sf
from standfast.replication.log import TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.restore.digest import digest_rows
from standfast.restore.fold import fold_for
from standfast.restore.snapshot.at_point import ONLY, AtPoint, WantedPoint, choose_task, restore_folder
from standfast.restore.snapshot.catalogue import listed
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.storage import Storage
from standfast.restore.snapshot.tails import Tails
from standfast.restore.verify.at_rest import open_task, store_of
from standfast.store.clock import ManualClock
from standfast.store.errors import InvalidRequest, Unavailable
from standfast.store.task.commit_record import CommitRecord, read_record
from support.sessions import START_MS, Bench, four_stores, operate

KV = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]


def storage_of(bench: Bench) -> Storage:
    return open_storage(str(bench.root / "snaps"), "app")


@contextmanager
def tails_of(bench: Bench) -> Iterator[Tails]:
    with closing(Tails(bench.log, bench.clock)) as tails:
        yield tails


def running(bench: Bench, stores: list[Any] = KV) -> sf.Session:
    policy = sf.SnapshotPolicy(to=str(bench.root / "snaps"), restore=False)
    return bench.active(stores=stores, partitions=(0,), snapshots=policy)


def put(session: sf.Session, **rows: str | None) -> None:
    task = session.task(0)
    for key, value in rows.items():
        task.store("kv").put(key, value, START_MS + int((value or "0").strip("v")))
    task.commit()


def rows_at(folder: Path) -> dict[str, str]:
    with open_task(folder / "app/0_0") as engine:
        store = store_of(engine, "kv", str(folder)).store
        return {key.decode(): value.decode() for key, _, value in store.logical_rows()}


def record_at(folder: Path) -> CommitRecord:
    with open_task(folder / "app/0_0") as engine:
        return read_record(engine, str(folder))


def at(bench: Bench, folder: str, wanted: WantedPoint) -> tuple[AtPoint, Path]:
    with tails_of(bench) as tails:
        chosen = choose_task(storage_of(bench), "0_0", wanted, tails)
        restore_folder(storage_of(bench), [chosen], bench.root / folder, tails)
    return chosen, bench.root / folder


def test_newest_snapshot_is_of_the_topics_that_are_there_now(bench: Bench) -> None:
    session = running(bench)
    put(session, a="v1", b="v2")
    session.close()
    session = running(bench)  # a higher epoch than the new topic's first writer has
    put(session, c="v3")
    session.snapshot(0)
    session.close()
    for left in [*bench.root.glob("log*"), bench.root / "a"]:
        left.rename(bench.root / f"lost {left.name}")
    session = running(bench)
    put(session, new="v4")
    made = session.snapshot(0)
    kept = listed(storage_of(bench), "0_0").whole
    assert len({one.snapshot.lineage for one in kept}) == 2
    assert str(kept[0].snapshot.name) != made  # by epoch and position the lost one is higher
    for with_log in (True, False):
        with tails_of(bench) as tails:
            chosen = choose_task(storage_of(bench), "0_0", WantedPoint(), tails if with_log else None)
        assert str(chosen.snapshot.name) == made


def test_every_offset_behind_a_snapshot_is_restored(bench: Bench) -> None:
    session = running(bench)
    put(session, a="v1", b="v2")
    session.snapshot(0)
    put(session, a="v3", c="v4", b=None)
    expected = {
        2: {"a": "v1", "b": "v2"},
        3: {"a": "v3", "b": "v2"},
        4: {"a": "v3", "b": "v2", "c": "v4"},
        5: {"a": "v3", "c": "v4"},
    }
    for offset, rows in expected.items():
        chosen, folder = at(bench, f"at-{offset}", WantedPoint({ONLY: offset}))
        assert (chosen.point, chosen.tail) == ({"kv": offset}, offset - 2)
        assert rows_at(folder) == rows
        record = record_at(folder)
        assert record.positions["kv"].offset == offset
        assert not list(folder.glob(".restoring*"))


def test_a_snapshot_of_an_unknown_age_is_no_base_of_a_point(bench: Bench) -> None:
    made_ms = bench.clock.wall_ms()
    bench.clock.advance(2 * 24 * 3_600_000)  # more than the margin within the seven days for which deletes stay
    session = running(bench)
    put(session, a="v1")
    session.snapshot(0)
    put(session, b="v2")
    with closing(Tails(bench.log, ManualClock(made_ms))) as tails, pytest.raises(InvalidRequest, match="ahead of this"):
        choose_task(storage_of(bench), "0_0", WantedPoint({ONLY: 2}), tails)
    assert at(bench, "then", WantedPoint({ONLY: 2}))[0].point == {"kv": 2}


def test_a_time_is_the_first_record_that_is_not_older(bench: Bench) -> None:
    session = running(bench)
    put(session, a="v1")
    session.snapshot(0)
    put(session, a="v10", b="v20", c="v30")
    chosen, folder = at(bench, "then", WantedPoint(time_ms=START_MS + 20))
    assert chosen.point == {"kv": 2}
    assert rows_at(folder) == {"a": "v10"}
    late, folder = at(bench, "late", WantedPoint(time_ms=START_MS + 31))
    assert late.point == {"kv": 4}
    with tails_of(bench) as tails, pytest.raises(InvalidRequest, match="no usable snapshot lies at or below kv=0"):
        choose_task(storage_of(bench), "0_0", WantedPoint(time_ms=0), tails)


def test_a_moved_point_has_no_source_offsets_and_an_old_age(bench: Bench) -> None:
    bench.log.admin.create_topic("flights", 1, TopicPolicy())
    session = running(bench)
    session.task(0).store("kv").put("a", "v1")
    session.task(0).commit({("flights", 0): 0})
    session.snapshot(0)
    age_ms = session.task(0).stores.cut.positions["kv"].at_ms
    bench.clock.advance(1_000)
    put(session, b="v2")
    _, folder = at(bench, "own", WantedPoint())
    assert record_at(folder).sources == {"flights/0": 0}
    _, folder = at(bench, "moved", WantedPoint({"kv": 2}))
    record = record_at(folder)
    assert (record.sources, record.source_tags, record.positions["kv"].at_ms) == ({}, {}, age_ms)


def test_a_point_that_compaction_may_have_touched_is_refused_with_the_nearest_ones(bench: Bench) -> None:
    session = running(bench)
    put(session, a="v1")
    session.snapshot(0)  # 0_0/1-1
    put(session, x="v2", y="v3", z="v4")
    put(session, y="v5", z="v6")
    bench.embedded.compact("app-kv-changelog", bench.clock.wall_ms())  # y at 2 and z at 3 are gone
    put(session, x="v7")  # offset 6: a repeat of a key before the gap
    with tails_of(bench) as tails:
        for offset in (3, 4, 5):
            with pytest.raises(InvalidRequest) as refused:
                choose_task(storage_of(bench), "0_0", WantedPoint({ONLY: offset}), tails)
            assert "compaction may have removed records" in str(refused.value)
            assert "nearest point below is kv=2, the nearest point above is kv=6" in str(refused.value)
        assert choose_task(storage_of(bench), "0_0", WantedPoint({ONLY: 2}), tails).tail == 1
        assert choose_task(storage_of(bench), "0_0", WantedPoint({ONLY: 6}), tails).tail == 5
        with pytest.raises(InvalidRequest, match="is beyond its end 7"):
            choose_task(storage_of(bench), "0_0", WantedPoint({ONLY: 8}), tails)
    _, folder = at(bench, "six", WantedPoint({ONLY: 6}))
    assert rows_at(folder) == {"a": "v1", "x": "v2", "y": "v5", "z": "v6"}
    _, folder = at(bench, "seven", WantedPoint({ONLY: 7}))
    assert rows_at(folder) == {"a": "v1", "x": "v7", "y": "v5", "z": "v6"}


def test_compaction_between_the_choice_and_the_restore_leaves_no_folder(bench: Bench) -> None:
    session = running(bench)
    put(session, a="v1")
    session.snapshot(0)
    put(session, x="v2", y="v3")
    put(session, x="v4", y="v5", z="v6")
    with tails_of(bench) as tails:
        chosen = choose_task(storage_of(bench), "0_0", WantedPoint({ONLY: 3}), tails)
        bench.embedded.compact("app-kv-changelog", bench.clock.wall_ms())
        with pytest.raises(Unavailable, match="compaction ran behind snapshot"):
            restore_folder(storage_of(bench), [chosen], bench.root / "then", tails)
    assert not (bench.root / "then/app").exists()
    # The left folder does not stand in the way of the next restore.
    _, folder = at(bench, "then", WantedPoint({ONLY: 6}))
    assert rows_at(folder) == {"a": "v1", "x": "v4", "y": "v5", "z": "v6"}


def test_a_folder_is_never_replaced(bench: Bench) -> None:
    session = running(bench)
    put(session, a="v1")
    session.snapshot(0)
    _, folder = at(bench, "then", WantedPoint())
    before = record_at(folder)
    with pytest.raises(InvalidRequest, match="makes a new folder and replaces none"):
        at(bench, "then", WantedPoint())
    assert record_at(folder) == before


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3))])
def test_a_point_of_every_kind_of_store_is_the_fold_of_its_changelog(bench: Bench, seed: int) -> None:
    session = running(bench, four_stores())
    task, chance = session.task(0), Random(seed)
    operate(task, chance, 150)
    session.snapshot(0)
    operate(task, chance, 150)
    ends = {name: position.offset for name, position in task.stores.cut.positions.items()}
    begins = {
        name: position.offset for name, position in listed(storage_of(bench)).whole[0].snapshot.cut.positions.items()
    }
    point = {name: chance.randrange(begins[name], ends[name] + 1) for name in ends}
    with tails_of(bench) as tails:
        chosen = choose_task(storage_of(bench), "0_0", WantedPoint(point), tails)
        restore_folder(storage_of(bench), [chosen], bench.root / "then", tails)
    with open_task(bench.root / "then/app/0_0") as engine:
        for name, offset in point.items():
            held = store_of(engine, name, name)
            retention_ms = held.spec.kept_ms if held.spec.traits.retention else None
            fold = fold_for(held.spec.kind, timestamped=held.spec.timestamped, retention_ms=retention_ms)
            fold.add(records(bench, name, offset))
            rows = list(held.store.logical_rows())
            assert digest_rows(rows) == digest_rows(fold.rows(held.times.observed_ms)), name
            assert held.position is not None
            assert held.position.offset == offset


def records(bench: Bench, store: str, end: int) -> list[Any]:
    where = TopicPartition(f"app-{store}-changelog", 0)
    found: list[Any] = []
    with closing(bench.log.reader()) as reader:
        reader.assign({where: 0})
        while reader.assignment()[where] < end:
            found += [record for batch in reader.fetch(10_000, 1_000) for record in batch.records]
    return [record for record in found if record.offset < end]
