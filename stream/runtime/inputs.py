"""One input partition of a task: waiting records, the next one decoded, and the handling of undecodable ones.

    fetched ──> columns ──> a chunk of records, decoded by column ──> head (with its timestamp) ──> processors
                  │
                  └── one of them cannot be decoded, or is no plain record ──> each by itself ──> head
                                                 │ cannot be decoded, or has no valid timestamp
                                                 └──> fail, skip and count, or dead letter, as the source's policy says

Rules of this file: it decides about one record at a time and keeps the offsets right: `consumed` is the next offset to
process, and moves past skipped records. An error of a serde is raised when its record is next, never before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any, TypeAlias, cast

from standfast.replication.columns import RecordColumns
from standfast.replication.log import Headers
from standfast.replication.log import Record as LogRecord
from standfast.store.errors import InvalidRequest, Unavailable
from standfast.store.process.in_hand import DECODING, INPUT, OFFSET, STEP, InHand
from standfast.store.serde import UNCHANGED, Serde, beyond_record
from standfast.store.task.commit_record import source_key
from standfast.stream.control import is_control
from standfast.stream.deaths.exits import failure_of
from standfast.stream.record import Record
from standfast.stream.topology.nodes import OwnSource, SourceNode
from standfast.stream.topology.policy import ErrorPolicy
from standfast.stream.topology.processor import Forward
from standfast.stream.topology.sources import ARRIVAL_TIME
from standfast.stream.watermarks import SourceWatermarks

TIME_MAX_MS = 2**63 - 1
NEVER = 2**63
# Few, because the lease counts on progress with each record: a slow serde must not keep it from that for long.
CHUNK = 32
CHUNK_UNCHANGED = 256  # where no serde has anything to do

# Offsets, timestamps, keys, values, headers (None: no record has any).
Columns: TypeAlias = tuple[Sequence[int], Sequence[int], Sequence[Any], Sequence[Any], Sequence[Headers] | None]
# Record(*row) costs a Python-level call per record; this does not.
_make = cast("Callable[[Iterable[Any]], Record]", partial(tuple.__new__, Record))


class RecordFailed(InvalidRequest):
    """A record that cannot be deserialised, or has no valid timestamp; it is counted as `reason`."""

    def __init__(self, message: str, reason: str) -> None:
        self.reason = reason
        super().__init__(message)


LeaveOut = Callable[["Input", LogRecord, Exception, str], None]


class NamedInput:
    """The words of an input's records, which outlive this process; see `store/process/in_hand.py`."""

    def __init__(
        self,
        words: InHand | None = None,
        task: str = "",
        topic: str = "",
        partition: int = -1,
        behind: int = 1,
        steps: Sequence[str] = (),
    ) -> None:
        given = InHand() if words is None else words
        self._words = given.words
        self.number = given.add(task, topic, partition, behind, steps)

    def decode(self, offset: int, *, alone: bool) -> None:
        """A record is decoded; `alone`: and no other one with it."""
        words = self._words
        words[OFFSET], words[STEP], words[INPUT] = offset, DECODING, self.number if alone else -self.number

    def clear(self) -> None:
        """No record is decoded now."""
        words = self._words
        words[INPUT] = words[STEP] = 0


