"""Damage to the files of the embedded log: flipped, cut, removed, copied from another. Never a wrong answer.

    log        the database: topics, records with checksums, committed offsets
    log-wal    commits that are not in the database yet, as a kill leaves them
    log-shm    an index of the WAL, remade           log.lock    only the lock

Allowed results: an error that names the log, a topic or a task; or the rows that the log holds, whole. They are those
of an earlier commit only where the WAL ends before a commit, or within the last one, as a power loss leaves it; damage
before that is named by frame. The unlogged store keeps its rows in every case.

Rules of this file: each case works on a copy of files that were taken beside a running application.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.replication.embedded.db import PAGE_BYTES
from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.offsets import TopicPartition
from standfast.store.clock import ManualClock, SystemClock
from standfast.stream.task.states import TaskState
from support.groups import costly
from support.serve import wait_for
from support.sessions import Bench

pytestmark = pytest.mark.slow

TEXT = sf.serde.string
STORES = [
    sf.KeyValueStore("kv", TEXT, TEXT),
    sf.KeyValueStore("other", TEXT, TEXT),
    sf.KeyValueStore("free", TEXT, TEXT, logging=False),
]
LOGGED = ("kv", "other")
ROWS = 1_500
COMMITS = 5
FILES = ("log", "log-wal", "log-shm", "log.lock")
FLIPS = 32
WAIT_S = 40.0

Rows = dict[str, dict[str, str]]


def opened(root: Path, directory: str) -> sf.Session:
    return sf.Session(
        "app",
        log=f"sqlite:///{root}/log",
        state_dir=root / directory,
        stores=STORES,
        partitions=1,
        background=False,
        clock=ManualClock(1_700_000_000_000),
    )


def grown(root: Path) -> list[Rows]:
    """Run an application and copy its files under it to `root/copy`; its rows after each commit."""
    session = opened(root, "a")
    session.assign(active=[0])
    session.wait_ready(30)
    task = session.task(0)
    states: list[Rows] = [{name: {} for name in LOGGED}]
    for commit in range(COMMITS):
        for number in range(ROWS if commit == 0 else 40):
            key = f"{commit * 11 + number:05}"
            task.store("kv").put(key, f"{root.name}-{commit}" * 3)
            task.store("other").put(key, None if number % 7 == 0 else f"{commit}")
            task.store("free").put(key, f"{commit}")
        task.commit({("in", 0): commit + 1})
        states.append({name: dict(task.store(name).all()) for name in LOGGED})
        if commit == 0:
            assert isinstance(session.log, EmbeddedLog)
            session.log._admin_db.checkpoint(truncate=True)  # the others stay in the WAL
    task.stores.flush()
    (root / "copy").mkdir()
    for name in FILES:
        shutil.copy(root / name, root / "copy" / name)
    session.close()
    shutil.copytree(root / "a", root / "copy" / "a")
    return states


@pytest.fixture(scope="module")
@costly()
def grounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[Rows], Path]]:
    """The files of one application with its states, and those of another."""
    first, second = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    states = grown(first)
    grown(second)
    yield first / "copy", states, second / "copy"


def outcome(root: Path, directory: str, states: list[Rows]) -> str:
    """An instance's result on the files: "right", "earlier" (as of a commit before the last), or the error."""
    try:
        session = opened(root, directory)
    except sf.StandfastError as error:
        return told(root, error)
    try:
        session.assign(active=[0])
        missing = session.missing()
        for _ in range(2_000):
            session.poll_once()
            missing = session.missing()
            if not missing or "failed" in missing[0]:
                break
        if missing:
            return told(root, sf.NotReady(missing[0]))
        task = session.task(0)
        rows = {name: dict(task.store(name).all()) for name in LOGGED}
        free = dict(task.store("free").all())
        assert directory == "cold" or len(free) == ROWS, "the unlogged store lost rows"
        assert rows in states, "rows that the log never held"
        return "right" if rows == states[-1] else "earlier"
    except sf.StandfastError as error:
        return told(root, error)
    finally:
        try:
            session.close()
        except sf.StandfastError as error:
            told(root, error)


def told(root: Path, error: sf.StandfastError) -> str:
    text = str(error)
    assert f"log {root}/log" in text or "changelog" in text or "task 0_0" in text or "app" in text, text
    return f"{type(error).__name__}: {text}"


