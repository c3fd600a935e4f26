"""Members without room beside a leader whose interpreter is held: what a follower remembers of them is the leader's.

Rules of this file: real small disks, driven by hand on one embedded log and clock.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from standfast.store.disk import AGAIN_MS, PROBE_MS
from support.disk import fill
from support.padded import MIB, STORED, padded
from support.placement import Cluster, placement_of
from support.sessions import Bench

pytestmark = pytest.mark.slow

Mount = Callable[[int], Path]
ROUND_MS = 100
GRACE_MS = 100_000  # longer than a disk needs to have room again
SHARED: dict[str, Any] = {**STORED, "lease_ms": 4_000, "max_stall_ms": 600_000, "restart_grace_ms": GRACE_MS}


class Three:
    """Three instances with two tasks each; `a` leads, and `b` is on a small disk."""

    def __init__(self, bench: Bench, mount: Mount, standbys: int) -> None:
        self.disk = mount(MIB)
        self.cluster = Cluster(bench, padded, standby_replicas=standbys, **SHARED)
        self.first = 0
        for place in ("a", str(self.disk), "c"):
            self.cluster.start(place)
            self.cluster.rounds()
        self.wait(lambda: [len(one) for one in self.cluster.active().values()] == [2, 2, 2])
        self.process()
        self.cluster.rounds(50)
        assert self.cluster.leader() == ["a"]

    def wait(self, condition: Callable[[], bool]) -> None:
        for _ in range(1_500):
            if condition():
                return
            self.cluster.rounds(1)
        raise AssertionError(f"not after {1_500 * ROUND_MS} ms: {self.cluster.active()}")

    def process(self) -> None:
        self.cluster.fill(5, first=self.first)
        self.first += 5

    def no_room(self) -> bool:
        return bool(self.cluster.live[str(self.disk)].session.disk.room.text)


def test_time_without_room_that_is_over_counts_no_second_time_beside_a_busy_leader(
    small_disk: Mount, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    three = Three(bench, small_disk, standbys=0)
    for first in (True, False):
        filler = fill(three.disk)
        three.process()
        three.wait(three.no_room)
        three.cluster.rounds(10)
        three.cluster.hold("a")
        three.cluster.rounds(50)
        three.cluster.let_go("a")
        if first:
            filler.unlink()
            three.cluster.rounds((AGAIN_MS + 2 * PROBE_MS) // ROUND_MS)
            three.wait(lambda: not three.no_room())
            three.cluster.rounds(GRACE_MS // ROUND_MS)
    assert three.no_room()
    assert "while a decision waits" not in caplog.text
    assert three.cluster.leader() == ["a"], "no task may move cold yet"


def test_tasks_that_moved_for_room_count_as_moved_for_a_follower_of_a_busy_leader(
    small_disk: Mount, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    three = Three(bench, small_disk, standbys=2)
    fill(three.disk)
    three.process()
    three.wait(lambda: three.cluster.active()[str(three.disk)] == [])
    three.cluster.rounds(50)  # so that nothing is left to decide
    three.cluster.hold("a")
    three.cluster.rounds(30)
    now_ms = bench.clock.monotonic_ms()
    leader, follower = (placement_of(one) for one in (three.cluster.held["a"], three.cluster.live["c"]))
    led, beside = (one._shortages.recent(now_ms) for one in (leader, follower))
    assert led and led.keys() == beside.keys()
    assert "while a decision waits" not in caplog.text


def test_a_task_without_a_copy_moves_once_its_grace_is_over_although_the_leader_is_busy_all_the_time(
    small_disk: Mount, bench: Bench
) -> None:
    three = Three(bench, small_disk, standbys=0)
    three.cluster.hold("a")
    three.cluster.rounds(30)
    fill(three.disk)
    three.process()
    three.wait(three.no_room)
    three.cluster.rounds((GRACE_MS - 5_000) // ROUND_MS)
    assert three.cluster.leader() == []
    assert len(three.cluster.active()[str(three.disk)]) == 2
    three.cluster.rounds(100)
    assert len(three.cluster.leader()) == 1, "another one than `a`"
    assert three.cluster.active()[str(three.disk)] == [], "the new leader does not begin to count with its lead"
