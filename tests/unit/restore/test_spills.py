"""Rows that left memory come back as if they had stayed: of a key the newest row, in files as of one run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from standfast.replication.columns import LazyColumns, RecordColumns, Span, payload_bytes
from standfast.replication.kafka.native_library import native
from standfast.replication.log import Record
from standfast.restore.files.manifest import ManifestPartition
from standfast.restore.replay import row_folds
from standfast.restore.replay.row_folds import NativeFold, StoreFold
from standfast.restore.replay.run_builder import RunBuilder
from standfast.store.errors import Unavailable
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from standfast.store.specs import StoreSpec
from support.disk import free_bytes
from support.folds import SPECS, keys, row_key, times

PLAIN = SPECS["plain"]
long_keys = st.sampled_from([b"l" * 241, b"l" * 300, b"k"])
values = st.none() | st.binary(max_size=4) | st.just(b"long" * 30) | st.just(b"larger than a frame" * 10_000)
Rows = list[tuple[bytes | None, int, int, bytes | None]]


def lazy(records: Sequence[Record]) -> LazyColumns:
    """Records as the compiled reader leaves them."""
    columns = [[record[at] for record in records] for at in range(4)]
    return LazyColumns([Span(native().module.part_of("t", 0, *columns), 0, len(records))] if records else [])


def records_of(spec: StoreSpec, rows: Rows, first: int = 0) -> list[Record]:
    return [
        Record(at, at % 10, None if key is None else row_key(spec, key, time, sequence), value)
        for at, (key, time, sequence, value) in enumerate(rows, first)
    ]


def whole(rows: dict[bytes, bytes | None], *, drop_deletes: bool) -> dict[bytes, bytes | None]:
    return {key: row for key, row in rows.items() if not drop_deletes or row is not None}


def taken(folder: Path, files: Sequence[Any], *, name: str) -> dict[str, dict[bytes, bytes]]:
    """The rows that RocksDB finds in these files of a manifest or of a fold, by family."""
    engine = RocksEngine(folder / name, shared=RocksShared(32 << 20))
    try:
        found = {}
        for family in sorted({file.family for file in files}):
            engine.create_family(family)
            engine.ingest(family, [folder / file.name for file in files if file.family == family])
            assert engine.statistics(family).properties["num-files-at-level0"] == 0, "files of one run do not overlap"
            with engine.scan(family) as scan:
                found[family] = dict(scan)
            for key, row in found[family].items():
                assert engine.get(family, key) == row, "its filter knows each key"
        return found
    finally:
        engine.close()


def open_files(folder: Path) -> int:
    """Number of this process's files without a name that were made in a folder."""
    links = [str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    return sum(link.startswith(str(folder)) for link in links)


@pytest.mark.parametrize("name", SPECS)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(st.none() | keys, times, st.integers(0, 5), values), max_size=60)
    | st.lists(st.tuples(keys | long_keys, times, st.integers(0, 5), values), max_size=30),
    size=st.integers(1, 20),
    drop_deletes=st.booleans(),
)
def test_spilled_rows_are_those_of_the_store_s_own_fold(
    tmp_path: Path, name: str, rows: Rows, size: int, drop_deletes: bool
) -> None:
    spec = SPECS[name]
    records = records_of(spec, rows)
    expected, fold = StoreFold(spec, -1), NativeFold(spec, -1)
    for first in range(0, len(records), size):
        batch = records[first : first + size]
        expected.add(batch, payload_bytes(batch))
        fold.add(lazy(batch), payload_bytes(batch))
        if first // size % 4 != 3:
            assert fold.spill(tmp_path / "spill", lambda: None)
            assert fold.used_bytes == 0
    found: list[Any] = []
    for one in (expected, fold):
        families = one.families(drop_deletes=drop_deletes)
        rows_of = {
            family.name: [row for keys, values in family.batches for row in zip(keys, values, strict=True)]
            for family in families
        }
        found.append(
            ({name: some for name, some in rows_of.items() if some}, one.dropped, one.observed_ms, one.sequence)
        )
    assert found[0] == found[1]
    assert (expected.records, expected.skipped) == (fold.records, fold.skipped)
    assert not list(tmp_path.iterdir()), "a spill has no name"


