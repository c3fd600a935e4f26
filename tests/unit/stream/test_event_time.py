"""Event time in use: effects of a watermark and their order, late records, idleness, and a task's own watermarks."""

from __future__ import annotations

from typing import Any

import pytest

import standfast as sf
from support.apps import Drive, Running, create, write
from support.event_time import ORDER, Seen, one_source, pipe, status
from support.sessions import Bench

TEXT, JSON = sf.serde.string, sf.serde.json


# --- a source ---


def test_record_is_processed_before_its_own_watermark_and_the_clock_moves_before_the_timers(drive: Drive) -> None:
    seen = Seen()
    driver = drive(one_source(seen, 15))
    pipe(driver, 10, 20)
    assert seen.lines == ["first record 10 clock None", "first record 20 clock 9", "first timer 15 clock 19"]


def test_order_is_clock_then_timers_then_downstream_across_a_repartition(drive: Drive) -> None:
    seen = Seen()
    app = sf.App("app", watermark_interval_ms=0)
    stream = app.stream("in", watermarks=ORDER).process(seen.processor("above", 15), key=TEXT)
    stream.repartition("x").process(seen.processor("below", 15), key=TEXT)
    pipe(drive(app), 10, 20)
    assert seen.lines == [
        "above record 10 clock None",
        "below record 10 clock None",
        "above record 20 clock 9",
        "above timer 15 clock 19",
        "below record 20 clock 9",
        "below record 15 clock 9",
        "below timer 15 clock 19",
    ]


def test_clock_is_below_zero_while_the_disorder_is_larger_than_the_time(drive: Drive) -> None:
    seen = Seen()
    driver = drive(one_source(seen, watermarks=sf.BoundedDisorder(1_000)))
    pipe(driver, 5)
    assert status(driver).watermark_ms == -996
    driver.restart()
    assert status(driver).watermark_ms == -996


def test_periodic_watermark_comes_at_the_interval_and_not_with_the_record(bench: Bench) -> None:
    create(bench, 1, "in")
    seen = Seen()

    def make(app: sf.App) -> None:
        app.stream("in", watermarks=ORDER).process(seen.processor("first", 5))

    one = Running(bench, make, watermark_interval_ms=200)
    one.run()
    write(bench, "in", ("k", "1", 10))
    one.run()
    bench.clock.advance(199)
    one.run()
    assert one.runner().status().watermark_ms is None
    bench.clock.advance(1)
    one.run()
    assert one.runner().status().watermark_ms == 9
    assert seen.lines == ["first record 10 clock None", "first timer 5 clock 9"]


def test_driver_advances_watermarks_at_each_record_and_does_no_other_work(drive: Drive) -> None:
    ticks: list[int] = []

    class Ticking(sf.Processor):
        stores = ()

        def init(self, context: sf.Context) -> None:
            context.schedule(1, sf.WALL_CLOCK_TIME, ticks.append)

    app = sf.App("app")  # with the interval of 200 ms that a run has
    app.stream("in", watermarks=ORDER).process(Ticking)
    driver = drive(app)
    pipe(driver, 10, 20)
    assert status(driver).watermark_ms == 19
    assert ticks == []


def test_skipped_record_moves_the_watermark(drive: Drive) -> None:
    seen = Seen()
    app = one_source(seen, on_error="skip")
    driver = drive(app)
    seen.fails_at = 50
    pipe(driver, 10, 50, 30)
    assert status(driver).watermark_ms == 49
    assert app.drops.counts == {"process": 1, "late_record": 1}


def test_punctuated_watermark_comes_with_the_record_that_carries_it(drive: Drive) -> None:
    seen = Seen()
    app = sf.App("app")
    marks = sf.Punctuated(lambda value, timestamp: value if value > 1 else None)
    app.stream("in", watermarks=marks).process(seen.processor("first"))
    driver = drive(app)
    pipe(driver, 10)
    pipe(driver, 20, value=15)
    assert status(driver).watermark_ms == 15
    pipe(driver, 30, value=12)
    assert status(driver).watermark_ms == 15


