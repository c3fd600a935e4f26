"""How long a task stands still when its instance, or its worker process, is killed under load beside a warm standby.

    feeder    a record for each task every 20 ms        observer    the moment at which each result can be read
    pause     the longest time between two results of a task from the kill on

Rules of this file: exactly once, three instances, twelve tasks, a standby each. The figures are printed; `make crash`
also holds them to the limits, because a test that other work delays says nothing about them.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from standfast.ops.cli.process.placement import look
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TopicPartition
from standfast.replication.placement.seen import PlacementSeen
from standfast.replication.tail.open_log import open_log
from standfast.store.errors import NotReady
from support.crash.managed_child import LEASE_MS, RESTORED
from support.crash.managed_cluster import NAMES, PATIENCE_S, TASKS, Cluster, held_by, seeded
from support.serve import wait_for

ASKED = os.environ.get("STANDFAST_CRASH_MANAGED_RUNS")
RUNS = int(ASKED or 1)
KAFKA_RUNS = max(1, RUNS // 3)
# Workers make it nine processes, which on two cores are a lane of their own.
VICTIMS = ("instance",) if ASKED is None else ("instance", "worker")
ROWS = 2_000  # of each task
EVERY_S = 0.02
PAUSE_MS_MAX = 2_000  # beside the detection of the end, which takes a lease for an instance
REPLAYED_MAX = 0.01  # of the rows of the tasks that were taken over


class Load:
    """Feeds each task steadily, and notes when its results can be read."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=run) for run in (self._feed, self._observe)]
        self.errors: list[BaseException] = []
        self.read_s: dict[int, list[float]] = defaultdict(list)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End both threads; raises the error of one."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def reached(self, since_s: float) -> bool:
        """Whether every task has a result from after that moment."""
        return all(times and times[-1] > since_s for times in (self.read_s[number] for number in range(TASKS)))

    def pauses_ms(self, since_s: float) -> dict[int, int]:
        """The longest time without a result that ended after that moment, by task."""
        found = {}
        for number in range(TASKS):
            times = self.read_s[number]
            gaps = [late - early for early, late in pairwise(times) if late > since_s]
            found[number] = round(1_000 * max(gaps))
        return found

    def _feed(self) -> None:
        cluster = self._cluster
        try:
            with closing(open_log(cluster.address)) as log, closing(log.producer()) as producer:
                while not self._stop.wait(EVERY_S):
                    stamp = int(time.time() * 1_000)
                    batches = {}
                    for number in range(TASKS):
                        cluster.fed[f"k{number}"] += 1
                        record = Outgoing(f"k{number}".encode(), b"x", stamp)
                        batches[TopicPartition(f"{cluster.app}-in", number)] = [record]
                    producer.append(batches)
        except BaseException as error:
            self.errors.append(error)

    def _observe(self) -> None:
        sources = [TopicPartition(f"{self._cluster.app}-out", number) for number in range(TASKS)]
        try:
            with closing(open_log(self._cluster.address)) as log, closing(log.reader()) as reader:
                reader.assign({at: one.end for at, one in reader.bounds(sources).items()})
                while not self._stop.is_set():
                    for batch in reader.fetch(1_000, 10):
                        now_s = time.monotonic()
                        # By key, because the output has partitions of its own.
                        for number in {int((record.key or b"k-1")[1:]) for record in batch.records}:
                            self.read_s[number].append(now_s)
        except BaseException as error:
            self.errors.append(error)


@contextmanager
def loaded(cluster: Cluster) -> Iterator[Load]:
    load = Load(cluster)
    try:
        yield load
    finally:
        load.stop()


def placement(cluster: Cluster) -> PlacementSeen | None:
    with closing(open_log(cluster.address)) as log:
        try:
            return look(log, cluster.app)
        except NotReady:
            return None


