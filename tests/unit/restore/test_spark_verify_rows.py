"""What a task of a verify keeps and tells the driver, without Spark: bounded, and without values unless asked.

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
from standfast.restore.compare import FOUND_OVERHEAD_BYTES, Found, Outcome
from standfast.restore.digest import row_hash
from standfast.restore.judgement import LogFacts
from standfast.restore.report.page import partitions
from standfast.restore.report.parts import COUNTS, SHOWN_BYTES, key_text, shown, side_text
from standfast.restore.row_side import row_side
from standfast.restore.spark.folder import Folder
from standfast.restore.spark.merge import Settings, merge_partition
from standfast.restore.spark.report import PAGE, differences_table, write_report
from standfast.restore.spark.rows import partitions_of
from standfast.restore.spark.verify_rows import OUT, found_batch, load_found, load_summary, summary_batch
from standfast.restore.verify.at_rest import view
from standfast.store import session_key, window_key
from standfast.store.engine import Engine
from standfast.store.memory import MemoryEngine
from standfast.store.rocks.engine import RocksEngine, RocksShared
from standfast.store.task.cut import StoreTimes
from support.spark_folds import sorted_batches
from support.stores import keyvalue

SPEC = keyvalue(timestamped=False)
VALUE = b"secret" * 1_000


class Row(SimpleNamespace):
    """A row as Spark gives it."""

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def merged(records: list[Record], **settings: Any) -> Outcome:
    """The merge of these records with an empty store."""
    engine = MemoryEngine()
    engine.create_family(SPEC.name)
    facts, own = next(partitions_of(sorted_batches(shape_of(SPEC, 10_000), 0, records)))
    store = view(engine, SPEC, StoreTimes())
    return merge_partition(
        own, store, facts, LogFacts(0, compacted=False), Settings(limit=10_000, last=True, **settings)
    )


def compared(records: list[Record], rows: dict[bytes, bytes], **settings: Any) -> Outcome:
    """The merge of these records, in one batch, with a store of these rows."""
    engine = MemoryEngine()
    engine.create_family(SPEC.name)
    engine.write({SPEC.name: rows})
    return run(records, engine, **settings)


def run(records: list[Record], engine: Engine, **settings: Any) -> Outcome:
    facts, own = next(partitions_of(sorted_batches(shape_of(SPEC, 10_000), 0, records, rows=10_000)))
    keys = LogFacts(0, compacted=False)
    return merge_partition(
        own, view(engine, SPEC, StoreTimes()), facts, keys, Settings(limit=10_000, last=True, **settings)
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


def test_side_is_shown_without_its_value_unless_it_was_kept_and_cut() -> None:
    assert side_text(None) == "(absent)"
    assert side_text(row_side((b"k", 5, VALUE), 0)) == f"6,000 B #{row_hash(b'k', 5, VALUE):016x} @5"
    whole = side_text(row_side((b"k", 5, VALUE), None))
    assert whole.startswith("secretsecret") and whole.endswith("… (6,000 B) @5") and len(whole) < SHOWN_BYTES + 30
    assert side_text(row_side((b"k", -1, b"v"), None)) == "v"


def test_text_that_is_cut_within_a_character_is_shown_as_text() -> None:
    assert shown(b"a" * (SHOWN_BYTES - 1) + "é".encode()) == "a" * (SHOWN_BYTES - 1) + "…"
    assert shown(b"\xff" * 200).startswith("0xffff")


def test_first_differences_are_the_first_keys() -> None:
    assert merged(many(2)).found == [
        Found("missing", b"k000", row_side((b"k000", -1, VALUE), 0), None, 0),
        Found("missing", b"k001", row_side((b"k001", -1, VALUE), 0), None, 1),
    ]


def test_keys_of_windows_and_sessions_are_shown_with_their_times_and_damaged_ones_as_they_are() -> None:
    at_ms = 1_700_000_000_123
    text = "2023-11-14T22:13:20.123Z"
    assert key_text("window", window_key.pack(b"k3", at_ms)) == f"k3 [{text}]"
    assert key_text("window", window_key.pack(b"k3", at_ms, 7)) == f"k3 [{text}] #7"
    assert key_text("session", session_key.pack(b"k3", at_ms, at_ms)) == f"k3 [{text} - {text}]"
    assert key_text("window", window_key.pack(b"k3", 2**63 - 1)) == f"k3 [{2**63 - 1}]"
    assert key_text("keyvalue", b"k3") == "k3"
    assert key_text("window", b"\xff") == key_text("session", b"\xff") == "0xff"


def test_page_has_digests_in_a_table_of_their_own() -> None:
    counts = dict.fromkeys(("position", "end", "records", *COUNTS), 1)
    row = {"store": "kv", "kind": "keyvalue", "verdict": "equal", "partition": 0, **counts}
    text = partitions([row | {"log_digest": "1-00ff-2", "store_digest": "1-00fe-2"}])
    first, second = text.split("</table>")[:2]
    assert "digest" not in first and "1-00ff-2" in second and "1-00fe-2" in second


def test_page_shows_keys_with_their_times_and_no_values(tmp_path: Path) -> None:
    counts = dict.fromkeys(("position", "end", "records", *COUNTS), 1)
    row = {
        "store": "win",
        "kind": "window",
        "verdict": "different",
        "partition": 0,
        "explanation": "",
        "skipped": 0,
        **counts,
    }
    row |= {"log_digest": "1-00-1", "store_digest": "1-01-1", "skipped": 0}
    about = {"app": "a", "verdict": "different", "elapsed_ms": 1, "log": "l", "source": "native", "sample": 1}
    key = window_key.pack(b"<b>", 1_000)
    found = Found("extra", key, None, row_side((key, 5, VALUE), 0), -1)
    write_report(Folder(str(tmp_path)), about | {"stores": [row]}, [("win", 0, found)])
    page = (tmp_path / PAGE).read_text()
    assert "&lt;b&gt; [1970-01-01T00:00:01.000Z]" in page and "6,000 B #" in page
    assert "secret" not in page and "<b>" not in page
