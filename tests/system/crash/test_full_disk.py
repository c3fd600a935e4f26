"""Instances on small disks that fill up, as real processes: their tasks go on elsewhere, or wait for space.

Rules of this file: exactly once, real file systems (tests/support/disk.py). Each record has a result of its own, so
that one that is lost, or counted twice, shows.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from standfast.replication.placement.seen import ARRIVALS, PlacementSeen, seen
from standfast.replication.placement.topic import PlacementTopic
from standfast.replication.tail.open_log import open_log
from standfast.replication.takeover import plans
from standfast.store.clock import SystemClock
from support.crash.managed_child import LEASE_MS
from support.crash.managed_cluster import PATIENCE_S, START_S, TASKS, Cluster
from support.crash.options import OPTIONS
from support.crash.time_had import patience
from support.disk import fill
from support.serve import wait_for

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(300)]

Mount = Callable[[int], Path]
MIB = 24
FIRST_S = LEASE_MS / 1_000 + 2.0  # from the first failed write to the results of every task: 0.1 to 1.3 s, seldom 2.4
RETRY_S = 10.0 + START_S  # of a task that no other instance can take


@pytest.fixture(autouse=True)
def _usual_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """The options of a run before this one count for none of these processes: times are measured here."""
    monkeypatch.delenv(OPTIONS, raising=False)


class Full(Cluster):
    """Instances `a` and `b`, each of them that is named in `small` on a disk of its own."""

    def __init__(self, root: Path, log: str, app: str, disks: dict[str, Path], **settings: Any) -> None:
        super().__init__(root, log, app, seed=1, **settings)
        for name, disk in disks.items():
            (root / name).symlink_to(disk)
        try:
            for name in ("a", "b"):
                self.start(name)
                wait_for(lambda name=name: self.runs(name), PATIENCE_S, told=lambda name=name: self.said(name))
            self.feed(100)
            self.await_results()
            wait_for(self.is_warm, PATIENCE_S, told=lambda: f"{self.placed()} {self.said('a', 'b')}")
        except BaseException:
            self.close()
            raise

    def placed(self) -> PlacementSeen:
        """The placement, by the records of its topic."""
        with closing(open_log(self.address)) as log:
            topic = PlacementTopic(log, self.app, "test", SystemClock(), acceptable_lag=10_000)
            try:
                topic.look_whole()
                members = {name: plan.managed for name, plan in plans(log.group(self.app).view()).items()}
                return seen(self.app, topic.state, members, None, SystemClock().wall_ms())
            finally:
                topic.close()

    def is_warm(self) -> bool:
        """Whether both instances run half of the tasks, and each task has a copy that lacks nothing."""
        found = self.placed()
        actives = Counter(one.active for one in found.tasks if one.state == "running")
        return sorted(actives.values()) == [TASKS // 2] * 2 and all(
            any(copy.role == "standby" and copy.lag == 0 for copy in one.copies) for one in found.tasks
        )

    def moves(self) -> int:
        return sum(one.moved.kind in ARRIVALS for one in self.placed().moves)

    def flood(self, for_s: float, *full: str) -> None:
        """Records of every task, for so long; and until each of these instances has met its full disk."""
        until = time.monotonic() + for_s
        while time.monotonic() < until or not all("no room" in " ".join(self.errors(name)) for name in full):
            assert time.monotonic() < until + PATIENCE_S, self.said(*full)
            self.feed(2 * TASKS)
            time.sleep(0.05)

    def errors(self, name: str) -> list[str]:
        """Warnings and errors of an instance."""
        return re.findall(r"^\S+ \S+ (?:WARNING|ERROR) .*$", (self.root / f"{name}.err").read_text(), re.MULTILINE)

    def check(self) -> None:
        assert self.await_results() == self.expected(), self.said("a", "b")


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_tasks_of_an_instance_with_a_full_disk_go_on_at_the_other_one(
    small_disk: Mount, tmp_path: Path, workers: int
) -> None:
    fill_one(small_disk(MIB), tmp_path, f"sqlite:///{tmp_path}/log?synchronous=normal", "full", workers)


@pytest.mark.long
@pytest.mark.kafka(2)
@pytest.mark.parametrize("workers", [1, 2])
def test_tasks_of_an_instance_with_a_full_disk_go_on_at_the_other_one_on_kafka(
    small_disk: Mount, tmp_path: Path, workers: int, kafka_address: str
) -> None:
    fill_one(small_disk(MIB), tmp_path, f"kafka://{kafka_address}", f"full-{secrets.token_hex(3)}", workers)


def fill_one(disk: Path, root: Path, log: str, app: str, workers: int) -> None:
    """The disk of `b` fills up: `a` runs all tasks, in time and with every record once; so it does when it is freed."""
    with closing(Full(root, log, app, {"b": disk}, workers=workers)) as cluster:
        filler = fill(disk)
        cluster.flood(1.0, "b")
        with patience(root / "beats") as spent_s:
            cluster.await_results()
            assert spent_s() <= FIRST_S, cluster.said("a", "b")
        mine = {(root / "a" / app / "INSTANCE").read_text().strip()}
        wait_for(
            lambda: {one.active for one in cluster.placed().tasks if one.state == "running"} == mine,
            PATIENCE_S,
            told=lambda: f"{cluster.placed()} {cluster.said('a', 'b')}",
        )
        found = cluster.placed()
        assert not any(copy.role == "standby" for one in found.tasks for copy in one.copies)
        assert [str(root / "b") in one.no_room for one in found.instances if one.id not in mine] == [True]
        filler.unlink()
        cluster.flood(0.5)
        cluster.check()
        assert len(cluster.errors("b")) <= 10, cluster.errors("b")


@pytest.mark.long
def test_tasks_stay_and_go_on_when_space_is_freed_where_both_disks_are_full(small_disk: Mount, tmp_path: Path) -> None:
    disks = {"a": small_disk(MIB), "b": small_disk(MIB)}
    log = f"sqlite:///{tmp_path}/log?synchronous=normal"
    with closing(Full(tmp_path, log, "full", disks)) as cluster:
        fillers = [fill(disk) for disk in disks.values()]
        cluster.flood(1.0, "a", "b")
        before = cluster.moves()
        time.sleep(20)
        assert cluster.moves() == before, cluster.said("a", "b")
        for name in disks:
            lines = [line for line in cluster.errors(name) if "no room" in line]
            assert len(lines) == 1 and str(tmp_path / name) in lines[0] and f"of {MIB << 20} bytes free" in lines[0]
            assert len(cluster.errors(name)) <= 6, cluster.errors(name)
        for filler in fillers:
            filler.unlink()
        began = time.monotonic()
        cluster.check()
        assert time.monotonic() - began <= RETRY_S
