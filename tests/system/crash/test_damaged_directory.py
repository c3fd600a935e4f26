"""A task's own files are damaged: an error that names it, stores with a log restored, rows without one kept."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from system.crash.test_damaged_store import ROWS, STORES, TEXT, cut, files_of, fill, flip, rows, wanted, whole

import standfast as sf
from standfast.store.rocks.wal import damaged_at, wal_files
from support.sessions import Bench


def manifest(directory: Path) -> Path:
    return max(directory.glob("MANIFEST-*"))


def half(path: Path) -> None:
    cut(path, path.stat().st_size // 2)


OWN_FILES: dict[str, Callable[[Path], None]] = {
    "MANIFEST flipped": lambda at: flip(manifest(at), manifest(at).stat().st_size // 2),
    "MANIFEST cut to a half": lambda at: half(manifest(at)),
    "MANIFEST without its last byte": lambda at: cut(manifest(at), -1),
    "MANIFEST emptied": lambda at: cut(manifest(at), 0),
    "MANIFEST removed": lambda at: manifest(at).unlink(),
    "CURRENT flipped": lambda at: flip(at / "CURRENT", 3),
    "CURRENT cut to a half": lambda at: half(at / "CURRENT"),
    "CURRENT removed": lambda at: (at / "CURRENT").unlink(),
    "the record's table flipped": lambda at: flip(RECORD[0], 0),
    "the record's table removed": lambda at: RECORD[0].unlink(),
}
RECORD: list[Path] = []


@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
@pytest.mark.parametrize("how", OWN_FILES)
def test_damage_of_the_directory_itself_restores_what_has_a_log_and_copies_what_has_none(
    bench: Bench, how: str, guarantee: str
) -> None:
    first = bench.active(stores=STORES, guarantee=guarantee)
    fill(first)
    RECORD[:] = files_of(first, "default")[:1]
    directory = first.tasks()[0].stores.directory
    first.close()
    OWN_FILES[how](directory)
    again = bench.active(stores=STORES, guarantee=guarantee)
    whole(again)
    assert again.task(0).source_offsets() == {("src", 0): ROWS}
    assert again.counters.store_wipes == {("kv", "corrupt"): 1, ("other", "corrupt"): 1}
    assert again.counters.wipes == {"corrupt": 1}
    assert list((again.state_path / ".aside").iterdir()) == []
    fill(again, ROWS, ROWS + 100)
    again.close()
    whole(bench.active(stores=STORES, guarantee=guarantee), ROWS + 100)


MARKER: dict[str, Callable[[Path], object]] = {
    "flipped": lambda at: flip(at / "STANDFAST", 2),
    "cut to a half": lambda at: half(at / "STANDFAST"),
    "emptied": lambda at: cut(at / "STANDFAST", 0),
    "another document": lambda at: (at / "STANDFAST").write_text("[1]"),
    "removed": lambda at: (at / "STANDFAST").unlink(),
}


@pytest.mark.parametrize("role", ["active", pytest.param("standby", marks=pytest.mark.long)])
@pytest.mark.parametrize("how", MARKER)
def test_damaged_marker_of_a_task_whose_stores_are_all_logged_costs_a_restore(
    bench: Bench, how: str, role: str
) -> None:
    first = bench.active(stores=STORES)
    fill(first)
    first.close()
    logged = [store for store in STORES if store.logging]
    owner = bench.active("logged", stores=logged)
    directory = owner.state_path / "0_0"
    owner.close()
    MARKER[how](directory)
    again = bench.session("logged", stores=logged, take_over=False)
    if role == "active":
        again.assign(active=[0])
    else:
        again.assign(standby=[0])
    bench.settle(again)
    for store in logged:
        assert len(list(again.read(store.name, 0, allow_stale=True).store.all())) == ROWS
    assert again.counters.store_wipes == {("kv", "corrupt"): 1, ("other", "corrupt"): 1}
    assert list((again.state_path / ".aside").iterdir()) == []
    again.close()
    assert bench.active("logged", stores=logged).counters.wipes == {}


@pytest.mark.parametrize("how", MARKER)
def test_damaged_marker_refuses_the_task_for_its_stores_without_a_log_alone_and_no_other_task(
    bench: Bench, how: str
) -> None:
    first = bench.session(stores=STORES, placement="shared", partitions=2)
    bench.settle(first)
    fill(first)
    directory = killed(bench, first, "k")
    first.close()
    MARKER[how](directory)
    before = {path.name: path.stat().st_size for path in directory.iterdir()}
    again = bench.session("k", stores=STORES, placement="shared", partitions=2)
    bench.settle(again)
    found = {one.task: one for one in again.statistics().tasks}
    assert (found["0_0"].state, found["0_1"].state) == ("closed", "running")
    error = found["0_0"].error
    assert "store 'plain' has no changelog" in error and "STANDFAST is" in error and "accept_unreadable_rows" in error
    assert "'kv'" not in error and "'other'" not in error
    assert {path.name: path.stat().st_size for path in directory.iterdir()} == before
    again.close()
    accepted = bench.session("k", stores=STORES, placement="shared", partitions=2, accept_unreadable_rows=True)
    bench.settle(accepted)
    whole(accepted)


def test_marker_of_another_task_stays_refused(bench: Bench) -> None:
    first = bench.active(partitions=(0, 1), stores=STORES[:2])
    path = first.state_path
    first.close()
    shutil.copyfile(path / "0_1" / "STANDFAST", path / "0_0" / "STANDFAST")
    again = bench.session(stores=STORES[:2])
    with pytest.raises(sf.InvalidRequest, match="belongs to application 'app', task 0_1"):
        again.assign(active=[0])


def test_refused_task_whose_directory_cannot_be_opened_stays_closed_and_stops_nothing(bench: Bench) -> None:
    """Its changelogs are empty, so they cannot show whether it had rows."""
    first = bench.session(stores=STORES, placement="shared", partitions=2)
    bench.settle(first)
    first.task(0).commit({("src", 0): 1})  # a record in the write-ahead log alone
    directory = killed(bench, first, "k")
    first.close()
    OWN_FILES["MANIFEST flipped"](directory)
    before = sorted((path.name, path.stat().st_size) for path in directory.iterdir())
    again = bench.session("k", stores=STORES, placement="shared", partitions=2)
    bench.settle(again)
    found = {one.task: one for one in again.statistics().tasks}
    assert (found["0_0"].state, found["0_1"].state) == ("closed", "running")
    assert "accept_empty_log" in found["0_0"].error
    assert any("task 0_0 failed" in line for line in again.missing())
    assert sorted((path.name, path.stat().st_size) for path in directory.iterdir()) == before
    again.close()
    accept: dict[str, Any] = {"accept_empty_log": True, "accept_unreadable_rows": True}
    accepted = bench.session("k", stores=STORES, placement="shared", partitions=2, **accept)
    bench.settle(accepted)
    assert accepted.ready


HARMLESS = ("IDENTITY", "OPTIONS-*", "rocksdict-config.json", "LOCK", "LOG", "SEAL", "STORES", "*.log")


@pytest.mark.parametrize("how", ["flipped", pytest.param("emptied", marks=pytest.mark.long), "removed"])
@pytest.mark.parametrize("pattern", HARMLESS)
def test_file_that_holds_no_rows_may_be_damaged(bench: Bench, pattern: str, how: str) -> None:
    """After a clean close the write-ahead log holds none either."""
    first = bench.active(stores=STORES)
    fill(first)
    directory = first.tasks()[0].stores.directory
    first.close()
    for path in directory.glob(pattern):
        if how == "removed":
            path.unlink()
        elif how == "emptied":
            path.write_bytes(b"")
        elif path.stat().st_size:
            flip(path, path.stat().st_size // 2)
    again = bench.active(stores=STORES)
    whole(again)
    assert again.counters.wipes == {}


def killed(bench: Bench, session: sf.Session, name: str) -> Path:
    """A copy of the state directory as a kill leaves it now; returns the task's folder."""
    target = bench.root / name
    shutil.copytree(bench.root / "a", target)
    return target / "app" / "0_0"


