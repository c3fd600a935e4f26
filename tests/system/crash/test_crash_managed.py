"""Managed placement with real processes: three instances share tasks, some are killed or stopped under load.

    records, a part at a time ──> three processes (support/crash/managed_child.py) ── SIGKILL, SIGSTOP, start
                                                                   │ all committed
                                           outputs  <──────────────┘  each key has the counts 1..n, once and in order

Rules of this file: exactly once, on both logs. It prints the seed of each run; to repeat run 7:
`STANDFAST_CRASH_SEED=<seed> make crash MANAGED_RUNS=8 ARGS="-k managed[7]"`, but for the moments of the kills.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from support.crash import managed_child
from support.crash.managed_child import LEASE_MS
from support.serve import wait_for

RUNS = int(os.environ.get("STANDFAST_CRASH_MANAGED_RUNS", "1"))
KAFKA_RUNS = max(1, RUNS // 3)
TASKS = 12
KEYS = 60
ROUNDS = 60
NAMES = ("a", "b", "c")
PATIENCE_S = 120


class Cluster:
    """Three state directories, the processes on them, and the number of records fed by key."""

    def __init__(self, root: Path, log: str, app: str, seed: int) -> None:
        self.root = root
        self.address = log
        self.app = app
        self.random = Random(seed)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.begun: dict[str, int] = {}  # where the lines of the present process begin
        self.fed: dict[str, int] = defaultdict(int)
        self.events: list[str] = []
        with closing(open_log(log)) as opened:
            for topic in ("in", "out"):
                opened.admin.create_topic(f"{app}-{topic}", TASKS, TopicPolicy())

    def start(self, name: str) -> None:
        settings = {
            "log": self.address,
            "state_dir": str(self.root / name),
            "app": self.app,
            "guarantee": "exactly_once",
        }
        with (self.root / f"{name}.err").open("ab") as err:
            self.begun[name] = err.tell()
            self.processes[name] = subprocess.Popen(
                [sys.executable, managed_child.__file__, json.dumps(settings)], stderr=err
            )

    def runs(self, name: str) -> bool:
        """Whether the process is past its imports, so that SIGTERM ends it cleanly."""
        return b"runs as instance" in (self.root / f"{name}.err").read_bytes()[self.begun[name] :]

    def end(self, name: str, number: signal.Signals) -> None:
        process = self.processes.pop(name)
        process.send_signal(number)
        if number is not signal.SIGSTOP:
            process.wait(60)
        else:
            time.sleep((LEASE_MS + self.random.randrange(1_500)) / 1_000)
            process.send_signal(signal.SIGCONT)
            self.processes[name] = process

    def strike(self) -> None:
        """End, stop or start a process at random."""
        name = self.random.choice(NAMES)
        if name not in self.processes:
            self.start(name)
            self.events.append(f"start {name}")
            return
        how = self.random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP))
        self.events.append(f"{how.name} {name}")
        self.end(name, how)

    def feed(self, records: int) -> None:
        batches: dict[TopicPartition, list[Outgoing]] = defaultdict(list)
        for _ in range(records):
            number = self.random.randrange(KEYS)
            key = f"k{number}"
            self.fed[key] += 1
            stamp = int(time.time() * 1_000)
            batches[TopicPartition(f"{self.app}-in", number % TASKS)].append(Outgoing(key.encode(), b"x", stamp))
        with closing(open_log(self.address)) as log, closing(log.producer()) as producer:
            producer.append(batches)

    def results(self) -> dict[str, list[int]]:
        """The counts that were written for each key, in order."""
        found: dict[str, list[int]] = defaultdict(list)
        sources = [TopicPartition(f"{self.app}-out", number) for number in range(TASKS)]
        with closing(open_log(self.address)) as log, closing(log.reader()) as reader:
            ends = reader.bounds(sources)
            reader.assign({at: ends[at].begin for at in sources})
            deadline = time.monotonic() + 30
            while any(position < ends[at].end for at, position in reader.assignment().items()):
                assert time.monotonic() < deadline, "the output could not be read"
                for batch in reader.fetch(10_000, 100):
                    for record in batch.records:
                        found[(record.key or b"").decode()].append(int.from_bytes(record.value or b"", "big"))
        return found

    def await_results(self) -> dict[str, list[int]]:
        deadline = time.monotonic() + PATIENCE_S
        while sum(map(len, (found := self.results()).values())) < sum(self.fed.values()):
            for name, process in self.processes.items():
                assert process.poll() is None, f"{name} ended by itself: {self.said(name)}"
            assert time.monotonic() < deadline, f"not done after {self.events}: {self.said(*NAMES)}"
            time.sleep(0.2)
        return found

    def said(self, *names: str) -> str:
        return "\n".join(f"{one}: {(self.root / f'{one}.err').read_text()[-3_000:]}" for one in names)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def run(cluster: Cluster, strikes: int) -> None:
    for name in NAMES:
        cluster.start(name)
    cluster.feed(100)
    for at in range(ROUNDS):
        cluster.feed(20)
        time.sleep(cluster.random.uniform(0, 0.1))
        if at % (ROUNDS // strikes) == ROUNDS // strikes - 1:
            cluster.strike()
    for name in NAMES:
        if name not in cluster.processes:
            cluster.start(name)
    found = cluster.await_results()
    assert {key: list(range(1, count + 1)) for key, count in cluster.fed.items()} == found, cluster.events
    wait_for(lambda: all(map(cluster.runs, NAMES)), PATIENCE_S)
    for name in NAMES:  # a clean end, too
        process = cluster.processes.pop(name)
        process.terminate()
        assert process.wait(60) == 0, cluster.said(name)
    assert cluster.results() == found


def seed_of() -> int:
    return int(os.environ.get("STANDFAST_CRASH_SEED", "0")) or secrets.randbits(32)


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("number", range(RUNS))
def test_killed_and_stopped_managed_instances_count_each_record_once(tmp_path: Path, number: int) -> None:
    seed = seed_of()
    print(f"run {number}: seed {seed}", end="", flush=True)
    with closing(Cluster(tmp_path, f"sqlite:///{tmp_path}/log?synchronous=normal", "managed", seed)) as cluster:
        run(cluster, strikes=6)
    print(f": {', '.join(cluster.events)}: {sum(cluster.fed.values())} records, 0 differences")


@pytest.mark.crash
@pytest.mark.kafka(2)
@pytest.mark.slow
@pytest.mark.parametrize("number", range(KAFKA_RUNS))
def test_killed_and_stopped_managed_instances_count_each_record_once_on_kafka(
    tmp_path: Path, number: int, kafka_address: str
) -> None:
    seed = seed_of()
    print(f"run {number}: seed {seed}", end="", flush=True)
    app = f"managed-{secrets.token_hex(4)}"
    with closing(Cluster(tmp_path, f"kafka://{kafka_address}", app, seed)) as cluster:
        run(cluster, strikes=6)
    print(f": {', '.join(cluster.events)}: {sum(cluster.fed.values())} records, 0 differences")
