"""Preflight of a job: settles topic, partitions and offsets of a changelog, and refuses a log without its history.

    begin, end    of each partition now; end is the last stable offset, for a source topic the group's committed one
    until         offsets given by the user instead of an end, within the bounds of the log

Rules of this file: it asks a log and decides; it reads only a few records, to measure their size. Jobs that cannot
succeed are refused here, before they write a file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from standfast.replication.log import Log, LogReader, TopicInfo
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.replication.topics.claims import sorted_in
from standfast.store.errors import InvalidRequest, StateLost, UnknownStore
from standfast.store.names import few
from standfast.store.specs import StoreSpec, with_sorted_keys

SAMPLE_RECORDS = 170  # at each of three offsets
SAMPLE_FIRST = 5  # if these are large already, they suffice
SAMPLE_BYTES = 4 << 20
SAMPLE_WAIT_MS = 1_000


@dataclass(frozen=True, slots=True)
class Preflight:
    """The ranges of a changelog that a job will read. `average_bytes`: key and value of a record, the largest average
    of the sampled places, 0.0 without records.

    `log_ends` are the ends of the log; an `until` may lie below them.
    """

    address: str
    app: str
    spec: StoreSpec
    info: TopicInfo
    ranges: Mapping[int, Bounds]
    log_ends: Mapping[int, int]
    average_bytes: float
    truncated: tuple[int, ...] = ()

    @property
    def topic(self) -> str:
        """Name of the changelog."""
        return self.info.name

    @property
    def records_max(self) -> int:
        """Upper bound of the records to read; gaps make it fewer."""
        return sum(span.end - span.begin for span in self.ranges.values())

    @property
    def bytes_estimate(self) -> int:
        """Estimated bytes of keys and values; rather too high than too low."""
        return int(self.records_max * self.average_bytes)


def topic_of(log: Log, app: str, store: str, topic: str) -> TopicInfo:
    """A store's changelog topic. Raises UnknownStore."""
    info = log.admin.describe_topic(topic)
    if info is None:
        raise UnknownStore(
            f"store {store!r} of {app!r}: the log {log.address} has no topic {topic}: check --app, the store's "
            "name and the log"
        )
    return info


def preflight(
    log: Log,
    app: str,
    spec: StoreSpec,
    *,
    partitions: Collection[int] | None = None,
    until: Mapping[int, int] | None = None,
    allow_truncated: bool = False,
) -> Preflight:
    """Settle the ranges to read. Raises UnknownStore for an absent topic, InvalidRequest for offsets outside the log.

    Raises StateLost (reason "truncated") if records are gone that the store needs, unless `allow_truncated`.
    """
    info = topic_of(log, app, spec.name, spec.changelog_of(app))
    if with_sorted_keys(spec, True) is not spec and not spec.from_source:
        spec = with_sorted_keys(spec, bool(sorted_in(log, app, {info.name: info.topic_id})))
    wanted = _wanted(info, partitions)
    reader = log.reader()
    try:
        bounds = reader.bounds([TopicPartition(info.name, number) for number in wanted])
        ends = _ends(log, app, spec, {source.partition: span for source, span in bounds.items()})
        ranges = {source.partition: Bounds(span.begin, ends[source.partition]) for source, span in bounds.items()}
        _refuse_outside(info, ranges, bounds, until or {})
        ranges = {number: Bounds(span.begin, (until or {}).get(number, span.end)) for number, span in ranges.items()}
        truncated = tuple(number for number, span in ranges.items() if _head_missing(spec, info, span))
        if truncated and not allow_truncated:
            raise _truncated(info, truncated, ranges)
        # Spark bounds batches by rows, whose number follows from this.
        average = average_bytes(reader, info.name, ranges)
    finally:
        reader.close()
    log_ends = {source.partition: span.end for source, span in bounds.items()}
    return Preflight(log.address, app, spec, info, ranges, log_ends, average, truncated)


def _wanted(info: TopicInfo, partitions: Collection[int] | None) -> list[int]:
    if partitions is None:
        return list(range(info.partitions))
    bad = sorted(number for number in partitions if not 0 <= number < info.partitions)
    if bad:
        raise InvalidRequest(f"{info.name} has partitions 0 to {info.partitions - 1}, not {few(bad)}")
    return sorted(set(partitions))


