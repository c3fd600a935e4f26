"""SIGKILL in the middle of coordinated checkpoints: every complete one is a consistent cut, the others are never used.

    records ──> two processes (support/crash/checkpoint_child.py), of which one is killed at a place of the protocol
                      │ checkpoints, restored from the storage alone
                      └──> source offsets = sum of the first group's store = sum of the second group's store

Rules of this file: exactly once, on both logs.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from standfast.ops.command.command_line import main
from standfast.replication.log import TopicPolicy
from standfast.replication.tail.open_log import open_log
from standfast.replication.topics.app_topics import RESTORING
from standfast.restore.snapshot.catalogue import names
from standfast.restore.snapshot.checkpoints import CheckpointState
from standfast.restore.snapshot.names import SnapshotName
from standfast.store.failpoint import VARIABLE
from support.checkpoints import Sums
from support.crash.checkpoint_cluster import PATIENCE_S, TASKS, CheckpointCluster
from support.serve import wait_for

# The leader dies at one of its orders and right after the checkpoint is complete; with the checkpoint announced, at
# each other order, and before it is complete.
LEADER_PLACES = ("checkpoint.order=kill:2", "checkpoint.sealed=kill:1")
OTHER_PLACES = (
    "checkpoint.begun=kill:1",
    "checkpoint.order=kill:1",
    "checkpoint.order=kill:3",
    "checkpoint.order=kill:4",
    "checkpoint.seal=kill:1",
)


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "places", [LEADER_PLACES, pytest.param(OTHER_PLACES, marks=pytest.mark.long)], ids=["places", "other places"]
)
def test_a_leader_killed_anywhere_in_a_checkpoint_leaves_complete_or_unused_ones(
    tmp_path: Path, places: tuple[str, ...]
) -> None:
    address = f"sqlite:///{tmp_path}/log?synchronous=normal"
    with closing(CheckpointCluster(tmp_path, address, "killed", every_ms=1_000)) as cluster:
        seen: set[int] = set()
        for place in places:
            cluster.start("a", place)
            wait_for(lambda: b"leads application" in (tmp_path / "a.err").read_bytes(), PATIENCE_S, cluster.said)
            cluster.start("b")
            cluster.feed_until_killed("a")
            states = cluster.states()
            left = [one for one, state in states.items() if state is CheckpointState.UNFINISHED]
            number = cluster.await_complete(max(states, default=0))
            # Retention may have removed old ones by now.
            assert {cluster.states().get(one, CheckpointState.ABANDONED) for one in left} <= {
                CheckpointState.ABANDONED
            }, place
            if place.startswith("checkpoint.sealed"):
                assert states[max(states)] is CheckpointState.COMPLETE
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


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("turns", [range(2), pytest.param(range(2, 8), marks=pytest.mark.long)], ids=["first", "next"])
def test_instances_killed_at_their_parts_and_at_any_time_leave_consistent_checkpoints(
    tmp_path: Path, turns: range
) -> None:
    address = f"sqlite:///{tmp_path}/log?synchronous=normal"
    with closing(CheckpointCluster(tmp_path, address, "parts", every_ms=500, grace_ms=5_000)) as cluster:
        cluster.start("a")
        wait_for(lambda: b"leads application" in (tmp_path / "a.err").read_bytes(), PATIENCE_S, cluster.said)
        seen: set[int] = set()
        for turn in turns:
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


def checkpointed_and_killed(cluster: CheckpointCluster) -> tuple[int, Sums]:
    """Kill the application after some checkpoints; returns the number of the last complete one, and its sums."""
    for name in ("a", "b"):
        cluster.start(name)
    first = cluster.await_complete(0)
    cluster.await_complete(first + 1)
    cluster.kill()
    number = cluster.complete()[-1]
    return number, cluster.sums(number)


def restore_and_go_on(cluster: CheckpointCluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Kill the application, restore its last checkpoint as another one, and let that one go on."""
    restore_killed(cluster, capsys, *checkpointed_and_killed(cluster), "c", "d")


