"""Sidecars whose partitions move between active, standby and gone, under kills, writers and four scanners.

    a run    two sidecars on one log ──> steps: a move of any partitions, a kill of a server or a worker in it
             ──> every partition is open again in 5 s ──> every acknowledged commit is there, and in the log alone

Rules of this file: it prints the seed of each run; `STANDFAST_CRASH_SEED=<seed> make crash SERVE_RUNS=8
ARGS="-k commit[7]"` repeats every choice, but not the moment of a kill after a delay. Without SERVE_RUNS there are two
short runs, whose seed is the same every time.
"""

from __future__ import annotations

import os
import secrets

import pytest

from support.crash.moves import Moves
from support.crash.moves_load import CODES_ALLOWED, Known, Owner
from support.crash.moves_model import NAMES, Folds, digest
from support.crash.moves_node import CrashedNode
from support.serve import Sidecars

ASKED = os.environ.get("STANDFAST_CRASH_SERVE_RUNS")
RUNS = 1 if ASKED is None else int(ASKED)
STEPS = 2 if ASKED is None else 8


def seed_of(number: int) -> int:
    """The seed of a run's choices."""
    asked = int(os.environ.get("STANDFAST_CRASH_SEED", "0"))
    return asked or (17 if ASKED is None else secrets.randbits(32))


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("number", range(RUNS))
def test_partitions_that_move_under_kills_open_again_with_every_acknowledged_commit(
    sidecars: Sidecars, number: int
) -> None:
    seed = seed_of(number)
    exactly_once, workers = number % 3 != 1, 1 + (number % 4 == 3)
    what = f"{'exactly' if exactly_once else 'at least'} once, {workers} worker{'s' if workers > 1 else ''}"
    print(f"moves run {number}, {what}: STANDFAST_CRASH_SEED={seed}", flush=True)
    moves = Moves(sidecars, f"{seed}-{number}", exactly_once=exactly_once, workers=workers)
    try:
        moves.begin()
        for _ in range(STEPS):
            moves.step()
        moves.end()
    finally:
        moves.close()
    print(f"moves run {number}: {moves.summary()}", flush=True)


# -- the checks of the runs can fail -----------------------------------------------------------------------------------


@pytest.fixture
def known() -> Known:
    found = Known(1, exactly_once=True)
    found.attempt(0, 300)
    return found


@pytest.mark.parametrize("store", NAMES)
def test_digest_of_an_offset_is_that_of_its_rows(store: str) -> None:
    folds = Folds(0)
    assert [folds.at(store, at) for at in (0, 1, 99, 300)] == [digest(folds.rows(store, at)) for at in (0, 1, 99, 300)]


@pytest.mark.parametrize("store", NAMES)
def test_rows_of_an_offset_are_well_and_without_one_of_them_they_are_not(known: Known, store: str) -> None:
    rows = sorted(known.folds[0].rows(store, 290))
    known.check_rows("a scan", store, 0, rows)
    known.check_whole("a scan", store, 0, rows, 250)
    assert known.problems == []
    known.check_whole("a scan", store, 0, rows[1:], 250)
    assert len(known.problems) == 1


def test_rows_below_what_was_acknowledged_or_beyond_what_was_tried_are_a_problem(known: Known) -> None:
    rows = sorted(known.folds[0].rows("win", 310))
    known.check_whole("a scan", "win", 0, sorted(known.folds[0].rows("win", 200)), 250)
    known.check_rows("a scan", "win", 0, rows)
    known.check_rows("a scan", "win", 0, [rows[0], rows[0]])
    assert len(known.problems) == 3


def test_commit_acknowledged_by_a_sidecar_that_lost_the_partition_is_a_problem(
    known: Known, sidecars: Sidecars
) -> None:
    node = CrashedNode(sidecars.make("a"), "a", known)
    known.acknowledge(node, 0, 100, Owner("a", 1))
    known.acknowledge(node, 0, 100, None)
    assert known.problems == []
    known.acknowledge(node, 0, 100, Owner("b", 2))
    assert len(known.problems) == 1


def test_error_that_is_not_listed_for_a_partition_on_its_way_is_a_problem(known: Known) -> None:
    assert {"LOADING", "NOTASSIGNED", "READONLY", "FENCED", "UNAVAILABLE", "BUSY"} <= CODES_ALLOWED
    known.refused("RESP scanner", "LOADING", "LOADING it restores", CODES_ALLOWED)
    assert known.problems == []
    known.refused("RESP scanner", "ERR", "ERR RuntimeError: a bug in standfast", CODES_ALLOWED)
    assert len(known.problems) == 1
