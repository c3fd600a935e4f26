"""Compare the stores of a task with their changelogs, folded to the very position that the stores stand at.

    what is said of each row, and of the store    see `standfast.restore.judgement`

    A store that is read from a source topic is compared with what its puts would have logged: see
    `standfast.replication.source_records`.

Rules of this file: reads only. A log may be compacted while it is read, so rows that differ and have a later record
are looked at a second time from the start before anything is said of them. It keeps the folded rows of one store in
memory: for stores that fit there. Both sides hide what is past retention at the store's own observed stream time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from standfast.replication.log import Fetched, Log, LogReader, Record, TopicInfo
from standfast.replication.offsets import Bounds, TaskId, TopicPartition
from standfast.replication.source_records import as_logged
from standfast.restore.compare import DIFFERENCES_MAX, Comparison, Difference, compare_rows
from standfast.restore.digest import Digest, LogicalRow, digest_rows
from standfast.restore.fold import Fold, fold_for
from standfast.restore.judgement import (
    REASONS,
    UNSURE,
    KeyFacts,
    RowVerdict,
    Verdict,
    conclude,
    deletes_expired,
    is_beyond,
    judge,
)
from standfast.restore.row_side import RowSide, row_side
from standfast.restore.spans import fetch_span
from standfast.store.errors import StateLost, UnknownStore
from standfast.store.specs import SessionStore, StoreSpec, VersionedStore, WindowStore
from standfast.store.task.cut import Position
from standfast.store.task.task_stores import AnyStore, TaskStores

FETCH_RECORDS = 5_000
DIGEST_ROWS = 4_096
ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class RowDifference:
    """One row that is wrong; `log` and `store` are None where a side lacks the row."""

    kind: RowVerdict
    key: bytes
    log: RowSide | None
    store: RowSide | None


@dataclass(frozen=True, slots=True)
class StoreVerdict:
    """What was found of one store of one task. Offsets are next to read; `position` is -1 if there is none.

    `skipped`: records below the position that have no key, or that the store cannot hold (of a source topic).
    `differences` are the first ones, `truncated` says that there are more. The digests leave the indeterminate rows
    out, so they are equal exactly where the verdict is "equal".
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
    differences: tuple[RowDifference, ...] = ()
    truncated: bool = False


@dataclass(slots=True)
class _Target:
    """One store to look at, and where its changelog is."""

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
    """That the log cannot speak for a store, and why: one of REASONS."""
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