def is_settled(seen: PlacementSeen | None) -> bool:
    """Whether the tasks are even over the instances, run, and each has a standby without lag."""
    if seen is None or [one.actives for one in seen.instances] != [TASKS // len(NAMES)] * len(NAMES):
        return False
    return all(
        task.state == "running" and [one.lag for one in task.copies if one.role != "stored"] == [0]
        for task in seen.tasks
    )


def shown(seen: PlacementSeen | None) -> str:
    """The instances and tasks in short, for a failure."""
    if seen is None:
        return "no placement"
    instances = " ".join(f"{one.id}:{one.state}:{one.actives}" for one in seen.instances)
    tasks = " ".join(
        f"{task.task}:{task.active}:{task.state}:{[(one.role, one.instance, one.lag) for one in task.copies]}"
        for task in seen.tasks
    )
    return f"{instances}; {tasks}"


def fill(cluster: Cluster) -> None:
    """Write the rows that each task has before the kill."""
    batches: dict[TopicPartition, list[Outgoing]] = {}
    for number in range(TASKS):
        keys = [f"row-{number}-{row}" for row in range(ROWS)]
        cluster.fed.update(dict.fromkeys(keys, 1))
        stamp = int(time.time() * 1_000)
        batches[TopicPartition(f"{cluster.app}-in", number)] = [Outgoing(key.encode(), b"x", stamp) for key in keys]
    with closing(open_log(cluster.address)) as log, closing(log.producer()) as producer:
        producer.append(batches)


def id_of(cluster: Cluster, name: str) -> str:
    found = re.findall(rb"runs as instance (\w+)", (cluster.root / f"{name}.err").read_bytes())
    return bytes(found[-1]).decode()


def restored(cluster: Cluster) -> dict[int, int]:
    """The records of all restores so far, by task."""
    found: dict[int, int] = defaultdict(int)
    for name in NAMES:
        text = (cluster.root / f"{name}.err").read_text()
        for partition, records in re.findall(rf"{RESTORED} 0_(\d+) (\d+)", text):
            found[int(partition)] += int(records)
    return found


def run(cluster: Cluster, victim: str) -> str:
    """Kill an instance, or a worker of one, under load; returns the figures."""
    fill(cluster)
    for name in NAMES:
        cluster.start(name)
    cluster.await_results()
    wait_for(lambda: is_settled(placement(cluster)), PATIENCE_S, told=lambda: shown(placement(cluster)))
    name = cluster.random.choice(NAMES)
    seen, instance = placement(cluster), id_of(cluster, name)
    assert seen is not None
    lost = {task.task.partition for task in seen.tasks if task.active == instance}
    worker = cluster.random.choice(sorted(cluster.workers(name).values()) or [0])
    if victim == "worker":
        lost &= held_by(worker)
    with loaded(cluster) as load:
        began_s = time.monotonic()
        wait_for(lambda: load.errors or load.reached(began_s + 1), PATIENCE_S)
        before, killed_s = restored(cluster), time.monotonic()
        if victim == "instance":
            cluster.end(name, signal.SIGKILL)
        else:
            os.kill(worker, signal.SIGKILL)
        wait_for(lambda: load.errors or load.reached(killed_s + 2 * (LEASE_MS + PAUSE_MS_MAX) / 1_000), PATIENCE_S)
    pauses = load.pauses_ms(killed_s)
    own = sorted(pauses[number] for number in lost)
    others = sorted(pauses[number] for number in pauses.keys() - lost)
    after = restored(cluster)
    replayed = sum(after[number] - before[number] for number in after)
    detection_ms = LEASE_MS if victim == "instance" else 0
    found = cluster.await_results()
    assert cluster.expected() == found, cluster.said(*NAMES)
    for other in list(cluster.processes):
        process = cluster.processes.pop(other)
        process.terminate()
        assert process.wait(60) == 0, cluster.said(other)
    if ASKED is not None:
        assert max(own) <= detection_ms + PAUSE_MS_MAX, pauses
        assert replayed <= REPLAYED_MAX * ROWS * len(own), (before, after)
    middle, most = own[len(own) // 2], own[-1]
    return (
        f": {victim} killed: its {len(own)} tasks paused {middle} ms (p50) and {most} ms (p99), of them {detection_ms} "
        f"ms of lease; the others {others[len(others) // 2]} and {others[-1]} ms; {replayed} of {ROWS * len(own)} rows "
        "replayed"
    )


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("number", range(RUNS))
def test_tasks_of_a_killed_process_go_on_from_their_standbys(tmp_path: Path, number: int, victim: str) -> None:
    address = f"sqlite:///{tmp_path}/log?synchronous=normal"
    with closing(Cluster(tmp_path, address, "managed", seeded(number), workers=1 + (victim == "worker"))) as cluster:
        print(run(cluster, victim))


@pytest.mark.crash
@pytest.mark.kafka(2)
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("number", range(KAFKA_RUNS))
def test_tasks_of_a_killed_process_go_on_from_their_standbys_on_kafka(
    tmp_path: Path, number: int, victim: str, kafka_address: str
) -> None:
    app = f"managed-{secrets.token_hex(4)}"
    cluster = Cluster(tmp_path, f"kafka://{kafka_address}", app, seeded(number), workers=1 + (victim == "worker"))
    with closing(cluster):
        print(run(cluster, victim))
