"""An instance that left is expected back for one time, whoever leads meanwhile: driven by hand on one log and clock."""

from __future__ import annotations

from typing import Any

import pytest

from support.placement import Cluster
from support.sessions import Bench

LEASE_MS, GRACE_MS = 2_000, 30_000
MOVES_MS = 8_000  # of warm-ups and moves, once nothing is expected back any more
SHARED: dict[str, Any] = {"standby_replicas": 1, "lease_ms": LEASE_MS, "restart_grace_ms": GRACE_MS}


def four(bench: Bench) -> Cluster:
    cluster = Cluster(bench, **SHARED)
    for name in "abcd":
        cluster.start(name)
        cluster.rounds(20)
    cluster.fill(5)
    cluster.rounds(150)
    assert sorted(map(len, cluster.active().values())) == [1, 1, 2, 2]
    return cluster


def change_leader(cluster: Cluster) -> int:
    """Let the lease of the leader run out, and the instance come back; returns the milliseconds."""
    [leader] = cluster.leader()
    frozen = cluster.freeze(leader)
    rounds = 2 * LEASE_MS // 100
    cluster.rounds(rounds)
    assert cluster.leader() not in ([], [leader])
    cluster.live[leader] = frozen
    cluster.rounds(20)
    return (rounds + 20) * 100


@pytest.mark.slow
@pytest.mark.parametrize("changes", [0, 4])
def test_instance_that_starts_waits_once_for_one_that_stopped_however_often_the_leader_changes(
    bench: Bench, changes: int
) -> None:
    cluster = four(bench)
    gone = next(name for name in "abcd" if name not in cluster.leader())
    cluster.stop(gone)
    began_ms = bench.clock.monotonic_ms()
    cluster.start("e")
    for _ in range(changes):
        change_leader(cluster)
    assert bench.clock.monotonic_ms() - began_ms < GRACE_MS
    assert cluster.active()["e"] == [], "the room is kept for the one that stopped"
    while not cluster.active()["e"]:
        cluster.rounds(1)
        assert bench.clock.monotonic_ms() - began_ms <= GRACE_MS + MOVES_MS
