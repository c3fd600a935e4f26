"""Aggregation by tumbling, hopping and unlimited windows: boundaries, drops, results on update and on close."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from standfast.store import serde
from standfast.store.errors import InvalidRequest
from standfast.store.specs import WindowStore
from standfast.store.types.window import WindowState
from standfast.stream import open_windows
from standfast.stream.app.app import App
from standfast.stream.app.testing import Driver
from standfast.stream.dsl.fluent import Table
from standfast.stream.dsl.grouped import WindowedStream
from standfast.stream.dsl.windowed_aggregate import WindowedAggregate
from standfast.stream.emit import ON_WINDOW_CLOSE, ON_WINDOW_UPDATE, EmitStrategy
from standfast.stream.record import Record
from standfast.stream.topology.processor import Context, Processor
from standfast.stream.windows import TIME_MAX, HoppingWindows, TumblingWindows, UnlimitedWindows
from support.aggregates import STORE, Result, application, counted, driven, drops, listed, results

TEN = TumblingWindows(10, grace_ms=5)


def starts(found: list[Result]) -> list[tuple[Any, ...]]:
    return [(one.key, one.start, one.value) for one in found]


def pipe(driver: Driver, *records: tuple[str | None, int]) -> None:
    for key, stamp in records:
        driver.pipe("in", key, "x", stamp)


def aggregation(driver: Driver) -> Any:
    """The processor under test."""
    (runner,) = driver._runners.values()
    return next(one for one in runner._processors if isinstance(one, WindowedAggregate))


# --- updated windows ---


def test_record_at_the_start_is_in_the_window_and_at_the_end_in_the_next() -> None:
    with driven(TEN, caching=False) as driver:
        pipe(driver, ("a", 0), ("a", 9), ("a", 10), ("a", 19), ("a", 20))
        assert starts(results(driver)) == [("a", 0, 1), ("a", 0, 2), ("a", 10, 1), ("a", 10, 2), ("a", 20, 1)]


def test_hopping_record_updates_all_its_windows_by_start() -> None:
    with driven(HoppingWindows(10, 4, grace_ms=100), caching=False) as driver:
        pipe(driver, ("a", 9), ("a", 3))
        assert [(one.start, one.end, one.value) for one in results(driver)] == [
            (0, 10, 1),
            (4, 14, 1),
            (8, 18, 1),
            (0, 10, 2),
        ]


@pytest.mark.parametrize(("observed", "open_"), [(14, True), (15, False), (16, False)])
def test_window_is_updated_only_while_its_end_is_above_observed_less_grace(observed: int, open_: bool) -> None:
    with driven(TEN, caching=False) as driver:
        pipe(driver, ("b", observed), ("a", 9))
        assert [one.key for one in results(driver)] == ["b", *["a"] * open_]
        assert drops(driver) == ({} if open_ else {"late_window": 1})


def test_drop_is_counted_for_each_window_that_is_not_updated() -> None:
    with driven(HoppingWindows(10, 2, grace_ms=0), caching=False) as driver:
        pipe(driver, ("b", 15))
        results(driver)
        pipe(driver, ("a", 9))  # windows 0, 2, 4 are closed, 6 and 8 are open
        assert [one.start for one in results(driver)] == [6, 8]
        assert drops(driver) == {"late_window": 3}


def test_observed_time_is_of_all_keys_and_late_records_do_not_move_it_back() -> None:
    with driven(TEN, caching=False) as driver:
        pipe(driver, ("a", 24), ("b", 3), ("b", 15), ("b", 9))
        assert starts(results(driver)) == [("a", 20, 1), ("b", 10, 1)]
        assert drops(driver) == {"late_window": 2}


def test_record_without_a_key_does_not_even_move_the_observed_time() -> None:
    with driven(TEN, caching=False) as driver:
        pipe(driver, (None, 1_000), ("a", 3))
        assert starts(results(driver)) == [("a", 0, 1)]
        assert drops(driver) == {"null_key": 1}


def test_record_without_a_value_counts_but_is_not_reduced() -> None:
    def joined(grouped: WindowedStream, emit: EmitStrategy) -> Table:
        return grouped.reduce(lambda one, other: one + other, STORE, emit=emit)

    with driven(TEN, counted, caching=False) as driver:
        driver.pipe("in", "a", None, 1)
        assert starts(results(driver)) == [("a", 0, 1)]
    with driven(TEN, listed, caching=False) as driver:
        driver.pipe("in", "a", None, 1)
        assert starts(results(driver)) == [("a", 0, [None])]
    with driven(TEN, joined, caching=False) as driver:
        driver.pipe("in", "a", None, 1_000)  # moves no clock
        driver.pipe("in", "a", "x", 1)
        driver.pipe("in", "a", "y", 2)
        assert starts(results(driver)) == [("a", 0, "x"), ("a", 0, "xy")]
        assert drops(driver) == {"null_value": 1}


def test_timestamp_of_a_result_is_the_largest_of_its_inputs() -> None:
    with driven(TEN, caching=False) as driver:
        pipe(driver, ("a", 4), ("a", 8), ("a", 6))
        assert [one.timestamp for one in results(driver)] == [4, 8, 8]


def test_timestamp_that_is_no_time_changes_nothing() -> None:
    # The source forwards only valid ones; the aggregation checks again.
    with driven(TEN, caching=False) as driver:
        for stamp in (-1, TIME_MAX + 1):
            with pytest.raises(InvalidRequest, match="timestamp"):
                aggregation(driver).process(Record("a", "x", stamp))
        pipe(driver, ("a", 1))
        assert starts(results(driver)) == [("a", 0, 1)]


def test_windows_of_keys_that_begin_alike_stay_apart() -> None:
    with driven(TEN, listed, emit=ON_WINDOW_CLOSE) as driver:
        for number, key in enumerate(["a", "a\0", "a\0\0", "", "a\0\0\0\0\0\0\0\0"]):
            driver.pipe("in", key, number, 1)
        pipe(driver, ("z", 100))
        assert [(one.key, one.value) for one in results(driver)] == [
            ("", [3]),
            ("a", [0]),
            ("a\0", [1]),
            ("a\0\0", [2]),
            ("a\0\0\0\0\0\0\0\0", [4]),
        ]


# --- results on update ---


def test_cached_updates_come_with_the_flush_with_the_value_of_the_last_one() -> None:
    with driven(TEN, caching=True) as driver:
        pipe(driver, ("a", 1), ("b", 2), ("a", 3), ("a", 12))
        assert results(driver) == []
        driver.commit()
        assert results(driver) == [
            Result("b", 0, 10, 1, None, 2),
            Result("a", 0, 10, 2, None, 3),
            Result("a", 10, 20, 1, None, 12),
        ]
        pipe(driver, ("a", 2), ("a", 4))
        driver.commit()
        assert results(driver) == [Result("a", 0, 10, 4, 2, 4)]


def test_full_cache_lets_the_updates_go() -> None:
    app = App(
        "agg-app",
        stores=[WindowStore(STORE, serde.string, serde.int64, window_size_ms=10, retention_ms=15)],
        cache_max_bytes=64 << 10,
    )
    app.stream("in", key=serde.string, value=serde.json).group_by_key().window(TEN).count(STORE).to("out")
    with Driver(app) as driver:
        for number in range(300):
            driver.pipe("in", f"key {number}", "x", 1)
        assert 100 < len(driver.read("out")) < 300


def test_window_that_expires_before_the_flush_is_given_all_the_same() -> None:
    with driven(TumblingWindows(60_000), caching=True) as driver:
        pipe(driver, ("a", 1), ("a", 600_000_000))
        driver.commit()
        assert starts(results(driver)) == [("a", 0, 1), ("a", 600_000_000, 1)]


def test_none_removes_the_window() -> None:
    with driven(TEN, listed, caching=False) as driver:
        for value in ("x", "none", "y"):
            driver.pipe("in", "a", value, 1)
        assert [(one.value, one.old) for one in results(driver)] == [(["x"], None), (None, ["x"]), (["y"], None)]


def test_unlimited_window_has_one_result_per_key_from_its_start_on() -> None:
    with driven(UnlimitedWindows(100), caching=False) as driver:
        pipe(driver, ("a", 99), ("a", 100), ("a", 10**15), ("a", 101))
        assert results(driver) == [
            Result("a", 100, TIME_MAX, 1, None, 100),
            Result("a", 100, TIME_MAX, 2, 1, 10**15),
            Result("a", 100, TIME_MAX, 3, 2, 10**15),
        ]
        driver.restart()
        pipe(driver, ("a", 102))
        assert [one.value for one in results(driver)] == [4]
        assert drops(driver) == {}


# --- results on close ---


@pytest.mark.parametrize("caching", [False, True])
def test_window_is_given_once_when_it_closes_and_not_before(caching: bool) -> None:
    with driven(TEN, emit=ON_WINDOW_CLOSE, caching=caching) as driver:
        pipe(driver, ("a", 1), ("a", 2), ("b", 14))
        driver.commit()
        assert results(driver) == []
        pipe(driver, ("b", 15))
        assert results(driver) == [Result("a", 0, 10, 2, None, 2)]
        pipe(driver, ("b", 16), ("a", 3), ("b", 24))
        driver.commit()
        assert results(driver) == []
        assert drops(driver) == {"late_window": 1}
        pipe(driver, ("b", 25))
        assert results(driver) == [Result("b", 10, 20, 3, None, 16)]


def test_windows_are_given_by_end_and_then_by_key_bytes() -> None:
    with driven(HoppingWindows(10, 5), emit=ON_WINDOW_CLOSE) as driver:
        pipe(driver, ("b", 3), ("a", 4), ("B", 6), ("a", 11), ("z", 1_000))
        assert [(one.key, one.start) for one in results(driver)] == [
            ("B", 0),
            ("a", 0),
            ("b", 0),
            ("B", 5),
            ("a", 5),
            ("a", 10),
        ]


def test_large_gap_loses_no_window() -> None:
    # The put of the record after the gap moves the store's own clock past its retention.
    with driven(TEN, emit=ON_WINDOW_CLOSE) as driver:
        pipe(driver, ("a", 1), ("b", 11), ("c", 10**12))
        assert starts(results(driver)) == [("a", 0, 1), ("b", 10, 1)]
        pipe(driver, ("a", 2 * 10**12))
        assert starts(results(driver)) == [("c", 10**12, 1)]


@pytest.mark.parametrize("gap", [False, True])
def test_restart_gives_no_window_twice_and_loses_none(gap: bool) -> None:
    with driven(TEN, emit=ON_WINDOW_CLOSE) as driver:
        pipe(driver, ("a", 1), ("b", 12), ("c", 15), ("d", 23))
        assert starts(results(driver)) == [("a", 0, 1)]
        driver.restart()
        assert results(driver) == []
        pipe(driver, ("e", 10**12 if gap else 25))
        assert starts(results(driver))[:2] == [("b", 10, 1), ("c", 10, 1)]
        driver.restart()
        pipe(driver, ("f", 10**13))
        assert [one.key for one in results(driver)] == (["e"] if gap else ["d", "e"])


def test_restart_keeps_the_observed_time() -> None:
    with driven(TEN, caching=False) as driver:
        pipe(driver, ("a", 25))
        driver.restart()
        results(driver)
        pipe(driver, ("b", 9), ("b", 10))
        assert starts(results(driver)) == []
        assert drops(driver) == {"late_window": 2}


def test_task_that_lost_its_directory_gives_what_is_left_and_nothing_twice() -> None:
    with driven(TEN, emit=ON_WINDOW_CLOSE) as driver:
        pipe(driver, ("a", 1), ("b", 12), ("c", 15))
        assert starts(results(driver)) == [("a", 0, 1)]
        driver.commit()
        driver._close()
        shutil.rmtree(driver._folder / "state")
        driver._open()
        pipe(driver, ("d", 5), ("d", 30))
        assert starts(results(driver)) == [("b", 10, 1), ("c", 10, 1)]
        assert drops(driver) == {"late_window": 1}


def test_longer_grace_does_not_give_a_window_again_nor_change_it() -> None:
    app = application(TEN, emit=ON_WINDOW_CLOSE, retention_ms=1_000)
    with Driver(app) as driver:
        pipe(driver, ("a", 1), ("a", 15))
        assert starts(results(driver)) == [("a", 0, 1)]
        processor = aggregation(driver)
        processor.windows, processor.delay_ms = TumblingWindows(10, grace_ms=100), 100
        pipe(driver, ("a", 2), ("b", 3), ("c", 200))
        assert starts(results(driver)) == [("a", 10, 1)]
        assert driver.store(STORE).fetch("a", 0) == 1
        assert drops(driver) == {"late_window": 2}  # of a given window, and of one that would never be given


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_more_open_windows_than_memory_may_know_are_found_in_the_store(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_windows, "LIMIT_ENTRIES", limit)
    with driven(TEN, emit=ON_WINDOW_CLOSE, engine="memory") as driver:
        expected = sorted((stamp // 10 * 10, f"k{number % 5}") for number, stamp in enumerate(range(0, 15, 2)))
        for number, stamp in enumerate(range(0, 15, 2)):
            driver.pipe("in", f"k{number % 5}", "x", stamp)
        driver.pipe("in", "z", "x", 10**9)
        assert [(one.start, one.key) for one in results(driver)] == sorted(set(expected))


def test_no_scan_is_made_for_windows_that_memory_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    with driven(TEN, emit=ON_WINDOW_CLOSE, engine="memory") as driver:
        scans = []

        def rows_from(_: object, start: int) -> Iterator[Any]:
            scans.append(start)
            return iter(())

        monkeypatch.setattr(WindowState, "rows_from", rows_from)
        pipe(driver, *[("a", stamp) for stamp in range(0, 200, 3)])
        assert scans == []
        assert len(results(driver)) == 19


@pytest.mark.parametrize("emit", [ON_WINDOW_UPDATE, ON_WINDOW_CLOSE])
def test_record_that_fails_and_is_skipped_leaves_no_trace(emit: EmitStrategy) -> None:
    records = [("a", 1), ("b", 9), ("a", 14), ("b", 23), ("c", 42), ("a", 36), ("a", 90)]
    outputs = []
    for bad in (False, True):
        with driven(HoppingWindows(10, 5, 3), listed, emit=emit, on_error="skip") as driver:
            for key, stamp in records:
                driver.pipe("in", key, stamp, stamp)
                if bad:
                    for later in (0, 1, 7, 30, 1_000):
                        driver.pipe("in", "a", "bad", stamp + later)
            if bad:
                assert drops(driver)["process"] == 5 * len(records)
            driver.commit()
            outputs.append((results(driver), list(driver.store(STORE).all()), drops(driver).get("late_window", 0)))
    assert outputs[0] == outputs[1]


def test_closing_more_windows_than_the_buffer_has_room_for_is_one_record_like_any_other() -> None:
    with driven(TEN, emit=ON_WINDOW_CLOSE, cache_max_bytes=64 << 10) as driver:
        pipe(driver, *((f"key {number}", 1) for number in range(3_000)), ("closes", 100))
        assert len(results(driver)) == 3_000


@pytest.mark.parametrize("caching", [True, False])
def test_removal_has_the_time_of_its_record_after_a_cache_and_the_largest_without(caching: bool) -> None:
    with driven(TumblingWindows(100), listed, caching=caching) as driver:
        driver.pipe("in", "a", "x", 10)
        driver.commit()
        driver.pipe("in", "a", "none", 3)
        driver.commit()
        assert results(driver) == [
            Result("a", 0, 100, ["x"], None, 10),
            Result("a", 0, 100, None, ["x"], 3 if caching else 10),
        ]


class PutAhead(Processor):
    def init(self, context: Context) -> None:
        self.state = context.store(STORE)

    def process(self, record: Record) -> None:
        self.state.put(record.key, 1, record.timestamp)


@pytest.mark.parametrize("heard", [True, False])
def test_window_is_late_once_another_processor_has_moved_the_time_of_its_store(heard: bool) -> None:
    windows = TumblingWindows(10, grace_ms=100_000)
    app = App("agg-app", stores=[WindowStore(STORE, serde.string, serde.json, window_size_ms=10, retention_ms=120_000)])
    table = app.stream("in", key=serde.string, value=serde.json).group_by_key().window(windows).count(STORE)
    if heard:
        table.to_stream().peek(lambda key, value: None)
    app.stream("ahead", key=serde.string, value=serde.json).process(PutAhead, STORE)
    with Driver(app) as driver:
        pipe(driver, ("a", 5))
        driver.pipe("ahead", "b", "x", 10**7)
        pipe(driver, ("a", 6))
        assert drops(driver) == {"late_window": 1}
        driver.commit()
        assert [(key.key, key.start, value) for key, value in driver.store(STORE).all()] == [("b", 10**7, 1)]
