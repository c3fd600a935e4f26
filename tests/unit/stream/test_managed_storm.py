"""Instances that join, leave, stop and come back all the time: each record counts once, and no task is left alone.

Rules of this file: real instances on one embedded log and one clock that the test moves; the seed draws every change.
An instance that is not driven stands for a killed process, and for a stopped one once it is driven again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random

import pytest

from standfast.stream.task.states import TaskState
from support.apps import Running, text_of, write, written
from support.placement import TASKS, Cluster
from support.sessions import Bench

LEADER = "app-leader"
LEASE_MS = 1_000
GRACE_MS = 3_000
SLACK_MS = 2_000
CHANGES = 10
ROUNDS = 60  # of 100 ms after each change: ten changes in a minute
KEYS = 4


class Storm:
    """A cluster whose instances change: the records fed by key, and the time since which each task has no owner."""

    def __init__(self, bench: Bench, seed: int, standby_replicas: int) -> None:
        self.cluster = Cluster(
            bench,
            standby_replicas=standby_replicas,
            guarantee="exactly_once",
            lease_ms=LEASE_MS,
            restart_grace_ms=GRACE_MS,
            cache_max_bytes=0,
        )
        self.bench = bench
        self.random = Random(seed)
        self.frozen: dict[str, Running] = {}
        self.fed: Counter[str] = Counter()
        self.events: list[str] = []
        self._number = 0
        self._stopped_ms: dict[int, int] = {}  # by partition: when its owner stopped cleanly
        self._alone_ms: dict[int, int] = {}

    def start(self) -> None:
        self._number += 1
        self.cluster.start(f"i{self._number:02}")

    def change(self) -> None:
        cluster, random = self.cluster, self.random
        live = sorted(cluster.live)
        how = random.choice(["start", "start", "stop", "kill", "leader", "resume"])
        if how == "resume" and self.frozen:
            name = random.choice(sorted(self.frozen))
            cluster.live[name] = self.frozen.pop(name)
        elif how in ("start", "resume") or len(live) == 1:
            if len(live) == 4:
                return
            self.start()
            name = f"i{self._number:02}"
        else:
            name = random.choice(live if how != "leader" else cluster.leader() or live)
            if how == "stop":
                for partition in cluster.active()[name]:
                    self._stopped_ms[partition] = self.bench.clock.now_ms
                cluster.stop(name)
            else:
                self.frozen[name] = cluster.freeze(name)
        self.events.append(f"{how} {name}")

    def feed(self) -> None:
        for partition in range(TASKS):
            key = f"p{partition}-{self.random.randrange(KEYS)}"
            self.fed[key] += 1
            write(self.bench, "in", (key, '{"n": 1}', self.fed[key]), partition=partition)

    def look(self) -> None:
        """A task whose owner, by the log, does not run it has one that does soon."""
        now_ms = self.bench.clock.now_ms
        by_id = {one.session._instance.membership.member: one for one in self.cluster.live.values()}
        instance = next(iter(by_id.values())).session._instance
        owners, _ = instance.writers.owners_and_leader(instance.shared or frozenset(), LEADER)
        at_work = set()
        for task_id, name in owners.items():
            task = by_id[name].session.all_tasks().get(task_id) if name in by_id else None
            if task is not None and task.role == "active" and task.state is TaskState.RUNNING:
                at_work.add(task_id.partition)
        for partition in range(TASKS):
            if partition in at_work:
                self._alone_ms.pop(partition, None)
                continue
            since_ms = self._alone_ms.setdefault(partition, now_ms)
            stopped = now_ms - self._stopped_ms.get(partition, -GRACE_MS * 10) <= GRACE_MS + SLACK_MS + LEASE_MS
            bound_ms = (GRACE_MS if stopped else LEASE_MS) + SLACK_MS
            assert now_ms - since_ms <= bound_ms, (partition, self.events)

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.cluster.rounds(1)
            self.look()

    def counts(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for partition in range(TASKS):
            for key, value, _ in text_of(written(self.bench, "out", partition)):
                found[str(key)].append(int.from_bytes(str(value).encode(), "big"))
        return dict(found)


@pytest.mark.slow
@pytest.mark.parametrize("standby_replicas", [1, pytest.param(0, marks=pytest.mark.long)])
@pytest.mark.parametrize("seed", [1, *(pytest.param(number, marks=pytest.mark.long) for number in range(2, 12))])
def test_each_record_counts_once_and_each_task_has_an_owner_through_a_storm_of_changes(
    bench: Bench, seed: int, standby_replicas: int
) -> None:
    storm = Storm(bench, seed, standby_replicas)
    storm.start()
    storm.rounds(5)
    for _ in range(CHANGES):
        storm.change()
        for _ in range(ROUNDS // 20):
            storm.feed()
            storm.rounds(20)
    storm.cluster.live.update(storm.frozen)
    storm.rounds(100)
    assert storm.counts() == {key: list(range(1, number + 1)) for key, number in storm.fed.items()}, storm.events