def mismatch(position: Position | None, info: TopicInfo | None, partition: int, bounds: Bounds | None) -> str:
    """Why a log cannot speak for a position, before anything is read: one of REASONS, or "" if it can.

    `bounds` None: they are not known yet.
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

    `stores` show committed rows only, with the observed times of the cut that `positions` are from: views of files at
    rest, or `committed_views` of a live task. `now_ms` is wall time, as in the positions. `on_records` is called with
    the number of records of each batch read. `value_max` bytes of the values of rows that differ are kept: all by
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
    reason = mismatch(position, info, partition, None)
    if reason:
        return target.inconclusive(reason)
    found: StoreVerdict | None = None
    try:
        for attempt in range(1, ATTEMPTS + 1):
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
    """One look; None if rows must be looked at again because the log may have changed under the reader."""
    store = target.store
    assert target.position is not None
    position = target.position.offset
    observed_ms = store.rows.observed_ms
    versioned = isinstance(store.spec, VersionedStore)
    fold = fold_of(store.spec)
    records, skipped = _fold(target, reader, Bounds(bounds.begin, position), fold, on_records)
    in_log, in_store = _Digesting(fold.rows(observed_ms)), _Digesting(_rows_of(store))
    # All differences are needed, since compaction explains some of them; both sides are in memory or as small.
    compared = compare_rows(in_log, in_store, versioned=versioned, differences_max=2**62)
    judged: list[tuple[Difference, RowVerdict]] = []
    beyond = 0
    if compared.mismatches:
        keys = {difference.key for difference in compared.differences}
        facts = _facts(target, reader, bounds, keys, records < position - bounds.begin, on_records)
        judged = [
            (one, judge(one.kind, one.key, facts, versioned=versioned, last=last)) for one in compared.differences
        ]
        if any(verdict == "again" for _, verdict in judged):
            return None
        beyond = sum(is_beyond(verdict, one.key, facts) for one, verdict in judged)
    digests = in_log.digest, in_store.digest
    found = _conclude(target, bounds, records, compared, judged, digests, differences_max, beyond)
    return replace(found, skipped=skipped)


def _conclude(
    target: _Target,
    bounds: Bounds,
    records: int,
    compared: Comparison,
    judged: list[tuple[Difference, RowVerdict]],
    digests: tuple[Digest, Digest],
    differences_max: int,
    beyond: int,
) -> StoreVerdict:
    unsure = [one for one, verdict in judged if verdict in UNSURE]
    wrong: list[tuple[RowVerdict, Difference]] = [(verdict, one) for one, verdict in judged if verdict not in UNSURE]
    counts: dict[RowVerdict, int] = {}
    for _, verdict in judged:
        counts[verdict] = counts.get(verdict, 0) + 1
    lost = counts.get("lost", 0)
    guessed = target.store.spec.from_source and not target.serdes_known
    conclusion, reason = conclude(
        len(wrong), len(unsure), lost, compared.matched, beyond=beyond, serdes_known=not guessed
    )
    if reason == "serdes-unknown":
        wrong = []
    assert target.position is not None
    position = target.position.offset
    named = {
        "begin": bounds.begin,
        "lost": lost,
        "indeterminate": len(unsure),
        "rows": compared.matched + len(judged),
        "position": position,
        "beyond": beyond,
        "topic": target.changelog.topic,
    }
    explanation = REASONS[reason].format(**named) if reason else ""
    return StoreVerdict(
        store=target.store.name,
        kind=target.store.spec.kind,
        task=target.task,
        changelog=target.changelog,
        verdict=conclusion,
        reason=reason,
        explanation=explanation,
        position=position,
        begin=bounds.begin,
        end=bounds.end,
        observed_ms=target.store.rows.observed_ms,
        records=records,
        matched=compared.matched,
        missing=counts.get("missing", 0),
        extra=counts.get("extra", 0),
        different=counts.get("different", 0),
        stale=counts.get("stale", 0),
        indeterminate=len(unsure),
        log_digest=_without(digests[0], ((one.key, *one.expected) for one in unsure if one.expected is not None)),
        store_digest=_without(digests[1], ((one.key, *one.actual) for one in unsure if one.actual is not None)),
        differences=tuple(_shown(verdict, one, target.value_max) for verdict, one in wrong[:differences_max]),
        truncated=len(wrong) > differences_max,
    )


def _shown(verdict: RowVerdict, one: Difference, value_max: int | None) -> RowDifference:
    sides = (row_side(one.key, side, value_max) for side in (one.expected, one.actual))
    return RowDifference(verdict, one.key, *sides)


def fold_of(spec: StoreSpec) -> Fold:
    """The fold that gives the logical rows of a store."""
    retention_ms: int | None = None
    if isinstance(spec, WindowStore | SessionStore):
        retention_ms = spec.retention_ms
    elif isinstance(spec, VersionedStore):
        retention_ms = spec.history_retention_ms
    return fold_for(spec.kind, timestamped=spec.timestamped, retention_ms=retention_ms)


def _fold(
    target: _Target, reader: LogReader, span: Bounds, fold: Fold, on_records: Callable[[int], None]
) -> tuple[int, int]:
    """Fold the records of a span of offsets; returns how many there were, and how many of them were left out."""
    count = kept = 0
    for fetched in fetch_span(reader, target.changelog, span, FETCH_RECORDS):
        batch = fetched
        if batch.next_offset > span.end:
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
) -> KeyFacts:
    """Which of these keys have a record below the position, and which at or above it; and what may be gone."""
    assert target.position is not None and target.info is not None
    position = target.position.offset
    facts = KeyFacts(bounds.begin, compacted)
    above = 0
    for batch in fetch_span(reader, target.changelog, bounds, FETCH_RECORDS):
        above += sum(position <= record.offset < bounds.end for record in batch.records)
        for record in target.records_of(batch):
            if record.key is not None and record.key in keys:
                (facts.below if record.offset < position else facts.later).add(record.key)
        on_records(len(batch.records))
    gaps, age_ms = above < bounds.end - position, target.now_ms - target.position.at_ms
    facts.deletes_expired = deletes_expired(target.info.policy, age_ms, compacted=compacted, gaps=gaps)
    return facts


def _rows_of(store: AnyStore) -> Iterator[LogicalRow]:
    present = store.rows.engine.families()
    if any(family in present for family in store.families()):
        yield from store.logical_rows()


class _Digesting:
    """Rows on their way through, with their digest so far."""

    def __init__(self, rows: Iterator[LogicalRow]) -> None:
        self._rows = rows
        self.digest = Digest()

    def __iter__(self) -> Iterator[LogicalRow]:
        while chunk := list(islice(self._rows, DIGEST_ROWS)):
            self.digest += digest_rows(chunk)
            yield from chunk


def _without(digest: Digest, rows: Iterable[LogicalRow]) -> Digest:
    gone = digest_rows(rows)
    return Digest(digest.count - gone.count, digest.xor ^ gone.xor, digest.low_sum - gone.low_sum)


def _ignore(_records: int) -> None:
    """Nobody wants to know."""
