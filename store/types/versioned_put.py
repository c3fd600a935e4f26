"""The put of the versioned store: it files a new version among the rows of its key.

    latest row      ff*8 | key      the version that no later one has ended
    segment row     id 8 | key      versions that *ended* (valid_to) within that segment's time

    A put of (value, t) finds the first version later than t, which becomes its valid_to, and ends the version
    before it at t. Because rows are filed by valid_to, the version that is ended may move to an older segment.

Rules of this file: pure over a row space (get and put of one family); no clock, no buffer, no engine. Semantics of
Kafka Streams' RocksDBVersionedStore, with two exceptions. A restore applies record by record at each record's own
stream time, so that it gives the rows of the live store. And a tombstone at the exact time of the latest version is
remembered, so that an older version put later does not become the latest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from standfast.store.results import PUT_NOT_VALID, VALID_TO_UNDEFINED
from standfast.store.types.versioned_row import SegmentRow, latest_key, pack_latest, segment_key, unpack_latest


class RowSpace(Protocol):
    """The rows of one family, as far as `put_version` uses them."""

    def get(self, row_key: bytes) -> bytes | None: ...

    def put(self, row_key: bytes, row: bytes | None) -> None: ...


@dataclass(frozen=True, slots=True)
class VersionHistory:
    """The kept part of history: segment ids first..last are live."""

    interval_ms: int
    first: int
    last: int

    def segment_of(self, timestamp: int) -> int:
        """Segment of a version that ends at `timestamp`."""
        return timestamp // self.interval_ms

    def live(self, segment: int) -> bool:
        """Whether rows of this segment are still kept."""
        return segment >= self.first

    def newest_first(self, timestamp: int) -> range:
        """Live segments that may hold versions ending after `timestamp`."""
        return range(self.last, max(self.segment_of(timestamp), self.first) - 1, -1)


def put_version(space: RowSpace, history: VersionHistory, key: bytes, value: bytes | None, timestamp: int) -> int:
    """Insert one version (None: a tombstone). Returns its valid_to, or PUT_NOT_VALID if it changes no kept history."""
    next_ts = VALID_TO_UNDEFINED
    raw_latest = space.get(latest_key(key))
    if raw_latest is not None:
        latest_value, latest_ts = unpack_latest(raw_latest)
        if timestamp >= latest_ts:
            if timestamp > latest_ts:
                _file_ended(space, history, key, latest_value, latest_ts, timestamp)
            if value is None:
                space.put(latest_key(key), None)
            # A tombstone at the same time replaces the latest version, and no row records that yet.
            if value is not None or timestamp == latest_ts:
                _put_latest(space, history, key, value, timestamp)
            return VALID_TO_UNDEFINED
        next_ts = latest_ts
    for segment in history.newest_first(timestamp):
        raw = space.get(segment_key(segment, key))
        if raw is None:
            continue
        row = SegmentRow.parse(raw)
        if row.next_ts <= timestamp:
            break  # older segments end earlier still
        if row.min_ts <= timestamp:
            return _put_within(space, history, segment, row, key, value, timestamp)
        next_ts = row.min_ts
    if next_ts == VALID_TO_UNDEFINED:
        return _put_latest(space, history, key, value, timestamp)
    return _put_between(space, history, key, value, timestamp, next_ts)


def _file_ended(
    space: RowSpace, history: VersionHistory, key: bytes, value: bytes | None, valid_from: int, valid_to: int
) -> None:
    """File a version that now ends at valid_to, unless valid_to is before the kept history."""
    segment = history.segment_of(valid_to)
    if not history.live(segment):
        return
    row_key = segment_key(segment, key)
    raw = space.get(row_key)
    if raw is None:
        row = SegmentRow.new(value, valid_from, valid_to)
    else:
        row = SegmentRow.parse(raw)
        row.insert_as_latest(valid_from, valid_to, value)
    space.put(row_key, row.serialize())


def _put_within(
    space: RowSpace,
    history: VersionHistory,
    segment: int,
    row: SegmentRow,
    key: bytes,
    value: bytes | None,
    timestamp: int,
) -> int:
    """Put a version that falls within min_ts <= timestamp < next_ts of one segment row."""
    index, ended, valid_from, valid_to = row.find(timestamp)
    if valid_from == timestamp:
        row.update(timestamp, value, index)
    elif history.segment_of(timestamp) == segment:
        row.insert(timestamp, value, index)
    else:
        # Rows are filed by their end: the version before now ends at `timestamp`, in an older segment, and moves there.
        _file_ended(space, history, key, ended, valid_from, timestamp)
        row.update(timestamp, value, index)
    space.put(segment_key(segment, key), row.serialize())
    return valid_to


def _put_latest(space: RowSpace, history: VersionHistory, key: bytes, value: bytes | None, timestamp: int) -> int:
    """Put a version that no later one follows. A tombstone has no latest row: its own time's segment remembers it."""
    if value is not None:
        space.put(latest_key(key), pack_latest(value, timestamp))
        return VALID_TO_UNDEFINED
    segment = history.segment_of(timestamp)
    if not history.live(segment):
        return PUT_NOT_VALID
    row_key = segment_key(segment, key)
    raw = space.get(row_key)
    if raw is None:
        space.put(row_key, SegmentRow.new(None, timestamp, timestamp).serialize())
        return VALID_TO_UNDEFINED
    row = SegmentRow.parse(raw)
    if row.next_ts != timestamp:  # a next_ts at this very time already means "nothing from here on"
        row.insert_as_latest(row.next_ts, timestamp, None)
        space.put(row_key, row.serialize())
    return VALID_TO_UNDEFINED


def _put_between(
    space: RowSpace, history: VersionHistory, key: bytes, value: bytes | None, timestamp: int, next_ts: int
) -> int:
    """Put a version that ends at next_ts where no row spans it: it becomes the newest or oldest of its segment row."""
    segment = history.segment_of(next_ts)
    if not history.live(segment):
        return PUT_NOT_VALID
    row_key = segment_key(segment, key)
    raw = space.get(row_key)
    if raw is None:
        row = SegmentRow.new(value, timestamp, next_ts)
    else:
        row = SegmentRow.parse(raw)
        if row.next_ts <= timestamp:
            row.insert_as_latest(timestamp, next_ts, value)
        else:
            row.insert_as_earliest(timestamp, value)
    space.put(row_key, row.serialize())
    return next_ts