def _ends(log: Log, app: str, spec: StoreSpec, bounds: Mapping[int, Bounds]) -> dict[int, int]:
    if not spec.from_source:
        return {number: span.end for number, span in bounds.items()}
    # A source topic also holds records that are not processed yet; the store does not have them.
    sources = {number: TopicPartition(spec.changelog_of(app), number) for number in bounds}
    group = log.group(app)
    try:
        committed = group.committed(sources.values())
    finally:
        group.close()
    ends = {}
    for number, span in bounds.items():
        found = committed.get(sources[number])
        # A committed offset may lie below the log's begin, or above its end if the group reads uncommitted records.
        ends[number] = max(span.begin, min(span.end, found.offset if found is not None else 0))
    return ends


def _refuse_outside(
    info: TopicInfo, ranges: Mapping[int, Bounds], bounds: Mapping[TopicPartition, Bounds], until: Mapping[int, int]
) -> None:
    for number, offset in until.items():
        span = ranges.get(number)
        if span is None:
            raise InvalidRequest(f"--until names partition {number}, which is not read of {info.name}")
        if not span.begin <= offset <= span.end:
            whole = bounds[TopicPartition(info.name, number)]
            raise InvalidRequest(
                f"{info.name}-{number}: offset {offset} is outside of what can be read, {span.begin} to {span.end} "
                f"(the log holds {whole.begin} to {whole.end}): give an offset in between"
            )


def _head_missing(spec: StoreSpec, info: TopicInfo, span: Bounds) -> bool:
    """Whether records at the head are gone, and neither compaction nor the store's own retention explains it."""
    policy = info.policy
    if span.begin == 0:
        return False
    if "compact" in policy.cleanup:
        # Compaction alone removes no head. The content of a source topic is its owner's decision.
        return policy.cleanup == {"compact"} and not spec.from_source
    # Rows of windows and sessions expire as well; a row of another store must outlive the record that wrote it.
    return policy.retention_ms < 0 or spec.traits.times is None


def _truncated(info: TopicInfo, partitions: Collection[int], ranges: Mapping[int, Bounds]) -> StateLost:
    first = few(f"{number} begins at {ranges[number].begin}" for number in partitions)
    return StateLost(
        f"{info.name}: records at the head are gone (partition {first}), and neither compaction nor a retention of the "
        "topic explains it: rows that were last written there would be missing; use a snapshot that has them, or "
        "accept it with --allow-truncated",
        reason="truncated",
    )


def average_bytes(reader: LogReader, topic: str, ranges: Mapping[int, Bounds]) -> float:
    """Bytes of a record's key and value: the largest average of three places in the longest partition.

    Records may have grown since the first one, and batches must be as small as the largest need them.
    """
    number = max(ranges, key=lambda one: ranges[one].end - ranges[one].begin, default=None)
    if number is None or ranges[number].begin == ranges[number].end:
        return 0.0
    begin, end = ranges[number]
    largest, read_to = 0.0, begin
    for offset in (begin, (begin + end) // 2, end - SAMPLE_RECORDS):
        if offset >= read_to:  # in a short log the places overlap
            average, read_to = _sampled_bytes(reader, TopicPartition(topic, number), Bounds(offset, end))
            largest = max(largest, average)
    return largest


def _sampled_bytes(reader: LogReader, source: TopicPartition, span: Bounds) -> tuple[float, int]:
    """Average of a few records, and the offset after them; it does not wait beyond the end of the span."""
    reader.assign({source: span.begin})
    count = size = 0
    at = span.begin
    for wanted in (SAMPLE_FIRST, SAMPLE_RECORDS - SAMPLE_FIRST):
        for batch in reader.fetch(wanted, SAMPLE_WAIT_MS):
            count += len(batch.records)
            size += sum(len(record.key or b"") + len(record.value or b"") for record in batch.records)
            at = batch.next_offset
        # At the end a further fetch would wait its full time for records that never come.
        if size >= SAMPLE_BYTES or at >= span.end:
            break
    return (size / count if count else 0.0), at
