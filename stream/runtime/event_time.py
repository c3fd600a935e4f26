"""Watermarks of one task: signals of its sources and of upstream tasks, and the signals that it sends downstream.

    source record ──> assigner of its partition ──┐
                                                  ├──> valve: the task's clock ──> timers, then downstream partitions
    control record of an upstream task ───────────┘

A task that starts again knows its clock but not the watermark of each upstream task, and an idle or quiet upstream task
sends nothing new. So a task that has sent no signal for `REPEAT_MS` repeats its last one.

Rules of this file: it feeds the pure rules of `standfast.stream.watermarks`, carries their steps out in their order
through two given functions (fire timers, send downstream), and keeps their state among the task's progress numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from standfast.replication.log import Record as LogRecord
from standfast.store.timestamps import writable
from standfast.stream.control import control_headers, parse_control
from standfast.stream.runtime.inputs import Input
from standfast.stream.task.task import Task
from standfast.stream.topology.nodes import SubTopology
from standfast.stream.watermarks import (
    CLOCK_KEY,
    PROGRESS_PREFIX,
    Active,
    AdvanceClock,
    Channel,
    FireTimers,
    Idle,
    Outcome,
    Send,
    Signal,
    SourceWatermarks,
    ValveStatistics,
    Watermark,
    WatermarkValve,
)

REPEAT_MS = 10_000


class EventTime:
    """The event-time clock of one task. `upstream` names, per internal topic, the tasks that write to it.

    `interval_ms`: how often periodic assigners are polled; 0: also after every record of a source.
    `fire(until_ms)` fires the due timers, `send(signal)` writes to every downstream partition.
    """

    def __init__(
        self,
        inputs: Sequence[Input],
        upstream: Mapping[str, Sequence[str]],
        progress: Mapping[str, int],
        *,
        interval_ms: int,
        now_ms: int,
        fire: Callable[[int], None],
        send: Callable[[Signal], None],
    ) -> None:
        self._valve = WatermarkValve()
        self._sources: list[tuple[Input, SourceWatermarks, Channel]] = []
        self._upstream: set[Channel] = set()
        self._interval_ms = interval_ms
        self._fire = fire
        self._send_signal = send
        self._next_periodic_ms = now_ms
        self._repeat_at_ms = now_ms + REPEAT_MS
        for one in inputs:
            # An input without watermarks gets no channel: it would hold the clock back for ever.
            for task in upstream.get(one.topic, ()):
                self._upstream.add(Channel(one.key, task))
                self._valve.add(Channel(one.key, task))
            assigner = one.settings.assigner()
            if assigner is not None:
                marks = SourceWatermarks(assigner, now_ms=now_ms, idle_after_ms=one.settings.idle_after_ms)
                one.watermarks = marks
                self._sources.append((one, marks, Channel(one.key)))
                self._valve.add(Channel(one.key))
        self._restore(progress)

    @property
    def clock_ms(self) -> int | None:
        """The task's watermark; None while it is unknown."""
        return self._valve.clock_ms

    def add_upstream(self, inputs: Iterable[Input], upstream: Mapping[str, Sequence[str]]) -> None:
        """Wait for the watermarks of new upstream tasks, too."""
        for one in inputs:
            for task in upstream.get(one.topic, ()):
                channel = Channel(one.key, task)
                if channel not in self._upstream:
                    self._upstream.add(channel)
                    active = self._valve.add(channel)
                    if active is not None:
                        self._carry_out(active)

    def is_late(self, timestamp_ms: int) -> bool:
        """Whether a record at this time is at or before the task's watermark."""
        return self._valve.is_late(timestamp_ms)

    def announce(self, now_ms: int) -> None:
        """Report this task to downstream tasks."""
        self._repeat_at_ms = now_ms + REPEAT_MS
        for step in self._valve.announce():
            if isinstance(step, Send):
                self._send_signal(step.signal)

    def on_record(self, one: Input, signals: Sequence[Signal], now_ms: int) -> None:
        """Apply the signals of a source's record, after the record was processed."""
        self._take(Channel(one.key), signals, now_ms)
        if self._interval_ms == 0:
            self._ask(now_ms)

    def finish(self, one: Input, now_ms: int) -> None:
        """A source has no more records: its partition holds back no watermark."""
        if one.watermarks is not None:
            self._take(Channel(one.key), one.watermarks.declare_idle(), now_ms)

    def on_control(self, one: Input, raw: LogRecord, now_ms: int) -> None:
        """Apply the signal of an upstream task; signals of a task that is upstream no more are ignored."""
        task, signal = parse_control(raw, one.at(raw))
        channel = Channel(one.key, task)
        if channel in self._upstream:
            self._take(channel, (signal,), now_ms)

    def is_due(self, now_ms: int) -> bool:
        """Whether `tick` would poll an assigner or repeat a signal."""
        return now_ms >= self._next_periodic_ms or now_ms >= self._repeat_at_ms

    @property
    def polls_each_record(self) -> bool:
        """Whether periodic assigners are polled after every record."""
        return self._interval_ms == 0

    def tick(self, now_ms: int) -> None:
        """Periodic work: poll the watermark assigners, detect idle inputs, repeat the last signal after a pause."""
        if now_ms >= self._next_periodic_ms:
            self._next_periodic_ms = now_ms + self._interval_ms
            self._ask(now_ms)
        if now_ms >= self._repeat_at_ms:
            self._repeat(now_ms)

    def progress(self) -> dict[str, int]:
        """The state for the commit: the clock, and the watermark of every source partition."""
        # Watermarks of upstream tasks are not kept: those tasks repeat them, and metadata of a commit has little room.
        kept = {str(channel) for _, _, channel in self._sources} | {CLOCK_KEY}
        return {PROGRESS_PREFIX + name: stamp for name, stamp in self._valve.to_state().items() if name in kept}

    def holding_back(self) -> Channel | None:
        """The input that the clock waits for; any thread may ask."""
        return self._valve.holding_back()

    def statistics(self) -> ValveStatistics:
        """The clock, the input that holds it back, and every input."""
        return self._valve.statistics()

    def _restore(self, progress: Mapping[str, int]) -> None:
        kept = {
            name.removeprefix(PROGRESS_PREFIX): stamp
            for name, stamp in progress.items()
            if name.startswith(PROGRESS_PREFIX)
        }
        self._valve.restore(kept)
        for _, marks, channel in self._sources:
            marks.restore(kept.get(str(channel)))

    def _ask(self, now_ms: int) -> None:
        for one, marks, channel in self._sources:
            # Records waiting here, or not fetched yet, are silence of this task and not of the source.
            blocked = one.waiting > 0 or not one.at_end
            self._take(channel, marks.on_periodic(now_ms, blocked=blocked), now_ms)

    def _repeat(self, now_ms: int) -> None:
        self._repeat_at_ms = now_ms + REPEAT_MS
        clock_ms = self.clock_ms
        # Active, watermark, Idle: a valve ignores watermarks of an input that it believes idle.
        if not self._valve.is_idle:
            self._send_signal(Active())
        if clock_ms is not None:
            self._send_signal(Watermark(clock_ms))
        if self._valve.is_idle:
            self._send_signal(Idle())

    def _take(self, channel: Channel, signals: Sequence[Signal], now_ms: int) -> None:
        for signal in signals:
            outcome = self._valve.on_signal(channel, signal)
            if outcome is not None:
                self._repeat_at_ms = now_ms + REPEAT_MS
                self._carry_out(outcome)

    def _carry_out(self, outcome: Outcome) -> None:
        for step in outcome.steps:
            if isinstance(step, FireTimers):
                self._fire(step.until_ms)
            elif isinstance(step, Send):
                self._send_signal(step.signal)
            else:
                assert isinstance(step, AdvanceClock)  # the valve has set its clock itself


def send_signal(
    task: Task, topology: SubTopology, partitions_of: Mapping[str, int], signal: Signal, clock_ms: int | None
) -> None:
    """Write a signal to every partition: each downstream task waits for each upstream task."""
    stamp = signal.watermark_ms if isinstance(signal, Watermark) else (clock_ms or 0)
    headers = control_headers(str(task.id), signal)
    written = writable(stamp, task.stores.limits.least_timestamp_ms)  # the header holds the watermark itself
    for sink in topology.sinks:
        if sink.internal is not None:
            for partition in range(partitions_of[sink.topic]):
                task.send(sink.topic, None, None, written, partition=partition, headers=headers)
