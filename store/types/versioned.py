"""The versioned store.

    row     ff*8 | key -> timestamp 8 | value        latest version
            segment id 8 | key -> several versions   ended versions, filed by when they ended
    log     key -> value, record timestamp = valid_from; every version, tombstones too

Rules of this file: semantics of Kafka Streams' VersionedKeyValueStore. History reaches back `history_retention_ms`
from the observed stream time and is readable after a reopen, because reads find segments by time, not by a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import cast

from standfast.store.arguments import checked
from standfast.store.buffer.rows import StoreIterator, StoreRows
from standfast.store.engine import Engine, KeyRange, Row
from standfast.store.errors import InvalidRequest
from standfast.store.results import PUT_NOT_VALID, VALID_TO_UNDEFINED, VersionedRecord
from standfast.store.specs import K, V, VersionedStore
from standfast.store.types.segments import versioned_segment_interval_ms
from standfast.store.types.typed import OF_THE_LIBRARY, FamilyRows, LoggedRecord, LogicalRow, TypedStore
from standfast.store.types.versioned_put import VersionHistory, put_version
from standfast.store.types.versioned_row import (
    LATEST_PREFIX,
    SegmentRow,
    latest_key,
    segment_key,
    segment_prefix,
    unpack_latest,
)


class _PendingSpace:
    """Rows of one put that are not entered yet, over those that the task sees."""

    def __init__(self, rows: StoreRows) -> None:
        self._rows = rows
        self.rows: dict[bytes, bytes | None] = {}

    def get(self, row_key: bytes) -> bytes | None:
        return self.rows[row_key] if row_key in self.rows else self._rows.get(self._rows.name, row_key)

    def put(self, row_key: bytes, row: bytes | None) -> None:
        self.rows[row_key] = row


class _OverlaySpace:
    """Rows that a restore has computed but not written, over the stored ones."""

    def __init__(self, engine: Engine, family: str, rows: dict[bytes, bytes | None]) -> None:
        self._engine = engine
        self._family = family
        self.rows = rows

    def get(self, row_key: bytes) -> bytes | None:
        return self.rows[row_key] if row_key in self.rows else self._engine.get(self._family, row_key)

    def put(self, row_key: bytes, row: bytes | None) -> None:
        self.rows[row_key] = row


def versions_in(row_key: bytes, row: bytes, kept_after: int) -> Iterator[LogicalRow]:
    """The versions of a row that ended after `kept_after`, or have not ended."""
    key = row_key[8:]
    if row_key.startswith(LATEST_PREFIX):
        value, valid_from = unpack_latest(row)
        yield key, valid_from, value
        return
    for version, valid_from, valid_to in SegmentRow.parse(row).versions():
        if version is not None and valid_to > kept_after:
            yield key, valid_from, version


def _key_of(row: Row) -> bytes:
    return row[0][8:]


def replay_key(
    history_retention_ms: int, key: bytes, puts: Iterable[tuple[int, bytes | None, int]], observed_ms: int
) -> dict[bytes, bytes]:
    """Rows of one key after these puts (timestamp, value, observed stream time), in order, as of `observed_ms`."""
    interval_ms = versioned_segment_interval_ms(history_retention_ms)
    space = _KeySpace({})
    for timestamp, value, observed in puts:
        put_version(space, _history_at(observed, history_retention_ms, interval_ms), key, value, timestamp)
    dead_below = segment_prefix(_history_at(observed_ms, history_retention_ms, interval_ms).first)
    return {row_key: row for row_key, row in space.rows.items() if row is not None and row_key >= dead_below}


def _history_at(observed_ms: int, retention_ms: int, interval_ms: int) -> VersionHistory:
    return VersionHistory(interval_ms, max(observed_ms - retention_ms, 0) // interval_ms, observed_ms // interval_ms)


class _KeySpace:
    """Rows of one key, in memory."""

    def __init__(self, rows: dict[bytes, bytes | None]) -> None:
        self.rows = rows

    def get(self, row_key: bytes) -> bytes | None:
        return self.rows.get(row_key)

    def put(self, row_key: bytes, row: bytes | None) -> None:
        self.rows[row_key] = row


@checked(InvalidRequest, *OF_THE_LIBRARY, exact=("__init__", "put", "get", "delete"))
class VersionedState(TypedStore[VersionedStore, K, V]):
    """A task's versioned store: a history of values of each key; `task.store(spec)` gives it.

    A version is valid from its timestamp (included) to that of the next one (excluded, `VALID_TO_UNDEFINED` for the
    latest). Ended versions are kept until `history_retention_ms` behind the observed stream time. The latest version
    costs one look-up; an older one up to one for each segment (a part of the retention) from now back to its time.

    Times are whole milliseconds since the epoch; `timestamp` is by default that of the record in hand, outside a record
    the wall clock. Reads see the task's own uncommitted writes over the committed rows. A write goes to the task's
    buffer, and with the commit to changelog and database. Threads may share it: see `Task.exclusive`.

    Every method raises InvalidRequest for a key that is None, a value that a serde refuses and an invalid time;
    Corruption for an unreadable row; Closed after the task has left, Fenced if another instance has it. A write that
    raises changes nothing: also TooLarge (key over 64 KiB, value over `value_max_bytes`), Backpressure (buffer full:
    commit, then write again) and DiskFull (less space than `disk_floor_bytes`).
    """

    def __init__(self, spec: VersionedStore, rows: StoreRows) -> None:
        super().__init__(spec, rows)
        self._interval_ms = versioned_segment_interval_ms(spec.history_retention_ms)
        self._space = _PendingSpace(rows)  # without any: for reads
        self._cleaned_to = 0  # not stored: the first cleanup of an opening covers dead segments again, in one range

    def put(self, key: K, value: V | None, timestamp: int | None = None) -> int:
        """Insert a version valid from `timestamp` (ms), in any order of times; None is a tombstone.

        Returns the time (ms) at which another version follows, VALID_TO_UNDEFINED (-1) for the latest, or PUT_NOT_VALID
        if it is older than the history retention: then it changes nothing and counts as late. Reads the latest version,
        and for an older one its neighbours.
        """
        raw_key = self._encode_key(key)
        raw = None if value is None else self._encode_value(value)
        stamp = self._timestamp(timestamp)
        with self.rows.buffer.latch:  # several rows, the change and the time that it moves
            self.rows.check(raw_key, raw, stamp)
            space, valid_to = _PendingSpace(self.rows), PUT_NOT_VALID
            # A late put must not move the stream time, as in Kafka Streams; it is counted below.
            if stamp >= self._history_from():
                self.rows.observe(stamp)
                valid_to = put_version(space, self._history(), raw_key, raw, stamp)
            if valid_to == PUT_NOT_VALID:
                self.rows.counters.late_dropped += 1
            else:
                self.rows.writer.enter(self.name, space.rows, raw_key, raw, stamp)
            return valid_to

    def delete(self, key: K, timestamp: int | None = None) -> VersionedRecord[V] | None:
        """Insert a tombstone at `timestamp` (ms); returns the version valid then, or None, also for a late tombstone.

        Costs a `get` as of that time, and a put.
        """
        stamp = self._timestamp(timestamp)
        # Before the put, after which the tombstone is the version valid at that time.
        old = self.get(key, as_of=stamp)
        return None if self.put(key, None, stamp) == PUT_NOT_VALID else old

    def get(self, key: K, as_of: int | None = None) -> VersionedRecord[V] | None:
        """The latest version, or the one valid at `as_of` (ms); None if there was none or history no longer reaches it.

        VersionedRecord(value, valid_from, valid_to), both in ms.
        """
        raw_key = self._encode_key(key)
        if as_of is not None:
            self._time("as_of", as_of)
        raw_latest = self._space.get(latest_key(raw_key))
        if raw_latest is not None:
            value, latest_ts = unpack_latest(raw_latest)
            if as_of is None or latest_ts <= as_of:
                return VersionedRecord(self._decode_value(value), latest_ts, VALID_TO_UNDEFINED)
        if as_of is None or as_of < self._history_from():
            return None
        for segment in self._history().newest_first(as_of):
            raw = self._space.get(segment_key(segment, raw_key))
            if raw is None:
                continue
            row = SegmentRow.parse(raw)
            if row.next_ts <= as_of:
                return None
            if row.min_ts <= as_of:
                _, found, valid_from, valid_to = row.find(as_of)
                if found is None:
                    return None
                return VersionedRecord(self._decode_value(found), valid_from, valid_to)
        return None

    def range(
        self, key: K, time_from: int, time_to: int, *, ascending: bool = False
    ) -> StoreIterator[VersionedRecord[V]]:
        """Versions that `get` gives for any time_from <= t <= time_to (ms), newest first unless `ascending`.

        The call reads all of them. Empty if time_from > time_to.
        """
        raw_key = self._encode_key(key)
        if self._bound("time_from", time_from) > self._bound("time_to", time_to):
            return self.rows.iterate(iter(()))
        first = max(time_from, self._history_from(), 0)  # ended versions are readable from here on, the latest always
        found = [
            VersionedRecord(self._decode_value(value), valid_from, valid_to)
            for value, valid_from, valid_to in self._versions(raw_key, first)
            if valid_from <= time_to and (valid_to == VALID_TO_UNDEFINED or first <= time_to)
        ]
        return self.rows.iterate(iter(found[::-1] if ascending else found))

    def restore(self, records: Sequence[LoggedRecord], into: FamilyRows | None = None) -> FamilyRows:
        families = {} if into is None else into
        space = _OverlaySpace(self.rows.engine, self.name, families.setdefault(self.name, {}))
        # One by one: a version accepted or refused depends on the stream time at its own record.
        for record in self._with_key(records):
            key, stamp = cast("bytes", record[2]), record[1]
            if stamp >= self._history_from():
                self.rows.observe(stamp)
                put_version(space, self._history(), key, record[3], stamp)
        return families

    def logical_rows(self) -> Iterator[LogicalRow]:
        kept_after = self._history_from()
        for row_key, raw in self.rows.committed(self.name):
            yield from versions_in(row_key, raw, kept_after)

    def logical_rows_in_order(self, low: bytes | None, high: bytes | None) -> Iterator[LogicalRow]:
        """Versions of the numbers from low to high, keys of 8 bytes, in the order of the numbers and then of time."""
        assert self.numbers is not None
        history, kept_after = self._history(), self._history_from()
        prefixes = [*map(segment_prefix, range(history.first, history.last + 1)), LATEST_PREFIX]
        for span in self.numbers.spans(low, high, store=self.name):
            scans = [self.rows.scan(self.name, *span.bounds(prefix), reverse=span.reverse) for prefix in prefixes]
            for _, rows in groupby(merge(*scans, key=_key_of, reverse=span.reverse), _key_of):
                found = (version for row_key, row in rows for version in versions_in(row_key, row, kept_after))
                yield from sorted(found, key=itemgetter(1))

    def families(self) -> list[str]:
        return [self.name]

    def expired_ranges(self, observed_ms: int) -> list[KeyRange]:
        first = _history_at(observed_ms, self.spec.history_retention_ms, self._interval_ms).first
        if first <= self._cleaned_to:
            return []
        # From the last range's end, so that a range tombstone covers each segment once.
        expired = KeyRange(self.name, segment_prefix(self._cleaned_to), segment_prefix(first))
        self._cleaned_to = first
        return [expired]

    def _versions(self, raw_key: bytes, first: int) -> Iterator[tuple[bytes, int, int]]:
        """The latest version and the versions that ended after `first`, newest first, without tombstones."""
        raw_latest = self._space.get(latest_key(raw_key))
        if raw_latest is not None:
            value, latest_ts = unpack_latest(raw_latest)
            yield value, latest_ts, VALID_TO_UNDEFINED
        for segment in self._history().newest_first(first):
            raw = self._space.get(segment_key(segment, raw_key))
            if raw is None:
                continue
            for version, valid_from, valid_to in SegmentRow.parse(raw).versions():
                if version is not None and valid_to > first:
                    yield version, valid_from, valid_to

    def _history_from(self) -> int:
        """Earliest time that a read reaches, and earliest timestamp that a put may have."""
        return self.rows.observed_ms - self.spec.history_retention_ms

    def _history(self) -> VersionHistory:
        return _history_at(self.rows.observed_ms, self.spec.history_retention_ms, self._interval_ms)
