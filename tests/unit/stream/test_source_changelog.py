"""A source topic as changelog: a table read from a topic, which is restored from that very topic."""

from __future__ import annotations

import random
from typing import Any

import pytest

import standfast as sf
from standfast.replication.commit_metadata import CommitMetadata
from standfast.replication.log import Committed, GroupCommit, Outgoing
from standfast.replication.offsets import TaskId, TopicPartition
from support.sessions import Bench
from support.tables import (
    COMPACT,
    COUNTS,
    SOURCE,
    TABLE,
    expected,
    position,
    produce,
    pump,
    pump_table,
    rows,
    statistics,
    table,
    topics,
    verify_live,
)

OURS = CommitMetadata(0).to_text()
GUARANTEES = pytest.mark.parametrize(
    "guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)]
)


@pytest.fixture(autouse=True)
def _topic(bench: Bench) -> None:
    bench.log.admin.create_topic("prices", 2, COMPACT)


def test_the_store_has_no_changelog_of_its_own_and_writes_nothing_to_the_topic(bench: Bench) -> None:
    produce(bench, 0, 10)
    session = table(bench)
    pump(bench, session.task(0), 10)
    assert topics(bench) == ["app-counts-changelog", "prices"]
    assert bench.log.reader().bounds([SOURCE])[SOURCE].end == 10
    assert position(session.task(0)) == 10
    assert statistics(session).logged_records == 0


@GUARANTEES
def test_a_cold_restore_reads_the_topic_up_to_the_committed_offset_and_no_further(bench: Bench, guarantee: str) -> None:
    produce(bench, 0, 100)
    first = table(bench, guarantee=guarantee)
    pump(bench, first.task(0), 60)
    before = rows(first)
    first.close()
    cold = table(bench, "cold", guarantee=guarantee)
    assert rows(cold) == before == expected(60)
    assert position(cold.task(0)) == 60


def test_nothing_is_restored_while_nothing_is_committed(bench: Bench) -> None:
    produce(bench, 0, 20)
    session = table(bench)
    assert rows(session) == []
    assert position(session.task(0)) == 0
    pump(bench, session.task(0), 20)
    assert rows(session) == expected(20)


@GUARANTEES
def test_a_standby_takes_over_with_equal_rows_and_never_shows_what_is_not_committed(
    bench: Bench, guarantee: str
) -> None:
    produce(bench, 0, 50)
    settings: dict[str, Any] = {"guarantee": guarantee, "lease_ms": 1_000}
    first = table(bench, **settings)
    second = bench.session("b", stores=[TABLE, COUNTS], **settings)
    second.assign(standby=[0])
    bench.settle(second)
    assert rows(second) == []  # all 50 are in the topic, none is committed
    for stop in (10, 20, 35):
        pump(bench, first.task(0), stop)
        for _ in range(8):
            bench.clock.advance(100)
            first._instance.membership.heartbeat(first._group)
            second._instance.membership.heartbeat(second._group)
            second.poll_once()
        assert rows(second) == rows(first)
        assert second.read("table", 0, allow_stale=True).lag_records == 0
        store = statistics(second)
        assert (store.position, store.limit, store.end, store.lag) == (stop, stop, 50, 0)
    produce(bench, 50, 10)
    pump(bench, first.task(0), 40, commit=False)
    before, counted = rows(first), rows(first, "counts")
    bench.clock.advance(1_200)  # the active is gone, with its uncommitted rows
    second._instance.membership.heartbeat(second._group)
    bench.settle(second)
    second.wait_ready(30)
    assert (rows(second), rows(second, "counts")) == (before, counted)
    assert second.task(0).source_offsets() == {SOURCE: 35}
    pump(bench, second.task(0), 60)
    with pytest.raises(sf.Fenced):
        first.task(0).commit({SOURCE: 40})
    assert rows(second) == expected(60)


@GUARANTEES
@pytest.mark.parametrize("seed", range(3))
def test_rows_are_those_below_the_committed_offset_whoever_owns_the_task(
    bench: Bench, guarantee: str, seed: int
) -> None:
    rng = random.Random(seed)
    settings: dict[str, Any] = {"guarantee": guarantee, "take_over": False, "stores": [TABLE, COUNTS]}
    owner, other = bench.session("a", **settings), bench.session("b", **settings)
    produced = committed = 0
    for _ in range(20):
        owner.assign(active=[0])
        owner.wait_ready(30)
        assert rows(owner) == expected(committed)
        step = rng.randrange(20)
        produce(bench, produced, step)
        produced += step
        pump(bench, owner.task(0), rng.randint(committed, produced), commit=False)  # no other task sees them
        owner.task(0).discard()
        committed = rng.randint(committed, produced)
        pump(bench, owner.task(0), committed)
        other.assign(standby=[0])
        bench.settle(other)
        bench.clock.advance(500)  # by then the limit is read again
        bench.settle(other)
        assert rows(other) == rows(owner) == expected(committed)
        assert rows(other, "counts") == rows(owner, "counts")
        if rng.random() < 0.3:
            owner, other = other, owner
    owner.assign(active=[0])
    owner.wait_ready(30)
    assert verify_live(bench, owner)[1].verdict == "equal"


