"""Punctuation in a task: schedules and firing times of each clock, the powers of a callback, refused scheduling."""

from __future__ import annotations

from typing import Any

import pytest

import standfast as sf
from support.apps import Drive, Running, create
from support.punctuation import Probe, pipe
from support.sessions import Bench

TEXT, JSON, INT = sf.serde.string, sf.serde.json, sf.serde.int64
STREAM, WALL = sf.STREAM_TIME, sf.WALL_CLOCK_TIME


# --- stream time ---


@pytest.mark.parametrize(("start", "expected"), [(None, [1_000, 8_000, 10_000]), (1_000, [1_000, 8_000])])
def test_records_at_1_4_8_and_10_seconds_fire_an_interval_of_5_seconds(
    drive: Drive, start: int | None, expected: list[int]
) -> None:
    probe = Probe(("a", 5_000, STREAM, start))
    pipe(drive(probe.app), 1_000, 4_000, 8_000, 10_000)
    assert probe.times == expected


def test_missed_intervals_are_skipped_and_the_phase_stays(drive: Drive) -> None:
    probe = Probe(("a", 5_000, STREAM, 5_000))
    driver = drive(probe.app)
    pipe(driver, 4_999)
    assert probe.times == []
    pipe(driver, 21_000, 24_999)
    assert probe.times == [21_000]
    pipe(driver, 25_000, 29_999, 30_000)
    assert probe.times == [21_000, 25_000, 30_000]


def test_no_record_means_no_stream_time_punctuation(drive: Drive) -> None:
    probe = Probe(("a", 10, STREAM, None))
    driver = drive(probe.app)
    driver.advance_wall_clock(1_000_000)
    assert probe.fired == []
    pipe(driver, 5)
    driver.advance_wall_clock(1_000_000)
    assert probe.times == [5]


def test_stream_time_punctuation_comes_after_the_record_that_moved_it(drive: Drive) -> None:
    probe = Probe(("a", 10, STREAM, None))
    probe.on_record = lambda context, record: probe.fired.append(("record", record.timestamp))
    pipe(drive(probe.app), 5, 7, 10)
    assert probe.fired == [("record", 5), ("a", 5), ("record", 7), ("record", 10), ("a", 10)]


def test_out_of_order_records_fire_nothing_twice(drive: Drive) -> None:
    probe = Probe(("a", 10, STREAM, None))
    pipe(drive(probe.app), 25, 5, 15, 25, 29, 30)
    assert probe.times == [25, 30]


def test_schedules_fire_by_time_then_in_the_order_in_which_they_were_made(drive: Drive) -> None:
    probe = Probe(("late", 10, STREAM, 8), ("first", 10, STREAM, 5), ("second", 10, STREAM, 5))
    pipe(drive(probe.app), 9)
    assert [name for name, _ in probe.fired] == ["first", "second", "late"]


def test_schedule_made_while_processing_is_due_at_once_if_its_time_has_come(drive: Drive) -> None:
    probe = Probe()
    probe.on_record = lambda context, record: "a" in probe.handles or probe.schedule(context, "a", 10, STREAM)
    pipe(drive(probe.app), 25, 29, 30)
    assert probe.times == [25, 30]


def test_schedule_made_in_a_callback_and_due_fires_in_the_same_turn(drive: Drive) -> None:
    probe = Probe(("a", 10, STREAM, None))
    probe.on["a"] = lambda context, now_ms: "b" in probe.handles or probe.schedule(context, "b", 10, STREAM)
    pipe(drive(probe.app), 25)
    assert probe.fired == [("a", 25), ("b", 25)]


def test_stream_time_is_the_smallest_over_the_inputs_of_a_task(drive: Drive) -> None:
    probe = Probe(("a", 10, STREAM, None), sources=("in", "more"))
    driver = drive(probe.app)
    pipe(driver, 50)
    assert probe.times == []  # unknown until the other one has had a record
    pipe(driver, 7, topic="more")
    pipe(driver, 60)
    assert probe.times == [7]
    pipe(driver, 40, topic="more")
    assert probe.times == [7, 40]
    assert probe.contexts[0].stream_time_ms == 40


def test_stream_time_max_is_the_largest_record_of_any_input(drive: Drive) -> None:
    probe = Probe(("a", 10, STREAM, None), sources=("in", "more"), stream_time="max")
    driver = drive(probe.app)
    pipe(driver, 50)
    pipe(driver, 7, topic="more")
    pipe(driver, 60)
    assert probe.times == [50, 60]