def test_user_written_assigner_is_made_anew_for_each_partition(drive: Drive) -> None:
    class Half:
        def __init__(self) -> None:
            self.largest = 0

        def on_record(self, value: Any, timestamp_ms: int) -> int | None:
            self.largest = max(self.largest, timestamp_ms)
            return None

        def on_periodic(self) -> int | None:
            return self.largest // 2

    seen = Seen()
    for marks in (Half, Half()):
        driver = drive(one_source(seen, watermarks=marks), partitions=2)
        pipe(driver, 100)
        pipe(driver, 10, partition=1)
        assert (status(driver).watermark_ms, status(driver, "0_1").watermark_ms) == (50, 5)


@pytest.mark.parametrize("gives", [1.5, "10", True])
def test_assigner_that_gives_no_whole_number_fails_the_task(drive: Drive, gives: Any) -> None:
    driver = drive(one_source(Seen(), watermarks=sf.Punctuated(lambda value, timestamp: gives)))
    with pytest.raises(sf.InvalidRequest, match="a watermark of Punctuated is"):
        pipe(driver, 10)


def test_function_that_makes_no_assigner_is_refused(drive: Drive) -> None:
    with pytest.raises(sf.BadConfig, match="an assigner needs on_record and on_periodic"):
        drive(one_source(Seen(), watermarks=dict))


def test_record_that_its_assigner_cannot_read_is_left_out_as_one_that_fails(drive: Drive) -> None:
    seen = Seen()
    app = one_source(seen, watermarks=sf.Punctuated(lambda value, timestamp: value["mark"]), on_error="skip")
    driver = drive(app)
    pipe(driver, 10, value={})
    pipe(driver, 20, value={"mark": 7})
    assert [record.timestamp for record in driver.read("out")] == [20]
    assert (status(driver).watermark_ms, app.drops.counts) == (7, {"process": 1})


# --- late records ---


def test_record_at_or_before_the_watermark_is_dropped_and_counted(drive: Drive) -> None:
    seen = Seen()
    app = one_source(seen)
    driver = drive(app)
    pipe(driver, 20, 18, 19, 20)
    assert seen.lines == ["first record 20 clock None", "first record 20 clock 19"]
    assert app.drops.counts == {"late_record": 2}


def test_late_record_goes_to_the_side_output_as_it_was_read(drive: Drive) -> None:
    seen = Seen()
    app = one_source(seen, late="late", timestamp=lambda record: record.value["at"])
    driver = drive(app, partitions=2)
    driver.pipe("in", "k", {"at": 20}, 1, partition=1)
    driver.pipe("in", "k", {"at": 19}, 2, headers=(("h", b"1"),), partition=1)
    assert driver.read("late") == [sf.Record("k", {"at": 19}, 19, (("h", b"1"),))]
    assert (len(driver.read("out")), app.drops.counts) == (1, {})


def test_no_record_is_late_before_the_first_watermark(drive: Drive) -> None:
    seen = Seen()
    app = sf.App("app")
    app.stream("in", watermarks=sf.Punctuated(lambda _value, _timestamp_ms: None)).process(seen.processor("first"))
    driver = drive(app)
    pipe(driver, 20, 5)
    assert len(seen.lines) == 2


def test_late_by_the_tasks_clock_and_not_by_its_own_partitions_watermark(drive: Drive) -> None:
    seen = Seen()
    app = sf.App("app", watermark_interval_ms=0)
    note = seen.processor("first")
    for topic in ("in", "more"):
        app.source(topic, key=TEXT, value=JSON, watermarks=ORDER)(note)
    driver = drive(app)
    pipe(driver, 100)
    pipe(driver, 50, topic="more")
    pipe(driver, 60)  # behind its own watermark 99, ahead of the task's 49
    pipe(driver, 49)
    assert [line.split(" clock")[0] for line in seen.lines] == [
        "first record 100", "first record 50", "first record 60",
    ]  # fmt: skip
    assert app.drops.counts == {"late_record": 1}


