"""The index of open windows against a plain set, with limits so small that it drops entries all the time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.stream.open_windows import NEVER, Entry, OpenWindows

ENTRIES = st.tuples(st.integers(0, 12), st.sampled_from([b"", b"a", b"a\0", b"b"]))
STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "discard"]), ENTRIES)
    | st.tuples(st.just("close"), st.integers(0, 13))
    | st.tuples(st.just("undo"), st.integers(0, 13)),
    max_size=40,
)


def take_all(index: OpenWindows, through: int, stored: set[Entry]) -> list[Entry]:
    """Act as final results do: take, and refill from the store while that may hold more."""
    taken = []
    while True:
        taken += index.take(through)
        if not index.needs_scan(through):
            return taken
        index.refill(iter(stored))


@given(STEPS, st.integers(1, 6), st.sets(ENTRIES), st.booleans())
def test_every_window_is_taken_once_in_order_whatever_the_limit(
    steps: list[tuple[str, object]], limit: int, before: set[Entry], knows: bool
) -> None:
    # `stored` are rows that were not given yet; ends up to `closed` were.
    stored = set() if knows else set(before)
    index = OpenWindows(None if knows else (0,), limit)
    closed = -1
    for what, given_ in steps:
        if what == "add":
            entry = given_
            if entry[0] > closed:  # type: ignore[index]
                stored.add(entry)  # type: ignore[arg-type]
                index.add(*entry)  # type: ignore[misc]
        elif what == "discard":
            stored.discard(given_)
            index.discard(*given_)  # type: ignore[misc]
        else:
            through: int = given_  # type: ignore[assignment]
            due = sorted(entry for entry in stored if entry[0] <= through)
            assert not due or index.next_end <= through
            assert take_all(index, through, stored) == due
            if what == "undo":
                index.put_back(due)
            else:
                closed = max(closed, through)
                stored -= set(due)
        assert len(index) <= max(limit, 1)
        assert index.next_end <= min((entry[0] for entry in stored), default=NEVER)


def test_index_with_room_never_needs_a_scan() -> None:
    index = OpenWindows()
    for end in range(100):
        index.add(end, b"a")
    assert not index.needs_scan(10**9)
    assert index.take(49) == [(end, b"a") for end in range(50)]
    assert (len(index), index.next_end) == (50, 50)


def test_full_index_keeps_what_ends_first() -> None:
    index = OpenWindows(limit=4)
    for end in (50, 10, 40, 20, 30):
        index.add(end, b"a")
    assert index.frontier == (30, b"a")
    assert index.take(25) == [(10, b"a"), (20, b"a")]
    assert index.next_end == 30
    assert not index.needs_scan(29)
    assert index.needs_scan(30)


def test_one_window_of_many_keys_is_let_go_by_key() -> None:
    index = OpenWindows(limit=4)
    for key in (b"e", b"a", b"d", b"b", b"c"):
        index.add(7, key)
    assert index.frontier == (7, b"c")
    assert index.take(7) == [(7, b"a"), (7, b"b")]
    index.refill([(7, key) for key in (b"a", b"b", b"c", b"d", b"e")])
    assert index.take(7) == [(7, b"c"), (7, b"d"), (7, b"e")]
    assert index.frontier is None


def test_refill_takes_only_as_much_as_there_is_room_for() -> None:
    index = OpenWindows((5,), limit=2)
    assert index.next_end == 5
    index.refill((end, b"a") for end in (9, 4, 5, 7, 8))
    assert (len(index), index.frontier, index.next_end) == (2, (8, b"a"), 5)


def test_windows_that_come_and_go_leave_nothing_behind() -> None:
    index = OpenWindows()
    for end in range(10_000):
        index.add(end, b"a")
        index.discard(end, b"a")
    assert len(index) == 0
    assert len(index._ends) < 200
    assert index.take(10_000) == []
    assert index.next_end == NEVER


@pytest.mark.parametrize("end", [4, 5])
def test_absent_window_is_discarded_in_peace(end: int) -> None:
    index = OpenWindows()
    index.add(5, b"a")
    index.discard(end, b"b")
    assert index.take(9) == [(5, b"a")]
