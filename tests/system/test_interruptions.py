"""An exception at each point of our code at which CPython runs a signal handler, within every call of a session.

    call ── traced: exception at the n-th point ──> reopen or close works ── another writer gets the log's lock ── rows

Rules of this file: the runs are in a process of their own (`support/interrupted_child.py`), whose main thread is broken
off; a hang ends it with the stacks of its threads. The seed is printed.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import alarmed_child, interrupted_child

pytestmark = pytest.mark.slow

CALLS = ("open", "assign", "put", "commit", "reopen", "reader", "close")
SAMPLE = 140
GUARANTEES = ("exactly_once", "at_least_once")


def broken_off(folder: Path, address: str, timeout_s: float, **given: Any) -> None:
    """Run a process of interruptions to its end, and fail with each fault that it found."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    order = {"log": address, "folder": str(folder / "state"), "seed": seed, **given}
    command = [sys.executable, interrupted_child.__file__, json.dumps(order)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    faults = [line for line in lines if "fault" in line]
    assert done.returncode == 0, f"hung, or ended: {faults}\n{done.stderr[-20_000:]}"
    assert not faults, "\n".join(map(str, faults))
    assert {line["call"] for line in lines} == set(given["calls"])


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(10))
def test_two_thousand_commits_under_a_soft_time_limit_neither_hang_nor_lose_a_row(tmp_path: Path, seed: int) -> None:
    order = {"log": f"sqlite:///{tmp_path}/log", "folder": str(tmp_path / "state"), "seed": seed, "attempts": 2_000}
    command = [sys.executable, alarmed_child.__file__, json.dumps(order)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr[-20_000:]
    assert int(done.stdout) > 100


def test_calls_that_a_signal_handler_breaks_off_leave_no_lock_no_hang_and_no_other_row(tmp_path: Path) -> None:
    runs = SAMPLE // len(CALLS) + 1
    broken_off(tmp_path, f"sqlite:///{tmp_path}/log", 110, runs=runs, calls=CALLS)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(("call", "guarantee"), [*((call, GUARANTEES[0]) for call in CALLS), ("commit", GUARANTEES[1])])
def test_call_that_is_broken_off_at_each_of_its_points(tmp_path: Path, call: str, guarantee: str) -> None:
    broken_off(tmp_path, f"sqlite:///{tmp_path}/log", 1_700, runs=0, calls=[call], guarantee=guarantee)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("call", CALLS)
def test_call_that_is_broken_off_within_the_standard_library_beneath_it(tmp_path: Path, call: str) -> None:
    broken_off(tmp_path, f"sqlite:///{tmp_path}/log", 1_700, runs=0, calls=[call], wide=True)


@pytest.mark.kafka
def test_calls_on_kafka_that_a_signal_handler_breaks_off(tmp_path: Path, kafka_address: str) -> None:
    app = f"interrupted{random.randrange(2**32)}"
    broken_off(tmp_path, f"kafka://{kafka_address}", 110, runs=3, calls=CALLS, app=app)


@pytest.mark.kafka
@pytest.mark.long
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("call", CALLS)
def test_call_on_kafka_that_is_broken_off_at_each_of_its_points(tmp_path: Path, kafka_address: str, call: str) -> None:
    app = f"interrupted{random.randrange(2**32)}"
    broken_off(tmp_path, f"kafka://{kafka_address}", 2_900, runs=0, calls=[call], app=app)
