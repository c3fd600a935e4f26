"""Records without a key in a changelog: every reader skips and counts them, and makes the rows of the others.

No store writes such a record, and Kafka Streams skips it when it restores. The embedded log and the broker take
one only into a topic that is not compacted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from unit.restore.test_spark_fold import SPECS as SHAPES
from unit.restore.test_spark_fold import made, shape_of
from unit.store.test_staged_rows import changelog

import standfast as sf
from standfast.ops.observe.metrics_list import METRICS
from standfast.ops.observe.status import status_document
from standfast.replication.columns import RecordColumns
from standfast.replication.log import Outgoing, Record
from standfast.replication.offsets import TopicPartition
from standfast.restore.digest import Digest, digest_rows
from standfast.restore.files.manifest import Made, Manifest, ManifestPartition, dump_manifest, parse_manifest
from standfast.restore.fold import fold_for
from standfast.restore.replay.run_builder import RunBuilder
from standfast.restore.spark.rebuild import RebuildJob, write_partition
from standfast.restore.spark.rows import partitions_of
from standfast.restore.verify.verify import committed_views, verify_task
from standfast.store.specs import StoreSpec
from standfast.store.task.task_stores import TaskStores
from support.bulk import BATCHES, BULK, digests, drive, loader
from support.sessions import DAY_MS, KINDS, Bench, four_stores, operate
from support.spark_folds import sorted_batches
from support.stores import Open, at, keyvalue, session, versioned, window

SPECS: list[StoreSpec] = [keyvalue(), window(), session(), versioned()]
LATE_MS = 10**15  # of a record without a key: the stream time must not follow it
DELETING: dict[str, Any] = {"changelog": {"cleanup.policy": "delete"}}


def spoilt(records: Sequence[Record], seed: int) -> tuple[list[Record], int]:
    """The records with keyless ones among them, and the number of these."""
    rng = Random(seed)
    mixed: list[Record] = []
    for record in records:
        if rng.random() < 0.2:
            mixed.append(Record(len(mixed), LATE_MS, None, rng.choice((None, b"v"))))
        mixed.append(record._replace(offset=len(mixed)))
    return mixed, len(mixed) - len(records)


def columns(records: Sequence[Record]) -> RecordColumns:
    return RecordColumns(
        [one.offset for one in records],
        [one.timestamp for one in records],
        [one.key for one in records],
        [one.value for one in records],
    )


def held(task: TaskStores, name: str) -> dict[str, Any]:
    return {"rows": list(task.store(name).logical_rows()), "observed": task.store(name).rows.observed_ms}


@pytest.mark.parametrize("by_column", [False, True], ids=["records", "columns"])
@pytest.mark.parametrize("spec", [*SPECS, keyvalue("plain", timestamped=False)], ids=lambda spec: spec.name)
def test_store_restores_the_rows_of_the_others_and_counts(
    open_task: Open, tmp_path: Path, spec: StoreSpec, by_column: bool
) -> None:
    clean = changelog("kv" if spec.kind == "keyvalue" else spec.name, 1)
    mixed, without = spoilt(clean, 1)
    whole, other = open_task(spec, directory=tmp_path / "whole"), open_task(spec, directory=tmp_path / "other")
    whole.apply({spec.name: clean}, at(len(clean), spec.name))
    for start in range(0, len(mixed), 37):
        batch = mixed[start : start + 37]
        other.apply({spec.name: columns(batch) if by_column else batch}, at(start + len(batch), spec.name))
    assert held(other, spec.name) == held(whole, spec.name)
    assert held(other, spec.name)["rows"]
    assert other.store(spec.name).rows.counters.skipped == without > 0
    assert other.cut.positions[spec.name].offset == len(mixed)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_fold_passes_over_them_and_counts(spec: StoreSpec) -> None:
    clean = changelog(spec.name, 2)
    mixed, without = spoilt(clean, 2)
    retention_ms = None if spec.kind == "keyvalue" else 120_000
    whole, other = (fold_for(spec.kind, retention_ms=retention_ms) for _ in range(2))
    whole.add(clean)
    for start in range(0, len(mixed), 29):
        other.add(mixed[start : start + 29])
    assert sorted(other.rows()) == sorted(whole.rows())
    assert (other.skipped, whole.skipped) == (without, 0)
    assert other.position == len(mixed)


@pytest.mark.parametrize("spec", SPECS[:3], ids=lambda spec: spec.name)
def test_runs_of_a_bulk_restore_hold_none_and_each_record_is_accounted_for(tmp_path: Path, spec: StoreSpec) -> None:
    clean = changelog(spec.name, 3)
    mixed, without = spoilt(clean, 3)
    runs = []
    for name, records in (("clean", clean), ("mixed", mixed)):
        (tmp_path / name).mkdir()
        builder = RunBuilder(spec, tmp_path / name, "0", 0, 0, 1 << 20)
        builder.add(columns(records), 0)
        runs.append(builder.run(len(records)))
    whole, run = runs
    shapes = [[(one.family, one.entries, one.deletes, one.first_key, one.last_key) for one in of.files] for of in runs]
    assert shapes[0] == shapes[1] != []
    assert (run.skipped, whole.skipped) == (without, 0)
    deletes = sum(file.deletes for file in run.files)
    accounted = run.entries - deletes + run.tombstones + run.superseded + run.expired + run.skipped
    assert (accounted, run.expired) == (run.records, whole.expired)
    assert run.records == len(mixed)


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("kind", sorted(SHAPES))
def test_partition_that_spark_prepares_and_folds_has_the_rows_of_the_others(
    tmp_path: Path, kind: str, rows: int
) -> None:
    clean = made(kind, [(number % 5, number * 7 % 400, number % 4 == 0) for number in range(60)])
    mixed, without = spoilt(clean, 4)
    answers = []
    for name, records in (("clean", clean), ("mixed", mixed)):
        (tmp_path / name).mkdir()
        job = RebuildJob(shape_of(SHAPES[kind], 10_000), str(tmp_path / name), "0" * 12)
        facts, own = next(partitions_of(sorted_batches(job.shape, 0, records, rows)))
        answers.append(write_partition(job, facts, own))
        assert (facts.skipped, facts.records) == (len(records) - len(clean), len(records))
    assert answers[0]["digest"] == answers[1]["digest"]
    assert answers[0]["facts"]["observed_ms"] == answers[1]["facts"]["observed_ms"]
    assert without


def test_records_without_a_key_beyond_the_limit_of_a_store_are_not_counted(tmp_path: Path) -> None:
    records = [Record(0, 1, b"a", b"1"), Record(1, 1, None, b"1"), Record(2, 1, None, b"1"), Record(3, 1, b"b", b"1")]
    facts, own = next(partitions_of(sorted_batches(shape_of(SHAPES["keyvalue"], 2), 0, records)))
    assert (facts.skipped, facts.records, facts.above) == (1, 2, 2)
    assert [key for batch in own for key in batch.column("key").to_pylist()] == [b"a", b"b"]


def test_manifest_names_them_only_where_there_are_any(tmp_path: Path) -> None:
    """So that a version without that field reads all others."""
    for skipped in (0, 4):
        part = ManifestPartition(0, 0, 10, 10, (), -1, 0, 4, 0, 4 - skipped, 0, 0, None, skipped)
        whole = Manifest("app", "kv", keyvalue().definition(), "t", "id", 1, (part,), Made("run", 0, "1", "1", "lz4"))
        text = dump_manifest(whole)
        assert ("skipped" in text) == bool(skipped)
        assert parse_manifest(text, "it") == whole


# -- through a session ------------------------------------------------------------------------------------------------


def spoil(bench: Bench, name: str, count: int, at_ms: int = LATE_MS) -> TopicPartition:
    """Another client's records in a store's changelog."""
    changelog_of = TopicPartition(f"app-{name}-changelog", 0)
    bench.log.producer().append({changelog_of: [Outgoing(None, b"v", at_ms)] * count})
    return changelog_of


def filled(bench: Bench) -> tuple[list[Any], dict[tuple[str, int], Digest]]:
    """All kinds of stores with rows, then records without a key, then rows again; returns the live stores' rows."""
    stores = four_stores(**DELETING)
    first = bench.active("live", stores=stores)
    operate(first.task(0), Random(1), 100)
    for name in KINDS:
        spoil(bench, name, 3)
    first.reopen(0)  # it must read them: a commit of its own may not pass another client's records
    bench.settle(first)
    again = first.task(0)
    operate(again, Random(2), 100)
    found = digests(first)
    first.close()
    return stores, found


