"""Rebuild and verify of a store in one pass over its changelog.

    source ── sort ── in the task: each batch ──> files of the rebuild
                                              └─> merge with the store's rows at rest

Both read the records of a partition in the same order, so the sorted batches pass a writer and go on to the merge. The
rebuild ends at the log's end and the store's position lies below: a partition's facts cover both.

Rules of this file: it combines the work of `rebuild.py` and `verify.py`, and decides nothing about rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from standfast.replication.log import Log
from standfast.replication.offsets import Bounds
from standfast.restore.compare import ComparisonOutcome
from standfast.restore.digest import Digest
from standfast.restore.spark.batches import PartitionFacts, StoreShape
from standfast.restore.spark.folder import Folder
from standfast.restore.spark.frames import Mapper, OnTasks, Reading, attempt_of, run_partitions
from standfast.restore.spark.rebuild import (
    FILE_BYTES,
    PartitionWriter,
    RebuildJob,
    Rebuilt,
    begin,
    complete,
)
from standfast.restore.spark.rows import partitions_of
from standfast.restore.spark.session import parallelism
from standfast.restore.spark.source import SourceName
from standfast.restore.spark.split_survey import plan_splits
from standfast.restore.spark.verify import (
    Looked,
    StorePlan,
    Verified,
    VerifyJob,
    collected,
    limits_of,
    settings_of,
    told,
    verify_partition,
    verify_store,
)
from standfast.restore.spark.verify_rows import OUT_DDL, answer_batch
from standfast.restore.verify.preflight import Preflight

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rebuild_and_verify(
    spark: SparkSession,
    log: Log,
    what: Preflight,
    folder: Folder,
    plan: StorePlan,
    *,
    now_ms: Callable[[], int],
    source: SourceName = "native",
    connector_options: Mapping[str, str] | None = None,
    file_bytes: int = FILE_BYTES,
    split_bytes: int | None = None,
    include_values: bool = False,
    on_tasks: OnTasks | None = None,
) -> tuple[Rebuilt, Verified]:
    """`rebuild` and `verify_store` of one store, each partition read once; only rows that may have changed under the
    reader are read again. Raises the errors of `rebuild`."""
    began_ms = now_ms()
    shared = _shared(what, plan)
    limits = {number: span.end for number, span in what.ranges.items()}
    old: dict[int, bool] = {}
    if plan.what is not None:
        positions, old = limits_of(plan, replace(plan.what, ranges=shared), began_ms)
        # In a partition that both read, facts below the position are the store's and `whole` is the rebuild's.
        limits |= positions
    splits = plan_splits(log, what, parallelism(spark), split_bytes)
    shape = StoreShape(what.spec.name, what.spec.definition(), limits, splits)
    writing = begin(shape, folder, file_bytes)
    settings = settings_of(plan, include_values=include_values)
    places = {number: plan.stored[number].place for number in shared}
    # A database is opened by its recorded definition, which has more fields than a rebuild uses.
    comparing = VerifyJob(replace(shape, definition=plan.definition), places, shared, old, settings)
    options = connector_options or {}
    rows = run_partitions(spark, Reading(what, shape, source, options), _both(writing, comparing), OUT_DDL, on_tasks)
    looked = collected(rows, shared, settings)
    # Before the second look: from here on, a run that is cut short keeps the rebuild.
    made = complete(log, what, folder, rows, began_ms, now_ms)
    if plan.what is not None:
        plan = replace(plan, what=replace(plan.what, ranges={**plan.what.ranges, **shared}))
    seen = verify_store(
        spark,
        log,
        plan,
        now_ms=began_ms,
        source=source,
        connector_options=options,
        include_values=include_values,
        split_bytes=split_bytes,
        looked=looked,
        on_tasks=on_tasks,
    )
    return made, seen


def looked_at_files(made: Rebuilt) -> Looked:
    """Results for rebuilt files that their own tasks have read back: their digest equals that of the log's rows.

    Partitions whose digests differ are left out: a second look must name their rows.
    """
    looked: Looked = {}
    for number, answer in made.answers.items():
        if answer["read_back"] is not None and answer["read_back"] == answer["digest"]:
            log, files = Digest.from_hex(answer["digest"]), Digest.from_hex(answer["read_back"])
            outcome = ComparisonOutcome(matched=log.count, log_digest=log, store_digest=files)
            looked[number] = PartitionFacts.of(answer["facts"]), outcome
    return looked


def _shared(what: Preflight, plan: StorePlan) -> dict[int, Bounds]:
    """Ranges of partitions that both read; others are verified alone.

    A store's position may lie beyond the rebuild's end, or the log may have lost its head since. And a rebuild of a
    source topic ends at the group's offset: records above it may be all that compaction has left of a row in the store.
    """
    if plan.what is None:
        return {}
    found = {}
    for number, span in plan.what.ranges.items():
        own, position = what.ranges.get(number), plan.stored[number].position
        if own is None or own.begin != span.begin or position is None or position.offset > own.end:
            continue
        if own.end >= span.end or not what.spec.from_source:
            found[number] = own
    return found


def _both(writing: RebuildJob, comparing: VerifyJob) -> Mapper:
    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempt = attempt_of()  # part of the file names: a speculative attempt must not write the same files
        for facts, own in partitions_of(batches, writing.shape):
            with PartitionWriter(writing, facts, attempt) as writer:
                passing = writer.tapped(own)
                if facts.partition in comparing.places:
                    yield from told(facts, verify_partition(comparing, facts, passing))
                for _ in passing:  # the writer needs all batches, also those that no merge has read
                    pass
                answer: dict[str, Any] = writer.finish()
            yield answer_batch(facts.partition, json.dumps(answer))

    return work
