"""Windowed aggregations against brute force: every window by its definition, from all accepted records.

A model keeps the accepted records and recomputes its windows each time: aligned windows and sessions by their
definitions, sliding windows by those of KIP-450. The expected results are the changes from one record to the next: at
once, at the flush (net), or on close (each window that the time has passed, once, in order).

Rules of this file: the application runs on the test driver with flushes and restarts at random points; times are small,
with gaps. An aggregate is the list of the values in their order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.stream import open_windows
from standfast.stream.emit import ON_WINDOW_CLOSE, ON_WINDOW_UPDATE, EmitStrategy
from standfast.stream.windows import (
    AnyWindows,
    HoppingWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
)
from support.aggregates import STORE, Result, driven, drops, listed, results

KEYS = ["a", "a\0", "b"]


class Seen(NamedTuple):
    number: int
    key: str
    time: int


class Row(NamedTuple):
    """A window of a key: its values, and its timestamp."""

    values: tuple[int, ...]
    timestamp: int


Rows = dict[tuple[int, int, str], Row]  # by (end, start, key), the order of final results


def aligned_rows(windows: TumblingWindows | HoppingWindows, accepted: dict[tuple[int, str], list[Seen]]) -> Rows:
    return {
        (start + windows.size_ms, start, key): Row(tuple(one.number for one in found), max(one.time for one in found))
        for (start, key), found in accepted.items()
    }


class Aligned:
    """Windows [start, start + size) with start a multiple of the advance; each accepts a record on its own."""

    def __init__(self, windows: TumblingWindows | HoppingWindows) -> None:
        self.windows = windows
        self.advance = windows.advance_ms if isinstance(windows, HoppingWindows) else windows.size_ms
        self.accepted: dict[tuple[int, str], list[Seen]] = {}
        self.last_changes: list[tuple[int, int, str]] = []

    def add(self, one: Seen, observed: int) -> int:
        """Add a record; returns the number of windows that it was too late for."""
        size, late = self.windows.size_ms, 0
        for start in range(0, one.time + 1, self.advance):
            if start <= one.time < start + size:
                if start + size > observed - self.windows.grace_ms:
                    self.accepted.setdefault((start, one.key), []).append(one)
                else:
                    late += 1
        return late

    def rows(self) -> Rows:
        return aligned_rows(self.windows, self.accepted)


class Sliding:
    """For each record the window left of it, and the one right of it if that holds a record."""

    def __init__(self, windows: SlidingWindows) -> None:
        self.windows = windows
        self.accepted: list[Seen] = []

    def add(self, one: Seen, observed: int) -> int:
        assert one.time >= observed - self.windows.grace_ms  # no other records: else a window may lack some
        self.accepted.append(one)
        return 0

    def rows(self) -> Rows:
        found: Rows = {}
        length = self.windows.difference_ms
        for key in KEYS:
            own = [one for one in self.accepted if one.key == key]
            starts = {max(0, one.time - length) for one in own}
            starts |= {one.time + 1 for one in own}
            for start in starts:
                inside = [one for one in own if start <= one.time <= start + length]
                if inside:
                    largest = max(one.time for one in inside)
                    found[start + length, start, key] = Row(tuple(sorted(one.number for one in inside)), largest)
        return found


class Sessions:
    """Accepted records split where the pause is longer than the gap; a record counts if its session is open."""

    def __init__(self, windows: SessionWindows) -> None:
        self.windows = windows
        self.accepted: list[Seen] = []
        self.given: Rows = {}

    def close(self, through: int) -> None:
        """Keep the sessions already given: later records do not join them."""
        final = {at: row for at, row in self.rows().items() if at[0] <= through and at not in self.given}
        self.given |= final
        told = {number for row in final.values() for number in row.values}
        self.accepted = [one for one in self.accepted if one.number not in told]

    def add(self, one: Seen, observed: int) -> int:
        self.accepted.append(one)
        (end,) = (end for (end, _, _), row in self.rows().items() if one.number in row.values)
        if end < observed - self.windows.grace_ms - self.windows.gap_ms:
            self.accepted.pop()
            return 1
        return 0

    def rows(self) -> Rows:
        found: Rows = dict(self.given)
        for key in KEYS:
            session: list[Seen] = []
            for one in [*sorted((one for one in self.accepted if one.key == key), key=lambda one: one.time), None]:
                if session and (one is None or one.time - session[-1].time > self.windows.gap_ms):
                    end = session[-1].time
                    found[end, session[0].time, key] = Row(tuple(sorted(seen.number for seen in session)), end)
                    session = []
                if one is not None:
                    session.append(one)
        return found


MODELS: dict[type, Callable[[Any], Any]] = {
    TumblingWindows: Aligned,
    HoppingWindows: Aligned,
    SlidingWindows: Sliding,
    SessionWindows: Sessions,
}
# Small, so that records meet at the boundaries.
LENGTHS = st.integers(1, 5)
GRACES = st.integers(0, 4)
WINDOWS: dict[str, st.SearchStrategy[Any]] = {
    "tumbling": st.builds(TumblingWindows, LENGTHS, GRACES),
    "hopping": st.tuples(LENGTHS, LENGTHS, GRACES).map(
        lambda drawn: HoppingWindows(max(drawn[:2]), min(drawn[:2]), drawn[2])
    ),
    "sliding": st.builds(SlidingWindows, LENGTHS, GRACES),
    "session": st.builds(SessionWindows, LENGTHS, GRACES),
}
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("a"), st.integers(-9, 5)),
        st.tuples(st.sampled_from(KEYS), st.integers(-4, 4)),
        st.tuples(st.sampled_from(KEYS), st.sampled_from([0, 1, 9, 200_000])),
        st.sampled_from([("flush", 0), ("restart", 0)]),
    ),
    min_size=5,
    max_size=20,
)


def as_set(result: Result) -> Result:
    """Merges and right windows put values in another order than their arrival; a set is enough."""
    value, old = (None if one is None else sorted(one) for one in (result.value, result.old))
    return result._replace(value=value, old=old)


def play(windows: AnyWindows, emit: EmitStrategy, caching: bool, steps: list[tuple[str, int]], limit: int) -> None:
    """Run the application and the model side by side, and compare after every step."""
    model, observed, closed, late, flushed = MODELS[type(windows)](windows), -1, -1, 0, Rows()
    # On update, sessions that are closed can still be joined while they are kept: here all are.
    settings_ = {"retention_ms": 10**9} if isinstance(windows, SessionWindows) else {}
    given_limit = open_windows.LIMIT_ENTRIES
    open_windows.LIMIT_ENTRIES = limit
    try:
        with driven(windows, listed, emit=emit, caching=caching, engine="memory", **settings_) as driver:
            for number, (what, step) in enumerate(steps):
                if what in ("flush", "restart"):
                    driver.commit() if what == "flush" else driver.restart()
                    found, rows = [as_set(one) for one in results(driver)], model.rows()
                    expected = net(flushed, rows) if emit is ON_WINDOW_UPDATE and caching else []
                    assert sorted(found, key=by_window) == expected
                    flushed = rows
                    continue
                # Times wander about the observed time; a sliding record is never later than the grace.
                stamp = max(
                    observed + step, observed - windows.grace_ms if isinstance(windows, SlidingWindows) else 0, 0
                )
                observed, before = max(observed, stamp), model.rows()
                through = windows.closed_through(observed)
                final = [named(at, row, None) for at, row in sorted(before.items()) if closed < at[0] <= through]
                closed = max(closed, through)
                if isinstance(model, Sessions) and emit is ON_WINDOW_CLOSE:
                    model.close(through)
                late += model.add(Seen(number, what, stamp), observed)
                driver.pipe("in", what, number, stamp)
                found = [as_set(one) for one in results(driver)]
                if emit is ON_WINDOW_CLOSE:
                    assert found == final
                elif caching:
                    assert found == []
                else:
                    assert_at_once(found, before, model.rows(), number)
                assert drops(driver).get("late_window", 0) == late
            driver.commit()
            if emit is ON_WINDOW_UPDATE and caching:
                assert sorted(map(as_set, results(driver)), key=by_window) == net(flushed, model.rows())
    finally:
        open_windows.LIMIT_ENTRIES = given_limit


def named(at: tuple[int, int, str], row: Row | None, old: Row | None) -> Result:
    end, start, key = at
    timestamp = end if row is None else row.timestamp
    return Result(key, start, end, row and sorted(row.values), old and sorted(old.values), timestamp)


def by_window(result: Result) -> Any:
    return result.end, result.start, result.key


def net(before: Rows, after: Rows) -> list[Result]:
    """The differences, by window."""
    changed = sorted(at for at in {*before, *after} if before.get(at) != after.get(at))
    return [named(at, after.get(at), before.get(at)) for at in changed]


def assert_at_once(found: list[Result], before: Rows, after: Rows, number: int) -> None:
    """Applied to the rows before, the results give the rows now, and each names the value that it replaces.

    They include every change, and beside changes only sessions that keep their bounds.
    """
    now: dict[Any, Any] = {at: sorted(row.values) for at, row in before.items()}
    for one in found:
        at = (one.end, one.start, one.key)
        assert one.old == now.get(at)
        now[at] = one.value
        if one.value is not None:
            assert one.timestamp == after[at].timestamp  # type: ignore[index]
            assert number in one.value or at not in before
    assert {at: values for at, values in now.items() if values is not None} == {
        at: sorted(row.values) for at, row in after.items()
    }
    touched = {(one.end, one.start, one.key) for one in found}
    assert touched == {at for at in {*before, *after} if before.get(at) != after.get(at)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["session", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("hopping", "sliding", "tumbling"))]
)
@pytest.mark.parametrize("caching", [pytest.param(False, marks=pytest.mark.long), True])
@given(st.data())
@settings(max_examples=20)
def test_results_on_update_are_those_of_the_definition(kind: str, caching: bool, data: st.DataObject) -> None:
    play(data.draw(WINDOWS[kind]), ON_WINDOW_UPDATE, caching, data.draw(STEPS), open_windows.LIMIT_ENTRIES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["sliding", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("hopping", "session", "tumbling"))]
)
@given(st.data(), st.sampled_from([1, 2, 5, open_windows.LIMIT_ENTRIES]))
@settings(max_examples=25)
def test_results_on_close_are_those_of_the_definition(kind: str, data: st.DataObject, limit: int) -> None:
    play(data.draw(WINDOWS[kind]), ON_WINDOW_CLOSE, data.draw(st.booleans()), data.draw(STEPS), limit)


def test_stores_are_named_as_the_application_names_them() -> None:
    with driven(TumblingWindows(5), listed) as driver:
        driver.pipe("in", "a", 1, 1)
        assert driver.store(STORE).fetch("a", 0) == [1]
