"""SIGKILL in the middle of coordinated checkpoints: every complete one is a consistent cut, the others are never used.

    records ──> two processes (support/crash/checkpoint_child.py), of which one is killed at a place of the protocol
                      │ checkpoints, restored from the storage alone
                      └──> source offsets = sum of the first group's store = sum of the second group's store

Rules of this file: exactly once, on both logs.
"""

from __future__ import annotations

import json
import secrets
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from standfast.ops.cli.command_line import main
from standfast.replication.log import TopicPolicy
from standfast.replication.tail.open_log import open_log
from standfast.restore.snapshot.checkpoints import State
from support.checkpoints import Sums
from support.crash.checkpoint_cluster import PATIENCE_S, TASKS, CheckpointCluster
from support.serve import wait_for

# The leader dies with the checkpoint announced, at each of its orders, before it is complete, and right after.
LEADER_PLACES = (
    "checkpoint.begun=kill:1",
    "checkpoint.order=kill:1",
    "checkpoint.order=kill:2",
    "checkpoint.order=kill:3",
    "checkpoint.order=kill:4",
    "checkpoint.seal=kill:1",
    "checkpoint.sealed=kill:1",
)


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_leader_killed_anywhere_in_a_checkpoint_leaves_complete_or_unused_ones(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/log?synchronous=normal"
    with closing(CheckpointCluster(tmp_path, address, "killed", every_ms=1_000)) as cluster:
        seen: set[int] = set()
        for place in LEADER_PLACES:
            cluster.start("a", place)
            wait_for(lambda: b"leads application" in (tmp_path / "a.err").read_bytes(), PATIENCE_S, cluster.said)
            cluster.start("b")
            cluster.feed_until_killed("a")
            states = cluster.states()
            left = [one for one, state in states.items() if state is State.UNFINISHED]
            number = cluster.await_complete(max(states, default=0))
            # Retention may have removed old ones by now.
            assert {cluster.states().get(one, State.ABANDONED) for one in left} <= {State.ABANDONED}, place
            if place.startswith("checkpoint.sealed"):
                assert states[max(states)] is State.COMPLETE
            for one in {*cluster.complete()} - seen:
                found = cluster.sums(one)
                assert found.offsets == found.seen == found.totals > 0, (place, one)
                seen.add(one)
            assert number in seen
            cluster.end()
            (tmp_path / "a.err").unlink()
        cluster.start("a")
        last = cluster.await_all()
        assert cluster.sums(last) == (cluster.fed,) * 3
    print(f": {len(seen)} complete checkpoints, {cluster.fed} records")


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_instances_killed_at_their_parts_and_at_any_time_leave_consistent_checkpoints(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/log?synchronous=normal"
    with closing(CheckpointCluster(tmp_path, address, "parts", every_ms=500, grace_ms=5_000)) as cluster:
        cluster.start("a")
        wait_for(lambda: b"leads application" in (tmp_path / "a.err").read_bytes(), PATIENCE_S, cluster.said)
        seen: set[int] = set()
        for turn in range(6):
            cluster.start("b", f"checkpoint.part=kill:{1 + turn}" if turn % 2 == 0 else "")
            if turn % 2 == 0:
                cluster.feed_until_killed("b")
            else:
                cluster.feed(100)
                time.sleep(cluster.random.uniform(1, 3))
                process = cluster.processes.pop("b")
                process.send_signal(signal.SIGKILL)
                process.wait()
            cluster.await_complete(max(cluster.states(), default=0))
            for one in {*cluster.complete()} - seen:
                found = cluster.sums(one)
                assert found.offsets == found.seen == found.totals, (turn, one)
                seen.add(one)
        last = cluster.await_all()
        assert cluster.sums(last) == (cluster.fed,) * 3
        cluster.end()
    print(f": {len(seen)} complete checkpoints, {cluster.fed} records")


def restore_and_go_on(cluster: CheckpointCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Kill the application, restore its last checkpoint as another one, and let that one go on."""
    for name in ("a", "b"):
        cluster.start(name)
    first = cluster.await_complete(0)
    cluster.await_complete(first + 1)
    for name in ("a", "b"):
        process = cluster.processes.pop(name)
        process.kill()
        process.wait()
    number = cluster.complete()[-1]
    then, again = cluster.sums(number), f"{cluster.app}-again"
    with closing(open_log(cluster.address)) as log:
        log.admin.create_topic(f"{again}-out", TASKS, TopicPolicy())
    place = ["--from", cluster.to, "--app", cluster.app, "--log", cluster.address, "--state-dir"]
    restore = ["snapshot", "restore", *place, str(cluster.root / "c"), "--checkpoint", str(number), "--as", again]
    assert main([*restore, "--dry-run", "--json"]) == 0
    assert main([*restore, "--json"]) == 0, capsys.readouterr()
    capsys.readouterr()
    cluster.feed(300)
    cluster.start("c", app=again)
    cluster.start("d", app=again)
    wait_for(lambda: counted(cluster, again, then), PATIENCE_S, cluster.said)
    found = cluster.outputs(again)
    # Of each color the counts go on from the checkpoint, each once and in order.
    assert {color: one[-1] for color, one in found.items()} == cluster.colors
    assert {color: list(range(one[0], one[-1] + 1)) for color, one in found.items()} == found
    assert sum(one[0] - 1 for one in found.values()) == then.totals
    assert main([*restore, "--json"]) != 0  # never over a live application
    capsys.readouterr()
    cluster.end()
    print(f": checkpoint {number} had {then.offsets} of {cluster.fed} records")


def counted(cluster: CheckpointCluster, app: str, then: Sums) -> bool:
    return sum(map(len, cluster.outputs(app).values())) >= cluster.fed - then.totals


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_application_restored_from_a_checkpoint_counts_each_record_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"sqlite:///{tmp_path}/log?synchronous=normal"
    with closing(CheckpointCluster(tmp_path, address, "shop", every_ms=1_000)) as cluster:
        restore_and_go_on(cluster, capsys)


@pytest.mark.crash
@pytest.mark.kafka(2)
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_application_restored_from_a_checkpoint_counts_each_record_once_on_kafka(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kafka_address: str
) -> None:
    app = f"shop-{secrets.token_hex(4)}"
    with closing(CheckpointCluster(tmp_path, f"kafka://{kafka_address}", app, every_ms=1_000)) as cluster:
        restore_and_go_on(cluster, capsys)


def make_and_list(cluster: CheckpointCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """A checkpoint by the command line, while records come; then the list shows it."""
    for name in ("a", "b"):
        cluster.start(name)
    wait_for(lambda: all(b"runs here" in (cluster.root / f"{one}.err").read_bytes() for one in "ab"), PATIENCE_S)
    code = 1
    made: dict[str, Any] = {}
    for _ in range(3):
        cluster.feed(200)
        place = ["--app", cluster.app, "--log", cluster.address, "--json"]
        for _ in range(5):  # tasks still move between the two at first
            code = main(["snapshot", "create", *place])
            made = json.loads(capsys.readouterr().out)
            if code == 0:
                break
        assert (code, made["state"]) == (0, "complete"), made
        assert 0 <= made["pause_ms"] < 10_000
        found = cluster.sums(made["checkpoint"])
        assert found.offsets == found.seen == found.totals
    last = cluster.sums(made["checkpoint"])
    assert main(["snapshot", "list", "--from", cluster.to, "--app", cluster.app, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["checkpoints"]
    assert [one["state"] for one in listed].count("complete") == 3
    assert len(listed[-1]["parts"]) == 6
    print(f": pause of {made['pause_ms']} ms, {last} of {cluster.fed} records")
    cluster.end()


def test_the_command_line_makes_a_checkpoint_of_running_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(CheckpointCluster(tmp_path, f"sqlite:///{tmp_path}/log?synchronous=normal", "asked")) as cluster:
        make_and_list(cluster, capsys)


@pytest.mark.crash
@pytest.mark.kafka(2)
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_command_line_makes_a_checkpoint_of_running_processes_on_kafka(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kafka_address: str
) -> None:
    app = f"asked-{secrets.token_hex(4)}"
    with closing(CheckpointCluster(tmp_path, f"kafka://{kafka_address}", app)) as cluster:
        make_and_list(cluster, capsys)
