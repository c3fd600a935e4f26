"""Two processes with one instance id, as a copied state directory brings it: the younger one says so and stops.

Rules of this file: real instances on one embedded log, driven by hand; with placement by a leader and without.
"""

from __future__ import annotations

import logging
import shutil

import pytest

import standfast as sf
from standfast.store.clock import ManualClock
from support.placement import TASKS, Cluster, spread
from support.sessions import Bench


def copy_id(bench: Bench, source: str, target: str) -> None:
    folder = bench.root / target / "app"
    folder.mkdir(parents=True)
    shutil.copy(bench.root / source / "app" / "INSTANCE", folder / "INSTANCE")


@pytest.mark.parametrize("alone", [False, True])
def test_second_process_with_an_instance_id_stops_and_the_first_one_goes_on(
    bench: Bench, alone: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(bench, alone=alone, cache_max_bytes=0)
    first = cluster.start("a")
    cluster.fill(5)
    cluster.rounds(10)
    copy_id(bench, "a", "b")
    second = cluster.start("b")
    assert second.session.instance_id == first.session.instance_id
    named = (
        rf"{first.session.instance_id}' is used by two processes: .*/a/app runs, and this one, .*/b/app, has started"
    )
    with caplog.at_level(logging.WARNING), pytest.raises(sf.BadConfig, match=named):
        cluster.rounds(20)
    assert f"used by a second process, {second.session._instance.membership._process.where}" in caplog.text
    cluster.stop("b")
    cluster.fill(5)
    cluster.rounds(40)
    assert cluster.active() == {"a": list(range(TASKS))}
    assert set(cluster.results().values()) == {1}
    assert len(cluster.results()) == 2 * 5 * TASKS


def test_instance_that_was_killed_comes_back_with_its_id_at_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(bench)
    cluster.start("a")
    cluster.rounds(10)
    copy_id(bench, "a", "b")
    cluster.freeze("a")  # its process is gone, and its lease still runs
    cluster.start("b")
    with caplog.at_level(logging.WARNING):
        cluster.rounds(30)
    assert cluster.active() == {"b": list(range(TASKS))}
    assert "used by" not in caplog.text


class WrongClock(ManualClock):
    """Another machine's wall clock, wrong by so many milliseconds."""

    def __init__(self, right: ManualClock, wrong_by_ms: int) -> None:
        super().__init__()
        self._right = right
        self._wrong_by_ms = wrong_by_ms

    def wall_ms(self) -> int:
        return self._right.wall_ms() + self._wrong_by_ms

    def monotonic_ms(self) -> int:
        return self._right.monotonic_ms()


@pytest.mark.parametrize("wrong_by_ms", [300_000, pytest.param(-300_000, marks=pytest.mark.long)])
def test_clocks_that_differ_by_minutes_change_no_placement(bench: Bench, wrong_by_ms: int) -> None:
    cluster = Cluster(bench, standby_replicas=1, cache_max_bytes=0, restart_grace_ms=2_000)
    cluster.start("a")
    cluster.rounds(10)
    cluster.start("b", clock=WrongClock(bench.clock, wrong_by_ms))
    cluster.rounds(20)
    before = cluster.active()
    assert spread(before) == [3, 3]
    for _ in range(5):
        cluster.fill(2)
        cluster.rounds(10)
        assert cluster.active() == before
    cluster.stop("a")
    cluster.rounds(40)
    assert cluster.active() == {"b": list(range(TASKS))}
    cluster.start("a")
    cluster.rounds(40)
    assert spread(cluster.active()) == [3, 3]
    assert set(cluster.results().values()) == {1}
