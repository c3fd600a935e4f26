"""Restart strategies at every boundary, and against their definitions over all failures.

Rules of this file: times are small numbers; the models read the whole list of failures each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.store.errors import BadConfig, InvalidRequest
from standfast.stream.restart import (
    DELAY_MAX_MS,
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    RestartHistory,
    RestartStrategy,
)

PAUSES = st.lists(st.integers(0, 40), max_size=20)


def delays(strategy: RestartStrategy, times: Iterable[int]) -> list[int | None]:
    history = RestartHistory(strategy)
    return [history.failed(now_ms) for now_ms in times]


# --- no restart, fixed delay ---


def test_no_restart_is_none_from_the_first_failure() -> None:
    assert delays(NoRestart(), [0, 10**12]) == [None, None]


def test_fixed_delay_restarts_so_often_and_no_more() -> None:
    assert delays(FixedDelay(attempts=3, delay_ms=500), [0, 1, 2, 3, 4]) == [500, 500, 500, None, None]


def test_fixed_delay_counts_over_the_whole_life() -> None:
    assert delays(FixedDelay(attempts=2, delay_ms=0), [0, 10**9, 10**15]) == [0, 0, None]


def test_fixed_delay_of_no_attempts_never_restarts() -> None:
    assert delays(FixedDelay(attempts=0), [0]) == [None]


# --- exponential delay ---


def test_exponential_delay_grows_up_to_its_bound() -> None:
    strategy = ExponentialDelay(initial_ms=1_000, max_ms=10_000, multiplier=2.0)
    times = [0, 1_001, 4_000, 9_000, 18_000, 30_000]
    assert delays(strategy, times) == [1_000, 2_000, 4_000, 8_000, 10_000, 10_000]


def test_exponential_delay_rounds_down_to_whole_milliseconds() -> None:
    strategy = ExponentialDelay(initial_ms=4, max_ms=300, multiplier=2.3)
    assert delays(strategy, [0, 301, 602]) == [4, 9, 21]


def test_exponential_delay_without_room_to_grow_is_its_bound() -> None:
    assert delays(ExponentialDelay(initial_ms=5, max_ms=5), [0, 6, 12]) == [5, 5, 5]


def test_exponential_delay_of_very_many_failures_is_still_its_bound() -> None:
    strategy = ExponentialDelay(initial_ms=1, max_ms=60_000, multiplier=1e300)
    assert [strategy.delay_of(attempt) for attempt in (1, 2, 3, 1_000_000)] == [1, 60_000, 60_000, 60_000]


@pytest.mark.parametrize(("ran_ms", "delay_ms"), [(79, 2), (80, 1), (81, 1)])
def test_backoff_begins_anew_when_the_task_ran_for_its_time_since_the_restart(ran_ms: int, delay_ms: int) -> None:
    strategy = ExponentialDelay(initial_ms=1, max_ms=9, reset_after_ms=80)
    restarted_ms = 100 + 1
    assert delays(strategy, [100, restarted_ms + ran_ms]) == [1, delay_ms]


def test_waiting_for_the_restart_is_not_running() -> None:
    strategy = ExponentialDelay(initial_ms=50, max_ms=50_000, reset_after_ms=80)
    assert delays(strategy, [0, 129, 309, 438]) == [50, 100, 50, 100]
    assert delays(strategy, [0, 130]) == [50, 50]


@pytest.mark.parametrize("attempts", [1, 3])
def test_exponential_delay_restarts_so_often_in_a_row(attempts: int) -> None:
    strategy = ExponentialDelay(initial_ms=1, max_ms=1, reset_after_ms=80, attempts=attempts)
    assert delays(strategy, range(attempts + 2)) == [*[1] * attempts, None, None]


def test_attempts_begin_anew_with_the_backoff() -> None:
    strategy = ExponentialDelay(initial_ms=1, max_ms=9, reset_after_ms=80, attempts=2)
    assert delays(strategy, [0, 10, 100, 110, 120]) == [1, 2, 1, 2, None]


def test_task_that_was_given_up_stays_so() -> None:
    strategy = ExponentialDelay(initial_ms=1, max_ms=9, reset_after_ms=80, attempts=1)
    assert delays(strategy, [0, 10, 10**9]) == [1, None, None]
    assert delays(FailureRate(failures=1, interval_ms=10, delay_ms=5), [0, 1, 10**9]) == [5, None, None]


# --- failure rate ---


def test_failure_rate_restarts_until_more_than_so_many_lie_within_the_interval() -> None:
    strategy = FailureRate(failures=3, interval_ms=100, delay_ms=7)
    assert delays(strategy, [0, 10, 20, 30]) == [7, 7, 7, None]


@pytest.mark.parametrize(("last_ms", "delay_ms"), [(99, None), (100, None), (101, 7)])
def test_failures_exactly_the_interval_apart_are_within_it(last_ms: int, delay_ms: int | None) -> None:
    strategy = FailureRate(failures=3, interval_ms=100, delay_ms=7)
    assert delays(strategy, [0, 10, 20, last_ms]) == [7, 7, 7, delay_ms]


def test_failures_that_are_far_enough_apart_go_on_for_ever() -> None:
    strategy = FailureRate(failures=1, interval_ms=1, delay_ms=0)
    assert delays(strategy, range(0, 200, 2)) == [0] * 100


@given(pauses=PAUSES, failures=st.integers(1, 4), interval_ms=st.integers(1, 60))
def test_failure_rate_is_its_definition(pauses: list[int], failures: int, interval_ms: int) -> None:
    times = list(accumulate(pauses))
    thick = [
        sum(now - interval_ms <= at <= now for at in times[: place + 1]) > failures for place, now in enumerate(times)
    ]
    wanted = [None if any(thick[: place + 1]) else 7 for place in range(len(times))]
    assert delays(FailureRate(failures, interval_ms, delay_ms=7), times) == wanted


@given(
    pauses=PAUSES,
    initial_ms=st.integers(1, 5),
    max_ms=st.integers(5, 30),
    reset_after_ms=st.integers(1, 30),
    attempts=st.one_of(st.none(), st.integers(1, 5)),
)
def test_exponential_delay_is_its_definition(
    pauses: list[int], initial_ms: int, max_ms: int, reset_after_ms: int, attempts: int | None
) -> None:
    """The pauses are those between the restart that was due and the next failure."""
    strategy = ExponentialDelay(initial_ms, max_ms, 2.0, reset_after_ms, attempts)
    history = RestartHistory(strategy)
    now_ms = 0
    for place, pause_ms in enumerate(pauses):
        now_ms += pause_ms
        resets = [at for at in range(1, place + 1) if pauses[at] >= reset_after_ms]
        in_row = place - max(resets, default=0) + 1
        delay_ms = history.failed(now_ms)
        if attempts is not None and in_row > attempts:
            assert delay_ms is None
            break
        assert delay_ms is not None and delay_ms == min(max_ms, initial_ms * 2 ** (in_row - 1))
        now_ms += delay_ms


# --- history ---


def test_history_counts_the_failures_also_those_without_a_restart() -> None:
    history = RestartHistory(FixedDelay(attempts=1, delay_ms=0))
    assert history.failures == 0
    for count in (1, 2, 3):
        history.failed(5)
        assert history.failures == count
    assert history.strategy == FixedDelay(attempts=1, delay_ms=0)


def test_two_histories_of_one_strategy_know_nothing_of_each_other() -> None:
    strategy = FixedDelay(attempts=1, delay_ms=0)
    assert delays(strategy, [0, 1]) == delays(strategy, [0, 1]) == [0, None]


@pytest.mark.parametrize("bad", [99, -1, True, 100.0, "100", None])
def test_time_that_goes_back_or_is_none_is_refused_and_not_counted(bad: int) -> None:
    history = RestartHistory(FailureRate(failures=2, interval_ms=10, delay_ms=7))
    history.failed(100)
    with pytest.raises(InvalidRequest, match="give whole milliseconds of a monotonic clock"):
        history.failed(bad)
    assert history.failures == 1
    assert history.failed(100) == 7


# --- a task that makes no progress ---

QUICK = ExponentialDelay(initial_ms=1, max_ms=1_000)


def test_five_failures_in_a_row_at_one_offset_are_the_last() -> None:
    history = RestartHistory(QUICK)
    assert [history.failed(at_ms, "in-0 at offset 7") for at_ms in range(6)] == [1, 2, 4, 8, None, None]
    assert history.reason == "it failed 5 times in a row at the same source offset: in-0 at offset 7"


def test_failure_elsewhere_begins_the_row_anew_and_a_commit_does_not() -> None:
    history = RestartHistory(QUICK)
    for number, at in enumerate(["a", "a", "a", "a", "b", "a", "a", "a", "a"]):
        history.committed()  # of an earlier record, or of another partition
        assert history.failed(number, at) is not None
    assert history.failed(10, "a") is None


def test_ten_minutes_of_failures_without_a_commit_are_the_end() -> None:
    history = RestartHistory(QUICK)
    assert [history.failed(minute * 60_000, f"at {minute}") is None for minute in range(11)] == [False] * 10 + [True]
    assert history.reason == "it failed for 600 s without a commit, the last time at at 10"


@pytest.mark.parametrize("what", ["committed", "interrupted"])
def test_commit_or_an_outage_of_the_log_begins_the_ten_minutes_anew(what: str) -> None:
    history = RestartHistory(QUICK)
    assert history.failed(0, "a") is not None
    getattr(history, what)()
    assert history.failed(599_999, "b") is not None
    assert history.failed(600_000, "c") is not None
    assert history.failed(1_199_999, "d") is None


def test_first_failure_after_a_long_quiet_time_is_not_ten_minutes_without_a_commit() -> None:
    history = RestartHistory(QUICK)
    assert history.failed(10**9, "a") is not None


def test_bounds_on_what_does_not_come_on_may_be_left_out() -> None:
    history = RestartHistory(ExponentialDelay(initial_ms=1, max_ms=1, same_offset=None, without_commit_ms=None))
    assert {history.failed(minute * 60_000, "a") for minute in range(100)} == {1}


@pytest.mark.parametrize("strategy", [FixedDelay(50, 1), FailureRate(50, 1, 1)])
def test_other_strategies_have_bounds_of_their_own(strategy: RestartStrategy) -> None:
    history = RestartHistory(strategy)
    assert {history.failed(now_ms, "a") for now_ms in range(50)} == {1}
    assert RestartHistory(NoRestart()).failed(0, "a") is None


def test_reason_names_the_strategy_that_was_used_up() -> None:
    history = RestartHistory(FixedDelay(attempts=1, delay_ms=5))
    history.failed(0)
    assert history.failed(1) is None
    assert history.reason == "2 failures are more than FixedDelay(attempts=1, delay_ms=5) allows"


# --- refusals ---


def test_the_defaults_are_good() -> None:
    assert FixedDelay() == FixedDelay(attempts=3, delay_ms=10_000)
    assert ExponentialDelay() == ExponentialDelay(1_000, 60_000, 2.0, 3_600_000, None)
    assert FailureRate() == FailureRate(failures=3, interval_ms=60_000, delay_ms=1_000)
    assert NoRestart() == NoRestart()


@pytest.mark.parametrize("bad", [-1, True, 1.0, "1", None, DELAY_MAX_MS + 1])
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda bad: FixedDelay(attempts=bad), "FixedDelay: attempts"),
        (lambda bad: FixedDelay(delay_ms=bad), "FixedDelay: delay_ms"),
        (lambda bad: ExponentialDelay(initial_ms=bad), "ExponentialDelay: initial_ms"),
        (lambda bad: ExponentialDelay(max_ms=bad), "ExponentialDelay: max_ms"),
        (lambda bad: ExponentialDelay(reset_after_ms=bad), "ExponentialDelay: reset_after_ms"),
        (lambda bad: FailureRate(failures=bad), "FailureRate: failures"),
        (lambda bad: FailureRate(interval_ms=bad), "FailureRate: interval_ms"),
        (lambda bad: FailureRate(delay_ms=bad), "FailureRate: delay_ms"),
    ],
)
def test_number_that_cannot_be_used_is_refused(make: Callable[[object], object], name: str, bad: object) -> None:
    with pytest.raises(BadConfig) as refused:
        make(bad)
    (problem,) = refused.value.problems
    assert problem.startswith(f"{name} must be a whole number from ") and problem.endswith(f", not {bad!r}")


@pytest.mark.parametrize(
    "make",
    [
        lambda: ExponentialDelay(initial_ms=0),
        lambda: ExponentialDelay(initial_ms=0, max_ms=5),
        lambda: ExponentialDelay(reset_after_ms=0),
        lambda: ExponentialDelay(attempts=0),
        lambda: ExponentialDelay(attempts=True),
        lambda: ExponentialDelay(same_offset=0),
        lambda: ExponentialDelay(same_offset=True),
        lambda: ExponentialDelay(without_commit_ms=0),
        lambda: ExponentialDelay(without_commit_ms=1.5),  # type: ignore[arg-type]
        lambda: FailureRate(failures=0),
        lambda: FailureRate(interval_ms=0),
    ],
)
def test_zero_is_refused_where_it_has_no_meaning(make: Callable[[], object]) -> None:
    with pytest.raises(BadConfig, match="must be a whole number from 1"):
        make()


@pytest.mark.parametrize("bad", [1, 1.0, 0.5, -2.0, float("inf"), float("nan"), "2", None, True])
def test_multiplier_that_does_not_grow_is_refused(bad: float) -> None:
    with pytest.raises(BadConfig, match="ExponentialDelay: multiplier must be a number above 1"):
        ExponentialDelay(multiplier=bad)


def test_first_delay_above_the_bound_is_refused_and_at_the_bound_is_not() -> None:
    with pytest.raises(BadConfig, match="initial_ms 6 is above max_ms 5: give a larger max_ms"):
        ExponentialDelay(initial_ms=6, max_ms=5)
    assert ExponentialDelay(initial_ms=5, max_ms=5, multiplier=2).delay_of(2) == 5


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(BadConfig) as refused:
        ExponentialDelay(initial_ms=0, max_ms=0, multiplier=1, reset_after_ms=0, attempts=0)
    names = [problem.split()[1] for problem in refused.value.problems]
    assert names == ["initial_ms", "max_ms", "multiplier", "reset_after_ms", "attempts"]
    with pytest.raises(BadConfig) as refused:
        FailureRate(failures=0, interval_ms=0, delay_ms=-1)
    assert len(refused.value.problems) == 3


@pytest.mark.parametrize("bad", [None, "fixed", FixedDelay, 3])
def test_what_is_no_strategy_is_refused(bad: RestartStrategy) -> None:
    with pytest.raises(BadConfig, match="take FixedDelay, ExponentialDelay, FailureRate or NoRestart"):
        RestartHistory(bad)
