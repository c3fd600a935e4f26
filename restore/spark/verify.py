"""Verify on Spark: stores at rest against their changelogs, folded to the positions of the stores.

    places (tasks) ──> positions ──> [begin, end now) of each changelog partition ──> sort ──> merge in the task
                                                                 │ rows "again"
                                                                 └──> once more, with new bounds, for the last time

The list of tasks drives the job, not the records: a partition whose log is empty is compared like the others, or its
extra rows would go unseen.

Rules of this file: plans, runs and adds up; `standfast.restore.verdict` gives a difference its meaning, as in the
verify of one process. It reads only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pyarrow as pa

from standfast.replication.log import Log, TopicInfo
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.restore.compare import DIFFERENCES_MAX, VALUE_MAX_BYTES, ComparisonOutcome, UnequalRow
from standfast.restore.digest import digest_rows
from standfast.restore.spark.batches import PartitionFacts, StoreShape, numbers
from standfast.restore.spark.frames import Mapper, OnTasks, Reading, run_partitions
from standfast.restore.spark.merge import FOUND_BYTES, FOUND_MAX, ComparisonSettings, merge_partition
from standfast.restore.spark.places import TaskPlace, open_place, stores_of
from standfast.restore.spark.rows import Counts, fold_rows, partitions_of
from standfast.restore.spark.session import parallelism
from standfast.restore.spark.source import SourceName
from standfast.restore.spark.split_survey import plan_splits
from standfast.restore.spark.verify_rows import (
    FOUND_ROWS,
    OUT_DDL,
    added_up,
    found_batch,
    load_found,
    load_summary,
    summary_batch,
)
from standfast.restore.verdict import LogFacts, Verdict, deletes_expired
from standfast.restore.verify.preflight import Preflight, average_bytes
from standfast.restore.verify.store_rows import SAMPLE_BITS, rows_in_order
from standfast.restore.verify.verify import ATTEMPTS, StoreVerdict, concluded, inconclusive, mismatch
from standfast.store import serde as serdes
from standfast.store.errors import InternalError, InvalidRequest, StateLost, UnknownStore
from standfast.store.names import few
from standfast.store.specs import StoreSpec
from standfast.store.task.commit_record import Position, StoreTimes
from standfast.store.types.kinds import definition_spec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Looked: TypeAlias = dict[int, tuple[PartitionFacts, ComparisonOutcome]]

FOUND_BYTES_MIN = 32 << 10  # for each partition, however many share FOUND_BYTES


class StoredAt(NamedTuple):
    """A store of one partition, as in its commit record; `known`, `note`: see `places.Described`."""

    place: TaskPlace
    definition: Mapping[str, Any]
    position: Position | None
    times: StoreTimes
    known: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True)
class StorePlan:
    """One store over its partitions: the ranges to read, and in `unread` verdicts where the log cannot speak."""

    app: str
    spec: StoreSpec
    definition: Mapping[str, Any]
    info: TopicInfo | None
    stored: Mapping[int, StoredAt]
    what: Preflight | None
    unread: tuple[StoreVerdict, ...] = ()

    @property
    def records_max(self) -> int:
        """Upper bound of the records to read."""
        return 0 if self.what is None else self.what.records_max


@dataclass(frozen=True, slots=True)
class Verified:
    """Verdicts by store and partition, and every kept difference with its store's name and partition."""

    verdicts: tuple[StoreVerdict, ...]
    found: tuple[tuple[str, int, UnequalRow], ...]


@dataclass(frozen=True, slots=True)
class VerifyJob:
    """Parameters of the tasks."""

    shape: StoreShape
    places: Mapping[int, TaskPlace]
    ranges: Mapping[int, Bounds]
    old: Mapping[int, bool]
    settings: ComparisonSettings


@dataclass(frozen=True, slots=True)
class How:
    """Source of a job's records, its split, and the receiver of its progress."""

    source: SourceName
    options: Mapping[str, str]
    split_bytes: int | None
    on_tasks: OnTasks | None


def stored_stores(places: Sequence[TaskPlace], name: str | None = None) -> dict[str, dict[int, StoredAt]]:
    """Logged stores of these places, by name and partition. Raises UnknownStore, InvalidRequest for two definitions."""
    found: dict[str, dict[int, StoredAt]] = {}
    definitions: dict[str, Mapping[str, Any]] = {}
    for place, at_place in stores_of(places):
        for store, at_rest in at_place.items():
            # A store in memory has no files, and one without a changelog nothing to be compared with.
            kept = at_rest.definition["logging"] and at_rest.definition.get("engine") != "memory"
            if name not in (None, store) or not kept:
                continue
            if definitions.setdefault(store, at_rest.definition) != at_rest.definition:
                raise InvalidRequest(f"store {store!r} has another definition in {place}: verify them one by one")
            stored = StoredAt(place, at_rest.definition, at_rest.position, at_rest.times, at_rest.known, at_rest.note)
            found.setdefault(store, {})[place.task.partition] = stored
    if not found:
        raise UnknownStore(f"no logged store {name!r} in {few(places)}" if name else
                           "none of these tasks has a store that is logged")  # fmt: skip
    return found


