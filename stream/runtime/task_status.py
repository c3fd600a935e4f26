"""The state of a running task's clocks and inputs, for status and metrics.

Rules of this file: plain frozen data, a copy of one moment. Times in milliseconds; None is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

from standfast.stream.runtime.event_time import EventTime
from standfast.stream.runtime.inputs import Input
from standfast.stream.runtime.task_calls import CallStatus
from standfast.stream.stream_time import TaskStreamTime
from standfast.stream.task.statistics import Clocks
from standfast.stream.watermarks import ValveStatistics


@dataclass(frozen=True, slots=True)
class InputStatus:
    """One input partition. `position`: the next offset to process; `waiting`: records fetched and not processed.

    `largest_ms` is the largest timestamp processed; an `idle` partition holds back no stream time.
    """

    topic: str
    partition: int
    position: int
    waiting: int
    largest_ms: int | None
    idle: bool


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """A task's clocks, and the inputs that hold them back.

    `stream_time_waits_for` is a partition such as `flights/0`; None with `stream_time="max"` and while all are idle.
    `event_time` is None in a task without watermarks; its `holding_back` names the partition and, behind a
    repartition topic, the upstream task, as `topic/0@0_3`.
    """

    task: str
    stream_time_ms: int | None
    stream_time_waits_for: str | None
    event_time: ValveStatistics | None
    next_wall_clock_ms: int | None
    inputs: tuple[InputStatus, ...]
    calls: tuple[CallStatus, ...] = ()  # of asynchronous steps

    @property
    def watermark_ms(self) -> int | None:
        """The task's event-time clock."""
        return None if self.event_time is None else self.event_time.clock_ms

    @property
    def watermark_waits_for(self) -> str | None:
        """The input that the event-time clock waits for."""
        held = None if self.event_time is None else self.event_time.holding_back
        return None if held is None else str(held)


def clocks_of(time: TaskStreamTime, event_time: EventTime | None) -> Clocks:
    """A task's clocks as of its last turn. Any thread may ask, without a lock: processing waits for no status."""
    held = None if event_time is None else event_time.holding_back()
    watermark_ms = None if event_time is None else event_time.clock_ms
    return Clocks(time.now_ms, time.holding_back(), watermark_ms, None if held is None else str(held))


def status_of(one: Input, time: TaskStreamTime) -> InputStatus:
    """The state of one input."""
    largest_ms = time.partition_ms(one.key)
    return InputStatus(one.topic, one.partition, one.consumed, one.waiting, largest_ms, one.idle)
