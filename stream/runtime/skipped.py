"""Skipped records and results: counted, and written to a side topic if their source or step names one.

    record that cannot be deserialised       dead letter: the record as it was read, with headers that say why; behind a
    or processed                             repartition the record as the repartition topic has it
    dead letter above a limit                with less of its value, whose size is in a header; counted only where that
                                             is not enough
    record that fails in a step              dead letter: the record as the step received it, by the serdes it had there
    result that fails further downstream     dead letter: key and value of the result, by the serdes of its table
    timer, punctuation                       counted only: there is no record
    row that its serde cannot read           counted only, where a result was to be made of it: the store keeps it
    at or before the watermark               the source's `late` topic: the record as it was read
    all its windows are closed               the step's `late` topic: the record as the step received it
    no valid timestamp                       counted only

Rules of this file: a side output is an output of the task like any other and becomes durable with its next commit.
Dead letters carry the headers of Kafka Streams (KIP-1034), and the step's name where a step failed.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

from standfast.replication.log import Headers
from standfast.replication.log import Record as LogRecord
from standfast.store.errors import InvalidRequest, TooLarge, Unavailable
from standfast.store.serde import Part, Serde, beyond_record
from standfast.store.timestamps import writable
from standfast.stream.outgoing import value_room
from standfast.stream.record import Record
from standfast.stream.runtime.guard import TaskGuard
from standfast.stream.runtime.inputs import Input, RecordFailed
from standfast.stream.task.task import Task
from standfast.stream.topology.nodes import Serdes
from standfast.stream.topology.policy import ErrorPolicy
from standfast.stream.topology.processor import CurrentRecord

DEAD_LETTER_PREFIX = "__streams.errors."
TEXT_MAX_BYTES = 4_096  # of a message or a stack trace, where the whole text would be too large for the log


class Skipped:
    """The skipped records and results of one task."""

    def __init__(self, task: Task, guard: TaskGuard, in_hand: CurrentRecord, partitions_of: Mapping[str, int]) -> None:
        self._task = task
        self._guard = guard
        self._in_hand = in_hand
        self._partitions_of = partitions_of

    def failed(self, one: Input, raw: LogRecord, error: Exception, reason: str) -> None:
        """Count a failed record, and write it to the dead-letter topic of its policy, if any."""
        policy: ErrorPolicy = getattr(error, "policy", one.policy)  # of a record that ended processes, the step's
        topic = policy.dead_letter
        # First: where the service of a serde is away, the record comes again and must count once.
        key, value = (None, None) if topic is None else one.stored(raw, topic)
        self._guard.drop(None, policy.counted_as(reason), f"{one.at(raw)}: {_told(error)}")
        if topic is not None and reason != "invalid_timestamp":
            self._dead_letter(
                topic,
                (key, value, max(raw.timestamp, 0)),  # no log accepts a negative timestamp
                raw.headers,
                error,
                {"topic": one.label, "partition": str(one.partition), "offset": str(raw.offset)},
            )

    def failed_at(
        self,
        policy: ErrorPolicy,
        node: str,
        serdes: Serdes | None,
        record: Record,
        error: Exception,
        reason: str = "result",
    ) -> None:
        """Count a record that failed in a step, or a result that failed downstream of one; write its dead letter."""
        hand = self._in_hand
        at = "" if hand.topic is None else f" (record of {hand.topic}-{hand.partition} at offset {hand.offset})"
        skipped = f"key {record.key!r} at {record.timestamp}{at}: {_told(error)}"
        if policy.dead_letter is None:
            self._guard.drop(node, policy.counted_as(reason), skipped)
            return
        about = {"step": node}
        if hand.topic is not None:
            about |= {"topic": hand.topic, "partition": str(hand.partition), "offset": str(hand.offset)}
        parts = []
        sides: tuple[Part, Part] = ("key", "value")
        for part, given, serde in zip(sides, record, serdes or (None, None), strict=False):
            # Encoded again, since the processors before this step may have changed key and value.
            raw, as_text = _raw(given, None if serde is None else serde.of_topic(policy.dead_letter, part))
            parts.append(raw)
            if as_text:
                about[f"{part}.text"] = "repr"
        key, value = parts
        # Not before the serdes: where their service is away, the record is processed again and must count once.
        self._guard.drop(node, policy.counted_as(reason), skipped)
        self._dead_letter(policy.dead_letter, (key, value, record.timestamp), record.headers, error, about)

    def callback_failed(self, policy: ErrorPolicy, node: str, what: str, reason: str, error: Exception) -> None:
        """Count a failed timer or punctuation, or an unreadable result."""
        self._guard.drop(node, policy.counted_as(reason), f"{what}: {_told(error)}")

    def late(self, one: Input, raw: LogRecord, record: Record, watermark_ms: int | None) -> None:
        """Write a late record to its source's `late` topic, or count it where the source names none."""
        topic = one.settings.late
        if topic is not None:
            self._send(topic, *one.stored(raw, topic), record.timestamp, raw.headers)
            return
        self._guard.drop(None, "late_record", f"{one.at(raw)}: {record.timestamp} <= watermark {watermark_ms}")

    def late_at(self, node: str, topic: str, serdes: Serdes, record: Record) -> None:
        """Write a record that a step's windows are closed for to the step's `late` topic. InvalidRequest where the
        serdes of its stream cannot write it."""
        raw = []
        sides: tuple[Part, Part] = ("key", "value")
        for part, given, serde in zip(sides, record, serdes, strict=False):
            try:
                raw.append(None if given is None else serde.of_topic(topic, part).serialize(given))
            except Exception as error:
                what = f"step {node!r}: the {part} serde {serde.name!r} of its stream cannot write a late record"
                if (beyond := beyond_record(error, what)) is not None:
                    raise beyond from error
                fix = f"give the step before it the {part}= serde of its results"
                raise InvalidRequest(f"{what} ({type(error).__name__}: {error}): {fix}") from error
        self._send(topic, raw[0], raw[1], record.timestamp, record.headers)

    def _dead_letter(
        self,
        topic: str,
        record: tuple[bytes | None, bytes | None, int],
        headers: Headers,
        error: Exception,
        about: Mapping[str, str],
    ) -> None:
        """Write a dead letter. One above a limit gets shorter texts about the record, then less of its value."""
        try:
            self._send(topic, *record, dead_letter_headers(headers, error, about))
            return
        except TooLarge:
            made = dead_letter_headers(headers, error, about, TEXT_MAX_BYTES)
        try:
            self._send(topic, *record, made)
            return
        except TooLarge as refused:
            key, value, stamp = record
            made = (*made, (f"{DEAD_LETTER_PREFIX}value.bytes", str(len(value or b"")).encode()))
            room = value_room(topic, key, made, self._task.limits, **self._task.stores.limits.of_output())
            if value is None or room < 0:  # key, or headers of the record's own: no part of it would be of use
                self._guard.drop(None, "dead_letter", f"a dead letter for {topic}: {refused}")
                return
        self._send(topic, key, value[:room], stamp, made)

    def _send(self, topic: str, key: bytes | None, value: bytes | None, stamp: int, headers: Headers) -> None:
        partition = self._task.id.partition % self._partitions_of[topic]
        # A copy for people: it must not fail for the very timestamp that may have failed the record.
        stamp = min(writable(stamp, self._task.stores.limits.least_timestamp_ms), self._task.latest_ms(topic))
        self._task.send(topic, key, value, stamp, partition=partition, headers=headers)


