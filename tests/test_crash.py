"""Kill -9 at random moments: what is left equals the log, folded to where it stands.

    child (crash_child.py) ──SIGKILL──> look at its directories ──> next life ... ──> restore warm and cold

After each kill every task directory is opened (a copy, so that the next life finds it as the kill left it) and
compared with the log: rows and observed stream time of each store at the stored position of its own changelog. After
the last one a session on the same directory (warm) and one on a fresh directory (cold) must restore the same rows,
stream times and source offsets, and the counter that was committed with the offsets must agree with them.

Rules of this file: it prints the seed of each run; the run's number gives role, place and guarantee. To repeat run 37:
`STANDFAST_CRASH_SEED=<seed> make crash RUNS=38 ARGS="-k kills[37]"`. That makes every choice again, but a kill after
a delay still hits where it hits.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crash_child import APP, LEASE_MS, MEMORY_BYTES, PARTITIONS, open_session, open_task
from crash_run import CHILD, PATIENCE_S, Crash, Reasons
from crash_stories import GUARANTEES, run

from standfast.store.cut import CUT_KEY, Cut, Position
from standfast.store.engine import DEFAULT_FAMILY
from standfast.store.errors import BadConfig
from standfast.store.failpoint import NAMES, VARIABLE, parse
from standfast.store.rocks import RocksEngine, RocksShared

RUNS = int(os.environ.get("STANDFAST_CRASH_RUNS", "20"))


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("number", range(RUNS))
def test_state_equals_the_log_after_kills(tmp_path: Path, number: int) -> None:
    seed = int(os.environ.get("STANDFAST_CRASH_SEED", "0")) or secrets.randbits(32)
    run(Crash(tmp_path, seed, GUARANTEES[number % 2]), number)


# -- single places, and the proof that the harness can fail ------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_kill_between_log_and_local_batch_leaves_the_log_ahead_and_is_replayed(tmp_path: Path, guarantee: str) -> None:
    crash = Crash(tmp_path, 1, guarantee)
    crash.kill_once("writer", "a", "commit.logged=kill:12")
    assert crash.met == 1
    assert crash.total.behind > 0
    crash.check_restored(["a", "cold"])


@pytest.mark.slow
def test_kill_between_rows_and_segment_drop_leaves_hidden_segments_that_go_with_the_next_commit(tmp_path: Path) -> None:
    crash = Crash(tmp_path, 2, "exactly_once")
    while not crash.total.expired:
        assert crash.kills < 10, "no life ended at a commit that expires a segment"
        crash.kill_once("writer", "a", "engine.written=kill:15")
    with crash.life("writer", "a", stop_after=200) as writer:
        assert writer.process.wait(PATIENCE_S) == 0, writer.err.read_text()
    assert crash.check_left("a").expired == 0
    crash.check_restored(["cold", "a"])


@pytest.mark.slow
def test_killed_owner_blocks_neither_its_restart_nor_an_explicit_assign_elsewhere(tmp_path: Path) -> None:
    crash = Crash(tmp_path, 3, "exactly_once")
    with crash.life("writer", "a") as writer:
        writer.wait_until_ready()
        writer.kill()
    for directory in ("b", "a"):  # another instance, then the same one on the directory that the kill left
        started = time.monotonic()
        with open_session(crash.settings(directory), Reasons(), background=False) as session:
            session.assign(active=range(PARTITIONS))
            session.wait_ready(PATIENCE_S)
        assert (time.monotonic() - started) * 1_000 < LEASE_MS / 4


@pytest.mark.slow
def test_a_lost_row_a_changed_row_and_a_moved_position_are_reported(tmp_path: Path) -> None:
    crash = Crash(tmp_path, 4, "exactly_once")
    crash.kill_once("writer", "a", "commit.logged=kill:60")
    directory = tmp_path / "a" / APP / "0_0"
    family = "uncached"

    def problems_after(change: Any) -> list[str]:
        kept = tmp_path / "kept"
        shutil.copytree(directory, kept)
        with closing(RocksEngine(directory, shared=RocksShared(MEMORY_BYTES))) as engine:
            key, row = next(iter(engine.scan(family)))
            change(engine, key, row)
        problems = crash.look_at("a").problems
        shutil.rmtree(directory)
        kept.rename(directory)
        return problems

    def move_position(engine: RocksEngine, key: bytes, row: bytes) -> None:
        raw = engine.get(DEFAULT_FAMILY, CUT_KEY)
        assert raw is not None
        cut = Cut.decode(raw, "cut")
        moved = {**cut.positions, family: Position(cut.positions[family].offset - 1)}
        engine.write({DEFAULT_FAMILY: {CUT_KEY: replace(cut, positions=moved).encode()}})

    assert problems_after(lambda engine, key, row: None) == []
    lost = problems_after(lambda engine, key, row: engine.write({family: {key: None}}))
    assert any("1 rows missing" in problem and "0 extra" in problem for problem in lost)
    changed = problems_after(lambda engine, key, row: engine.write({family: {key: row + b"!"}}))
    assert any("1 rows missing" in problem and "1 extra" in problem for problem in changed)
    assert any(f"{family}-0" in problem for problem in problems_after(move_position))


@pytest.mark.slow
@pytest.mark.parametrize(("dropping", "adding"), [(1, 1), (1, 2), (2, 1)])
def test_rows_of_a_dropped_store_never_come_back(tmp_path: Path, dropping: int, adding: int) -> None:
    def opened(*names: str) -> dict[str, Any]:
        return {"role": "opener", "directory": str(tmp_path / "0_0"), "names": names}

    with closing(open_task(opened("kept", "gone"))) as stores:
        for name in ("kept", "gone"):
            stores.store(name).put("a", name)
        stores.commit(Cut(positions={"kept": Position(1), "gone": Position(1)}))
    for names, times in ((("kept",), dropping), (("kept", "gone"), adding)):
        command = [sys.executable, str(CHILD), json.dumps(opened(*names))]
        failpoint = {VARIABLE: f"engine.written=kill:{times}"}
        assert subprocess.run(command, env=os.environ | failpoint).returncode in (0, -signal.SIGKILL)
    with closing(open_task(opened("kept", "gone"))) as stores:
        assert (stores.store("kept").get("a"), stores.store("gone").get("a")) == ("kept", None)
        assert set(stores.cut.positions) == {"kept"}


def test_failpoint_that_does_not_exist_is_refused() -> None:
    assert parse("") == {}
    for name in NAMES:
        assert parse(f"{name}=kill:3") == {name: 3}
    for text in ("commit.loged=kill:1", "commit.logged", "commit.logged=kill:0", "commit.logged=stop:1"):
        with pytest.raises(BadConfig, match="NAME=kill:N"):
            parse(text)
