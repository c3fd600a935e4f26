"""Sorted files, and their rows in a database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from standfast.store.errors import Corruption, InvalidRequest, Unavailable
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from standfast.store.rocks.sst import write_sorted

FAMILY = "aircraft"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[RocksEngine]:
    opened = RocksEngine(tmp_path / "db", shared=RocksShared(32 << 20))
    opened.create_family(FAMILY)
    yield opened
    opened.close()


def rows_of(engine: RocksEngine, family: str = FAMILY) -> dict[bytes, bytes]:
    with engine.scan(family) as scan:
        return dict(scan)


def test_file_says_what_it_holds_and_is_moved_by_the_ingest(engine: RocksEngine, tmp_path: Path) -> None:
    path = tmp_path / "0.sst"
    file = write_sorted(path, {b"b": b"1", b"a": None, b"\xff\x00": b"2"})
    assert (file.path, file.entries, file.deletes, file.first_key, file.last_key) == (path, 3, 1, b"a", b"\xff\x00")
    assert file.size_bytes == path.stat().st_size
    assert [one.name for one in tmp_path.iterdir() if one.is_file()] == ["0.sst"]
    engine.ingest(FAMILY, [path])
    assert not path.exists()
    assert rows_of(engine) == {b"b": b"1", b"\xff\x00": b"2"}


def test_rows_of_an_ingest_outlive_a_reopen_without_a_flush(tmp_path: Path) -> None:
    shared = RocksShared(32 << 20)
    engine = RocksEngine(tmp_path / "db", shared=shared)
    engine.create_family(FAMILY)
    engine.write({FAMILY: {b"a": b"old", b"b": b"old"}})
    engine.ingest(FAMILY, [write_sorted(tmp_path / "0.sst", {b"a": b"new"}).path])
    engine.write({FAMILY: {b"c": b"newer"}})
    engine.close()
    again = RocksEngine(tmp_path / "db", shared=shared)
    assert rows_of(again) == {b"a": b"new", b"b": b"old", b"c": b"newer"}
    again.close()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.dictionaries(st.binary(max_size=3), st.none() | st.binary(max_size=4), min_size=1, max_size=8),
        ),
        max_size=6,
    )
)
def test_files_and_batches_in_any_order_agree_with_a_dictionary(
    engine: RocksEngine, tmp_path: Path, steps: list[tuple[bool, dict[bytes, bytes | None]]]
) -> None:
    engine.drop_family(FAMILY)
    engine.create_family(FAMILY)
    model: dict[bytes, bytes | None] = {}
    for number, (as_file, rows) in enumerate(steps):
        model |= rows
        if as_file:
            engine.ingest(FAMILY, [write_sorted(tmp_path / f"{number}.sst", rows).path])
        else:
            engine.write({FAMILY: rows})
    assert rows_of(engine) == {key: value for key, value in sorted(model.items()) if value is not None}
    engine.compact(FAMILY)
    assert rows_of(engine) == {key: value for key, value in sorted(model.items()) if value is not None}


def test_file_of_no_rows_or_in_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no rows"):
        write_sorted(tmp_path / "0.sst", {})
    with pytest.raises(Unavailable, match="absent"):
        write_sorted(tmp_path / "absent" / "0.sst", {b"a": b"1"})
    assert not list(tmp_path.iterdir())


def test_missing_or_cut_file_is_refused_and_changes_nothing(engine: RocksEngine, tmp_path: Path) -> None:
    engine.write({FAMILY: {b"a": b"1"}})
    with pytest.raises((Corruption, Unavailable)):
        engine.ingest(FAMILY, [tmp_path / "absent.sst"])
    cut = write_sorted(tmp_path / "0.sst", {b"a": b"2"}).path
    cut.write_bytes(cut.read_bytes()[:-10])
    with pytest.raises(Corruption):
        engine.ingest(FAMILY, [cut])
    assert rows_of(engine) == {b"a": b"1"}
