"""Watermarks between tasks, over restarts and failovers, and the control records that carry them."""

from __future__ import annotations

from typing import Any

import pytest

import standfast as sf
from standfast.replication.log import Outgoing, Record, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.store.errors import Corruption
from standfast.stream.control import SIGNAL_HEADER, TASK_HEADER, control_headers, is_control, parse_control
from standfast.stream.runtime.event_time import REPEAT_MS
from standfast.stream.watermarks import Active, Idle, Signal, Watermark
from support.apps import Drive, Running, create, text_of, write, written
from support.event_time import ORDER, Seen, one_source, pipe, status
from support.sessions import Bench

TEXT, JSON = sf.serde.string, sf.serde.json


# --- downstream ---


def chain(seen: Seen, **source: Any) -> sf.App:
    app = sf.App("app", watermark_interval_ms=0)
    settings: dict[str, Any] = {"watermarks": ORDER, **source}
    app.stream("in", **settings).repartition("x").process(seen.processor("below", 40), key=TEXT)
    return app


def test_downstream_takes_the_smallest_of_all_upstream_tasks(drive: Drive) -> None:
    seen = Seen()
    driver = drive(chain(seen), partitions=3)

    def clocks() -> list[int | None]:
        return [status(driver, f"1_{partition}").watermark_ms for partition in range(3)]

    pipe(driver, 100)
    pipe(driver, 50, partition=1)
    assert clocks() == [None, None, None]
    assert status(driver, "1_1").watermark_waits_for == "app-x-repartition/1@0_2"
    pipe(driver, 20, partition=2)
    assert clocks() == [19, 19, 19]
    pipe(driver, 70, partition=2)
    assert clocks() == [49, 49, 49]
    assert status(driver, "1_2").watermark_waits_for == "app-x-repartition/2@0_1"


def test_upstream_task_that_is_idle_is_left_out_downstream(drive: Drive) -> None:
    seen = Seen()
    driver = drive(chain(seen, idle_after_ms=1_000), partitions=2)
    driver.advance_wall_clock(600)
    pipe(driver, 100)
    driver.advance_wall_clock(400)
    assert status(driver, "1_0").watermark_ms is None
    driver.advance_wall_clock(1)
    assert status(driver, "1_0").watermark_ms == 99
    pipe(driver, 200, partition=1)
    pipe(driver, 150)
    assert status(driver, "1_0").watermark_ms == 149


def test_two_repartitions_in_a_row_carry_the_watermark_on(drive: Drive) -> None:
    seen = Seen()
    app = sf.App("app", watermark_interval_ms=0)
    app.stream("in", watermarks=ORDER).repartition("x").repartition("y").process(seen.processor("last", 40), key=TEXT)
    pipe(drive(app), 30, 50)
    assert seen.lines == ["last record 30 clock None", "last record 50 clock 29", "last timer 40 clock 49"]


def test_broadcast_carries_the_watermark_to_every_task(drive: Drive) -> None:
    app = sf.App("app", watermark_interval_ms=0)
    app.stream("in", watermarks=ORDER).broadcast("x").process(Seen().processor("below"))
    driver = drive(app, partitions=2)
    pipe(driver, 100)
    pipe(driver, 50, partition=1)
    assert [status(driver, f"1_{partition}").watermark_ms for partition in range(2)] == [49, 49]


def test_stream_without_watermarks_does_not_hold_back_one_that_has_them(drive: Drive) -> None:
    app = sf.App("app", watermark_interval_ms=0)
    marked = app.stream("in", watermarks=ORDER).repartition("x")
    plain = app.stream("more").repartition("y")
    marked.merge(plain).process(Seen().processor("both"))
    driver = drive(app)
    pipe(driver, 100)
    assert status(driver, "1_0").watermark_ms == 99


def test_watermark_does_not_pass_through_a_topic_from_outside(drive: Drive) -> None:
    seen = Seen()
    app = sf.App("app", watermark_interval_ms=0)
    app.stream("in", watermarks=ORDER).to("mid")
    app.stream("mid").process(seen.processor("below", 40), key=TEXT)
    driver = drive(app)
    assert status(driver, "1_0").event_time is None
    with pytest.raises(sf.InvalidRequest, match="no source of task 1_0 makes any"):
        pipe(driver, 100)


def test_signals_move_neither_stream_time_nor_reach_a_processor(drive: Drive) -> None:
    seen = Seen()
    driver = drive(chain(seen))
    assert status(driver, "1_0").stream_time_ms is None
    pipe(driver, 10, 30)
    assert [line.split(" clock")[0] for line in seen.lines] == ["below record 10", "below record 30"]
    assert status(driver, "1_0").stream_time_ms == 30


# --- restart ---


def test_clock_goes_on_after_a_restart_and_does_not_go_back(drive: Drive) -> None:
    seen = Seen()
    app = one_source(seen, 15)
    driver = drive(app)
    pipe(driver, 10, 20)
    driver.restart()
    assert status(driver).watermark_ms == 19
    seen.lines.clear()
    pipe(driver, 19, 20)
    assert seen.lines == ["first record 20 clock 19"]
    assert app.drops.counts == {"late_record": 1}


