"""Several tasks restore together: the rows that wait, and their writes."""

from __future__ import annotations

from collections import defaultdict

import pytest

import standfast as sf
from standfast.replication.log import Record
from standfast.replication.offsets import TaskId, TopicPartition
from support.sessions import Bench, filled

STORES = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
TASKS = 3
RECORDS = 2_500
BATCH = 1_000


class Batches(sf.Listener):
    """Records of each batch that was written, by task."""

    def __init__(self) -> None:
        self.records: defaultdict[int, list[int]] = defaultdict(list)

    def on_batch_restored(
        self, task: TaskId, store: str, changelog: TopicPartition, position: int, records: int
    ) -> None:
        self.records[task.partition].append(records)


@pytest.fixture
def written(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Changelogs of several tasks, read in rounds of 100 records of each."""
    monkeypatch.setattr("standfast.restore.replay.restorer.BATCH_ROWS", BATCH)
    monkeypatch.setattr("standfast.restore.replay.restorer.PIECE_RECORDS", 100 * TASKS)
    bench.fill(STORES, TASKS, RECORDS)
    return bench


def cold(bench: Bench, batches: Batches) -> sf.Session:
    session = bench.session("cold", stores=STORES, partitions=TASKS)
    session.listeners.add(batches)
    return session


def rows(session: sf.Session, partition: int) -> dict[str, str]:
    return dict(session.task(partition).store("kv").all())


def expected(partition: int) -> dict[str, str]:
    return filled(partition, RECORDS)


def test_tasks_that_restore_together_write_batches_of_full_size(written: Bench) -> None:
    batches = Batches()
    session = cold(written, batches)
    session.assign(active=range(TASKS))
    while not session.ready:
        assert session.poll_once() > 0, "a round with something to do says so, else the next one waits"
    assert [rows(session, partition) for partition in range(TASKS)] == list(map(expected, range(TASKS)))
    for of_task in batches.records.values():
        assert sum(of_task) == RECORDS
        assert all(BATCH <= records < 2 * BATCH for records in of_task[:-1])
        assert len(of_task) == 3


def test_what_waits_of_all_tasks_together_is_bounded(written: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("standfast.restore.replay.restorer.STAGED_BYTES_MAX", 1)
    batches = Batches()
    session = cold(written, batches)
    session.assign(active=range(TASKS))
    session.wait_ready(30)
    assert [rows(session, partition) for partition in range(TASKS)] == list(map(expected, range(TASKS)))
    assert max(max(of_task) for of_task in batches.records.values()) < BATCH


@pytest.mark.parametrize("then", ["active", "standby"])
def test_rows_that_waited_when_a_restore_was_given_up_are_read_again(written: Bench, then: str) -> None:
    batches = Batches()
    session = cold(written, batches)
    session.assign(active=range(TASKS))
    while not batches.records:
        session.poll_once()
    (begun,) = batches.records
    waiting = (begun + 1) % TASKS
    before = session.all_tasks()[TaskId(0, waiting)].stores.cut.positions
    assert not before, "nothing of this task is written, and records of it were read"
    if then == "active":
        session.assign(active=[begun])
        session.assign(active=range(TASKS))
        session.wait_ready(30)
        assert rows(session, waiting) == expected(waiting)
    else:
        session.assign(active=[begun], standby=[waiting])
        written.settle(session)
        assert dict(session.read("kv", waiting, allow_stale=True).store.all()) == expected(waiting)


def test_a_gap_in_one_changelog_does_not_make_the_rows_of_another_count_as_none(bench: Bench) -> None:
    both = [*STORES, sf.KeyValueStore("other", sf.serde.string, sf.serde.string)]
    session = bench.active(stores=both)
    applier = session.task(0).applier
    kv, other = (applier.changelogs[name] for name in ("kv", "other"))
    assert applier.stage(kv, [Record(0, 1, b"a", b"1"), Record(1, 1, b"b", b"1")], 2) == 2
    assert applier.stage(other, [], 5) == 2
    assert applier.write() == 2
    assert {name: at.offset for name, at in applier.stores.cut.positions.items()} == {"kv": 2, "other": 5}
