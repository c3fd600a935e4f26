"""Kill -9 at random moments: the remaining state equals the log, folded to the state's position.

    child (support/crash/child.py) ──SIGKILL──> look at its directories ──> next life ... ──> restore warm and cold

After each kill every task directory is opened (a copy, so that the next life finds it as the kill left it) and
compared with the log: rows and observed stream time of each store at the stored position of its own changelog. After
the last one a session on the same directory (warm) and one on a fresh directory (cold) must restore the same rows,
stream times and source offsets, and the counter that was committed with the offsets must agree with them.

Each run draws its stores: some or all of the logged ones, some in memory, some without a changelog, which must hold the
commits of their directory (support/crash/stores.py). In some runs two processes take the tasks from each other and both
live on, and a byte is flipped between two lives: only the store concerned may be lost (support/crash/damage.py).

Rules of this file: it prints the seed of each run; the run's number gives role, place and guarantee. To repeat run 37:
`STANDFAST_CRASH_SEED=<seed> make crash RUNS=38 ARGS="-k kills[37]"`. That repeats every choice, but not the moment of a
kill after a delay.
"""

from __future__ import annotations

import json
import os
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

from standfast.store.engine import DEFAULT_FAMILY
from standfast.store.errors import BadConfig
from standfast.store.failpoint import NAMES, VARIABLE, parse
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from standfast.store.task.commit_record import CUT_KEY, CommitRecord, Position
from support.crash.child import APP, EXIT_FENCED, LEASE_MS, MEMORY_BYTES, PARTITIONS, open_session, open_task
from support.crash.damage import Damage, store_of, wrong_consequences
from support.crash.run import CHILD, PATIENCE_S, Crash, Reasons
from support.crash.seeds import seed_of_run
from support.crash.stores import COUNTS
from support.crash.stories import GUARANTEES, kill_racers, run

RACES = 6
RUNS = int(os.environ.get("STANDFAST_CRASH_RUNS", "1"))


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("number", range(RUNS))
def test_state_equals_the_log_after_kills(tmp_path: Path, number: int) -> None:
    seed = seed_of_run()
    run(Crash(tmp_path, seed, GUARANTEES[number % 2], mixed=True), number)


# -- single places, and the proof that the harness can fail ------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", [GUARANTEES[0], pytest.param(GUARANTEES[1], marks=pytest.mark.long)])
def test_kill_between_log_and_local_batch_leaves_the_log_ahead_and_is_replayed(tmp_path: Path, guarantee: str) -> None:
    crash = Crash(tmp_path, 1, guarantee)
    crash.kill_once("writer", "a", "commit.logged=kill:12", within_s=PATIENCE_S)
    assert crash.met == 1
    assert crash.total.behind > 0
    crash.check_restored(["a", "cold"])


@pytest.mark.slow
@pytest.mark.long
def test_kill_between_rows_and_segment_drop_leaves_hidden_segments_that_go_with_the_next_commit(tmp_path: Path) -> None:
    crash = Crash(tmp_path, 2, "exactly_once")
    while not crash.total.expired:
        assert crash.kills < 10, "no life ended at a commit that expires a segment"
        crash.kill_once("writer", "a", "engine.written=kill:15", within_s=PATIENCE_S)
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
@pytest.mark.long
def test_a_lost_row_a_changed_row_and_a_moved_position_are_reported(tmp_path: Path) -> None:
    crash = Crash(tmp_path, 4, "exactly_once")
    crash.kill_once("writer", "a", "commit.logged=kill:60", within_s=PATIENCE_S)
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
        cut = CommitRecord.decode(raw, "cut")
        moved = {**cut.positions, family: Position(cut.positions[family].offset - 1)}
        engine.write({DEFAULT_FAMILY: {CUT_KEY: replace(cut, positions=moved).encode()}})

    assert problems_after(lambda engine, key, row: None) == []
    lost = problems_after(lambda engine, key, row: engine.write({family: {key: None}}))
    assert any("1 rows missing" in problem and "0 extra" in problem for problem in lost)
    changed = problems_after(lambda engine, key, row: engine.write({family: {key: row + b"!"}}))
    assert any("1 rows missing" in problem and "1 extra" in problem for problem in changed)
    assert any(f"{family}-0" in problem for problem in problems_after(move_position))


