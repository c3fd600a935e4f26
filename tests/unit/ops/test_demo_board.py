"""The demo's application under the test driver: every row and result against the plain computation.

Rules of this file: the driver runs all tasks in the test's own thread; flights reach them in orders possible in a real
run, made from a seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from standfast.ops.demo.board import (
    DAY_MS,
    HOUR_MS,
    LIVE,
    LIVE_EVERY_MS,
    PARTITIONS,
    RESULTS,
    TOPIC,
    BoardSettings,
    build_app,
    task_groups,
)
from standfast.ops.demo.check import compare_finals
from standfast.ops.demo.feeder import flight_json, grace_for, partition_of
from standfast.ops.demo.flights import Flight, read_flights
from standfast.ops.demo.plain import PlainBoard, plain_board
from standfast.ops.demo.result import differences
from standfast.ops.demo.view import At
from standfast.stream.app.testing import Driver
from support.groups import costly

LEAD = 20
EVERY = 40  # of the flights of a week
SETTINGS = BoardSettings(2 * DAY_MS, 7 * DAY_MS)


@pytest.fixture(scope="module")
def flights() -> tuple[Flight, ...]:
    """Some of the flights of the first week."""
    return read_flights("sample", 6_000).flights[::EVERY]


@pytest.fixture(scope="module")
def settings(flights: tuple[Flight, ...]) -> BoardSettings:
    grace_ms = grace_for(flights, LEAD, HOUR_MS)
    return BoardSettings(grace_ms, grace_ms + 3 * HOUR_MS)


@pytest.fixture(scope="module")
@costly()
def plain(flights: tuple[Flight, ...], settings: BoardSettings) -> PlainBoard:
    return plain_board(flights, PARTITIONS, settings.grace_ms, settings.retention_ms)


def driver_for(settings: BoardSettings) -> Driver:
    return Driver(build_app(settings), partitions=PARTITIONS)


def pipe(driver: Driver, flight: Flight) -> None:
    driver.pipe(TOPIC, flight.tail, json.loads(flight_json(flight)), flight.scheduled)


def interleaved(flights: Sequence[Flight], seed: int) -> Iterator[Flight]:
    """The flights in their order within each partition, partitions as far apart as the lead allows."""
    numbers: dict[int, list[int]] = {part: [] for part in range(PARTITIONS)}
    for number, flight in enumerate(flights):
        numbers[partition_of(flight.tail.encode(), PARTITIONS)].append(number)
    choose = random.Random(seed)
    while waiting := [one for one in numbers.values() if one]:
        horizon = min(one[0] for one in waiting)
        queue = choose.choice([one for one in waiting if one[0] < horizon + LEAD])
        for _ in range(choose.randint(1, LEAD)):
            if queue and queue[0] < horizon + LEAD:
                yield flights[queue.pop(0)]


def rows_of(driver: Driver, store: str) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for part in range(PARTITIONS):
        for key, value in driver.store(store, part).all():
            found[(part, key) if isinstance(key, str) else (part, key.key, key.start)] = value
    return found


def finals_of(driver: Driver) -> list[tuple[At, Any]]:
    return [
        ((partition_of(one.key.key.encode(), PARTITIONS), one.key.key, one.key.start), one.value)
        for one in driver.read(RESULTS)
    ]


def check(driver: Driver, plain: PlainBoard, finals: list[tuple[At, Any]]) -> None:
    assert rows_of(driver, "aircraft") == plain.aircraft
    assert rows_of(driver, "delays") == rows_of(driver, "final-delays") == plain.delays
    assert rows_of(driver, "three-hours") == plain.three_hours
    compared = compare_finals(finals, plain.finals)
    assert (differences(compared), compared["repeated"], compared["examples"]) == (0, 0, [])
    assert driver.dropped == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_no_row_depends_on_the_order_in_which_tasks_go(
    flights: tuple[Flight, ...], settings: BoardSettings, plain: PlainBoard, seed: int
) -> None:
    assert plain.finals
    assert plain.finals.keys() - plain.delays.keys(), "hours past retention"
    with driver_for(settings) as driver:
        for flight in interleaved(flights, seed):
            pipe(driver, flight)
        check(driver, plain, finals_of(driver))


@pytest.mark.slow
def test_restarts_change_no_row_and_give_no_result_twice(
    flights: tuple[Flight, ...], settings: BoardSettings, plain: PlainBoard
) -> None:
    with driver_for(settings) as driver:
        finals: list[tuple[At, Any]] = []
        for number, flight in enumerate(interleaved(flights, 7), 1):
            pipe(driver, flight)
            if number in (30, 61, 100):
                finals += finals_of(driver)
                driver.restart()
        check(driver, plain, finals + finals_of(driver))


@pytest.mark.slow
def test_a_smaller_grace_makes_flights_late(
    flights: tuple[Flight, ...], settings: BoardSettings, plain: PlainBoard
) -> None:
    with driver_for(BoardSettings(0, settings.retention_ms)) as driver:
        for flight in interleaved(flights, 0):
            pipe(driver, flight)
        assert driver.dropped > 0
        assert differences(compare_finals(finals_of(driver), plain.finals)) > 0


@pytest.mark.slow
def test_live_board_goes_on_counting_after_a_restart() -> None:
    flights = [Flight("N1", "UA", 1, "JFK", hour * HOUR_MS, hour * HOUR_MS, hour) for hour in range(4)]
    part = partition_of(b"N1", PARTITIONS)
    with driver_for(SETTINGS) as driver:
        driver.advance_wall_clock(LIVE_EVERY_MS - 1)
        assert driver.read(LIVE) == []
        for flight in flights[:3]:
            pipe(driver, flight)
        driver.advance_wall_clock(1)
        live = {one.key: one.value for one in driver.read(LIVE)}
        assert set(live) == {f"0_{number}" for number in range(PARTITIONS)}
        assert live[f"0_{part}"] == {"flights": 3, "aircraft": 1, "retired": 0, "at": 2 * HOUR_MS}
        driver.restart()
        pipe(driver, flights[3]._replace(tail="N1", scheduled=3 * DAY_MS, departed=3 * DAY_MS, delay=1))
        driver.advance_wall_clock(LIVE_EVERY_MS)
        again = {one.key: one.value for one in driver.read(LIVE)}[f"0_{part}"]
        assert (again["flights"], again["aircraft"], again["retired"]) == (4, 1, 0)


@pytest.mark.slow
def test_aircraft_are_retired_by_stream_time_and_counted() -> None:
    tails = [tail for tail in (f"N{number}" for number in range(50)) if partition_of(tail.encode(), PARTITIONS) == 0]
    with driver_for(SETTINGS) as driver:
        for tail, hour in zip(tails, (0, 5, 30, 36), strict=False):
            pipe(driver, Flight(tail, "UA", 1, "JFK", hour * HOUR_MS, hour * HOUR_MS, 0))
            driver.advance_wall_clock(LIVE_EVERY_MS)
        live = [one.value for one in driver.read(LIVE) if one.key == "0_0"]
        assert [(one["aircraft"], one["retired"]) for one in live] == [(1, 0), (2, 0), (1, 2), (2, 2)]
        assert [key for _, key in rows_of(driver, "aircraft")] == sorted(tails[2:4])


@pytest.mark.slow
def test_task_that_is_opened_again_retires_at_the_times_of_the_grid_alone() -> None:
    tails = [tail for tail in (f"N{number}" for number in range(50)) if partition_of(tail.encode(), PARTITIONS) == 0]
    left = dict(zip(tails, (1, 24, 26, 30), strict=False))
    kept = []
    with driver_for(SETTINGS) as driver:
        for tail, hour in left.items():
            pipe(driver, Flight(tail, "UA", 1, "JFK", hour * HOUR_MS, hour * HOUR_MS, 0))
            driver.commit()
            driver.restart()
            kept.append([left[key] for _, key in rows_of(driver, "aircraft")])
    assert [sorted(hours) for hours in kept] == [[1], [1, 24], [1, 24, 26], [24, 26, 30]]


def test_board_has_two_groups_of_tasks() -> None:
    groups = task_groups(SETTINGS)
    assert {number: [spec.name for spec in one.specs] for number, one in groups.items()} == {
        0: ["aircraft"],
        1: ["delays", "three-hours", "final-delays"],
    }
