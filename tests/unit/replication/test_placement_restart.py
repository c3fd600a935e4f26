"""Rolling restarts, by the planner alone over modelled instances: how often each task moves, and where it ends.

Rules of this file: copies catch up one after the other in a random order, as those of real instances do. Seeds decide.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from standfast.replication.offsets import TaskId
from standfast.replication.placement.model import CopyState, PlacementSettings
from support.placement_simulation.cluster import Cluster, Instance

TASKS = [TaskId(0, number) for number in range(24)]
DOWN_TICKS = 8  # of one second: less than restart_grace_ms
CAUGHT_UP_IN_A_TICK = 4


class OneByOne(Cluster):
    """Some copies of an instance reach the end in each tick, and the others are as far behind as before."""

    def _restore(self, instance: Instance) -> None:
        behind = [task for task in instance.open if instance.rows.get(task, 0) < self.ends[task]]
        self.chance.shuffle(behind)
        for task in behind[:CAUGHT_UP_IN_A_TICK]:
            instance.rows[task] = self.ends[task]
        for task, state in instance.open.items():
            if state is CopyState.RESTORING and instance.rows.get(task, 0) >= self.ends[task]:
                instance.open[task] = CopyState.RUNNING


class Course:
    """A cluster of `a`, `b` and `c` that has come to rest, and where its tasks were processed since."""

    def __init__(self, seed: int) -> None:
        settings = PlacementSettings(standby_replicas=1, probe_interval_ms=1_000)
        sizes, writes = dict.fromkeys(TASKS, 3_000), dict.fromkeys(TASKS, 3_000)
        self.cluster = OneByOne(Random(seed), settings, sizes, writes)
        for name in "abc":
            self.cluster.start(Instance(name, 1, None, {}, 0))
        self.ticks(40)
        self.at = {task: [self.cluster.serving(task)] for task in TASKS}
        self.ticks(1)

    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.cluster.round(self.cluster.view())
            self.cluster.carry_out()
            for task, names in getattr(self, "at", {}).items():
                now = self.cluster.serving(task)
                if now not in (None, names[-1]):
                    names.append(now)

    def restart(self, name: str, pause_ticks: int) -> None:
        self.cluster.stop(name)
        self.ticks(DOWN_TICKS)
        self.cluster.start(self.cluster.instances[name])
        self.ticks(pause_ticks)

    def standbys(self) -> Counter[str]:
        assert self.cluster.previous is not None
        return Counter(name for names in self.cluster.previous.standbys.values() for name in names)


@pytest.mark.parametrize("pause_ticks", [10, *(pytest.param(one, marks=pytest.mark.long) for one in (20, 40))])
def test_each_task_leaves_for_its_own_instance_s_restart_alone_and_comes_back(pause_ticks: int) -> None:
    for seed in range(10):
        course = Course(seed)
        before = course.standbys()
        for name in "abc":
            course.restart(name, pause_ticks)
        course.ticks(40)
        moves = {task: names for task, names in course.at.items() if len(names) != 3 or names[0] != names[2]}
        assert moves == {}, f"seed {seed}"
        assert course.standbys() == before == {"a": 8, "b": 8, "c": 8}


def test_task_that_loses_its_second_instance_too_still_goes_home_to_the_first() -> None:
    for seed in range(10):
        course = Course(seed)
        course.cluster.stop("a")
        course.ticks(DOWN_TICKS)
        course.cluster.start(course.cluster.instances["a"])
        course.restart("b", 2)
        course.ticks(60)
        ends = {task: (names[0], names[-1]) for task, names in course.at.items() if names[0] != names[-1]}
        assert ends == {}, f"seed {seed}"