TWO = [COUNTS, "uncached", "scratch", "scratch-versioned"]


@pytest.mark.slow
def test_a_wiped_unlogged_store_a_changed_neighbour_and_a_mixed_store_are_reported(tmp_path: Path) -> None:
    crash = Crash(tmp_path, 5, "exactly_once", stores=TWO)
    crash.kill_once("writer", "a", "commit.local=kill:60", within_s=PATIENCE_S)
    state = tmp_path / "a" / APP

    def rows_of(task: str, family: str) -> dict[bytes, bytes | None]:
        with closing(RocksEngine(state / task, shared=RocksShared(MEMORY_BYTES))) as engine:
            return dict(engine.scan(family))

    def problems_after(family: str, rows: dict[bytes, bytes | None]) -> list[str]:
        kept = tmp_path / "kept"
        shutil.copytree(state / "0_0", kept)
        with closing(RocksEngine(state / "0_0", shared=RocksShared(MEMORY_BYTES))) as engine:
            engine.write({family: rows})
        problems = crash.look_at("a").problems
        shutil.rmtree(state / "0_0")
        kept.rename(state / "0_0")
        return problems

    assert problems_after("scratch", {}) == []
    wiped = problems_after("scratch", dict.fromkeys(rows_of("0_0", "scratch")))
    assert len(wiped) == 1 and "unlogged scratch-0" in wiped[0] and "0 extra" in wiped[0]
    for family, where in (("scratch", "unlogged scratch-0"), ("uncached", "uncached-0")):
        key, row = next(iter(rows_of("0_0", family).items()))
        changed = problems_after(family, {key: (row or b"") + b"!"})
        assert changed and all(where in problem for problem in changed)
        assert "1 rows missing" in changed[0] and "1 extra" in changed[0]
        mixed = problems_after(family, rows_of("0_1", family))
        assert mixed and all(where in problem for problem in mixed)


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", [GUARANTEES[0], pytest.param(GUARANTEES[1], marks=pytest.mark.long)])
def test_a_local_batch_that_is_lost_is_reported(tmp_path: Path, guarantee: str) -> None:
    """The newest batch is gone as a whole, rows and offset: for logged stores, the log is ahead."""
    crash = Crash(tmp_path, 6, guarantee, stores=TWO)
    with crash.life("writer", "a", stop_after=60) as writer:
        assert writer.process.wait(PATIENCE_S) == 0, writer.err.read_text()
    shutil.copytree(tmp_path / "a", tmp_path / "earlier")
    with crash.life("writer", "a", stop_after=120) as writer:
        assert writer.process.wait(PATIENCE_S) == 0, writer.err.read_text()
    assert crash.look_at("a").problems == []
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "earlier").rename(tmp_path / "a")
    problems = crash.look_at("a").problems
    assert {problem.split(":")[0] for problem in problems} >= {"unlogged scratch-0", "unlogged scratch-versioned-2"}
    assert all(problem.startswith("unlogged ") for problem in problems)


@pytest.mark.slow
@pytest.mark.long
def test_a_process_that_a_lost_race_ends_is_reported(tmp_path: Path) -> None:
    crash = Crash(tmp_path, 7, "exactly_once", stores=TWO)
    with pytest.raises(AssertionError, match=f"ended by itself with {EXIT_FENCED}"):
        for _ in range(5):
            kill_racers(crash, "", role="writer")


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", [GUARANTEES[0], pytest.param(GUARANTEES[1], marks=pytest.mark.long)])
def test_owners_that_are_replaced_in_the_middle_of_their_commits_keep_whole_batches(
    tmp_path: Path, guarantee: str
) -> None:
    """Beside a store in memory, a close within the local batch once left rows that no report of the process named."""
    names = [COUNTS, "session", "memory", "memory-window", "scratch", "scratch-session"]
    crash = Crash(tmp_path, 9, guarantee, stores=names)
    while crash.races < RACES:
        kill_racers(crash, "", dawdle=1)
    crash.check_restored(["b", "cold", "a"])


