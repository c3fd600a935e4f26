"""Standbys that are far behind collect batches; one at its end, or without more records, writes its rows at once."""

from __future__ import annotations

from collections import defaultdict

import pytest

import standfast as sf
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.tail.tailer import STAGED_MS_MAX
from support.sessions import Bench, filled

STORES = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
TASKS = 3
RECORDS = 2_500
BATCH = 1_000
FETCHED = 100  # of each task in a round


class Heard(sf.Listener):
    """Batches that standbys wrote, and where restores began, by task."""

    def __init__(self) -> None:
        self.batches: defaultdict[int, list[int]] = defaultdict(list)
        self.restored_from: dict[int, int] = {}

    def on_standby_batch(
        self, task: TaskId, store: str, changelog: TopicPartition, position: int, records: int, end: int
    ) -> None:
        self.batches[task.partition].append(records)

    def on_restore_start(
        self, task: TaskId, store: str, changelog: TopicPartition, start: int, end: int, reason: str
    ) -> None:
        self.restored_from[task.partition] = start


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def session(bench: Bench, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> sf.Session:
    """A session with an empty directory, beside existing changelogs."""
    monkeypatch.setattr("standfast.replication.tail.tailer.BATCH_ROWS", BATCH)
    monkeypatch.setattr("standfast.replication.tail.tailer.FETCH_RECORDS_MAX", FETCHED * TASKS)
    bench.fill(STORES, TASKS, RECORDS)
    session = bench.session("second", stores=STORES, partitions=TASKS, take_over=False)
    session.listeners.add(heard)
    return session


def written(session: sf.Session, partition: int) -> int:
    position = session.all_tasks()[TaskId(0, partition)].stores.cut.positions.get("kv")
    return 0 if position is None else position.offset


def rows(session: sf.Session, partition: int) -> dict[str, str]:
    return dict(session.read("kv", partition, allow_stale=True).store.all())


def expected(partition: int) -> dict[str, str]:
    return filled(partition, RECORDS)


def test_standbys_far_behind_write_batches_of_full_size(bench: Bench, session: sf.Session, heard: Heard) -> None:
    session.assign(standby=range(TASKS))
    bench.settle(session)
    assert [rows(session, partition) for partition in range(TASKS)] == list(map(expected, range(TASKS)))
    for of_task in heard.batches.values():
        assert sum(of_task) == RECORDS
        assert all(records >= BATCH for records in of_task[:-1])
        assert len(of_task) <= 3


def test_rows_of_a_standby_that_keeps_being_given_more_wait_a_second_at_most(bench: Bench, session: sf.Session) -> None:
    session.assign(standby=range(TASKS))
    session.poll_once()
    session.poll_once()
    assert [written(session, partition) for partition in range(TASKS)] == [0] * TASKS
    bench.clock.advance(STAGED_MS_MAX)
    session.poll_once()
    assert [written(session, partition) for partition in range(TASKS)] == [3 * FETCHED] * TASKS


def test_what_waits_of_all_standbys_together_is_bounded(
    bench: Bench, session: sf.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("standfast.replication.tail.tailer.STAGED_BYTES_MAX", 1_000)  # 100 records of a task are 600
    session.assign(standby=range(TASKS))
    session.poll_once()
    assert sorted(written(session, partition) for partition in range(TASKS)) == [0, FETCHED, FETCHED]
    bench.settle(session)
    assert [rows(session, partition) for partition in range(TASKS)] == list(map(expected, range(TASKS)))


def test_rows_of_a_standby_at_its_end_are_written_in_the_round_that_brought_them(
    bench: Bench, session: sf.Session
) -> None:
    session.assign(standby=range(TASKS))
    bench.settle(session)
    third = bench.session("third", stores=STORES, partitions=TASKS, take_over=False)
    third.assign(active=[1])
    third.wait_ready(30)
    third.task(1).store("kv").put("new", "1")
    third.task(1).commit()
    session.poll_once()
    assert rows(session, 1) == expected(1) | {"new": "1"}


def test_rows_that_wait_when_a_standby_is_promoted_are_not_read_again(session: sf.Session, heard: Heard) -> None:
    session.assign(standby=range(TASKS))
    session.poll_once()
    session.poll_once()
    assert written(session, 1) == 0
    session.assign(active=range(TASKS))
    session.wait_ready(30)
    assert heard.restored_from == dict.fromkeys(range(TASKS), 2 * FETCHED)
    assert [rows(session, partition) for partition in range(TASKS)] == list(map(expected, range(TASKS)))


@pytest.mark.usefixtures("small_batches")
def test_rows_that_wait_when_an_active_task_begins_to_restore_are_written(session: sf.Session) -> None:
    session.assign(standby=[1, 2])
    session.poll_once()
    assert written(session, 1) == 0
    session.assign(active=[0], standby=[1, 2])
    session.poll_once()
    assert not session.ready
    assert written(session, 1) > 0 and written(session, 1) == written(session, 2)


def test_rows_that_wait_when_a_standby_is_given_up_are_read_again_by_who_has_it_next(
    bench: Bench, session: sf.Session
) -> None:
    session.assign(standby=range(TASKS))
    session.poll_once()
    assert written(session, 2) == 0
    session.assign(standby=[0])
    session.assign(standby=[0, 2])
    bench.settle(session)
    assert rows(session, 2) == expected(2)
