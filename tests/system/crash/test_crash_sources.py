"""Kill -9 of an application that reads by a source of its own: outputs and rows equal those of plain loops.

    lines, a few at a time ──> child (support/crash/source_child.py) ──SIGKILL──> same directory, empty one, standby

Under exactly once each line has its effect once, on both logs, wherever the process ends: in the source's thread, in a
processor, or in any step of a commit. With an empty directory the position comes from the log alone; in some runs the
store has no changelog, and the same directory goes on.

Rules of this file: it prints the seed of each run; the run's number gives story and place. To repeat run 7:
`STANDFAST_CRASH_SEED=<seed> make crash SOURCE_RUNS=8 ARGS="-k source[7]"`.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

import pytest

from support.crash.seeds import seed_of_run
from support.crash.source_run import SourceCrash

RUNS = int(os.environ.get("STANDFAST_CRASH_SOURCE_RUNS", "1"))
KAFKA_RUNS = int(os.environ.get("STANDFAST_CRASH_SOURCE_KAFKA_RUNS", "1"))
# Where the first process of a run ends: (failpoint, place in the application, at most so many times before).
PLACES = (
    ("commit.logged", "", 8),
    ("", "collect", 300),
    ("commit.local", "", 8),
    ("", "total", 300),
    ("commit.flushed", "", 8),
    ("engine.written", "", 8),
)


def killed(crash: SourceCrash, number: int) -> str:
    """The lives of one run; returns the directory of the last."""
    failpoint, place, most = PLACES[number % len(PLACES)]
    times = crash.random.randint(1, most)
    given = f"{failpoint}=kill:{times}" if failpoint else "", (place, times) if place else ("", 0)
    if number % 3 == 2 and crash.logged:
        crash.standbys = 1
        crash.feed(20)
        with crash.life("a", *given) as first, crash.life("b") as second:
            crash.end(first, 0.6, struck=True)
            time.sleep(crash.random.uniform(0, 1.5))
            crash.end(second, 0.8, struck=False)
        crash.finish("a")
        return "b"
    crash.feed(20)
    crash.kill_once("a", 0.5, *given)
    # Rows of a store without a changelog are in their directory only.
    others = ("a", "b", "c") if crash.logged else ("a",)
    for _ in range(crash.random.randrange(1, 4)):
        crash.kill_once(crash.random.choice(others), 0.9)
    last = crash.random.choice(others)
    crash.finish(last)
    return last


def run(crash: SourceCrash, number: int, log: str) -> None:
    head = f"run {number} on {log}: seed {crash.seed}, logged {crash.logged}"
    started = time.monotonic()
    last = killed(crash, number)
    crash.check("empty" if crash.logged else last)
    print(
        f"{head}: {crash.kills} kills in {crash.lives} lives ({crash.met} at their place), {crash.outputs} outputs, "
        f"0 differences, {time.monotonic() - started:.1f} s"
    )


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("number", range(RUNS))
def test_killed_application_reads_each_line_of_its_source_once(tmp_path: Path, number: int) -> None:
    run(SourceCrash(tmp_path, seed_of_run(), logged=number % 4 != 3), number, "the embedded log")


@pytest.mark.crash
@pytest.mark.kafka(2)
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("number", range(KAFKA_RUNS))
def test_killed_application_reads_each_line_of_its_source_once_on_kafka(
    tmp_path: Path, number: int, kafka_address: str
) -> None:
    name = f"source-{secrets.token_hex(4)}"
    run(SourceCrash(tmp_path, seed_of_run(), f"kafka://{kafka_address}", name, lines=200), number, "Kafka")


# --- the proof that the harness can fail ------------------------------------------------------------------------------


@pytest.mark.slow
def test_result_added_behind_the_application_is_reported(tmp_path: Path) -> None:
    crash = SourceCrash(tmp_path, 5, lines=30)
    crash.finish("a")
    crash.check("empty")
    crash.rows[1].append(("p1-k0", 1, 5))
    with pytest.raises(AssertionError, match="outputs differ"):
        crash.check("another")


@pytest.mark.slow
def test_position_that_jumps_ahead_is_reported(tmp_path: Path) -> None:
    crash = SourceCrash(tmp_path, 6, lines=30)
    crash.feed(10)
    with crash.file(0).open("a") as file:  # a line that no plain loop knows
        file.write("p0-k0 1 5\n")
    crash.finish("a")
    with pytest.raises(AssertionError, match="outputs differ"):
        crash.check("empty")