def skipped(owner: sf.Session) -> dict[str, int]:
    (task,) = owner.statistics().tasks
    return {store.store: store.skipped for store in task.stores}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["active", "standby", "bulk"])
def test_active_standby_and_bulk_restore_agree_count_and_log_it_once(
    bench: Bench, many_runs: None, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    stores, expected = filled(bench)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "standfast"):
        owner = bench.session(how, stores=stores, take_over=False, **(BULK if how == "bulk" else BATCHES))
        if how == "standby":
            owner.assign(standby=[0])
            bench.settle(owner)
        else:
            owner.assign(active=[0])
            drive(owner)
    assert digests_of(owner) == expected
    assert skipped(owner) == dict.fromkeys(KINDS, 3)
    lines = [one.getMessage() for one in caplog.records if "no key" in one.getMessage()]
    assert len(lines) == len(KINDS)
    assert all(sum(f"app-{name}-changelog-0" in line for line in lines) == 1 for name in KINDS)
    if how == "bulk":
        assert loader(owner).statistics().runs >= 3
    document = status_document(owner.statistics())
    assert [store["skipped"] for store in document["tasks"][0]["stores"]] == [3] * len(KINDS)


def digests_of(owner: sf.Session) -> dict[tuple[str, int], Digest]:
    (task,) = owner.all_tasks().values()
    return {(name, 0): digest_rows(store.logical_rows()) for name, store in task.stores.stores.items()}


