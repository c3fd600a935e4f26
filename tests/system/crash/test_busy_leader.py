"""An instance with a long record in hand, as leader and as standby, beside one that is killed: real processes.

    a leads ── its record of 20 s ─── the interpreter is held, the lease process renews
    b       ── SIGKILL ────────────── its tasks run elsewhere within the lease and LATE_S

Rules of this file: all copies have caught up before. Times are those that the processes had, beside other load.
"""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from standfast.replication.log import Outgoing
from standfast.replication.offsets import TopicPartition
from standfast.replication.placement.records import PlacementState
from standfast.replication.placement.topic import PlacementTopic
from standfast.replication.tail.open_log import open_log
from standfast.store.clock import SystemClock
from support.crash.managed_child import HOLD
from support.crash.managed_cluster import NAMES, PATIENCE_S, TASKS, Cluster
from support.crash.time_had import patience
from support.serve import wait_for

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(300)]
LEASE_MS = 4_000
HELD_S = 20
LATE_S = 2.0
LOGS = ["sqlite", pytest.param("kafka", marks=[pytest.mark.kafka(2), pytest.mark.long])]


@pytest.fixture
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "kafka":
        return f"kafka://{request.getfixturevalue('kafka_address')}"
    return f"sqlite:///{tmp_path}/log?synchronous=normal"


class Placed:
    """The placement of a cluster's application, as its topic has it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._log = open_log(cluster.address)
        self._topic = PlacementTopic(self._log, cluster.app, "-", SystemClock(), acceptable_lag=10_000)

    def state(self) -> PlacementState:
        found = self._topic.look_whole()
        assert found is not None
        return found

    def name_of(self, member: str) -> str:
        return {self.member_of(name): name for name in NAMES}[member]

    def member_of(self, name: str) -> str:
        return (self._cluster.root / name / self._cluster.app / "INSTANCE").read_text().strip()

    def tasks(self) -> dict[str, list[int]]:
        """Partitions of the active tasks of each instance."""
        valid = self.state().valid
        assert valid is not None
        found: dict[str, list[int]] = {name: [] for name in NAMES}
        for task, member in valid.assignment.active.items():
            found[self.name_of(member)].append(task.partition)
        return found

    def is_even(self) -> bool:
        """Whether each instance runs its share, and has a copy of each other task at its end."""
        state = self.state()
        reports = [state.report(self.member_of(name)) for name in NAMES]
        return all(
            one is not None
            and len(one.running) == TASKS // len(NAMES)
            and len(one.lags) == TASKS - len(one.running)
            and not any(one.lags.values())
            for one in reports
        )

    def close(self) -> None:
        self._log.close()


class Trio(Cluster):
    """Three instances, of which `a` leads, with copies of all tasks."""

    def begin(self) -> Placed:
        self.start("a")
        wait_for(lambda: "leads application" in self.said("a"), PATIENCE_S)
        for name in ("b", "c"):
            self.start(name)
        wait_for(lambda: all((self.root / name / self.app / "INSTANCE").exists() for name in NAMES), PATIENCE_S)
        self.feed(100)
        self.await_results()
        placed = Placed(self)
        wait_for(placed.is_even, PATIENCE_S)
        return placed

    def occupy(self, partition: int) -> None:
        """Write the record that its owner has in hand for HELD_S."""
        record = Outgoing(HOLD.encode(), b"x", int(time.time() * 1_000))
        with closing(open_log(self.address)) as log, closing(log.producer()) as producer:
            producer.append({TopicPartition(f"{self.app}-in", partition): [record]})
        time.sleep(1.0)  # its owner has fetched it, and another instance is not to die before

    def results_after_kill(self, name: str, partitions: list[int]) -> float:
        """Kill an instance; the seconds that the others had until each of its tasks has given a result there."""
        process = self.processes.pop(name)
        with patience(self.root / "beats") as spent_s:
            process.kill()
            killed = time.monotonic()
            process.wait()
            before = sum(map(len, self.results().values()))
            for partition in partitions:
                self.feed(1, [partition])
            while sum(map(len, self.results().values())) < before + len(partitions):
                assert time.monotonic() - killed < HELD_S + LEASE_MS / 1_000, self.said(*NAMES)
                time.sleep(0.05)
            return spent_s()


@pytest.fixture
def trio(request: pytest.FixtureRequest, tmp_path: Path, address: str) -> Iterator[Trio]:
    settings: dict[str, Any] = {"lease_ms": LEASE_MS, "replicas": 2, "held_s": HELD_S}
    settings |= request.param if hasattr(request, "param") else {}
    with closing(Trio(tmp_path, address, f"busy-{secrets.token_hex(4)}", 1, **settings)) as cluster:
        yield cluster


@pytest.mark.long
@pytest.mark.parametrize("address", LOGS, indirect=True)
def test_killed_instance_is_replaced_in_time_beside_a_leader_whose_interpreter_is_held(trio: Trio) -> None:
    with closing(trio.begin()) as placed:
        tasks = placed.tasks()
        trio.occupy(tasks["a"][0])
        took_s = trio.results_after_kill("b", tasks["b"])
        assert took_s <= LEASE_MS / 1_000 + LATE_S  # its copies do not wait for a leader; one comes all the same
        wait_for(lambda: "this instance takes the lead" in trio.said("c"), PATIENCE_S)
        wait_for(lambda: set(tasks["b"]) <= set(placed.tasks()["c"]), PATIENCE_S)


@pytest.mark.long
@pytest.mark.parametrize("address", LOGS, indirect=True)
@pytest.mark.parametrize("trio", [{"sleeps": True}, {"sleeps": True, "workers": 2}], indirect=True)
def test_idle_standby_replaces_a_killed_instance_beside_one_with_a_long_record(trio: Trio) -> None:
    with closing(trio.begin()) as placed:
        tasks = placed.tasks()
        busy, victim = sorted(NAMES, key=placed.member_of)[:2]  # of equal copies the first id would take over
        trio.occupy(tasks[busy][0])
        assert trio.results_after_kill(victim, tasks[victim]) <= LEASE_MS / 1_000 + LATE_S


@pytest.mark.long
@pytest.mark.parametrize("address", LOGS, indirect=True)
def test_leader_that_stands_still_in_the_middle_of_a_publish_loses_the_lead_and_publishes_nothing(
    tmp_path: Path, address: str
) -> None:
    with closing(Trio(tmp_path, address, f"busy-{secrets.token_hex(4)}", 1, lease_ms=LEASE_MS)) as cluster:
        cluster.start("a", "placement.decided=stop:2")  # the first assignment is its own, the second one follows a join
        wait_for(lambda: "leads application" in cluster.said("a"), PATIENCE_S)
        cluster.feed(50)
        cluster.await_results()
        cluster.start("b")
        wait_for(lambda: "this instance (" in cluster.said("b"), PATIENCE_S)  # it has claimed the lead
        assert "this instance takes the lead" in cluster.said("b")
        cluster.processes["a"].send_signal(signal.SIGCONT)
        wait_for(lambda: "does not lead application" in cluster.said("a"), PATIENCE_S, lambda: cluster.said("a", "b"))
        cluster.start("c")
        with closing(Placed(cluster)) as placed:
            wait_for(lambda: (tmp_path / "c" / cluster.app / "INSTANCE").exists(), PATIENCE_S)
            wait_for(lambda: sorted(map(len, placed.tasks().values())) == [4, 4, 4], PATIENCE_S)
        cluster.feed(200)
        assert cluster.await_results() == cluster.expected()
