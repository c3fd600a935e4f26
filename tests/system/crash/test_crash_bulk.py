"""Kill -9 in the middle of a bulk restore: the remaining state equals the log.

The looks and the comparison are those of `test_crash.py`: after each kill every store equals the log folded to its own
position, and in the end the killed directory and a fresh one hold the writer's rows.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from standfast.store.task.state_dir import BULK_FOLDER
from support.crash.run import PATIENCE_S, Crash
from support.crash.seeds import seed_of_run
from support.crash.stories import BULK_STRIKES, GUARANTEES, run

RUNS = int(os.environ.get("STANDFAST_CRASH_BULK_RUNS", "1"))


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("number", range(RUNS))
def test_state_equals_the_log_after_kills_of_a_bulk_restore(tmp_path: Path, number: int) -> None:
    seed = seed_of_run()
    run(Crash(tmp_path, seed, GUARANTEES[number % 2], mixed=True), number, BULK_STRIKES, most=8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    [
        "ingest.marked",
        *(pytest.param(place, marks=pytest.mark.long) for place in ("ingest.family", "ingest.positioned")),
    ],
)
def test_kill_around_an_ingest_is_met_and_made_good(tmp_path: Path, place: str) -> None:
    crash = written(tmp_path, 7)
    for times in (1, 3, 6):
        crash.kill_once("loader", "b", f"{place}=kill:{times}", within_s=PATIENCE_S)
    assert crash.met == 3
    crash.check_restored(["b", "a", "cold"])


@pytest.mark.slow
def test_files_of_a_killed_process_go_with_the_next_start(tmp_path: Path) -> None:
    crash = written(tmp_path, 9)
    crash.kill_once("loader", "b", "ingest.marked=kill:1")
    assert list((tmp_path / "b").glob(f"*/{BULK_FOLDER}/*/*"))
    crash.check_restored(["b", "a"])
    assert not list((tmp_path / "b").glob(f"*/{BULK_FOLDER}/*/*"))


@pytest.mark.long
@pytest.mark.slow
def test_kill_with_rows_on_the_disk_that_are_no_run_yet_is_made_good(tmp_path: Path) -> None:
    crash = written(tmp_path, 11)
    for times in (1, 2, 5):
        crash.kill_once("loader", "b", f"worker.spilled=kill:{times}", within_s=PATIENCE_S)
        assert not list((tmp_path / "b").glob("**/*.spill")), "such a file has no name"
    assert crash.met == 3
    crash.check_restored(["b", "a", "cold"])


def written(root: Path, seed: int) -> Crash:
    """An application whose writer has ended by itself in directory a."""
    crash = Crash(root, seed, "exactly_once")
    with crash.life("writer", "a", stop_after=120) as writer:
        assert writer.process.wait(PATIENCE_S) == 0, writer.err.read_text()
    crash.check_left("a")
    return crash
