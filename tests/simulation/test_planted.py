"""Planted bugs are found by worlds, and named by the checker of their kind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.planted import ACK, FIRST, FOUND_WITHIN, SECOND, Bug, finds, place, planted, search

BUGS = [
    pytest.param(bug, id=f"{bug.kind}, {number}")
    for number, bugs in enumerate((FIRST, SECOND), 1)
    for bug in bugs.values()
]


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_within_its_number_of_seeds_and_named_by_its_checker(bug: Bug):
    # Its own seed first, which saves the search; a change of the product may move it (python -m simulator.planted).
    assert finds(bug, bug.seed) is not None or search(bug, range(FOUND_WITHIN)) is not None


def test_both_variants_of_a_kind_are_planted_at_different_places():
    assert FIRST.keys() == SECOND.keys()
    assert len(FIRST) == 10
    for kind in FIRST:
        assert not FIRST[kind].places.keys() & SECOND[kind].places.keys()


@pytest.mark.parametrize("gone", ["standfast.stream.task.task.Task.gone", "standfast.stream.gone.Task", "gone.Task"])
def test_a_name_that_is_gone_is_an_error_and_plants_nothing(gone: str):
    path, make = next(iter(FIRST[ACK].places.items()))
    before = _vars(path)
    with pytest.raises(LookupError, match="is gone"), planted(replace(FIRST[ACK], places={path: make, gone: make})):
        pass
    assert _vars(path) is before


def test_a_planted_bug_ends_with_its_block():
    for bug in (*FIRST.values(), *SECOND.values()):
        before = [_vars(path) for path in bug.places]
        with planted(bug):
            assert all(_vars(path) is not right for path, right in zip(bug.places, before, strict=True))
        assert [_vars(path) for path in bug.places] == before


def _vars(path: str) -> object:
    owner, name = place(path)
    return vars(owner)[name]
