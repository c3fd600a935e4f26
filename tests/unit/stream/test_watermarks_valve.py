"""The valve, a task's event-time clock, at every boundary.

Rules of this file: by hand, one rule of the field per test; histories at random are in `test_watermarks_model.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from standfast.store.errors import InvalidRequest
from standfast.stream.watermarks import (
    CLOCK_KEY,
    Active,
    AdvanceClock,
    Advanced,
    Channel,
    FireTimers,
    Idle,
    Send,
    Watermark,
    WatermarkValve,
    WentActive,
    WentIdle,
)

A, B, C = Channel("flights/0"), Channel("flights/1"), Channel("weather/0")


# --- the valve: watermarks ---


def test_clock_is_unknown_until_every_input_has_a_watermark() -> None:
    valve = WatermarkValve([A, B])
    assert valve.on_watermark(A, 10) is None
    assert (valve.clock_ms, valve.is_late(-(10**18)), valve.holding_back()) == (None, False, B)
    assert valve.on_watermark(B, 4) == Advanced(4)
    assert valve.clock_ms == 4


def test_clock_is_the_smallest_over_the_inputs() -> None:
    valve = WatermarkValve([A, B])
    valve.on_watermark(A, 10)
    valve.on_watermark(B, 4)
    steps = [(A, 20, None), (B, 9, 9), (B, 20, 20), (B, 21, None), (A, 21, 21)]
    for channel, mark, clock_ms in steps:
        assert valve.on_watermark(channel, mark) == (None if clock_ms is None else Advanced(clock_ms))


def test_watermark_that_is_not_higher_is_ignored() -> None:
    valve = WatermarkValve([A])
    assert valve.on_watermark(A, 10) == Advanced(10)
    assert [valve.on_watermark(A, mark) for mark in (10, 9, -5)] == [None, None, None]
    assert valve.clock_ms == 10


def test_record_at_or_before_the_watermark_is_late() -> None:
    valve = WatermarkValve([A])
    valve.on_watermark(A, 10)
    assert [valve.is_late(at) for at in (0, 9, 10, 11)] == [True, True, True, False]


def test_watermark_may_be_negative() -> None:
    valve = WatermarkValve([A])
    assert valve.on_watermark(A, -1) == Advanced(-1)
    assert [valve.is_late(at) for at in (-1, 0)] == [True, False]


def test_two_inputs_of_different_topics_share_one_clock() -> None:
    valve = WatermarkValve([A, C])
    valve.on_watermark(A, 100)
    assert valve.on_watermark(C, 30) == Advanced(30)
    assert valve.is_late(30)  # whichever topic the record came from


def test_every_upstream_task_has_its_own_watermark_in_the_same_partition() -> None:
    first, second = Channel("counts/0", "0_0"), Channel("counts/0", "0_1")
    valve = WatermarkValve([first, second])
    assert valve.on_watermark(first, 50) is None
    assert valve.on_watermark(second, 40) == Advanced(40)
    assert str(valve.holding_back()) == "counts/0@0_1"


def test_advance_is_the_clock_then_the_timers_then_downstream() -> None:
    assert Advanced(7).steps == (AdvanceClock(7), FireTimers(7), Send(Watermark(7)))
    assert WentIdle(Advanced(7)).steps == (AdvanceClock(7), FireTimers(7), Send(Watermark(7)), Send(Idle()))
    assert WentIdle().steps == (Send(Idle()),)
    assert WentActive().steps == (Send(Active()),)


# --- the valve: idleness ---


def test_idle_input_is_left_out_and_the_clock_goes_on_at_once() -> None:
    valve = WatermarkValve([A, B])
    valve.on_watermark(A, 10)
    valve.on_watermark(B, 4)
    assert valve.on_idle(B) == Advanced(10)
    assert valve.on_idle(B) is None
    assert valve.on_watermark(B, 11) is None  # no input of this valve
    assert valve.on_watermark(A, 12) == Advanced(12)


def test_input_without_a_watermark_that_goes_idle_makes_the_clock_known() -> None:
    valve = WatermarkValve([A, B])
    valve.on_watermark(A, 10)
    assert valve.on_idle(B) == Advanced(10)


def test_idle_input_that_did_not_hold_the_clock_changes_nothing() -> None:
    valve = WatermarkValve([A, B])
    valve.on_watermark(A, 10)
    valve.on_watermark(B, 4)
    assert valve.on_idle(A) is None
    assert valve.clock_ms == 4


def test_last_input_that_goes_idle_sends_the_clock_to_the_largest_watermark() -> None:
    for order in ((A, B), (B, A)):
        valve = WatermarkValve([A, B])
        valve.on_watermark(A, 10)
        valve.on_watermark(B, 4)
        outcomes = [valve.on_idle(channel) for channel in order]
        assert isinstance(outcomes[1], WentIdle)
        assert (valve.clock_ms, valve.is_idle, valve.holding_back()) == (10, True, None)
        assert valve.on_watermark(A, 99) is None


def test_inputs_without_watermarks_that_go_idle_leave_the_clock_unknown() -> None:
    valve = WatermarkValve([A, B])
    assert valve.on_idle(A) is None
    assert valve.on_idle(B) == WentIdle(None)
    assert valve.clock_ms is None


def test_input_that_is_behind_when_it_comes_back_does_not_count_until_it_has_caught_up() -> None:
    valve = WatermarkValve([A, B])
    valve.on_watermark(A, 10)
    valve.on_watermark(B, 4)
    valve.on_idle(B)
    assert valve.on_active(B) is None
    assert valve.statistics().inputs[1].state == "behind"
    assert valve.on_watermark(A, 20) == Advanced(20)  # not held back by B at 4
    assert valve.on_watermark(B, 19) is None
    assert valve.statistics().inputs[1].state == "behind"
    assert valve.on_watermark(B, 20) is None  # exactly at the clock: it counts from here
    assert valve.statistics().inputs[1].state == "active"
    assert valve.on_watermark(A, 30) is None
    assert valve.on_watermark(B, 25) == Advanced(25)


def test_input_that_is_not_behind_when_it_comes_back_counts_at_once() -> None:
    valve = WatermarkValve([A, B])
    valve.on_watermark(A, 10)
    valve.on_watermark(B, 4)
    valve.on_idle(A)
    valve.on_active(A)
    assert valve.on_watermark(B, 12) == Advanced(10)


def test_task_is_active_again_with_its_first_active_input() -> None:
    valve = WatermarkValve([A, B])
    valve.on_idle(A)
    valve.on_idle(B)
    assert valve.on_active(B) == WentActive()
    assert valve.on_active(A) is None
    assert valve.on_active(A) is None
    assert not valve.is_idle


def test_only_input_that_is_behind_brings_the_clock_forward_once_it_has_passed_it() -> None:
    valve = WatermarkValve([A, B])
    valve.on_watermark(A, 10)
    valve.on_watermark(B, 4)
    valve.on_idle(B)
    valve.on_idle(A)
    valve.on_active(B)
    assert valve.holding_back() == B
    assert [valve.on_watermark(B, mark) for mark in (9, 10)] == [None, None]
    assert valve.on_watermark(B, 11) == Advanced(11)


def test_input_that_is_behind_and_goes_idle_again_moves_nothing() -> None:
    # As in Flink: only an input that held the clock lets it go on, also as the last active one.
    valve = WatermarkValve([A, B, C])
    for channel, mark in ((A, 30), (B, 10), (C, 10)):
        valve.on_watermark(channel, mark)
    assert valve.on_idle(A) is None
    assert valve.on_idle(C) is None
    assert valve.on_watermark(B, 15) == Advanced(15)
    assert valve.on_active(C) is None
    assert valve.on_idle(B) is None
    assert valve.on_idle(C) == WentIdle(None)
    assert valve.clock_ms == 15


def test_input_that_comes_back_ahead_moves_the_clock_with_its_next_watermark() -> None:
    valve = WatermarkValve([A, B])
    for channel, mark in ((A, 30), (B, 10)):
        valve.on_watermark(channel, mark)
    assert valve.on_idle(A) is None
    assert valve.on_active(A) is None
    assert valve.on_idle(B) == Advanced(30)


def test_signals_are_told_apart() -> None:
    valve = WatermarkValve([A])
    assert valve.on_signal(A, Watermark(5)) == Advanced(5)
    assert valve.on_signal(A, Idle()) == WentIdle()
    assert valve.on_signal(A, Active()) == WentActive()


# --- the valve: inputs that are added, refusals ---


def test_added_input_holds_the_clock_until_it_has_caught_up() -> None:
    valve = WatermarkValve([A])
    valve.on_watermark(A, 10)
    assert valve.add(B) is None
    assert valve.on_watermark(A, 20) is None
    assert (valve.clock_ms, valve.holding_back()) == (10, B)
    assert [valve.on_watermark(B, mark) for mark in (5, 10)] == [None, None]
    assert valve.on_watermark(B, 15) == Advanced(15)


def test_input_that_is_there_is_left_alone() -> None:
    valve = WatermarkValve([A])
    valve.on_watermark(A, 10)
    assert valve.add(A) is None
    assert valve.statistics().inputs == ((A, 10, "active"),)


def test_added_input_wakes_an_idle_task() -> None:
    valve = WatermarkValve([A])
    valve.on_idle(A)
    assert valve.add(B) == WentActive()
    assert not valve.is_idle


def test_valve_without_inputs_is_not_idle_and_has_no_clock() -> None:
    valve = WatermarkValve()
    assert (valve.clock_ms, valve.is_idle, valve.holding_back(), valve.to_state()) == (None, False, None, {})


@pytest.mark.parametrize("signal", [Watermark(1), Idle(), Active()])
def test_unknown_channel_is_refused(signal: Watermark | Idle | Active) -> None:
    valve = WatermarkValve([A])
    with pytest.raises(InvalidRequest, match=r"flights/1 is not an input of this task \(flights/0\): add it first"):
        valve.on_signal(B, signal)


@pytest.mark.parametrize("bad", [1.0, "1", True, None])
def test_watermark_that_is_no_whole_number_is_refused_and_changes_nothing(bad: int) -> None:
    valve = WatermarkValve([A, B])
    asks: list[Callable[[], object]] = [
        lambda: valve.on_watermark(A, bad),
        lambda: valve.restore({str(A): 5, CLOCK_KEY: bad}),
        lambda: valve.restore({CLOCK_KEY: 5, str(A): bad}),
    ]
    for ask in asks:
        with pytest.raises(InvalidRequest, match="give a whole number of milliseconds"):
            ask()
    assert valve.to_state() == {}


def test_channel_is_written_as_its_partition_and_its_upstream_task() -> None:
    for channel, text in ((A, "flights/0"), (Channel("counts/3", "0_1"), "counts/3@0_1")):
        assert str(channel) == text
        assert Channel.parse(text) == channel


# --- status and state ---


def test_holding_back_is_the_first_unknown_then_the_smallest_then_the_nearest_of_those_behind() -> None:
    valve = WatermarkValve([A, B, C])
    assert valve.holding_back() == A
    valve.on_watermark(A, 30)
    assert valve.holding_back() == B
    valve.on_watermark(B, 10)
    valve.on_watermark(C, 20)
    assert valve.holding_back() == B
    valve.on_idle(B)
    assert valve.holding_back() == C
    valve.on_active(B)
    assert valve.holding_back() == C  # B is behind the clock and does not count
    valve.on_idle(C)
    valve.on_idle(A)
    assert valve.clock_ms == 30
    valve.on_active(C)
    assert valve.holding_back() == C  # both behind 30; C at 20 is nearer


def test_statistics_show_every_input_in_order() -> None:
    valve = WatermarkValve([A, B, C])
    valve.on_watermark(B, 10)
    valve.on_idle(C)
    statistics = valve.statistics()
    assert statistics.inputs == ((A, None, "active"), (B, 10, "active"), (C, None, "idle"))
    assert (statistics.clock_ms, statistics.is_idle, statistics.holding_back) == (None, False, A)


def test_valve_goes_on_from_its_state() -> None:
    before = WatermarkValve([A, B])
    before.on_watermark(A, 10)
    before.on_watermark(B, 4)
    state = before.to_state()
    assert state == {"flights/0": 10, "flights/1": 4, CLOCK_KEY: 4}
    after = WatermarkValve([A, B])
    after.restore(state)
    assert (after.clock_ms, after.is_late(4), after.is_late(5)) == (4, True, False)
    assert after.on_watermark(B, 7) == Advanced(7)


def test_restoring_moves_no_timer_though_the_inputs_are_ahead() -> None:
    valve = WatermarkValve([A])
    valve.restore({str(A): 10, CLOCK_KEY: 4})
    assert valve.clock_ms == 4
    assert valve.on_watermark(A, 11) == Advanced(11)


def test_idle_input_is_active_after_a_restart_and_behind_if_it_is_behind() -> None:
    before = WatermarkValve([A, B])
    before.on_watermark(A, 10)
    before.on_watermark(B, 4)
    before.on_idle(B)
    after = WatermarkValve([A, B])
    after.restore(before.to_state())
    assert [entry.state for entry in after.statistics().inputs] == ["active", "behind"]
    assert after.on_watermark(A, 20) == Advanced(20)


def test_clock_alone_waits_until_every_input_was_heard_again() -> None:
    valve = WatermarkValve([A, B])
    valve.restore({CLOCK_KEY: 10})
    assert (valve.clock_ms, valve.holding_back()) == (10, A)
    assert valve.on_watermark(A, 30) is None
    assert valve.on_watermark(B, 20) == Advanced(20)


def test_of_several_states_the_higher_wins_and_gone_channels_are_left_out() -> None:
    for states in (({"flights/0": 10, CLOCK_KEY: 5}, {"flights/0": 7, "gone/0": 1, CLOCK_KEY: 7}),):
        for order in (states, states[::-1]):
            valve = WatermarkValve([A])
            for state in order:
                valve.restore(state)
            assert valve.to_state() == {"flights/0": 10, CLOCK_KEY: 7}


def test_task_that_begins_announces_itself_and_its_clock() -> None:
    valve = WatermarkValve([A])
    assert valve.announce() == (Send(Active()),)
    valve.restore({CLOCK_KEY: 10})
    assert valve.announce() == (Send(Active()), Send(Watermark(10)))
