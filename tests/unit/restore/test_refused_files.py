"""Files of the compiled writer that RocksDB refuses, or whose filter hides rows, are built again by RocksDB's own."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.replication import shapes
from standfast.replication.columns import RecordColumns
from standfast.restore.files.manifest import FILE_NAME, Made, Manifest, ManifestFile, dump_manifest
from standfast.restore.files.manifest_files import sha256_of
from standfast.restore.replay.bulk import BulkLoader
from standfast.restore.replay.bulk_plan import LOOKUPS, lookups_in
from standfast.restore.replay.row_folds import NativeFold
from standfast.restore.replay.run_builder import RunBuilder
from standfast.restore.spark_table.encode import Encoded
from standfast.restore.spark_table.runs import builder_of
from standfast.restore.verify.import_tasks import import_tasks
from standfast.store import serde
from standfast.store.engine import DEFAULT_FAMILY
from standfast.store.errors import Corruption, InternalError, InvalidRequest, Unavailable
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.lookups import LOOKED_UP_ROWS, hidden_row
from standfast.store.rocks.sst import SortedFile, write_sorted
from standfast.store.specs import KeyValueStore
from standfast.store.task.commit_record import INGESTING_KEY, CommitRecord, Position, StoreTimes, decode_ingesting
from standfast.store.task.ingested import FilesRefused
from standfast.store.task.task_stores import TaskStores
from support.bulk import BATCHES, BULK, digests, drive, loader
from support.sessions import START_MS, Bench, four_stores, operate
from support.sst_files import Alter, lying_filter, newer_version, other_comparator

ALTERED: list[Any] = [newer_version, other_comparator, lying_filter]
RAW = [KeyValueStore(name, serde.bytes, serde.bytes, timestamped=False) for name in ("kv", "other")]
each_alteration = pytest.mark.parametrize("alter", ALTERED, ids=lambda one: one.__name__.replace("_", " "))


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Callable[[Alter], list[str]]:
    """Alters each file of the compiled writer before its digest is taken; returns their names."""

    def begin(alter: Alter) -> list[str]:
        altered: list[str] = []
        real = NativeFold.write

        def write(self: NativeFold, *given: Any) -> list[SortedFile]:
            files = real(self, *given)
            for file in files:
                if file.path.name in self.live_keys:
                    alter(file.path)
                    altered.append(file.path.name)
            return files

        monkeypatch.setattr(NativeFold, "write", write)
        return altered

    return begin


def found_by_get(session: sf.Session, partition: int = 0) -> int:
    """Rows of all stores on disk, each of which a get finds as a scan does."""
    engine, count = session.task(partition).stores.engine, 0
    for family in engine.families():
        with engine.scan(family) as scan:
            rows = dict(scan)
        count += len(rows)
        assert {key: engine.get(family, key) for key in rows} == rows
    return count


def restored(bench: Bench, directory: str, stores: list[Any], **how: Any) -> sf.Session:
    session = bench.session(directory, stores=stores, **how)
    session.assign(active=[0])
    drive(session)
    return session


@pytest.mark.slow
@each_alteration
def test_restore_yields_every_row_though_rocksdb_does_not_take_the_compiled_files(
    bench: Bench, many_runs: None, spoil: Any, alter: Alter, caplog: pytest.LogCaptureFixture
) -> None:
    first = bench.active("live", stores=four_stores())
    operate(first.task(0), random.Random(1), 400)
    expected, rows = digests(first), found_by_get(first)
    first.close()
    altered = spoil(alter)
    with caplog.at_level(logging.WARNING, "standfast"):
        session = restored(bench, "bulk", four_stores(), **BULK)
    assert altered
    assert digests(session) == expected
    assert found_by_get(session) == rows
    found = loader(session).statistics()
    assert found.refused >= 1 and found.failures == found.given_back == 0 and found.runs > found.refused
    said = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "restore_files_refused"]
    assert len(said) == found.refused
    assert all("are built again by RocksDB's own writer" in one for one in said)
    assert session.task(0).stores.engine.get(DEFAULT_FAMILY, INGESTING_KEY) is None
    operate(session.task(0), random.Random(2), 50)  # the task takes writes
    session.close()
    again = bench.session("bulk", stores=four_stores(), **BULK)
    again.assign(active=[0])
    drive(again)
    assert not again.task(0).stores.interrupted and found_by_get(again)


@pytest.mark.slow
@each_alteration
def test_store_with_rows_is_not_content_with_the_older_ones_below(
    bench: Bench, many_runs: None, spoil: Any, alter: Alter
) -> None:
    text = sf.serde.string
    stores = [sf.KeyValueStore("kv", text, text)]
    first = bench.active("live", stores=stores)
    for number in range(300):
        first.task(0).store("kv").put(f"k{number % 100}", f"old {number}", START_MS + number)
    first.task(0).commit()
    first.close()
    restored(bench, "warm", stores, **BATCHES).close()
    first = restored(bench, "live", stores, **BATCHES)
    for number in range(300):
        value = None if number % 3 == 0 else f"new {number}"
        first.task(0).store("kv").put(f"k{number % 100}", value, START_MS + number)
    first.task(0).commit()
    expected = digests(first)
    first.close()
    spoil(alter)
    session = restored(bench, "warm", stores, **BULK)
    assert loader(session).statistics().refused == 1
    assert digests(session) == expected
    found_by_get(session)
    assert session.task(0).store("kv").get("k2") == "new 202"


@pytest.mark.slow
def test_deletes_of_the_records_that_are_built_again_hide_the_rows_of_refused_files(
    bench: Bench, many_runs: None, spoil: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the files that were refused is in: runs of other lengths follow, whose first one hides rows of it."""
    text = sf.serde.string
    stores = [sf.KeyValueStore("kv", text, text)]
    first = bench.active("live", stores=stores)
    for number in range(2_000):
        key = f"k{number % 90}"
        first.task(0).store("kv").put(key, None if number % 7 in (0, 3) else f"{number}", START_MS + number)
        if number % 50 == 0:
            first.task(0).commit()
    first.task(0).commit()
    expected = digests(first)
    first.close()
    spoil(lying_filter)
    real = BulkLoader._submit

    def shorter(self: BulkLoader, load: Any) -> None:
        if load.refused:
            self._settings = replace(self._settings, memory_bytes=self._settings.memory_bytes // 3)
        real(self, load)

    monkeypatch.setattr(BulkLoader, "_submit", shorter)
    session = restored(bench, "bulk", stores, **BULK)
    assert loader(session).statistics().refused == 1
    assert digests(session) == expected
    found_by_get(session)


@pytest.mark.slow
def test_later_restores_of_the_process_do_not_try_the_compiled_writer_again(
    bench: Bench, many_runs: None, spoil: Any
) -> None:
    stores = four_stores()
    first = bench.active("live", (0, 1), stores=stores)
    for partition in (0, 1):
        operate(first.task(partition), random.Random(partition), 200)
    expected = digests(first, (0, 1))
    first.close()
    altered = spoil(newer_version)
    session = restored(bench, "bulk", stores, **BULK)
    refused = loader(session).statistics().refused
    altered.clear()
    session.assign(active=[0, 1])
    drive(session)
    assert digests(session, (0, 1)) == expected
    assert loader(session).statistics().refused == refused and not altered


@pytest.mark.slow
def test_sound_files_are_looked_up_once_in_each_restore(
    bench: Bench, many_runs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = bench.active("live", stores=four_stores())
    operate(first.task(0), random.Random(1), 400)
    expected = digests(first)
    first.close()
    families: list[str] = []
    monkeypatch.setattr(
        "standfast.store.task.ingested.hidden_row",
        lambda engine, family, key: families.append(family) or hidden_row(engine, family, key),
    )
    session = restored(bench, "bulk", four_stores(), **BULK)
    assert digests(session) == expected
    assert loader(session).statistics().refused == 0
    assert sorted(family.partition("@")[0].partition(".")[0][:3] for family in families) == ["kv", "ses", "win"]


@pytest.mark.slow
def test_full_disk_is_no_refusal(bench: Bench, many_runs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    text = sf.serde.string
    stores = [sf.KeyValueStore("kv", text, text)]
    first = bench.active("live", stores=stores)
    first.task(0).store("kv").put("a", "1", START_MS)
    first.task(0).commit()
    first.close()

    def full(self: RocksEngine, family: str, files: Any) -> None:
        raise Unavailable(f"ingesting into {family!r}: no space left: free disk space on its volume")

    monkeypatch.setattr(RocksEngine, "ingest", full)
    session = bench.session("bulk", stores=stores, **BULK)
    session.assign(active=[0])
    with pytest.raises(AssertionError, match="failed"):
        for _ in range(5_000):
            session.poll_once()
            failed = [one for one in session._instance.tasks.values() if one.error is not None]
            assert not failed, "the task has failed"
    assert loader(session).statistics().refused == 0


# -- the store ---------------------------------------------------------------------------------------------------------


def compiled(path: Path, rows: dict[bytes, bytes | None]) -> tuple[SortedFile, bytes | None]:
    """A file of the compiled writer, and its key of a live row."""
    fold = NativeFold(RAW[0], -1)
    fold.add(RecordColumns(list(range(len(rows))), [0] * len(rows), list(rows), list(rows.values())), 0)
    (family,) = fold.families(drop_deletes=False)
    (file,) = fold.write(family, [path], lambda: None)
    return file, fold.live_keys[path.name]


@pytest.mark.parametrize(
    ("rows", "live"),
    [
        ({b"a": b"1", b"b": b"2"}, b"a"),
        ({b"a": None, b"b": None, b"c": b"3", b"d": b"4"}, b"c"),
        ({b"": b"", b"b": None}, b""),
        ({b"a": None, b"b": None}, None),
    ],
)
def test_file_of_the_compiled_writer_names_a_row_that_is_no_delete(
    tmp_path: Path, rows: dict[bytes, bytes | None], live: bytes | None
) -> None:
    assert compiled(tmp_path / "file", rows)[1] == live


def test_file_of_rocksdbs_own_writer_names_none(tmp_path: Path) -> None:
    fold = NativeFold(RAW[0], -1, rocks_writer=True)
    fold.add(RecordColumns([0, 1], [0, 0], [b"b", b"a"], [b"2", None]), 0)
    (family,) = fold.families(drop_deletes=False)
    (file,) = fold.write(family, [tmp_path / "file"], lambda: None)
    assert (file.entries, file.deletes, file.first_key, file.last_key) == (2, 1, b"a", b"b")
    assert fold.live_keys == {}


@each_alteration
def test_refused_files_move_nothing_and_others_of_the_same_records_follow(
    tmp_path: Path, open_stores: Callable[..., TaskStores], alter: Alter
) -> None:
    stores = open_stores(*RAW)
    rows: dict[bytes, bytes | None] = {b"a": None, b"b": b"2", b"c": b"3"}
    file, live = compiled(tmp_path / "file", rows)
    assert live is not None
    alter(file.path)
    cut = CommitRecord(positions={"kv": Position(9)})
    with pytest.raises(FilesRefused, match=r"does not take these files|hides it"):
        stores.ingest("kv", [("kv", file.path)], StoreTimes(77, 3), cut, [("kv", live)])
    assert stores.poisoned is None and stores.cut.positions == {}
    assert stores.stores["kv"].rows.observed_ms == -1
    # A neighbour that ingests meanwhile takes its own mark away, and no other.
    other = write_sorted(tmp_path / "other", {b"o": b"1"})
    stores.ingest("other", [("other", other.path)], StoreTimes(), CommitRecord(positions={"other": Position(1)}))
    marked = decode_ingesting(stores.engine.get(DEFAULT_FAMILY, INGESTING_KEY), "here")
    assert set(marked) == {"kv"}
    again = write_sorted(tmp_path / "again", rows)
    cut = CommitRecord(positions={"kv": Position(9), "other": Position(1)})
    stores.ingest("kv", [("kv", again.path)], StoreTimes(77, 3), cut)
    assert [stores.engine.get("kv", key) for key in rows] == [None, b"2", b"3"]
    assert stores.engine.get(DEFAULT_FAMILY, INGESTING_KEY) is None
    stores.close()
    assert open_stores(*RAW).cut.positions["kv"].offset == 9


@each_alteration
def test_crash_before_the_other_files_begins_the_store_again(
    tmp_path: Path, open_stores: Callable[..., TaskStores], alter: Alter
) -> None:
    stores = open_stores(*RAW)
    file, live = compiled(tmp_path / "file", {b"b": b"2"})
    assert live is not None
    alter(file.path)
    with pytest.raises(FilesRefused):
        stores.ingest("kv", [("kv", file.path)], StoreTimes(), CommitRecord(), [("kv", live)])
    other = write_sorted(tmp_path / "other", {b"o": b"1"})
    stores.ingest("other", [("other", other.path)], StoreTimes(), CommitRecord(positions={"other": Position(1)}))
    stores.close()
    again = open_stores(*RAW)
    assert again.interrupted == {"kv"} and not again.has_rows("kv")
    assert again.engine.get("other", b"o") == b"1"


def test_refused_file_of_rocksdbs_own_writer_is_an_error_as_ever(
    tmp_path: Path, open_stores: Callable[..., TaskStores]
) -> None:
    stores = open_stores(*RAW)
    file, _ = compiled(tmp_path / "file", {b"b": b"2"})
    newer_version(file.path)
    with pytest.raises((Corruption, InternalError)) as caught:
        stores.ingest("kv", [("kv", file.path)], StoreTimes(), CommitRecord())
    assert not isinstance(caught.value, FilesRefused)
    assert stores.poisoned is caught.value


# -- files that other processes ingest ---------------------------------------------------------------------------------


@each_alteration
def test_write_of_spark_is_refused_where_rocksdb_does_not_take_its_files(
    tmp_path: Path, spoil: Any, alter: Alter
) -> None:
    altered = spoil(alter)
    builder = builder_of(RAW[0], tmp_path, 0, 1 << 20)
    builder.add([Encoded(0, b"a", 1, b"1"), Encoded(0, b"b", 1, b"2")])
    with pytest.raises((Corruption, InvalidRequest), match=r"unsupported format_version|comparator|STANDFAST_NATIVE=0"):
        builder.finish()
    assert altered


@each_alteration
def test_import_is_refused_where_rocksdb_does_not_take_the_files(tmp_path: Path, alter: Alter) -> None:
    folder, spec = tmp_path / "made", RAW[0]
    folder.mkdir()
    builder = RunBuilder(spec, folder, "0", 0, 0, 1 << 20)
    builder.add(RecordColumns([0, 1], [1, 1], [b"a", b"b"], [b"1", b"2"]), 4)
    part = builder.run(2)
    for sound in (True, False):
        if not sound:
            alter(folder / part.files[0].name)
        file = shapes.replace(part.files[0], sha256=sha256_of(folder / part.files[0].name))
        made = Made("table", 0, "0", "0", "lz4")
        whole = (shapes.replace(part, files=(file,)),)
        manifest = Manifest("app", "kv", spec.definition(), "t", "id", 1, whole, made)
        (folder / FILE_NAME).write_text(dump_manifest(manifest))
        if sound:
            assert [one.rows for one in import_tasks(tmp_path / "sound", [folder])] == [2]
            continue
        with pytest.raises((Corruption, InvalidRequest), match=r"format_version|comparator|STANDFAST_NATIVE=0"):
            import_tasks(tmp_path / "state", [folder])
        assert not list((tmp_path / "state" / "app").glob("0_*")), "no task is made of them"


# -- which rows are looked up ------------------------------------------------------------------------------------------


def manifest_file(name: str, first: bytes, last: bytes, family: str = "kv") -> ManifestFile:
    return ManifestFile(name, family, 1, 1, first.hex(), last.hex(), "0" * 64, 0)


def test_row_that_a_later_file_may_replace_is_not_looked_up() -> None:
    files = [manifest_file("0", b"a", b"f"), manifest_file("1", b"g", b"k"), manifest_file("2", b"a", b"c")]
    assert lookups_in(files, {"0": b"b", "1": b"h", "2": None}) == [("kv", b"h")]
    assert lookups_in(files, {"0": b"d", "1": None, "2": None}) == [("kv", b"d")]
    assert lookups_in(files, {"0": b"b", "2": None}) == []
    other = manifest_file("2", b"a", b"c", "other")
    assert lookups_in([*files[:2], other], {"0": b"b", "1": b"h", "2": b"a"}) == [
        ("other", b"a"), ("kv", b"h"), ("kv", b"b"),
    ]  # fmt: skip
    many = [manifest_file(str(at), b"%04d" % at, b"%04d" % at) for at in range(100)]
    assert len(lookups_in(many, {one.name: bytes.fromhex(one.first_key) for one in many})) == LOOKUPS


def test_filter_that_finds_one_key_by_accident_is_found_out_by_the_next_ones(
    tmp_path: Path, open_stores: Callable[..., TaskStores]
) -> None:
    engine = open_stores(*RAW).engine
    assert hidden_row(engine, "kv") is None, "no rows"
    rows: dict[bytes, bytes | None] = {b"%04d" % at: b"v" for at in range(LOOKED_UP_ROWS)}
    good, bad = write_sorted(tmp_path / "good", {b"0000": b"v"}), compiled(tmp_path / "bad", rows)[0]
    engine.ingest("kv", [good.path])
    assert hidden_row(engine, "kv") is None and hidden_row(engine, "kv", b"0000") is None
    assert hidden_row(engine, "kv", b"0001") == b"0001"
    lying_filter(bad.path)
    engine.ingest("kv", [bad.path])
    assert hidden_row(engine, "kv", b"0000") == b"0001"
