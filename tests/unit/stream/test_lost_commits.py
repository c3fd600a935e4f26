"""A write-ahead log that was cut, emptied or replaced: rows that no log has are never lost without a word.

Rules of this file: a real database and a real log; files are changed while nothing has them open.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.replication.commit_metadata import CommitMetadata
from standfast.replication.offsets import TopicPartition
from standfast.restore.accepted import read_accepted
from standfast.store.file_errors import NoRoom
from standfast.store.rocks.wal import records, wal_files
from standfast.store.task.commit_record import CommitRecord, StoreTimes, read_record
from standfast.store.task.task_stores import TaskStores
from support.sessions import Bench

TEXT = sf.serde.string
PLAIN = sf.KeyValueStore("plain", TEXT, TEXT, logging=False)
KV = sf.KeyValueStore("kv", TEXT, TEXT)
STORES = [KV, PLAIN]
SRC: tuple[str, int] = ("src", 0)
GUARANTEES = pytest.mark.parametrize(
    "guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)]
)
COMMITS = 8


def commit(task: Any, first: int, last: int, offset: int = 0) -> None:
    """A commit for each number."""
    for number in range(first, last):
        for store in STORES:
            task.store(store.name).put(f"{number:03}", "v")
        task.commit({SRC: offset or number + 1})


def killed(bench: Bench, first: int, last: int, guarantee: str) -> tuple[Path, Path]:
    """The state directory as a killed owner leaves it after these commits; the task's folder in it."""
    session = bench.active(stores=STORES, guarantee=guarantee)
    commit(session.task(0), first, last)
    directory = session.task(0).stores.directory
    copy = bench.root / "killed"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(bench.root / "a", copy)
    session.close()
    shutil.rmtree(bench.root / "a")
    copy.rename(bench.root / "a")
    return bench.root / "a", directory


def ends_of_writes(wal: Path) -> list[int]:
    """The offsets of a log's records, and its end."""
    raw = wal.read_bytes()
    return [*(at for at, _ in records(raw)), len(raw)]


def rows(session: sf.Session, store: sf.KeyValueStore[str, str]) -> list[str]:
    return [key for key, _ in session.task(0).store(store).all()]


def numbers(first: int, last: int) -> list[str]:
    return [f"{number:03}" for number in range(first, last)]


def refused(bench: Bench, **settings: Any) -> str:
    """The words of the refusal of an opening."""
    session = bench.session(stores=STORES, **settings)
    try:
        with pytest.raises((sf.StateLost, sf.NotReady), match="write-ahead log was cut") as caught:
            session.assign(active=[0])
            for _ in range(20):
                session.poll_once()
            session.wait_ready(0.1)
        return str(caught.value)
    finally:
        session.close()


def emptied(wal: Path, _before: Path) -> None:
    wal.write_bytes(b"")


def all_emptied(wal: Path, _before: Path) -> None:
    for path in wal_files(wal.parent):
        path.write_bytes(b"")