def test_record_of_a_source_without_watermarks_is_never_late(drive: Drive) -> None:
    seen = Seen()
    app = sf.App("app", watermark_interval_ms=0)
    note = seen.processor("first")
    app.source("in", key=TEXT, value=JSON, watermarks=ORDER)(note)
    app.source("more", key=TEXT, value=JSON)(note)
    driver = drive(app)
    pipe(driver, 100)
    pipe(driver, 5, topic="more")
    assert seen.lines == ["first record 100 clock None", "first record 5 clock 99"]


# --- two inputs, idleness ---


def two_sources(seen: Seen, **source: Any) -> sf.App:
    app = sf.App("app", watermark_interval_ms=0)
    note = seen.processor("first", 40)
    for topic in ("in", "more"):
        app.source(topic, key=TEXT, value=JSON, watermarks=ORDER, **source)(note)
    return app


def test_two_inputs_share_the_smaller_watermark(drive: Drive) -> None:
    seen = Seen()
    driver = drive(two_sources(seen))
    pipe(driver, 100)
    assert status(driver).watermark_ms is None
    pipe(driver, 31, topic="more")
    assert status(driver).watermark_ms == 30
    pipe(driver, 51, topic="more")
    assert status(driver).watermark_ms == 50
    assert seen.lines[-1] == "first timer 40 clock 50"


def test_status_names_who_holds_the_clock_back(drive: Drive) -> None:
    driver = drive(two_sources(Seen()))
    assert status(driver).watermark_waits_for == "in/0"
    pipe(driver, 100)
    assert status(driver).watermark_waits_for == "more/0"
    assert status(driver).stream_time_waits_for == "more/0"
    pipe(driver, 200, topic="more")
    found = status(driver)
    assert (found.watermark_waits_for, found.stream_time_waits_for) == ("in/0", "in/0")
    assert (found.watermark_ms, found.stream_time_ms) == (99, 100)
    assert [(one.topic, one.position, one.waiting, one.largest_ms, one.idle) for one in found.inputs] == [
        ("in", 1, 0, 100, False),
        ("more", 1, 0, 200, False),
    ]
    assert found.event_time is not None
    assert [(str(one.channel), one.watermark_ms, one.state) for one in found.event_time.inputs] == [
        ("in/0", 99, "active"),
        ("more/0", 199, "active"),
    ]


def test_status_of_a_task_without_watermarks(drive: Drive) -> None:
    app = sf.App("app")
    app.stream("in").peek(lambda key, value: None)
    found = status(drive(app))
    assert (found.event_time, found.watermark_ms, found.watermark_waits_for) == (None, None, None)
    assert (found.task, found.stream_time_ms, found.next_wall_clock_ms) == ("0_0", None, None)


def test_source_that_is_silent_for_longer_than_idle_after_ms_is_left_out(drive: Drive) -> None:
    driver = drive(two_sources(Seen(), idle_after_ms=1_000))
    driver.advance_wall_clock(600)
    pipe(driver, 100)
    driver.advance_wall_clock(400)
    assert status(driver).watermark_ms is None
    driver.advance_wall_clock(1)
    found = status(driver)
    assert (found.watermark_ms, found.watermark_waits_for) == (99, "in/0")
    assert [one.idle for one in found.inputs] == [False, True]


def test_idle_source_counts_again_from_where_it_has_caught_up(drive: Drive) -> None:
    driver = drive(two_sources(Seen(), idle_after_ms=1_000))
    driver.advance_wall_clock(600)
    pipe(driver, 100)
    driver.advance_wall_clock(500)
    assert status(driver).watermark_ms == 99
    pipe(driver, 100, topic="more")  # its watermark is 99: caught up
    pipe(driver, 200)
    assert status(driver).watermark_ms == 99
    pipe(driver, 150, topic="more")
    assert status(driver).watermark_ms == 149
