"""One partition of the simulated log: its records by column, offsets, epochs, and what care removes.

    offsets   0  1  2     4  5        gaps: markers, removed records, aborted transactions
    begin ────┘                 └──── end: the next offset
    open      transaction -> first offset: readers of a log like Kafka stop before the least one

Rules of this file: plain data of the world, without clock, groups and clients. Every step is whole or raises first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from standfast.replication.checks import check_bytes, check_timestamps
from standfast.replication.columns import RecordColumns
from standfast.replication.log import Headers, Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.store.errors import InvalidRequest
from standfast.store.value_timestamp import RowChanges

AGE_STEP_MS = 600_000  # as of the embedded log: it notes ages in such steps


class Batch(NamedTuple):
    """Checked records for one partition, by column; `headers` is None if no record has any."""

    keys: Sequence[bytes | None] = ()
    values: Sequence[bytes | None] = ()
    times: Sequence[int] = ()
    headers: Sequence[Headers] | None = None


class Began:
    """A writer's epoch: its tag, and the partitions (by number) in which it began."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.partitions: dict[int, None] = {}


def checked(source: TopicPartition, records: Sequence[Outgoing], least_ms: int) -> Batch:
    """The records by column. Raises InvalidRequest naming partition and record."""
    if not len(records):
        return Batch()
    try:
        columns: list[Any] = list(records.columns() if isinstance(records, RowChanges) else zip(*records, strict=True))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{source}: records of one batch need equal shape ({error})") from error
    if len(columns) not in (3, 4):
        raise InvalidRequest(f"{source}: a record is (key, value, timestamp, headers), got {len(columns)} parts")
    keys, values = (
        [None if one is None else bytes(one) for one in column] if check_bytes(source, what, column) else column
        for what, column in zip(("key", "value"), columns, strict=False)
    )
    check_timestamps(source, columns[2], least_ms)
    if len(columns) == 3 or not any(columns[3]):
        return Batch(keys, values, columns[2])
    return Batch(keys, values, columns[2], [_headers(source, at, one) for at, one in enumerate(columns[3])])


def _headers(source: TopicPartition, index: int, headers: Any) -> Headers:
    try:
        found = [(key, None if value is None else bytes(memoryview(value))) for key, value in headers]
        if not all(isinstance(key, str) for key, _ in found):
            raise TypeError("a header's name is no text")
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{source}: record {index} of the batch has bad headers ({error})") from error
    return tuple(found)


