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
import time
from contextlib import closing
from pathlib import Path

import pytest

from support.crash.managed_cluster import NAMES, PATIENCE_S, Cluster, seeded
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
    found = cluster.await_results()
    assert cluster.expected() == found, cluster.events
    wait_for(lambda: all(map(cluster.runs, NAMES)), PATIENCE_S)
    for name in NAMES:  # a clean end, too
        process = cluster.processes.pop(name)
        process.terminate()
        assert process.wait(60) == 0, cluster.said(name)
    assert cluster.results() == found


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("number", range(RUNS))
def test_killed_and_stopped_managed_instances_count_each_record_once(tmp_path: Path, number: int) -> None:
    seed = seeded(number)
    with closing(Cluster(tmp_path, f"sqlite:///{tmp_path}/log?synchronous=normal", "managed", seed)) as cluster:
        run(cluster, strikes=6)
    print(f": {', '.join(cluster.events)}: {sum(cluster.fed.values())} records, 0 differences")


@pytest.mark.crash
@pytest.mark.slow
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
@pytest.mark.parametrize("number", range(KAFKA_RUNS))
def test_killed_and_stopped_managed_instances_count_each_record_once_on_kafka(
    tmp_path: Path, number: int, kafka_address: str
) -> None:
    seed = seeded(number)
    app = f"managed-{secrets.token_hex(4)}"
    with closing(Cluster(tmp_path, f"kafka://{kafka_address}", app, seed)) as cluster:
        run(cluster, strikes=6)
    print(f": {', '.join(cluster.events)}: {sum(cluster.fed.values())} records, 0 differences")
