"""The call for each record of an input, chosen once per task: without on_error and watermarks it is the processors'.

    plain        processors
    protected    savepoint ──> processors ──> release, or roll back and leave the record out
    event time   watermark of the record ──> late, or as above ──> the watermark's signals, once the record is processed

Rules of this file: it knows no loop and no offsets; an error that the record's policy does not cover propagates.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from standfast.store.clock import Clock
from standfast.stream.record import Record
from standfast.stream.runtime.event_time import EventTime
from standfast.stream.runtime.guard import TaskGuard
from standfast.stream.runtime.inputs import Input
from standfast.stream.runtime.skipped import Skipped
from standfast.stream.topology.processor import Forward
from standfast.stream.watermarks import Signal

InTurn = Callable[[Callable[[], object]], None]


class RecordWork:
    """The work around the records of one task. `in_turn` does work now, or behind the calls in flight."""

    def __init__(
        self, guard: TaskGuard, left_out: Skipped, clock: Clock, event_time: EventTime | None, in_turn: InTurn
    ) -> None:
        self._guard = guard
        self._left_out = left_out
        self._clock = clock
        self._event_time = event_time
        self._in_turn = in_turn

    def of(self, one: Input) -> Forward:
        """The call that processes a record of this input."""
        if self._event_time is not None:
            return partial(self._in_event_time, one, self._event_time)
        return partial(self._attempt, one, one.process) if one.protected else one.process

    def _attempt(self, one: Input, process: Forward, record: Record) -> None:
        error = self._guard.attempt(process, record)
        # Outside of the savepoint: a dead letter written inside would be rolled back with the record.
        if error is not None:
            self._left_out.failed(one, one.raw, error, "process")

    def _in_event_time(self, one: Input, event_time: EventTime, record: Record) -> None:
        signals: list[Signal] = []
        process = partial(self._process_unless_late, one, event_time, signals)
        if one.protected:
            self._attempt(one, process, record)
        else:
            process(record)
        if one.watermarks is not None and (signals or event_time.polls_each_record):
            self._in_turn(partial(event_time.on_record, one, signals, self._clock.monotonic_ms()))

    def _process_unless_late(self, one: Input, event_time: EventTime, signals: list[Signal], record: Record) -> None:
        """Process the record, and add the signals of its watermark; they are applied after it."""
        marks = one.watermarks
        if marks is not None:
            # First, because a record that fails and is skipped moves the watermark, too: the source has brought it.
            signals += marks.on_record(record.value, record.timestamp, self._clock.monotonic_ms())
            if event_time.is_late(record.timestamp):
                self._left_out.late(one, one.raw, record, event_time.clock_ms)
                return
        one.process(record)
