"""Aggregation by sliding windows."""

from __future__ import annotations

from typing import Any

import pytest

from standfast.stream.emit import ON_WINDOW_CLOSE, ON_WINDOW_UPDATE, EmitStrategy
from standfast.stream.windows import SlidingWindows
from support.aggregates import STORE, Result, counted, driven, drops, listed, results

TEN = SlidingWindows(10, grace_ms=50)


def test_record_makes_the_window_left_of_it_and_completes_the_one_right_of_the_record_before() -> None:
    with driven(TEN, listed, caching=False) as driver:
        driver.pipe("in", "a", 1, 20)
        driver.pipe("in", "a", 2, 25)
        driver.pipe("in", "b", 3, 26)
        assert results(driver) == [
            Result("a", 10, 20, [1], None, 20),
            Result("a", 15, 25, [1, 2], None, 25),
            Result("a", 21, 31, [2], None, 25),
            Result("b", 16, 26, [3], None, 26),
        ]


def test_out_of_order_record_updates_what_holds_it_and_makes_its_right_window() -> None:
    with driven(TEN, listed, caching=False) as driver:
        driver.pipe("in", "a", 1, 25)
        results(driver)
        driver.pipe("in", "a", 2, 20)
        assert results(driver) == [
            Result("a", 10, 20, [2], None, 20),
            Result("a", 15, 25, [1, 2], [1], 25),
            Result("a", 21, 31, [1], None, 25),
        ]


@pytest.mark.parametrize(("observed", "late"), [(70, 0), (71, 1), (80, 1), (81, 1)])
def test_window_is_updated_up_to_its_end_plus_grace(observed: int, late: int) -> None:
    with driven(TEN, listed, caching=False) as driver:
        driver.pipe("in", "b", 0, observed)
        results(driver)
        driver.pipe("in", "a", 1, 20)  # its left window is 10..20
        assert len(results(driver)) == 1 - late
        assert drops(driver) == ({"late_window": late} if late else {})


def test_records_at_one_time_share_their_windows() -> None:
    with driven(TEN, listed, caching=False) as driver:
        driver.pipe("in", "a", 1, 20)
        driver.pipe("in", "a", 2, 20)
        assert results(driver) == [Result("a", 10, 20, [1], None, 20), Result("a", 10, 20, [1, 2], [1], 20)]


def test_early_records_have_the_window_from_0() -> None:
    with driven(TEN, listed, caching=False) as driver:
        driver.pipe("in", "a", 1, 0)
        driver.pipe("in", "a", 2, 5)
        assert [(one.start, one.value) for one in results(driver)] == [(0, [1]), (0, [1, 2]), (1, [2])]


def test_keys_that_begin_alike_are_not_taken_for_each_other() -> None:
    with driven(TEN, listed, caching=False) as driver:
        for number, key in enumerate(["a", "a\0", "a\0\0\0\0\0\0\0\0\0\0\0", "a"]):
            driver.pipe("in", key, number, 20)
        assert [one.value for one in results(driver)] == [[0], [1], [2], [0, 3]]


def test_final_results_come_in_order_of_end() -> None:
    with driven(SlidingWindows(10, grace_ms=5), listed, emit=ON_WINDOW_CLOSE) as driver:
        for value, (key, stamp) in enumerate([("b", 20), ("a", 20), ("b", 25), ("a", 25), ("a", 25)]):
            driver.pipe("in", key, value, stamp)
        assert results(driver) == []
        driver.pipe("in", "c", 9, 26)  # ends below 21 are closed
        assert [(one.key, one.end, one.value) for one in results(driver)] == [("a", 20, [1]), ("b", 20, [0])]
        driver.restart()
        driver.pipe("in", "c", 9, 37)
        assert [(one.key, one.end) for one in results(driver)] == [
            ("a", 25),
            ("b", 25),
            ("c", 26),
            ("a", 31),
            ("b", 31),
        ]


@pytest.mark.parametrize("emit", [ON_WINDOW_UPDATE, ON_WINDOW_CLOSE])
def test_record_that_fails_and_is_skipped_leaves_no_trace(emit: EmitStrategy) -> None:
    outputs = []
    for bad in (False, True):
        with driven(SlidingWindows(10, grace_ms=4), listed, emit=emit, on_error="skip") as driver:
            for stamp in (1, 9, 7, 14, 15, 30, 28, 60):
                driver.pipe("in", "a", stamp, stamp)
                for later in (0, 1, 5, 100) * bad:
                    driver.pipe("in", "a", "bad", stamp + later)
            driver.commit()
            outputs.append((results(driver), list(driver.store(STORE).all())))
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("build", [counted, listed])
def test_record_without_a_value_is_skipped_and_counted_and_does_not_move_the_observed_time(build: Any) -> None:
    with driven(SlidingWindows(10), build, caching=False) as driver:
        driver.pipe("in", "a", None, 500)
        driver.pipe("in", "a", 1, 6)
        assert [(one.start, one.end, one.timestamp) for one in results(driver)] == [(0, 10, 6)]
        assert drops(driver) == {"null_value": 1}