def plan_verify(log: Log, app: str, name: str, stored: Mapping[int, StoredAt]) -> StorePlan:
    """Settle the ranges to read for one store; partitions for which the log cannot speak get their verdict here."""
    definition = next(iter(stored.values())).definition
    spec = definition_spec(name, definition)
    topic = spec.changelog_of(app)
    info = log.admin.describe_topic(topic)
    unread: list[StoreVerdict] = []
    ranges: dict[int, Bounds] = {}
    asked = [number for number, at in stored.items() if not _mismatch(at, info, number, None)]
    reader = log.reader()
    try:
        # One request for all partitions: a topic may have a thousand.
        bounds = reader.bounds([TopicPartition(topic, number) for number in sorted(asked)]) if asked else {}
        for partition, at_rest in sorted(stored.items()):
            source = TopicPartition(topic, partition)
            span = bounds.get(source)
            reason = _mismatch(at_rest, info, partition, span)
            if reason:
                task, observed_ms = at_rest.place.task, at_rest.times.observed_ms
                unread.append(inconclusive(spec, task, source, reason, at_rest.position, span, observed_ms=observed_ms))
            elif span is not None:
                ranges[partition] = span
        try:
            average = average_bytes(reader, topic, ranges)
        except StateLost:
            average = 0.0  # the log was truncated since; the job finds that too, and reports it by partition
    finally:
        reader.close()
    what = None
    if info is not None and ranges:
        ends = {number: span.end for number, span in ranges.items()}
        what = Preflight(log.address, app, spec, info, ranges, ends, average)
    return StorePlan(app, spec, definition, info, stored, what, tuple(unread))


def _mismatch(at: StoredAt, info: TopicInfo | None, partition: int, span: Bounds | None) -> str:
    """Like `mismatch`, but an unknown position does not count against the log."""
    reason = mismatch(at.position, info, partition, span)
    return reason if at.known or reason == "topic-missing" else ""


def verify_store(
    spark: SparkSession,
    log: Log,
    plan: StorePlan,
    *,
    now_ms: int,
    source: SourceName = "native",
    connector_options: Mapping[str, str] | None = None,
    sample: float = 1.0,
    digest_only: bool = False,
    include_values: bool = False,
    shown_max: int = DIFFERENCES_MAX,
    split_bytes: int | None = None,
    looked: Looked | None = None,
    on_tasks: OnTasks | None = None,
) -> Verified:
    """Verify one store. Rows that may have changed under the reader get a second look before their verdict.

    A verdict has the first `shown_max` rows that differ, `found` more of them: FOUND_MAX of a partition, FOUND_BYTES in
    all. Values do not leave the tasks unless `include_values`; then their first bytes do. Partitions larger than
    `split_bytes` (None: see `split_plan`) are compared by several tasks. `looked` is a first look that was made in the
    pass of a rebuild.
    """
    verdicts = {verdict.task.partition: verdict for verdict in plan.unread}
    found: dict[int, list[UnequalRow]] = {}
    settings = settings_of(plan, sample, digest_only=digest_only, include_values=include_values, shown_max=shown_max)
    how = How(source, connector_options or {}, split_bytes, on_tasks)
    what = plan.what
    for attempt in range(1, ATTEMPTS + 1):
        if what is None or not what.ranges:
            break
        last = attempt == ATTEMPTS
        try:
            seen = _look(spark, log, plan, what, replace(settings, last=last), now_ms, how, looked or {})
        except (StateLost, UnknownStore):
            # Partitions that the pass of the rebuild has seen keep their result.
            seen = looked or {}
            verdicts |= {number: _changed(plan, number) for number in what.ranges if number not in seen}
        # The first look is of no use to the second, which is about rows that may have changed since.
        again, looked = [], None
        for number, (facts, outcome) in seen.items():
            if outcome.counts.get("again") and not last:
                again.append(number)
                continue
            found[number] = outcome.found
            verdicts[number] = _verdict(plan, what.ranges[number], number, facts, outcome, settings, shown_max)
        what = _again(log, plan, what, again, verdicts)
    rows = tuple((plan.spec.name, number, one) for number in sorted(found) for one in found[number])
    return Verified(tuple(verdicts[number] for number in sorted(verdicts)), rows)


