"""A clean stop of the leader costs no more than that of another instance: by hand on one embedded log and clock."""

from __future__ import annotations

import pytest

from support.placement import TASKS, Cluster, placement_of
from support.sessions import Bench


@pytest.mark.parametrize("leader", [True, pytest.param(False, marks=pytest.mark.long)])
def test_tasks_of_an_instance_that_stops_run_on_their_standbys_within_two_rounds(bench: Bench, leader: bool) -> None:
    cluster = Cluster(bench, standby_replicas=1)
    for name in "abc":
        cluster.start(name)
        cluster.rounds(20)
    cluster.fill(5)
    cluster.rounds(100)
    assert cluster.leader() == ["a"] and sorted(map(len, cluster.active().values())) == [2, 2, 2]
    cluster.stop("a" if leader else "b")
    cluster.rounds(2)
    assert sorted(task for tasks in cluster.active().values() for task in tasks) == list(range(TASKS))
    [leads] = cluster.leader()
    assert not placement_of(cluster.live[leads]).waits_for_owner