def test_a_crash_between_log_and_local_batch_replays_the_tail(bench: Bench) -> None:
    produce(bench, 0, 40)
    first = table(bench)
    pump(bench, first.task(0), 10)
    at_ten = rows(first)
    pump(bench, first.task(0), 30, commit=False)
    changes = first.task(0).stores.buffer.take_changes()
    writer = first.task(0).writer
    assert writer is not None
    counts = first.task(0).applier.changelogs["counts"]
    writer.transact(
        {counts: [Outgoing(*change) for change in changes["counts"]]}, GroupCommit("app", {SOURCE: Committed(30, OURS)})
    )
    first.close()  # the local batch was lost
    again = bench.session(stores=[TABLE, COUNTS])
    again.assign(active=[0])
    assert rows(again) == at_ten
    again.wait_ready(30)
    assert position(again.task(0)) == 30
    assert rows(again) == expected(30) != at_ten
    assert again.task(0).source_offsets() == {SOURCE: 30}


def test_a_local_position_ahead_of_the_commit_loses_no_row_under_at_least_once(bench: Bench) -> None:
    produce(bench, 0, 40)
    first = table(bench, guarantee="at_least_once")
    pump(bench, first.task(0), 30)
    before = rows(first)
    first.close()
    bench.log.group("app").commit({SOURCE: Committed(12, OURS)})  # as if the kill had come before the group commit
    again = table(bench, guarantee="at_least_once")
    assert rows(again) == before
    assert again.task(0).source_offsets() == {SOURCE: 30}  # every changelog is whole: no record needs a replay
    assert statistics(again).lag == 0
    again.close()
    exactly = table(bench)
    assert exactly.task(0).source_offsets() == {SOURCE: 12}
    pump(bench, exactly.task(0), 20)
    assert position(exactly.task(0)) == 20  # goes back with the replay, so that a restore applies the rest again
    pump(bench, exactly.task(0), 30)
    assert rows(exactly) == before


def test_a_standby_ahead_of_the_limit_stays_as_it_is(bench: Bench) -> None:
    produce(bench, 0, 40)
    first = table(bench)
    pump(bench, first.task(0), 30)
    before = rows(first)
    first.close()
    bench.log.group("app").commit({SOURCE: Committed(12)})
    again = bench.session(stores=[TABLE, COUNTS], take_over=False)
    again.assign(standby=[0])
    bench.settle(again)
    assert rows(again) == before
    bench.log.group("app").commit({SOURCE: Committed(40)})
    for _ in range(3):  # a commit tick comes every half second
        bench.settle(again)
    assert rows(again) == expected(40)
    assert position(again.all_tasks()[TaskId(0, 0)]) == 40


def test_a_topic_made_anew_reinitialises_the_store(bench: Bench) -> None:
    produce(bench, 0, 40)
    first = table(bench, stores=[TABLE])
    pump_table(bench, first.task(0), 30)
    first.close()
    bench.log.admin.delete_topic("prices")
    bench.log.admin.create_topic("prices", 2, COMPACT)
    produce(bench, 100, 7)
    bench.log.group("app").commit({SOURCE: Committed(30)})  # the old commit lies beyond the end of the new topic
    again = table(bench, stores=[TABLE])
    assert again.counters.wipes == {"topic-recreated": 1}
    assert {key for key, _, _ in rows(again)} == {b"k2", b"k3", b"k4", b"k5", b"k0", b"k1"}
    assert position(again.task(0)) == 7


@pytest.mark.parametrize("engine", ["rocksdb", "memory"])
def test_output_of_the_task_to_its_own_source_moves_no_position(bench: Bench, engine: Any) -> None:
    produce(bench, 0, 10)
    spec = sf.KeyValueStore("table", sf.serde.string, sf.serde.json, source_topic="prices", engine=engine)
    session = table(bench, stores=[spec, COUNTS])
    pump(bench, session.task(0), 5)
    session.task(0).send("prices", b"k", b"1", 5, partition=0)
    session.task(0).commit()
    assert position(session.task(0)) == 5
    before = rows(session)
    session.close()
    assert rows(table(bench, stores=[spec, COUNTS])) == before


def test_caching_turned_off_logs_no_put_either(bench: Bench) -> None:
    produce(bench, 0, 10)
    session = table(bench, cache_max_bytes=0)
    pump(bench, session.task(0), 10)
    assert bench.log.reader().bounds([SOURCE])[SOURCE].end == 10
    assert (
        bench.log.reader()
        .bounds([TopicPartition("app-counts-changelog", 0)])[TopicPartition("app-counts-changelog", 0)]
        .end
        == 10
    )
