"""Verify: the stores of a task are compared with their changelogs, folded to the positions of the stores.

    store rows ──────────────────────────┐
                                         ├─ Tally ──> StoreVerdict     verdicts: `standfast.restore.verdict`
    changelog ── fold to the position ───┘

    A store that is read from a source topic is compared with the records that its puts would have logged: see
    `standfast.replication.source_records`.

Rules of this file: reads only. A log may be compacted while it is read, so rows that differ and have a later record
get a second look from the start before a verdict. The folded rows of one store are kept in memory: for stores that
fit there. Both sides hide rows past retention at the store's own observed stream time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from standfast.replication.log import Fetched, Log, LogReader, Record, TopicInfo
from standfast.replication.offsets import Bounds, TaskId, TopicPartition
from standfast.replication.source_records import as_logged
from standfast.restore.compare import DIFFERENCES_MAX, ComparisonOutcome, Tally, UnequalRow, named
from standfast.restore.digest import Digest, LogicalRow
from standfast.restore.fold import Fold, fold_for
from standfast.restore.spans import fetch_span
from standfast.restore.verdict import REASONS, LogFacts, Verdict, conclude, deletes_expired
from standfast.restore.verify.store_rows import rows_in_order
from standfast.store.errors import StateLost, UnknownStore
from standfast.store.specs import StoreSpec
from standfast.store.task.commit_record import Position
from standfast.store.task.task_stores import AnyStore, TaskStores

FETCH_RECORDS = 5_000
ATTEMPTS = 2  # the log may be compacted during the first


@dataclass(frozen=True, slots=True)
class StoreVerdict:
    """The verdict on one store of one task. Offsets are next to read; `position` is -1 if the store has none.

    `skipped`: records below the position that have no key, or that the store cannot hold (of a source topic).
    `differences` are the first ones; with `truncated`, more exist. The digests exclude indeterminate rows, so they are
    equal exactly if the verdict is "equal".
    """

    store: str
    kind: str
    task: TaskId
    changelog: TopicPartition
    verdict: Verdict
    reason: str = ""
    explanation: str = ""
    position: int = -1
    begin: int = -1
    end: int = -1
    observed_ms: int = -1
    records: int = 0
    matched: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    stale: int = 0
    indeterminate: int = 0
    skipped: int = 0
    log_digest: Digest = field(default_factory=Digest)
    store_digest: Digest = field(default_factory=Digest)
    differences: tuple[UnequalRow, ...] = ()
    truncated: bool = False


@dataclass(slots=True)
class _Target:
    """One store to compare, and its changelog."""

    task: TaskId
    store: AnyStore
    position: Position | None
    changelog: TopicPartition
    info: TopicInfo | None
    now_ms: int
    serdes_known: bool = True
    value_max: int | None = None

    def records_of(self, batch: Fetched) -> Sequence[Record]:
        """Records of a batch as the store logs them."""
        spec = self.store.spec
        return as_logged(spec, batch.records) if spec.from_source else batch.records

    def inconclusive(self, reason: str, bounds: Bounds | None = None) -> StoreVerdict:
        rows = self.store.rows
        return inconclusive(
            self.store.spec, self.task, self.changelog, reason, self.position, bounds, observed_ms=rows.observed_ms
        )


def inconclusive(
    spec: StoreSpec,
    task: TaskId,
    changelog: TopicPartition,
    reason: str,
    position: Position | None,
    bounds: Bounds | None,
    *,
    observed_ms: int,
) -> StoreVerdict:
    """The verdict on a store for which the log cannot speak; `reason` is one of REASONS."""
    begin, end = bounds if bounds is not None else (-1, -1)
    offset = position.offset if position is not None else -1
    text = REASONS[reason].format(topic=changelog.topic, position=offset, begin=begin, end=end)
    return StoreVerdict(
        store=spec.name,
        kind=spec.kind,
        task=task,
        changelog=changelog,
        verdict="inconclusive",
        reason=reason,
        explanation=text,
        position=offset,
        begin=begin,
        end=end,
        observed_ms=observed_ms,
    )


def concluded(
    spec: StoreSpec,
    task: TaskId,
    changelog: TopicPartition,
    position: int,
    bounds: Bounds,
    outcome: ComparisonOutcome,
    *,
    observed_ms: int,
    records: int,
    skipped: int,
    serdes_known: bool,
    differences_max: int,
    said: tuple[Verdict, str] | None = None,
) -> StoreVerdict:
    """The verdict on a store after a merge; `said`: (verdict, reason) of a caller that knows better than the counts.

    `serdes_known` False: rows that differ prove nothing, and the verdict shows none.
    """
    counts = outcome.counts
    lost = counts.get("lost", 0)
    unsure = counts.get("indeterminate", 0) + lost
    wrong = sum(counts.values()) - unsure
    verdict, reason = said or conclude(
        wrong, unsure, lost, outcome.matched, beyond=outcome.beyond, serdes_known=serdes_known
    )
    named = {
        "begin": bounds.begin,
        "lost": lost,
        "indeterminate": unsure,
        "rows": outcome.matched + wrong + unsure,
        "position": position,
        "beyond": outcome.beyond,
        "topic": changelog.topic,
    }
    # Only a task of Spark knows the offsets of records: they stand in its report, not in a verdict.
    found = outcome.found[:differences_max] if reason != "serdes-unknown" else ()
    shown = tuple(one._replace(offset=-1) for one in found)
    return StoreVerdict(
        store=spec.name,
        kind=spec.kind,
        task=task,
        changelog=changelog,
        verdict=verdict,
        reason=reason,
        explanation=REASONS[reason].format(**named) if reason else "",
        position=position,
        begin=bounds.begin,
        end=bounds.end,
        observed_ms=observed_ms,
        records=records,
        matched=outcome.matched,
        missing=counts.get("missing", 0),
        extra=counts.get("extra", 0),
        different=counts.get("different", 0),
        stale=counts.get("stale", 0),
        indeterminate=unsure,
        skipped=skipped,
        log_digest=outcome.log_digest,
        store_digest=outcome.store_digest,
        differences=shown,
        truncated=wrong > len(shown) and reason != "serdes-unknown",  # of which no row is shown
    )


def mismatch(position: Position | None, info: TopicInfo | None, partition: int, bounds: Bounds | None) -> str:
    """Why a log cannot speak for a position, decided before any read: one of REASONS, or "" if it can.

    `bounds` None: not known yet.
    """
    if info is None or partition >= info.partitions:
        return "topic-missing"
    if position is None:
        return "no-position"
    if position.topic_id and position.topic_id != info.topic_id:
        return "topic-recreated"
    if bounds is not None and position.offset > bounds.end:
        return "position-ahead"
    if bounds is not None and position.offset < bounds.begin:
        return "position-behind"
    return ""


def verify_task(
    task: TaskId,
    stores: Mapping[str, AnyStore],
    positions: Mapping[str, Position],
    log: Log,
    app: str,
    *,
    now_ms: int,
    differences_max: int = DIFFERENCES_MAX,
    value_max: int | None = None,
    on_records: Callable[[int], None] | None = None,
    serdes_unknown: Collection[str] = (),
) -> tuple[StoreVerdict, ...]:
    """Verify logged stores of one task against the log, in order of their names.

    `stores` show committed rows only, with the observed times of the commit record that has `positions`: views of files
    at rest, or `committed_views` of a live task. `now_ms` is wall time, as in positions. `on_records` is called with
    the number of records of each batch read. `value_max`: bytes kept of the values of rows that differ, all by
    default, 0 for none. `serdes_unknown` are stores opened over raw bytes because their serdes are the application's
    own: if such a store is read from a source topic, rows that differ prove nothing.
    Raises Unavailable if the log does not answer, Corruption for damaged rows.
    """
    reader = log.reader()
    try:
        verdicts = []
        for name, store in sorted(stores.items()):
            topic = store.spec.changelog_of(app)
            info = log.admin.describe_topic(topic)
            changelog = TopicPartition(topic, task.partition)
            known = name not in serdes_unknown
            target = _Target(task, store, positions.get(name), changelog, info, now_ms, known, value_max)
            verdicts.append(_verify_store(target, reader, differences_max, on_records or _ignore))
        return tuple(verdicts)
    finally:
        reader.close()


def committed_views(stores: TaskStores) -> dict[str, AnyStore]:
    """Views of a live task's logged stores for `verify_task`; call it as the task's owner, between two commits.

    Positions are those of `stores.cut` at the same moment.
    """
    return {name: stores.committed_view(name) for name, spec in stores.specs.items() if spec.logging}


def _verify_store(
    target: _Target, reader: LogReader, differences_max: int, on_records: Callable[[int], None]
) -> StoreVerdict:
    position, info, partition = target.position, target.info, target.changelog.partition
    # Without bounds first: an absent topic has none.
    reason = mismatch(position, info, partition, None)
    if reason:
        return target.inconclusive(reason)
    found: StoreVerdict | None = None
    try:
        for attempt in range(1, ATTEMPTS + 1):
            # New bounds for each look: records that came since may explain a row.
            bounds = reader.bounds([target.changelog])[target.changelog]
            reason = mismatch(position, info, partition, bounds)
            if reason:
                return target.inconclusive(reason, bounds)
            found = _compare(target, reader, bounds, differences_max, on_records, last=attempt == ATTEMPTS)
            if found is not None:
                break
    except (StateLost, UnknownStore):
        return target.inconclusive("log-changed")
    assert found is not None, "the last attempt gives a verdict"
    return found


def _compare(
    target: _Target,
    reader: LogReader,
    bounds: Bounds,
    differences_max: int,
    on_records: Callable[[int], None],
    *,
    last: bool,
) -> StoreVerdict | None:
    """One comparison; None if rows need a second look because the log may have changed under the reader."""
    store, spec = target.store, target.store.spec
    assert target.position is not None
    position, observed_ms = target.position.offset, store.rows.observed_ms
    versioned = spec.traits.versions
    fold = fold_of(spec)
    records, skipped = _fold(target, reader, Bounds(bounds.begin, position), fold, on_records)
    # Fewer records than offsets: compaction, or on Kafka markers and aborted records, which look the same from here.
    facts = LogFacts(bounds.begin, compacted=records < position - bounds.begin)
    tally = Tally(facts, versioned=versioned, last=last, differences_max=differences_max, value_max=target.value_max)
    expected, actual = named(sorted(fold.rows(observed_ms)), versioned), named(rows_in_order(store), versioned)
    # All differing rows are kept, since compaction may explain some; the log's rows are in memory already.
    differing = {name: pair for name, *pair in tally.differing(expected, actual)}
    if differing:
        keys = {row[0] for pair in differing.values() for row in pair if row is not None}
        tally.facts, below, later = _facts(target, reader, bounds, keys, facts.compacted, on_records)
        # The report lists rows of the store in its own order, then missing ones in the order of the log.
        for name, row in named(chain(_rows_of(store), fold.rows(observed_ms)), versioned):
            if name in differing:
                tally.differs(*differing.pop(name), below=row[0] in below, later=row[0] in later)
    outcome = tally.outcome()
    if "again" in outcome.counts:
        return None
    return concluded(
        spec,
        target.task,
        target.changelog,
        position,
        bounds,
        outcome,
        observed_ms=observed_ms,
        records=records,
        skipped=skipped,
        serdes_known=target.serdes_known or not spec.from_source,
        differences_max=differences_max,
    )


def fold_of(spec: StoreSpec) -> Fold:
    """The fold that gives the logical rows of a store."""
    return fold_for(spec.kind, timestamped=spec.timestamped, retention_ms=spec.kept_ms)


def _fold(
    target: _Target, reader: LogReader, span: Bounds, fold: Fold, on_records: Callable[[int], None]
) -> tuple[int, int]:
    """Fold the records of a span of offsets; returns the number of records read, and of skipped ones among them."""
    count = kept = 0
    for fetched in fetch_span(reader, target.changelog, span, FETCH_RECORDS):
        batch = fetched
        if batch.next_offset > span.end:  # a fetch may reach beyond the span
            batch = batch._replace(records=[record for record in batch.records if record.offset < span.end])
        records = target.records_of(batch)
        fold.add(records)
        count, kept = count + len(batch.records), kept + len(records)
        on_records(len(batch.records))
    return count, count - kept + fold.skipped


def _facts(
    target: _Target,
    reader: LogReader,
    bounds: Bounds,
    keys: Collection[bytes],
    compacted: bool,
    on_records: Callable[[int], None],
) -> tuple[LogFacts, set[bytes], set[bytes]]:
    """(facts of the log, those of `keys` with a record below the position, those with one at or above it)."""
    assert target.position is not None and target.info is not None
    position = target.position.offset
    below, later = set[bytes](), set[bytes]()
    above = 0
    for batch in fetch_span(reader, target.changelog, bounds, FETCH_RECORDS):
        above += sum(position <= record.offset < bounds.end for record in batch.records)
        for record in target.records_of(batch):
            if record.key is not None and record.key in keys:
                (below if record.offset < position else later).add(record.key)
        on_records(len(batch.records))
    gaps, age_ms = above < bounds.end - position, target.now_ms - target.position.at_ms
    expired = deletes_expired(target.info.policy, age_ms, compacted=compacted, gaps=gaps)
    return LogFacts(bounds.begin, compacted, expired), below, later


def _rows_of(store: AnyStore) -> Iterator[LogicalRow]:
    # A store without rows may have no family.
    present = store.rows.engine.families()
    if any(family in present for family in store.families()):
        yield from store.logical_rows()


def _ignore(_records: int) -> None:
    """For callers that show no progress."""