class Input:
    """Records of one topic and partition on their way into a task."""

    __slots__ = (
        "_chunk", "_chunk_records", "_deserialize_key", "_deserialize_value", "_pieces", "_queue", "_taken", "_waiting",
        "at_end", "behind", "consumed", "control", "fatal", "fetched", "head", "idle", "in_hand", "key", "label",
        "largest_ms", "noted_ms", "offsets", "partition", "place", "policy", "process", "protected", "records",
        "settings", "source", "timestamp", "timestamp_max_ms", "topic", "wall_ms", "watermarks", "work",
    )  # fmt: skip

    def __init__(
        self,
        source: SourceNode,
        partition: int,
        position: int,
        process: Forward,
        wall_ms: Callable[[], int],
        policy: ErrorPolicy,
    ) -> None:
        self.source = source
        self.settings = source.settings
        self.topic = source.topic
        self.label = source.label
        self.partition = partition
        self.behind = 1  # from a record's offset to the next one to process
        self.key = source_key(source.topic, partition)
        self.process = process
        self.work: Forward = process  # the same, within savepoints and watermarks where the task has them
        self._pieces: deque[Columns] = deque()  # as fetched
        self._taken = 0  # records of the first piece that are in a chunk, or were
        self._waiting = 0  # records of pieces that are in no chunk yet
        self._queue: deque[LogRecord] = deque()  # records of a chunk that are decoded one by one
        self._chunk: Columns = ((), (), (), (), None)
        self.records: list[Record] = []  # of the chunk, decoded
        self.offsets: Sequence[int] = ()  # theirs
        self.place = 0  # of `head` among them; while they are processed, of the record in hand
        self.head: Record | None = None
        self.control = False  # `head` is a signal of an upstream task
        self.at_end = False
        self.consumed = position
        self.fetched = position
        self.idle = False  # silent for longer than idle_after_ms: it holds back no stream time
        self.largest_ms = -1
        self.noted_ms = -1  # the largest timestamp that the stream time knows of
        self.in_hand = NamedInput()
        # Not None: processes died at records of this task. Each is decoded by itself; by offset, those to leave out.
        self.fatal: Mapping[int, Exception] | None = None
        self.policy = policy  # for an internal topic: the policy of the nodes that write to it
        self.protected = policy.protects
        self.timestamp = source.settings.timestamp
        limit_ms = source.settings.timestamp_max_ms
        self.timestamp_max_ms = TIME_MAX_MS if limit_ms is None else limit_ms
        self.watermarks: SourceWatermarks | None = None
        self.wall_ms = wall_ms
        self._deserialize_key = source.settings.key.of_topic(source.topic, "key").deserialize
        self._deserialize_value = source.settings.value.of_topic(source.topic, "value").deserialize
        unchanged = self._deserialize_key is UNCHANGED and self._deserialize_value is UNCHANGED
        self._chunk_records = CHUNK_UNCHANGED if unchanged else CHUNK

    @property
    def waiting(self) -> int:
        """The number of records fetched and not processed."""
        return self._waiting + len(self._queue) + (0 if self.head is None else len(self.records) - self.place)

    @property
    def raw(self) -> LogRecord:
        """The record of `head` as it was fetched; only where there is a head."""
        return _row(self._chunk, self.place)

    @property
    def offset(self) -> int:
        """The offset of `head`; -1 if there is none."""
        return -1 if self.head is None else self.offsets[self.place]

    def add(self, records: Sequence[LogRecord], next_offset: int, at_end: bool) -> None:
        """Add fetched records; `next_offset` may lie beyond the last of them."""
        if records:
            self._pieces.append(_columns(records))
            self._waiting += len(records)
        self.fetched = next_offset
        self.at_end = at_end

    def advance(self, leave_out: LeaveOut) -> None:
        """Go on to the next record; undecodable ones are skipped, or RecordFailed is raised, as the source says."""
        place = self.place + 1
        if place < len(self.records):
            self.place, self.head = place, self.records[place]
        else:
            self._begin_chunk(leave_out)

    def stop_at(self, place: int) -> None:
        """Stop in the middle of a chunk: the record at this place is `head`, those before it are processed."""
        self.place, self.head = place, self.records[place]
        if place:
            self.consumed = self.offsets[place - 1] + self.behind

    def _begin_chunk(self, leave_out: LeaveOut) -> None:
        while self._queue or self._waiting:
            if not self._queue:
                chunk = self._next_chunk()
                if self.fatal is None and (records := self._decoded(chunk)):
                    self._take(chunk, records, control=False)
                    return
                self._queue.extend(_row(chunk, at) for at in range(len(chunk[0])))
            raw = self._queue.popleft()
            if self.fatal and (death := self.fatal.get(raw.offset)) is not None:
                self._take_none()
                leave_out(self, raw, death, "process")
                self.consumed = raw.offset + self.behind
                continue
            control = self.source.internal and is_control(raw)
            try:
                # A signal has no key or value to decode; its time only orders it among the records.
                record = Record(None, None, max(raw.timestamp, 0)) if control else self.decode(raw)
            except RecordFailed as failure:
                self._take_none()
                if not self._may_leave_out(failure):
                    raise
                leave_out(self, raw, failure, failure.reason)
                self.consumed = raw.offset + self.behind
                continue
            self._take(_columns([raw]), [record], control=control)
            return
        self._take_none()
        # Offsets may end in markers or gaps, which no record ever moves `consumed` past.
        self.consumed = max(self.consumed, self.fetched)

    def _next_chunk(self) -> Columns:
        piece, first = self._pieces[0], self._taken
        upto = min(first + self._chunk_records, len(piece[0]))
        offsets, times, keys, values, headers = piece
        part = slice(first, upto)
        self._taken = upto
        if upto == len(offsets):
            self._pieces.popleft()
            self._taken = 0
        self._waiting -= upto - first
        return offsets[part], times[part], keys[part], values[part], None if headers is None else headers[part]

    def _decoded(self, chunk: Columns) -> list[Record] | None:
        """The records of a chunk; None if each has to be looked at by itself."""
        _, times, keys, values, headers = chunk
        if self.timestamp is not None or min(times) < 0 or (self.source.internal and headers is not None):
            return None
        if self.timestamp_max_ms != TIME_MAX_MS and max(times) > self.timestamp_max_ms:
            return None
        key_of, value_of = self._deserialize_key, self._deserialize_value
        self.in_hand.decode(chunk[0][0], alone=len(times) == 1)
        try:
            if key_of is not UNCHANGED:
                keys = [None if key is None else key_of(key) for key in keys]
            if value_of is not UNCHANGED:
                values = [None if value is None else value_of(value) for value in values]
        except BaseException as error:
            if not isinstance(failure_of(error), Exception):
                raise
            return None  # the record by itself raises it again, once the ones before it are processed
        finally:
            self.in_hand.clear()
        return list(map(_make, zip(keys, values, times, headers or repeat(()), repeat(None))))

    def _take(self, chunk: Columns, records: list[Record], *, control: bool) -> None:
        self._chunk, self.offsets, self.records, self.place = chunk, chunk[0], records, 0
        self.head, self.control = records[0], control

    def _take_none(self) -> None:
        self._chunk, self.offsets, self.records, self.place = ((), (), (), (), None), (), [], 0
        self.head, self.control = None, False

    def decode(self, raw: LogRecord) -> Record:
        """Decode a record, with its timestamp. Raises RecordFailed, or the error of a serde that is `beyond_record`."""
        self.in_hand.decode(raw.offset, alone=True)
        try:
            return self._decode(raw)
        finally:
            self.in_hand.clear()

    def _decode(self, raw: LogRecord) -> Record:
        try:
            key = None if raw.key is None else self._deserialize_key(raw.key)
            value = None if raw.value is None else self._deserialize_value(raw.value)
        except BaseException as given:
            error = failure_of(given)
            if not isinstance(error, Exception):
                raise
            what = f"{self.at(raw)}: cannot be deserialised"
            if (beyond := beyond_record(error, what)) is not None:
                raise beyond from error
            raise RecordFailed(
                f"{what} ({type(error).__name__}: {error}): give the source the serdes "
                'it was written with, or on_error="skip" or "dead_letter"',
                "deserialize",
            ) from error
        record = Record(key, value, raw.timestamp, raw.headers)
        if self.timestamp is None:
            if 0 <= raw.timestamp <= self.timestamp_max_ms:
                return record
            return record._replace(timestamp=self._instead(raw, raw.timestamp))
        stamp = self._extract(record, raw)
        return record._replace(timestamp=stamp)

    def at(self, raw: LogRecord) -> str:
        """A record's topic, partition and offset, for messages."""
        return f"record of {self.label}-{self.partition} at offset {raw.offset}"

    def stored(self, raw: LogRecord, topic: str) -> tuple[bytes | None, bytes | None]:
        """Key and value as bytes, for a topic of records that were left out."""
        return raw.key, raw.value

    def _may_leave_out(self, failure: RecordFailed) -> bool:
        if failure.reason == "invalid_timestamp":
            return self.settings.invalid_timestamp == "skip"
        return self.protected

    def _extract(self, record: Record, raw: LogRecord) -> int:
        if self.timestamp is ARRIVAL_TIME:
            return self.wall_ms()
        try:
            stamp = self.timestamp(record)  # type: ignore[misc]
        except BaseException as given:
            error = failure_of(given)
            if not isinstance(error, Exception):
                raise
            raise RecordFailed(
                f"{self.at(raw)}: the timestamp extractor failed ({type(error).__name__}: {error})", "process"
            ) from error
        if type(stamp) is int and 0 <= stamp <= self.timestamp_max_ms:
            return stamp
        return self._instead(raw, stamp)

    def _instead(self, raw: LogRecord, stamp: object) -> int:
        if self.settings.invalid_timestamp == "partition_time" and self.largest_ms >= 0:
            # From before the source had a limit it may be above that, too.
            return min(self.largest_ms, self.timestamp_max_ms)
        limit_ms = self.settings.timestamp_max_ms
        upto = "" if limit_ms is None else f" to {limit_ms} (timestamp_max_ms)"
        known = " and its partition has had no record yet" * (self.settings.invalid_timestamp == "partition_time")
        raise RecordFailed(
            f"{self.at(raw)}: timestamp {stamp!r} is not whole milliseconds from 0{upto}{known}: give the source a "
            'timestamp extractor, or invalid_timestamp="skip" or "partition_time"',
            "invalid_timestamp",
        )