def test_each_task_has_a_stream_time_of_its_own(drive: Drive) -> None:
    probe = Probe(("a", 10, STREAM, None))
    driver = drive(probe.app, partitions=2)
    driver.pipe("in", "a", 1, 25, partition=0)
    assert probe.times == [25]
    driver.pipe("in", "a", 1, 3, partition=1)
    assert probe.times == [25, 3]


# --- idle inputs ---


def test_input_that_is_silent_for_longer_than_idle_after_ms_is_left_out(drive: Drive) -> None:
    probe = Probe(("a", 10, STREAM, None), sources=("in", "more"), idle_after_ms=1_000)
    driver = drive(probe.app)
    driver.advance_wall_clock(600)
    pipe(driver, 50)
    driver.advance_wall_clock(400)
    assert probe.times == []  # "more" is silent for exactly that long
    driver.advance_wall_clock(1)
    assert probe.times == [50]  # its idleness moved the clock to the time of its last records
    pipe(driver, 60)
    assert probe.times == [50, 60]


def test_input_whose_records_are_processed_at_once_is_not_idle(drive: Drive) -> None:
    probe = Probe(("a", 10, STREAM, None), sources=("in", "more"), idle_after_ms=1_000)
    driver = drive(probe.app)
    for step in range(10):
        pipe(driver, 100 + step)
        pipe(driver, step, topic="more")
        driver.advance_wall_clock(900)
    assert probe.contexts[0].stream_time_ms == 9


def test_record_ends_idleness_even_if_it_is_older_than_what_was_seen(drive: Drive) -> None:
    probe = Probe(sources=("in", "more"), idle_after_ms=1_000)
    driver = drive(probe.app)
    pipe(driver, 50)
    pipe(driver, 20, topic="more")
    driver.advance_wall_clock(600)
    pipe(driver, 60)
    driver.advance_wall_clock(500)
    assert probe.contexts[0].stream_time_ms == 60
    pipe(driver, 10, topic="more")
    pipe(driver, 70)
    assert probe.contexts[0].stream_time_ms == 60  # held at 20 again, and the clock does not go back
    pipe(driver, 65, topic="more")
    assert probe.contexts[0].stream_time_ms == 65


def test_clock_stands_still_while_every_input_is_idle(drive: Drive) -> None:
    probe = Probe(("a", 10, STREAM, None), idle_after_ms=1_000)
    driver = drive(probe.app)
    pipe(driver, 5)
    driver.advance_wall_clock(10_000)
    assert (probe.times, probe.contexts[0].stream_time_ms) == ([5], 5)


# --- wall clock ---


def test_wall_clock_schedule_first_fires_one_interval_after_it_was_made_without_records(drive: Drive) -> None:
    probe = Probe(("a", 100, WALL, None))
    driver = drive(probe.app, 1_030)
    driver.advance_wall_clock(99)
    assert probe.fired == []
    driver.advance_wall_clock(1)
    assert probe.times == [1_130]
    driver.advance_wall_clock(99)
    driver.advance_wall_clock(1)
    assert probe.times == [1_130, 1_230]


def test_callback_is_given_now_and_not_the_time_it_was_due(drive: Drive) -> None:
    probe = Probe(("a", 100, WALL, None))
    driver = drive(probe.app)
    driver.advance_wall_clock(571)
    assert probe.times == [571]
    driver.advance_wall_clock(28)
    assert probe.times == [571]
    driver.advance_wall_clock(1)
    assert probe.times == [571, 600]


@pytest.mark.parametrize(
    ("start", "expected"), [(1_000, 1_040), (1_030, 1_030), (1_031, 1_031), (5_000, 5_000), (930, 1_040)]
)
def test_wall_clock_schedule_with_a_start_is_anchored_there(drive: Drive, start: int, expected: int) -> None:
    probe = Probe(("a", 10, WALL, start))
    driver = drive(probe.app, 1_030)
    driver.advance_wall_clock(0)
    while not probe.fired:
        driver.advance_wall_clock(1)
    assert probe.times == [expected]


def test_stream_time_goes_before_the_wall_clock(drive: Drive) -> None:
    probe = Probe(("wall", 100, WALL, None), ("stream", 10, STREAM, None), sources=("in", "more"), idle_after_ms=99)
    driver = drive(probe.app)
    driver.advance_wall_clock(50)
    pipe(driver, 50)
    driver.advance_wall_clock(50)
    assert probe.fired == [("stream", 50), ("wall", 100)]


