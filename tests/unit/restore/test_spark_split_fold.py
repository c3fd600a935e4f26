"""A partition in parts, without Spark: rows, counts and verdicts are those of the partition as a whole.

Rules of this file: records, pieces and keys are drawn by hypothesis; a bucket gets the records that Spark's shuffle and
sort would give it (`spark_folds`). Both sides run the same code of tasks, one with the partition whole.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.restore.test_spark_fold import DRAWS, KIND, SHARED, SPECS, applied, made

from standfast.replication.log import Record
from standfast.restore.compare import ComparisonOutcome
from standfast.restore.files.manifest import ManifestFile
from standfast.restore.spark.batches import StoreShape
from standfast.restore.spark.merge import ComparisonSettings, merge_partition
from standfast.restore.spark.rebuild import PartitionWriter, RebuildJob, RecordCounts, buckets_added_up, ingest_files
from standfast.restore.spark.rows import partitions_of
from standfast.restore.spark.split_plan import (
    OffsetSample,
    Split,
    numbered,
    parts_of,
    spark_hash,
    split,
    split_at,
    tickets_of,
)
from standfast.restore.spark.verify_rows import added_up
from standfast.restore.verdict import LogFacts
from standfast.restore.verify.import_tasks import link_files
from standfast.store.errors import InternalError
from standfast.store.rocks.engine import RocksEngine
from standfast.store.specs import StoreSpec
from support.spark_folds import sorted_buckets

CUTS = st.lists(st.integers(0, 130), max_size=4)


def in_parts(records: list[Record], cuts: list[int], borders: list[bytes]) -> tuple[Split, list[list[Record]]]:
    """Pieces at these offsets, and buckets at these keys."""
    edges = sorted({0, *cuts})
    pieces = [
        [one for one in records if low <= one.offset < high]
        for low, high in zip(edges, [*edges[1:], 10**6], strict=True)
    ]
    keys = sorted({*borders})
    return Split(tuple(edges), tuple(keys), tuple(range(len(keys) + 1))), pieces


def content(folder: Path, spec: StoreSpec, answer: dict[str, Any]) -> dict[str, list[tuple[bytes, bytes]]]:
    """Rows of the files, by family."""
    files = [ManifestFile(**one) for one in answer["files"]]
    with tempfile.TemporaryDirectory() as name:
        engine = RocksEngine(Path(name) / "rows", shared=SHARED)
        try:
            ingest_files(engine, link_files(folder, files, Path(name) / "linked"))
            return {family: list(engine.scan(family)) for family in sorted(engine.families() - {"default"})}
        finally:
            engine.close()


def worked(
    shape: StoreShape, pieces: list[list[Record]], store: Any, folder: Path
) -> tuple[dict[str, Any], ComparisonOutcome, list[Any]]:
    """The report of tasks that rebuild and compare a partition in one pass, its buckets added up."""
    job = RebuildJob(shape, str(folder), "0" * 12, file_bytes=1, read_back=True)
    answers, looks, found = [], [], []
    split = shape.splits.get(0)
    for bucket, batches in sorted(sorted_buckets(shape, 0, pieces).items()):
        facts, own = next(partitions_of(batches, shape))
        assert facts.bucket == bucket
        low, high = split.span(bucket) if split else (None, None)
        limit = shape.limits[0]
        keys = LogFacts(0, compacted=facts.records < limit, deletes_expired=facts.records < limit and facts.above > 0)
        with PartitionWriter(job, facts, attempt=bucket) as writer:
            outcome = merge_partition(
                writer.tapped(own), store, facts, keys, ComparisonSettings(limit=limit, last=True, low=low, high=high)
            )
            answers.append(writer.finish())
        looks.append((facts, outcome))
        found += outcome.found
    facts, total = added_up(looks)
    answer = answers[0] if len(answers) == 1 else buckets_added_up(answers)
    assert facts == replace(looks[0][0], refused=facts.refused)
    return answer, replace(total, found=[]), sorted(found, key=lambda one: one.key)


@settings(max_examples=25, deadline=None)
@given(KIND, DRAWS, CUTS, st.lists(st.integers(0, 59), max_size=4), st.integers(0, 120), st.integers(0, 2**32))
def test_partition_in_parts_has_the_rows_counts_and_verdicts_of_the_whole(
    kind: str, draws: list[tuple[int, int, bool]], cuts: list[int], chosen: list[int], limit: int, seed: int
) -> None:
    spec, records = SPECS[kind], made(kind, draws)
    borders = [records[at].key or b"" for at in chosen if at < len(records)]
    split, pieces = in_parts(records, cuts, borders)
    whole = StoreShape(spec.name, spec.definition(), {0: limit})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for one in ("whole", "parts"):
            (folder / one).mkdir()
        # A store that differs from the log: rows are missing, extra and different.
        rng = random.Random(seed)
        kept = [one for one in records if one.offset < limit and rng.random() < 0.9]
        store = applied(folder / "live", spec, [*kept, *(one for one in records if rng.random() < 0.05)])
        view_of = store.committed_view(spec.name)
        answer, outcome, found = worked(whole, [records], view_of, folder / "whole")
        other, in_sum, also = worked(replace(whole, splits={0: split}), pieces, view_of, folder / "parts")
        assert content(folder / "parts", spec, other) == content(folder / "whole", spec, answer)
        assert (in_sum, also) == (outcome, found)
        told = {key: value for key, value in answer.items() if key != "files"}
        assert {key: value for key, value in other.items() if key != "files"} == told
        assert answer["read_back"] == answer["digest"]


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(KIND, DRAWS, st.integers(0, 120))
def test_rebuild_beside_a_compare_has_the_rows_of_a_rebuild_alone(
    kind: str, draws: list[tuple[int, int, bool]], limit: int
) -> None:
    spec, records = SPECS[kind], made(kind, draws)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for one in ("alone", "beside"):
            (folder / one).mkdir()
        store = applied(folder / "live", spec, [one for one in records if one.offset < limit])
        view_of = store.committed_view(spec.name)
        alone, _, _ = worked(StoreShape(spec.name, spec.definition(), {0: 10**6}), [records], view_of, folder / "alone")
        beside, outcome, found = worked(
            StoreShape(spec.name, spec.definition(), {0: limit}), [records], view_of, folder / "beside"
        )
        assert content(folder / "beside", spec, beside) == content(folder / "alone", spec, alone)
        assert [beside[one] for one in ("digest", "superseded", "tombstones", "expired", "seen")] == [
            alone[one] for one in ("digest", "superseded", "tombstones", "expired", "seen")
        ]
        assert beside["facts"]["records"] == len(records)
        assert not found
        assert outcome.log_digest == outcome.store_digest


def test_one_partition_of_half_of_all_is_split_and_equal_ones_are_not() -> None:
    gib = 1 << 30
    assert parts_of(dict.fromkeys(range(1_000), float(gib)), cores=200) == {}
    assert parts_of({0: 50.0 * gib, **dict.fromkeys(range(1, 51), float(gib))}, cores=10) == {0: 5}
    assert parts_of({0: 10.0 * gib, 1: 10.0 * gib}, cores=2) == {}
    assert parts_of({0: 0.9 * gib}, cores=64) == {}
    assert parts_of({0: 3.0 * gib}, cores=64) == {0: 3}
    assert parts_of({0: 100.0, 1: 10.0}, cores=1, asked_bytes=30) == {0: 4}
    assert parts_of({0: 1e12}, cores=1, asked_bytes=1)[0] == 512


def test_parts_are_of_about_equal_bytes_also_of_a_log_that_was_compacted() -> None:
    # A thousandth of the old records is left; new ones stand close together, and some keys are large.
    places = [OffsetSample(at * 1_000, 0.001, 0.1, (b"old%04d" % at,)) for at in range(8)]
    places += [
        OffsetSample(8_000 + at * 1_000, 1.0, 100.0, tuple(b"k%d%03d" % (at, n) for n in range(10))) for at in range(8)
    ]
    edges, keys = split_at(places, 16_000, 4)
    assert edges[0] == 0 and len(edges) == 4
    assert [edge >= 8_000 for edge in edges[1:]] == [True] * 3
    assert [round((edge - 8_000) / 2_000) for edge in edges[1:]] == [1, 2, 3]
    assert [key[:2] for key in keys] == [b"k2", b"k4", b"k6"]


def test_one_key_is_never_in_two_buckets_and_little_is_split_into_less() -> None:
    assert split_at([OffsetSample(0, 1.0, 10.0, (b"hot",) * 50)], 1_000, 8)[1] == ()
    edges, keys = split_at([OffsetSample(0, 1.0, 10.0, (b"a", b"hot", b"hot", b"hot"))], 2, 8)
    assert keys == (b"hot",)
    assert edges == (0, 1)
    assert split_at([OffsetSample(5, 0.0, 0.0, ())], 9, 3) == ((5,), ())


def test_every_bucket_has_a_ticket_of_its_own() -> None:
    splits = numbered({3: ((0, 5), (b"m",)), 1: ((0,), (b"c", b"f"))})
    assert [one.buckets for one in (splits[1], splits[3])] == [3, 2]
    tickets = [*splits[1].tickets, *splits[3].tickets]
    assert [spark_hash(one) % 5 for one in tickets] == list(range(5))
    assert len(set(tickets_of(700))) == 700
    assert Split.load(splits[1].dump()) == splits[1]
    assert (splits[1].span(0), splits[1].span(2)) == ((None, b"c"), (b"f", None))
    assert sum((RecordCounts(), RecordCounts(2, 1, 1, 9, 5, 7, 8)), RecordCounts()) == RecordCounts(2, 1, 1, 9, 5, 7, 8)


def test_ranges_hold_equal_shares_of_the_records() -> None:
    assert split([(0, 1.0)], 100, 4, 1) == [(0, 25), (25, 50), (50, 75), (75, 100)]
    assert split([(0, 1.0)], 100, 4, 40) == [(0, 50), (50, 100)]
    # The first half was compacted to a tenth: the middle of the records lies at (10 + 100) / 2 = 55 of 110.
    assert split([(0, 0.1), (100, 1.0)], 200, 2, 1) == [(0, 145), (145, 200)]
    assert split([(7, 1.0)], 7, 4, 1) == [(7, 7)]
    assert split([(0, 0.0), (50, 0.0)], 100, 4, 1) == [(0, 100)]
    with pytest.raises(InternalError):
        split([(5, 1.0)], 4, 1, 1)


@given(
    st.lists(st.tuples(st.integers(0, 1_000), st.floats(0, 1)), min_size=1, max_size=8),
    st.integers(0, 1_000),
    st.integers(1, 8),
    st.integers(1, 50),
)
def test_ranges_cover_all_offsets_once(samples: list[tuple[int, float]], more: int, parts: int, least: int) -> None:
    samples = sorted(samples)
    end = samples[-1][0] + more
    ranges = split(samples, end, parts, least)
    assert 1 <= len(ranges) <= parts
    assert ranges[0][0] == samples[0][0] and ranges[-1][1] == end
    assert all(start <= stop for start, stop in ranges)
    assert all(one[1] == other[0] for one, other in pairwise(ranges))
