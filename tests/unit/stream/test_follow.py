"""Placement `group` without a consumer: the caller assigns the actives, standbys follow from the group's members."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import standfast as sf
from standfast.replication.offsets import TopicPartition
from support.sessions import Bench

pytestmark = pytest.mark.slow

STORES = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]


def source(*partitions: int) -> list[TopicPartition]:
    return [TopicPartition("in", number) for number in partitions]


def member(bench: Bench, directory: str, *active: int, **settings: Any) -> sf.Session:
    """An instance that the group gave these partitions to."""
    given: dict[str, Any] = {"stores": STORES, "placement": "group", "standby_replicas": 1, "partitions": 4, **settings}
    session = bench.session(directory, **given)
    session.on_assign(None, source(*active))
    session.wait_ready(30)
    return session


def rounds(bench: Bench, *sessions: sf.Session, count: int = 12) -> None:
    """So many rounds of background work, a tick of the follower each, with leases kept."""
    for _ in range(count):
        bench.clock.advance(500)
        for session in sessions:
            session._instance.membership.heartbeat(session._group)
        for session in sessions:
            session.poll_once()


def roles(session: sf.Session) -> tuple[list[int], list[int]]:
    found: dict[str, list[int]] = {"active": [], "standby": []}
    for number, task in sorted(session.tasks().items()):
        found[task.role].append(number)
    return found["active"], found["standby"]


def put(session: sf.Session, partition: int, key: str, offset: int) -> None:
    session.task(partition).store("kv").put(key, key)
    session.commit({("in", partition): offset})


def test_standbys_follow_the_actives_wherever_the_group_puts_them(bench: Bench) -> None:
    first, second = member(bench, "a", 0, 1, 2, 3), member(bench, "b")
    rounds(bench, first, second)
    assert (roles(first), roles(second)) == (([0, 1, 2, 3], []), ([], [0, 1, 2, 3]))
    put(first, 3, "k", 1)
    rounds(bench, first, second)
    assert second.read("kv", 3, allow_stale=True).store.get("k") == "k"
    first.on_revoke(None, source(2, 3))
    second.on_assign(None, source(2, 3))
    second.wait_ready(30)
    assert second.task(3).store("kv").get("k") == "k"
    assert second.task(3).source_offsets() == {TopicPartition("in", 3): 1}
    rounds(bench, first, second)
    assert (roles(first), roles(second)) == (([0, 1], [2, 3]), ([2, 3], [0, 1]))
    assert first.statistics().standbys_missing == second.statistics().standbys_missing == 0


def test_instance_without_a_task_learns_how_many_there_are(bench: Bench) -> None:
    first = member(bench, "a", 0, 1, partitions=4)
    second = member(bench, "b", partitions=None)
    rounds(bench, first, second)
    assert roles(second) == ([], [0, 1])


def test_too_few_instances_make_what_fits_and_say_so(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "standfast"):
        alone = member(bench, "a", 0, 1, standby_replicas=2)
        rounds(bench, alone)
        assert alone.statistics().standbys_missing == 4
        second = member(bench, "b", standby_replicas=2)
        rounds(bench, alone, second)
    assert (roles(second), alone.statistics().standbys_missing) == (([], [0, 1]), 2)
    told = [one.getMessage() for one in caplog.records if "have no instance to run on" in one.getMessage()]
    assert "4 of the standbys asked for (2 a task)" in told[0]


def test_standby_waits_for_the_group_when_the_active_is_gone(bench: Bench) -> None:
    first, second = member(bench, "a", 0, lease_ms=1_000), member(bench, "b", lease_ms=1_000)
    rounds(bench, first, second)
    put(first, 0, "k", 1)
    rounds(bench, second)  # the first is silent: its lease runs out
    assert roles(second) == ([], [0])
    second.on_assign(None, source(0))
    second.wait_ready(30)
    assert second.task(0).store("kv").get("k") == "k"
    with pytest.raises(sf.Fenced):
        put(first, 0, "late", 2)


def test_task_that_its_last_owner_gave_up_is_opened_where_the_group_wants_it(bench: Bench) -> None:
    first, second = member(bench, "a", 0), member(bench, "b", 1)
    rounds(bench, first, second)
    thief = bench.session("c", stores=STORES, placement="group", partitions=4, standby_replicas=1)
    thief.on_assign(None, source(0))  # for a moment it believes that it has the partition
    rounds(bench, first, second, thief, count=2)
    assert roles(first)[0] == []
    thief.on_revoke(None, source(0))
    rounds(bench, first, second, thief)
    assert roles(first)[0] == [0]
    first.wait_ready(30)
    # No consumer gives its records again, so the caller has to acknowledge its loss.
    with pytest.raises(sf.Fenced):
        put(first, 0, "k", 1)
    first.reopen(0)
    first.wait_ready(30)
    assert first.task(0).store("kv").get("k") is None
    put(first, 0, "k", 1)


def test_uncommitted_changes_of_a_partition_that_left_are_forgotten(bench: Bench) -> None:
    first = member(bench, "a", 0, 1)
    put(first, 0, "kept", 1)
    first.task(0).store("kv").put("lost", "lost")
    first.on_revoke(None, source(0))
    with pytest.raises(sf.InvalidRequest, match="partition 0 is not assigned"):
        first.task(0)
    first.commit({("in", 0): 2, ("in", 1): 1})  # the rest of the batch: its offset counts no more
    first.on_assign(None, source(0))
    first.wait_ready(30)
    assert first.task(0).source_offsets() == {TopicPartition("in", 0): 1}
    assert [key for key, _ in first.task(0).store("kv").all()] == ["kept"]