def built(folder: Path, spec: StoreSpec, records: Sequence[Record], prefix: str, **how: Any) -> list[ManifestPartition]:
    """Runs of these records, in pieces of fifty, as a worker builds them."""
    given: dict[str, Any] = {"budget_bytes": 20_000, "spills_max": 100} | how
    builder = RunBuilder(spec, folder, prefix, 0, 0, **given)
    runs = []
    for first in range(0, len(records), 50):
        piece = records[first : first + 50]
        builder.add(lazy(piece), payload_bytes(piece))
        if builder.full and not builder.spill():
            runs.append(builder.run(piece[-1].offset + 1))
    return [*runs, builder.run(len(records))]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("drop_deletes", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_one_run_of_spills_has_the_rows_of_a_run_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, drop_deletes: bool, threads: int
) -> None:
    monkeypatch.setattr(row_folds, "MERGED_FILE_BYTES", 20_000)
    rows: Rows = [
        (b"key-%04d" % (at * 37 % 700), at * 60, at % 3, None if at % 11 == 0 else b"v%d" % at * 9)
        for at in range(3_000)
    ]
    spec = SPECS[name]
    records = records_of(spec, rows)
    how: dict[str, Any] = {"drop_deletes": drop_deletes, "writers": threads}
    (fits,) = built(tmp_path, spec, records, "fits", budget_bytes=1 << 30, **how)
    (spilled,) = built(tmp_path, spec, records, "spilled", **how)
    assert len({file.name for file in spilled.files}) == len(spilled.files) > len(fits.files)
    for file in spilled.files:
        assert (tmp_path / file.name).stat().st_size == file.bytes
        assert file.first_key <= file.last_key
    assert taken(tmp_path, spilled.files, name="b") == taken(tmp_path, fits.files, name="a")
    assert (spilled.entries, spilled.tombstones, spilled.records) == (fits.entries, fits.tombstones, fits.records)
    assert not list(tmp_path.glob("*.spill"))