def restore_killed(
    cluster: CheckpointCluster, capsys: pytest.CaptureFixture[str], number: int, then: Sums, *names: str
) -> None:
    """Restore a checkpoint of a killed application as another one, which instances of these names go on with."""
    again = f"{cluster.app}-again"
    with closing(open_log(cluster.address)) as log:
        log.admin.create_topic(f"{again}-out", TASKS, TopicPolicy())
    place = ["--from", cluster.to, "--app", cluster.app, "--log", cluster.address, "--state-dir"]
    restore = ["snapshot", "restore", *place, str(cluster.root / "c"), "--checkpoint", str(number), "--as", again]
    assert main([*restore, "--dry-run", "--json"]) == 0
    assert main([*restore, "--json"]) == 0, capsys.readouterr()
    capsys.readouterr()
    cluster.feed(300)
    count_once(cluster, again, then, *names)
    assert main([*restore, "--json"]) != 0  # never over a live application
    capsys.readouterr()
    cluster.end()
    print(f": checkpoint {number} had {then.offsets} of {cluster.fed} records")


def count_once(cluster: CheckpointCluster, app: str, then: Sums, *names: str) -> None:
    """Let a restored application count all records, each once, on from the checkpoint."""
    for name in names:
        cluster.start(name, app=app)
    wait_for(lambda: counted(cluster, app, then), PATIENCE_S, cluster.said)
    found = cluster.outputs(app)
    # Of each color the counts go on from the checkpoint, each once and in order.
    assert {color: one[-1] for color, one in found.items()} == cluster.colors
    assert {color: list(range(one[0], one[-1] + 1)) for color, one in found.items()} == found
    assert sum(one[0] - 1 for one in found.values()) == then.totals


def counted(cluster: CheckpointCluster, app: str, then: Sums) -> bool:
    return sum(map(len, cluster.outputs(app).values())) >= cluster.fed - then.totals


@pytest.mark.long
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
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_killed_application_restored_from_a_checkpoint_counts_each_record_once_on_kafka(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kafka_address: str
) -> None:
    app = f"shop-{secrets.token_hex(4)}"
    with closing(CheckpointCluster(tmp_path, f"kafka://{kafka_address}", app, every_ms=1_000)) as cluster:
        restore_and_go_on(cluster, capsys)


# Before anything is in the log, at each step of it, and with some or all of the six tasks in their place.
RESTORE_PLACES = (
    *("snapshot.download:1", "snapshot.fetched:3", "log.locked:1", "clone.marked:1", "clone.topics:1", "clone.rows:2"),
    *("clone.written:1", "clone.whole:1", "clone.placed:1", "clone.placed:6"),
)


def restore_in_process(cluster: CheckpointCluster, name: str, number: int, failpoint: str = "") -> Any:
    """`standfast snapshot restore --checkpoint N --as NAME` in a process of its own."""
    given = ["--from", cluster.to, "--app", cluster.app, "--log", cluster.address, "--checkpoint", str(number)]
    return subprocess.run(
        [sys.executable, "-m", "standfast.ops.cli", "snapshot", "restore", *given, "--as", name, "--state-dir",
         str(cluster.root / name), "--json"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, VARIABLE: failpoint},
    )  # fmt: skip


