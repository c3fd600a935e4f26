"""First offsets of a window or session store's segments in its changelog: below the least of them no live row lies.

    changelog   | dead .......... | span 0 ...... | span 1 ............ |  end
                                  first offset of the oldest span that is kept: the head that the owner may remove to

A span is one or more segments, so that a store has about a dozen numbers whatever its retention is. It is kept until
every time in it lies `KEPT_BEHIND_MS` behind the retention, at the stream time of the cut. The number of a span is the
position before the write that brought its first row: no record of it lies below. Rows without a known number (of an
earlier version, or of another topic) count as if they began at offset 0.

Rules of this file: pure. It goes by the times of the cut alone, which the log has acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from standfast.store.specs import StoreSpec
from standfast.store.task.commit_record import CommitRecord, Heads, StoreTimes
from standfast.store.types.segments import parse_family, segment_interval_ms

KEPT_BEHIND_MS = 24 * 3_600_000  # for late records; as windowstore.changelog.additional.retention.ms of Kafka Streams
SPANS_BEHIND = 8  # so many spans at most for that time


class _Spans(NamedTuple):
    length_ms: int
    kept_ms: int  # a span goes once its start is further behind the stream time

    def start(self, time_ms: int) -> int:
        return time_ms // self.length_ms * self.length_ms


def is_headed(spec: StoreSpec) -> bool:
    """Whether a store's changelog has a head that its stream time makes needless."""
    return spec.logging and not spec.from_source and spec.traits.kept_by == "retention.ms"


class SegmentHeads:
    """Keeps the heads of a task's stores over its writes."""

    def __init__(self, specs: Iterable[StoreSpec]) -> None:
        self._stores = {spec.name: _spans(spec.kept_ms) for spec in specs if is_headed(spec)}

    def after(
        self, before: CommitRecord, cut: CommitRecord, families: Iterable[str], times: Mapping[str, StoreTimes]
    ) -> Mapping[str, Heads]:
        """The heads with `cut`, which is written with rows of these families and has these times."""
        if not self._stores:
            return {}
        starts: dict[str, list[int]] = {}
        for family in families:
            parsed = parse_family(family)
            if parsed is not None and parsed[0] in self._stores:
                starts.setdefault(parsed[0], []).append(parsed[1])
        return {
            name: _after(spans, before, cut, name, starts.get(name, ()), times[name].observed_ms)
            for name, spans in self._stores.items()
            if name in cut.positions and name in times
        }


def _after(
    spans: _Spans, before: CommitRecord, cut: CommitRecord, name: str, starts: Iterable[int], observed_ms: int
) -> Heads:
    topic_id, stored, known = cut.positions[name].topic_id, before.positions.get(name), before.heads.get(name)
    # Offsets of another topic mean nothing here, and a store without a position begins again from the log's begin.
    position = stored.offset if stored is not None and stored.topic_id == topic_id else 0
    if known is not None and known.topic_id == topic_id and stored is not None:
        firsts = known.firsts
    else:
        # Rows of unknown offsets: none is of a later span than the stream time's.
        firsts = {spans.start(observed_ms): 0} if position and observed_ms >= 0 else {}
    new = {start for start in map(spans.start, starts) if start not in firsts}
    gone = {start for start in firsts if start < observed_ms - spans.kept_ms}
    if new or gone:
        firsts = {start: first for start, first in firsts.items() if start not in gone} | dict.fromkeys(new, position)
    return known if known is not None and known == (topic_id, firsts) else Heads(topic_id, firsts)


def _spans(retention_ms: int) -> _Spans:
    interval_ms = segment_interval_ms(retention_ms)
    length_ms = max(interval_ms, KEPT_BEHIND_MS // SPANS_BEHIND)
    # A segment that begins at the end of a span reaches beyond it by its own length.
    return _Spans(length_ms, retention_ms + KEPT_BEHIND_MS + length_ms + interval_ms)