def test_wall_clock_never_goes_back_with_the_machines_clock(bench: Bench) -> None:
    probe = Probe()
    create(bench, 1, "in", "out")

    def make(app: sf.App) -> None:
        app.source("in", key=TEXT, value=JSON)(probe.processor())

    one = Running(bench, make, stores=[sf.KeyValueStore("kv", TEXT, INT)])
    one.run()
    before = probe.contexts[0].wall_clock_ms
    bench.clock.advance(5)
    assert probe.contexts[0].wall_clock_ms == before + 5


# --- a callback's view and powers ---


def test_callback_sees_no_record(drive: Drive) -> None:
    probe = Probe(("a", 10, STREAM, None), ("w", 100, WALL, None))
    seen: list[Any] = []

    def look(context: sf.Context, now_ms: int) -> None:
        seen.append((context.topic, context.partition, context.offset, context.headers, context.timestamp))

    probe.on = {"a": look, "w": look}
    driver = drive(probe.app)
    driver.pipe("in", "a", 1, 25, headers=(("h", b"1"),))
    driver.advance_wall_clock(100)
    assert seen == [(None, -1, -1, (), 25), (None, -1, -1, (), 100)]


def test_record_is_in_hand_again_for_those_behind_a_callback(drive: Drive) -> None:
    probe = Probe(("a", 10, STREAM, None))
    seen: list[Any] = []
    probe.on_record = lambda context, record: seen.append((context.topic, context.offset, context.timestamp))
    driver = drive(probe.app)
    pipe(driver, 25, 40)
    assert seen == [("in", 0, 25), ("in", 1, 40)]
    assert probe.contexts[0].topic is None  # between records there is none either


@pytest.mark.parametrize(("kind", "now"), [(STREAM, 25), (WALL, 100)])
def test_callback_reads_writes_and_forwards(drive: Drive, kind: Any, now: int) -> None:
    probe = Probe(("a", 100, kind, None))
    driver = drive(probe.app)

    def work(context: sf.Context, now_ms: int) -> None:
        store = context.store("kv")
        store.put("count", (store.get("count") or 0) + 1)
        context.forward(sf.Record("count", store.get("count"), now_ms))

    probe.on["a"] = work
    pipe(driver, 25)
    driver.advance_wall_clock(100)
    assert driver.read("out") == [sf.Record("count", 1, now)]
    assert driver.store("kv").get_with_timestamp("count") == (1, now)


def test_what_a_callback_writes_is_not_bound_by_the_buffer(drive: Drive) -> None:
    probe = Probe(("a", 10, STREAM, None), cache_max_bytes=1)

    def work(context: sf.Context, now_ms: int) -> None:
        for number in range(10_000):
            context.store("kv").put(f"key {number}", number)

    probe.on["a"] = work
    driver = drive(probe.app)
    buffer = next(iter(driver._runners.values())).task.stores.buffer
    pipe(driver, 25)
    assert driver.store("kv").get("key 9999") == 9_999
    assert buffer.size_bytes == 0  # the buffer was full, so the commit follows


def test_callback_may_cancel_itself(drive: Drive) -> None:
    probe = Probe(("a", 10, STREAM, None), ("b", 10, STREAM, None))
    probe.on["a"] = lambda context, now_ms: probe.handles["a"].cancel()
    pipe(drive(probe.app), 5, 15, 25)
    assert probe.fired == [("a", 5), ("b", 5), ("b", 15), ("b", 25)]


def test_callback_may_cancel_another_that_is_due(drive: Drive) -> None:
    probe = Probe(("a", 10, STREAM, None), ("b", 10, STREAM, None))
    probe.on["a"] = lambda context, now_ms: probe.handles["b"].cancel()
    pipe(drive(probe.app), 5, 15)
    assert probe.fired == [("a", 5), ("a", 15)]


@pytest.mark.parametrize("where", ["processing", "test"])
def test_schedule_is_cancelled_from_anywhere(drive: Drive, where: str) -> None:
    probe = Probe(("a", 10, STREAM, None), ("w", 100, WALL, None))
    driver = drive(probe.app)

    def cancel() -> None:
        for handle in probe.handles.values():
            handle.cancel()

    if where == "processing":
        probe.on_record = lambda context, record: cancel()
    else:
        cancel()
    pipe(driver, 5)
    driver.advance_wall_clock(1_000)
    assert probe.fired == []


def test_two_callbacks_may_schedule_each_other_anew(drive: Drive) -> None:
    probe = Probe(("a", 10, STREAM, None))

    def again(context: sf.Context, now_ms: int) -> None:
        probe.handles["a"].cancel()
        probe.schedule(context, "a", 10, STREAM, now_ms + 7)

    probe.on["a"] = again
    pipe(drive(probe.app), 5, 11, 12, 18, 19)
    assert probe.times == [5, 12, 19]