def kill_and_complete(cluster: CheckpointCluster, place: str, number: int, then: Sums) -> bool:
    """Kill the restore of a checkpoint at a place, and complete it; returns whether the log had something of it."""
    point, _, times = place.partition(":")
    name = f"{cluster.app}-{point.replace('.', '-')}-{times}"
    killed = restore_in_process(cluster, name, number, f"{point}=kill:{times}")
    assert killed.returncode == -signal.SIGKILL, (place, killed.stdout, killed.stderr)
    with closing(open_log(cluster.address)) as log:
        begun = name + RESTORING in log.admin.topic_names()
        assert begun or not [one for one in log.admin.topic_names() if one.startswith(f"{name}-")]
        log.admin.create_topic(f"{name}-out", TASKS, TopicPolicy())
    if begun:
        # Neither beside the state that is restored nor with an empty directory.
        for directory in (name, f"{name}-elsewhere"):
            assert cluster.start(directory, app=name).wait(PATIENCE_S) == 1, cluster.said()
            assert b"is being restored under this name" in (cluster.root / f"{directory}.err").read_bytes()
            del cluster.processes[directory]
    completed = restore_in_process(cluster, name, number)
    assert completed.returncode == 0, (place, completed.stderr)
    assert json.loads(completed.stdout)["resumed"] is begun
    with closing(open_log(cluster.address)) as log:
        assert name + RESTORING not in log.admin.topic_names()
    cluster.feed(20)
    count_once(cluster, name, then, name)
    cluster.end()
    return begun


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("first", "last"), [pytest.param(0, 5, marks=pytest.mark.long), (5, 6), pytest.param(6, 10, marks=pytest.mark.long)]
)
def test_a_killed_restore_of_a_checkpoint_starts_nothing_and_the_same_command_completes_it(
    tmp_path: Path, first: int, last: int
) -> None:
    address = f"sqlite:///{tmp_path}/log?synchronous=normal"
    with closing(CheckpointCluster(tmp_path, address, "shop", every_ms=1_000)) as cluster:
        number, then = checkpointed_and_killed(cluster)
        for place in RESTORE_PLACES[first:last]:
            assert kill_and_complete(cluster, place, number, then) == ("clone" in place), place


