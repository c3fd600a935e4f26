"""Timers per key: their firing times and order, the powers of a callback, and that they survive."""

from __future__ import annotations

from typing import Any

import pytest

import standfast as sf
from standfast.stream.runtime.timers import FETCH_TIMERS, NEVER
from support.apps import Drive
from support.timers import Timed, ask, at

TEXT, JSON, INT = sf.serde.string, sf.serde.json, sf.serde.int64
EVENT, WALL = sf.EVENT_TIME, sf.PROCESSING_TIME


# --- event time ---


def test_timer_fires_when_the_clock_reaches_its_time_and_once(drive: Drive) -> None:
    timed = Timed()
    driver = drive(timed.app)
    ask(driver, "set", "a", 100)
    at(driver, 99)
    assert timed.fired == []
    at(driver, 100)
    assert timed.timers == [sf.Timer("a", 100, EVENT)]
    at(driver, 200)
    assert timed.fired == [("a", 100)]


def test_timers_fire_by_time_then_by_key(drive: Drive) -> None:
    timed = Timed()
    driver = drive(timed.app)
    for key, time_ms in (("b", 20), ("c", 10), ("a", 20), ("", 20), ("ab", 20), ("z", 5)):
        ask(driver, "set", key, time_ms)
    at(driver, 20)
    assert timed.fired == [("z", 5), ("c", 10), ("", 20), ("a", 20), ("ab", 20), ("b", 20)]


def test_same_key_and_time_is_one_timer_and_other_times_are_others(drive: Drive) -> None:
    timed = Timed()
    driver = drive(timed.app)
    ask(driver, "set", "a", 10, 10, 20)
    at(driver, 30)
    assert timed.fired == [("a", 10), ("a", 20)]


@pytest.mark.parametrize("times", [(0,), (2**62 - 1,)])  # the largest timestamp that a log takes
def test_first_and_far_times_are_fine(drive: Drive, times: tuple[int, ...]) -> None:
    timed = Timed()
    driver = drive(timed.app)
    ask(driver, "set", "a", *times)
    at(driver, times[0])
    assert timed.fired == [("a", times[0])]


def test_cancelled_timer_does_not_fire_and_cancelling_an_absent_one_is_fine(drive: Drive) -> None:
    timed = Timed()
    driver = drive(timed.app)
    ask(driver, "set", "a", 10, 20)
    ask(driver, "cancel", "a", 10, 11)
    ask(driver, "cancel", "b", 20)
    at(driver, 30)
    assert timed.fired == [("a", 20)]
    ask(driver, "cancel", "a", 20, stamp=31)


def test_timer_that_was_cancelled_may_be_set_again(drive: Drive) -> None:
    timed = Timed()
    driver = drive(timed.app)
    ask(driver, "set", "a", 10)
    ask(driver, "cancel", "a", 10)
    ask(driver, "set", "a", 10)
    at(driver, 10)
    assert timed.fired == [("a", 10)]


def test_timer_set_by_a_record_at_or_before_the_clock_waits_for_the_next_watermark(drive: Drive) -> None:
    timed = Timed()
    driver = drive(timed.app)
    at(driver, 100)
    driver.pipe("in", "a", ["set", 50, "a", "event"], 101)
    driver.pipe("in", "a", ["set", 100, "b", "event"], 101)
    assert timed.fired == []
    at(driver, 101)
    assert timed.fired == [("a", 50), ("b", 100)]


@pytest.mark.parametrize(
    ("time_ms", "expected"),
    [
        (5, [("a", 10), ("n", 5), ("c", 20)]),  # before the clock, and before the timer firing now
        (10, [("a", 10), ("n", 10), ("c", 20)]),
        (15, [("a", 10), ("n", 15), ("c", 20)]),
        (20, [("a", 10), ("c", 20), ("n", 20)]),
        (30, [("a", 10), ("c", 20), ("n", 30)]),  # exactly at the clock
        (31, [("a", 10), ("c", 20)]),
    ],
)
def test_timer_that_a_callback_sets_up_to_the_clock_fires_in_the_same_step(
    drive: Drive, time_ms: int, expected: list[Any]
) -> None:
    timed = Timed()
    timed.on["a"] = lambda context, timer: context.timer("n", time_ms)
    driver = drive(timed.app)
    ask(driver, "set", "a", 10)
    ask(driver, "set", "c", 20)
    at(driver, 30)
    assert timed.fired == expected
    at(driver, 31)
    assert ("n", time_ms) in timed.fired


def test_callback_may_cancel_one_that_is_due(drive: Drive) -> None:
    timed = Timed()
    timed.on["a"] = lambda context, timer: context.cancel_timer("b", 10)
    driver = drive(timed.app)
    ask(driver, "set", "a", 10)
    ask(driver, "set", "b", 10, 20)
    at(driver, 30)
    assert timed.fired == [("a", 10), ("b", 20)]


