"""A leader whose interpreter is held decides nothing, and costs nothing: driven by hand on one embedded log and clock.

Rules of this file: a held instance is not driven, and its lease is renewed, as by its lease process.
"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from standfast.replication.placement.topic import PlacementTopic
from standfast.store.errors import Fenced
from support.apps import write
from support.loops import keys
from support.placement import TASKS, Cluster, placement_of
from support.sessions import Bench

LEASE_MS = 4_000
SHARED: dict[str, Any] = {"standby_replicas": 2, "lease_ms": LEASE_MS, "max_stall_ms": 120_000}
LATE_MS = 2_000


def three(bench: Bench) -> Cluster:
    """Three instances with a third of the tasks each, all caught up; `a` leads."""
    cluster = Cluster(bench, **SHARED)
    cluster.start("a")
    cluster.rounds()
    cluster.start("b")
    cluster.start("c")
    cluster.fill(5)
    cluster.rounds(150)
    assert sorted(map(len, cluster.active().values())) == [2, 2, 2]
    assert cluster.leader() == ["a"]
    return cluster


def test_tasks_of_a_dead_instance_run_elsewhere_in_time_beside_a_leader_whose_interpreter_is_held(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = three(bench)
    lost = cluster.active()["b"]
    cluster.hold("a")
    cluster.rounds(10)
    cluster.freeze("b")
    cluster.rounds((LEASE_MS + LATE_MS) // 100)
    assert set(lost) <= set(cluster.active()["c"]), "the standby has them"
    assert cluster.leader() == ["c"]
    assert "has not looked at the placement for" in caplog.text
    cluster.let_go("a")
    cluster.rounds(100)
    assert cluster.leader() == ["c"], "the former leader follows"
    assert sorted(task for tasks in cluster.active().values() for task in tasks) == list(range(TASKS))


@pytest.mark.long
def test_instance_that_joins_gets_its_tasks_beside_a_leader_whose_interpreter_is_held(bench: Bench) -> None:
    cluster = three(bench)
    cluster.hold("a")
    cluster.rounds(30)
    cluster.start("d")
    cluster.rounds(100)
    assert cluster.standby()["d"] or cluster.active()["d"]


def test_busy_leader_keeps_the_lead_as_long_as_no_decision_waits(bench: Bench) -> None:
    cluster = three(bench)
    cluster.hold("a")
    cluster.rounds(300)
    assert cluster.leader() == []
    cluster.let_go("a")
    cluster.rounds(3)
    assert cluster.leader() == ["a"]


@pytest.mark.long
def test_records_of_three_seconds_on_all_instances_for_ten_minutes_change_no_leader(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cluster = three(bench)
    caplog.clear()
    for name in "abc":
        cluster.hold(name)
    for second in range(600):
        bench.clock.advance(1_000)
        cluster.renew(*cluster.held.values())
        for at, name in enumerate("abc"):  # each comes to its next record once in three seconds
            if second % 3 == at:
                one = cluster.held[name]
                one.session.poll_once()
                one.loop.poll_once()
    assert "leads application" not in caplog.text
    assert placement_of(cluster.held["a"]).leads


@pytest.mark.long
def test_busy_standby_is_not_the_one_that_takes_over(bench: Bench) -> None:
    for busy, idle in (("b", "c"), ("c", "b")):
        cluster = Cluster(Bench(bench.root / busy, bench.clock), **SHARED)
        cluster.start("a")
        cluster.rounds()
        cluster.start("b")
        cluster.start("c")
        cluster.fill(5)
        cluster.rounds(150)
        lost = cluster.active()["a"]
        loop = cluster.live[busy].loop
        cluster.live[busy].loop = Still()  # type: ignore[assignment]
        cluster.freeze("a")
        cluster.rounds((LEASE_MS + LATE_MS) // 100)
        assert set(lost) <= set(cluster.active()[idle])
        cluster.live[busy].loop = loop


class Still:
    """A loop with a record in hand."""

    def poll_once(self) -> int:
        return 0


def test_former_leader_that_wakes_in_the_middle_of_a_publish_is_fenced_and_follows(bench: Bench) -> None:
    cluster = three(bench)
    former: PlacementTopic = placement_of(cluster.live["a"])._topic
    stale = former.state.valid
    assert stale is not None
    cluster.hold("a")
    cluster.rounds(10)
    cluster.freeze("b")
    cluster.rounds((LEASE_MS + LATE_MS) // 100)
    assert cluster.leader() == ["c"]
    with pytest.raises(Fenced, match="-leader"):  # the assignment that it had decided before
        former.publish(stale.assignment)
    cluster.let_go("a")
    cluster.rounds(30)
    assert cluster.leader() == ["c"]
    valid = placement_of(cluster.live["a"]).valid
    assert valid == placement_of(cluster.live["c"]).valid
    assert valid.epoch > stale.epoch


def test_record_written_meanwhile_has_its_result_from_the_new_owner(bench: Bench) -> None:
    cluster = three(bench)
    lost = cluster.active()["b"]
    cluster.hold("a")
    cluster.rounds(10)
    cluster.freeze("b")
    for partition in lost:
        write(bench, "in", *keys(f"late{partition}-", 1, 0), partition=partition)
    cluster.rounds((LEASE_MS + LATE_MS) // 100)
    assert {key for key, _ in cluster.results() if key and key.startswith("late")} == {f"late{one}-0" for one in lost}
