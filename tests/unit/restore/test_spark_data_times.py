"""Spark's table of a store, without Spark: versions at a time as the store itself returns them, bounded batches.

Rules of this file: real stores; no Spark is started.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from unit.restore.test_spark_fold import applied, made

from standfast.replication.log import Record
from standfast.restore.spark_table.columns import key_columns
from standfast.restore.spark_table.options import Filters
from standfast.restore.spark_table.stores import CHUNK_BYTES, STEP_ROWS, read_rows
from standfast.restore.verify.at_rest import StoreAtRest, view
from standfast.store.memory import MemoryEngine
from standfast.store.results import VALID_TO_UNDEFINED
from standfast.store.task.commit_record import StoreTimes
from support.stores import keyvalue, session, versioned, window

SPEC = versioned()
SECONDS = 20
Versions = set[tuple[str, int, int, str]]


def told(at_rest: StoreAtRest, filters: Filters) -> Versions:
    """Rows of the table."""
    found: Versions = set()
    for _, cells in read_rows(at_rest, SPEC, filters):
        names = ("key", "valid_from", "valid_to", "value")
        for key, begins, ends, value in zip(*(cells[name] for name in names), strict=True):
            found.add((key.decode(), begins, VALID_TO_UNDEFINED if ends is None else ends, value.decode()))
    return found


def as_told(key: str, one: Any) -> tuple[str, int, int, str]:
    return key, one.valid_from, one.valid_to, one.value


@pytest.mark.parametrize("seed", range(3))
def test_table_of_a_time_has_the_versions_that_the_store_answers_with(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    # "k0" is old: its latest version began before the history that the store still keeps.
    records = [Record(0, 1_000, b"k0", b"first"), Record(1, 2_000, b"k0", b"old")]
    for offset in range(2, 60):
        value = None if rng.random() < 0.2 else b"v%d" % offset
        records.append(Record(offset, 1_000 * min(SECONDS, offset // 3), b"k%d" % rng.randrange(1, 4), value))
    stores = applied(tmp_path / "live", SPEC, records)
    observed_ms = stores.store(SPEC.name).rows.observed_ms
    times = StoreTimes(observed_ms, 0)
    store: Any = view(stores.engine, SPEC, times)
    at_rest = StoreAtRest(store, SPEC.definition(), None, times)
    keys = [f"k{number}" for number in range(4)]
    moments = range(0, 1_000 * SECONDS + 2_000, 500)
    assert observed_ms - SPEC.history_retention_ms > 2_000
    for at_ms in moments:
        answers = {as_told(key, one) for key in keys if (one := store.get(key, as_of=at_ms)) is not None}
        assert told(at_rest, Filters(as_of=at_ms)) == answers, at_ms
    for first, last in ((0, 1_500), (0, 5_000), (1_000, 2_000), (3_000, 15_000), (14_000, 30_000), (0, 30_000)):
        answers = {as_told(key, one) for key in keys for one in store.range(key, first, last)}
        assert told(at_rest, Filters(time_from=first, time_to=last)) == answers, (first, last)
    stores.close()


@pytest.mark.parametrize(
    "spec", [window(), window(retain_duplicates=True), session()], ids=["window", "duplicates", "session"]
)
def test_table_of_a_time_has_the_windows_and_sessions_that_the_store_answers_with(tmp_path: Path, spec: Any) -> None:
    kind = "duplicates" if spec.numbered else spec.kind
    records = made(kind, [(number % 3, number * 9, number % 7 == 6) for number in range(40)])
    stores = applied(tmp_path / "live", spec, records)
    times = StoreTimes(stores.store(spec.name).rows.observed_ms, 0)
    store: Any = view(stores.engine, spec, times)
    at_rest = StoreAtRest(store, spec.definition(), None, times)
    unit = spec.traits.times.unit
    for first, last in ((0, 400_000), (250_000, 300_000), (300_000, 200_000), (270_000, 270_000)):
        found = set()
        for count, cells in read_rows(at_rest, spec, Filters(time_from=first, time_to=last)):
            assert all(len(column) == count for column in cells.values())
            assert set(cells) <= set(key_columns(spec)) | {"key", "sequence", "value", "timestamp"}
            rows = zip(*(cells[name] for name in ("key", f"{unit}_start", f"{unit}_end")), strict=True)
            found |= {(key.decode(), start, end) for key, start, end in rows}
        if spec.kind == "window":
            answers = {one for one, _ in store.fetch_all(first, last)}
        else:
            answers = {one for key in ("k0", "k1", "k2") for one, _ in store.find_sessions(key, first, last)}
        assert found == {tuple(one) for one in answers}, (first, last)
        assert bool(found) == (first <= last)
    stores.close()


def test_batches_of_a_table_are_bounded_by_bytes() -> None:
    spec = keyvalue(timestamped=False)
    engine = MemoryEngine()
    engine.create_family(spec.name)
    value = bytes(1 << 17)
    engine.write({spec.name: {b"k%03d" % number: value for number in range(600)}})
    times = StoreTimes()
    at_rest = StoreAtRest(view(engine, spec, times), spec.definition(), None, times)
    counts = [count for count, _ in read_rows(at_rest, spec, Filters())]
    assert sum(counts) == 600
    assert max(counts) <= (CHUNK_BYTES >> 17) + STEP_ROWS
