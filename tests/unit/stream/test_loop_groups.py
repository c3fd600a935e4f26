"""The loop over sub-topologies: hand-over without reading, purge, and tasks shared by several instances."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import standfast as sf
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.stream.runtime import loop as loops
from standfast.stream.task.purge import PURGE_INTERVAL_MS
from support.apps import Running, create, text_of, write, written
from support.loops import Seen, keys
from support.sessions import Bench

TEXT, JSON, INT = sf.serde.string, sf.serde.json, sf.serde.int64
COUNT = sf.KeyValueStore("count", TEXT, INT)


# --- hand-over, purge ---


def two_groups(seen: Seen, **source: Any) -> Callable[[sf.App], None]:
    def make(app: sf.App) -> None:
        stream = app.stream("in", key=TEXT, value=JSON, **source).select_key(lambda key, value: key)
        stream.repartition("x").process(seen.processor(), name="below", key=TEXT, value=JSON).to("out")

    return make


def test_records_are_handed_over_to_a_task_of_the_same_process_without_reading_them(bench: Bench) -> None:
    create(bench, 2, "in", "out")
    for partition in range(2):
        write(bench, "in", *keys("k", 50), partition=partition)
    seen = Seen()
    one = Running(bench, two_groups(seen))
    one.run()
    assert seen.records == []  # not before the commit
    one.commit()
    assert len(seen.records) == 100
    assert one.session.counters.handed_over_records == 100
    assert sum(len(written(bench, "out", partition)) for partition in range(2)) == 100
    positions = {task: task.source_offsets() for task in one.session.all_tasks().values() if task.id.group == 1}
    ends = sum(sum(offsets.values()) for offsets in positions.values())
    assert ends == sum(len(written(bench, "app-x-repartition", partition)) for partition in range(2)) == 100


def test_task_falls_back_to_the_log_when_somebody_else_wrote_in_between(bench: Bench) -> None:
    create(bench, 1, "in", "out")
    seen = Seen()
    one = Running(bench, two_groups(seen))
    write(bench, "in", *keys("a", 3))
    one.run()
    one.commit()
    assert one.session.counters.handed_over_records == 3
    other = [Outgoing(b"other", b"1", 5)]
    bench.log.producer().append({TopicPartition("app-x-repartition", 0): other})
    write(bench, "in", *keys("b", 3))
    one.loop.poll_once()
    one.commit()
    assert seen.keys == ["a0", "a1", "a2", "other", "b0", "b1", "b2"]
    assert [key for key, _, _ in text_of(written(bench, "out"))] == seen.keys


def test_records_that_were_handed_over_come_again_after_a_stop_without_commit(bench: Bench) -> None:
    create(bench, 1, "in", "out")
    write(bench, "in", *keys("k", 3))
    seen = Seen()
    one = Running(bench, two_groups(seen))
    one.run()
    one.loop._commit(one.loop._running[TaskId(0, 0)])
    one.run()
    one.close()
    again = Running(bench, two_groups(seen))
    again.run()
    again.commit()
    assert seen.keys == ["k0", "k1", "k2"] * 2
    assert len(written(bench, "out")) == 3


def test_full_input_is_not_handed_over_to_but_read_later(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "WAITING_MAX", 10)
    create(bench, 1, "in", "out")
    seen = Seen()
    one = Running(bench, two_groups(seen))
    for first in range(0, 60, 20):
        write(bench, "in", *keys("k", 20, first))
    for _ in range(6):
        one.loop.poll_once()
        one.loop._commit(one.loop._running[TaskId(0, 0)])
    one.commit()
    assert seen.keys == [f"k{number}" for number in range(60)]


def test_processed_records_of_internal_topics_are_purged_and_those_of_others_stay(bench: Bench) -> None:
    create(bench, 1, "in", "out")
    write(bench, "in", *keys("k", 10))
    seen = Seen()
    one = Running(bench, two_groups(seen))
    one.run()
    one.commit()
    bench.clock.advance(PURGE_INTERVAL_MS)
    one.run()
    assert written(bench, "app-x-repartition") == []
    assert (len(written(bench, "in")), len(written(bench, "out"))) == (10, 10)
    write(bench, "in", *keys("k", 2, first=10))
    one.run()
    one.commit()
    assert seen.keys[10:] == ["k10", "k11"]


def test_records_that_are_not_committed_are_not_purged(bench: Bench) -> None:
    create(bench, 1, "in", "out")
    write(bench, "in", *keys("k", 10))
    seen = Seen()
    one = Running(bench, two_groups(seen), commit_interval_ms=1_000_000)
    one.run()
    one.loop._commit(one.loop._running[TaskId(0, 0)])
    one.run()
    bench.clock.advance(PURGE_INTERVAL_MS)
    one.run()
    assert len(written(bench, "app-x-repartition")) == 10


# --- several instances ---


def test_two_instances_share_the_tasks_of_two_groups(bench: Bench) -> None:
    create(bench, 2, "in", "out")
    seen_a, seen_b = Seen(), Seen()
    one = Running(bench, two_groups(seen_a), take_over=False)
    other = Running(bench, two_groups(seen_b), "b", take_over=False)
    one.session.assign(active=[TaskId(0, 0), TaskId(1, 1)])
    other.session.assign(active=[TaskId(0, 1), TaskId(1, 0)])
    bench.settle(one.session, other.session)
    for partition in range(2):
        write(bench, "in", *keys(f"p{partition}-", 30), partition=partition)
    for _ in range(5):
        for instance in (one, other):
            instance.run()
            instance.loop.commit_all()
    expected = sorted(f"p{partition}-{number}" for partition in range(2) for number in range(30))
    assert sorted(seen_a.keys + seen_b.keys) == expected
    assert {task for task, _, _ in seen_a.records} == {"1_1"}
    assert {task for task, _, _ in seen_b.records} == {"1_0"}
    assert (
        sorted(str(key) for partition in range(2) for key, _, _ in text_of(written(bench, "out", partition)))
        == expected
    )


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_instance_that_dies_is_replaced_and_nothing_is_lost_or_doubled(bench: Bench, guarantee: str) -> None:
    create(bench, 2, "in")

    def make(app: sf.App) -> None:
        app.stream("in", key=TEXT, value=JSON).group_by(lambda key, value: key).count("count")

    settings: dict[str, Any] = {"stores": [COUNT], "standby_replicas": 1, "guarantee": guarantee}
    one = Running(bench, make, **settings)
    other = Running(bench, make, "b", settle=False, **settings)
    bench.settle(one.session, other.session)
    for partition in range(2):
        write(bench, "in", *(("k", "1", number) for number in range(20)), partition=partition)
    one.run()
    one.commit()
    bench.settle(one.session, other.session)
    write(bench, "in", *(("k", "1", number) for number in range(5)))
    one.run()  # without a commit
    one.close()
    bench.settle(other.session)
    other.run()
    other.commit()
    assert sum(other.rows("count", partition).get("k", 0) for partition in range(2)) == 45
