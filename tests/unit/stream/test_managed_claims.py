"""Copies that take the tasks of an instance that is gone over before the leader has decided, beside every other event.

Rules of this file: instances driven by hand on one embedded log; a death is the word of the lease process, and the
killed instance is not driven any more, or is alive after all.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from standfast.replication.takeover import TURN_MS
from standfast.stream.task.states import TaskState
from support.apps import Running
from support.placement import TASKS, Cluster, placement_of
from support.sessions import Bench

NAMES = ("a", "b", "c", "d")
LEADER, OWNER = "a", "b"


def settled(bench: Bench, standbys: int) -> Cluster:
    """Instances that share all tasks, with 20 records processed in each; the first one leads."""
    cluster = Cluster(bench, standby_replicas=standbys, cache_max_bytes=0, lease_ms=2_000, restart_grace_ms=60_000)
    for name in NAMES:
        cluster.start(name)
        cluster.rounds()
    cluster.fill(20)
    cluster.rounds(60)
    assert cluster.leader() == [LEADER]
    assert all(cluster.active().values())
    return cluster


def declare_dead(cluster: Cluster, name: str) -> None:
    """The word of its lease process."""
    with closing(cluster.bench.log.group("app")) as group:
        group.leave(cluster.live[name].session.instance_id)


def kill(cluster: Cluster, name: str) -> list[int]:
    """Returns the tasks that it had."""
    tasks = cluster.active()[name]
    declare_dead(cluster, name)
    cluster.freeze(name)
    return tasks


def generation(cluster: Cluster, name: str) -> int:
    valid = placement_of(cluster.live[name]).valid
    return int(valid.assignment.generation)


def runs(one: Running) -> set[int]:
    tasks = one.session.all_tasks().items()
    return {at.partition for at, task in tasks if task.role == "active" and task.state is TaskState.RUNNING}


def all_counted(cluster: Cluster, times: int) -> None:
    """Each record of so many fills has one result, and each task one owner."""
    cluster.rounds(60)
    found = cluster.results()
    assert (set(found.values()), len(found)) == ({1}, TASKS * 20 * times)
    assert sorted(task for tasks in cluster.active().values() for task in tasks) == list(range(TASKS))


@pytest.mark.parametrize("standbys", [1, 2])
def test_copies_run_the_tasks_of_a_killed_instance_while_the_leader_does_not_look(bench: Bench, standbys: int) -> None:
    cluster = settled(bench, standbys)
    cluster.hold(LEADER)
    before = max(generation(cluster, name) for name in cluster.live)
    copies = [task for tasks in cluster.standby().values() for task in tasks]  # but those of the leader
    owner = next(name for name, tasks in cluster.active().items() if set(tasks).intersection(copies))
    wanted = set(kill(cluster, owner)).intersection(copies)
    cluster.rounds(TURN_MS // 100 + 3)
    assert set().union(*map(runs, cluster.live.values())) >= wanted
    assert {generation(cluster, name) for name in cluster.live} == {before}
    cluster.let_go(LEADER)
    cluster.fill(20)
    all_counted(cluster, 2)
    assert generation(cluster, LEADER) > before


def test_claim_that_the_leader_has_read_stays_where_it_is(bench: Bench) -> None:
    cluster = settled(bench, 2)
    cluster.hold(LEADER)
    lost = kill(cluster, OWNER)
    cluster.rounds(3)
    claimed = {name: set(lost) & runs(one) for name, one in cluster.live.items()}
    assert any(claimed.values())
    cluster.let_go(LEADER)
    cluster.rounds(2)
    assert {name: set(lost) & runs(cluster.live[name]) for name in claimed} == claimed
    valid = placement_of(cluster.live["c"]).valid.assignment
    named = {task.partition: owner for task, owner in valid.active.items()}
    for name, tasks in claimed.items():
        assert {named[task] for task in tasks} <= {cluster.live[name].session.instance_id}


def test_copies_take_the_tasks_of_a_leader_that_is_killed(bench: Bench) -> None:
    cluster = settled(bench, 1)
    lost = kill(cluster, LEADER)
    cluster.rounds(2)
    assert set().union(*map(runs, cluster.live.values())) >= set(lost)
    assert len(cluster.leader()) == 1
    cluster.fill(20)
    all_counted(cluster, 2)


@pytest.mark.parametrize("standbys", [1, 2])
def test_instance_that_was_taken_for_dead_gives_its_tasks_up_and_no_record_counts_twice(
    bench: Bench, standbys: int
) -> None:
    cluster = settled(bench, standbys)
    cluster.fill(20)
    declare_dead(cluster, OWNER)
    all_counted(cluster, 2)
    cluster.fill(20)
    all_counted(cluster, 3)


def test_leader_that_decides_while_a_copy_claims_moves_the_task_once_more_at_most(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = settled(bench, 2)
    topic = placement_of(cluster.live[LEADER])._topic
    publish = topic.publish

    def late(*given: Any, **named: Any) -> Any:
        for one in (one for name, one in cluster.live.items() if name != LEADER):
            one.session.poll_once()  # between the leader's look at the owners and its assignment
        return publish(*given, **named)

    monkeypatch.setattr(topic, "publish", late)
    kill(cluster, OWNER)
    cluster.fill(20)
    all_counted(cluster, 2)


def test_copies_take_the_tasks_of_an_instance_that_stops_while_the_leader_does_not_look(bench: Bench) -> None:
    cluster = settled(bench, 2)
    cluster.hold(LEADER)
    lost = cluster.active()[OWNER]
    cluster.stop(OWNER)
    cluster.rounds(3)
    assert set().union(*map(runs, cluster.live.values())) >= set(lost)
    cluster.let_go(LEADER)
    cluster.fill(20)
    all_counted(cluster, 2)
