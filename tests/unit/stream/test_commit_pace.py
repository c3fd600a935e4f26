"""The time between commits: by the guarantee, by the duration of commits, or as the application says."""

from __future__ import annotations

import pytest

from standfast.stream.runtime.commit_pace import LEAST_MS, MOST_MS, CommitPace


def after(pace: CommitPace, duration_ms: int, times: int = 100) -> int:
    for _ in range(times):
        pace.took(duration_ms)
    return pace.interval_ms


def test_interval_is_a_tenth_of_a_second_exactly_once_and_a_second_at_least_once() -> None:
    assert CommitPace("exactly_once").interval_ms == 100
    assert CommitPace("at_least_once").interval_ms == 1_000


def test_interval_grows_until_commits_take_a_fifth_of_the_time() -> None:
    assert after(CommitPace("exactly_once"), 50) == 250


def test_interval_stays_while_commits_take_less_than_a_fifth_of_the_time() -> None:
    assert after(CommitPace("exactly_once"), 20) == LEAST_MS


def test_interval_is_at_most_a_second_however_long_commits_take() -> None:
    assert after(CommitPace("exactly_once"), 10_000) == MOST_MS


def test_interval_shrinks_when_commits_are_fast_again() -> None:
    pace = CommitPace("exactly_once")
    after(pace, 150)
    assert pace.interval_ms > 700
    assert after(pace, 5) == LEAST_MS


def test_one_slow_commit_moves_the_interval_by_an_eighth_of_it_alone() -> None:
    pace = CommitPace("exactly_once")
    after(pace, 40)
    assert after(pace, 120, times=1) == 250


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_interval_of_the_application_stays_whatever_commits_take(guarantee: str) -> None:
    assert after(CommitPace(guarantee, 30), 500) == 30


def test_interval_at_least_once_does_not_follow_the_duration_of_commits() -> None:
    assert after(CommitPace("at_least_once"), 500) == 1_000