def _again(
    log: Log, plan: StorePlan, what: Preflight, numbers: Sequence[int], verdicts: dict[int, StoreVerdict]
) -> Preflight | None:
    """The partitions of the second look, with their present bounds."""
    if not numbers:
        return None
    # Planned again, since the log may have been truncated or recreated since the first look.
    second = plan_verify(log, plan.app, plan.spec.name, {number: plan.stored[number] for number in numbers})
    verdicts |= {verdict.task.partition: verdict for verdict in second.unread}
    return second.what


def _changed(plan: StorePlan, number: int) -> StoreVerdict:
    at_rest = plan.stored[number]
    assert plan.what is not None
    source = TopicPartition(plan.what.topic, number)
    return inconclusive(
        plan.spec,
        at_rest.place.task,
        source,
        "log-changed",
        at_rest.position,
        None,
        observed_ms=at_rest.times.observed_ms,
    )


def settings_of(
    plan: StorePlan, sample: float = 1.0, *, digest_only: bool = False, include_values: bool = False, shown_max: int = 0
) -> ComparisonSettings:
    """Settings for the tasks of a store; the bounds are shares, since wrong rows of all tasks end in the driver."""
    return ComparisonSettings(
        limit=0,
        sample=max(1, round(sample * (SAMPLE_BITS + 1))),
        differences_max=max(FOUND_MAX, shown_max),
        found_bytes=max(FOUND_BYTES_MIN, FOUND_BYTES // max(1, len(plan.stored))),
        value_max=VALUE_MAX_BYTES if include_values else 0,
        digest_only=digest_only,
    )


def _look(
    spark: SparkSession,
    log: Log,
    plan: StorePlan,
    what: Preflight,
    settings: ComparisonSettings,
    now_ms: int,
    how: How,
    looked: Looked,
) -> Looked:
    """One look at all partitions of `what`, except those already in `looked`."""
    left = {number: span for number, span in what.ranges.items() if number not in looked}
    looked = {number: one for number, one in looked.items() if number in what.ranges}
    if not left:
        return looked
    what = replace(what, ranges=left)
    limits, old = limits_of(plan, what, now_ms)
    splits = plan_splits(log, what, parallelism(spark), how.split_bytes)
    shape = StoreShape(plan.spec.name, plan.definition, limits, splits)
    job = VerifyJob(shape, {number: plan.stored[number].place for number in left}, left, old, settings)
    reading = Reading(what, shape, how.source, how.options, settings.sample)
    return {**looked, **collected(run_partitions(spark, reading, _merging(job), OUT_DDL, how.on_tasks), left, settings)}


def limits_of(plan: StorePlan, what: Preflight, now_ms: int) -> tuple[dict[int, int], dict[int, bool]]:
    """By partition: the position of its store, and whether its log may have lost deletes by now."""
    limits, old = {}, {}
    for number in what.ranges:
        position = plan.stored[number].position
        if position is None:
            raise InternalError(f"verify of {plan.spec.name}, partition {number}: its position was not read yet")
        limits[number] = position.offset
        # By age alone: whether the partition was compacted and has gaps is known to its task, which combines the three.
        old[number] = deletes_expired(what.info.policy, now_ms - position.at_ms, compacted=True, gaps=True)
    return limits, old


def collected(rows: Iterable[Any], expected: Collection[int], settings: ComparisonSettings) -> Looked:
    """The tasks' results by partition, with buckets added up. Raises InternalError for a partition without one."""
    parts: dict[int, list[tuple[PartitionFacts, ComparisonOutcome]]] = {}
    found: dict[int, list[UnequalRow]] = {}
    for row in rows:
        if row.summary is not None:
            parts.setdefault(row.partition, []).append(load_summary(row.summary))
        elif row.answer is None:  # else a rebuild's answer from the same pass
            found.setdefault(row.partition, []).append(load_found(row))
    if parts.keys() != set(expected):
        raise InternalError(f"verify: partitions {sorted(set(expected) - parts.keys())} gave no answer")
    looked: Looked = {}
    for number, own in parts.items():
        own.sort(key=lambda one: one[0].bucket)
        # A missing bucket would pass for one whose rows are all equal.
        if [facts.bucket for facts, _ in own] != list(range(len(own))):
            raise InternalError(f"verify: partition {number} is not whole: {[facts.bucket for facts, _ in own]}")
        facts, outcome = added_up(own)
        rows_found = sorted(found.get(number, ()), key=lambda one: one.key)  # as one task would give them, in key order
        outcome.found.extend(rows_found[: settings.differences_max])  # each bucket has kept as many
        looked[number] = facts, outcome
    return looked


def _merging(job: VerifyJob) -> Mapper:
    def compare(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for facts, own in partitions_of(batches, job.shape):
            yield from told(facts, verify_partition(job, facts, own))

    return compare


def told(facts: PartitionFacts, outcome: ComparisonOutcome) -> Iterator[pa.RecordBatch]:
    """The rows by which a task reports its partition or bucket."""
    yield summary_batch(facts, outcome)
    for at in range(0, len(outcome.found), FOUND_ROWS):
        yield found_batch(facts.partition, outcome.found[at : at + FOUND_ROWS])


def verify_partition(job: VerifyJob, facts: PartitionFacts, batches: Iterator[pa.RecordBatch]) -> ComparisonOutcome:
    """Compare one sorted partition, or a bucket of one, with its store, in a task."""
    number = facts.partition
    limit, span = job.shape.limits[number], job.ranges[number]
    settings, split = replace(job.settings, limit=limit), job.shape.splits.get(number)
    if split is not None:
        low, high = split.span(facts.bucket)
        share = max(FOUND_BYTES_MIN, settings.found_bytes // split.buckets)  # the bound is the partition's
        settings = replace(settings, low=low, high=high, found_bytes=share)
    compacted = facts.records < limit - span.begin
    gaps = facts.above < span.end - limit
    log = LogFacts(span.begin, compacted, compacted and gaps and job.old[number])
    with open_place(job.places[number], job.shape.name, job.shape.definition) as at_rest:
        # The driver planned with this position: a store that went on since would be compared at the wrong offset.
        if at_rest.position is None or at_rest.position.offset != limit:
            raise InvalidRequest(
                f"store {job.shape.name!r} of {job.places[number]} was at {limit} and is at another offset now: it "
                "changed while it was read; stop the process that writes there, and verify again"
            )
        if settings.digest_only:
            return _digests(job, facts, batches, at_rest.store, settings)
        return merge_partition(batches, at_rest.store, facts, log, settings)


def _digests(
    job: VerifyJob, facts: PartitionFacts, batches: Iterator[pa.RecordBatch], store: Any, settings: ComparisonSettings
) -> ComparisonOutcome:
    """Both digests only: cheaper than a merge, and a store can compute its own without Spark."""
    seen = replace(facts, observed_ms=max(facts.observed_ms, store.rows.observed_ms))
    counts = Counts()
    fold = fold_rows(job.shape, seen, counts)
    for batch in batches:
        below = batch.filter(pa.array(numbers(batch, "offset") < settings.limit))
        for _ in fold.fold(below) if below.num_rows else ():
            pass
    for _ in fold.end():
        pass
    outcome = ComparisonOutcome(log_digest=counts.digest)
    outcome.store_digest = digest_rows(rows_in_order(store, settings))
    return outcome


def _verdict(
    plan: StorePlan,
    span: Bounds,
    number: int,
    facts: PartitionFacts,
    outcome: ComparisonOutcome,
    settings: ComparisonSettings,
    shown_max: int,
) -> StoreVerdict:
    at_rest = plan.stored[number]
    assert at_rest.position is not None and plan.what is not None
    position, said = at_rest.position.offset, None
    if settings.digest_only:
        said = _by_digests(outcome, gone=facts.records < position - span.begin or facts.above > 0)
        outcome.matched = outcome.log_digest.count if said[0] == "equal" else 0  # unequal digests name no row
    return concluded(
        plan.spec,
        at_rest.place.task,
        TopicPartition(plan.what.topic, number),
        position,
        span,
        outcome,
        observed_ms=at_rest.times.observed_ms,
        records=facts.records,
        skipped=facts.skipped,
        serdes_known=not (plan.spec.from_source and _own_serdes(plan.definition)),
        differences_max=shown_max,
        said=said,
    )


def _by_digests(outcome: ComparisonOutcome, *, gone: bool) -> tuple[Verdict, str]:
    """(verdict, reason); `gone`: the log may lack records that would explain the difference."""
    if outcome.log_digest == outcome.store_digest:
        return "equal", ""
    return ("inconclusive", "digest-only") if gone else ("different", "")


def _own_serdes(definition: Mapping[str, Any]) -> bool:
    """Whether a serde of the store is the application's own, and unknown here."""
    return any(serdes.by_name(definition[part]) is None for part in ("key", "value"))
