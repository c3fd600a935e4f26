"""A leader that is stopped (SIGSTOP) in a coordinated checkpoint for longer than its lease, and goes on (SIGCONT).

    leader stops at a place of checkpoint n ──> the next leader ends n, and completes n + 1
                                            ──> the former goes on: n has one outcome, in the storage and in the log

Rules of this file: each complete checkpoint is a consistent cut, restored from the storage alone.
"""

from __future__ import annotations

import secrets
import signal
from contextlib import closing
from pathlib import Path

import pytest

from standfast.restore.snapshot.catalogue import read_snapshot
from standfast.restore.snapshot.checkpoints import CheckpointState, read_checkpoint
from support.crash.checkpoint_cluster import PATIENCE_S, CheckpointCluster
from support.serve import wait_for

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(300)]
# Announced; with the first group's order and with the next one's in the log; all parts stored; complete, no pointer.
ATTEMPTS = 5
PLACES = ("checkpoint.begun:1", "checkpoint.order:1", "checkpoint.order:3", "checkpoint.seal:1", "checkpoint.sealed:1")


def leading_and_stopped(cluster: CheckpointCluster, place: str) -> int:
    """Stop leader a at a place; returns the number of its checkpoint, which the next leader may have ended already."""
    name, _, times = place.partition(":")
    err = cluster.root / "a.err"
    for _ in range(ATTEMPTS):
        cluster.start("a", f"{name}=stop:{times}")
        wait_for(lambda: b"leads application" in err.read_bytes(), PATIENCE_S, cluster.said)
        cluster.start("b")
        if cluster.feed_until_stopped("a"):
            return cluster.begun_by("a")
        # Another of its threads has the lock of the embedded log: then all writers wait, which is another test.
        cluster.kill()  # the other one too: it may have ended because it could not open the log
        err.unlink()
    raise AssertionError(f"the leader held the log's lock at each of {ATTEMPTS} stops")


def outcome_of(cluster: CheckpointCluster, number: int) -> bytes | None:
    return cluster.storage.read(f"checkpoints/{number:010}/outcome.json")


def check_next(cluster: CheckpointCluster, number: int) -> None:
    """Every part of a checkpoint that was complete while the former leader stood still is of the next one."""
    outcome = read_checkpoint(cluster.storage, number)
    makers = {read_snapshot(cluster.storage, part.name).made.instance for part in outcome.parts if part.name}
    assert makers == {outcome.leader}


def check_all(cluster: CheckpointCluster) -> None:
    for one in cluster.complete():
        found = cluster.sums(one)
        assert found.offsets == found.seen == found.totals, one
    complete = {*cluster.complete()}
    for number, found in cluster.endings().items():
        assert found == {"complete" if number in complete else "abandoned"}, number


def stop_and_go_on(cluster: CheckpointCluster, place: str) -> None:
    number = leading_and_stopped(cluster, place)
    following = cluster.await_complete(number)
    check_next(cluster, following)
    before = outcome_of(cluster, number)
    assert before is not None
    assert cluster.states()[number] is (CheckpointState.COMPLETE if "sealed" in place else CheckpointState.ABANDONED)
    process = cluster.processes["a"]
    process.send_signal(signal.SIGCONT)
    cluster.await_complete(cluster.await_complete(following))
    assert process.poll() is None, "an instance that was stopped goes on as a member"
    assert outcome_of(cluster, number) == before
    last = cluster.await_all()
    assert cluster.sums(last) == (cluster.fed,) * 3
    check_all(cluster)
    cluster.end()
    print(f": checkpoint {number} has one outcome, {following} followed; {len(cluster.complete())} are complete")


@pytest.mark.parametrize(
    "place", [pytest.param(one, marks=() if "seal:" in one else pytest.mark.long) for one in PLACES]
)
def test_a_leader_that_was_stopped_in_a_checkpoint_changes_no_outcome(tmp_path: Path, place: str) -> None:
    address = f"sqlite:///{tmp_path}/log?synchronous=normal"
    with closing(CheckpointCluster(tmp_path, address, "stopped", every_ms=1_000)) as cluster:
        stop_and_go_on(cluster, place)


@pytest.mark.long
@pytest.mark.kafka(2)
@pytest.mark.parametrize("place", ["checkpoint.order:3", "checkpoint.seal:1", "checkpoint.sealed:1"])
def test_a_leader_that_was_stopped_in_a_checkpoint_changes_no_outcome_on_kafka(
    tmp_path: Path, place: str, kafka_address: str
) -> None:
    app = f"stopped-{secrets.token_hex(4)}"
    with closing(CheckpointCluster(tmp_path, f"kafka://{kafka_address}", app, every_ms=1_000)) as cluster:
        stop_and_go_on(cluster, place)


@pytest.mark.long
@pytest.mark.parametrize("place", ["checkpoint.seal:1", "checkpoint.sealed:1"])
def test_a_leader_that_was_stopped_for_longer_than_the_grace_neither_completes_nor_undoes_one(
    tmp_path: Path, place: str
) -> None:
    """Prunes have removed an abandoned checkpoint by then, and a complete one has its pointer in the log."""
    address, grace_ms = f"sqlite:///{tmp_path}/log?synchronous=normal", 6_000
    with closing(CheckpointCluster(tmp_path, address, "stopped", every_ms=1_000, storage_grace_ms=grace_ms)) as cluster:
        number, sealed = leading_and_stopped(cluster, place), "sealed" in place
        began_ms = cluster.begun_ms(number)
        if not sealed:
            wait_for(lambda: cluster.await_complete(0) and number not in cluster.states(), PATIENCE_S, cluster.said)
        while cluster.begun_ms(cluster.await_complete(max(cluster.complete()))) - began_ms < 2 * grace_ms:
            pass
        before = outcome_of(cluster, number)
        assert (before is not None) == sealed
        cluster.processes["a"].send_signal(signal.SIGCONT)
        for _ in range(3):
            cluster.await_complete(max(cluster.complete()))
        assert outcome_of(cluster, number) == before
        last = cluster.await_all()
        assert cluster.sums(last) == (cluster.fed,) * 3
        assert (number in cluster.complete()) == sealed
        check_all(cluster)
        cluster.end()
