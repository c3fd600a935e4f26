"""Punctuation at every boundary, by hand. Random histories are in `test_punctuation_model.py`.

Rules of this file: pure; the only part is the queue.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.store.errors import InvalidRequest
from standfast.stream.punctuation import (
    STREAM_TIME,
    WALL_CLOCK_TIME,
    Cancellable,
    PunctuationQueue,
    PunctuationType,
    first_due,
    next_due,
)

Log = list[tuple[str, int]]


class Bench:
    """A queue whose callbacks note their name and the time they get."""

    def __init__(self) -> None:
        self.queue = PunctuationQueue()
        self.log: Log = []

    def schedule(
        self, first_due_ms: int, interval_ms: int, name: str = "tick", then: Callable[[], object] = lambda: None
    ) -> Cancellable:
        def callback(now_ms: int) -> None:
            self.log.append((name, now_ms))
            then()

        return self.queue.schedule(first_due_ms, interval_ms, callback)

    def fired(self, now_ms: int | None) -> Log:
        """The schedules that fire at `now_ms`; the count must agree."""
        before = len(self.log)
        expected = self.queue.can_punctuate(now_ms)
        count = self.queue.may_punctuate(now_ms)
        fired = self.log[before:]
        assert count == len(fired)
        assert expected == bool(fired)
        return fired


@pytest.fixture
def bench() -> Bench:
    return Bench()


# By hand


def test_interval_of_100_ms_walks_every_boundary(bench: Bench) -> None:
    bench.schedule(100, 100)
    times = [0, 99, 100, 101, 199, 200, 1_001, 1_002, 1_099, 1_100, 1_199, 1_200]
    assert [now_ms for now_ms in times if bench.fired(now_ms)] == [100, 200, 1_001, 1_100, 1_200]
    assert bench.queue.next_due_ms == 1_300


def test_first_due_off_the_interval_keeps_its_own_phase(bench: Bench) -> None:
    bench.schedule(50, 100)
    times = [0, 49, 50, 149, 150, 1_051, 1_052, 1_149, 1_150]
    assert [now_ms for now_ms in times if bench.fired(now_ms)] == [50, 150, 1_051, 1_150]


def test_missed_intervals_fire_once_and_keep_the_phase(bench: Bench) -> None:
    bench.schedule(5_000, 5_000)
    assert bench.fired(21_000) == [("tick", 21_000)]
    assert bench.queue.next_due_ms == 25_000
    assert bench.fired(24_999) == []
    assert bench.fired(25_000) == [("tick", 25_000)]


@pytest.mark.parametrize(
    ("now_ms", "expected"),
    [(5_000, 10_000), (9_999, 10_000), (10_000, 15_000), (10_001, 15_000), (19_999, 20_000), (20_000, 25_000)],
)
def test_next_time_is_the_first_on_the_grid_after_now(now_ms: int, expected: int) -> None:
    assert next_due(5_000, 5_000, now_ms) == expected


def test_a_gap_of_centuries_is_one_step(bench: Bench) -> None:
    bench.schedule(0, 1)
    assert bench.fired(10**13) == [("tick", 10**13)]
    assert bench.queue.next_due_ms == 10**13 + 1


def test_a_schedule_fires_once_per_call_at_one_time(bench: Bench) -> None:
    bench.schedule(0, 1)
    assert [len(bench.fired(now_ms)) for now_ms in (0, 0, 1, 1, 2)] == [1, 0, 1, 0, 1]


def test_an_empty_queue_is_never_due(bench: Bench) -> None:
    assert bench.queue.next_due_ms is None
    assert bench.fired(10**13) == []


@pytest.mark.parametrize("now_ms", [None, -1])
def test_unknown_time_fires_nothing(bench: Bench, now_ms: int | None) -> None:
    bench.schedule(0, 100)
    assert bench.fired(now_ms) == []
    assert bench.queue.next_due_ms == 0
    assert bench.fired(0) == [("tick", 0)]


def test_a_clock_that_goes_back_fires_nothing_until_the_next_time(bench: Bench) -> None:
    bench.schedule(100, 100)
    assert bench.fired(350) == [("tick", 350)]
    assert [bench.fired(now_ms) for now_ms in (100, 0, 399)] == [[], [], []]
    assert bench.fired(400) == [("tick", 400)]


def test_order_is_by_time_due_then_by_registration(bench: Bench) -> None:
    bench.schedule(30, 100, "third")
    bench.schedule(20, 100, "second")
    bench.schedule(10, 10, "first")
    bench.schedule(30, 100, "fourth")
    assert [name for name, _ in bench.fired(40)] == ["first", "second", "third", "fourth"]


def test_a_schedule_keeps_its_place_among_equals_when_put_back(bench: Bench) -> None:
    bench.schedule(0, 20, "early")
    bench.schedule(0, 10, "late")
    assert [name for name, _ in bench.fired(0)] == ["early", "late"]
    assert [name for name, _ in bench.fired(10)] == ["late"]  # put back after "early", and due with it at 20
    assert [name for name, _ in bench.fired(20)] == ["early", "late"]


def test_a_cancelled_schedule_neither_fires_nor_counts(bench: Bench) -> None:
    handle = bench.schedule(100, 100)
    assert not handle.cancelled
    handle.cancel()
    handle.cancel()
    assert handle.cancelled
    assert not bench.queue.can_punctuate(100)
    assert bench.queue.next_due_ms is None
    assert bench.fired(100) == []


def test_cancelling_the_head_uncovers_the_next(bench: Bench) -> None:
    head = bench.schedule(10, 100, "head")
    bench.schedule(20, 100, "next")
    head.cancel()
    assert bench.queue.next_due_ms == 20
    assert not bench.queue.can_punctuate(19)
    assert bench.fired(20) == [("next", 20)]


def test_one_handle_cancels_after_many_firings(bench: Bench) -> None:
    handle = bench.schedule(0, 10)
    assert [len(bench.fired(now_ms)) for now_ms in (0, 10, 20)] == [1, 1, 1]
    handle.cancel()
    assert bench.fired(30) == []


def test_a_callback_cancels_its_own_schedule_and_still_counts(bench: Bench) -> None:
    handle = bench.schedule(0, 100, then=lambda: handle.cancel())
    assert [len(bench.fired(now_ms)) for now_ms in (0, 100, 1_001)] == [1, 0, 0]
    assert bench.queue.next_due_ms is None


def test_a_callback_cancels_another_that_is_due_in_the_same_call(bench: Bench) -> None:
    bench.schedule(0, 100, "first", then=lambda: second.cancel())
    second = bench.schedule(0, 100, "second")
    assert bench.fired(0) == [("first", 0)]
    assert bench.fired(100) == [("first", 100)]


def test_a_callback_cancels_one_that_has_fired_in_the_same_call(bench: Bench) -> None:
    first = bench.schedule(0, 100, "first")
    bench.schedule(0, 100, "second", then=first.cancel)
    assert bench.fired(0) == [("first", 0), ("second", 0)]
    assert bench.fired(100) == [("second", 100)]


@pytest.mark.parametrize(("first_due_ms", "expected"), [(500, 1), (501, 0)])
def test_a_schedule_made_in_a_callback_fires_in_the_same_call_if_due(
    bench: Bench, first_due_ms: int, expected: int
) -> None:
    outer = bench.schedule(100, 1_000, "outer", then=lambda: bench.schedule(first_due_ms, 1_000, "inner"))
    assert bench.fired(500) == [("outer", 500), ("inner", 500)][: 1 + expected]
    outer.cancel()
    assert bench.fired(501) == [("inner", 501)][expected:]


def test_a_schedule_made_in_a_callback_takes_its_turn_by_time(bench: Bench) -> None:
    bench.schedule(10, 1_000, "outer", then=lambda: bench.schedule(15, 1_000, "inner"))
    bench.schedule(20, 1_000, "other")
    bench.schedule(15, 1_000, "elder")
    assert [name for name, _ in bench.fired(20)] == ["outer", "elder", "inner", "other"]


def test_an_exception_goes_through_and_the_schedule_is_back_at_its_next_time(bench: Bench) -> None:
    def fail() -> None:
        if len(bench.log) == 1:
            raise RuntimeError("no")

    bench.schedule(5_000, 5_000, "failing", then=fail)
    bench.schedule(6_000, 5_000, "after")
    with pytest.raises(RuntimeError, match="no"):
        bench.queue.may_punctuate(21_000)
    assert bench.queue.next_due_ms == 6_000
    assert bench.fired(21_000) == [("after", 21_000)]
    assert bench.queue.next_due_ms == 25_000
    assert bench.fired(25_000) == [("failing", 25_000)]


def test_a_schedule_cancelled_by_its_failing_callback_is_gone(bench: Bench) -> None:
    def fail() -> None:
        handle.cancel()
        raise RuntimeError("no")

    handle = bench.schedule(0, 1, then=fail)
    with pytest.raises(RuntimeError):
        bench.queue.may_punctuate(0)
    assert bench.queue.next_due_ms is None


def test_a_call_from_inside_a_callback_fires_the_others_only(bench: Bench) -> None:
    inner: list[int] = []
    bench.schedule(0, 100, "first", then=lambda: inner.append(bench.queue.may_punctuate(0)))
    bench.schedule(0, 100, "second")
    assert bench.queue.may_punctuate(0) == 1
    assert inner == [1]
    assert bench.log == [("first", 0), ("second", 0)]


def test_cancelling_lets_go_of_what_the_callback_holds(bench: Bench) -> None:
    class Held:
        def punctuate(self, now_ms: int) -> None:
            bench.log.append(("held", now_ms))

    held = Held()
    seen = weakref.ref(held)
    handle = bench.queue.schedule(10**13, 1, held.punctuate)
    del held
    gc.collect()
    assert seen() is not None
    handle.cancel()
    gc.collect()
    assert seen() is None


def test_many_schedules_made_and_cancelled_leave_nothing_behind(bench: Bench) -> None:
    bench.schedule(50, 100, "first")
    for number in range(2_000):
        bench.schedule(10**13 + number, 1).cancel()
    bench.schedule(50, 100, "second")
    assert len(bench.queue._heap) < 100
    assert [name for name, _ in bench.fired(50)] == ["first", "second"]


def test_sweeping_keeps_every_live_schedule_in_order(bench: Bench) -> None:
    for number in range(1_000):
        handle = bench.schedule(number % 7, 10, str(number))
        if number % 3:
            handle.cancel()
    expected = sorted((number for number in range(1_000) if number % 3 == 0), key=lambda number: (number % 7, number))
    assert [name for name, _ in bench.fired(7)] == [str(number) for number in expected]


def test_sweeping_inside_a_callback_loses_nothing(bench: Bench) -> None:
    def churn() -> None:
        for _ in range(200):
            bench.schedule(10**13, 1).cancel()

    bench.schedule(0, 100, "first", then=churn)
    bench.schedule(1, 100, "second")
    assert bench.fired(1) == [("first", 1), ("second", 1)]
    assert bench.fired(101) == [("first", 101), ("second", 101)]


# First time due


def fires(kind: PunctuationType, start_ms: int | None, times: list[int]) -> list[int]:
    bench = Bench()
    bench.schedule(first_due(kind, None, 5_000, start_ms), 5_000)
    return [now_ms for now_ms in times if bench.fired(now_ms)]


def test_stream_time_fires_with_the_first_record_or_from_its_start() -> None:
    records = [1_000, 4_000, 8_000, 10_000]
    assert fires(STREAM_TIME, None, records) == [1_000, 8_000, 10_000]
    assert fires(STREAM_TIME, 0, records) == [1_000, 8_000, 10_000]
    assert fires(STREAM_TIME, 999, records) == [1_000, 8_000]
    assert fires(STREAM_TIME, 1_000, records) == [1_000, 8_000]
    assert fires(STREAM_TIME, 1_001, records) == [4_000, 8_000]
    assert fires(STREAM_TIME, 10_000, records) == [10_000]
    assert fires(STREAM_TIME, 10_001, records) == []


@pytest.mark.parametrize("now_ms", [None, -1, 0, 7_000])
def test_stream_time_does_not_look_at_now(now_ms: int | None) -> None:
    assert first_due(STREAM_TIME, now_ms, 5_000) == 0
    assert first_due(STREAM_TIME, now_ms, 5_000, 3_000) == 3_000


@pytest.mark.parametrize("now_ms", [0, 1, 12_345])
def test_wall_clock_is_first_due_one_interval_after_it_was_made(bench: Bench, now_ms: int) -> None:
    bench.schedule(first_due(WALL_CLOCK_TIME, now_ms, 100), 100)
    assert [bench.fired(now_ms + delay_ms) for delay_ms in (0, 99)] == [[], []]
    assert bench.fired(now_ms + 100) == [("tick", now_ms + 100)]


@pytest.mark.parametrize(
    ("now_ms", "expected"),
    [(0, 30), (29, 30), (30, 30), (31, 130), (129, 130), (130, 230), (131, 230), (1_029, 1_030), (1_030, 1_130)],
)
def test_an_anchored_wall_clock_is_due_at_its_start_or_on_its_grid_after_now(now_ms: int, expected: int) -> None:
    assert first_due(WALL_CLOCK_TIME, now_ms, 100, 30) == expected


def test_an_anchored_wall_clock_made_on_its_grid_waits_for_the_next_time() -> None:
    assert first_due(WALL_CLOCK_TIME, 1_000, 10, 990) == 1_010


def test_an_anchored_wall_clock_keeps_the_grid_after_a_restart(bench: Bench) -> None:
    hour_ms = 3_600_000
    made_ms = 100 * hour_ms + 1_234
    bench.schedule(first_due(WALL_CLOCK_TIME, made_ms, hour_ms, 0), hour_ms)
    assert bench.queue.next_due_ms == 101 * hour_ms
    assert bench.fired(103 * hour_ms + 5) == [("tick", 103 * hour_ms + 5)]
    assert bench.queue.next_due_ms == first_due(WALL_CLOCK_TIME, 103 * hour_ms + 5, hour_ms, 0) == 104 * hour_ms


@given(now_ms=st.integers(0, 300), interval_ms=st.integers(1, 60), start_ms=st.integers(0, 300))
def test_an_anchored_start_in_the_past_is_the_first_grid_millisecond_after_now(
    now_ms: int, interval_ms: int, start_ms: int
) -> None:
    begin = start_ms if start_ms >= now_ms else now_ms + 1
    by_hand = next(t for t in range(begin, 1_000) if t >= start_ms and (t - start_ms) % interval_ms == 0)
    assert first_due(WALL_CLOCK_TIME, now_ms, interval_ms, start_ms) == by_hand


# Refused


BAD_INTERVALS: list[Any] = [0, -1, 0.5, 1.0, True, None, "5"]
BAD_TIMES: list[Any] = [-1, 0.5, False, "5"]


def test_the_least_interval_is_one_millisecond(bench: Bench) -> None:
    bench.schedule(1, 1)
    assert [len(bench.fired(now_ms)) for now_ms in (0, 1, 2, 3)] == [0, 1, 1, 1]


@pytest.mark.parametrize("interval_ms", BAD_INTERVALS)
def test_a_bad_interval_is_refused_and_changes_nothing(bench: Bench, interval_ms: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"interval_ms .*from 1"):
        bench.schedule(0, interval_ms)
    for kind in PunctuationType:
        with pytest.raises(InvalidRequest, match="interval_ms"):
            first_due(kind, 0, interval_ms)
    assert bench.queue.next_due_ms is None


@pytest.mark.parametrize("time_ms", BAD_TIMES)
def test_a_bad_time_is_refused_and_changes_nothing(bench: Bench, time_ms: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"first_due_ms .*from 0"):
        bench.schedule(time_ms, 1)
    assert bench.queue.next_due_ms is None
    for kind in PunctuationType:
        with pytest.raises(InvalidRequest, match="start_ms"):
            first_due(kind, 0, 1, time_ms)
    with pytest.raises(InvalidRequest, match="now_ms"):
        first_due(WALL_CLOCK_TIME, time_ms, 1)


def test_a_wall_clock_without_now_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="needs now_ms"):
        first_due(WALL_CLOCK_TIME, None, 1)


def test_other_kinds_and_callbacks_are_refused(bench: Bench) -> None:
    kind: Any = "stream_time"
    callback: Any = None
    with pytest.raises(InvalidRequest, match="take STREAM_TIME or WALL_CLOCK_TIME"):
        first_due(kind, 0, 1)
    with pytest.raises(InvalidRequest, match="give a function"):
        bench.queue.schedule(0, 1, callback)
    assert bench.queue.next_due_ms is None