class Partition:
    """One partition. `number` differs from that of every other one, also of a recreated topic."""

    def __init__(self, source: TopicPartition, number: int, policy: TopicPolicy) -> None:
        self.source, self.number, self.policy = source, number, policy
        self.begin = self.end = 0
        self.offsets: list[int] = []
        self.times: list[int] = []
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: list[Headers] = []
        self.has_headers = False
        self.epochs: list[tuple[int, str]] = []  # begin, tag
        self.open: dict[int, int] = {}
        self.unseen: list[tuple[int, int]] = []  # offset and time of markers, and of records that were aborted
        self.held: tuple[int, int] | None = None  # readers see no more than up to an offset, until a time
        # Of care: offsets below `clean` have one record a key, and no old tombstone lies below `swept`.
        self.clean = self.kept = self.swept = 0
        self.compacted = 0  # older records of a key may be gone below this offset
        self.ages: list[tuple[int, int]] = []  # end offset, by which time all below it were appended
        self.appended_ms = self.aged_ms = 0
        self.horizons: dict[int, int] = {}  # of a log like Kafka: offset of a tombstone -> when it may go

    def append(self, batch: Batch, now_ms: int, began: Began | None) -> int:
        """Write checked records at the end; returns the offset of the first one. `began` is for a log with tags."""
        first, count = self.end, len(batch.keys)
        if not count:
            return first
        if now_ms - self.aged_ms >= AGE_STEP_MS:
            if first:
                self.ages.append((first, self.appended_ms))
            self.aged_ms = now_ms
        self.appended_ms = max(now_ms, self.appended_ms)
        if began is not None and self.number not in began.partitions:
            began.partitions[self.number] = None
            self.epochs.append((first, began.tag))
        self.end += count
        self.offsets += range(first, self.end)
        self.times += batch.times
        self.keys += batch.keys
        self.values += batch.values
        self.headers += batch.headers or [()] * count
        self.has_headers = self.has_headers or batch.headers is not None
        return first

    def visible(self, now_ms: int) -> int:
        """The end for readers: below open transactions, and up to where a fault holds them."""
        end = min(self.open.values(), default=self.end)
        if self.held is not None:
            if now_ms < self.held[1]:
                return min(end, max(self.held[0], self.begin))
            self.held = None
        return max(end, self.begin)

    def index(self, offset: int) -> int:
        """Index of the first record at an offset or behind it."""
        return bisect_left(self.offsets, offset)

    def records(self, first: int, end: int) -> RecordColumns:
        """The records of these indexes."""
        of = slice(first, end)
        headers = self.headers[of] if self.has_headers else None
        return RecordColumns(self.offsets[of], self.times[of], self.keys[of], self.values[of], headers)

    def first_at(self, time_ms: int, end: int) -> int:
        """First offset below `end` with this timestamp or a later one; `end` if there is none.

        As on a broker, markers and records of aborted transactions count, too.
        """
        found = next((at for at, time in zip(self.offsets, self.times, strict=True) if time >= time_ms), end)
        return min(found, end, *(at for at, time in self.unseen if time >= time_ms and at >= self.begin))

    def mark(self, first: int, end: int, now_ms: int, *, commits: bool) -> None:
        """End a transaction, whose records are these: a marker takes the next offset."""
        if not commits:
            of = slice(self.index(first), self.index(end))
            self.unseen += zip(self.offsets[of], self.times[of], strict=True)
            self.remove_range(first, end)
        self.unseen.append((self.end, now_ms))
        self.end += 1

    # -- removal ------------------------------------------------------------------------------------------------------

    def remove(self, doomed: Callable[[int], bool]) -> int:
        """Remove the records at these indexes; returns their number."""
        stays = [index for index in range(len(self.offsets)) if not doomed(index)]
        removed = len(self.offsets) - len(stays)
        if removed:
            for name in ("offsets", "times", "keys", "values", "headers"):
                column = getattr(self, name)
                column[:] = [column[index] for index in stays]
        return removed

    def remove_range(self, first: int, end: int) -> int:
        """Remove the records of these offsets; returns their number."""
        of = slice(self.index(first), self.index(end))
        for column in (self.times, self.keys, self.values, self.headers, self.offsets):
            del column[of]
        return of.stop - of.start

    def move_begin(self, begin: int) -> int:
        """Move the begin forward; returns the number of removed records."""
        if begin <= self.begin:
            return 0
        self.begin = begin
        self.clean, self.swept = max(self.clean, begin), max(self.swept, begin)
        # A position right at the begin carries the tag of the epoch that ends there, so that epoch stays.
        last = max((at for at, _ in self.epochs if at < begin), default=0)
        self.epochs = [(at, tag) for at, tag in self.epochs if at >= last]
        return self.remove_range(0, begin)

    def cut(self, end: int) -> None:
        """Lose all records from an offset on, as after an unclean election or with an older copy of the file."""
        self.remove_range(end, self.end)
        self.end = end
        self.begin, self.clean, self.swept = (min(at, end) for at in (self.begin, self.clean, self.swept))
        self.epochs = [(at, tag) for at, tag in self.epochs if at < end]
        self.open = {number: first for number, first in self.open.items() if first < end}
        self.ages = [(at, time) for at, time in self.ages if at <= end]

    def retain(self, now_ms: int) -> int:
        """Remove old records as the embedded log does: by timestamp and by append. Returns their number."""
        cutoff_ms = now_ms - self.policy.retention_ms
        if "delete" not in self.policy.cleanup or self.policy.retention_ms < 0:
            return 0
        old = max(self._appended_by(cutoff_ms), self.begin)
        begin = min(self.first_at(cutoff_ms, old), old)
        removed = self.move_begin(begin)
        self.ages = [(end, at) for end, at in self.ages if end > begin]
        return removed

    def compact(self, now_ms: int, *, dedupe: bool) -> int:
        """Compact as the embedded log does; `dedupe`: also remove older records of a key. Returns their number."""
        removed, policy = 0, self.policy
        if dedupe and self.clean < self.end:
            end = self.end
            if policy.min_compaction_lag_ms:
                newest_ms = now_ms - policy.min_compaction_lag_ms
                end = max(min(end, self._appended_by(newest_ms)), self.clean)
                young = (at for at in range(self.index(self.clean), self.index(end)) if self.times[at] > newest_ms)
                if (first := next(young, None)) is not None:
                    end = self.offsets[first]
            if end > self.clean:
                removed += self._keep_last(end)
                self.clean, self.kept = end, self.index(end)
        if policy.delete_retention_ms >= 0:
            swept = min(self._appended_by(now_ms - policy.delete_retention_ms), self.clean)
            if swept > self.swept:
                low, high, values = self.index(self.swept), self.index(swept), self.values
                gone = self.remove(lambda at: low <= at < high and values[at] is None)
                self.swept, self.kept, removed = swept, max(self.kept - gone, 0), removed + gone
            if "delete" not in policy.cleanup:
                self.ages = [(end, at) for end, at in self.ages if end > self.swept]
        return removed

    def clean_up(self, now_ms: int, end: int) -> int:
        """Compact below `end` as Kafka does; a tombstone goes `delete_retention_ms` after the first time."""
        end = min(end, *self.open.values(), self.end)  # no cleaner goes beyond the last stable offset
        removed = self._keep_last(end)
        horizons, self.horizons = self.horizons, {}
        for at, value in zip(self.offsets[: self.index(end)], self.values, strict=False):
            if value is None:
                self.horizons[at] = horizons.get(at, now_ms + max(self.policy.delete_retention_ms, 0))
        if self.policy.delete_retention_ms < 0:
            return removed
        offsets = self.offsets
        return removed + self.remove(lambda at: self.horizons.get(offsets[at], now_ms + 1) <= now_ms)

    def _keep_last(self, end: int) -> int:
        """Remove the records below `end` that have a later one of their key there."""
        self.compacted = max(self.compacted, end)
        stop, keys = self.index(end), self.keys
        last = dict(zip(keys[:stop], range(stop), strict=True))
        return self.remove(lambda at: at < stop and last[keys[at]] > at)

    def _appended_by(self, cutoff_ms: int) -> int:
        """Offset below which every append is of `cutoff_ms` or before, by the noted ages."""
        if self.appended_ms <= cutoff_ms:
            return self.end
        return max((end for end, at in self.ages if at <= cutoff_ms), default=0)
