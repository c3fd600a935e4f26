"""Every file of a task's directory, damaged in every way: an error that names it, and no wrong row served.

A task with a logged store and one without a log, closed or killed. Each case ends in one of two ways: every row is
there (a store that had to be restored was), or the task is refused with an error that names the task and the fault;
then the operator's consent opens it, with correct rows of the unlogged store, though not all.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from system.crash.test_damaged_store import cut, flip

import standfast as sf
from standfast.store.rocks.wal import wal_files
from support.sessions import Bench

TEXT = sf.serde.string
STORES = [sf.KeyValueStore("kv", TEXT, TEXT), sf.KeyValueStore("plain", TEXT, TEXT, logging=False)]
COMMITS, EACH = 12, 40
TASKS = (0, 1)


def value(store: str, task: int, number: int) -> str:
    return f"{store}{task}-{number:05}" * 6


def rows_of(store: str, task: int, count: int = COMMITS * EACH) -> dict[str, str]:
    return {f"{number:05}": value(store, task, number) for number in range(count)}


def build(bench: Bench, *, killed: bool) -> Path:
    """State of two tasks, in files of two levels and in the write-ahead log, as a close or a kill leaves it."""
    session = bench.active(partitions=TASKS, stores=STORES)
    for commit in range(COMMITS):
        for partition in TASKS:
            task = session.task(partition)
            for number in range(commit * EACH, commit * EACH + EACH):
                for store in STORES:
                    task.store(store.name).put(f"{number:05}", value(store.name, partition, number))
            task.commit({("src", partition): commit * EACH + EACH})
            if commit in (COMMITS // 3, COMMITS // 2):
                task.stores.flush()
            if commit == COMMITS // 3:
                for store in STORES:
                    task.stores.engine.compact(store.name)
    if not killed:
        session.close()
    kept = bench.root / "kept"
    shutil.copytree(bench.root / "a", kept)
    session.close()
    return kept


def from_the_other(path: Path) -> None:
    """The file of the same name, or else of the same kind, of another task."""
    other = path.parent.parent / "0_1"
    kind = path.name.split("-")[0] + "-*" if "-" in path.name else f"*{path.suffix}" if path.suffix else path.name
    found = other / path.name if (other / path.name).exists() else max(other.glob(kind))
    shutil.copyfile(found, path)


def at_share(share: float) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        if path.stat().st_size:
            flip(path, min(int(path.stat().st_size * share), path.stat().st_size - 1))

    return damage


def cut_to(share: float) -> Callable[[Path], None]:
    return lambda path: cut(path, int(path.stat().st_size * share))


HOW: dict[str, Callable[[Path], None]] = {
    "flipped first": at_share(0.0),
    "flipped third": at_share(0.33),
    "flipped middle": at_share(0.5),
    "flipped last": at_share(1.0),
    "half": cut_to(0.5),
    "most": cut_to(0.98),
    "emptied": cut_to(0.0),
    "removed": lambda path: path.unlink(),
    "copied": from_the_other,
}
LIKE_OTHERS = ("flipped third", "half")  # each file is also damaged in its middle, and cut elsewhere


def opened(bench: Bench, folder: str, *, accept: bool) -> dict[str, dict[str, str]]:
    """Rows of both stores, read to the end; damage met on the way is mended, or refused with an error."""
    session = bench.session(folder, stores=STORES, accept_unreadable_rows=accept, take_over=False)
    try:
        for _ in range(5):
            try:
                if not session.tasks():
                    session.assign(active=[0])
                session.poll_once()
                session.wait_ready(30)
                return {store.name: dict(session.task(0).store(store.name).all()) for store in STORES}
            except sf.Corruption:
                continue
    finally:
        session.close()
        bench.opened.remove(session)
    raise AssertionError("damaged for ever")


def check(bench: Bench, kept: Path, file: str, how: str, *, killed: bool) -> str:
    """Damage a copy, open it, judge; returns the outcome."""
    folder = bench.root / "case"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(kept, folder)
    path = folder / "app" / "0_0" / file
    torn = killed and path in wal_files(path.parent) and how in ("half", "most", "emptied")
    HOW[how](path)
    try:
        found = opened(bench, "case", accept=False)
        ended = "whole"
    except (sf.StateLost, sf.NotReady, sf.InvalidRequest) as error:
        text = str(error)
        assert "0_0" in text, text
        assert any(word in text for word in (file, "plain", "write-ahead log", "belongs to application")), text
        if isinstance(error, sf.InvalidRequest):
            return "refused"  # a whole marker that names another owner
        found = opened(bench, "case", accept=True)
        ended = "accepted"
    assert found["kv"] == rows_of("kv", 0), (file, how, ended, len(found["kv"]))
    right = rows_of("plain", 0)
    assert found["plain"].items() <= right.items(), (file, how, ended)
    if ended == "whole" and torn:  # a loss of power leaves that, too: whole commits, without the last
        assert found["plain"] == rows_of("plain", 0, len(found["plain"]))
        assert len(found["plain"]) % EACH == 0
        return "torn"
    if ended == "whole":
        assert found["plain"] == right, (file, how, len(found["plain"]))
    return ended


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.long)], ids=["closed", "killed"])
@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=pytest.mark.long if how in LIKE_OTHERS else ()) for how in HOW]
)
def test_no_damaged_file_of_a_task_is_served_wrong(bench: Bench, how: str, killed: bool) -> None:
    kept = build(bench, killed=killed)
    ends = {}
    for path in sorted((kept / "app" / "0_0").iterdir()):
        ends[path.name] = check(bench, kept, path.name, how, killed=killed)
    # "most" takes its line end only; a whole marker of another task is no damage.
    assert ends["STANDFAST"] == {"most": "whole", "copied": "refused"}.get(how, "accepted")
    tables = {name for name in ends if name.endswith(".sst")}
    assert {ends[name] for name in tables} == {"whole", "accepted"}  # of the logged store and of the other
    if not killed:  # rows in files, and none in the write-ahead log: RocksDB's own files cost no row
        assert {ends[name] for name in ends.keys() - tables - {"STANDFAST"}} == {"whole"}
