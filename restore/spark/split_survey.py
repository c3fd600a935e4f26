"""The survey of partitions that are to be split: a few records at many places, read in the driver before a job.

Rules of this file: reads little (at most PLACES_MAX times RECORDS of a partition) and decides nothing;
`standfast.restore.spark.split_plan` decides the split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from standfast.replication.log import Log, LogReader
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.restore.spans import fetch_span
from standfast.restore.spark.split_plan import OffsetSample, Split, numbered, parts_of, split_at
from standfast.restore.verify.preflight import Preflight

PLACES_MIN, PLACES_MAX = 16, 64
RECORDS = 50  # at each place


def plan_splits(log: Log, what: Preflight, cores: int, split_bytes: int | None = None) -> dict[int, Split]:
    """Splits of the partitions that are worth one. Raises StateLost for a log that was truncated meanwhile."""
    parts = parts_of(sizes_of(what), cores, split_bytes)
    if not parts:
        return {}
    found: dict[int, tuple[tuple[int, ...], tuple[bytes, ...]]] = {}
    reader = log.reader()
    try:
        for number, count in sorted(parts.items()):
            span = what.ranges[number]
            places = list(look(reader, TopicPartition(what.topic, number), span, count))
            edges, keys = split_at(places, span.end, count)
            # Without first keys of buckets, all sampled records have one key, and one bucket needs no shuffle.
            if keys:
                found[number] = edges, keys
    finally:
        reader.close()
    return numbered(found)


def look(reader: LogReader, source: TopicPartition, span: Bounds, parts: int) -> Iterator[OffsetSample]:
    """Places at even distances, the first one at the begin."""
    count = max(1, min(max(2 * parts, PLACES_MIN), PLACES_MAX, span.end - span.begin))
    for number in range(count):
        yield _place(reader, source, Bounds(span.begin + (span.end - span.begin) * number // count, span.end))


def _place(reader: LogReader, source: TopicPartition, span: Bounds) -> OffsetSample:
    """Sample one place. In a gap of many offsets, the next record counts for all of them."""
    keys: list[bytes] = []
    size, behind = 0, span.begin
    for batch in fetch_span(reader, source, span, RECORDS):
        records = [record for record in batch.records if record.offset < span.end]
        keys += [record.key for record in records if record.key is not None]
        size += sum(len(record.key or b"") + len(record.value or b"") for record in records)
        behind = min(batch.next_offset, span.end)
        if len(keys) >= RECORDS:
            break
    offsets = max(behind - span.begin, 1)
    return OffsetSample(span.begin, len(keys) / offsets, size / offsets, tuple(keys))


def sizes_of(what: Preflight) -> Mapping[int, float]:
    """Estimated bytes of each partition."""
    return {number: (span.end - span.begin) * what.average_bytes for number, span in what.ranges.items()}
