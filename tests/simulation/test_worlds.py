"""Whole instances in simulated worlds: no promise is broken, and the same seed has the same trace."""

from __future__ import annotations

import gc
import json
import mmap
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.faults import OPENING, Fault, Kind
from simulator.plan import OWN_CONSUMER, draw_plan
from simulator.run import collect_dead, run

PROOF = Path(__file__).resolve().parents[2] / "proof"
SEEDS = 500
SOME = (3, 4, 6)  # the last one under a consumer of its own

# Before the first record of a changelog.
EARLY = Fault(Kind.DAMAGE, machine=0, at_ms=300, call="file", after=True, for_ms=300)
AT_OPENING = Fault(Kind.DAMAGE, machine=0, at_ms=0, call=OPENING, skip=3, after=True, for_ms=300)

LIVES = Path(__file__).with_name("lives.txt")


def scripts(path: Path) -> dict[str, str]:
    """The scripts of a file, each with the first seed that shows it."""
    lines = (line.rpartition(" | ") for line in path.read_text(encoding="utf-8").splitlines())
    return {script: seed for script, _, seed in lines}


def simulate(*arguments: str, **variables: str) -> str:
    """Run `python -m simulator` in a process of its own; returns its output."""
    done = subprocess.run(
        [sys.executable, "-m", "simulator", *arguments],
        env=os.environ | {"PYTHONPATH": str(PROOF)} | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-8_000:]}\n{done.stderr[-4_000:]}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_promise_is_broken_in_many_worlds_and_tasks_live_as_before(tmp_path: Path):
    files = ("--json", str(tmp_path / "found"), "--scripts", str(tmp_path / "lives"))
    told = simulate("--seeds", str(SEEDS), "--jobs", "2", *files)
    found = json.loads((tmp_path / "found").read_text())
    assert (found["seeds"], found["failed"]) == (SEEDS, []), told
    assert found["missing"] == [], told  # kinds of faults that did not meet a kind of call, or a state
    known, lives = scripts(LIVES), scripts(tmp_path / "lives")
    differ = [f"new: {one} | {lives[one]}" for one in sorted(lives.keys() - known.keys())]
    differ += [f"gone: {one} | {known[one]}" for one in sorted(known.keys() - lives.keys())]
    assert differ == [], f"explain each, then write {LIVES} with --seeds {SEEDS} --scripts"


@pytest.mark.long
@pytest.mark.timeout(0)
def test_no_promise_is_broken_in_ten_thousand_worlds(tmp_path: Path):
    seeds = int(os.environ.get("STANDFAST_SIMULATED_WORLDS", "10000"))
    simulate("--seeds", str(seeds), "--from", str(SEEDS), "--jobs", "2", "--json", str(tmp_path / "found"))
    assert json.loads((tmp_path / "found").read_text())["failed"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "hosting", "damage"), [(20, "app", EARLY), (278, OWN_CONSUMER, AT_OPENING)])
def test_a_person_accepts_an_empty_log_beside_rows_that_damage_made_unreadable(
    seed: int, hosting: str, damage: Fault
) -> None:
    plan = replace(draw_plan(seed), faults=(damage,))
    outcome = run(plan)
    assert (plan.hosting, outcome.alarms) == (hosting, [])
    assert any("a person accepts losses" in event for event in outcome.events)


@pytest.mark.slow
def test_a_seed_has_one_trace_in_each_process_whatever_its_hash_seed_and_with_or_without_compiled_code():
    variables = ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"}, {"PYTHONHASHSEED": "1", "STANDFAST_NATIVE": "0"})
    traces = [[simulate("--seed", str(seed), "--trace", **one) for seed in SOME] for one in variables]
    assert traces[0] == traces[1] == traces[2]
    assert all(len(trace) > 50_000 for trace in traces[0])


LATE = 45  # a world that keeps a mapping of a dead process through its first collection


def test_no_object_of_a_world_closes_a_descriptor_of_a_later_file():
    run(draw_plan(LATE))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(64)]
    gc.collect()
    for one in opened:
        os.close(one)  # raises for one that is closed


def test_a_mapping_that_outlives_its_world_is_an_error():
    with mmap.mmap(-1, 8), pytest.raises(AssertionError, match="would close a descriptor of a later one"):
        collect_dead()
