"""The Node example beside a real sidecar on a real broker: both are killed, and no record is lost or counted twice.

Rules of this file: the program runs unchanged, with the packages of its package.json; npm fetches them, and where it
cannot the test fails. Checked are the store, and the group's offsets in Kafka.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from support.node import node_and_npm
from support.places import EXAMPLES
from support.serve import Sidecars, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(420)]
EXAMPLE = EXAMPLES / "node"
PARTITIONS = 2
KEYS = 20


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with its packages, in a folder of its own."""
    folder = tmp_path_factory.mktemp("node") / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("node_modules"))
    _, npm, environment = node_and_npm()
    install = [*npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"]
    more = {**os.environ, **environment}
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=240, check=False, env=more)
    assert done.returncode == 0, f"npm could not fetch what the example needs: {done.stderr}"
    return folder / "counts.js"


class Run:
    """One application: topic, sidecar, and the processes of the example."""

    def __init__(self, sidecars: Sidecars, program: Path, address: str) -> None:
        self.app = f"node-{uuid.uuid4().hex[:8]}"
        self.topic = f"{self.app}-in"
        self.address = address
        self.log = KafkaLog(f"kafka://{address}")
        self.log.admin.create_topic(self.topic, PARTITIONS, TopicPolicy())
        self.producer = self.log.producer()
        self.fed: Counter[str] = Counter()
        self.sidecar = sidecars.make(log=f"kafka://{address}", app=self.app)
        self.program = program
        self.errors = sidecars.root / "node.err"
        self.node: subprocess.Popen[bytes] | None = None

    def feed(self, count: int) -> None:
        batches: dict[TopicPartition, list[Outgoing]] = {}
        for _ in range(count):
            number = random.randrange(KEYS)
            at = TopicPartition(self.topic, number % PARTITIONS)
            batches.setdefault(at, []).append(Outgoing(b"k%d" % number, b"", time.time_ns() // 1_000_000))
            self.fed[f"k{number}"] += 1
        self.producer.append(batches)

    def keep_running(self) -> None:
        """Act as a supervisor: start every process that is not running."""
        if self.sidecar.process is None or self.sidecar.process.poll() is not None:
            self.sidecar.start()
        if self.node is None or self.node.poll() is not None:
            command = [node_and_npm()[0], str(self.program), str(self.sidecar.run_dir), self.address, self.topic]
            with self.errors.open("ab") as errors:
                self.node = subprocess.Popen(command, stdout=errors, stderr=errors)

    def processed(self) -> int:
        """Records that the group has committed."""
        group = self.log.group(self.app)
        try:
            found = group.committed([TopicPartition(self.topic, number) for number in range(PARTITIONS)])
        finally:
            group.close()
        return sum(at.offset for at in found.values())

    def counts(self) -> Counter[str]:
        """The rows of the store."""
        found: Counter[str] = Counter()
        for partition in range(PARTITIONS):
            rows = self.sidecar.call("GET", f"/v1/stores/counts/scan?partition={partition}&limit=1000")["rows"]
            found.update({row["key"]: int(row["value"]) for row in rows})
        return found

    def told(self) -> str:
        node = self.errors.read_text(errors="replace")[-2_000:] if self.errors.exists() else ""
        return f"node: {node}\nsidecar: {self.sidecar.told()}"

    def close(self) -> None:
        if self.node is not None and self.node.poll() is None:
            self.node.kill()
            self.node.wait()
        self.log.close()


@pytest.fixture
def run(sidecars: Sidecars, program: Path, kafka_address: str) -> Iterator[Run]:
    made = Run(sidecars, program, kafka_address)
    yield made
    made.close()


def until(run: Run, records: int) -> None:
    """Keep both running until so many records are committed."""

    def reached() -> bool:
        run.keep_running()
        time.sleep(0.2)
        return run.processed() >= records

    wait_for(reached, 120, run.told)


def kill(process: subprocess.Popen[bytes] | None) -> None:
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait(30)


@pytest.mark.long
def test_node_application_loses_and_doubles_nothing_whoever_is_killed(run: Run) -> None:
    run.feed(2_000)
    until(run, 1)
    kill(run.node)
    run.feed(2_000)
    until(run, 3_000)
    kill(run.sidecar.process)
    run.feed(1_000)
    until(run, 5_000)
    kill(run.node)
    kill(run.sidecar.process)
    run.feed(500)
    until(run, 5_500)
    assert run.processed() == sum(run.fed.values())
    assert run.counts() == run.fed
