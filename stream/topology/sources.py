"""The settings of a source: serdes, timestamps, the handling of failed records, watermarks.

Rules of this file: plain frozen data, checked on construction; carried out in `standfast.stream.runtime.inputs`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, TypedDict, get_args

from standfast.store.arguments import INT64_MAX, is_whole
from standfast.store.errors import BadConfig, InvalidRequest
from standfast.store.names import check_topic
from standfast.store.serde import Serde
from standfast.stream.record import Record
from standfast.stream.topology.policy import OnError, on_error_problems
from standfast.stream.watermarks import WatermarkAssigner

InvalidTimestamp = Literal["fail", "skip", "partition_time"]
Start = Literal["committed", "earliest", "latest"] | int  # a number: milliseconds since the epoch


class TimestampSource(Enum):
    """The origin of a timestamp that no function of the record can compute."""

    ARRIVAL_TIME = "arrival_time"


ARRIVAL_TIME = TimestampSource.ARRIVAL_TIME
COMMITTED, EARLIEST, LATEST = STARTS = ("committed", "earliest", "latest")

Timestamps = Callable[[Record], int] | TimestampSource
Assigners = WatermarkAssigner | Callable[[], WatermarkAssigner]


class TableOptions(TypedDict, total=False):
    """The keyword arguments of a source that apply to a table too; see SourceSettings."""

    timestamp: Timestamps | None
    invalid_timestamp: InvalidTimestamp
    timestamp_max_ms: int | None
    on_error: OnError
    dead_letter: str | None


class SourceOptions(TableOptions, total=False):
    """The keyword arguments of a source that have defaults; see SourceSettings."""

    watermarks: Assigners | None
    late: str | None
    idle_after_ms: int | None
    start: Start


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """How a topic is read.

    timestamp          function of the record, ARRIVAL_TIME, or None: the log's own
    invalid_timestamp  a negative one, or one above `timestamp_max_ms`: "fail", "skip" (counted), or "partition_time":
                       its partition's largest
    timestamp_max_ms   the largest timestamp that a record may have: one of the year 5000 would close every window and
                       expire every row; None: any
    on_error           a record that cannot be deserialised or processed: "fail", "skip" (counted), or "dead_letter"
    dead_letter        topic for those records, as they were read, with headers that say why
    watermarks         assigner, or function that creates one; every partition gets its own
    late               topic for records at or before the watermark; without it they are dropped and counted
    idle_after_ms      a partition without records for so many milliseconds holds back neither stream time nor watermark
    start              where a topic is read from while the application has committed no offset of it: "committed" or
                       "earliest": its beginning, "latest": its end, or whole milliseconds: its first record of that
                       time or a later one, its end if there is none

    A record that fails in a processor leaves no trace in stores and outputs if it is skipped or a dead letter.
    `on_error` covers everything that the source's records cause: see `standfast.stream.topology.policy`.
    """

    key: Serde[Any]
    value: Serde[Any]
    timestamp: Timestamps | None = None
    invalid_timestamp: InvalidTimestamp = "fail"
    timestamp_max_ms: int | None = None
    on_error: OnError = "fail"
    dead_letter: str | None = None
    watermarks: Assigners | None = None
    late: str | None = None
    idle_after_ms: int | None = None
    start: Start = "committed"

    def problems(self) -> list[str]:
        """The problems of the settings, each with its fix."""
        problems = []
        for part in ("key", "value"):
            if not isinstance(getattr(self, part), Serde):
                problems.append(f"{part} must be a serde such as standfast.serde.string, not {getattr(self, part)!r}")
        if self.invalid_timestamp not in get_args(InvalidTimestamp):
            problems.append(
                f"invalid_timestamp must be one of {', '.join(get_args(InvalidTimestamp))}, "
                f"not {self.invalid_timestamp!r}"
            )
        if self.timestamp_max_ms is not None and not is_whole(self.timestamp_max_ms, 0, INT64_MAX):
            problems.append(
                "timestamp_max_ms must be whole milliseconds since the epoch, such as 4_102_444_800_000 (the year "
                f"2100), not {self.timestamp_max_ms!r:.100}"
            )
        if self.timestamp is not None and not callable(self.timestamp) and self.timestamp is not ARRIVAL_TIME:
            problems.append(f"timestamp must be a function of the record or ARRIVAL_TIME, not {self.timestamp!r}")
        problems += on_error_problems(self.on_error, self.dead_letter)
        if self.late is not None:
            try:
                check_topic(self.late)
            except InvalidRequest as error:
                problems.append(f"late: {error}")
        if self.late is not None and self.watermarks is None:
            problems.append("late needs watermarks: without them no record is late")
        idle = self.idle_after_ms
        if idle is not None and (not isinstance(idle, int) or isinstance(idle, bool) or idle < 1):
            problems.append(f"idle_after_ms must be a whole number of at least 1, not {idle!r}")
        if self.watermarks is not None and not (callable(self.watermarks) or hasattr(self.watermarks, "on_record")):
            problems.append(f"watermarks must be an assigner or a function that makes one, not {self.watermarks!r}")
        if self.start not in STARTS and not is_whole(self.start, 0, INT64_MAX):
            problems.append(
                f"start must be one of {', '.join(STARTS)}, or whole milliseconds since the epoch, not "
                f"{self.start!r:.100}"
            )
        return problems

    def assigner(self) -> WatermarkAssigner | None:
        """A new watermark assigner for one partition; None if the source generates no watermarks."""
        if self.watermarks is None:
            return None
        # An assigner has state of one partition, so a given instance is copied for each.
        given: Any = self.watermarks
        is_class = isinstance(given, type)  # a class has the methods as well, but calling it makes the assigner
        made: WatermarkAssigner = given() if is_class or not hasattr(given, "on_record") else copy.deepcopy(given)
        if not (hasattr(made, "on_record") and hasattr(made, "on_periodic")):
            raise BadConfig([f"watermarks made {made!r}: an assigner needs on_record and on_periodic"])
        return made
