"""Punctuation in a task: commit, failure and restart, and refused scheduling."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import standfast as sf
from standfast.replication.offsets import TopicPartition
from standfast.stream.runtime.runner import TaskRunner
from support.apps import Drive, Running, create, text_of, write, written
from support.punctuation import Probe, pipe
from support.sessions import Bench

TEXT, JSON, INT = sf.serde.string, sf.serde.json, sf.serde.int64
STREAM, WALL = sf.STREAM_TIME, sf.WALL_CLOCK_TIME


# --- commit ---


def commits(driver: sf.testing.Driver) -> int:
    return driver._session.counters.commits["committed"]


@pytest.mark.parametrize("kind", [STREAM, WALL])
def test_punctuation_does_not_commit_at_once(drive: Drive, kind: Any) -> None:
    probe = Probe(("a", 100, kind, 100))
    driver = drive(probe.app)
    pipe(driver, 100)
    driver.advance_wall_clock(100)
    assert (len(probe.fired), commits(driver)) == (1, 0)


@pytest.mark.parametrize("kind", [STREAM, WALL])
def test_punctuation_that_asks_for_a_commit_gets_one_at_once(drive: Drive, kind: Any) -> None:
    probe = Probe(("a", 100, kind, 100))
    probe.on["a"] = lambda context, now_ms: context.commit()
    driver = drive(probe.app)
    pipe(driver, 100)
    driver.advance_wall_clock(100)
    assert commits(driver) == 1


def ticking(bench: Bench, kind: Any, work: Any, **given: Any) -> Running:
    """An application on the real loop whose schedule of 10 ms does `work(context, now_ms)`."""
    create(bench, 1, "in", "out")
    probe = Probe(("a", 10, kind, None))
    probe.on["a"] = work

    def make(app: sf.App) -> None:
        app.source("in", key=TEXT, value=JSON)(probe.processor())
        app.sink("out", key=TEXT, value=JSON)(probe.processor())

    return Running(bench, make, stores=[sf.KeyValueStore("kv", TEXT, INT)], **given)


def forward_tick(context: sf.Context, now_ms: int) -> None:
    context.forward(sf.Record("tick", 1, now_ms))


def test_real_loop_commits_many_firings_once_an_interval(bench: Bench) -> None:
    one = ticking(bench, WALL, forward_tick, commit_interval_ms=60_000, guarantee="exactly_once")
    one.run()
    for _ in range(200):
        bench.clock.advance(10)
        one.run()
    assert one.session.counters.commits["committed"] == 0
    assert written(bench, "out") == []
    bench.clock.advance(60_000)
    one.run()
    assert one.session.counters.commits["committed"] == 1
    assert len(written(bench, "out")) == 201


def test_stream_time_punctuation_is_committed_with_the_record_at_the_interval(bench: Bench) -> None:
    one = ticking(bench, STREAM, forward_tick, commit_interval_ms=1_000, guarantee="exactly_once")
    write(bench, "in", ("a", "1", 25))
    one.run()
    assert written(bench, "out") == []
    bench.clock.advance(1_000)
    one.run()
    assert text_of(written(bench, "out")) == [("tick", "1", 25)]
    assert one.session.task(0).source_offsets() == {TopicPartition("in", 0): 1}


def test_punctuation_that_writes_nothing_makes_no_commit(bench: Bench) -> None:
    one = ticking(bench, WALL, lambda context, now_ms: None, commit_interval_ms=100)
    one.run()
    one.commit()  # the offset that the task begins at
    for _ in range(30):
        bench.clock.advance(10)
        one.run()
    assert one.session.counters.commits["committed"] == 1


def test_punctuation_that_fills_the_buffer_is_committed_in_the_same_round(bench: Bench) -> None:
    def fill(context: sf.Context, now_ms: int) -> None:
        for number in range(10_000):
            context.store("kv").put(f"key {number}", number)

    one = ticking(bench, WALL, fill, commit_interval_ms=1_000_000, cache_max_bytes=1)
    one.run()
    bench.clock.advance(10)
    one.loop.poll_once()
    assert one.session.task(0).stores.buffer.size_bytes == 0
    assert one.session.counters.commits["committed"] == 1


def test_cancelled_schedule_neither_fires_nor_commits(drive: Drive) -> None:
    probe = Probe(("a", 10, STREAM, None), ("w", 100, WALL, None))
    driver = drive(probe.app)
    for handle in probe.handles.values():
        handle.cancel()
    pipe(driver, 50)
    driver.advance_wall_clock(1_000)
    assert (probe.fired, commits(driver)) == ([], 0)


def test_timers_do_not_commit_at_once_either(bench: Bench) -> None:
    create(bench, 1, "in")
    fired: list[int] = []

    class Timed(sf.Processor):
        stores = ()

        def init(self, context: sf.Context) -> None:
            self.context = context

        def process(self, record: sf.Record) -> None:
            for step in range(100):
                self.context.timer(record.key, self.context.wall_clock_ms + 10 * step, sf.PROCESSING_TIME)

        def on_timer(self, timer: sf.Timer) -> None:
            fired.append(timer.time)

    one = Running(bench, lambda app: app.source("in", key=TEXT, value=JSON)(Timed), commit_interval_ms=60_000)
    write(bench, "in", ("a", "1", 25))
    one.run()
    for _ in range(100):
        bench.clock.advance(10)
        one.run()
    assert (len(fired), one.session.counters.commits["committed"]) == (100, 0)


# --- failure and restart ---


@pytest.mark.parametrize("kind", [STREAM, WALL])
@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_exception_of_a_callback_fails_the_task(drive: Drive, kind: Any, on_error: str) -> None:
    probe = Probe(("a", 100, kind, None), on_error=on_error)
    driver = drive(probe.app)

    def fail(context: sf.Context, now_ms: int) -> None:
        raise ValueError("a callback fails")

    probe.on["a"] = fail

    def provoke() -> None:
        pipe(driver, 25)
        driver.advance_wall_clock(100)

    with pytest.raises(ValueError, match="a callback fails"):
        provoke()


def test_task_whose_callback_failed_is_opened_again_and_loses_what_it_wrote(bench: Bench) -> None:
    create(bench, 1, "in", "out")
    write(bench, "in", ("a", "1", 25))
    probe = Probe(("a", 10, STREAM, None))
    failures = [1]

    def fail_once(context: sf.Context, now_ms: int) -> None:
        context.store("kv").put(f"try {len(failures)}", 1)
        if failures:
            failures.pop()
            raise ValueError("a callback fails")

    probe.on["a"] = fail_once

    def make(app: sf.App) -> None:
        app.source("in", key=TEXT, value=JSON)(probe.processor())

    one = Running(
        bench, make, stores=[sf.KeyValueStore("kv", TEXT, INT)], restart=sf.FixedDelay(attempts=1, delay_ms=100)
    )
    one.run()
    bench.clock.advance(100)
    one.run()
    bench.settle(one.session)
    one.commit()
    assert one.rows("kv") == {"try 0": 1}
    assert probe.times == [25, 25]


def test_schedules_are_made_anew_after_a_restart_and_stream_time_goes_on(drive: Drive) -> None:
    probe = Probe(("a", 10, STREAM, None), ("w", 100, WALL, None))
    driver = drive(probe.app)
    pipe(driver, 25)
    driver.advance_wall_clock(60)
    driver.restart()
    assert probe.contexts[1].stream_time_ms == 25
    driver.advance_wall_clock(99)
    assert probe.fired == [("a", 25)]  # no record yet; the wall clock counts from the restart
    driver.advance_wall_clock(1)
    pipe(driver, 3)
    assert probe.fired == [("a", 25), ("w", 160), ("a", 25)]


# --- refused scheduling ---


@pytest.mark.parametrize(
    ("interval", "kind", "callback", "start", "told"),
    [
        (0, STREAM, print, None, "interval_ms 0"),
        (-1, WALL, print, None, "interval_ms -1"),
        (1.5, STREAM, print, None, "interval_ms 1.5"),
        (True, STREAM, print, None, "interval_ms True"),
        (10, "stream_time", print, None, "take STREAM_TIME or WALL_CLOCK_TIME"),
        (10, sf.EVENT_TIME, print, None, "take STREAM_TIME or WALL_CLOCK_TIME"),
        (10, STREAM, None, None, "callback None cannot be called"),
        (10, STREAM, print, -1, "start_ms -1"),
    ],
)
def test_bad_schedule_is_refused_and_changes_nothing(
    drive: Drive, interval: Any, kind: Any, callback: Any, start: Any, told: str
) -> None:
    probe = Probe()
    refused: list[str] = []

    def attempt(context: sf.Context, record: sf.Record) -> None:
        with pytest.raises(sf.InvalidRequest) as error:
            context.schedule(interval, kind, callback, start)
        refused.append(str(error.value))

    probe.on_record = attempt
    driver = drive(probe.app)
    pipe(driver, 100)
    driver.advance_wall_clock(1_000)
    assert told in refused[0]


def test_shortest_interval_is_one_millisecond(drive: Drive) -> None:
    probe = Probe(("a", 1, STREAM, None))
    pipe(drive(probe.app), 5, 5, 6)
    assert probe.times == [5, 6]


def refuses(context: sf.Context, told: str) -> None:
    with pytest.raises(sf.InvalidRequest, match=told):
        context.schedule(10, STREAM, print)


def test_schedule_between_records_is_refused(drive: Drive) -> None:
    probe = Probe()
    driver = drive(probe.app)
    pipe(driver, 5)
    refuses(probe.contexts[0], "cannot schedule a punctuation outside a processor: do it in init, process")


def test_schedule_after_close_is_refused(drive: Drive) -> None:
    probe = Probe()
    driver = drive(probe.app)
    driver.restart()
    refuses(probe.contexts[0], "outside a processor: 'Probing' of task 0_0 does not run any more")


def test_schedule_from_another_thread_is_refused(drive: Drive) -> None:
    probe = Probe()
    told: list[str] = []

    def elsewhere(context: sf.Context) -> None:
        try:
            context.schedule(10, STREAM, print)
        except sf.InvalidRequest as error:
            told.append(str(error))

    def process(context: sf.Context, record: sf.Record) -> None:
        thread = threading.Thread(target=elsewhere, args=[context])
        thread.start()
        thread.join()

    probe.on_record = process
    pipe(drive(probe.app), 5)
    assert "in the thread that runs task 0_0" in told[0]


def test_schedule_on_a_standby_is_refused(bench: Bench) -> None:
    create(bench, 1, "in")
    probe = Probe(("a", 10, STREAM, None))

    def make(app: sf.App) -> None:
        app.source("in", key=TEXT, value=JSON)(probe.processor())

    stores = [sf.KeyValueStore("kv", TEXT, INT)]
    one = Running(bench, make, stores=stores, standby_replicas=1)
    other = Running(bench, make, "b", settle=False, stores=stores, standby_replicas=1)
    bench.settle(one.session, other.session)
    (task,) = other.session.all_tasks().values()
    assert task.role == "standby"
    settings = other.app.runner_settings(other.assembled, bench.clock)
    runner = TaskRunner(task, other.assembled.topology.groups[0], settings, {TopicPartition("in", 0): 0})
    with pytest.raises(sf.InvalidRequest, match="'Probing' cannot schedule a punctuation: task 0_0 is a standby here"):
        runner.start()
