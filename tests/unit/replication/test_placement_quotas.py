"""Quotas: balanced in every direction, with few moves more than any balance needs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.replication.placement.quotas import quotas
from support.placement_simulation.checks import is_balanced

Present = list[list[int]]


def bounds(total: int, slots: Sequence[int], at: int) -> tuple[int, int]:
    share, rest = divmod(total * slots[at], sum(slots))
    return share, share + bool(rest)


def moved(present: Sequence[Sequence[int]], found: Sequence[Sequence[int]]) -> int:
    return sum(
        max(0, before - after) for rows in zip(present, found, strict=True) for before, after in zip(*rows, strict=True)
    )


def fewest_moves(slots: Sequence[int], totals: Sequence[int], present: Present) -> int:
    """By trying every balanced matrix."""
    rows = [
        [
            row
            for row in itertools.product(
                *(range(low, high + 1) for low, high in (bounds(total, slots, at) for at in range(len(slots))))
            )
            if sum(row) == total
        ]
        for total in totals
    ]
    found = []
    for matrix in itertools.product(*rows):
        sums = [sum(row[at] for row in matrix) for at in range(len(slots))]
        limits = [bounds(sum(totals), slots, at) for at in range(len(slots))]
        if all(low <= one <= high for one, (low, high) in zip(sums, limits, strict=True)):
            found.append(moved(present, matrix))
    return min(found)


@st.composite
def clusters(draw: st.DrawFn, members: int, groups: int, tasks: int) -> tuple[list[int], list[int], Present]:
    slots = draw(st.lists(st.sampled_from([1, 1, 1, 2, 3]), min_size=1, max_size=members))
    totals = draw(st.lists(st.integers(0, tasks), min_size=1, max_size=groups))
    present = []
    for total in totals:
        owners = draw(st.lists(st.integers(0, len(slots) - 1), max_size=total))
        present.append([owners.count(at) for at in range(len(slots))])
    return slots, totals, present


def test_quotas_move_at_most_a_tenth_more_than_any_balance_needs() -> None:
    chance = random.Random(1)
    fewest = made = 0
    for _ in range(300):
        slots = [chance.choice((1, 1, 1, 2, 3)) for _ in range(chance.randint(1, 4))]
        totals = [chance.randint(0, 6) for _ in range(chance.randint(1, 3))]
        present = [[0] * len(slots) for _ in totals]
        for row, total in zip(present, totals, strict=True):
            for _ in range(chance.randint(0, total)):
                row[chance.randrange(len(slots))] += 1
        fewest += fewest_moves(slots, totals, present)
        made += moved(present, quotas(slots, totals, present))
    assert fewest <= made <= 1.1 * fewest


@given(clusters(members=30, groups=6, tasks=200))
def test_quotas_are_shares_rounded_down_or_up_and_members_have_theirs_of_all_tasks_to_one_task(
    cluster: tuple[list[int], list[int], Present],
) -> None:
    slots, totals, present = cluster
    found = quotas(slots, totals, present)
    assert [sum(row) for row in found] == totals
    for at in range(len(slots)):
        for total, row in zip(totals, found, strict=True):
            low, high = bounds(total, slots, at)
            assert low <= row[at] <= high
        low, high = bounds(sum(totals), slots, at)
        assert low - 1 <= sum(row[at] for row in found) <= high + 1
    assert quotas(slots, totals, found) == found, "a balance is left as it is"


def test_no_member_has_no_quota_and_no_task_is_balanced() -> None:
    assert quotas([], [3, 0], [[], []]) == [[], []]
    assert quotas([1, 2], [0], [[0, 0]]) == [[0, 0]]


@pytest.mark.parametrize(
    ("slots", "counts", "balanced"),
    [
        ({"a": 1, "b": 1}, {"a": 6, "b": 6}, True),
        ({"a": 1, "b": 1}, {"a": 7, "b": 6}, True),
        ({"a": 1, "b": 1}, {"a": 7, "b": 5}, False),
        ({"a": 2, "b": 1}, {"a": 8, "b": 4}, True),
        ({"a": 2, "b": 1}, {"a": 6, "b": 6}, False),
        ({"a": 1, "b": 1}, {"a": 2}, False),
    ],
)
def test_balance_is_judged_by_slots(slots: dict[str, int], counts: dict[str, int], balanced: bool) -> None:
    assert is_balanced(slots, counts) is balanced
