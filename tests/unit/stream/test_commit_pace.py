"""The time between commits: by the guarantee, by the duration of commits, or as the application says."""

from __future__ import annotations

import pytest

from standfast.stream.runtime.commit_pace import LEAST_MS, LEAST_ROOM, MOST_MS, MOST_ROOM, WINDOW, CommitPace


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


# --- how many at once ---


def room_after(pace: CommitPace, *durations_ms: int, times: int = 100) -> int:
    """The room after commits of these durations by turns, as many of them under way as there is room for."""
    for _ in range(times):
        for duration_ms in durations_ms:
            pace.took(duration_ms, full=True)
    return pace.room


def test_few_commits_are_under_way_at_once_as_long_as_nothing_is_known() -> None:
    assert CommitPace("exactly_once").room == LEAST_ROOM


def test_more_commits_are_under_way_where_each_takes_about_as_long_as_the_shortest() -> None:
    assert room_after(CommitPace("exactly_once"), 30, 34) == MOST_ROOM


def test_no_more_commits_are_under_way_where_most_of_a_commit_is_a_wait_for_others() -> None:
    assert room_after(CommitPace("exactly_once"), 6, 30, 30, 30) == LEAST_ROOM


def test_room_that_was_found_goes_when_commits_begin_to_wait_for_each_other() -> None:
    pace = CommitPace("exactly_once")
    assert room_after(pace, 30) == MOST_ROOM
    assert room_after(pace, 30, 120, 120, 120, times=20) < MOST_ROOM
    assert room_after(pace, 30, 300, 300, 300) <= LEAST_ROOM + 1


def test_a_log_that_became_slow_for_all_commits_gets_its_room_back() -> None:
    pace = CommitPace("exactly_once")
    assert room_after(pace, 30, 300, 300, 300) == LEAST_ROOM
    assert room_after(pace, 300, times=2 * WINDOW) == MOST_ROOM


def test_commits_that_had_room_beside_them_say_nothing_about_the_room() -> None:
    pace = CommitPace("exactly_once")
    after(pace, 30, times=1_000)
    assert pace.room == LEAST_ROOM


@pytest.mark.parametrize("given_ms", [None, 30])
def test_room_adapts_with_the_interval_of_the_application_too(given_ms: int | None) -> None:
    assert room_after(CommitPace("exactly_once", given_ms), 30) == MOST_ROOM