def test_callback_may_set_itself_again_as_a_periodic_timer(drive: Drive) -> None:
    timed = Timed()
    timed.on["a"] = lambda context, timer: context.timer("a", timer.time + 10)
    driver = drive(timed.app)
    ask(driver, "set", "a", 10)
    at(driver, 35)
    assert [time_ms for _, time_ms in timed.fired] == [10, 20, 30]


@pytest.mark.parametrize("count", [FETCH_TIMERS, FETCH_TIMERS + 1, 3 * FETCH_TIMERS])
def test_more_timers_than_are_read_at_once_fire_in_order(drive: Drive, count: int) -> None:
    timed = Timed(key_serde=INT)
    driver = drive(timed.app)
    for number in range(count):
        driver.pipe("in", "a", ["set", 10 + number // 3, number, "event"], 0)
    at(driver, 10 + count)
    assert timed.fired == [(number, 10 + number // 3) for number in range(count)]


def test_timers_that_are_due_together_are_not_bound_by_the_buffer(drive: Drive) -> None:
    timed = Timed(key_serde=INT, cache_max_bytes=1)
    driver = drive(timed.app)
    for number in range(5_000):
        driver.pipe("in", "a", ["set", 10, number, "event"], 0)
    at(driver, 10)
    assert len(timed.fired) == 5_000


# --- processing time ---


def test_processing_time_timer_fires_by_the_wall_clock_without_records(drive: Drive) -> None:
    timed = Timed()
    driver = drive(timed.app, 1_000)
    ask(driver, "set", "b", 1_100, kind="wall")
    ask(driver, "set", "a", 1_100, 1_050, kind="wall")
    driver.advance_wall_clock(49)
    assert timed.fired == []
    driver.advance_wall_clock(1)
    assert timed.timers == [sf.Timer("a", 1_050, WALL)]
    driver.advance_wall_clock(50)
    assert timed.fired == [("a", 1_050), ("a", 1_100), ("b", 1_100)]


def test_processing_time_timer_in_the_past_fires_with_the_next_look_at_the_clock(drive: Drive) -> None:
    timed = Timed()
    driver = drive(timed.app, 1_000)
    ask(driver, "set", "a", 7, kind="wall")
    assert timed.fired == []
    driver.advance_wall_clock(0)
    assert timed.fired == [("a", 7)]


def test_the_two_kinds_do_not_touch_each_other(drive: Drive) -> None:
    timed = Timed()
    driver = drive(timed.app)
    ask(driver, "set", "a", 100)
    ask(driver, "set", "a", 100, kind="wall")
    driver.advance_wall_clock(100)
    assert timed.timers == [sf.Timer("a", 100, WALL)]
    at(driver, 100)
    assert timed.timers[1:] == [sf.Timer("a", 100, EVENT)]
    ask(driver, "set", "b", 200, stamp=101)
    ask(driver, "cancel", "b", 200, kind="wall", stamp=101)
    at(driver, 200)
    assert timed.fired[2:] == [("b", 200)]


def test_processing_time_needs_no_watermarks(drive: Drive) -> None:
    fired: list[int] = []

    class Timing(sf.Processor):
        def init(self, context: sf.Context) -> None:
            self.context = context

        def process(self, record: sf.Record) -> None:
            self.context.timer(record.key, 50, WALL)

        def on_timer(self, timer: sf.Timer) -> None:
            fired.append(timer.time)

    app = sf.App("app")
    app.source("in")(Timing)
    driver = drive(app)
    driver.pipe("in", "a", 1)
    driver.advance_wall_clock(50)
    assert fired == [50]


# --- a callback's view and powers ---


def test_callback_sees_no_record_and_the_timers_time(drive: Drive) -> None:
    timed = Timed()
    seen: list[Any] = []

    def look(context: sf.Context, timer: sf.Timer) -> None:
        seen.append((context.topic, context.partition, context.offset, context.headers, context.timestamp))

    timed.on = {"a": look, "w": look}
    driver = drive(timed.app)
    ask(driver, "set", "a", 10)
    ask(driver, "set", "w", 5, kind="wall")
    driver.pipe("in", "time", None, 31, headers=(("h", b"1"),))
    driver.advance_wall_clock(40)
    assert seen == [(None, -1, -1, (), 10), (None, -1, -1, (), 40)]


def test_what_a_timer_forwards_comes_after_the_record_that_made_it_due(drive: Drive) -> None:
    timed = Timed()
    driver = drive(timed.app)
    ask(driver, "set", "a", 10)
    at(driver, 30)
    assert [record.value for record in driver.read("out")] == ["a@10"]


def test_timer_of_an_earlier_processor_fires_before_those_of_a_later_one(drive: Drive) -> None:
    fired: list[str] = []

    class Timing(sf.Processor):
        stores = ()

        def init(self, context: sf.Context) -> None:
            self.context = context

        def process(self, record: sf.Record) -> None:
            self.context.timer(record.key, 10)
            self.context.forward(record)

        def on_timer(self, timer: sf.Timer) -> None:
            fired.append(f"{self.context.name} {timer.key}")
            self.context.forward(sf.Record("from above", None, timer.time))

    app = sf.App("app", watermark_interval_ms=0)
    stream = app.stream("in", watermarks=sf.BoundedDisorder(0))
    stream.process(Timing, name="above").process(Timing, name="below", key=TEXT)
    driver = drive(app)
    driver.pipe("in", "a", 1, 5)
    driver.pipe("in", "b", 1, 50)
    assert fired == ["above a", "above b", "below a", "below b", "below from above"]


def test_exception_in_a_timer_fails_the_task(drive: Drive) -> None:
    timed = Timed()

    def fail(context: sf.Context, timer: sf.Timer) -> None:
        raise ValueError("a timer fails")

    timed.on["a"] = fail
    driver = drive(timed.app)
    ask(driver, "set", "a", 10)
    with pytest.raises(ValueError, match="a timer fails"):
        at(driver, 10)


def test_timers_of_each_task_are_its_own(drive: Drive) -> None:
    timed = Timed()
    driver = drive(timed.app, partitions=2)
    driver.pipe("in", "a", ["set", 10, "a", "event"], 0, partition=0)
    driver.pipe("in", "a", None, 100, partition=1)
    assert timed.fired == []
    driver.pipe("in", "a", None, 100, partition=0)
    assert timed.fired == [("a", 10)]


# --- keys ---


def test_timer_key_is_of_the_serde_that_the_class_names(drive: Drive) -> None:
    timed = Timed(key_serde=INT)
    driver = drive(timed.app)
    ask(driver, "set", 7, 10)
    at(driver, 10)
    assert timed.timers == [sf.Timer(7, 10, EVENT)]


def test_timer_key_is_of_the_sources_serde_by_default(drive: Drive) -> None:
    seen: list[Any] = []

    class Timing(sf.Processor):
        def init(self, context: sf.Context) -> None:
            self.context = context

        def process(self, record: sf.Record) -> None:
            self.context.timer(record.key, 5, WALL)

        def on_timer(self, timer: sf.Timer) -> None:
            seen.append(timer.key)

    app = sf.App("app")
    app.source("in", key=INT)(Timing)
    driver = drive(app)
    driver.pipe("in", 7, 1)
    driver.advance_wall_clock(5)
    assert seen == [7]


# --- bad input ---


@pytest.mark.parametrize("act", ["timer", "cancel_timer"])
@pytest.mark.parametrize(
    ("key", "time_ms", "kind", "told"),
    [
        (None, 10, EVENT, "a timer needs a key, not None"),
        ("a", -1, EVENT, "timer at -1: give whole milliseconds from 0"),
        ("a", 1.5, WALL, "timer at 1.5"),
        ("a", True, WALL, "timer at True"),
        ("a", NEVER - 1, EVENT, "give whole milliseconds"),
        ("a", 10, "event_time", "take EVENT_TIME or PROCESSING_TIME"),
        ("a", 10, sf.STREAM_TIME, "take EVENT_TIME or PROCESSING_TIME"),
        (7, 10, EVENT, "cannot serialise|cannot serialize"),
    ],
)
def test_bad_timer_is_refused_and_changes_nothing(
    drive: Drive, act: str, key: Any, time_ms: Any, kind: Any, told: str
) -> None:
    timed = Timed()
    driver = drive(timed.app)
    ask(driver, "set", "first", 10)

    def attempt(context: sf.Context, timer: sf.Timer) -> None:
        with pytest.raises(sf.InvalidRequest, match=told):
            getattr(context, act)(key, time_ms, kind)

    timed.on["first"] = attempt
    at(driver, 10)
    assert timed.fired == [("first", 10)]
    assert list(driver.store("Timing-timers").all()) == []


def test_event_time_timer_without_watermarks_is_refused(drive: Drive) -> None:
    class Timing(sf.Processor):
        def init(self, context: sf.Context) -> None:
            self.context = context

        def process(self, record: sf.Record) -> None:
            self.context.timer("a", 10)

        def on_timer(self, timer: sf.Timer) -> None:
            pass

    app = sf.App("app")
    app.source("in")(Timing)
    with pytest.raises(sf.InvalidRequest, match=r"needs watermarks, and no source of task 0_0 makes any"):
        drive(app).pipe("in", "a", 1)


def test_timer_of_a_class_without_on_timer_is_refused(drive: Drive) -> None:
    class Timing(sf.Processor):
        def init(self, context: sf.Context) -> None:
            context.timer("a", 10, WALL)

    app = sf.App("app")
    app.source("in")(Timing)
    with pytest.raises(sf.InvalidRequest, match=r"'Timing' has no timers: define on_timer\(self, timer\) in its class"):
        drive(app)


def test_timer_outside_a_processor_is_refused(drive: Drive) -> None:
    timed = Timed()
    driver = drive(timed.app)
    context = timed.contexts[0]
    with pytest.raises(sf.InvalidRequest, match="cannot set a timer outside a processor"):
        context.timer("a", 10)
    with pytest.raises(sf.InvalidRequest, match="cannot cancel a timer outside a processor"):
        context.cancel_timer("a", 10)
    driver.restart()
    with pytest.raises(sf.InvalidRequest, match="does not run any more"):
        context.timer("a", 10)
