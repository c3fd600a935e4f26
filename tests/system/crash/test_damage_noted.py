"""Damage that a reader met is remembered in the directory: every later opening restores the store, until it is done."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from system.crash.test_damaged_store import (
    ROWS,
    STORES,
    TEXT,
    files_of,
    filled_pair,
    flip,
    middle,
    opened_on_damage,
    rows,
    wanted,
    whole,
)

import standfast as sf
from standfast.restore.snapshot.closed import create
from standfast.restore.snapshot.opening import open_storage
from standfast.store.clock import SystemClock
from standfast.store.rocks.damage import DAMAGED
from standfast.store.task.state_dir import StateDir
from support.sessions import Bench


def meet(session: sf.Session, name: str = "kv") -> None:
    with pytest.raises(sf.Corruption):
        rows(session, name)


def note_of(session: sf.Session) -> Path:
    return session.state_path / "0_0" / DAMAGED


def noted(bench: Bench, name: str = "kv") -> Path:
    """A directory as a kill leaves it right after a reader met damage in a store; returns the damaged file."""
    first = bench.active(stores=STORES)
    for number in range(ROWS):
        for store in STORES:
            first.task(0).store(store.name).put(f"{number:06}", f"{store.name}{number:06}" * 8)
    first.task(0).commit({("src", 0): ROWS})
    first.task(0).stores.flush()
    for store in STORES:
        first.task(0).stores.engine.compact(store.name)
    (file,) = files_of(first, name)
    first.close()
    shutil.copyfile(file, bench.root / "sound.sst")
    middle(file)
    again = bench.active(stores=STORES)
    meet(again, name)
    shutil.copytree(bench.root / "a", bench.root / "killed")
    again.close()
    return bench.root / "killed" / "app" / "0_0" / file.name


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_reopened_right_after_damage_the_store_is_restored_and_the_note_goes(bench: Bench, guarantee: str) -> None:
    session = opened_on_damage(bench, middle, guarantee)
    meet(session)
    assert note_of(session).exists()
    session.reopen(0)
    session.wait_ready(30)
    whole(session)
    assert session.counters.store_wipes == {("kv", "corrupt"): 1}
    assert not note_of(session).exists()
    assert session.task(0).source_offsets() == {("src", 0): ROWS}


def test_next_process_restores_the_store_before_any_read_meets_the_damage(bench: Bench) -> None:
    noted(bench)
    again = bench.active("killed", stores=STORES)
    assert again.counters.store_wipes == {("kv", "corrupt"): 1}
    whole(again)
    assert not note_of(again).exists()
    again.close()
    assert bench.active("killed", stores=STORES).counters.wipes == {}


def test_closed_and_opened_again_by_an_assignment_the_store_is_restored(bench: Bench) -> None:
    session = opened_on_damage(bench, middle, "exactly_once")
    meet(session)
    session.assign(active=[])
    session.assign(active=[0])
    session.wait_ready(30)
    whole(session)
    assert session.counters.store_wipes == {("kv", "corrupt"): 1}


def test_damage_that_a_reader_of_another_thread_met_is_noted_once(bench: Bench) -> None:
    session = opened_on_damage(bench, middle, "exactly_once")
    view = session.read("kv", 0)
    met: list[BaseException] = []

    def read() -> None:
        for _ in range(3):
            try:
                list(view.store.all())
            except sf.Corruption as damage:
                met.append(damage)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for one in readers:
        one.start()
    for one in readers:
        one.join()
    assert len(met) == 12
    assert note_of(session).read_text().count(".sst") == 1
    session.reopen(0)
    session.wait_ready(30)
    whole(session)


def test_standby_reopened_right_after_damage_is_mended(bench: Bench) -> None:
    _, second = filled_pair(bench)
    file = files_of(second, "kv")[0]
    second.close()
    middle(file)
    second = bench.session("b", stores=STORES, take_over=False)
    second.assign(standby=[0])
    with pytest.raises(sf.Corruption):
        list(second.read("kv", 0, allow_stale=True).store.all())
    second.close()
    again = bench.session("b", stores=STORES, take_over=False)
    again.assign(standby=[0])
    bench.settle(again)
    assert again.counters.store_wipes == {("kv", "corrupt"): 1}
    assert len(list(again.read("kv", 0, allow_stale=True).store.all())) == ROWS


def in_place(path: Path, sound: Path) -> None:
    """The inode stays, as of a copy onto the file."""
    before = path.stat()
    shutil.copyfile(sound, path)
    import os

    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def renamed(path: Path, sound: Path) -> None:
    shutil.copyfile(sound, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


@pytest.mark.parametrize("copied", [in_place, renamed])
@pytest.mark.parametrize("name", ["kv", "plain"])
def test_file_that_was_copied_back_by_hand_is_read_again(
    bench: Bench, copied: Callable[[Path, Path], None], name: str
) -> None:
    file = noted(bench, name)
    copied(file, bench.root / "sound.sst")
    again = bench.active("killed", stores=STORES)
    whole(again)
    assert again.counters.wipes == {}
    assert not note_of(again).exists()


def test_file_that_was_copied_back_and_is_damaged_elsewhere_is_read_and_noted_again(bench: Bench) -> None:
    file = noted(bench)
    renamed(file, bench.root / "sound.sst")
    flip(file, file.stat().st_size * 2 // 3)  # an opening reads the first block
    again = bench.active("killed", stores=STORES)
    assert again.counters.wipes == {}
    meet(again)
    again.reopen(0)
    again.wait_ready(30)
    whole(again)
    assert again.counters.store_wipes == {("kv", "corrupt"): 1}


def test_noted_damage_of_a_store_without_a_log_is_refused_until_the_loss_is_accepted(bench: Bench) -> None:
    file = noted(bench, "plain")
    refused = bench.session("killed", stores=STORES)
    for _ in range(2):
        with pytest.raises(sf.StateLost, match=r"store 'plain' has no changelog.*accept_unreadable_rows"):
            refused.assign(active=[0])
    assert file.exists()
    assert note_of(refused).exists()
    refused.close()
    accepted = bench.active("killed", stores=STORES, accept_unreadable_rows=True)
    assert rows(accepted, "kv") == rows(accepted, "other") == wanted()
    assert ROWS - 100 < len(rows(accepted, "plain")) < ROWS
    assert not note_of(accepted).exists()


def test_damage_that_a_compaction_met_is_noted(bench: Bench) -> None:
    session = opened_on_damage(bench, middle, "at_least_once")
    session.task(0).store("kv").put("000001a", "new")
    session.task(0).commit()
    session.task(0).stores.engine.flush("kv")
    with pytest.raises(sf.Corruption):
        session.task(0).stores.engine.compact("kv")
    assert note_of(session).exists()
    session.reopen(0)
    session.wait_ready(30)
    assert rows(session, "kv") == sorted([*wanted(), "000001a"])


def test_note_that_cannot_be_read_counts_for_nothing(bench: Bench) -> None:
    noted(bench)
    (bench.root / "killed" / "app" / "0_0" / DAMAGED).write_bytes(b"\xff{")
    again = bench.active("killed", stores=STORES)
    meet(again)
    again.poll_once()
    again.wait_ready(30)
    whole(again)


@pytest.mark.parametrize("role", ["active", "standby"])
def test_damage_that_the_disk_does_not_let_be_noted_is_mended_by_this_process(bench: Bench, role: str) -> None:
    if role == "active":
        session = opened_on_damage(bench, middle, "exactly_once")
    else:
        _, session = filled_pair(bench)
        file = files_of(session, "kv")[0]
        session.close()
        middle(file)
        session = bench.session("b", stores=STORES, take_over=False)
        session.assign(standby=[0])
    note_of(session).mkdir()  # in the way of the note
    with pytest.raises(sf.Corruption):
        list(session.read("kv", 0, allow_stale=True).store.all())
    session.tasks()[0].fail(sf.Unavailable("a failure of another kind, before the session has seen the damage"))
    session.reopen(0)
    bench.settle(session)
    assert session.counters.store_wipes == {("kv", "corrupt"): 1}
    assert len(list(session.read("kv", 0, allow_stale=True).store.all())) == ROWS


@pytest.mark.parametrize("name", ["kv", "plain"])
@pytest.mark.parametrize("point", ["stores.forgotten", "mending.copied"])
def test_kill_while_noted_damage_is_mended_costs_no_row_that_could_be_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, point: str, name: str
) -> None:
    noted(bench, name)
    killed = bench.root / "again"

    def reach(reached: str) -> None:
        if reached == point and not killed.exists():
            shutil.copytree(bench.root / "killed", killed)

    monkeypatch.setattr("standfast.store.task.task_stores.reach", reach)
    monkeypatch.setattr("standfast.stream.task.mending.reach", reach)
    whole_one = bench.active("killed", stores=STORES, accept_unreadable_rows=True)
    left = rows(whole_one, "plain")
    whole_one.close()
    if (name, point) == ("kv", "mending.copied"):
        assert not killed.exists()
        return
    again = bench.active("again", stores=STORES, accept_unreadable_rows=True)
    assert rows(again, "kv") == rows(again, "other") == wanted()
    assert rows(again, "plain") == left
    assert not note_of(again).exists()


def test_snapshot_of_a_closed_task_with_noted_damage_is_refused(bench: Bench) -> None:
    noted(bench)
    storage = open_storage(str(bench.root / "storage"), "app")
    with (
        closing(StateDir(bench.root / "killed", "app")) as state,
        pytest.raises(sf.Corruption, match="start the application once"),
    ):
        create(storage, state, "0_0", clock=SystemClock())


def test_expired_segment_takes_its_damage_with_it(bench: Bench) -> None:
    spec = sf.WindowStore("win", TEXT, TEXT, window_size_ms=1_000, retention_ms=60_000)
    first = bench.active(stores=[spec])
    for number in range(ROWS):
        first.task(0).store("win").put(f"{number:06}", f"{number:06}" * 8, 1_000)
    first.task(0).commit()
    first.task(0).stores.flush()
    (family,) = first.task(0).stores.stores["win"].families()
    (file,) = files_of(first, family)
    first.close()
    middle(file)
    again = bench.active(stores=[spec])
    with pytest.raises(sf.Corruption):
        list(again.task(0).store("win").fetch_all(0, 5_000))
    assert note_of(again).exists()
    again.task(0).store("win").put("late", "v", 10_000_000)
    again.task(0).commit()
    again.close()
    last = bench.active(stores=[spec])
    assert last.counters.wipes == {}
    assert not note_of(last).exists()
