"""Managed placement with real processes: three instances share tasks, some are killed or stopped under load.

    records, a part at a time ──> three processes (support/crash/managed_child.py) ── SIGKILL, SIGSTOP, start
                                                                   │ all committed
                                           outputs  <──────────────┘  each key has the counts 1..n, once and in order

Rules of this file: exactly once, on both logs. It prints the seed of each run; to repeat run 7:
`STANDFAST_CRASH_SEED=<seed> make crash MANAGED_RUNS=8 ARGS="-k managed[7]"`, but for the moments of the kills.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

from support.crash.managed_cluster import NAMES, PATIENCE_S, TASKS, Cluster, held_by, seeded
from support.serve import wait_for

RUNS = int(os.environ.get("STANDFAST_CRASH_MANAGED_RUNS", "1"))
KAFKA_RUNS = max(1, RUNS // 3)
ROUNDS = 60
WORKERS_PACE_S = 0.6  # a worker starts within a second or two, and only then can it be killed at work


def run(cluster: Cluster, strikes: int, pace_s: float = 0.1) -> None:
    for name in NAMES:
        cluster.start(name)
    cluster.feed(100)
    for at in range(ROUNDS):
        cluster.feed(20)
        time.sleep(cluster.random.uniform(0, pace_s))
        if at % (ROUNDS // strikes) == ROUNDS // strikes - 1:
            cluster.strike()
    for name in NAMES:
        if name not in cluster.processes:
            cluster.start(name)
    wait_for(lambda: all(map(cluster.runs, NAMES)), PATIENCE_S)
    found = cluster.await_tasks()
    assert cluster.expected() == found, cluster.events
    for name in NAMES:  # a clean end, too
        process = cluster.processes.pop(name)
        process.terminate()
        assert process.wait(60) == 0, cluster.said(name)
    assert cluster.results() == found


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("number", range(RUNS))
def test_killed_and_stopped_managed_instances_count_each_record_once(tmp_path: Path, number: int) -> None:
    seed = seeded(number)
    with closing(Cluster(tmp_path, f"sqlite:///{tmp_path}/log?synchronous=normal", "managed", seed)) as cluster:
        run(cluster, strikes=6)
    print(f": {', '.join(cluster.events)}: {sum(cluster.fed.values())} records, 0 differences")


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(RUNS))
def test_killed_and_stopped_workers_and_instances_count_each_record_once(tmp_path: Path, number: int) -> None:
    seed = seeded(number)
    address = f"sqlite:///{tmp_path}/log?synchronous=normal"
    with closing(Cluster(tmp_path, address, "managed", seed, workers=2)) as cluster:
        run(cluster, strikes=10, pace_s=WORKERS_PACE_S)
    print(f": {', '.join(cluster.events)}: {sum(cluster.fed.values())} records, 0 differences")


@pytest.mark.crash
@pytest.mark.kafka(2)
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(KAFKA_RUNS))
def test_killed_and_stopped_workers_and_instances_count_each_record_once_on_kafka(
    tmp_path: Path, number: int, kafka_address: str
) -> None:
    seed = seeded(number)
    app = f"managed-{secrets.token_hex(4)}"
    with closing(Cluster(tmp_path, f"kafka://{kafka_address}", app, seed, workers=2)) as cluster:
        run(cluster, strikes=6, pace_s=WORKERS_PACE_S)
    print(f": {', '.join(cluster.events)}: {sum(cluster.fed.values())} records, 0 differences")


@pytest.mark.crash
@pytest.mark.kafka(2)
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("number", range(KAFKA_RUNS))
def test_killed_and_stopped_managed_instances_count_each_record_once_on_kafka(
    tmp_path: Path, number: int, kafka_address: str
) -> None:
    seed = seeded(number)
    app = f"managed-{secrets.token_hex(4)}"
    with closing(Cluster(tmp_path, f"kafka://{kafka_address}", app, seed)) as cluster:
        run(cluster, strikes=6)
    print(f": {', '.join(cluster.events)}: {sum(cluster.fed.values())} records, 0 differences")


def replace_program(cluster: Cluster) -> None:
    """Start an instance of another program beside two that work; then kill it, and start it again."""
    for name in ("a", "b"):
        cluster.start(name)
    cluster.feed(300)
    cluster.await_results()
    cluster.settings["other"] = "other"
    cluster.start("c")
    wait_for(lambda: "is only in this program): this instance" in cluster.said("c"), PATIENCE_S)
    cluster.feed(300)
    cluster.end("c", signal.SIGTERM)
    cluster.settings["replace"] = True
    cluster.feed(600)
    cluster.start("c")  # while the records are processed
    cluster.feed(600)
    cluster.await_results()
    wait_for(lambda: len(held_by(cluster.processes["c"].pid)) == TASKS, PATIENCE_S)
    for name in ("a", "b"):
        assert held_by(cluster.processes[name].pid) == set(), cluster.said(name)
        assert "was replaced by" in cluster.said(name)
    cluster.end("c", signal.SIGKILL)
    cluster.settings["replace"] = False
    cluster.start("c")  # its program runs, so that it need not replace any other one
    cluster.feed(300)
    cluster.await_results()
    for name in ("a", "b", "c"):
        process = cluster.processes.pop(name)
        process.terminate()
        assert process.wait(60) == 0, cluster.said(name)
    assert cluster.results() == cluster.expected()


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.slow
def test_program_that_replaces_another_one_goes_on_with_every_record_once(tmp_path: Path) -> None:
    with closing(Cluster(tmp_path, f"sqlite:///{tmp_path}/log?synchronous=normal", "managed", 7)) as cluster:
        replace_program(cluster)


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.long
def test_program_of_worker_processes_gives_its_tasks_up_for_the_one_that_replaces_it(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/log?synchronous=normal"
    with closing(Cluster(tmp_path, address, "managed", 7, workers=2)) as cluster:
        cluster.start("a")
        cluster.feed(300)
        cluster.await_results()
        old = cluster.workers("a").values()
        cluster.settings.update(other="other", replace=True)
        cluster.start("b")
        cluster.feed(300)
        cluster.await_results()
        # Looked up each time: the old program may have processed all records before the new one has any worker.
        wait_for(lambda: sum(len(held_by(pid)) for pid in cluster.workers("b").values()) == TASKS, PATIENCE_S)
        assert [held_by(pid) for pid in old] == [set(), set()]
        cluster.feed(300)
        cluster.await_results()
        for name in ("a", "b"):
            process = cluster.processes.pop(name)
            process.terminate()
            assert process.wait(60) == 0, cluster.said(name)
        assert cluster.results() == cluster.expected()


@pytest.mark.crash
@pytest.mark.kafka(2)
@pytest.mark.slow
@pytest.mark.long
def test_program_that_replaces_another_one_goes_on_with_every_record_once_on_kafka(
    tmp_path: Path, kafka_address: str
) -> None:
    app = f"managed-{secrets.token_hex(4)}"
    with closing(Cluster(tmp_path, f"kafka://{kafka_address}", app, 7)) as cluster:
        replace_program(cluster)