def unflushed(bench: Bench, commits: int = 40) -> Path:
    """Rows that only the write-ahead log has."""
    first = bench.active(stores=STORES)
    task = first.task(0)
    for commit in range(commits):
        for number in range(commit * 50, commit * 50 + 50):
            for store in STORES:
                task.store(store.name).put(f"{number:06}", f"{store.name}{number:06}" * 8)
        task.commit({("src", 0): commit * 50 + 50})
    directory = killed(bench, first, "k")
    first.close()
    return directory


def test_flipped_byte_in_the_write_ahead_log_is_refused_where_no_other_log_has_the_rows(bench: Bench) -> None:
    directory = unflushed(bench)
    (log,) = wal_files(directory)
    flip(log, log.stat().st_size // 2)
    before = log.read_bytes()
    refused = bench.session("k", stores=STORES)
    with pytest.raises(sf.StateLost, match=rf"task 0_0: store 'plain'.*{log.name}.*accept_unreadable_rows") as error:
        refused.assign(active=[0])
    assert error.value.reason == "unreadable-rows"
    refused.close()
    assert log.read_bytes() == before
    assert not list((refused.state_path / ".aside").glob("*"))
    accepted = bench.active("k", stores=STORES, accept_unreadable_rows=True)
    assert rows(accepted, "kv") == rows(accepted, "other") == wanted()
    kept = rows(accepted, "plain")
    assert kept == wanted(len(kept))
    assert len(kept) % 50 == 0
    assert ROWS // 3 < len(kept) < ROWS


@pytest.mark.parametrize("back", [1, *(pytest.param(back, marks=pytest.mark.long) for back in (2, 3))])
def test_flipped_length_near_the_end_of_the_log_is_no_torn_tail(bench: Bench, back: int) -> None:
    directory = unflushed(bench)
    (log,) = wal_files(directory)
    raw = log.read_bytes()
    starts = [at for at in range(len(raw) - 7) if raw[at + 6] in (1, 2, 3, 4) and damaged_at_start(raw, at)]
    flip(log, starts[-back] + 5)
    refused = bench.session("k", stores=STORES)
    with pytest.raises(sf.StateLost, match=rf"{log.name}.*accept_unreadable_rows"):
        refused.assign(active=[0])


def damaged_at_start(raw: bytes, at: int) -> bool:
    """Whether a record begins here: it fits, and its header is right."""
    length = int.from_bytes(raw[at + 4 : at + 6], "little")
    block = raw[at : at + 7 + length]
    return length > 0 and at + 7 + length <= len(raw) and damaged_at(block, every_byte=True) is None


def test_write_ahead_log_that_ends_within_a_record_is_no_damage(bench: Bench) -> None:
    """A loss of power: the rows of the last commits are read from the changelog again, where there is one."""
    directory = unflushed(bench)
    (log,) = wal_files(directory)
    log.write_bytes(log.read_bytes()[:-100])
    again = bench.active("k", stores=STORES)
    assert rows(again, "kv") == wanted()
    assert rows(again, "plain") == wanted(ROWS - 50)
    assert again.counters.wipes == {}


# A kill left this of a database that RocksDB was about to make: another MANIFEST follows before any write.
UNBORN = {
    "MANIFEST-000001": "1b4f96d02d0001814024"
    "35323161383539372d633664372d343138332d616161322d636262396130373061376530020003020400",
    "CURRENT": b"MANIFEST-000001\n".hex(),
}


@pytest.mark.parametrize("files", [1, 2])
def test_kill_while_a_database_is_made_is_no_damage(bench: Bench, files: int) -> None:
    first = bench.active(stores=STORES)
    directory = first.tasks()[0].stores.directory
    first.close()
    for path in directory.iterdir():
        if path.name not in ("STANDFAST", "rocksdict-config.json"):
            path.unlink()
    for name, content in list(UNBORN.items())[:files]:
        (directory / name).write_bytes(bytes.fromhex(content))
    again = bench.active(stores=STORES)
    assert again.counters.wipes == {}
    fill(again)
    again.close()
    whole(bench.active(stores=STORES))


def test_write_ahead_log_that_is_gone_is_refused_where_no_other_log_has_the_rows(bench: Bench) -> None:
    directory = unflushed(bench)
    wal_files(directory)[0].unlink()
    refused = bench.session("k", stores=STORES)
    with pytest.raises(sf.StateLost, match=r"store 'plain'.*write-ahead log.*accept_unreadable_rows"):
        refused.assign(active=[0])
    refused.close()
    accepted = bench.active("k", stores=STORES, accept_unreadable_rows=True)
    assert rows(accepted, "kv") == wanted()
    assert rows(accepted, "plain") == []


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_flipped_byte_in_the_write_ahead_log_of_logged_stores_is_made_good_by_their_changelogs(
    bench: Bench, guarantee: str
) -> None:
    stores = STORES[:2]
    first = bench.active(stores=stores, guarantee=guarantee)
    task = first.task(0)
    for commit in range(40):
        for number in range(commit * 50, commit * 50 + 50):
            for store in stores:
                task.store(store.name).put(f"{number:06}", "v")
        task.commit({("src", 0): commit * 50 + 50})
    directory = killed(bench, first, "k")
    first.close()
    (log,) = wal_files(directory)
    flip(log, log.stat().st_size // 2)
    again = bench.active("k", stores=stores, guarantee=guarantee)
    assert rows(again, "kv") == rows(again, "other") == wanted()
    assert again.task(0).source_offsets() == {("src", 0): ROWS}
    assert again.counters.wipes == {}


def test_directory_that_a_crash_left_aside_gives_its_rows_back(bench: Bench) -> None:
    first = bench.active(stores=STORES)
    fill(first)
    directory = first.tasks()[0].stores.directory
    first.close()
    manifest(directory).unlink()
    aside = directory.parent / ".aside"
    aside.mkdir(exist_ok=True)
    directory.rename(aside / "0_0.corrupt.12345678")  # a kill came before the new directory took its place
    whole(bench.active(stores=STORES))


def test_window_rows_without_a_log_are_copied_with_their_numbers(bench: Bench) -> None:
    spec = sf.WindowStore(
        "win", TEXT, TEXT, window_size_ms=10, retention_ms=600_000, retain_duplicates=True, logging=False
    )
    first = bench.active(stores=[spec])
    task = first.task(0)
    for number in range(5):
        task.store("win").put("k", f"v{number}", 100_000)
    task.commit({("src", 0): 5})
    directory = task.stores.directory
    first.close()
    half(manifest(directory))
    again = bench.active(stores=[spec])
    assert [value for _, value in again.task(0).store("win").fetch_all(0, 200_000)] == [f"v{n}" for n in range(5)]
    again.task(0).store("win").put("k", "v5", 100_000)
    again.task(0).commit({("src", 0): 6})
    assert [value for _, value in again.task(0).store("win").fetch_all(0, 200_000)] == [f"v{n}" for n in range(6)]


TIMED = [
    sf.WindowStore("win", TEXT, TEXT, window_size_ms=10, retention_ms=100_000, logging=False),
    sf.SessionStore("ses", TEXT, TEXT, retention_ms=100_000, logging=False),
    sf.VersionedStore("ver", TEXT, TEXT, history_retention_ms=100_000, logging=False),
]


def test_rows_past_retention_do_not_come_back_when_the_tasks_record_is_lost(bench: Bench) -> None:
    """No other place has the largest times: these commits had no source offsets, which would have them too."""
    first = bench.active(stores=TIMED)
    task = first.task(0)
    for stamp in (100_000, 150_000, 240_000):
        task.store("win").put("k", f"v{stamp}", stamp)
        task.store("ses").put("k", stamp, stamp, f"v{stamp}")
        task.store("ver").put("k", f"v{stamp}", stamp)
        task.commit()

    def read(session: sf.Session) -> list[tuple[object, int]]:
        stores = session.task(0).stores.stores
        return [(list(one.logical_rows()), one.rows.observed_ms) for one in stores.values()]

    before = read(first)
    assert [observed_ms for _, observed_ms in before] == [240_000] * 3
    task.stores.flush()
    files = files_of(first, "default")
    first.close()
    for file in files:
        flip(file, 0)
    assert read(bench.active(stores=TIMED)) == before
