"""Punctuators of applications in any language: schedules of active tasks, fired as events.

    POST /v1/schedule {"partition": 0, "kind": "wall_clock_time", "interval_ms": 5000}  ->  {"id": 1}
    event: punctuate   {"id": 1, "partition": 0, "kind": "wall_clock_time", "timestamp": ..., "missed": 0}

Wall-clock schedules run on the monotonic clock, so that a step of the wall clock neither fires nor holds one; their
timestamps are wall time. Stream time is the smallest of the task's source partitions, as the application gives it with
its commits and SF.TIME. `missed`: how many times went by unfired before this one.

Rules of this file: used by the control thread. Schedules live as long as the task is active here; a standby has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from standfast.ops.shared.error_codes import LIMIT, NOT_ACTIVE, Refused
from standfast.ops.sidecar.control.events import Events
from standfast.store.clock import Clock
from standfast.stream.punctuation import (
    STREAM_TIME,
    WALL_CLOCK_TIME,
    Cancellable,
    PunctuationQueue,
    PunctuationType,
    first_due,
)
from standfast.stream.task.statistics import SessionCounters
from standfast.stream.task.task import Task

SCHEDULES_MAX = 1_000


@dataclass(slots=True)
class _Schedule:
    partition: int
    kind: PunctuationType
    interval_ms: int
    due_ms: int
    handle: Cancellable
    missed: int = 0


@dataclass(slots=True)
class _Queues:
    by_kind: dict[PunctuationType, PunctuationQueue] = field(
        default_factory=lambda: {STREAM_TIME: PunctuationQueue(), WALL_CLOCK_TIME: PunctuationQueue()}
    )


class SidecarTimers:
    """All schedules of the sidecar."""

    def __init__(self, clock: Clock, events: Events) -> None:
        self._clock = clock
        self._events = events
        self._schedules: dict[int, _Schedule] = {}
        self._queues: dict[int, _Queues] = {}
        self._last = 0
        self.counters = SessionCounters()  # of punctuations only; read by other threads

    def schedule(
        self, active: frozenset[int], partition: int, kind: str, interval_ms: int, start_ms: int | None
    ) -> int:
        """A new schedule; its id. Raises Refused for a task that is not active here."""
        if partition not in active:
            raise Refused(NOT_ACTIVE, f"partition {partition} is not active here: only an active task has schedules")
        if len(self._schedules) >= SCHEDULES_MAX:
            raise Refused(LIMIT, f"there are {SCHEDULES_MAX} schedules: delete one")
        which = PunctuationType(kind)
        now_ms = self._clock.monotonic_ms()
        if which is WALL_CLOCK_TIME and start_ms is not None:
            # The start is given in wall time, and the queue runs on the monotonic clock.
            start_ms = max(start_ms - self._clock.wall_ms() + now_ms, 0)
        due_ms = first_due(which, now_ms, interval_ms, start_ms)
        self._last += 1
        number = self._last
        queue = self._queues.setdefault(partition, _Queues()).by_kind[which]
        handle = queue.schedule(due_ms, interval_ms, lambda now_ms: self._fire(number, now_ms))
        self._schedules[number] = _Schedule(partition, which, interval_ms, due_ms, handle)
        return number

    def cancel(self, number: int) -> bool:
        """Stop a schedule; returns whether there was one."""
        found = self._schedules.pop(number, None)
        if found is None:
            return False
        found.handle.cancel()
        return True

    def keep(self, active: frozenset[int]) -> None:
        """Drop schedules of tasks that are no longer active here."""
        for number, one in list(self._schedules.items()):
            if one.partition not in active:
                self.cancel(number)
        self._queues = {partition: queues for partition, queues in self._queues.items() if partition in active}

    def tick(self, active: frozenset[int], tasks: Mapping[int, Task]) -> None:
        """Fire due schedules of open tasks."""
        for partition, queues in self._queues.items():
            task = tasks.get(partition)
            # The gate of a task that restores is shut, for timers too.
            if partition not in active or task is None:
                continue
            # A copy: another thread may set a time meanwhile.
            times = dict(task.stream_times)
            queues.by_kind[STREAM_TIME].may_punctuate(min(times.values(), default=None))
            queues.by_kind[WALL_CLOCK_TIME].may_punctuate(self._clock.monotonic_ms())

    def shown(self) -> list[dict[str, Any]]:
        """Each schedule for the page; `next_ms` is stream time or wall time. From any thread."""
        offset_ms = self._clock.wall_ms() - self._clock.monotonic_ms()
        return [
            {
                "task": f"0_{one.partition}",
                "id": number,
                "kind": one.kind.value,
                "interval_ms": one.interval_ms,
                "next_ms": one.due_ms + (offset_ms if one.kind is WALL_CLOCK_TIME else 0),
                "missed": one.missed,
            }
            # A copy: the control thread changes the dict meanwhile.
            for number, one in sorted(dict(self._schedules).items())
        ]

    def _fire(self, number: int, now_ms: int) -> None:
        one = self._schedules[number]
        missed = max((now_ms - one.due_ms) // one.interval_ms, 0)
        one.missed += missed
        self.counters.punctuations[one.kind.value, "fired"] += 1
        self.counters.punctuation_delay_seconds[(one.kind.value,)].observe(max(now_ms - one.due_ms, 0) / 1_000)
        # Due times are monotonic, and monotonic time means nothing to an application.
        one.due_ms += (missed + 1) * one.interval_ms
        timestamp = now_ms if one.kind is STREAM_TIME else self._clock.wall_ms()
        self._events.publish(
            "punctuate",
            {
                "id": number,
                "partition": one.partition,
                "kind": one.kind.value,
                "timestamp": timestamp,
                "missed": missed,
            },
        )
