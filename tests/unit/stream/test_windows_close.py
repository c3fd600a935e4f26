"""Windows that close as time passes: by the task's watermark, by silence, with late records, over restarts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import standfast as sf
from standfast.stream.runtime.commit_pace import CommitPace
from support.apps import Drive, Running, create, write, written
from support.event_time import status
from support.own_sources import Numbers, until
from support.sessions import Bench

TEXT, JSON = sf.serde.string, sf.serde.json
STORE = "counts"
TEN = sf.TumblingWindows(10)
WINDOWS: dict[str, Any] = {
    "tumbling": sf.TumblingWindows(10),
    "hopping": sf.HoppingWindows(10, 5),
    "sliding": sf.SlidingWindows(10),
    "session": sf.SessionWindows(10),
}
Marks = Callable[[Any, int], int | None]


def carried(value: Any, _timestamp_ms: int) -> int | None:
    """Records with {"mark": w} carry the watermark w."""
    mark = value.get("mark") if isinstance(value, dict) else None
    return None if mark is None else int(mark)


def store_of(windows: Any, name: str = STORE) -> Any:
    if isinstance(windows, sf.SessionWindows):
        return sf.SessionStore(name, TEXT, JSON, retention_ms=windows.retention_safe_ms)
    return sf.WindowStore(name, TEXT, JSON, window_size_ms=windows.size_ms, retention_ms=windows.retention_safe_ms)


def declare(app: sf.App, windows: Any, *, through: bool = False, marks: bool = True, **options: Any) -> None:
    """Records of `in` with data are counted; those that only carry a watermark are filtered out before."""
    settings: dict[str, Any] = {"watermarks": sf.Punctuated(carried)} if marks else {}
    stream = app.stream("in", key=TEXT, value=JSON, **settings).filter(
        lambda _key, value: value != {} and "mark" not in value
    )
    if through:
        stream = stream.repartition("x")
    options.setdefault("emit", sf.ON_WINDOW_CLOSE)
    stream.group_by_key().window(windows).count(STORE, **options).to("out")


def application(windows: Any = TEN, **options: Any) -> sf.App:
    app = sf.App("app", stores=[store_of(windows)], cache_max_bytes=10 << 20)
    declare(app, windows, **options)
    return app


def data(driver: sf.testing.Driver, *stamps: int, key: str = "a", partition: int = 0) -> None:
    for stamp in stamps:
        driver.pipe("in", key, {"n": 1}, stamp, partition=partition)


def mark(driver: sf.testing.Driver, watermark_ms: int, partition: int = 0) -> None:
    """A watermark that comes with a record that no window sees; its own time is late by no watermark."""
    driver.pipe("in", "m", {"mark": watermark_ms}, 10**6, partition=partition)


def results(driver: sf.testing.Driver) -> list[tuple[str, int, int, Any]]:
    return [(one.key.key, one.key.start, one.key.end, one.value) for one in driver.read("out")]


# --- by the watermark ---


@pytest.mark.parametrize(
    ("kind", "closing", "window"),
    [("tumbling", 10, (0, 10)), ("hopping", 10, (0, 10)), ("sliding", 11, (0, 10)), ("session", 19, (8, 8))],
)
def test_watermark_closes_the_window_without_a_further_record(
    drive: Drive, kind: str, closing: int, window: tuple[int, int]
) -> None:
    driver = drive(application(WINDOWS[kind]))
    data(driver, 8)
    mark(driver, closing - 1)
    assert results(driver) == []
    mark(driver, closing)
    assert results(driver) == [("a", *window, 1)]


def test_grace_counts_from_the_watermark_too(drive: Drive) -> None:
    driver = drive(application(sf.TumblingWindows(10, grace_ms=5)))
    data(driver, 3)
    mark(driver, 14)
    assert results(driver) == []
    mark(driver, 15)
    assert results(driver) == [("a", 0, 10, 1)]


def test_observed_time_closes_where_it_is_ahead_of_the_watermark(drive: Drive) -> None:
    driver = drive(application())
    data(driver, 3, 12)
    assert results(driver) == [("a", 0, 10, 1)]
    mark(driver, 11)
    assert results(driver) == []


def test_record_behind_the_close_time_is_dropped_and_counted_though_observed_time_is_behind(drive: Drive) -> None:
    # Behind a repartition no watermark takes a late record away before it reaches the windows.
    app = sf.App("app", stores=[store_of(TEN)])
    late: list[int] = []

    class Older(sf.Processor):
        """Forwards each record 20 ms older."""

        stores = ()

        def init(self, context: sf.Context) -> None:
            self.context = context

        def process(self, record: sf.Record) -> None:
            late.append(record.timestamp)
            self.context.forward(record._replace(timestamp=record.timestamp - 20))

    stream = app.stream("in", key=TEXT, value=JSON, watermarks=sf.Punctuated(carried))
    stream.process(Older, key=TEXT, value=JSON).group_by_key().window(TEN).count(STORE, emit=sf.ON_WINDOW_CLOSE).to(
        "out"
    )
    driver = drive(app)
    driver.pipe("in", "a", {"mark": 10}, 25)
    driver.pipe("in", "b", {"n": 1}, 29)
    assert results(driver) == [("a", 0, 10, 1)]
    assert app.drops.counts == {"late_window": 1}


def test_updates_use_the_close_time_for_the_drop_as_well(drive: Drive) -> None:
    app = application(sf.TumblingWindows(10), emit=sf.ON_WINDOW_UPDATE, through=True)
    driver = drive(app, partitions=2)
    data(driver, 3, key="a")
    for partition in (0, 1):
        mark(driver, 20, partition=partition)
    driver.commit()
    results(driver)
    runner = driver._runners
    assert all(one.task.progress["close:counts"] == 20 for name, one in runner.items() if str(name).startswith("1_"))


def test_hopping_record_goes_into_the_windows_that_are_still_open(drive: Drive) -> None:
    app = application(sf.HoppingWindows(10, 5), marks=True)
    driver = drive(app)
    mark(driver, 10)
    data(driver, 11)
    assert app.drops.counts == {}
    # 5..15 and 10..20 are open at 10; at 15 the first of them is closed.
    mark(driver, 15)
    assert results(driver) == [("a", 5, 15, 1)]
    mark(driver, 20)
    assert results(driver) == [("a", 10, 20, 1)]


def test_windows_behind_a_repartition_close_by_the_smallest_upstream_watermark(drive: Drive) -> None:
    driver = drive(application(through=True), partitions=2)
    data(driver, 3)
    mark(driver, 40, partition=0)
    assert results(driver) == []
    held = {str(name): one.status().watermark_waits_for for name, one in driver._runners.items()}
    assert held["1_0"] == "app-x-repartition/0@0_1"
    mark(driver, 10, partition=1)
    assert results(driver) == [("a", 0, 10, 1)]


def test_window_that_a_window_feeds_takes_its_result_before_it_closes_itself(drive: Drive) -> None:
    app = sf.App("app", stores=[store_of(TEN), store_of(TEN, "second")])
    stream = app.stream("in", key=TEXT, value=JSON, watermarks=sf.Punctuated(carried))
    data_only = stream.filter(lambda _key, value: "mark" not in value)
    first = data_only.group_by_key().window(TEN).count(STORE, emit=sf.ON_WINDOW_CLOSE)
    (
        first.to_stream()
        .map_values(lambda value: value, value=JSON)
        .process(Plain, key=TEXT, value=JSON)
        .group_by_key()
        .window(TEN)
        .count("second", emit=sf.ON_WINDOW_CLOSE)
        .to("out")
    )
    driver = drive(app)
    data(driver, 3, 4)
    mark(driver, 10)
    assert results(driver) == [("a", 0, 10, 1)]
    assert app.drops.counts == {}


class Plain(sf.Processor):
    """Forwards windowed results under their plain key."""

    stores = ()

    def init(self, context: sf.Context) -> None:
        self.context = context

    def process(self, record: sf.Record) -> None:
        self.context.forward(record._replace(key=record.key.key))


def test_results_that_a_cache_holds_back_go_on_before_the_watermark(drive: Drive) -> None:
    app = sf.App("app", stores=[sf.KeyValueStore("totals", TEXT, JSON), store_of(TEN)], cache_max_bytes=10 << 20)
    stream = app.stream("in", key=TEXT, value=JSON, watermarks=sf.Punctuated(carried))
    totals = stream.filter(lambda _key, value: "mark" not in value).group_by_key().count("totals")
    (
        totals.to_stream()
        .group_by_key()
        .window(TEN)
        .reduce(lambda one, other: other, STORE, emit=sf.ON_WINDOW_CLOSE)
        .to("out")
    )
    driver = drive(app)
    data(driver, 3, 4)
    mark(driver, 10)
    assert results(driver) == [("a", 0, 10, 2)]
    assert app.drops.counts == {}


def test_close_time_goes_on_after_a_restart_and_a_window_is_given_once(drive: Drive) -> None:
    app = application(through=True)
    driver = drive(app)
    data(driver, 3)
    mark(driver, 10)
    assert results(driver) == [("a", 0, 10, 1)]
    driver.restart()
    mark(driver, 11)
    data(driver, 12)
    mark(driver, 30)
    assert results(driver) == [("a", 10, 20, 1)]
    assert app.drops.counts == {}


# --- a take-over without the watermarks ---


def test_take_over_without_local_state_begins_with_the_close_time(bench: Bench) -> None:
    create(bench, 1, "in", "out")

    def make(app: sf.App) -> None:
        declare(app, TEN, close_after_ms=1_000, marks=False)

    stores = [store_of(TEN)]
    write(bench, "in", ("a", '{"n": 1}', 3))
    one = Running(bench, make, stores=stores, guarantee="exactly_once")
    one.run()
    bench.clock.advance(1_000)
    one.run()
    one.commit()
    assert len(written(bench, "out")) == 1
    one.close()
    write(bench, "in", ("a", '{"n": 1}', 9), ("a", '{"n": 1}', 10))
    other = Running(bench, make, "b", stores=stores, guarantee="exactly_once")
    other.run()
    assert other.app.drops.counts == {"late_window": 1}
    bench.clock.advance(1_000)
    other.run()
    other.commit()
    assert [key for key, _, _ in text_of_windows(bench)] == [0, 10]


def test_close_time_of_a_watermark_holds_where_no_watermark_is_known_any_more(bench: Bench) -> None:
    create(bench, 1, "in", "out")
    stores = [store_of(TEN)]
    write(bench, "in", ("a", '{"n": 1}', 3), ("m", '{"mark": 10}', 3), ("m", '{"mark": 40}', 30))
    one = Running(bench, lambda app: declare(app, TEN), stores=stores, watermark_interval_ms=0)
    one.run()
    one.commit()
    one.close()
    # By the observed time of 3 the window of 25 would be open; by the watermark of the version before it is closed.
    write(bench, "in", ("a", '{"n": 1}', 25), ("a", '{"n": 1}', 45), ("a", '{"n": 1}', 60))
    other = Running(bench, lambda app: declare(app, TEN, marks=False), "b", stores=stores)
    other.run()
    other.commit()
    assert other.app.drops.counts == {"late_window": 1}
    assert [start for start, _, _ in text_of_windows(bench)] == [0, 40]


def text_of_windows(bench: Bench) -> list[tuple[int, int, int]]:
    """(start, value, timestamp) of the results."""
    return [(int.from_bytes(one.key[-8:], "big"), int(one.value), one.timestamp) for one in written(bench, "out")]  # type: ignore[index, arg-type]


def test_results_of_a_crash_before_the_commit_are_given_once(bench: Bench) -> None:
    create(bench, 1, "in", "out")

    def make(app: sf.App) -> None:
        declare(app, TEN, close_after_ms=1_000, marks=False)

    stores = [store_of(TEN)]
    write(bench, "in", ("a", '{"n": 1}', 3))
    one = Running(bench, make, stores=stores, guarantee="exactly_once")
    one.run()
    one.commit()
    bench.clock.advance(1_000)
    one.loop._pace = CommitPace("exactly_once", 10**9)
    for running in one.loop._running.values():
        running.next_commit_ms = 10**12 + bench.clock.now_ms
    one.run()
    assert one.runner().task.outputs  # given, and not committed
    one.close()
    write(bench, "in", ("a", '{"n": 1}', 4))
    other = Running(bench, make, "b", stores=stores, guarantee="exactly_once")
    other.run()
    bench.clock.advance(1_000)
    other.run()
    other.commit()
    assert text_of_windows(bench) == [(0, 2, 4)]


# --- by silence ---


def silent(windows: Any = TEN, **options: Any) -> sf.App:
    return application(windows, marks=False, close_after_ms=1_000, **options)


@pytest.mark.parametrize("kind", sorted(WINDOWS))
def test_silence_closes_every_open_window_once(drive: Drive, kind: str) -> None:
    driver = drive(silent(WINDOWS[kind]))
    data(driver, 8, 9)
    driver.advance_wall_clock(999)
    assert results(driver) == [] or kind == "sliding"
    driver.advance_wall_clock(1)
    given = results(driver)
    assert given
    driver.advance_wall_clock(5_000)
    data(driver, 10**6)
    assert results(driver) == []
    assert len({one[:3] for one in given}) == len(given)


def test_close_time_after_silence_is_the_end_and_the_grace_of_the_last_open_window(drive: Drive) -> None:
    app = silent(sf.TumblingWindows(10, grace_ms=5))
    driver = drive(app)
    data(driver, 3, 14)
    driver.advance_wall_clock(1_000)
    assert results(driver) == [("a", 0, 10, 1), ("a", 10, 20, 1)]
    data(driver, 19)
    assert app.drops.counts == {"late_window": 1}
    data(driver, 20)
    driver.advance_wall_clock(1_000)
    assert results(driver) == [("a", 20, 30, 1)]


def test_silence_closes_no_millisecond_beyond_the_last_open_window(drive: Drive) -> None:
    app = silent(sf.SlidingWindows(10))
    driver = drive(app)
    data(driver, 14)
    driver.advance_wall_clock(1_000)
    assert results(driver) == [("a", 4, 14, 1)]
    data(driver, 15)  # in the window 5..15, the first that is open
    assert app.drops.counts == {}
    driver.advance_wall_clock(1_000)
    assert ("a", 5, 15, 2) in results(driver)


def test_record_begins_the_count_of_silence_again(drive: Drive) -> None:
    driver = drive(silent())
    data(driver, 3)
    driver.advance_wall_clock(600)
    data(driver, 4)
    driver.advance_wall_clock(600)
    assert results(driver) == []
    driver.advance_wall_clock(400)
    assert results(driver) == [("a", 0, 10, 2)]


def test_record_that_the_step_does_not_get_ends_no_silence(drive: Drive) -> None:
    driver = drive(silent())
    data(driver, 3)
    driver.advance_wall_clock(600)
    driver.pipe("in", "a", {}, 50)
    driver.advance_wall_clock(400)
    assert results(driver) == [("a", 0, 10, 1)]


def test_windows_of_an_earlier_run_close_by_silence_as_well(drive: Drive) -> None:
    driver = drive(silent())
    data(driver, 3)
    driver.restart()
    driver.advance_wall_clock(999)
    assert results(driver) == []
    driver.advance_wall_clock(1)
    assert results(driver) == [("a", 0, 10, 1)]


def test_window_that_closes_beyond_the_largest_time_is_not_closed_by_silence(drive: Drive) -> None:
    app = silent(sf.TumblingWindows(2**63 - 10, grace_ms=50))
    driver = drive(app)
    data(driver, 3)
    driver.advance_wall_clock(1_000)
    assert results(driver) == []
    data(driver, 4)
    assert app.drops.counts == {}


def silent_run(bench: Bench, **given: Any) -> Running:
    create(bench, 1, "in", "out")
    write(bench, "in", ("a", '{"n": 1}', 3))
    one = Running(
        bench, lambda app: declare(app, TEN, close_after_ms=1_000, marks=False), stores=[store_of(TEN)], **given
    )
    one.run()
    return one


def given_by(one: Running) -> int:
    one.run()
    one.commit()
    return len(written(one.bench, "out"))


def test_time_while_the_application_is_paused_is_no_silence(bench: Bench) -> None:
    one = silent_run(bench)
    one.loop.paused = True
    for _ in range(5):
        one.loop.poll_once()
        bench.clock.advance(1_000)
    write(bench, "in", ("a", '{"n": 1}', 4))
    one.loop.paused = False
    assert given_by(one) == 0
    bench.clock.advance(999)
    assert given_by(one) == 0
    bench.clock.advance(1)
    assert given_by(one) == 1
    assert text_of_windows(bench) == [(0, 2, 4)]


def test_silence_of_a_source_of_ones_own_closes_and_a_pause_is_none(bench: Bench) -> None:
    create(bench, 1, "out")

    def make(app: sf.App) -> None:
        stream = app.stream(Numbers(3), name="numbers", key=TEXT, value=sf.serde.int64)
        stream.group_by_key().window(sf.TumblingWindows(10**6)).count(
            STORE, emit=sf.ON_WINDOW_CLOSE, close_after_ms=1_000
        ).to("out")

    one = Running(bench, make, stores=[store_of(sf.TumblingWindows(10**6))])
    until(lambda: one.loop.records_total >= 3, one.loop.poll_once)
    one.loop.paused = True
    one.loop.poll_once()
    bench.clock.advance(5_000)
    one.loop.paused = False
    assert given_by(one) == 0
    bench.clock.advance(1_000)
    assert given_by(one) == 3


def test_records_that_lie_in_the_log_are_processed_before_silence_closes(bench: Bench) -> None:
    one = silent_run(bench)
    # As after a stop of the process: time has passed, records came, and the first turn has not read them.
    bench.clock.advance(60_000)
    write(bench, "in", ("a", '{"n": 1}', 4))
    one.runner().tick()
    assert one.runner().task.outputs == {}
    one.run()
    bench.clock.advance(1_000)
    assert given_by(one) == 1
    assert text_of_windows(bench) == [(0, 2, 4)]


def test_wall_clock_that_is_set_forwards_or_back_is_no_silence(drive: Drive) -> None:
    driver = drive(silent())
    wall = {"ms": 0}
    driver.clock.wall_ms = lambda: wall["ms"]  # type: ignore[method-assign]
    data(driver, 3)
    for wall["ms"] in (10**12, -(10**12), 5):
        driver.advance_wall_clock(300)
        assert results(driver) == []
    driver.advance_wall_clock(100)
    assert results(driver) == [("a", 0, 10, 1)]


def test_silence_and_watermarks_together_close_by_the_first_of_them(drive: Drive) -> None:
    driver = drive(application(close_after_ms=1_000))
    data(driver, 3)
    mark(driver, 10)
    assert results(driver) == [("a", 0, 10, 1)]
    data(driver, 12)
    driver.advance_wall_clock(1_000)
    assert results(driver) == [("a", 10, 20, 1)]


# --- late records ---


def test_late_topic_takes_records_that_no_open_window_takes(drive: Drive) -> None:
    app = silent(sf.HoppingWindows(10, 5), late="late")
    driver = drive(app)
    data(driver, 12)  # 5..15 and 10..20
    driver.pipe("in", "b", {"n": 7}, 14, headers=(("h", b"1"),))
    driver.advance_wall_clock(1_000)
    results(driver)
    driver.pipe("in", "b", {"n": 8}, 14, headers=(("h", b"1"),))
    assert [(one.key, one.value, one.timestamp, one.headers) for one in driver.read("late")] == [
        ("b", {"n": 8}, 14, (("h", b"1"),))
    ]
    data(driver, 19)  # 15..25 is open, 10..20 is not
    assert driver.read("late") == []
    assert app.drops.counts == {"late_window": 1}


@pytest.mark.parametrize("kind", sorted(WINDOWS))
def test_late_topic_takes_a_record_of_every_kind_of_window(drive: Drive, kind: str) -> None:
    app = silent(WINDOWS[kind], late="late")
    driver = drive(app)
    data(driver, 50)
    driver.advance_wall_clock(1_000)
    data(driver, 20)
    assert [one.timestamp for one in driver.read("late")] == [20]
    assert app.drops.counts == {}


def test_late_record_that_its_serde_cannot_write_is_an_error_with_the_fix(drive: Drive) -> None:
    app = sf.App("app", stores=[store_of(TEN)])
    stream = app.stream("in", key=TEXT, value=JSON).map_values(lambda _value: {1, 2}, value=sf.serde.json)
    stream.group_by_key().window(TEN).count(STORE, late="late").to("out")
    driver = drive(app)
    data(driver, 50)
    with pytest.raises(
        sf.InvalidRequest, match=r"cannot write a late record .* give the step before it the value= serde"
    ):
        data(driver, 3)


# --- wrong settings ---


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"close_after_ms": 0}, "close_after_ms must be a whole number of milliseconds of at least 1, not 0"),
        ({"close_after_ms": True}, "close_after_ms must be a whole number of milliseconds of at least 1, not True"),
        ({"close_after_ms": "1 s"}, "close_after_ms must be a whole number of milliseconds of at least 1, not '1 s'"),
        ({"close_after_ms": 5, "emit": sf.ON_WINDOW_UPDATE}, "it needs emit=ON_WINDOW_CLOSE"),
        ({"late": "a/b"}, "late: "),
        ({"emit": "close"}, "emit must be ON_WINDOW_UPDATE or ON_WINDOW_CLOSE, not 'close'"),
    ],
)
def test_wrong_setting_is_refused_with_the_fix(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(sf.BadConfig) as caught:
        application(**options)
    assert problem in str(caught.value)


def test_unknown_setting_is_refused() -> None:
    with pytest.raises(sf.BadConfig, match="no setting 'close_after': did you mean 'close_after_ms'"):
        application(close_after=5)


def test_late_topic_must_exist_like_any_output(bench: Bench) -> None:
    create(bench, 1, "in", "out")
    with pytest.raises(sf.BadConfig, match=r"output topic .*late"):
        Running(bench, lambda app: declare(app, TEN, late="late"), stores=[store_of(TEN)], settle=False)


def test_driver_commits_each_record_where_asked(drive: Drive) -> None:
    app = sf.App("app", stores=[sf.KeyValueStore("totals", TEXT, JSON)])
    app.stream("in", key=TEXT, value=JSON).group_by_key().count("totals").to("out")
    driver = drive(app, commit_each_record=True)
    data(driver, 1, 2)
    assert [one.value for one in driver.read("out")] == [1, 2]
    assert status(driver).inputs[0].position == 2
    with pytest.raises(sf.InvalidRequest, match="commit_each_record must be True or False"):
        drive(app, commit_each_record=1)
