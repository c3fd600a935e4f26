"""The work of Spark's tasks on a partition, without Spark: rows of a rebuild, and the merge of a verify.

Rules of this file: every fold is compared with a store that applied the same records in order;
differences are planted by hypothesis.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.replication.log import Record
from standfast.restore.compare import ComparisonOutcome, RowSide
from standfast.restore.digest import Digest, digest_rows
from standfast.restore.files.manifest import ManifestFile
from standfast.restore.spark.batches import StoreShape
from standfast.restore.spark.merge import ComparisonSettings, merge_partition
from standfast.restore.spark.rebuild import RebuildJob, write_partition
from standfast.restore.spark.rows import partitions_of
from standfast.restore.verdict import LogFacts
from standfast.restore.verify.at_rest import view
from standfast.restore.verify.import_tasks import link_files
from standfast.store import session_key, window_key
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from standfast.store.specs import StoreSpec
from standfast.store.task.commit_record import CommitRecord, StoreTimes
from standfast.store.task.task_stores import TaskStores
from support.spark_folds import sorted_batches
from support.stores import keyvalue, session, versioned, window

SHARED = RocksShared(16 << 20)
SPECS = {
    "keyvalue": keyvalue(),
    "plain": keyvalue(timestamped=False),
    "window": window(),
    "duplicates": window(retain_duplicates=True),
    "session": session(),
    "versioned": versioned(),
}


def shape_of(spec: StoreSpec, limit: int) -> StoreShape:
    return StoreShape(spec.name, spec.definition(), {0: limit})


def made(kind: str, draws: list[tuple[int, int, bool]]) -> list[Record]:
    """Records of a store kind: (key, time in seconds, whether it deletes), offsets with gaps."""
    records = []
    for number, (key, second, deletes) in enumerate(draws):
        at_ms, raw = second * 1_000, b"k%d" % key
        if kind in ("window", "duplicates"):
            raw = window_key.pack(raw, at_ms, number + 1 if kind == "duplicates" else 0)
        elif kind == "session":
            raw = session_key.pack(raw, max(at_ms - 500, 0), at_ms)
        records.append(Record(2 * number, at_ms, raw, None if deletes else b"v%d" % number))
    return records


def applied(folder: Path, spec: StoreSpec, records: list[Record]) -> TaskStores:
    """A task that applied the records one batch after the other."""
    stores = TaskStores(folder, "app", "0_0", [spec], SHARED, now_ms=lambda: 0)
    for at in range(0, len(records), 5):
        stores.apply({spec.name: records[at : at + 5]}, CommitRecord())
    return stores


def digest(view: Any) -> Digest:
    present = view.rows.engine.families()
    return digest_rows(view.logical_rows()) if any(one in present for one in view.families()) else Digest()


DRAWS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 400), st.booleans()), max_size=60)
KIND = st.sampled_from(sorted(SPECS))


@settings(max_examples=25)
@given(KIND, DRAWS)
def test_rebuilt_rows_have_the_digest_of_rows_that_were_applied(kind: str, draws: list[tuple[int, int, bool]]) -> None:
    spec, records = SPECS[kind], made(kind, draws)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "out").mkdir()
        job = RebuildJob(shape_of(spec, 10_000), str(folder / "out"), "0" * 12, file_bytes=1)
        facts, own = next(partitions_of(sorted_batches(job.shape, 0, records)))
        answer = write_partition(job, facts, own)
        files = [ManifestFile(**one) for one in answer["files"]]
        live = applied(folder / "live", spec, records)
        taken = TaskStores(folder / "taken", "app", "0_0", [spec], SHARED, now_ms=lambda: 0)
        linked = link_files(folder / "out", files, folder / "linked")
        taken.ingest(spec.name, linked, StoreTimes(facts.observed_ms, facts.sequence), CommitRecord())
        rows, view_of = live.committed_view(spec.name).rows, taken.committed_view(spec.name)
        assert view_of.rows.observed_ms == rows.observed_ms
        assert view_of.rows.sequence == rows.sequence
        expected = digest(live.committed_view(spec.name))
        assert digest(view_of) == expected
        assert answer["digest"] == expected.hex()
        # Physically too: later reads and writes find the same rows.
        assert physical(taken, spec) == physical(live, spec)
        live.close()
        taken.close()


def physical(stores: TaskStores, spec: StoreSpec) -> dict[tuple[str, bytes], bytes]:
    return {
        (family, key): row for family in stores.store(spec.name).families() for key, row in stores.engine.scan(family)
    }


PLANTS = st.lists(st.tuples(st.sampled_from(["remove", "change", "add"]), st.integers(0, 99)), max_size=6)


@settings(max_examples=25)
@given(st.sampled_from(["keyvalue", "plain", "window", "session", "versioned"]), DRAWS, PLANTS, st.integers(0, 20))
def test_merge_finds_exactly_what_was_planted(
    kind: str, draws: list[tuple[int, int, bool]], plants: list[tuple[str, int]], later: int
) -> None:
    spec, records = SPECS[kind], made(kind, draws)
    limit = records[max(len(records) - later, 0)].offset if records and later else 10_000
    below = [record for record in records if record.offset < limit]
    with tempfile.TemporaryDirectory() as name:
        live = applied(Path(name) / "live", spec, below)
        before = logical(live, spec)
        plant(live.engine, live, spec, plants)
        after = logical(live, spec)
        found = merge(live, spec, records, limit)
        live.close()
    missing, extra = before.keys() - after.keys(), after.keys() - before.keys()
    different = {key for key in before.keys() & after.keys() if before[key] != after[key]}
    assert found.matched == len(before) - len(missing) - len(different)
    assert {identity(kind, one.key, one.log or one.store) for one in found.found} == missing | extra | different
    assert (found.log_digest == found.store_digest) == (before == after)


@settings(max_examples=40)
@given(st.sampled_from(["keyvalue", "plain", "window", "session", "versioned"]), DRAWS, st.integers(0, 20), st.data())
def test_merge_reports_nothing_wrong_after_any_compaction(
    kind: str, draws: list[tuple[int, int, bool]], later: int, data: st.DataObject
) -> None:
    spec, records = SPECS[kind], made(kind, draws)
    limit = records[max(len(records) - later, 0)].offset if records and later else 10_000
    last = {record.key: record.offset for record in records}
    kept = [one for one in records if one.offset == last[one.key] or data.draw(st.booleans())]
    with tempfile.TemporaryDirectory() as name:
        live = applied(Path(name) / "live", spec, [record for record in records if record.offset < limit])
        found = merge(live, spec, kept, limit, compacted=True)
        live.close()
    assert found.found == []
    assert found.log_digest == found.store_digest
    assert set(found.counts) <= {"indeterminate"}


def merge(
    live: TaskStores, spec: StoreSpec, records: list[Record], limit: int, *, compacted: bool = False
) -> ComparisonOutcome:
    shape = shape_of(spec, limit)
    facts, own = next(partitions_of(sorted_batches(shape, 0, records)))
    times = StoreTimes(live.store(spec.name).rows.observed_ms, 0)
    rows = view(live.engine, spec, times)
    return merge_partition(
        own, rows, facts, LogFacts(0, compacted=compacted), ComparisonSettings(limit=limit, last=True)
    )


def identity(kind: str, key: bytes, side: RowSide | tuple[int, bytes] | None) -> Any:
    assert side is not None
    return (key, side[0]) if kind == "versioned" else key


def logical(live: TaskStores, spec: StoreSpec) -> dict[Any, tuple[int, bytes]]:
    store = view(live.engine, spec, StoreTimes(live.store(spec.name).rows.observed_ms, 0))
    return {identity(spec.kind, key, (at, value)): (at, value) for key, at, value in store.logical_rows()}


def plant(engine: Any, live: TaskStores, spec: StoreSpec, plants: list[tuple[str, int]]) -> None:
    assert isinstance(engine, RocksEngine)
    rows = [(family, key, row) for family in live.store(spec.name).families() for key, row in engine.scan(family)]
    latest = [one for one in rows if spec.kind != "versioned" or one[1].startswith(b"\xff" * 8)]
    for what, number in plants if latest else ():
        family, key, row = latest[number % len(latest)]
        if what == "remove":
            engine.write({family: {key: None}})
        elif what == "change":
            engine.write({family: {key: row + b"!"}})
        elif spec.kind == "keyvalue":
            engine.write({family: {b"planted%d" % number: row}})