def cut_in_half(wal: Path, _before: Path) -> None:
    ends = ends_of_writes(wal)
    wal.write_bytes(wal.read_bytes()[: ends[len(ends) // 2]])


def replaced(wal: Path, before: Path) -> None:
    shutil.copy(before, wal)


@GUARANTEES
@pytest.mark.parametrize("how", [emptied, pytest.param(all_emptied, marks=pytest.mark.long), cut_in_half, replaced])
def test_commits_that_a_write_ahead_log_lost_are_refused_until_the_operator_accepts(
    bench: Bench, how: Callable[[Path, Path], None], guarantee: str
) -> None:
    _, directory = killed(bench, 0, COMMITS, guarantee)
    wal = wal_files(directory)[-1]
    before = bench.root / "before"
    before.write_bytes(wal.read_bytes()[: ends_of_writes(wal)[2]])
    how(wal, before)
    for _ in range(2):  # the refusal has changed nothing
        text = refused(bench, guarantee=guarantee)
        assert "'plain'" in text
        assert "accept_unreadable_rows" in text
    with bench.active(stores=STORES, guarantee=guarantee, accept_unreadable_rows=True) as session:
        assert rows(session, KV) == numbers(0, COMMITS), "the log has them"
        left = rows(session, PLAIN)
        assert left == numbers(0, len(left)), "the rows of whole commits"
        assert len(left) < COMMITS - 1
        assert session.task(0).source_offsets() == {SRC: COMMITS}
        (noted,) = read_accepted(session.state_path)
        assert (noted.store, noted.task) == ("plain", "0_0")
        commit(session.task(0), COMMITS, COMMITS + 3)
    with bench.active(stores=STORES, guarantee=guarantee) as session:
        assert rows(session, PLAIN) == [*left, *numbers(COMMITS, COMMITS + 3)]


@GUARANTEES
def test_each_cut_by_two_commits_or_more_is_refused_and_none_by_none(bench: Bench, guarantee: str) -> None:
    state, directory = killed(bench, 0, COMMITS, guarantee)
    whole = bench.root / "whole"
    shutil.copytree(state, whole)
    log = Path(bench.address.removeprefix("sqlite:///"))
    seen = set()
    ends = ends_of_writes(wal_files(directory)[-1])
    for end in ends:
        shutil.rmtree(state)
        shutil.copytree(whole, state)
        wal = wal_files(directory)[-1]
        wal.write_bytes(wal.read_bytes()[:end])
        lost = len(ends) - 1 - ends.index(end)
        seen.add(lost)
        if lost >= (2 if guarantee == "exactly_once" else 1):
            refused(bench, guarantee=guarantee)
        elif lost == 0:
            with bench.active(stores=STORES, guarantee=guarantee) as session:
                assert rows(session, PLAIN) == numbers(0, COMMITS)
            break
    assert seen == set(range(COMMITS + 1))
    assert log.exists()


@GUARANTEES
def test_a_later_opening_that_lost_all_its_commits_is_refused(bench: Bench, guarantee: str) -> None:
    killed(bench, 0, COMMITS, guarantee)
    _, directory = killed(bench, COMMITS, COMMITS + 2, guarantee)
    wal_files(directory)[-1].write_bytes(b"")
    assert "epoch 2" in refused(bench, guarantee=guarantee)


def test_the_last_commit_of_a_kill_between_log_and_directory_is_not_refused(bench: Bench) -> None:
    _, directory = killed(bench, 0, COMMITS, "exactly_once")
    wal = wal_files(directory)[-1]
    wal.write_bytes(wal.read_bytes()[: ends_of_writes(wal)[-2]])  # as if the batch had never been written
    with bench.active(stores=STORES) as session:
        assert rows(session, KV) == numbers(0, COMMITS)
        assert rows(session, PLAIN) == numbers(0, COMMITS - 1)


@GUARANTEES
def test_a_directory_of_another_instance_is_taken_as_before(bench: Bench, guarantee: str) -> None:
    """The rows of a store without a log stay where they were written: another epoch says nothing of lost commits."""
    first = bench.active(stores=STORES, guarantee=guarantee)
    commit(first.task(0), 0, 2)
    first.close()
    second = bench.active("b", stores=STORES, guarantee=guarantee)
    commit(second.task(0), 2, COMMITS)
    second.close()
    with bench.active(stores=STORES, guarantee=guarantee) as session:
        assert rows(session, KV) == numbers(0, COMMITS)
        assert rows(session, PLAIN) == numbers(0, 2)


@GUARANTEES
def test_logs_of_a_restore_that_are_lost_cost_no_row_of_a_store_with_a_changelog(bench: Bench, guarantee: str) -> None:
    filled = bench.active("other", stores=STORES, guarantee=guarantee)
    commit(filled.task(0), 0, COMMITS)
    filled.close()
    _, directory = killed(bench, COMMITS, COMMITS + 1, guarantee)
    for path in wal_files(directory):
        path.write_bytes(b"")
    with bench.active(stores=STORES, guarantee=guarantee, accept_unreadable_rows=True) as session:
        assert rows(session, KV) == numbers(0, COMMITS + 1)


@GUARANTEES
def test_a_disk_that_refuses_the_first_number_costs_a_wait(
    bench: Bench, guarantee: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [NoRoom("the disk is full"), NoRoom("the disk is full")]
    flush = TaskStores.flush

    def refusing(stores: TaskStores) -> None:
        if refusals:
            raise refusals.pop()
        flush(stores)

    monkeypatch.setattr(TaskStores, "flush", refusing)
    session = bench.session(stores=STORES, guarantee=guarantee)
    session.assign(active=[0])
    for _ in range(50):
        bench.clock.advance(1_000)
        session.poll_once()
    session.wait_ready(5)
    assert not refusals
    commit(session.task(0), 0, 3)
    assert session.task(0).stores.cut.commit == 3


def test_only_tasks_with_rows_that_no_log_has_count_their_commits(bench: Bench) -> None:
    session = bench.active(stores=[KV])
    task = session.task(0)
    task.store(KV).put("a", "v")
    task.commit({SRC: 1})
    assert task.stores.cut.commit == -1
    text = bench.log.group("app").committed()[TopicPartition(*SRC)].metadata
    assert text == CommitMetadata(task.epoch).to_text()
    assert "commit" not in text


def test_a_record_without_numbers_is_that_of_earlier_versions_and_says_nothing(bench: Bench) -> None:
    record = CommitRecord(sources={"src/0": 4}, epoch=3)
    assert b"commit" not in record.encode()
    assert CommitRecord.decode(record.encode(), "here").commit == -1
    counted = CommitRecord(sources={"src/0": 4}, epoch=3, commit=0)
    assert CommitRecord.decode(counted.encode(), "here") == counted


@GUARANTEES
def test_directory_keeps_the_times_of_its_rows_until_the_first_commit_of_an_owner(bench: Bench, guarantee: str) -> None:
    """The group's clocks may be those of an owner that took over just now, whose rows are not in the directory."""
    window = sf.WindowStore("win", TEXT, TEXT, retention_ms=10, window_size_ms=1)
    stores = [window, PLAIN]
    first = bench.active(stores=stores, guarantee=guarantee)
    first.task(0).store("win").put("k", "v", 1_000)
    first.task(0).commit({SRC: 1})
    first.close()
    bench.embedded.truncate(TopicPartition("app-win-changelog", 0), 1)  # the commit's metadata has its time alone
    cold = bench.active("cold", stores=stores, guarantee=guarantee)
    task = cold.task(0)

    def stored() -> int:
        return read_record(task.stores.engine, "cold").stores.get("win", StoreTimes()).observed_ms

    assert (task.store("win").rows.observed_ms, stored()) == (1_000, -1)
    task.store("plain").put("k", "v")
    task.commit({SRC: 2})
    assert stored() == 1_000
