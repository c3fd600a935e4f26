"""Windows at every boundary, then against their definitions by brute force.

Rules of this file: times are small numbers; one key, because keys never meet. A `Run` is the smallest possible
aggregation: a dict of rows, each the list of the times of its records. Aligned windows and sessions, and common rules
of all kinds; the rows of sliding windows are in `test_windows_sliding.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.store.errors import BadConfig, InvalidRequest
from standfast.stream.windows import (
    TIME_MAX,
    WINDOWS_PER_RECORD_MAX,
    AnyWindows,
    HoppingWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    UnlimitedWindows,
    Window,
)

TIMES = st.lists(st.integers(0, 60), max_size=14)
LENGTHS = st.integers(1, 25)
GRACES = st.integers(0, 20)
NO_HURRY = 1_000_000  # a grace that no record exceeds


# --- aligned windows ---


@pytest.mark.parametrize(
    ("windows", "timestamp", "starts"),
    [
        (TumblingWindows(90_000), 1667200780479, [1667200770000]),
        (HoppingWindows(90_000), 1667200780479, [1667200770000]),
        (TumblingWindows(10), 0, [0]),
        (TumblingWindows(10), 9, [0]),
        (TumblingWindows(10), 10, [10]),
        (TumblingWindows(10), 11, [10]),
        (TumblingWindows(1), 7, [7]),
        (HoppingWindows(10, 5), 0, [0]),  # never a window before 0
        (HoppingWindows(10, 5), 4, [0]),
        (HoppingWindows(10, 5), 5, [0, 5]),
        (HoppingWindows(10, 5), 9, [0, 5]),
        (HoppingWindows(10, 5), 10, [5, 10]),
        (HoppingWindows(10, 5), 11, [5, 10]),
        (HoppingWindows(10, 3), 9, [0, 3, 6, 9]),  # the advance need not divide the size
        (HoppingWindows(10, 3), 10, [3, 6, 9]),
        (HoppingWindows(10, 3), 12, [3, 6, 9, 12]),
        (HoppingWindows(10, 3), 13, [6, 9, 12]),
        (HoppingWindows(10, 10), 10, [10]),
        (HoppingWindows(3, 1), 1, [0, 1]),
        (HoppingWindows(3, 1), 5, [3, 4, 5]),
    ],
)
def test_record_belongs_to_the_windows_around_it(
    windows: TumblingWindows | HoppingWindows, timestamp: int, starts: list[int]
) -> None:
    assert windows.windows_for(timestamp) == [Window(start, start + windows.size_ms) for start in starts]


@given(size=st.integers(1, 40), advance=st.integers(1, 40), timestamp=st.integers(0, 200))
def test_hopping_windows_are_all_that_hold_the_record(size: int, advance: int, timestamp: int) -> None:
    advance = min(advance, size)
    every = [Window(start, start + size) for start in range(0, timestamp + 1, advance)]
    assert HoppingWindows(size, advance).windows_for(timestamp) == [w for w in every if w.start <= timestamp < w.end]


@given(size=st.integers(1, TIME_MAX), timestamp=st.integers(0, TIME_MAX))
def test_tumbling_is_hopping_by_its_size(size: int, timestamp: int) -> None:
    (window,) = TumblingWindows(size).windows_for(timestamp)
    assert [window] == HoppingWindows(size, size).windows_for(timestamp) == HoppingWindows(size).windows_for(timestamp)
    assert window.start <= timestamp < window.start + size and window.start % size == 0
    assert window.end == min(window.start + size, TIME_MAX)


def test_unlimited_window_begins_at_its_start_and_has_no_end() -> None:
    windows = UnlimitedWindows(start_ms=100)
    assert windows.windows_for(99) == []
    assert windows.windows_for(100) == windows.windows_for(TIME_MAX) == [Window(100, TIME_MAX)]
    assert UnlimitedWindows().windows_for(0) == [Window(0, TIME_MAX)]
    assert windows.start_ms + windows.size_ms == TIME_MAX


# --- closing ---


@pytest.mark.parametrize(
    ("windows", "window", "last_open"),
    [
        (TumblingWindows(10), Window(0, 10), 9),  # closed by the first record outside of it
        (TumblingWindows(10, grace_ms=5), Window(0, 10), 14),
        (HoppingWindows(10, 5, grace_ms=5), Window(5, 15), 19),
        (HoppingWindows(10, 5, 5), Window(0, 10), 14),
        (SlidingWindows(10), Window(0, 10), 10),  # the end is a time in the window
        (SlidingWindows(10, grace_ms=5), Window(3, 13), 18),
        (SessionWindows(10), Window(2, 7), 17),  # a record at 17 would still join
        (SessionWindows(10, grace_ms=5), Window(7, 7), 22),
    ],
)
def test_window_closes_one_after_its_last_open_moment(windows: AnyWindows, window: Window, last_open: int) -> None:
    assert not windows.is_closed(window, last_open - 1)
    assert not windows.is_closed(window, last_open)
    assert windows.is_closed(window, last_open + 1)
    assert windows.closed_through(last_open) == window.end - 1
    assert windows.closed_through(last_open + 1) == window.end


def test_close_time_is_observed_less_grace_and_for_sessions_less_gap() -> None:
    assert TumblingWindows(10, 3).close_time(100) == 97
    assert HoppingWindows(10, 5, 3).close_time(100) == 97
    assert SlidingWindows(10, 3).close_time(100) == 97
    assert SessionWindows(10, 3).close_time(100) == 87


def test_unlimited_window_never_closes() -> None:
    windows = UnlimitedWindows()
    assert not windows.is_closed(Window(0, TIME_MAX), TIME_MAX)
    assert windows.closed_through(TIME_MAX) < 0
    assert windows.grace_ms == 0


@pytest.mark.parametrize(
    "windows", [TumblingWindows(7, 3), HoppingWindows(9, 2, 4), SlidingWindows(7), SessionWindows(5, 2)]
)
def test_closed_through_is_the_largest_closed_end(windows: AnyWindows) -> None:
    for observed in range(60):
        through = windows.closed_through(observed)
        for end in range(80):
            assert windows.is_closed(Window(max(0, end - 1), end), observed) == (end <= through)


def test_only_the_windows_that_are_late_are_dropped() -> None:
    windows = HoppingWindows(10, 5, grace_ms=2)
    late = [w for w in windows.windows_for(9) if windows.is_closed(w, 12)]
    assert late == [Window(0, 10)]
    assert [w for w in windows.windows_for(9) if windows.is_closed(w, 11)] == []


# --- retention ---


@pytest.mark.parametrize(
    ("windows", "least", "safe"),
    [
        (TumblingWindows(100, 7), 107, 107),
        (HoppingWindows(100, 10, 7), 107, 107),
        (SlidingWindows(100, 7), 207, 209),
        (SessionWindows(100, 7), 107, 108),
        (UnlimitedWindows(), TIME_MAX, TIME_MAX),
    ],
)
def test_smallest_retention_of_each_kind(windows: AnyWindows, least: int, safe: int) -> None:
    assert (windows.retention_min_ms, windows.retention_safe_ms) == (least, safe)


@pytest.mark.parametrize("windows", [TumblingWindows(7, 3), HoppingWindows(9, 2, 4)])
def test_safe_retention_hides_no_open_aligned_window_and_one_less_does(
    windows: TumblingWindows | HoppingWindows,
) -> None:
    for retention, hidden_any in ((windows.retention_safe_ms, False), (windows.retention_safe_ms - 1, True)):
        open_and_hidden = [
            (window, observed)
            for timestamp in range(60)
            for window in windows.windows_for(timestamp)
            for observed in range(60)
            if not windows.is_closed(window, observed) and window.start <= observed - retention
        ]
        assert bool(open_and_hidden) == hidden_any


def test_safe_retention_hides_no_open_session_and_one_less_does() -> None:
    windows = SessionWindows(10, 3)
    for observed in range(40):
        for end in range(observed + 1):
            session_open = not windows.is_closed(Window(0, end), observed)
            assert session_open == (end > observed - windows.retention_safe_ms)


# --- sessions ---


class SessionRun:
    """Sessions of one key, each with all times that it holds."""

    def __init__(self, windows: SessionWindows) -> None:
        self.windows = windows
        self.rows: dict[Window, list[int]] = {}
        self.observed_ms = -1

    def add(self, timestamp: int) -> bool:
        """False if the record was dropped."""
        self.observed_ms = max(self.observed_ms, timestamp)
        merge = self.windows.merge(self.rows, timestamp)
        if self.windows.is_closed(merge.session, self.observed_ms):
            return False
        times = sorted([timestamp, *(time for session in merge.absorbed for time in self.rows[session])])
        for session in merge.removed:
            del self.rows[session]
        self.rows[merge.session] = times
        return True


def defined_sessions(times: Iterable[int], gap: int) -> dict[Window, list[int]]:
    groups: list[list[int]] = []
    for time in sorted(times):
        if groups and time - groups[-1][-1] <= gap:
            groups[-1].append(time)
        else:
            groups.append([time])
    return {Window(group[0], group[-1]): group for group in groups}


@given(times=TIMES, gap=LENGTHS)
def test_sessions_in_any_order_are_the_times_split_at_the_gaps(times: list[int], gap: int) -> None:
    run = SessionRun(SessionWindows(gap, NO_HURRY))
    for count, timestamp in enumerate(times, start=1):
        assert run.add(timestamp)
        assert run.rows == defined_sessions(times[:count], gap)


@given(times=TIMES, gap=LENGTHS, grace=GRACES)
def test_record_within_grace_is_never_dropped_from_its_session(times: list[int], gap: int, grace: int) -> None:
    windows = SessionWindows(gap, grace)
    run = SessionRun(windows)
    taken: list[int] = []
    for timestamp in times:
        kept = run.add(timestamp)
        taken += [timestamp] if kept else []
        assert kept or timestamp < run.observed_ms - grace - gap
        assert run.rows == defined_sessions(taken, gap)


@pytest.mark.parametrize(
    ("timestamp", "session", "absorbed"),
    [
        (39, (39, 39), []),
        (40, (40, 60), [(50, 60)]),  # exactly the gap before the start
        (41, (41, 60), [(50, 60)]),
        (50, (50, 60), [(50, 60)]),
        (55, (50, 60), [(50, 60)]),
        (60, (50, 60), [(50, 60)]),
        (69, (50, 69), [(50, 60)]),
        (70, (50, 80), [(50, 60), (80, 80)]),  # a bridge: exactly the gap from both
        (71, (71, 80), [(80, 80)]),
        (80, (80, 80), [(80, 80)]),
        (90, (80, 90), [(80, 80)]),
        (91, (91, 91), []),
    ],
)
def test_record_joins_the_sessions_within_the_gap(
    timestamp: int, session: tuple[int, int], absorbed: list[tuple[int, int]]
) -> None:
    windows = SessionWindows(10)
    for existing in ([(50, 60), (80, 80)], [(80, 80), (50, 60)]):
        merge = windows.merge(existing, timestamp)
        assert (merge.session, list(merge.absorbed)) == (session, absorbed)
        assert merge.removed == (() if timestamp == 80 else merge.absorbed)


def test_session_bounds_are_the_gap_to_both_sides() -> None:
    assert SessionWindows(10).search_bounds(100) == (90, 110)
    assert SessionWindows(10).search_bounds(3) == (-7, 13)


def test_late_record_is_kept_if_the_session_it_joins_is_open() -> None:
    windows = SessionWindows(10, grace_ms=5)  # observed 100: sessions that end before 85 are closed
    assert windows.is_closed(windows.merge([], 84).session, 100)
    assert not windows.is_closed(windows.merge([], 85).session, 100)
    assert not windows.is_closed(windows.merge([(85, 85)], 75).session, 100)
    assert windows.is_closed(windows.merge([(85, 85)], 74).session, 100)


# --- refusals ---

NOT_LENGTHS = [0, -1, True, 1.0, "10", None, TIME_MAX + 1]
NOT_GRACES = [-1, False, 0.0, "0", None, TIME_MAX + 1]


@pytest.mark.parametrize("bad", NOT_LENGTHS)
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda bad: TumblingWindows(bad), "TumblingWindows: size_ms"),
        (lambda bad: HoppingWindows(bad, 5), "HoppingWindows: size_ms"),
        (lambda bad: SlidingWindows(bad), "SlidingWindows: difference_ms"),
        (lambda bad: SessionWindows(bad), "SessionWindows: gap_ms"),
    ],
)
def test_length_that_is_not_a_whole_number_above_0_is_refused(
    make: Callable[[object], AnyWindows], name: str, bad: object
) -> None:
    with pytest.raises(BadConfig) as refused:
        make(bad)
    assert refused.value.problems == (
        f"{name} must be a whole number of milliseconds above 0 and at most 2^63 - 1, not {bad!r}",
    )


@pytest.mark.parametrize("bad", NOT_GRACES)
@pytest.mark.parametrize(
    "make",
    [
        lambda bad: TumblingWindows(10, bad),
        lambda bad: HoppingWindows(10, 5, bad),
        lambda bad: SlidingWindows(10, grace_ms=bad),
        lambda bad: SessionWindows(10, grace_ms=bad),
    ],
)
def test_grace_that_is_not_a_whole_number_from_0_is_refused(make: Callable[[object], AnyWindows], bad: object) -> None:
    with pytest.raises(BadConfig, match=r"grace_ms must be a whole number of milliseconds at least 0"):
        make(bad)


@pytest.mark.parametrize("bad", [bad for bad in NOT_LENGTHS if bad is not None])
def test_advance_that_is_not_a_whole_number_above_0_is_refused(bad: int) -> None:
    with pytest.raises(BadConfig, match="HoppingWindows: advance_ms must be a whole number of milliseconds above 0"):
        HoppingWindows(10, bad)


def test_advance_above_the_size_is_refused_and_the_size_itself_is_not() -> None:
    with pytest.raises(BadConfig, match=r"advance_ms 11 is above size_ms 10.*at most the size"):
        HoppingWindows(10, 11)
    assert HoppingWindows(10, 10).advance_ms == HoppingWindows(10).advance_ms == 10


def test_hopping_windows_have_a_bound_on_the_windows_of_one_record() -> None:
    assert HoppingWindows(WINDOWS_PER_RECORD_MAX, 1).size_ms == WINDOWS_PER_RECORD_MAX
    with pytest.raises(BadConfig, match="give a larger advance, or use SlidingWindows"):
        HoppingWindows(WINDOWS_PER_RECORD_MAX + 1, 1)


@pytest.mark.parametrize("bad", [-1, True, 1.0, "0", None, TIME_MAX + 1])
def test_unlimited_start_that_is_not_a_whole_number_from_0_is_refused(bad: int) -> None:
    with pytest.raises(BadConfig, match="UnlimitedWindows: start_ms must be a whole number of milliseconds at least 0"):
        UnlimitedWindows(bad)


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(BadConfig) as refused:
        HoppingWindows(0, 0, -1)
    assert [problem.split()[1] for problem in refused.value.problems] == ["size_ms", "advance_ms", "grace_ms"]


@pytest.mark.parametrize("bad", [-1, True, 1.0, "5", None, TIME_MAX + 1])
@pytest.mark.parametrize(
    "ask",
    [
        TumblingWindows(10).windows_for,
        HoppingWindows(10, 5).windows_for,
        UnlimitedWindows().windows_for,
        SlidingWindows(10).windows_for,
        SlidingWindows(10).search_starts,
        lambda bad: SlidingWindows(10).plan(bad, [], 0),
        SessionWindows(10).search_bounds,
        lambda bad: SessionWindows(10).merge([], bad),
    ],
)
def test_timestamp_that_is_no_time_is_refused(ask: Callable[[object], object], bad: object) -> None:
    with pytest.raises(InvalidRequest, match="skip the record, or give it a time"):
        ask(bad)


def test_windows_are_values() -> None:
    assert TumblingWindows(10) == TumblingWindows(10, 0) != TumblingWindows(10, 1)
    assert HoppingWindows(10, 5) == HoppingWindows(size_ms=10, advance_ms=5) != HoppingWindows(10, 4)
    kinds: list[AnyWindows] = [TumblingWindows(10), HoppingWindows(10, 10)]
    assert kinds[0] != kinds[1]
    assert len({SessionWindows(10), SessionWindows(10), SlidingWindows(10)}) == 2
    with pytest.raises(AttributeError):
        TumblingWindows(10).size_ms = 5  # type: ignore[misc]
