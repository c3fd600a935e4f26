"""Kill -9 during uploads, prunes and restores of snapshots: every listed snapshot is the log, folded to its offset."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

import pytest

from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.restore.snapshot.catalogue import listed, names, verify_files
from standfast.restore.snapshot.fetch import restore_task
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.planning import Judged, Retention
from standfast.restore.snapshot.prune import prune
from standfast.store.clock import SystemClock
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from support.crash.seeds import seed_of_run
from support.crash.snapshot_child import APP, STORE, session_of
from support.places import SUPPORT

RUNS = int(os.environ.get("STANDFAST_CRASH_SNAPSHOT_RUNS", "1"))
CHANGELOG = TopicPartition(f"{APP}-{STORE}-changelog", 0)
WITHIN_S = 60
UPLOADS = ("snapshot.intent", "snapshot.file", "snapshot.files", "snapshot.manifest")
PRUNES = ("snapshot.prune", "snapshot.pruned", "snapshot.unfiled")
RESTORES = ("snapshot.download", "snapshot.fetched", "snapshot.placed")


@contextmanager
def child(root: Path, seed: int, failpoint: str = "", **settings: object) -> Iterator[subprocess.Popen[str]]:
    given = {"root": str(root), "seed": seed, "directory": "a", "rounds": 6, "grace_ms": 3_600_000, **settings}
    process = subprocess.Popen(
        [sys.executable, str(SUPPORT / "crash/snapshot_child.py"), json.dumps(given)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "STANDFAST_FAILPOINT": failpoint},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def folded(root: Path, end: int | None = None) -> dict[bytes, bytes]:
    """The rows of the store as the changelog has them, folded to the last value per key, below `end`."""
    rows: dict[bytes, bytes] = {}
    with closing(open_log(f"sqlite:///{root}/log")) as log, closing(log.reader()) as reader:
        last = reader.bounds([CHANGELOG])[CHANGELOG].end if end is None else end
        reader.assign({CHANGELOG: 0})
        while reader.assignment()[CHANGELOG] < last:
            for fetched in reader.fetch(10_000, 1_000):
                for record in fetched.records:
                    if record.offset < last and record.key is not None:
                        rows.pop(record.key, None)
                        if record.value is not None:
                            rows[record.key] = record.timestamp.to_bytes(8) + record.value
    return rows


def check_snapshots(root: Path, to: str | None = None) -> int:
    """Restore every listed snapshot and compare it with the log folded to its offset; returns their number."""
    storage, shared = open_storage(to or str(root / "snaps"), APP), RocksShared(8 << 20)
    found = listed(storage)
    assert found.broken == {}
    for kept in found.whole:
        snapshot = kept.snapshot
        assert verify_files(storage, snapshot) == []
        target = root / "looked-at"
        done = restore_task(
            storage, "0_0", target, root / "scratch", shared, judge=lambda one: Judged(), wanted=snapshot.name
        )
        assert done.snapshot == snapshot
        with closing(RocksEngine(target, shared=shared, read_only=True)) as engine, engine.scan(STORE) as scan:
            rows = dict(scan)
        shutil.rmtree(target)
        assert rows == folded(root, snapshot.cut.positions[STORE].offset)
    return len(found.whole)


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("number", range(RUNS))
def test_every_listed_snapshot_is_whole_after_kills(tmp_path: Path, number: int) -> None:
    seed = seed_of_run()
    print(f"seed {seed}")
    chance = Random(seed)
    for place in (*UPLOADS, *PRUNES):
        times = chance.randrange(1, 4)
        with child(tmp_path, chance.randrange(1 << 30), f"{place}=kill:{times}") as process:
            process.communicate(timeout=WITHIN_S)
            assert process.returncode == -signal.SIGKILL, place
        check_snapshots(tmp_path)
    assert check_snapshots(tmp_path) > 0
    for turn, place in enumerate(RESTORES):
        directory = f"restored-{turn}"
        with child(tmp_path, seed, f"{place}=kill:1", directory=directory, rounds=0) as process:
            process.communicate(timeout=WITHIN_S)
            assert process.returncode == -signal.SIGKILL, place
        check_snapshots(tmp_path)
        with closing(session_of(tmp_path, directory)) as session:
            with session.task(0).store(STORE).all() as rows:
                found = {key.encode(): value.encode() for key, value in rows}
            assert found == {key: value[8:] for key, value in folded(tmp_path).items()}
    # Nothing that the killed processes left keeps files once it is old.
    for one in (*(tmp_path / "snaps" / APP / "intents").glob("*"), *(tmp_path / "snaps" / APP / "prunes").glob("*")):
        os.utime(one, (1_000, 1_000))
    storage = open_storage(str(tmp_path / "snaps"), APP)
    prune(storage, Retention(1), clock=SystemClock())
    (kept,) = (one.snapshot for one in listed(storage).whole)
    assert len(storage.list("files")) == len(kept.contents)
    assert storage.list("intents") == storage.list("prunes") == []


@pytest.mark.slow
def test_an_upload_that_was_stopped_for_longer_than_the_grace_lists_no_snapshot_without_its_files(
    tmp_path: Path,
) -> None:
    storage = open_storage(str(tmp_path / "snaps"), APP)
    with child(tmp_path, 7, "snapshot.files=stop:1", rounds=2, grace_ms=2_000) as process:
        wait_for_stop(process.pid)
        assert storage.list("files") != []
        intents = storage.list("intents")
        assert len(intents) == 1
        deadline = time.monotonic() + WITHIN_S
        while storage.list("files"):  # until the intent is old by the storage's time
            prune(storage, Retention(1), clock=SystemClock(), grace_ms=2_000)
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert storage.list("intents") == []
        os.kill(process.pid, signal.SIGCONT)
        said, _ = process.communicate(timeout=WITHIN_S)
        assert process.returncode == 0
    words = [line.split()[0] for line in said.splitlines()]
    assert words == ["ready", "failed", "made"]
    assert len(names(storage)) == 1
    assert check_snapshots(tmp_path) == 1


def wait_for_stop(pid: int) -> None:
    deadline = time.monotonic() + WITHIN_S
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline
        time.sleep(0.02)
