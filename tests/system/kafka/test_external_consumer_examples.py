"""The external-consumer examples as real processes on a real broker: killed with SIGKILL, no record is lost or doubled.

Rules of this file: the programs run unchanged, with logging set up, so that a failure shows their log. Checked are the
committed records of the changelog. `unit/simulator/test_consumer.py` has the same steps in a simulated world.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import standfast as sf
from standfast.ops.tools.broker import Broker
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.takeover import MemberPlan, plans
from support.own_consumers import PARTITIONS, counts_each_record_once_when_killed, takes_over_from_a_killed_one
from support.places import EXAMPLES

pytestmark = [pytest.mark.kafka(2), pytest.mark.slow]

NAMES = ("external_consumer", "external_consumer_asyncio")
LINES_MAX = {"external_consumer": 20, "external_consumer_asyncio": 21}
WAIT_S = 90.0
DOWN_S = 3.0
# Members hear of a rebalance with a heartbeat. A dead member is noticed by the examples' own session.timeout.ms.
QUICK = "heartbeat.interval.ms=300"
RUN = """
import logging, runpy, sys

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(message)s")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Application:
    """One application: its topic, its input records, and its processes."""

    def __init__(self, root: Path, address: str) -> None:
        self.root = root
        self.app = f"own-{uuid.uuid4().hex[:8]}"
        self.topic = f"{self.app}-in"
        self.address = f"kafka://{address}?{QUICK}"
        self.log = KafkaLog(f"kafka://{address}")
        self.group = self.log.group(self.app)
        self.log.admin.create_topic(self.topic, PARTITIONS, TopicPolicy())
        self.producer = self.log.producer()
        self.fed: Counter[str] = Counter()
        self.processes: list[subprocess.Popen[bytes]] = []

    def feed(self, count: int) -> None:
        batches: dict[TopicPartition, list[Outgoing]] = {}
        for number in range(count):
            at = TopicPartition(self.topic, number % 30 % PARTITIONS)
            batches.setdefault(at, []).append(Outgoing(b"k%d" % (number % 30), b"", time.time_ns() // 1_000_000))
            self.fed[f"k{number % 30}"] += 1
        self.producer.append(batches)

    def start(self, name: str, directory: str) -> subprocess.Popen[bytes]:
        given = [EXAMPLES / f"{name}.py", self.app, self.address, self.topic, self.root / directory]
        command = [sys.executable, "-c", RUN, *given]
        with (self.root / f"{len(self.processes)}.err").open("w") as complaints:
            process = subprocess.Popen(command, stderr=complaints)
        self.processes.append(process)
        return process

    def committed(self) -> int:
        return sum(one.offset for at, one in self.group.committed().items() if at.topic == self.topic)

    def plans(self) -> list[MemberPlan]:
        return list(plans(self.group.view()).values())

    def until(self, reached: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not reached():
            for process in self.processes:
                assert process.poll() in (None, -signal.SIGKILL), f"{what}: {self.complaints()}"
            assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}: {self.complaints()}"
            time.sleep(0.02)

    def said(self) -> str:
        return "".join(file.read_text() for file in sorted(self.root.glob("*.err")))

    def complaints(self) -> str:
        return self.said() + str(self.plans())

    def counted(self) -> Counter[str]:
        """Counts in the changelog."""
        reader = self.log.reader()
        sources = [TopicPartition(f"{self.app}-counts-changelog", number) for number in range(PARTITIONS)]
        bounds = reader.bounds(sources)
        reader.assign({at: bounds[at].begin for at in sources})
        found: Counter[str] = Counter()
        while any(position < bounds[at].end for at, position in reader.assignment().items()):
            for batch in reader.fetch(10_000, 100):
                for record in batch.records:
                    found[(record.key or b"").decode()] = sf.serde.int64.deserialize(record.value or b"")
        reader.close()
        return found

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.log.close()


@pytest.fixture
def application(tmp_path: Path, kafka_address: str) -> Iterator[Application]:
    made = Application(tmp_path, kafka_address)
    yield made
    made.close()


@pytest.fixture
def restarted(tmp_path: Path, restartable_broker: Broker) -> Iterator[Application]:
    """An application on a broker of its own."""
    made = Application(tmp_path, restartable_broker.address)
    yield made
    made.close()


@pytest.mark.parametrize("name", NAMES)
def test_example_is_short(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert sum(bool(line.strip()) for line in text.splitlines()) <= LINES_MAX[name]


@pytest.mark.parametrize("name", NAMES)
def test_example_gives_the_partitions_of_a_killed_process_away_within_seconds(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert 'session.consumer_settings({"session.timeout.ms": 6_000})' in text  # the default is 45 s


def test_readme_shows_the_example_as_it_is(repo_root: Path) -> None:
    text = (EXAMPLES / "external_consumer.py").read_text(encoding="utf-8")
    assert f"```python\n{text}```" in (repo_root / "docs/guide/external-consumer.md").read_text(encoding="utf-8")
    page = (repo_root / "docs/guide/examples.md").read_text(encoding="utf-8")
    assert "examples/external_consumer.py counts kafka://" in page  # as the tests below start it


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_example_killed_in_the_middle_and_started_again_counts_each_record_once(
    application: Application, name: str
) -> None:
    counts_each_record_once_when_killed(application, name)


@pytest.mark.long
def test_second_process_stands_by_and_takes_over_from_one_that_is_killed(application: Application) -> None:
    takes_over_from_a_killed_one(application)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
def test_example_goes_on_after_the_broker_was_stopped_and_started(
    restarted: Application, restartable_broker: Broker, name: str
) -> None:
    restarted.feed(3_000)
    process = restarted.start(name, "a")
    restarted.until(lambda: restarted.committed() > 0, "it counts")
    for stop in (restartable_broker.stop, restartable_broker.kill):
        # Between two transactions: a single broker forgets to end a transaction that it was ending when it stopped.
        restarted.until(lambda: counted_all(restarted), "all are counted")
        stop()
        time.sleep(DOWN_S)
        assert process.poll() is None, restarted.said()
        restartable_broker.start()
        restarted.feed(600)
    restarted.until(lambda: counted_all(restarted), "all are counted")
    assert restarted.counted() == restarted.fed


def counted_all(application: Application) -> bool:
    try:
        return application.committed() >= application.fed.total()
    except sf.Unavailable:  # the broker has only just started
        return False
