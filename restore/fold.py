"""Folds of changelog records to the logical rows that a store must hold, by store kind.

    keyvalue    key                       last record wins, a tombstone removes
    window      key | start 8 | seq 4     the same; hidden while start < observed - retention + 1
    session     key | end 8 | start 8     the same; hidden while end < observed - retention + 1
    versioned   key, record timestamp     every version, each valid until the next one of its key; same key and
                                          timestamp replaces; kept while valid_to is undefined or
                                          valid_to > observed - history retention

    Records without a key, which no store writes, are skipped and counted (Kafka Streams: StoreChangelogReader).

    observed    largest start (window), end (session) or record timestamp (versioned) in the log, tombstones too

A row is (key as in the changelog, timestamp, raw value), ready for `standfast.restore.digest`; the timestamp is the
record's, -1 in a store that keeps none, and valid_from for a version.

Rules of this file: pure; callers pass records in offset order, because the live store refused versions older than the
history retention *at that moment*, and replaying them later gives another answer.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple, Protocol

from standfast.replication.log import Record
from standfast.restore.digest import LogicalRow
from standfast.store.errors import InternalError, InvalidRequest
from standfast.store.results import VALID_TO_UNDEFINED
from standfast.store.specs import SPECS, TRAITS

NO_TIMESTAMP = -1  # the timestamp of rows in stores that keep none (plain stores, sessions)
NOTHING_OBSERVED = -1

_valid_from_of = itemgetter(0)


class Version(NamedTuple):
    """One version of a key: valid for valid_from <= t < valid_to; a None value means deleted for that time."""

    valid_from: int
    valid_to: int
    value: bytes | None


class Fold(Protocol):
    """A fold in progress: batches of records in, logical rows out."""

    @property
    def position(self) -> int:
        """Next offset to fold."""
        ...

    @property
    def skipped(self) -> int:
        """Records without a key so far."""
        ...

    def add(self, records: Sequence[Record]) -> None:
        """Fold a batch. Raises InternalError if it lies below the position, Corruption for a key of no such store."""
        ...

    def rows(self, observed_ms: int = NOTHING_OBSERVED) -> Iterator[LogicalRow]:
        """Rows within retention, in no particular order.

        `observed_ms` is the store's own observed stream time if known: compaction may have removed the record that
        set it, and both sides of a comparison must hide the same rows.
        """
        ...


class LatestFold:
    """Last record per key: key-value, window and session stores."""

    def __init__(
        self,
        *,
        timestamped: bool = True,
        retention_ms: int | None = None,
        time_of: Callable[[bytes], int] | None = None,
    ) -> None:
        if (retention_ms is None) != (time_of is None):
            raise InternalError("fold: a retention and a time per row go together: give both or neither")
        self._timestamped = timestamped
        self._retention_ms = retention_ms
        self._time_of = time_of
        self._latest: dict[bytes, Record] = {}
        self._observed_ms = NOTHING_OBSERVED
        self.position = 0
        self.skipped = 0

    def add(self, records: Sequence[Record]) -> None:
        """Fold a batch; tombstones stay until `rows`, because they move the observed time."""
        position, (batch, skipped) = _advance(self.position, records), _by_key(records)
        if self._time_of is not None:
            self._observed_ms = max(self._observed_ms, max(map(self._time_of, batch), default=NOTHING_OBSERVED))
        self._latest.update(batch)
        self.position = position
        self.skipped += skipped

    def rows(self, observed_ms: int = NOTHING_OBSERVED) -> Iterator[LogicalRow]:
        """See Fold.rows."""
        visible_from = self._visible_from(observed_ms)
        for key, record in self._latest.items():
            if record.value is None:
                continue
            if self._time_of is None or self._time_of(key) >= visible_from:
                yield key, record.timestamp if self._timestamped else NO_TIMESTAMP, record.value

    def _visible_from(self, observed_ms: int) -> int:
        return max(observed_ms, self._observed_ms) - (self._retention_ms or 0) + 1


class VersionsFold:
    """Every version of a key: versioned stores."""

    def __init__(self, history_retention_ms: int) -> None:
        self._retention_ms = history_retention_ms
        self._versions: dict[bytes, list[tuple[int, bytes | None]]] = {}
        self._observed_ms = NOTHING_OBSERVED
        self.refused = 0
        self.position = 0
        self.skipped = 0

    def add(self, records: Sequence[Record]) -> None:
        """Fold a batch, record by record; `refused` counts puts older than the history of their moment."""
        position = _advance(self.position, records)
        observed_ms = self._observed_ms
        for _, timestamp, key, value, *_ in records:
            if key is None:
                self.skipped += 1
                continue
            if timestamp < observed_ms - self._retention_ms:  # as the live store refused it, at its moment's time
                self.refused += 1
                continue
            observed_ms = max(observed_ms, timestamp)
            _put_version(self._versions.setdefault(key, []), timestamp, value)
        self._observed_ms = observed_ms
        self.position = position

    def versions(self, observed_ms: int = NOTHING_OBSERVED) -> Iterator[tuple[bytes, list[Version]]]:
        """Keys with their kept versions, oldest first, tombstones included."""
        kept_after = max(observed_ms, self._observed_ms) - self._retention_ms
        for key, entries in self._versions.items():
            kept = _kept(entries, kept_after)
            if kept:
                yield key, kept

    def rows(self, observed_ms: int = NOTHING_OBSERVED) -> Iterator[LogicalRow]:
        """See Fold.rows: one row per version that has a value."""
        for key, versions in self.versions(observed_ms):
            for valid_from, _, value in versions:
                if value is not None:
                    yield key, valid_from, value


def fold_for(kind: str, *, timestamped: bool = True, retention_ms: int | None = None) -> Fold:
    """The fold of a store kind, by its traits; a kind whose rows expire needs its retention."""
    traits = TRAITS.get(kind)
    if traits is None:
        raise InvalidRequest(f"store kind {kind!r} is unknown: use one of {', '.join(TRAITS)}")
    # Only plain stores can be declared with or without timestamps; the other kinds have one layout.
    stamped = timestamped if traits.plain else SPECS[kind].timestamped
    if not traits.retention:
        return LatestFold(timestamped=stamped)
    if retention_ms is None:
        raise InvalidRequest(f"the fold of a {kind} store needs its retention_ms: rows past it are hidden")
    if traits.versions:
        return VersionsFold(retention_ms)
    time_of = None if traits.times is None else traits.times.time_of
    return LatestFold(timestamped=stamped, retention_ms=retention_ms, time_of=time_of)


def versions_of(puts: Iterable[tuple[int, bytes | None]], kept_after: int) -> list[Version]:
    """Kept versions of one key after these puts (timestamp, value), all accepted by its store; oldest first."""
    entries: list[tuple[int, bytes | None]] = []
    for timestamp, value in puts:
        _put_version(entries, timestamp, value)
    return _kept(entries, kept_after)


def _kept(entries: Sequence[tuple[int, bytes | None]], kept_after: int) -> list[Version]:
    ends = [*(valid_from for valid_from, _ in entries[1:]), VALID_TO_UNDEFINED][: len(entries)]
    return [
        Version(valid_from, valid_to, value)
        for (valid_from, value), valid_to in zip(entries, ends, strict=True)
        if valid_to == VALID_TO_UNDEFINED or valid_to > kept_after
    ]


def _put_version(entries: list[tuple[int, bytes | None]], timestamp: int, value: bytes | None) -> None:
    if not entries or entries[-1][0] < timestamp:
        entries.append((timestamp, value))
        return
    index = bisect_left(entries, timestamp, key=_valid_from_of)
    if entries[index][0] == timestamp:
        entries[index] = (timestamp, value)
    else:
        insort(entries, (timestamp, value), key=_valid_from_of)


def _by_key(records: Sequence[Record]) -> tuple[dict[bytes, Record], int]:
    """The last record of each key, and the number of records without a key."""
    # A dict keeps the last record of a key without a Python call for each record.
    latest = {record[2]: record for record in records}
    # A count takes another pass, so only after a record without a key was found.
    skipped = 0 if latest.pop(None, None) is None else sum(record[2] is None for record in records)
    return latest, skipped  # type: ignore[return-value]


def _advance(position: int, records: Sequence[Record]) -> int:
    if not records:
        return position
    if records[0].offset < position:
        raise InternalError(f"fold: offset {records[0].offset} was folded already, the position is {position}")
    return records[-1].offset + 1
