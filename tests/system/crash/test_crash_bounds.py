"""Bounds of instances and the gate of an instance, with real processes: killed, started again, on new disks.

    three instances, max_tasks 5, 12 tasks ── SIGKILL of one ──> 10 run, 2 wait ── it comes back ──> 12 run
    one instance, two workers, no disk     ── one restore takes long ──> no worker processes before it has ended

Rules of this file: exactly once, on both logs. `standfast.ops.cli.process.placement` says which tasks run.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from standfast.ops.cli.process.placement import look
from standfast.replication.placement.seen import PlacementSeen
from standfast.replication.tail.open_log import open_log
from standfast.store.errors import NotReady
from support.crash.managed_child import LEASE_MS, RESTORED
from support.crash.managed_cluster import NAMES, PATIENCE_S, TASKS, Cluster
from support.crash.time_had import patience
from support.serve import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.crash]
BOUND = 5
PLACES = 2 * BOUND  # of two instances


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=[pytest.mark.kafka(2), pytest.mark.long])])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Address of a log, and the name of an application."""
    if request.param == "embedded":
        yield f"sqlite:///{tmp_path}/log?synchronous=normal", "bounds"
    else:
        yield f"kafka://{request.getfixturevalue('kafka_address')}", f"bounds-{secrets.token_hex(4)}"


def picture(cluster: Cluster) -> PlacementSeen:
    with closing(open_log(cluster.address)) as log:
        return look(log, cluster.app)


def run_now(cluster: Cluster, tasks: int, missing: int) -> bool:
    """Whether exactly so many tasks run, none above a bound, and so many places are missing."""
    try:
        seen = picture(cluster)
    except NotReady:  # before the first generation
        return False
    states = Counter(one.state for one in seen.tasks)
    loads = Counter(one.active for one in seen.tasks if one.active is not None)
    assert all(load <= BOUND for load in loads.values()), loads
    return (states["running"], states["waiting"], seen.slots_missing) == (tasks, missing, missing)


@pytest.mark.long
def test_tasks_of_a_killed_instance_take_the_places_that_are_left_and_all_run_once_it_is_back(
    where: tuple[str, str], tmp_path: Path
) -> None:
    with closing(Cluster(tmp_path, *where, 7, max_tasks=BOUND)) as cluster:
        for name in NAMES[:2]:
            cluster.start(name)
        cluster.feed(120)
        wait_for(lambda: "WAITING_FOR_SLOTS: 2 more needed" in cluster.said(*NAMES[:2]), PATIENCE_S)
        assert not any(RESTORED in cluster.said(name) for name in NAMES[:2]) and not cluster.results()
        cluster.start(NAMES[2])
        cluster.await_results()
        wait_for(lambda: run_now(cluster, TASKS, 0), PATIENCE_S)
        time.sleep(3)  # so that the standbys have caught up
        with patience(tmp_path / "beats") as spent_s:
            cluster.end(NAMES[1], signal.SIGKILL)
            wait_for(lambda: run_now(cluster, PLACES, TASKS - PLACES), PATIENCE_S)
            took_s = spent_s()
            assert took_s <= LEASE_MS / 1_000 + 2, cluster.said(*NAMES)
        waiting = [one.task.partition for one in picture(cluster).tasks if one.state == "waiting"]
        others = sorted(set(range(TASKS)) - set(waiting))
        cluster.feed(120, others)
        cluster.await_results()  # while two tasks wait
        cluster.start(NAMES[1])
        wait_for(lambda: run_now(cluster, TASKS, 0), PATIENCE_S)
        cluster.feed(120)
        assert cluster.await_results() == cluster.expected()
        print(f": {PLACES} of {TASKS} tasks ran {took_s:.1f} s after the death", end="")


def test_no_worker_processes_before_the_last_task_of_the_instance_is_restored(
    where: tuple[str, str], tmp_path: Path
) -> None:
    with closing(Cluster(tmp_path, *where, 7, workers=2, gate="all")) as cluster:
        cluster.start("a")
        cluster.feed(300)
        before = cluster.await_results()
        cluster.end("a", signal.SIGKILL)
        shutil.rmtree(tmp_path / "a")
        cluster.settings["slow"] = "0_0"
        began = cluster.root / "a.err"
        size = began.stat().st_size
        cluster.feed(300)
        cluster.start("a")

        def restored() -> set[str]:
            lines = began.read_bytes()[size:].decode().splitlines()
            return {line.split()[1] for line in lines if line.startswith(RESTORED)}

        wait_for(lambda: len(restored()) >= TASKS // 2, PATIENCE_S)  # those of the other worker
        while "0_0" not in restored():
            found = cluster.results()
            assert "0_0" in restored() or found == before, "a task was processed before another one was restored"
            time.sleep(0.1)
        assert cluster.await_results() == cluster.expected()
