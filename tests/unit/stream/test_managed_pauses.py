"""Pauses of tasks that move between instances, driven by hand on one embedded log and one clock."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from standfast.ops.observe.metrics_values import session_samples
from standfast.ops.observe.placement import move_events, placement_of_status
from standfast.replication.pauses import FAILOVER, PLANNED, Pause
from support.apps import Running
from support.placement import TASKS, Cluster, placement_of
from support.sessions import Bench

ROUND_MS = 100


def shared(bench: Bench, **settings: Any) -> Cluster:
    """Two instances, each with half of the tasks and standbys of the others."""
    cluster = Cluster(bench, standby_replicas=1, **settings)
    cluster.start("a")
    cluster.rounds()
    cluster.fill(10)
    cluster.start("b")
    cluster.rounds(60)
    return cluster


def counted(one: Running, kind: str) -> int:
    found = one.session.counters.pause_seconds.get((kind,))
    return 0 if found is None else sum(found.counts)


def pauses(one: Running) -> list[Pause]:
    report = placement_of(one)._topic.state.report(one.session.instance_id)
    return list(report.pauses.values())


def test_a_hand_over_is_a_planned_pause_of_the_new_owner(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    cluster = shared(bench)
    one, two = cluster.live["a"], cluster.live["b"]
    assert (counted(one, PLANNED), counted(one, FAILOVER)) == (0, 0), "a task that begins has no former owner"
    assert (counted(two, PLANNED), counted(two, FAILOVER)) == (TASKS // 2, 0)
    assert [pause.kind for pause in pauses(two)] == [PLANNED] * (TASKS // 2)
    # By hand a round takes 100 ms: the owner commits in one and closes in the next, where the new one opens it.
    assert {pause.ms for pause in pauses(two)} <= {ROUND_MS, 2 * ROUND_MS}
    assert "after a planned pause of" in caplog.text


@pytest.mark.parametrize(("boot", "rounds"), [("", 3), ("of another machine", 2)])
def test_a_hand_over_from_another_machine_leaves_out_the_way_of_the_report(
    bench: Bench, boot: str, rounds: int
) -> None:
    cluster = Cluster(bench, standby_replicas=1)
    one = cluster.start("a")
    placement_of(one)._boot = boot or placement_of(one)._boot
    cluster.rounds()
    cluster.start("b")
    cluster.live["a"] = cluster.live.pop("a")  # driven after the new owner, which so sees each report a round later
    cluster.rounds(60)
    two = cluster.live["b"]
    assert [(pause.ms, pause.kind) for pause in pauses(two)] == [(rounds * ROUND_MS, PLANNED)] * (TASKS // 2)


def test_tasks_of_an_instance_that_stops_have_a_planned_pause(bench: Bench) -> None:
    cluster = shared(bench)
    cluster.stop("b")
    cluster.rounds(60)
    one = cluster.live["a"]
    assert (counted(one, PLANNED), counted(one, FAILOVER)) == (TASKS // 2, 0)
    assert min(pause.ms for pause in pauses(one)) >= ROUND_MS, "it counts from the last commit of the stopped one"


def test_failover_pause_of_tasks_begins_at_the_death_of_their_owner(bench: Bench) -> None:
    cluster = shared(bench)
    lease_ms = cluster.freeze("b").session._instance.membership.lease_ms
    cluster.rounds(60)
    one = cluster.live["a"]
    assert (counted(one, PLANNED), counted(one, FAILOVER)) == (0, TASKS // 2)
    for pause in pauses(one):
        assert lease_ms - ROUND_MS <= pause.ms <= lease_ms + 3 * ROUND_MS, "the rest of the lease is part of it"


def test_each_move_shows_its_pause_in_the_events_and_the_metric(bench: Bench) -> None:
    cluster = shared(bench)
    two = cluster.live["b"]
    statistics = two.session.statistics()
    found = move_events(placement_of_status("app", statistics.placement))
    shown = [one["fields"] for one in found if one["event"] == "hand-over"]
    assert len(shown) == TASKS // 2
    assert {one["pause"] for one in shown} == {PLANNED}
    assert all(one["pause_ms"] <= 2 * ROUND_MS for one in shown)
    assert all("pause_ms" not in one["fields"] for one in found if one["event"] == "start")
    samples = {labels: value for name, labels, value in session_samples(statistics) if name == "task_pause_seconds"}
    assert samples[(PLANNED,)].cumulative[-1][1] == TASKS // 2  # type: ignore[union-attr]
    assert samples[(FAILOVER,)].cumulative[-1][1] == 0  # type: ignore[union-attr]


def test_restart_that_gets_its_own_tasks_back_is_no_move(bench: Bench) -> None:
    cluster = Cluster(bench)
    cluster.start("a")
    cluster.rounds()
    cluster.stop("a")
    again = cluster.start("a")
    cluster.rounds()
    assert len(cluster.active()["a"]) == TASKS
    assert (counted(again, PLANNED), counted(again, FAILOVER)) == (0, 0)
