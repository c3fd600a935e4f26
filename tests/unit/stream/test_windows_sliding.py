"""Sliding windows: the rows that records make and update, against their definition by brute force.

Rules of this file: as in `test_windows.py`: small times, one key, and a `SlidingRun` is the smallest possible
aggregation. The effects of records within grace are exact; those of later ones are bounded from both sides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from standfast.stream.windows import TIME_MAX, SlidingChange, SlidingPlan, SlidingWindows, Window

TIMES = st.lists(st.integers(0, 60), max_size=14)
LENGTHS = st.integers(1, 25)
GRACES = st.integers(0, 20)
NO_HURRY = 1_000_000  # a grace that no record exceeds


class SlidingRun:
    """Rows of one key, each with all times that it holds; `retention_ms` hides rows as a store does."""

    def __init__(self, windows: SlidingWindows, retention_ms: int = TIME_MAX) -> None:
        self.windows = windows
        self.retention_ms = retention_ms
        self.rows: dict[int, list[int]] = {}
        self.observed_ms = -1
        self.taken: list[int] = []

    def add(self, timestamp: int) -> SlidingPlan:
        self.observed_ms = max(self.observed_ms, timestamp)
        low, high = self.windows.search_starts(timestamp)
        low = max(low, self.observed_ms - self.retention_ms + 1)
        seen = {start: list(times) for start, times in self.rows.items() if low <= start <= high}
        stored = [(start, max(times)) for start, times in seen.items()]
        plan = self.windows.plan(timestamp, stored, self.observed_ms)
        self.taken.append(timestamp)
        for change in plan.changes:
            base = [] if change.source is None else seen[change.source]
            self.rows[change.window.start] = sorted([*base, timestamp] if change.adds else base)
            assert change.timestamp == max(self.rows[change.window.start])
            assert change.window.end == change.window.start + self.windows.difference_ms
        return plan


def window_at(windows: SlidingWindows, start: int) -> Window:
    return Window(start, start + windows.difference_ms)


def defined_sliding(times: Iterable[int], difference: int) -> dict[int, list[int]]:
    """Every window that the records define, with all records that it holds."""
    records = sorted(times)
    starts = {max(0, at - difference) for at in records}
    starts |= {at + 1 for at in records if any(at < other <= at + 1 + difference for other in records)}
    return {start: [at for at in records if start <= at <= start + difference] for start in starts}


@given(times=TIMES, difference=LENGTHS)
@example(times=[20, 9], difference=10)  # difference + 1 apart: left window of one is right window of the other
@example(times=[9, 20], difference=10)
@example(times=[10, 20], difference=10)
@example(times=[3, 12, 0, 10], difference=10)
@example(times=[10, 3], difference=10)  # the left window of 10 exists before the early record comes
@example(times=[0, 0], difference=1)
def test_sliding_windows_in_any_order_are_those_of_the_definition(times: list[int], difference: int) -> None:
    run = SlidingRun(SlidingWindows(difference, NO_HURRY))
    for count, timestamp in enumerate(times, start=1):
        assert run.add(timestamp).dropped == ()
        assert run.rows == defined_sliding(times[:count], difference)


@given(times=TIMES, difference=LENGTHS, grace=GRACES)
def test_sliding_windows_of_records_in_order_need_no_grace(times: list[int], difference: int, grace: int) -> None:
    run = SlidingRun(
        SlidingWindows(difference, grace), retention_ms=SlidingWindows(difference, grace).retention_safe_ms
    )
    for timestamp in sorted(times):
        assert run.add(timestamp).dropped == ()
    assert run.rows == defined_sliding(times, difference)


@given(times=TIMES, difference=LENGTHS, grace=GRACES)
@example(times=[35, 1], difference=14, grace=20)  # its left window is closed, and no other is there
@example(times=[36, 1], difference=14, grace=20)  # ... and one later: dropped as a whole
def test_late_record_updates_every_open_sliding_window_and_no_closed_one(
    times: list[int], difference: int, grace: int
) -> None:
    windows = SlidingWindows(difference, grace)
    run = SlidingRun(windows)
    for timestamp in times:
        before = {start: list(held) for start, held in run.rows.items()}
        plan = run.add(timestamp)
        around = {start for start in before if start <= timestamp <= start + difference}
        still_open = {start for start in around if not windows.is_closed(window_at(windows, start), run.observed_ms)}
        for start, held in before.items():
            assert run.rows[start] == (sorted([*held, timestamp]) if start in still_open else held)
        for start in run.rows.keys() - before.keys():
            assert not windows.is_closed(window_at(windows, start), run.observed_ms)
        if timestamp + difference < run.observed_ms - grace:
            assert plan == SlidingPlan((), (window_at(windows, max(0, timestamp - difference)),))
            continue
        left_start = max(0, timestamp - difference)
        left_late = windows.is_closed(window_at(windows, left_start), run.observed_ms)
        assert left_late == (window_at(windows, left_start) in plan.dropped)
        right_of_earlier = {at + 1 for at in run.taken if at < timestamp}
        dropped = {window.start for window in plan.dropped}
        assert around - still_open <= dropped <= {*(around - still_open), left_start, *right_of_earlier}
        assert all(windows.is_closed(window, run.observed_ms) for window in plan.dropped)
        assert run.rows.keys() - before.keys() <= {left_start, timestamp + 1, *right_of_earlier}


@given(times=TIMES, difference=LENGTHS, grace=GRACES)
@example(times=[7, 3, 6], difference=4, grace=2)  # 6 cannot see 3, whose left window was never written
@example(times=[8, 2, 1], difference=4, grace=3)  # the window right of 1 is not made, though it would hold 2
@example(times=[7, 20, 9, 11, 9], difference=8, grace=4)  # the second 9 makes [10, 18] out of a row with the first
def test_sliding_windows_hold_all_that_came_within_grace_and_at_most_what_came_later(
    times: list[int], difference: int, grace: int
) -> None:
    run = SlidingRun(SlidingWindows(difference, grace))
    within: list[int] = []
    taken: list[int] = []
    for timestamp in times:
        run.add(timestamp)
        taken += [timestamp] if timestamp + difference >= run.observed_ms - grace else []
        within += [timestamp] if timestamp >= run.observed_ms - grace else []
        most, least = defined_sliding(taken, difference), defined_sliding(within, difference)
        late = Counter(taken) - Counter(within)
        assert run.rows.keys() <= most.keys()
        assert least.keys() <= run.rows.keys()
        for start, held in run.rows.items():
            assert Counter(least.get(start, [])) <= Counter(held)
            assert Counter(held) - Counter(most[start]) <= late
        if not late:
            assert run.rows == most


def test_record_too_late_for_its_left_window_goes_only_into_the_rows_that_are_there() -> None:
    # Observed 35, grace 20: windows that end before 15 are closed. The record at 1 could be in [1, 15] at most.
    windows = SlidingWindows(14, grace_ms=20)
    assert windows.plan(1, [(21, 35)], 35) == SlidingPlan((), (Window(0, 14),))
    plan = windows.plan(1, [(1, 12), (21, 35)], 35)
    assert plan.dropped == (Window(0, 14),)
    assert plan.changes == (
        SlidingChange(Window(1, 15), 1, True, 12),  # stored and open: updated
        SlidingChange(Window(2, 16), 1, False, 12),  # its own right window, which holds the record at 12
    )
    assert windows.plan(0, [(21, 35)], 35) == SlidingPlan((), (Window(0, 14),))  # one earlier: nothing open holds it


def test_late_record_without_a_left_window_is_not_known_to_later_ones() -> None:
    # As in Kafka Streams: the record before is looked up in the rows, and [0, 4] was closed when the record at 3 came.
    run = SlidingRun(SlidingWindows(4, grace_ms=2))
    run.add(7)
    assert run.add(3).dropped == (Window(0, 4),)
    assert run.rows == {3: [3, 7], 4: [7]}
    assert run.add(6).dropped == ()
    assert run.rows == {2: [6], 3: [3, 6, 7], 4: [6, 7], 7: [7]}


@given(times=TIMES, difference=LENGTHS, grace=GRACES)
def test_sliding_windows_need_no_more_than_the_safe_retention(times: list[int], difference: int, grace: int) -> None:
    windows = SlidingWindows(difference, grace)
    whole, kept = SlidingRun(windows), SlidingRun(windows, windows.retention_safe_ms)
    for timestamp in times:
        whole.add(timestamp)
        kept.add(timestamp)
        still_open = [s for s in whole.rows if not windows.is_closed(Window(s, s + difference), whole.observed_ms)]
        assert {s: whole.rows[s] for s in still_open} == {s: kept.rows.get(s) for s in still_open}


@pytest.mark.parametrize(
    ("first", "second", "starts"),
    [
        (20, 29, {10, 19, 21}),
        (20, 30, {10, 20, 21}),  # exactly the difference apart: both in [20, 30]
        (20, 31, {10, 21}),  # one more: the right window of 20 is the left window of 31
        (20, 32, {10, 22}),
        (0, 9, {0, 1}),  # two early records share [0, 10]
        (0, 10, {0, 1}),
        (0, 11, {0, 1}),
        (0, 12, {0, 2}),
        (9, 10, {0, 10}),
        (5, 5, {0}),
    ],
)
def test_sliding_windows_of_two_records_at_the_boundaries(first: int, second: int, starts: set[int]) -> None:
    for order in ((first, second), (second, first)):
        run = SlidingRun(SlidingWindows(10, NO_HURRY))
        for timestamp in order:
            run.add(timestamp)
        assert set(run.rows) == starts


@pytest.mark.parametrize(
    ("timestamp", "left", "right"),
    [(0, (0, 10), (1, 11)), (9, (0, 10), (10, 20)), (10, (0, 10), (11, 21)), (11, (1, 11), (12, 22))],
)
def test_record_defines_the_window_left_of_it_and_the_window_right_of_it(
    timestamp: int, left: tuple[int, int], right: tuple[int, int]
) -> None:
    assert SlidingWindows(10).windows_for(timestamp) == [left, right]


@pytest.mark.parametrize(
    ("timestamp", "updated", "dropped"),
    [
        (84, [], [(74, 84)]),  # the last window that could hold it, [84, 94], ended before 95: one skip for the record
        (85, [85], [(75, 85)]),  # ... and here it ended exactly at 95
        (94, [85, 90], [(84, 94)]),
        (95, [85, 90], []),
        (96, [90], []),
    ],
)
def test_late_sliding_record_is_dropped_by_window_at_the_boundary(
    timestamp: int, updated: list[int], dropped: list[tuple[int, int]]
) -> None:
    # Observed 100, grace 5: windows that end before 95 are closed. The row at 85 ends exactly there.
    plan = SlidingWindows(10, grace_ms=5).plan(timestamp, [(85, 95), (90, 100)], observed_ms=100)
    assert [change.window.start for change in plan.changes if change.source == change.window.start] == updated
    assert list(plan.dropped) == dropped
    assert bool(plan.changes) == bool(updated)


def test_sliding_rows_outside_the_search_are_left_out_of_account() -> None:
    windows = SlidingWindows(10, NO_HURRY)
    assert windows.search_starts(50) == (30, 51)
    assert windows.search_starts(19) == (0, 20)
    inside = [(40, 45), (46, 47)]
    assert windows.plan(50, [*inside, (29, 39), (52, 60)], 60) == windows.plan(50, inside, 60)