class OwnInput(Input):
    """Records that a source of one's own collected: decoded already, each with the next offset behind it."""

    __slots__ = ("own",)

    def __init__(
        self,
        source: SourceNode,
        own: OwnSource,
        partition: int,
        position: int,
        process: Forward,
        wall_ms: Callable[[], int],
        policy: ErrorPolicy,
    ) -> None:
        super().__init__(source, partition, position, process, wall_ms, policy)
        self.own = own
        self.behind = 0
        self._deserialize_key = self._deserialize_value = UNCHANGED

    def add_collected(self, taken: Sequence[tuple[Record, int]], at_end: bool) -> None:
        """Add collected records; `at_end`: no more of them wait now."""
        records = [LogRecord(offset, one.timestamp, one.key, one.value, one.headers) for one, offset in taken]
        self.add(records, taken[-1][1] if taken else self.fetched, at_end)

    def stored(self, raw: LogRecord, topic: str) -> tuple[bytes | None, bytes | None]:
        """Key and value by the source's serdes; as text where these cannot write them.

        Raises Unavailable, if a service of the serdes does not answer.
        """
        key, value = self.settings.key.of_topic(topic, "key"), self.settings.value.of_topic(topic, "value")
        return _written(raw.key, key), _written(raw.value, value)


def choose(inputs: Iterable[Input]) -> tuple[Input, int] | None:
    """The input with the earliest next record, and the latest timestamp up to which it stays that one.

    None while an input that is not at its end has no record here: more may come with an earlier timestamp (KIP-695),
    and topics are merged by time and not by arrival.
    """
    chosen: Input | None = None
    first_ms = until_ms = NEVER
    for one in inputs:
        head = one.head
        if head is None:
            if not one.at_end:
                return None
        elif chosen is None:
            chosen, first_ms = one, head.timestamp
        elif head.timestamp < first_ms:
            # Of equal timestamps the input declared first goes first: at that of the one before, it is that one's turn.
            chosen, first_ms, until_ms = one, head.timestamp, first_ms - 1
        elif head.timestamp < until_ms:
            until_ms = head.timestamp
    return None if chosen is None else (chosen, until_ms)


def _columns(records: Sequence[LogRecord]) -> Columns:
    if isinstance(records, RecordColumns):
        return records.offsets, records.timestamps, records.keys, records.values, records.headers
    offsets, times, keys, values, headers = zip(*records, strict=True)
    return offsets, times, keys, values, headers if any(headers) else None


def _row(columns: Columns, at: int) -> LogRecord:
    offsets, times, keys, values, headers = columns
    return LogRecord(offsets[at], times[at], keys[at], values[at], () if headers is None else headers[at])


def _written(given: Any, serde: Serde[Any]) -> bytes | None:
    if given is None:
        return None
    try:
        return serde.serialize(given)
    except Unavailable:
        raise  # the record comes again when the service is back
    except Exception:  # noqa: BLE001 - the serde itself may be the failure; the copy for people is written nevertheless
        return repr(given).encode("utf-8", "replace")
