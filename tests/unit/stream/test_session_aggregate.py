"""Aggregation by sessions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.stream.app.testing import Driver
from standfast.stream.dsl.fluent import Table
from standfast.stream.dsl.grouped import WindowedStream
from standfast.stream.dsl.session_aggregate import SessionAggregate
from standfast.stream.emit import ON_WINDOW_CLOSE, ON_WINDOW_UPDATE, EmitStrategy
from standfast.stream.windows import SessionWindows
from support.aggregates import STORE, Result, counted, driven, drops, listed, results

TEN = SessionWindows(10, grace_ms=5)


def pipe(driver: Driver, *records: tuple[str | None, int]) -> None:
    for key, stamp in records:
        driver.pipe("in", key, stamp, stamp)


def test_record_exactly_a_gap_away_joins_and_one_more_does_not() -> None:
    with driven(TEN, listed, caching=False) as driver:
        pipe(driver, ("a", 20), ("a", 30), ("a", 41))
        assert results(driver) == [
            Result("a", 20, 20, [20], None, 20),
            Result("a", 20, 20, None, [20], 20),
            Result("a", 20, 30, [20, 30], None, 30),
            Result("a", 41, 41, [41], None, 41),
        ]


def test_out_of_order_record_joins_two_sessions_and_each_goes_before_the_new_one_comes() -> None:
    with driven(TEN, listed, caching=False) as driver:
        pipe(driver, ("a", 20), ("a", 31))
        results(driver)
        pipe(driver, ("a", 25))
        assert results(driver) == [
            Result("a", 20, 20, None, [20], 20),
            Result("a", 31, 31, None, [31], 31),
            Result("a", 20, 31, [20, 31, 25], None, 31),
        ]
        assert [key for key, _ in driver.store(STORE).fetch("a")] == [("a", 20, 31)]


def test_session_that_keeps_its_bounds_is_removed_and_put_again() -> None:
    with driven(TEN, counted, caching=False) as driver:
        pipe(driver, ("a", 20), ("a", 28))
        results(driver)
        pipe(driver, ("a", 24))
        assert results(driver) == [Result("a", 20, 28, None, 2, 28), Result("a", 20, 28, 3, None, 28)]


def test_session_of_one_moment_is_overwritten() -> None:
    with driven(TEN, counted, caching=False) as driver:
        pipe(driver, ("a", 20), ("a", 20))
        assert results(driver) == [Result("a", 20, 20, 1, None, 20), Result("a", 20, 20, 2, 1, 20)]


def test_cached_sessions_give_only_what_is_different_at_the_flush() -> None:
    with driven(TEN, counted, caching=True) as driver:
        pipe(driver, ("a", 20), ("a", 28), ("a", 24))
        assert results(driver) == []
        driver.commit()
        assert results(driver) == [Result("a", 20, 28, 3, None, 28)]
        pipe(driver, ("a", 25))  # the same bounds
        driver.commit()
        assert results(driver) == [Result("a", 20, 28, 4, 3, 28)]
        pipe(driver, ("a", 30), ("a", 33))
        driver.commit()
        assert results(driver) == [Result("a", 20, 28, None, 4, 28), Result("a", 20, 33, 6, None, 33)]


@pytest.mark.parametrize(("observed", "late"), [(35, False), (36, True)])
def test_session_is_dropped_once_no_record_in_time_can_join_it(observed: int, late: bool) -> None:
    with driven(TEN, counted, caching=False) as driver:
        pipe(driver, ("b", observed))
        results(driver)
        pipe(driver, ("a", 20))
        assert results(driver) == ([] if late else [Result("a", 20, 20, 1, None, 20)])
        assert drops(driver) == ({"late_window": 1} if late else {})


def test_late_record_is_kept_if_the_session_it_joins_is_open() -> None:
    with driven(TEN, counted, caching=False) as driver:
        pipe(driver, ("a", 25), ("b", 38))
        results(driver)
        pipe(driver, ("a", 20))  # alone it would be closed: 20 < 38 - 15
        assert results(driver)[-1] == Result("a", 20, 25, 2, None, 25)


def test_record_without_a_key_does_not_move_the_observed_time_and_one_without_a_value_counts() -> None:
    with driven(TEN, counted, caching=False) as driver:
        driver.pipe("in", None, "x", 1_000)
        driver.pipe("in", "a", None, 20)
        assert results(driver) == [Result("a", 20, 20, 1, None, 20)]
        assert drops(driver) == {"null_key": 1}


def test_sessions_are_reduced() -> None:
    def largest(grouped: WindowedStream, emit: EmitStrategy) -> Table:
        return grouped.reduce(max, STORE, emit=emit)

    with driven(TEN, largest) as driver:
        for value, stamp in ((3, 20), (9, 45), (5, 33), (None, 34), (4, 38)):
            driver.pipe("in", "a", value, stamp)
        driver.commit()
        assert results(driver) == [Result("a", 20, 20, 3, None, 20), Result("a", 33, 45, 9, None, 45)]
        assert drops(driver) == {"null_value": 1}


def test_final_sessions_come_once_by_end_and_start() -> None:
    with driven(TEN, counted, emit=ON_WINDOW_CLOSE) as driver:
        pipe(driver, ("b", 20), ("a", 18), ("a", 20), ("c", 20), ("b", 22), ("d", 37))
        assert results(driver) == [Result("a", 18, 20, 2, None, 20), Result("c", 20, 20, 1, None, 20)]
        pipe(driver, ("d", 38))
        assert results(driver) == [Result("b", 20, 22, 2, None, 22)]
        pipe(driver, ("e", 1_000))
        assert results(driver) == [Result("d", 37, 38, 2, None, 38)]


@pytest.mark.parametrize("retention_ms", [16, 17, 1_000_000])
def test_session_that_was_given_is_not_joined_nor_given_again(retention_ms: int) -> None:
    with driven(TEN, listed, emit=ON_WINDOW_CLOSE, retention_ms=retention_ms) as driver:
        pipe(driver, ("a", 20), ("b", 36))
        assert results(driver) == [Result("a", 20, 20, [20], None, 20)]
        pipe(driver, ("a", 30))  # within the gap of the session that was given, and a session of its own is still open
        if retention_ms > 17:
            assert list(driver.store(STORE).fetch("a")) == [(("a", 20, 20), [20]), (("a", 30, 30), [30])]
        pipe(driver, ("a", 33), ("b", 1_000))
        assert results(driver) == [Result("a", 30, 33, [30, 33], None, 33), Result("b", 36, 36, [36], None, 36)]
        assert drops(driver) == {}


def test_late_record_between_a_given_and_an_open_session_joins_the_open_one() -> None:
    with driven(TEN, listed, emit=ON_WINDOW_CLOSE, retention_ms=1_000_000) as driver:
        pipe(driver, ("a", 20), ("b", 36), ("a", 31))
        assert results(driver) == [Result("a", 20, 20, [20], None, 20)]
        pipe(driver, ("a", 22), ("b", 1_000))  # 22 is within the gap of both
        assert results(driver) == [Result("a", 22, 31, [31, 22], None, 31), Result("b", 36, 36, [36], None, 36)]


def test_session_on_update_is_joined_as_long_as_it_is_kept() -> None:
    with driven(TEN, listed, caching=False, retention_ms=1_000_000) as driver:
        pipe(driver, ("a", 20), ("b", 36))
        results(driver)
        pipe(driver, ("a", 30))
        assert results(driver) == [Result("a", 20, 20, None, [20], 20), Result("a", 20, 30, [20, 30], None, 30)]


def test_longer_grace_does_not_join_what_was_given() -> None:
    with driven(TEN, listed, emit=ON_WINDOW_CLOSE, retention_ms=1_000_000) as driver:
        pipe(driver, ("a", 20), ("b", 36))
        assert results(driver) == [Result("a", 20, 20, [20], None, 20)]
        (runner,) = driver._runners.values()
        processor = next(one for one in runner._processors if isinstance(one, SessionAggregate))
        processor.windows, processor.delay_ms = SessionWindows(10, grace_ms=500), 511
        pipe(driver, ("a", 15), ("a", 25), ("b", 10_000))
        assert [one for one in results(driver) if one.key == "a"] == [Result("a", 25, 25, [25], None, 25)]
        assert drops(driver) == {"late_window": 1}


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(-25, 12)), max_size=40))
@settings(max_examples=40)
def test_final_sessions_do_not_depend_on_how_long_the_store_keeps_them(steps: list[tuple[str, int]]) -> None:
    outcomes = []
    for retention_ms in (TEN.retention_safe_ms, 10**9):
        observed = 30
        with driven(TEN, listed, emit=ON_WINDOW_CLOSE, retention_ms=retention_ms, engine="memory") as driver:
            for key, step in steps:
                stamp = max(observed + step, 0)
                observed = max(observed, stamp)
                pipe(driver, (key, stamp))
            pipe(driver, ("z", 10**8))
            outcomes.append((results(driver), drops(driver)))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_final_sessions_survive_restarts_and_a_large_gap(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("standfast.stream.open_windows.LIMIT_ENTRIES", limit)
    with driven(TEN, counted, emit=ON_WINDOW_CLOSE) as driver:
        pipe(driver, ("a", 20), ("b", 21), ("c", 22), ("a", 25))
        driver.restart()
        pipe(driver, ("c", 30))
        driver.restart()
        pipe(driver, ("d", 10**12))
        assert results(driver) == [
            Result("b", 21, 21, 1, None, 21),
            Result("a", 20, 25, 2, None, 25),
            Result("c", 22, 30, 2, None, 30),
        ]
        driver.restart()
        pipe(driver, ("d", 10**12 + 1))
        assert results(driver) == []


@pytest.mark.parametrize("emit", [ON_WINDOW_UPDATE, ON_WINDOW_CLOSE])
@pytest.mark.parametrize("caching", [False, True])
def test_record_that_fails_and_is_skipped_leaves_no_trace(emit: EmitStrategy, caching: bool) -> None:
    outputs = []
    for bad in (False, True):
        with driven(SessionWindows(5, 4), listed, emit=emit, caching=caching, on_error="skip") as driver:
            for stamp in (1, 9, 7, 14, 15, 30, 28, 60):
                driver.pipe("in", "a", stamp, stamp)
                for later in (0, 1, 5, 6, 100) * bad:
                    driver.pipe("in", "a", "bad", stamp + later)
            driver.commit()
            outputs.append((results(driver), list(driver.store(STORE).all())))
    assert outputs[0] == outputs[1]