def test_spills_become_a_run_when_there_are_enough_of_them(tmp_path: Path) -> None:
    rows: Rows = [(b"key-%05d" % at, 0, 0, b"v" * 100) for at in range(2_000)]
    records = records_of(PLAIN, rows)
    without = built(tmp_path, PLAIN, records, "w", spills_max=0)
    with_them = built(tmp_path, PLAIN, records, "s", spills_max=3)
    assert len(without) > 8 and len(with_them) == -(-len(without) // 4)
    assert [run.end for run in with_them[:-1]] == [run.end for run in without[3::4]][: len(with_them) - 1]
    assert sum(run.entries for run in with_them) == 2_000


def test_filter_of_merged_rows_has_the_size_of_the_rows_that_are_left(tmp_path: Path) -> None:
    rows: Rows = [(b"key-%05d" % (at % 1_000), 0, 0, b"v") for at in range(16_000)]
    (few,) = built(tmp_path, PLAIN, records_of(PLAIN, rows), "few", budget_bytes=200_000)
    (once,) = built(tmp_path, PLAIN, records_of(PLAIN, rows[-1_000:]), "once", budget_bytes=1 << 30)
    assert few.entries == once.entries == 1_000
    assert few.files[0].bytes < once.files[0].bytes + 2 * 1_250


def test_segment_that_is_only_in_memory_is_divided_among_files(tmp_path: Path) -> None:
    spec, fold = SPECS["win"], NativeFold(SPECS["win"], -1)
    fold.add(lazy(records_of(spec, [(b"old", 0, 0, b"v")])), 0)
    assert fold.spill(tmp_path / "spill", lambda: None)
    fold.add(lazy(records_of(spec, [(b"key-%05d" % at, 120_000, 0, b"v") for at in range(5_000)], 1)), 0)
    new = max(fold.families(drop_deletes=False), key=lambda family: family.entries)
    files = fold.write(new, [tmp_path / f"{at}.sst" for at in range(3)], lambda: None, 2)
    assert len(files) == 3 and sum(file.entries for file in files) == 5_000
    assert all(one.last_key < other.first_key for one, other in pairwise(files))


def test_rows_of_many_frames_come_back(tmp_path: Path) -> None:
    chance = Random(1)
    rows: Rows = [(b"%08d" % (at * 7_919 % 20_011), 0, 0, chance.randbytes(100)) for at in range(40_000)]
    records = records_of(PLAIN, rows)
    (spilled,) = built(tmp_path, PLAIN, records, "spilled", budget_bytes=2_000_000, writers=2)
    expected = {key: value for key, _, _, value in rows}
    assert sum(file.bytes for file in spilled.files) > 1_000_000, "frames have 131,072 bytes"
    assert taken(tmp_path, spilled.files, name="db") == {"plain": expected}


def test_damaged_spill_ends_the_merge(tmp_path: Path) -> None:
    fold = NativeFold(PLAIN, -1)
    fold.add(lazy(records_of(PLAIN, [(b"a", 0, 0, b"spilled")])), 0)
    fold.spill(tmp_path / "damaged", lambda: None)
    links = [one for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    (number,) = (link.name for link in links if f"{tmp_path}/damaged" in str(link.readlink()))
    fold.add(lazy(records_of(PLAIN, [(b"b", 0, 0, b"in memory")], 1)), 0)
    (family,) = fold.families(drop_deletes=False)
    os.pwrite(int(number), b"S", 9)
    with pytest.raises(Unavailable, match="Input/output error"):
        fold.write(family, [tmp_path / "file.sst"], lambda: None)
    os.truncate(int(number), 5)
    with pytest.raises(Unavailable, match="Input/output error"):
        fold.write(family, [tmp_path / "file.sst"], lambda: None)
    assert not (tmp_path / "file.sst").exists()


def test_spill_that_the_disk_refuses_loses_no_row(tmp_path: Path) -> None:
    fold = NativeFold(PLAIN, -1)
    fold.add(lazy(records_of(PLAIN, [(b"a", 0, 0, b"1")])), 0)
    with pytest.raises(Unavailable, match="absent"):
        fold.spill(tmp_path / "absent" / "spill", lambda: None)
    (family,) = fold.families(drop_deletes=False)
    assert list(family.batches) == [([b"a"], [b"1"])] and fold.spills == 0


def test_disk_that_is_full_in_the_middle_of_a_spill_loses_no_row(
    small_disk: Callable[[int], Path], tmp_path: Path
) -> None:
    disk, fold = small_disk(2), NativeFold(PLAIN, -1)
    before = free_bytes(disk)
    rows: Rows = [(b"key-%05d" % at, 0, 0, os.urandom(1_000)) for at in range(3_000)]
    fold.add(lazy(records_of(PLAIN, rows)), 0)
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"(?i)no space left"):
            fold.spill(disk / "spill", lambda: None)
    assert fold.spills == 0 and free_bytes(disk) == before, "the file ended with its error"
    assert fold.spill(tmp_path / "spill", lambda: None)
    (family,) = fold.families(drop_deletes=False)
    with pytest.raises(Unavailable, match=r"(?i)no space left"):
        fold.write(family, [disk / "0.sst", disk / "1.sst"], lambda: None, 2)
    assert not list(disk.glob("*.sst"))
    found = fold.write(family, [tmp_path / "0.sst", tmp_path / "1.sst"], lambda: None, 2)
    engine = RocksEngine(tmp_path / "db", shared=RocksShared(32 << 20))
    engine.create_family("plain")
    engine.ingest("plain", [file.path for file in found])
    with engine.scan("plain") as scan:
        assert dict(scan) == {key: value for key, _, _, value in rows}
    engine.close()


def test_spill_that_is_tried_again_counts_dead_rows_once(tmp_path: Path) -> None:
    spec = SPECS["win"]
    fold = NativeFold(spec, -1)
    fold.add(lazy(records_of(spec, [(b"a", 0, 0, b"1")])), 0)
    fold.add(lazy(records_of(spec, [(b"a", 900_000, 0, b"2")], 1)), 0)
    with pytest.raises(Unavailable, match="absent"):
        fold.spill(tmp_path / "absent" / "spill", lambda: None)
    assert fold.expired == 0 and fold.spill(tmp_path / "spill", lambda: None)
    assert fold.expired == 1


def test_owner_is_asked_between_small_segments(tmp_path: Path) -> None:
    spec, looks = SPECS["win"], list[int]()
    builder = RunBuilder(spec, tmp_path, "small", 0, 0, 1 << 30, spills_max=9, check=lambda: looks.append(1))
    rows: Rows = [(b"%d" % at, at % 3 * 60_000, 0, os.urandom(4_000)) for at in range(3_000)]
    builder.add(lazy(records_of(spec, rows)), 0)
    assert builder.spill() and len(looks) == 2, "after each 4 MiB of all segments, which have 4 MB each"
    looks.clear()
    builder.run(3_000)
    assert len(looks) >= 3, "before each family"


def test_owner_s_word_ends_a_spill_and_a_merge_and_leaves_no_file(tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def enough() -> None:
        raise Enough

    fold = NativeFold(PLAIN, -1)
    rows: Rows = [(b"key-%05d" % at, 0, 0, os.urandom(1_000)) for at in range(12_000)]
    fold.add(lazy(records_of(PLAIN, rows)), 0)
    with pytest.raises(Enough):
        fold.spill(tmp_path / "first", enough)
    assert fold.spill(tmp_path / "second", lambda: None)
    (family,) = fold.families(drop_deletes=False)
    with pytest.raises(Enough):
        fold.write(family, [tmp_path / f"{at}.sst" for at in range(2)], enough, 2)
    assert not list(tmp_path.glob("*.sst")) and not list(tmp_path.glob("*d"))


def test_kept_error_of_a_closed_builder_holds_no_disk(tmp_path: Path) -> None:
    builder = RunBuilder(PLAIN, tmp_path, "kept", 0, 0, 1, spills_max=1)
    builder.add(lazy(records_of(PLAIN, [(b"a", 0, 0, b"1")])), 2)
    assert builder.full and builder.spill() and not builder.full
    assert builder.used_bytes == 8 + 2, "the next run takes the spilled row"
    assert open_files(tmp_path) == 1
    (tmp_path / "kept-0-0-0.sst.tmp").mkdir()
    with pytest.raises(Unavailable) as kept:
        builder.run(1)
    builder.close()
    assert kept.value.__traceback__ is not None and open_files(tmp_path) == 0


def test_store_s_own_fold_keeps_its_rows_in_memory(tmp_path: Path) -> None:
    fold = StoreFold(PLAIN, -1)
    fold.add(records_of(PLAIN, [(b"a", 0, 0, b"1")]), 2)
    assert not fold.spill(tmp_path / "spill", lambda: None)
    (family,) = fold.families(drop_deletes=False)
    assert list(family.batches) == [([b"a"], [b"1"])]


def test_columns_of_an_embedded_log_are_spilled_as_well(tmp_path: Path) -> None:
    fold = NativeFold(PLAIN, -1)
    fold.add(RecordColumns([0, 1], [0, 0], [b"a", b"b"], [b"1", b"2"]), 4)
    assert fold.spill(tmp_path / "spill", lambda: None)
    fold.add(RecordColumns([2], [0], [b"a"], [None]), 1)
    (family,) = fold.families(drop_deletes=False)
    assert list(family.batches) == [([b"a", b"b"], [None, b"2"])]
