"""Differences that a verify task keeps and sends to the driver, without Spark: bounded, by default without values.

Rules of this file: Arrow batches and stores in memory; no Spark is started.
"""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from unit.restore.test_spark_fold import shape_of

from standfast.replication.log import Record
from standfast.restore.compare import FOUND_OVERHEAD_BYTES, ComparisonOutcome, UnequalRow, row_side
from standfast.restore.digest import row_hash
from standfast.restore.spark.merge import ComparisonSettings, merge_partition
from standfast.restore.spark.report import differences_table
from standfast.restore.spark.rows import partitions_of
from standfast.restore.spark.verify_rows import OUT, found_batch, load_found, load_summary, summary_batch
from standfast.restore.verdict import LogFacts
from standfast.restore.verify.at_rest import view
from standfast.store.engine import Engine
from standfast.store.memory import MemoryEngine
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from standfast.store.task.commit_record import StoreTimes
from support.spark_folds import sorted_batches
from support.stores import keyvalue

SPEC = keyvalue(timestamped=False)
VALUE = b"secret" * 1_000


class Row(SimpleNamespace):
    """A row as Spark gives it."""

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def merged(records: list[Record], **settings: Any) -> ComparisonOutcome:
    """The merge of these records with an empty store."""
    engine = MemoryEngine()
    engine.create_family(SPEC.name)
    facts, own = next(partitions_of(sorted_batches(shape_of(SPEC, 10_000), 0, records)))
    store = view(engine, SPEC, StoreTimes())
    return merge_partition(
        own, store, facts, LogFacts(0, compacted=False), ComparisonSettings(limit=10_000, last=True, **settings)
    )


def compared(records: list[Record], rows: dict[bytes, bytes], **settings: Any) -> ComparisonOutcome:
    """The merge of these records, in one batch, with a store of these rows."""
    engine = MemoryEngine()
    engine.create_family(SPEC.name)
    engine.write({SPEC.name: rows})
    return run(records, engine, **settings)


def run(records: list[Record], engine: Engine, **settings: Any) -> ComparisonOutcome:
    facts, own = next(partitions_of(sorted_batches(shape_of(SPEC, 10_000), 0, records, rows=10_000)))
    keys = LogFacts(0, compacted=False)
    return merge_partition(
        own, view(engine, SPEC, StoreTimes()), facts, keys, ComparisonSettings(limit=10_000, last=True, **settings)
    )


@pytest.mark.parametrize("seed", range(5))
def test_verdicts_do_not_depend_on_how_many_rows_are_held_at_once(seed: int) -> None:
    rng = random.Random(seed)
    keys = [b"k%04d" % number for number in range(700)]
    logged = {key: b"v" for key in keys if rng.random() < (0.01, 0.5, 1)[seed % 3]}
    rows = {key: rng.choice((b"v", b"v", b"x")) for key in keys if rng.random() < (1, 0.9, 0.1)[seed % 3]}
    records = [Record(number, 0, key, value) for number, (key, value) in enumerate(logged.items())]
    whole, pieces = compared(records, rows), compared(records, rows, chunk_bytes=1)
    assert pieces == whole
    assert whole.counts == {
        kind: count
        for kind, count in (
            ("missing", len(logged.keys() - rows.keys())),
            ("extra", len(rows.keys() - logged.keys())),
            ("different", sum(rows.get(key, value) != value for key, value in logged.items())),
        )
        if count
    }


def test_rows_of_the_store_between_two_records_are_not_all_held(tmp_path: Path) -> None:
    size, count = 20_000, 2_000
    engine = RocksEngine(tmp_path / "rows", shared=RocksShared(8 << 20))
    engine.create_family(SPEC.name)
    for at in range(0, count, 100):
        engine.write({SPEC.name: {b"k%04d" % number: bytes(size) for number in range(at, at + 100)}})
    records = [Record(0, 0, b"a", b"v"), Record(1, 0, b"z", b"v")]
    run(records, engine, chunk_bytes=1 << 20)  # the first run of a process imports its libraries, which take 25 MB
    tracemalloc.start()
    outcome = run(records, engine, chunk_bytes=1 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    engine.close()
    assert outcome.counts == {"missing": 2, "extra": count}
    assert peak < size * count / 2, f"{peak / 1e6:.0f} MB"


def many(count: int) -> list[Record]:
    return [Record(number, 0, b"k%03d" % number, VALUE) for number in range(count)]


@pytest.mark.parametrize("value_max", [0, 100])
def test_differences_leave_a_task_with_size_and_hash_and_the_bytes_that_were_asked_for(value_max: int) -> None:
    outcome = merged(many(3), value_max=value_max)
    batch = found_batch(7, outcome.found)
    assert batch.schema == OUT
    back = [load_found(Row(**one)) for one in batch.to_pylist()]
    assert back == outcome.found
    side = back[0].log
    assert side is not None
    kept = VALUE[:value_max] if value_max else None
    assert side == (-1, kept, len(VALUE), row_hash(b"k000", -1, VALUE))
    assert (b"secret" in batch.serialize().to_pybytes()) == bool(value_max)
    (first, *_) = differences_table([("kv", 7, one) for one in back]).to_pylist()
    assert (first["log_value_bytes"], first["log_hash"], first["log_value"]) == (len(VALUE), side.hash, kept)


def test_what_a_task_keeps_is_bounded_by_rows_and_by_bytes_and_counted_whole() -> None:
    assert [one.key for one in merged(many(50), differences_max=3).found] == [b"k000", b"k001", b"k002"]
    few = merged(many(50), found_bytes=10 * FOUND_OVERHEAD_BYTES)
    assert len(few.found) == 10
    assert few.counts == {"missing": 50}
    assert len(merged(many(50), found_bytes=10_000, value_max=4_096).found) == 3


def test_summary_comes_back_as_it_was() -> None:
    outcome = merged(many(2))
    outcome.beyond = 1
    facts, _ = next(partitions_of(sorted_batches(shape_of(SPEC, 9), 0, many(2))))
    (row,) = summary_batch(facts, outcome).to_pylist()
    found, back = load_summary(row["summary"])
    assert (found, back.counts, back.matched, back.beyond) == (facts, outcome.counts, outcome.matched, 1)
    assert (back.log_digest, back.store_digest) == (outcome.log_digest, outcome.store_digest)


def test_first_differences_are_the_first_keys() -> None:
    assert merged(many(2)).found == [
        UnequalRow("missing", b"k000", row_side((b"k000", -1, VALUE), 0), None, 0),
        UnequalRow("missing", b"k001", row_side((b"k001", -1, VALUE), 0), None, 1),
    ]