def last_commit(wal: Path) -> int:
    """The offset where the frames of the last commit begin."""
    data, frame = wal.read_bytes(), 24 + PAGE_BYTES
    ends = [at + frame for at in range(32, len(data), frame) if any(data[at + 4 : at + 8])]
    assert len(ends) == COMMITS - 1 and ends[-1] == len(data)
    return ends[-2]


def damaged(grounds: tuple[Path, list[Rows], Path], tmp_path: Path, damage: Callable[[Path], None]) -> dict[str, str]:
    """Outcomes for an instance with its state and for one with an empty directory."""
    found = {}
    for directory in ("a", "cold"):
        root = tmp_path / directory
        shutil.copytree(grounds[0], root)
        damage(root)
        found[directory] = outcome(root, directory, grounds[1])
        shutil.rmtree(root)
    return found


def test_undamaged_files_give_the_last_rows(grounds: Any, tmp_path: Path) -> None:
    assert damaged(grounds, tmp_path, lambda root: None) == {"a": "right", "cold": "right"}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["removed", "empty", "half", "a byte less", "another's"])
def test_file_that_is_cut_removed_or_anothers_is_named_or_right(
    grounds: Any, tmp_path: Path, name: str, how: str
) -> None:
    def damage(root: Path) -> None:
        path = root / name
        data = path.read_bytes()
        if how == "removed":
            path.unlink()
        elif how == "another's":
            shutil.copy(grounds[2] / name, path)
        else:
            path.write_bytes({"empty": b"", "half": data[: len(data) // 2], "a byte less": data[:-1]}[how])

    found = damaged(grounds, tmp_path, damage)
    if name in ("log-shm", "log.lock"):
        assert found == {"a": "right", "cold": "right"}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3))])
@pytest.mark.parametrize("name", ["log", "log-wal"])
def test_flipped_byte_is_never_served(grounds: Any, tmp_path: Path, name: str, seed: int) -> None:
    rng = random.Random(f"{name} {seed}")
    outcomes: list[str] = []
    for case in range(FLIPS // 4):
        size = (grounds[0] / name).stat().st_size
        # Heads of pages and frames steer a search, so every third flip is there.
        at = (
            rng.randrange(size) if case % 3 else min(rng.randrange(size) // 8_192 * 8_192 + rng.randrange(16), size - 1)
        )
        bit = 1 << rng.randrange(8)

        def damage(root: Path, at: int = at, bit: int = bit) -> None:
            data = bytearray((root / name).read_bytes())
            data[at] ^= bit
            (root / name).write_bytes(data)

        found = damaged(grounds, tmp_path, damage)
        outcomes += found.values()
        if name == "log":
            assert "earlier" not in found.values(), at
        elif at < last_commit(grounds[0] / name):
            assert all(one.startswith("Corruption: log ") and "log-wal is not as" in one for one in found.values()), at
        else:
            assert set(found.values()) == {"earlier"}, at
    if name == "log":
        assert any(one.startswith(("Corruption", "NotReady")) for one in outcomes)


@pytest.mark.parametrize("role", ["active", "standby"])
def test_damage_in_one_changelog_fails_its_task_alone_beside_a_fetch_thread(bench: Bench, role: str) -> None:
    stores = [sf.KeyValueStore("kv", TEXT, TEXT)]
    bench.fill(stores, 2, 300)
    with closing(sqlite3.connect(bench.embedded.path)) as connection, connection:
        [(changelog,)] = connection.execute(
            "SELECT id FROM partitions"
            " WHERE number = 0 AND topic = (SELECT id FROM topics WHERE name = 'app-kv-changelog')"
        )
        connection.execute("DELETE FROM log_records WHERE id = (? << 40) + 200", (changelog,))
    session = bench.session("b", stores=stores, background=True, take_over=False, clock=SystemClock())
    session.assign(**{role: [0, 1]})

    def tasks() -> dict[int, Any]:
        return {task_id.partition: task for task_id, task in session.all_tasks().items()}

    wait_for(lambda: isinstance(tasks()[0].error, sf.Corruption), WAIT_S)
    assert "app-kv-changelog-0" in str(tasks()[0].error)
    if role == "active":
        wait_for(lambda: tasks()[1].state is TaskState.RUNNING, WAIT_S)
        assert any("task 0_0 failed" in line for line in session.missing())
    else:
        source = TopicPartition("app-kv-changelog", 1)
        end = bench.log.reader().bounds([source])[source].end
        wait_for(lambda: (found := tasks()[1].applier.position(source)) is not None and found.offset == end, WAIT_S)
