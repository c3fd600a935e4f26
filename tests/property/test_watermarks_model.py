"""Watermarks against their definition: after every prefix of a history the clock equals one computed from scratch.

Rules of this file: the model keeps no state from one event to the next; each answer is computed from the whole history.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from hypothesis import event, example, given
from hypothesis import strategies as st

from standfast.stream.watermarks import (
    Active,
    Advanced,
    BoundedDisorder,
    Channel,
    Idle,
    Outcome,
    Signal,
    SourceWatermarks,
    Watermark,
    WatermarkValve,
    WentActive,
    WentIdle,
)

CHANNELS = (Channel("flights/0"), Channel("flights/1"), Channel("weather/0", "0_3"))
A, B, C = CHANNELS


class Event(NamedTuple):
    channel: Channel
    signal: Signal


MARKS = st.builds(Watermark, st.integers(-2, 20))
EVENTS = st.lists(
    st.builds(Event, st.sampled_from(CHANNELS), st.one_of(MARKS, MARKS, st.just(Idle()), st.just(Active()))),
    max_size=25,
)
MARKS_ONLY = st.lists(st.builds(Event, st.sampled_from(CHANNELS), MARKS), max_size=25)


class Definition:
    """The meaning of a history. Every method is about the state after its first `end` events."""

    def __init__(self, history: Sequence[Event]) -> None:
        self.history = tuple(history)
        self.clock = cache(self._clock)  # only for speed: the same clocks are requested all the time

    def idle(self, one: Channel, end: int) -> bool:
        said = [e.signal for e in self.history[:end] if e.channel == one and not isinstance(e.signal, Watermark)]
        return bool(said) and said[-1] == Idle()

    def mark(self, one: Channel, end: int) -> int | None:
        heard = (
            e.signal.watermark_ms
            for place, e in enumerate(self.history[:end])
            if e.channel == one and isinstance(e.signal, Watermark) and not self.idle(one, place)
        )
        return max(heard, default=None)

    def raises(self, place: int) -> bool:
        """Whether the event is a watermark higher than all before it on its channel."""
        e = self.history[place]
        return isinstance(e.signal, Watermark) and self.mark(e.channel, place + 1) != self.mark(e.channel, place)

    def back_at(self, one: Channel, end: int) -> int | None:
        """The event that ended the last idleness of a channel."""
        ends = (place for place in range(end) if self.idle(one, place) and not self.idle(one, place + 1))
        return max(ends, default=None)

    def counts(self, one: Channel, end: int) -> bool:
        """Active, and never idle, or not below the clock at some moment since its return when it sent a watermark."""
        if self.idle(one, end):
            return False
        back = self.back_at(one, end)
        if back is None:
            return True
        said = [back, *(p for p in range(back + 1, end) if self.history[p].channel == one and self.raises(p))]
        return any(not_below(self.mark(one, place + 1), self.clock(place)) for place in said)

    def _clock(self, end: int) -> int | None:
        if end == 0:
            return None
        before, last = self.clock(end - 1), end - 1
        one, signal = self.history[last]
        if isinstance(signal, Watermark):
            target = self.smallest(end) if self.raises(last) else None
        elif signal == Idle() and self.held(one, last):
            everybody = all(self.idle(other, end) for other in CHANNELS)
            target = self.largest(end) if everybody else self.smallest(end)
        else:
            target = None
        return max((at for at in (before, target) if at is not None), default=None)

    def held(self, one: Channel, end: int) -> bool:
        mark = self.mark(one, end)
        return self.counts(one, end) and (mark is None or mark == self.clock(end))

    def smallest(self, end: int) -> int | None:
        marks = [self.mark(one, end) for one in CHANNELS if self.counts(one, end)]
        known = [mark for mark in marks if mark is not None]
        return min(known) if known and len(known) == len(marks) else None

    def largest(self, end: int) -> int | None:
        marks = (self.mark(one, end) for one in CHANNELS)
        return max((mark for mark in marks if mark is not None), default=None)

    def outcome(self, end: int) -> Outcome | None:
        """The effects of the last event of the prefix."""
        clock_ms = self.clock(end)
        advanced = Advanced(clock_ms) if clock_ms is not None and clock_ms != self.clock(end - 1) else None
        was, now = (all(self.idle(one, at) for one in CHANNELS) for at in (end - 1, end))
        if was == now:
            return advanced
        return WentIdle(advanced) if now else WentActive()


def not_below(mark: int | None, clock_ms: int | None) -> bool:
    return clock_ms is None or (mark is not None and mark >= clock_ms)


def history(*events: tuple[Channel, Signal]) -> list[Event]:
    return [Event(*one) for one in events]


BEHIND_AND_IDLE_AGAIN = history(
    *((A, Watermark(20)), (B, Watermark(10)), (C, Watermark(10)), (A, Idle()), (C, Idle())),
    *((B, Watermark(15)), (C, Active()), (B, Idle()), (C, Idle())),
)
BACK_AHEAD = history(
    *((A, Watermark(20)), (B, Watermark(10)), (C, Watermark(5)), (C, Idle()), (A, Idle()), (B, Watermark(12))),
    *((C, Active()), (B, Idle()), (A, Active()), (C, Idle()), (A, Idle())),
)


@given(events=EVENTS)
@example(events=BEHIND_AND_IDLE_AGAIN)
@example(events=BACK_AHEAD)
def test_valve_is_the_definition_over_all_prefixes(events: list[Event]) -> None:
    valve, meant = WatermarkValve(CHANNELS), Definition(events)
    for end, (channel, signal) in enumerate(events, start=1):
        assert valve.on_signal(channel, signal) == meant.outcome(end)
        assert valve.clock_ms == meant.clock(end)
        for shown in valve.statistics().inputs:
            assert shown.watermark_ms == meant.mark(shown.channel, end)
            state = "idle" if meant.idle(shown.channel, end) else "active"
            if state == "active" and not meant.counts(shown.channel, end):
                state = "behind"
            assert shown.state == state
    event("idle at the end" if valve.is_idle else "active at the end")


@given(events=MARKS_ONLY)
def test_clock_without_idleness_is_the_smallest_over_inputs_of_the_largest_watermark(events: list[Event]) -> None:
    valve = WatermarkValve(CHANNELS)
    heard: dict[Channel, list[int]] = {channel: [] for channel in CHANNELS}
    for channel, signal in events:
        valve.on_signal(channel, signal)
        assert isinstance(signal, Watermark)
        heard[channel].append(signal.watermark_ms)
        assert valve.clock_ms == (min(map(max, heard.values())) if all(heard.values()) else None)
        holding = valve.holding_back()
        assert holding is not None
        assert not heard[holding] or max(heard[holding]) == valve.clock_ms


@given(events=EVENTS)
def test_clock_only_goes_forward_and_downstream_hears_each_change_once(events: list[Event]) -> None:
    """A valve that reads this one alone has the same clock and the same idleness."""
    valve, below = WatermarkValve(CHANNELS), WatermarkValve([A])
    clocks = []
    for channel, signal in events:
        outcome = valve.on_signal(channel, signal)
        if outcome is not None:
            for step in outcome.steps:
                sent = getattr(step, "signal", None)
                if sent is not None:
                    assert below.on_signal(A, sent) is not None
        assert (below.clock_ms, below.is_idle) == (valve.clock_ms, valve.is_idle)
        clocks += [valve.clock_ms] if valve.clock_ms is not None else []
    assert clocks == sorted(clocks)


@given(events=EVENTS, cut=st.integers(0, 25))
def test_valve_goes_on_after_a_restart_as_without_one_if_all_inputs_were_active(events: list[Event], cut: int) -> None:
    """After any other restart it never goes back, and keeps its state."""
    before, after = WatermarkValve(CHANNELS), WatermarkValve(CHANNELS)
    for channel, signal in events[:cut]:
        before.on_signal(channel, signal)
    after.restore(before.to_state())
    assert after.to_state() == before.to_state()
    shown = before.statistics().inputs
    same = all(one.state == "active" or (one.state == "behind" and one.watermark_ms is not None) for one in shown)
    event("same" if same else "some input idle")
    for channel, signal in events[cut:]:
        was_ms = after.clock_ms
        outcome = after.on_signal(channel, signal)
        assert was_ms is None or (after.clock_ms is not None and after.clock_ms >= was_ms)
        if same:
            assert outcome == before.on_signal(channel, signal)
            assert after.statistics() == before.statistics()


# --- one source partition ---


class Arrived(NamedTuple):
    timestamp_ms: int
    after_ms: int


class Asked(NamedTuple):
    after_ms: int
    blocked: bool


class Declared(NamedTuple):
    after_ms: int = 0


STEPS = st.lists(
    st.one_of(
        st.builds(Arrived, st.integers(0, 30), st.integers(0, 12)),
        st.builds(Asked, st.integers(0, 12), st.booleans()),
        st.just(Declared()),
    ),
    max_size=25,
)


def defined_signals(
    steps: Sequence[Arrived | Asked | Declared], disorder_ms: int, idle_after_ms: int
) -> list[tuple[Signal, ...]]:
    """Per step, from the steps before it: the watermark of the last poll, and idleness as the definition of silence."""
    at_ms = [sum(step.after_ms for step in steps[: place + 1]) for place in range(len(steps))]
    idle_before = False
    signals: list[tuple[Signal, ...]] = []
    told: list[int] = []
    for place, step in enumerate(steps):
        times = [one.timestamp_ms for one in steps[:place] if isinstance(one, Arrived)]
        heard = [
            at
            for at, one in zip(at_ms[: place + 1], steps, strict=False)
            if isinstance(one, Arrived) or (isinstance(one, Asked) and one.blocked)
        ]
        given_now: tuple[Signal, ...] = ()
        idle = idle_before
        if isinstance(step, Arrived):
            idle = False
        elif isinstance(step, Declared):
            idle = True
        elif not idle_before:
            if times and max(times) - disorder_ms - 1 > max(told, default=-100):
                told.append(max(times) - disorder_ms - 1)
                given_now = (Watermark(told[-1]),)
            idle = at_ms[place] - max(heard, default=0) > idle_after_ms
        if idle != idle_before:
            given_now = (*given_now, Idle()) if idle else (Active(), *given_now)
        signals.append(given_now)
        idle_before = idle
    return signals


@given(steps=STEPS, disorder_ms=st.integers(0, 5), idle_after_ms=st.integers(1, 15))
def test_signals_of_a_source_are_those_of_the_definition(
    steps: list[Arrived | Asked | Declared], disorder_ms: int, idle_after_ms: int
) -> None:
    source = SourceWatermarks(BoundedDisorder(disorder_ms), now_ms=0, idle_after_ms=idle_after_ms)
    now_ms = 0
    for step, wanted in zip(steps, defined_signals(steps, disorder_ms, idle_after_ms), strict=True):
        now_ms += step.after_ms
        if isinstance(step, Arrived):
            given_now = source.on_record("v", step.timestamp_ms, now_ms)
        elif isinstance(step, Asked):
            given_now = source.on_periodic(now_ms, blocked=step.blocked)
        else:
            given_now = source.declare_idle()
        assert given_now == wanted


@given(times=st.lists(st.integers(0, 30), max_size=12), cut=st.integers(0, 12), disorder_ms=st.integers(0, 5))
def test_source_after_a_restart_gives_what_it_would_have_given(times: list[int], cut: int, disorder_ms: int) -> None:
    """All signals but the one watermark that it repeats."""
    before, after = SourceWatermarks(BoundedDisorder(disorder_ms)), SourceWatermarks(BoundedDisorder(disorder_ms))
    for at in times[:cut]:
        before.on_record("v", at, 0)
    before.on_periodic(0)
    after.restore(before.to_state())
    again = () if before.watermark_ms is None else (Watermark(before.watermark_ms),)
    assert after.on_periodic(0) == again
    for at in times[cut:]:
        for source in (before, after):
            source.on_record("v", at, 0)
        assert after.on_periodic(0) == before.on_periodic(0)
        assert after.watermark_ms == before.watermark_ms