def dead_letter_headers(
    headers: Headers, error: Exception, about: Mapping[str, str], text_bytes: int | None = None
) -> Headers:
    """The record's own headers and those of the dead letter, which name the first error raised."""
    # RecordFailed wraps the error of the serde or of the timestamp extractor, which is the one to report.
    first = error.__cause__ if isinstance(error, RecordFailed) and error.__cause__ is not None else error
    said = {
        "exception": type(first).__name__,
        "message": str(first),
        "stacktrace": "".join(traceback.format_exception(error)),
        **about,
    }
    added = ((DEAD_LETTER_PREFIX + name, text.encode("utf-8", "replace")[:text_bytes]) for name, text in said.items())
    return (*headers, *added)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _raw(given: Any, serde: Serde[Any] | None) -> tuple[bytes | None, bool]:
    """Bytes of a key or a value, and whether they are its repr, because its serde cannot write it."""
    if given is None:
        return None, False
    if serde is not None:
        try:
            return serde.serialize(given), False
        except Unavailable:
            raise  # the record is processed again when the service is back, and its dead letter is whole then
        except Exception:  # noqa: BLE001 - the serde itself may be the failure; the dead letter is written nevertheless
            return repr(given).encode("utf-8", "replace"), True
    return repr(given).encode("utf-8", "replace"), True
