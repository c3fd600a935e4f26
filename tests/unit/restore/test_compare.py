"""Comparison of two row sets: the counts, the first differences, and both ways of comparing against brute force.

Rules of this file: `expected` is the changelog's side, `actual` the store's.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.restore.compare import Comparison, Difference, compare_rows, compare_sorted
from standfast.restore.digest import LogicalRow
from standfast.store.errors import InternalError

Compare = Callable[..., Comparison]
BOTH = pytest.mark.parametrize("compare", [compare_rows, compare_sorted])

EXPECTED: list[LogicalRow] = [(b"a", 1, b"1"), (b"b", 2, b"2"), (b"c", 3, b"3"), (b"d", 4, b"4")]
ACTUAL: list[LogicalRow] = [(b"a", 1, b"1"), (b"c", 3, b"x"), (b"d", 5, b"4"), (b"e", 5, b"5")]


@BOTH
def test_each_kind_of_difference_is_counted_and_shown(compare: Compare) -> None:
    found = compare(EXPECTED, ACTUAL)
    assert (found.matched, found.missing, found.extra, found.different, found.mismatches) == (1, 1, 1, 2, 4)
    assert found.verdict == "different"
    assert set(found.differences) == {
        Difference("missing", b"b", (2, b"2"), None),
        Difference("different", b"c", (3, b"3"), (3, b"x")),
        Difference("different", b"d", (4, b"4"), (5, b"4")),
        Difference("extra", b"e", None, (5, b"5")),
    }
    assert not found.truncated


@BOTH
@pytest.mark.parametrize("rows", [[], EXPECTED])
def test_equal_sets_are_equal(compare: Compare, rows: list[LogicalRow]) -> None:
    found = compare(rows, iter(rows))
    assert found == Comparison(len(rows), 0, 0, 0, ())
    assert found.verdict == "equal"


@BOTH
@pytest.mark.parametrize(("limit", "shown", "truncated"), [(0, 0, True), (3, 3, True), (4, 4, False), (5, 4, False)])
def test_only_the_first_differences_are_kept_but_all_are_counted(
    compare: Compare, limit: int, shown: int, truncated: bool
) -> None:
    found = compare(EXPECTED, ACTUAL, differences_max=limit)
    assert (len(found.differences), found.truncated, found.mismatches) == (shown, truncated, 4)


@BOTH
def test_versions_of_a_key_are_rows_of_their_own(compare: Compare) -> None:
    expected = [(b"a", 1, b"1"), (b"a", 2, b"2")]
    actual = [(b"a", 1, b"1"), (b"a", 3, b"2")]
    found = compare(expected, actual, versioned=True)
    assert (found.matched, found.missing, found.extra, found.different) == (1, 1, 1, 0)


@BOTH
@pytest.mark.parametrize("side", ["expected", "actual"])
def test_row_twice_on_one_side_is_our_bug(compare: Compare, side: str) -> None:
    rows = {"expected": EXPECTED, "actual": EXPECTED, side: [*EXPECTED, EXPECTED[-1]]}
    with pytest.raises(InternalError, match=f"{side} rows hold key 64"):
        compare(**rows)


def test_rows_out_of_order_are_our_bug() -> None:
    with pytest.raises(InternalError, match="expected rows are not sorted"):
        compare_sorted(EXPECTED[::-1], EXPECTED)
    with pytest.raises(InternalError, match="actual rows are not sorted"):
        compare_sorted(EXPECTED, EXPECTED[::-1])


ROWS = st.dictionaries(
    st.tuples(st.sampled_from([b"", b"a", b"aa", b"b"]), st.integers(0, 3)), st.sampled_from([b"x", b"y"])
)


@given(ROWS, ROWS, st.booleans(), st.randoms(use_true_random=False))
def test_both_ways_equal_brute_force(
    left: dict[tuple[bytes, int], bytes], right: dict[tuple[bytes, int], bytes], versioned: bool, random
) -> None:
    def rows(side: dict[tuple[bytes, int], bytes]) -> list[LogicalRow]:
        named = {name if versioned else name[0]: (*name, value) for name, value in side.items()}
        return sorted(named.values())

    expected, actual = rows(left), rows(right)
    one = {row[:2] if versioned else row[0]: row for row in expected}
    other = {row[:2] if versioned else row[0]: row for row in actual}
    found = compare_sorted(expected, actual, versioned=versioned, differences_max=100)
    assert found.missing == len(one.keys() - other.keys())
    assert found.extra == len(other.keys() - one.keys())
    assert found.different == sum(one[name] != other[name] for name in one.keys() & other.keys())
    assert found.matched + found.missing + found.different == len(expected)
    random.shuffle(expected)
    random.shuffle(actual)
    unsorted = compare_rows(expected, actual, versioned=versioned, differences_max=100)
    assert set(unsorted.differences) == set(found.differences)
    assert unsorted.matched == found.matched