def test_clock_survives_a_failover_to_another_directory(bench: Bench) -> None:
    create(bench, 1, "in", "late")
    seen = Seen()

    def make(app: sf.App) -> None:
        app.stream("in", watermarks=ORDER, late="late").process(seen.processor("first"))

    write(bench, "in", ("k", "1", 100))
    one = Running(bench, make, watermark_interval_ms=0)
    one.run()
    one.commit()
    one.close()
    other = Running(bench, make, "b", watermark_interval_ms=0)
    write(bench, "in", ("k", "1", 99), ("k", "1", 100))
    other.run()
    other.commit()
    assert other.runner().status().watermark_ms == 99
    assert text_of(written(bench, "late")) == [("k", "1", 99)]


def test_downstream_clock_goes_on_after_a_restart_of_all(drive: Drive) -> None:
    seen = Seen()
    driver = drive(chain(seen), partitions=2)
    pipe(driver, 100)
    pipe(driver, 50, partition=1)
    driver.restart()
    assert [status(driver, f"1_{partition}").watermark_ms for partition in range(2)] == [49, 49]
    pipe(driver, 80, partition=1)
    assert status(driver, "1_0").watermark_ms == 79


def signals(bench: Bench, topic: str) -> list[Signal]:
    return [parse_control(record, "here")[1] for record in written(bench, topic) if is_control(record)]


def test_task_announces_itself_and_repeats_where_it_stands_after_a_silence(bench: Bench) -> None:
    create(bench, 1, "in")
    write(bench, "in", ("k", "1", 100))
    one = Running(bench, lambda app: chain_into(app), watermark_interval_ms=0)
    one.run()
    one.commit()
    assert signals(bench, "app-x-repartition") == [Active(), Watermark(99)]
    bench.clock.advance(REPEAT_MS)
    one.run()
    one.commit()
    assert signals(bench, "app-x-repartition") == [Active(), Watermark(99), Active(), Watermark(99)]


def chain_into(app: sf.App, **source: Any) -> None:
    app.stream("in", watermarks=ORDER, **source).repartition("x").process(Seen().processor("below"))


def test_downstream_task_that_alone_began_again_learns_who_is_idle(bench: Bench) -> None:
    create(bench, 2, "in")
    write(bench, "in", ("k", "1", 100))
    one = Running(bench, lambda app: chain_into(app, idle_after_ms=1_000), watermark_interval_ms=0)
    one.run()
    for _ in range(3):
        bench.clock.advance(1_001)
        write(bench, "in", ("k", "1", 100))
        one.run()
        one.commit()
    downstream = one.runner(1, 0)
    assert downstream.status().watermark_ms == 99
    downstream.task.fail(ValueError("the test fails it"))
    one.run()
    one.session.reopen(downstream.task.id)
    bench.settle(one.session)
    one.run()
    write(bench, "in", ("k", "1", 200))
    one.run()
    one.commit()
    again = one.runner(1, 0)
    assert again is not downstream
    assert again.status().watermark_waits_for == "app-x-repartition/0@0_1"  # it has not yet read that 0_1 is idle
    bench.clock.advance(REPEAT_MS)
    write(bench, "in", ("k", "1", 200))
    one.run()
    one.commit()
    assert again.status().watermark_ms == 199


def test_signal_of_a_task_that_is_upstream_no_more_is_not_listened_to(bench: Bench) -> None:
    create(bench, 1, "in")
    bench.log.admin.create_topic("app-x-repartition", 1, TopicPolicy())
    ghost = Outgoing(None, None, 0, control_headers("7_3", Watermark(5_000)))
    bench.log.producer().append({TopicPartition("app-x-repartition", 0): [ghost]})
    one = Running(bench, lambda app: chain_into(app), watermark_interval_ms=0)
    write(bench, "in", ("k", "1", 100))
    one.run()
    one.commit()
    assert one.runner(1).status().watermark_ms == 99


# --- control records ---


@pytest.mark.parametrize("signal", [Watermark(0), Watermark(-996), Watermark(2**62), Idle(), Active()])
def test_control_record_reads_back_as_it_was_written(signal: Signal) -> None:
    raw = Record(0, 0, None, None, control_headers("0_3", signal))
    assert is_control(raw)
    assert parse_control(raw, "here") == ("0_3", signal)


@pytest.mark.parametrize(
    "raw",
    [
        Record(0, 0, b"k", None, control_headers("0_3", Idle())),
        Record(0, 0, None, b"v", control_headers("0_3", Idle())),
        Record(0, 0, None, None, ()),
        Record(0, 0, None, None, (("other", b"1"), (SIGNAL_HEADER, b"idle"))),
    ],
)
def test_record_with_key_value_or_other_headers_is_no_control_record(raw: Record) -> None:
    assert not is_control(raw)


@pytest.mark.parametrize(
    "headers",
    [((SIGNAL_HEADER, b"soon"), (TASK_HEADER, b"0_3")), ((SIGNAL_HEADER, None), (TASK_HEADER, b"0_3")),
     ((SIGNAL_HEADER, b"5"),), ((SIGNAL_HEADER, b"idle"), (TASK_HEADER, b"\xff"))],
)  # fmt: skip
def test_damaged_control_record_is_corruption(headers: Any) -> None:
    with pytest.raises(Corruption, match="here: a watermark signal that cannot be read"):
        parse_control(Record(0, 0, None, None, headers), "here")
