"""One input partition of a task: waiting records, the next one decoded, and the handling of undecodable ones.

    fetched ──> queue ──> head (decoded, with its timestamp) ──> processors
                            │ cannot be decoded, or has no valid timestamp
                            └──> fail, skip and count, or dead letter, as the source's policy says

Rules of this file: it decides about one record at a time and keeps the offsets right: `consumed` is the next offset to
process, and moves past skipped records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from standfast.replication.log import Record as LogRecord
from standfast.store.errors import InvalidRequest, Unavailable
from standfast.store.serde import Serde, beyond_record
from standfast.store.task.commit_record import source_key
from standfast.stream.control import is_control
from standfast.stream.record import Record
from standfast.stream.topology.nodes import OwnSource, SourceNode
from standfast.stream.topology.policy import ErrorPolicy
from standfast.stream.topology.processor import Forward
from standfast.stream.topology.sources import ARRIVAL_TIME
from standfast.stream.watermarks import SourceWatermarks

TIME_MAX_MS = 2**63 - 1


class RecordFailed(InvalidRequest):
    """A record that cannot be deserialised, or has no valid timestamp; it is counted as `reason`."""

    def __init__(self, message: str, reason: str) -> None:
        self.reason = reason
        super().__init__(message)


LeaveOut = Callable[["Input", LogRecord, Exception, str], None]


class Input:
    """Records of one topic and partition on their way into a task."""

    __slots__ = (
        "_deserialize_key", "_deserialize_value", "at_end", "behind", "consumed", "fetched", "head", "idle", "key",
        "label", "largest_ms", "partition", "policy", "process", "protected", "queue", "raw", "settings", "source",
        "timestamp", "topic", "wall_ms", "watermarks",
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
        self.queue: deque[LogRecord] = deque()
        self.head: Record | None = None
        self.raw: LogRecord | None = None
        self.at_end = False
        self.consumed = position
        self.fetched = position
        self.idle = False  # silent for longer than idle_after_ms: it holds back no stream time
        self.largest_ms = -1
        self.policy = policy  # for an internal topic: the policy of the nodes that write to it
        self.protected = policy.protects
        self.timestamp = source.settings.timestamp
        self.watermarks: SourceWatermarks | None = None
        self.wall_ms = wall_ms
        self._deserialize_key = source.settings.key.of_topic(source.topic, "key").deserialize
        self._deserialize_value = source.settings.value.of_topic(source.topic, "value").deserialize

    @property
    def waiting(self) -> int:
        """The number of records fetched and not processed."""
        return len(self.queue) + (self.head is not None)

    def add(self, records: Sequence[LogRecord], next_offset: int, at_end: bool) -> None:
        """Add fetched records; `next_offset` may lie beyond the last of them."""
        self.queue.extend(records)
        self.fetched = next_offset
        self.at_end = at_end

    def advance(self, leave_out: LeaveOut) -> None:
        """Decode the next record; undecodable ones are skipped, or RecordFailed is raised, as the source says."""
        queue, internal = self.queue, self.source.internal
        while queue:
            raw = queue.popleft()
            try:
                if internal and is_control(raw):
                    # A signal has no key or value to decode; its time only orders it among the records.
                    self.head = Record(None, None, max(raw.timestamp, 0))
                else:
                    self.head = self.decode(raw)
            except RecordFailed as failure:
                self.head = None
                if not self._may_leave_out(failure):
                    raise
                leave_out(self, raw, failure, failure.reason)
                self.consumed = raw.offset + self.behind
                continue
            self.raw = raw
            return
        self.head = self.raw = None
        # Offsets may end in markers or gaps, which no record ever moves `consumed` past.
        self.consumed = max(self.consumed, self.fetched)

    def decode(self, raw: LogRecord) -> Record:
        """Decode a record, with its timestamp. Raises RecordFailed, or the error of a serde that is `beyond_record`."""
        try:
            key = None if raw.key is None else self._deserialize_key(raw.key)
            value = None if raw.value is None else self._deserialize_value(raw.value)
        except Exception as error:
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
            if raw.timestamp >= 0:
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
        except Exception as error:
            raise RecordFailed(
                f"{self.at(raw)}: the timestamp extractor failed ({type(error).__name__}: {error})", "process"
            ) from error
        if type(stamp) is int and 0 <= stamp <= TIME_MAX_MS:
            return stamp
        return self._instead(raw, stamp)

    def _instead(self, raw: LogRecord, stamp: object) -> int:
        if self.settings.invalid_timestamp == "partition_time" and self.largest_ms >= 0:
            return self.largest_ms
        known = " and its partition has had no record yet" * (self.settings.invalid_timestamp == "partition_time")
        raise RecordFailed(
            f"{self.at(raw)}: timestamp {stamp!r} is not whole milliseconds from 0{known}: give the source a timestamp "
            'extractor, or invalid_timestamp="skip" or "partition_time"',
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
        self._deserialize_key = self._deserialize_value = _as_collected

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


def _as_collected(given: Any) -> Any:
    return given


def _written(given: Any, serde: Serde[Any]) -> bytes | None:
    if given is None:
        return None
    try:
        return serde.serialize(given)
    except Unavailable:
        raise  # the record comes again when the service is back
    except Exception:  # noqa: BLE001 - the serde itself may be the failure; the copy for people is written nevertheless
        return repr(given).encode("utf-8", "replace")