@pytest.mark.slow
@pytest.mark.long
def test_a_file_is_known_by_its_store_and_a_flip_is_turned_back(tmp_path: Path) -> None:
    crash = Crash(tmp_path, 8, "exactly_once", stores=[COUNTS, "window", "memory-window", "scratch", "scratch-window"])
    crash.kill_once("writer", "a", "commit.local=kill:20", within_s=PATIENCE_S)
    crash.mend("a")  # opened once more: rows of the write-ahead log are in files now
    state = tmp_path / "a" / APP
    whole = {path: path.read_bytes() for path in state.rglob("*") if path.is_file()}
    assert {store_of(data, crash.stores) for path, data in whole.items() if path.suffix == ".sst"} == {
        "", COUNTS, "window", "scratch", "scratch-window",
    }  # fmt: skip
    for _ in range(20):
        damage = crash.damage("a")
        changed = [path for path, data in whole.items() if path.read_bytes() != data]
        assert changed == [damage.path]
        assert damage.turn_back() and not damage.turn_back()
        assert damage.path.read_bytes() == whole[damage.path]


@pytest.mark.parametrize(
    ("store", "lines", "wrong"),
    [
        ("plain", ["restore plain 0 0 corrupt", "restore counts 0 9 resume", "healed 0"], ""),
        ("plain", ["restore counts 0 0 corrupt"], "counts-0 was read again from 0, as corrupt"),
        ("plain", ["restore plain 1 0 corrupt"], "plain-1 was read again from 0"),
        ("plain", ["refused 0 Corruption: x"], "task 0 was refused: Corruption: x"),
        ("scratch", ["refused 0 Corruption: x"], ""),
        ("scratch", ["refused 1 Corruption: x"], "task 1 was refused"),
        ("scratch", ["restore counts 0 0 corrupt"], "counts-0 was read again"),
        ("", ["restore counts 0 0 corrupt", "refused 0 Corruption: x"], ""),
        ("", ["restore counts 1 0 corrupt"], "counts-1 was read again"),
        ("", ["refused 0 StateLost: x-never-changelog-0: accept_empty_log"], ""),
        ("plain", ["refused 0 StateLost: x-never-changelog-0: accept_empty_log"], "task 0 was refused"),
    ],
)
def test_wrong_consequences_of_a_damage_are_reported(store: str, lines: list[str], wrong: str) -> None:
    damage = Damage("a", 0, Path("x.sst"), 1, store, 0)
    known = {(name, partition): 9 for name in (COUNTS, "plain") for partition in (0, 1)}
    problems = wrong_consequences(damage, known, lines, ["scratch"])
    assert (len(problems), wrong in "".join(problems)) == (bool(wrong), True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dropping", "adding"),
    [pytest.param(1, 1, marks=pytest.mark.long), (1, 2), pytest.param(2, 1, marks=pytest.mark.long)],
)
def test_rows_of_a_dropped_store_never_come_back(tmp_path: Path, dropping: int, adding: int) -> None:
    def opened(*names: str) -> dict[str, Any]:
        return {"role": "opener", "directory": str(tmp_path / "0_0"), "names": names}

    with closing(open_task(opened("kept", "gone"))) as stores:
        for name in ("kept", "gone"):
            stores.store(name).put("a", name)
        stores.commit(CommitRecord(positions={"kept": Position(1), "gone": Position(1)}))
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
        assert parse(f"{name}=stop:3") == {name: -3}
    for text in ("commit.loged=kill:1", "commit.logged", "commit.logged=kill:0", "commit.logged=wait:1"):
        with pytest.raises(BadConfig, match="NAME=kill:N"):
            parse(text)