@pytest.mark.slow
def test_verify_finds_equal_and_says_how_many(bench: Bench) -> None:
    stores, _ = filled(bench)
    owner = bench.active("again", stores=stores)
    task = owner.task(0)
    found = verify_task(
        task.id,
        committed_views(task.stores),
        task.stores.cut.positions,
        bench.log,
        "app",
        now_ms=bench.clock.wall_ms(),
    )
    assert [(one.store, one.verdict, one.skipped) for one in found] == [(name, "equal", 3) for name in sorted(KINDS)]


@pytest.mark.slow
def test_a_changelog_of_nothing_else_is_restored_as_empty(bench: Bench) -> None:
    stores = four_stores(**DELETING)
    bench.active("live", stores=stores).close()
    for name in KINDS:
        spoil(bench, name, 5)
    for how, settings in (("batches", BATCHES), ("bulk", BULK)):
        owner = bench.session(how, stores=stores, **settings)
        owner.assign(active=[0])
        drive(owner)
        assert all(one == Digest() for one in digests(owner).values())
        assert skipped(owner) == dict.fromkeys(KINDS, 5)
        owner.close()


def test_the_metric_says_what_it_counts() -> None:
    (metric,) = [one for one in METRICS if one.short == "changelog_skipped_total"]
    assert "without a key" in metric.help


def test_window_that_would_expire_by_the_time_of_such_a_record_stays(bench: Bench) -> None:
    """Its own time is no stream time: else one stray record would hide every window."""
    stores = [
        sf.WindowStore("win", sf.serde.string, sf.serde.string, window_size_ms=1, retention_ms=DAY_MS, **DELETING)
    ]
    first = bench.active("live", stores=stores)
    first.task(0).store("win").put("a", "1", 1_000)
    first.task(0).commit()
    first.close()
    spoil(bench, "win", 1)
    owner = bench.active("again", stores=stores)
    assert owner.task(0).store("win").fetch("a", 1_000) == "1"
