"""Runs of a range: the rows of a batch, within a budget, as sorted files; and their result in a task's stores."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from standfast.replication.columns import payload_bytes
from standfast.replication.log import Record
from standfast.restore.files.manifest import ManifestPartition
from standfast.restore.replay.run_builder import RunBuilder
from standfast.store import serde, window_key
from standfast.store.engine import DEFAULT_FAMILY
from standfast.store.errors import Corruption, InvalidRequest
from standfast.store.specs import KeyValueStore, StoreSpec, VersionedStore, WindowStore
from standfast.store.task.commit_record import INGESTING_KEY, CommitRecord, Position, StoreTimes, encode_ingesting
from standfast.store.task.task_stores import TaskStores

KV = KeyValueStore("kv", serde.string, serde.string)
OTHER = KeyValueStore("other", serde.string, serde.string)
WIN = WindowStore("win", serde.string, serde.string, window_size_ms=60_000, retention_ms=120_000)


def build(folder: Path, spec: StoreSpec, records: list[Record], **how: Any) -> list[ManifestPartition]:
    """Runs of these records, in pieces of ten."""
    settings: dict[str, Any] = {
        "folder": folder,
        "prefix": "p",
        "partition": 0,
        "start": 0,
        "budget_bytes": 1 << 20,
    } | how
    builder = RunBuilder(spec, **settings)
    runs = []
    for first in range(0, len(records), 10):
        piece = records[first : first + 10]
        builder.add(piece, payload_bytes(piece))
        if builder.full:
            runs.append(builder.run(piece[-1].offset + 1))
    return [*runs, builder.run(len(records))]


def take(stores: TaskStores, name: str, folder: Path, run: ManifestPartition) -> None:
    files = [(file.family, folder / file.name) for file in run.files]
    cut = CommitRecord(positions={**stores.cut.positions, name: Position(run.end)})
    stores.ingest(name, files, StoreTimes(run.observed_ms, run.sequence), cut)


def test_counts_of_a_run_add_up(tmp_path: Path) -> None:
    values = [b"1", b"2", None, b"4", b"5", None]
    keys = [b"a", b"b", b"a", b"c", b"c", b"d"]
    records = [Record(at, at, key, value) for at, (key, value) in enumerate(zip(keys, values, strict=True))]
    (run,) = build(tmp_path, KV, records)
    assert (run.start, run.end, run.records, run.entries, run.tombstones, run.superseded) == (0, 6, 6, 4, 2, 2)
    (file,) = run.files
    assert (file.family, file.entries, file.deletes, file.first_key, file.last_key) == ("kv", 4, 2, "61", "64")
    (run,) = build(tmp_path, KV, records, drop_deletes=True, prefix="q")
    assert (run.entries, run.tombstones, run.superseded) == (2, 2, 2)
    assert run.files[0].deletes == 0


def test_run_without_rows_has_no_files_and_moves_the_position(
    tmp_path: Path, open_stores: Callable[..., TaskStores]
) -> None:
    (run,) = build(tmp_path, KV, [Record(0, 0, b"a", None)], drop_deletes=True)
    assert run.files == () and run.end == 1
    stores = open_stores(KV)
    take(stores, "kv", tmp_path, run)
    assert stores.cut.positions["kv"].offset == 1


def test_memory_stays_within_the_budget_and_superseded_rows_do_not_count(tmp_path: Path) -> None:
    distinct = [Record(at, at, b"k%05d" % at, b"v" * 100) for at in range(1_000)]
    runs = build(tmp_path, KV, distinct, budget_bytes=40_000)
    assert len(runs) > 5
    assert all((run.entries - 20) * (200 + 6 + 108) <= 40_000 for run in runs), "it looks after every ten records"
    assert sum(run.entries for run in runs) == 1_000
    again = [Record(at, at, b"k%05d" % (at % 20), b"v" * 100) for at in range(5_000)]
    assert len(build(tmp_path, KV, again, budget_bytes=40_000, prefix="q")) == 1
    # Values of very different sizes: held bytes are counted, not guessed from an average.
    mixed = [Record(at, at, b"big%d" % at, b"v" * 5_000) for at in range(4)]
    mixed += [Record(at, at, b"small", b"v") for at in range(4, 1_000)]
    mixed += [Record(at, at, b"last%d" % at, b"v" * 5_000) for at in range(1_000, 1_010)]
    sizes = [
        sum(file.bytes for file in run.files) for run in build(tmp_path, KV, mixed, budget_bytes=40_000, prefix="r")
    ]
    assert len(sizes) >= 2


@pytest.mark.parametrize("seed", range(3))
def test_runs_give_the_rows_of_batches(tmp_path: Path, open_stores: Callable[..., TaskStores], seed: int) -> None:
    rng = Random(seed)
    records = []
    for at in range(600):
        start = at * 1_000 // 60_000 * 60_000 - rng.choice((0, 0, 60_000, 240_000))
        key = window_key.pack(b"k%d" % rng.randrange(9), max(start, 0))
        records.append(Record(at, max(start, 0) + 5, key, None if rng.random() < 0.2 else b"v%d" % at))
    runs = build(tmp_path, WIN, records, budget_bytes=3_000, drop_deletes=True)
    assert len(runs) > 3
    in_runs, by_batches = open_stores(WIN), open_stores(WIN, directory="1_0")
    for run in runs:
        take(in_runs, "win", tmp_path, run)
    for first in range(0, 600, 70):
        piece = records[first : first + 70]
        by_batches.apply({"win": piece}, CommitRecord(positions={"win": Position(piece[-1].offset + 1)}))
    assert sorted(in_runs.store("win").logical_rows()) == sorted(by_batches.store("win").logical_rows())
    assert in_runs.cut.stores == by_batches.cut.stores
    assert in_runs.store("win").families() == by_batches.store("win").families()
    assert sum(run.records for run in runs) == 600
    for run in runs:
        puts = run.entries - sum(file.deletes for file in run.files)
        assert puts + run.tombstones + run.superseded + run.expired == run.records


def test_rows_that_are_dead_by_a_known_time_are_left_out(tmp_path: Path) -> None:
    records = [Record(at, at * 60_000, window_key.pack(b"a", at * 60_000), b"v") for at in range(10)]
    (run,) = build(tmp_path, WIN, records, observed_ms=600_000)
    assert run.observed_ms == 600_000
    assert [file.family for file in run.files] == ["win@480000", "win@540000"]
    assert (run.entries, run.expired) == (2, 8)


def test_versioned_store_and_key_of_nobody_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="by batches"):
        build(tmp_path, VersionedStore("v", serde.string, serde.string, history_retention_ms=1), [])
    with pytest.raises(Corruption, match="not a key of a window store"):
        build(tmp_path, WIN, [Record(0, 0, b"short", b"v")])


def test_store_that_is_found_marked_begins_anew_and_the_others_stay(
    tmp_path: Path, open_stores: Callable[..., TaskStores]
) -> None:
    with closing(open_stores(KV, OTHER)) as stores:
        for name in ("kv", "other"):
            stores.store(name).put("a", name, 1)
        stores.commit(CommitRecord(positions={"kv": Position(1), "other": Position(1)}))
        (run,) = build(tmp_path, KV, [Record(1, 1, b"b", b"2")])
        stores.engine.write({DEFAULT_FAMILY: {INGESTING_KEY: encode_ingesting("kv")}})
        stores.engine.ingest("kv", [tmp_path / run.files[0].name])
    again = open_stores(KV, OTHER)
    assert set(again.cut.positions) == {"other"}
    assert not again.has_rows("kv")
    assert again.store("other").get("a") == "other"
    assert again.engine.get(DEFAULT_FAMILY, INGESTING_KEY) is None


def test_files_into_a_store_in_memory_are_refused_and_change_nothing(
    tmp_path: Path, open_stores: Callable[..., TaskStores]
) -> None:
    memory = KeyValueStore("mem", serde.string, serde.string, engine="memory")
    stores = open_stores(KV, memory)
    with pytest.raises(InvalidRequest, match="cannot import files"):
        stores.ingest("mem", [("mem", tmp_path / "x.sst")], StoreTimes(), CommitRecord(positions={"mem": Position(1)}))
    assert stores.poisoned is None and not stores.cut.positions


def test_failed_ingest_poisons_the_task_and_leaves_the_mark(
    tmp_path: Path, open_stores: Callable[..., TaskStores]
) -> None:
    stores = open_stores(KV)
    with pytest.raises(Exception, match="absent"):
        stores.ingest(
            "kv", [("kv", tmp_path / "absent.sst")], StoreTimes(), CommitRecord(positions={"kv": Position(9)})
        )
    assert stores.poisoned is not None
    assert stores.engine.get(DEFAULT_FAMILY, INGESTING_KEY) is not None
    stores.close()
    assert open_stores(KV).cut.positions == {}
