"""The demo's plain computation, its grace, and the comparison of final results.

Rules of this file: hand-made flights, boundaries one by one.
"""

from __future__ import annotations

from typing import Any

from standfast.ops.demo.board import DAY_MS, HOUR_MS, PARTITIONS
from standfast.ops.demo.check import compare_finals
from standfast.ops.demo.feeder import grace_for, partition_of
from standfast.ops.demo.flights import Flight
from standfast.ops.demo.plain import plain_board
from standfast.ops.demo.result import differences
from standfast.ops.demo.view import At

RETENTION = 7 * DAY_MS
GRACE = 2 * DAY_MS
NOON = 100 * DAY_MS + 12 * HOUR_MS


def flight(tail: str, scheduled: int, delay: int = 0, origin: str = "JFK", number: int = 1) -> Flight:
    return Flight(tail, "UA", number, origin, scheduled, scheduled + delay * 60_000, delay)


# --- windows


def test_plain_board_hides_a_window_exactly_at_its_retention() -> None:
    start = 100 * DAY_MS
    newest = start + RETENTION
    for last, visible in ((newest - HOUR_MS, True), (newest, False), (newest - 1, True), (newest + HOUR_MS - 1, False)):
        board = plain_board([flight("N1", start), flight("N1", last)], 1, GRACE, RETENTION)
        assert ((0, "JFK", start) in board.delays) is visible, last - start
        assert ((0, "JFK", start) in board.three_hours) is visible, last - start


def test_plain_board_takes_retention_from_the_largest_hour_of_each_partition() -> None:
    airports = {partition_of(name.encode(), PARTITIONS): name for name in (f"A{number}" for number in range(100))}
    old = [flight("N1", 0, origin=airports[part]) for part in range(PARTITIONS)]
    board = plain_board([*old, flight("N1", 50 * DAY_MS, origin=airports[2])], PARTITIONS, GRACE, RETENTION)
    assert {row[0] for row in board.delays if row[2] == 0} == {0, 1, 3}
    assert {row[0] for row in board.finals} == {2}


def test_plain_board_sums_flights_of_one_airport_and_hour() -> None:
    flights = [flight("N1", 10, -3), flight("N1", HOUR_MS - 1, 40, number=2), flight("N1", HOUR_MS, 5, number=3)]
    board = plain_board(flights, 1, GRACE, RETENTION)
    assert board.delays == {
        (0, "JFK", 0): {"flights": 2, "delay": 37, "worst": 40},
        (0, "JFK", HOUR_MS): {"flights": 1, "delay": 5, "worst": 5},
    }


def test_plain_board_counts_a_flight_in_three_views_but_none_before_the_epoch() -> None:
    board = plain_board([flight("N1", 5 * HOUR_MS + 1, 4), flight("N2", 7 * HOUR_MS, 9)], 1, GRACE, RETENTION)
    assert {at[2] // HOUR_MS: row["flights"] for at, row in board.three_hours.items()} == {3: 1, 4: 1, 5: 2, 6: 1, 7: 1}
    assert board.three_hours[0, "JFK", 5 * HOUR_MS] == {"flights": 2, "delay": 13, "worst": 9}
    first = plain_board([flight("N1", HOUR_MS)], 1, GRACE, RETENTION)
    assert [at[2] // HOUR_MS for at in first.three_hours] == [0, 1]


def test_plain_board_closes_an_hour_when_the_newest_flight_is_grace_after_its_end() -> None:
    for after_end, closed in ((GRACE - 1, False), (GRACE, True)):
        board = plain_board([flight("N1", 0), flight("N1", HOUR_MS + after_end)], 1, GRACE, RETENTION)
        assert list(board.finals) == ([(0, "JFK", 0)] if closed else [])


# --- aircraft


def test_plain_board_keeps_the_airport_of_the_latest_departure() -> None:
    early, late = flight("N1", 0, 90, "LGA", 7), flight("N1", HOUR_MS, 0, "EWR", 8)
    board = plain_board([late, early], 1, GRACE, RETENTION)
    assert board.aircraft[0, "N1"] == {"airport": "LGA", "flight": "UA7", "departed": 90 * 60_000}


def test_plain_board_retires_at_every_sixth_hour_what_left_more_than_a_day_before() -> None:
    for scheduled, gone in (
        (NOON + DAY_MS - 1, False),  # no sixth hour reached
        (NOON + DAY_MS, False),  # a day ago exactly
        (NOON + DAY_MS + 6 * HOUR_MS - 1, False),  # more than a day, but the sixth hour was before
        (NOON + DAY_MS + 6 * HOUR_MS, True),
    ):
        flights = [flight("N1", NOON), flight("N2", NOON + DAY_MS), flight("N2", scheduled)]
        board = plain_board(flights, 1, GRACE, RETENTION)
        assert ((0, "N1") not in board.aircraft) is gone, scheduled - NOON


def test_plain_board_knows_a_retired_aircraft_again_when_it_leaves() -> None:
    late = NOON + 2 * DAY_MS
    board = plain_board([flight("N1", NOON), flight("N2", late), flight("N1", late + 1)], 1, GRACE, RETENTION)
    assert board.aircraft[0, "N1"]["departed"] == late + 1


# --- grace


def test_grace_covers_what_may_be_seen_before_a_flight_comes() -> None:
    hours = [flight("N1", number * HOUR_MS) for number in range(10)]
    assert grace_for(hours, 1, HOUR_MS) == 0  # in order, one at a time
    assert grace_for(hours, 2, HOUR_MS) == HOUR_MS  # the next one may be seen before: 1 ms would do
    assert grace_for(hours, 5, HOUR_MS) == 4 * HOUR_MS
    assert grace_for(hours, 100, HOUR_MS) == 9 * HOUR_MS


def test_grace_covers_flights_that_come_out_of_order() -> None:
    late = [flight("N1", 0), flight("N2", 9 * HOUR_MS), flight("N3", HOUR_MS - 1)]
    assert grace_for(late, 1, HOUR_MS) == 9 * HOUR_MS  # open while end 1 h > 9 h - grace
    assert grace_for([], 5, HOUR_MS) == 0


# --- final results


def test_final_results_that_are_as_they_must_be_have_no_difference() -> None:
    found, expected = _finals((2, "LGA", 0), (2, "EWR", 0), (3, "JFK", 0), (2, "LGA", HOUR_MS))
    compared = compare_finals(found, expected)
    assert (differences(compared), compared["repeated"]) == (0, 0)


def test_a_final_result_given_twice_is_a_difference_even_if_it_is_equal() -> None:
    found, expected = _finals((2, "LGA", 0), (2, "EWR", 0))
    compared = compare_finals([*found, found[0]], expected)
    assert (compared["repeated"], differences(compared)) == (1, 0)
    assert "given again" in compared["examples"][0]


def test_final_results_missing_extra_and_different_are_told_apart() -> None:
    found, expected = _finals((2, "LGA", HOUR_MS), (2, "EWR", 0), (3, "JFK", 0))
    expected |= {(2, "LGA", HOUR_MS): {"flights": 2, "worst": 1}, (3, "JFK", HOUR_MS): {"flights": 1, "worst": 1}}
    del expected[3, "JFK", 0]
    compared = compare_finals(found, expected)
    assert [compared[name] for name in ("missing", "extra", "different")] == [1, 1, 1]
    assert len(compared["examples"]) == differences(compared) == 3


def _finals(*hours: At) -> tuple[list[tuple[At, dict[str, Any]]], dict[At, dict[str, Any]]]:
    row = {"flights": 1, "worst": 1}
    return [(at, row) for at in hours], dict.fromkeys(hours, row)