@pytest.mark.crash
@pytest.mark.kafka(2)
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_killed_restore_of_a_checkpoint_starts_nothing_and_the_same_command_completes_it_on_kafka(
    tmp_path: Path, kafka_address: str
) -> None:
    app = f"shop-{secrets.token_hex(4)}"
    with closing(CheckpointCluster(tmp_path, f"kafka://{kafka_address}", app, every_ms=1_000)) as cluster:
        number, then = checkpointed_and_killed(cluster)
        for place in ("clone.rows:2", "clone.written:1", "clone.whole:1", "clone.placed:3"):
            assert kill_and_complete(cluster, place, number, then)


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
def test_checkpoints_under_at_least_once_are_a_consistent_cut_and_lose_nothing_to_kills(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a kill records may count twice, in both groups or in the second one: never are they lost."""
    address = f"sqlite:///{tmp_path}/log?synchronous=normal"
    with closing(CheckpointCluster(tmp_path, address, "least", every_ms=1_000, guarantee="at_least_once")) as cluster:
        restore_and_go_on(cluster, capsys)
        seen = {*cluster.complete()}
        for one in seen:
            found = cluster.sums(one)
            assert found.offsets == found.seen == found.totals, one
        for turn in range(3):
            cluster.start("a")
            cluster.start("b", f"commit.logged=kill:{20 + turn}")
            cluster.feed_until_killed("b")
            cluster.await_complete(max(cluster.states(), default=0))
            cluster.end()
        for one in {*cluster.complete()} - seen:
            found = cluster.sums(one)
            assert found.offsets <= found.seen <= found.totals, one
        cluster.start("a")
        assert cluster.sums(cluster.await_all()).offsets == cluster.fed
        cluster.end()


def kill_workers_and_restore(cluster: CheckpointCluster, capsys: pytest.CaptureFixture[str], kills: int) -> None:
    """Kill worker processes in the middle of checkpoints; then kill the instance, and restore the last one."""
    cluster.start("a")
    seen: set[int] = set()
    cluster.await_complete(0)
    for turn in range(kills):
        number = cluster.await_begun()
        # At once, and later on: tasks stand still, are freed by groups, or their parts are on the way to the storage.
        time.sleep(0.03 * turn)
        cluster.kill_worker("a", 1 + turn % 2)
        cluster.await_complete(number)
        for one in {*cluster.complete()} - seen:
            found = cluster.sums(one)
            assert found.offsets == found.seen == found.totals, (turn, one)
            seen.add(one)
    last = cluster.await_all()
    assert cluster.sums(last) == (cluster.fed,) * 3
    assert main(["snapshot", "create", "--app", cluster.app, "--log", cluster.address, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["state"] == "complete" and 0 <= made["pause_ms"] < 10_000
    abandoned = [number for number, state in cluster.states().items() if state is CheckpointState.ABANDONED]
    assert abandoned, "no worker was killed in the middle of a checkpoint"
    print(f": {len(seen)} complete checkpoints, {len(abandoned)} abandoned, {cluster.fed} records")
    cluster.kill()
    number = cluster.complete()[-1]
    restore_killed(cluster, capsys, number, cluster.sums(number), "c")


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
def test_workers_killed_in_checkpoints_leave_consistent_ones_and_a_restore_counts_each_record_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"sqlite:///{tmp_path}/log?synchronous=normal"
    with closing(CheckpointCluster(tmp_path, address, "workers", every_ms=500, workers=2)) as cluster:
        kill_workers_and_restore(cluster, capsys, 3)


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workers_make_snapshots_of_their_own_tasks_and_one_process_prunes_them(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/log?synchronous=normal"
    with closing(CheckpointCluster(tmp_path, address, "single", single_ms=1_000, keep=2, workers=2)) as cluster:
        cluster.start("a")
        seen: set[SnapshotName] = set()

        def kept(task: str) -> list[SnapshotName]:
            return [one for one in names(cluster.storage) if one.task == task]

        def pruned() -> bool:
            """Whether each task has made more snapshots than stay, so that the first ones are gone."""
            cluster.feed(20)
            seen.update(names(cluster.storage))
            made = Counter(one.task for one in seen)
            # No color of the records falls to the last task of the second group.
            return len(made) == 2 * TASKS - 1 and all(made[one] > 3 and len(kept(one)) <= 3 for one in made)

        wait_for(pruned, PATIENCE_S, cluster.said)
        pid = cluster.kill_worker("a", 1)
        wait_for(lambda: cluster.worker_pid("a", 1) != pid, PATIENCE_S, cluster.said)
        before = {one: max(kept(one)) for one in {one.task for one in seen}}

        def goes_on() -> bool:
            cluster.feed(20)
            return all(max(kept(one)) > before[one] for one in before)

        wait_for(goes_on, PATIENCE_S, cluster.said)
        copies = tmp_path / "a/single/.copying"
        assert not list(copies.glob(f"*.{pid}-*")), "a killed process leaves no copies of its tasks"
        cluster.end()


@pytest.mark.crash
@pytest.mark.kafka(2)
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
def test_workers_killed_in_checkpoints_leave_consistent_ones_and_a_restore_counts_each_record_once_on_kafka(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kafka_address: str
) -> None:
    app = f"workers-{secrets.token_hex(4)}"
    with closing(CheckpointCluster(tmp_path, f"kafka://{kafka_address}", app, every_ms=500, workers=2)) as cluster:
        kill_workers_and_restore(cluster, capsys, 4)


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


@pytest.mark.long
def test_the_command_line_makes_a_checkpoint_of_running_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(CheckpointCluster(tmp_path, f"sqlite:///{tmp_path}/log?synchronous=normal", "asked")) as cluster:
        make_and_list(cluster, capsys)


@pytest.mark.crash
@pytest.mark.kafka(2)
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_command_line_makes_a_checkpoint_of_running_processes_on_kafka(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kafka_address: str
) -> None:
    app = f"asked-{secrets.token_hex(4)}"
    with closing(CheckpointCluster(tmp_path, f"kafka://{kafka_address}", app)) as cluster:
        make_and_list(cluster, capsys)
