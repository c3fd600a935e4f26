"""What becomes of a record that is left out: counted, and kept in a side topic if its source names one.

    cannot be deserialised or processed    dead letter: the record as it was read, with headers that say why
    at or before the watermark             the source's `late` topic: the record as it was read
    no valid timestamp                     counted only

Rules of this file: a side output is an output of the task like any other and becomes durable with its next commit.
Dead letters carry the headers of Kafka Streams (KIP-1034).
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping

from standfast.replication.log import Headers
from standfast.replication.log import Record as LogRecord
from standfast.stream.drops import Drops
from standfast.stream.inputs import Input, RecordFailed
from standfast.stream.record import Record
from standfast.stream.task import Task

DEAD_LETTER_PREFIX = "__streams.errors."


class LeftOut:
    """The records that one task leaves out."""

    def __init__(self, task: Task, drops: Drops, partitions_of: Mapping[str, int]) -> None:
        self._task = task
        self._drops = drops
        self._partitions_of = partitions_of
        self._where = f"task {task.id}"

    def failed(self, one: Input, raw: LogRecord, error: Exception, reason: str) -> None:
        """Count a record that failed, and set it aside where its source asks for that."""
        self._drops.drop(reason, self._where, f"{one.at(raw)}: {type(error).__name__}: {error}")
        topic = one.settings.dead_letter
        if topic is not None and reason != "invalid_timestamp":
            headers = dead_letter_headers(raw.headers, (one.topic, one.partition, raw.offset), error)
            self._keep(topic, one, raw, max(raw.timestamp, 0), headers)

    def late(self, one: Input, raw: LogRecord, record: Record, watermark_ms: int | None) -> None:
        """Set a late record aside, or count it where its source names no topic for those."""
        topic = one.settings.late
        if topic is not None:
            self._keep(topic, one, raw, record.timestamp, raw.headers)
            return
        self._drops.drop("late_record", self._where, f"{one.at(raw)}: {record.timestamp} <= watermark {watermark_ms}")

    def _keep(self, topic: str, one: Input, raw: LogRecord, stamp: int, headers: Headers) -> None:
        partition = one.partition % self._partitions_of[topic]
        self._task.send(topic, raw.key, raw.value, stamp, partition=partition, headers=headers)


def dead_letter_headers(headers: Headers, at: tuple[str, int, int], error: Exception) -> Headers:
    """The record's own headers and those that say why it is here, of what was raised first."""
    topic, partition, offset = at
    first = error.__cause__ if isinstance(error, RecordFailed) and error.__cause__ is not None else error
    about = {
        "exception": type(first).__name__,
        "message": str(first),
        "stacktrace": "".join(traceback.format_exception(error)),
        "topic": topic,
        "partition": str(partition),
        "offset": str(offset),
    }
    return (*headers, *((DEAD_LETTER_PREFIX + name, text.encode("utf-8", "replace")) for name, text in about.items()))
