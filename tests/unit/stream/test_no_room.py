"""Instances whose state directory takes no writes, on real small disks, driven by hand on one log and one clock."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import standfast as sf
from standfast.replication.placement.seen import ARRIVALS
from standfast.replication.tail.tailer import CONFIRM_AFTER_MS
from standfast.store.disk import AGAIN_MS, LINE_MS, PROBE_MS
from standfast.stream.task.states import TaskState
from standfast.stream.tasks.attempts import LATER_MS
from support.apps import Running
from support.disk import fill, read_only_over
from support.padded import MIB, PAD, STORED, padded
from support.placement import TASKS, Cluster, placement_of
from support.sessions import Bench

pytestmark = pytest.mark.slow

Mount = Callable[[int], Path]
ROUND_MS = 100
ALL = list(range(TASKS))


class Disks:
    """Two instances of an application, `a` and `b`, with standbys; `b`, or both, on a small disk of its own."""

    def __init__(self, bench: Bench, mount: Mount, *, both: bool = False, **settings: object) -> None:
        self.places = {"a": mount(MIB) if both else bench.root / "a", "b": mount(MIB)}
        self.cluster = Cluster(bench, padded, **{"standby_replicas": 1, **STORED, **settings})
        for place in self.places.values():
            self.cluster.start(str(place))
            self.cluster.rounds()
        self.wait(lambda: sorted(map(len, self.active().values())) == [3, 3] and self.standbys() == [3, 3])
        self.first = 0
        self.process()

    def wait(self, condition: Callable[[], bool], rounds: int = 100) -> int:
        """Rounds until the condition holds; returns the milliseconds."""
        for number in range(rounds):
            if condition():
                return number * ROUND_MS
            self.cluster.rounds(1)
        raise AssertionError(f"not after {rounds} rounds: {self.active()}")

    def run_ms(self, for_ms: int) -> None:
        self.cluster.rounds(for_ms // ROUND_MS)

    def process(self, rounds: int = 5) -> None:
        """Five new records to each task."""
        self.cluster.fill(5, first=self.first)
        self.first += 5
        self.cluster.rounds(rounds)

    def one(self, name: str) -> Running:
        return self.cluster.live[str(self.places[name])]

    def active(self) -> dict[str, list[int]]:
        return {name: self.cluster.active()[str(place)] for name, place in self.places.items()}

    def standbys(self) -> list[int]:
        return sorted(len(found) for found in self.cluster.standby().values())

    def running(self, name: str) -> int:
        tasks = self.one(name).session.all_tasks().values()
        return sum(task.role == "active" and task.state is TaskState.RUNNING for task in tasks)

    def results(self) -> int:
        found = self.cluster.results()
        assert set(found.values()) <= {1}, "no record counts twice"
        return len(found)

    def all_results(self) -> bool:
        return self.results() == self.first * TASKS

    def generation(self) -> int:
        valid = placement_of(self.one("a")).valid
        assert valid is not None
        return int(valid.assignment.generation)

    def moves(self) -> int:
        """Moves of tasks in all generations that are kept."""
        leader = next(one for one in self.cluster.live.values() if placement_of(one).leads)
        seen = placement_of(leader).snapshot(0).seen("app")
        return sum(one.moved.kind in ARRIVALS for one in seen.moves)


def test_full_disk_gives_every_task_to_the_warm_copies_within_two_seconds(small_disk: Mount, bench: Bench) -> None:
    disks = Disks(bench, small_disk)
    filler = fill(disks.places["b"])
    disks.process(0)
    assert disks.wait(lambda: disks.active() == {"a": ALL, "b": []} and disks.running("a") == TASKS) <= 2_000
    disks.process()
    disks.wait(disks.all_results)
    assert disks.standbys() == [0, 0], "it stands by for none"
    assert filler.exists() and disks.one("b").session.disk.room.text


def test_disk_that_is_freed_gets_standbys_and_tasks_only_after_a_minute_and_may_be_full_again(
    small_disk: Mount, bench: Bench
) -> None:
    disks = Disks(bench, small_disk)
    for standbys in ([3, 3], [0, 6]):  # at the second time every task has moved within ten minutes, so none comes back
        filler = fill(disks.places["b"])
        disks.process(0)
        disks.wait(lambda: disks.active() == {"a": ALL, "b": []} and disks.running("a") == TASKS)
        filler.unlink()
        disks.run_ms(AGAIN_MS - PROBE_MS)
        assert disks.active() == {"a": ALL, "b": []} and disks.standbys() == [0, 0]
        disks.run_ms(2 * PROBE_MS)
        disks.wait(lambda standbys=standbys: disks.standbys() == standbys, 400)
        disks.process()
        disks.wait(disks.all_results)


def test_both_disks_full_move_nothing_try_every_ten_seconds_and_go_on_when_one_is_freed(
    small_disk: Mount, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    disks = Disks(bench, small_disk, both=True)
    fillers = [fill(place) for place in disks.places.values()]
    before = disks.moves()
    disks.process()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "standfast"):
        disks.run_ms(120_000)
    assert disks.moves() == before
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) <= 2 * (120_000 // LINE_MS + 1), lines
    for name, place in disks.places.items():
        text = disks.one(name).session.disk.room.text
        assert str(place) in text and "bytes free" in text
    for filler in fillers:
        filler.unlink()
    assert disks.wait(disks.all_results, 200) <= LATER_MS + 2_000


def test_file_system_that_is_mounted_read_only_is_no_room(small_disk: Mount, bench: Bench) -> None:
    disks = Disks(bench, small_disk)
    with read_only_over(disks.places["b"]):
        for task in disks.one("b").session.all_tasks().values():
            with suppress(sf.Unavailable):
                task.stores.flush()  # to a new file: those that are open can still be written
        disks.process(0)
        assert disks.wait(lambda: disks.active() == {"a": ALL, "b": []} and disks.running("a") == TASKS) <= 2_000
        assert "Read-only" in disks.one("b").session.disk.room.text
        disks.run_ms(5_000)
    disks.run_ms(AGAIN_MS + 3 * PROBE_MS)
    disks.wait(lambda: disks.standbys() == [3, 3], 400)
    disks.process()
    disks.wait(disks.all_results)


def test_floor_of_the_state_directory_is_no_room_before_a_write_fails(small_disk: Mount, bench: Bench) -> None:
    disks = Disks(bench, small_disk, disk_floor_bytes=8 << 20)
    fill(disks.places["b"], 6 << 20)
    disks.process(0)
    assert disks.wait(lambda: disks.active() == {"a": ALL, "b": []} and disks.running("a") == TASKS) <= 2_000
    disks.process()
    disks.wait(disks.all_results)
    assert "disk_floor" in disks.one("b").session.disk.room.text


def test_no_task_moves_where_the_log_is_on_the_full_disk_as_well(small_disk: Mount, bench: Bench) -> None:
    place = small_disk(96)
    on_one = Bench(place, bench.clock)
    disks = Disks(on_one, lambda _: place / "b", lease_ms=3_600_000)  # else the leases run out, as no log takes them
    try:
        before = disks.moves()
        filler = fill(place)
        for _ in range(300):
            try:
                disks.cluster.rounds(1)
            except sf.Unavailable:  # of the log; the session's own thread tries again
                continue
        filler.unlink()
        disks.run_ms(AGAIN_MS)
        disks.process()
        disks.wait(disks.all_results, 300)
        assert disks.moves() == before
    finally:
        on_one.close()


def test_single_instance_says_disk_path_and_bytes_and_goes_on_by_itself(
    small_disk: Mount, bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    place = small_disk(MIB)
    cluster = Cluster(bench, padded, **STORED)
    one = cluster.start(str(place))
    cluster.rounds()
    filler = fill(place)
    cluster.fill(5)
    with caplog.at_level(logging.WARNING, "standfast"):
        cluster.rounds(600)
    assert len(caplog.records) <= 2 + TASKS, [record.getMessage() for record in caplog.records]
    missing = " ".join(one.session.missing())
    assert str(place) in missing and "of" in missing and "bytes free" in missing
    assert one.session.statistics().disk is not None
    filler.unlink()
    cluster.rounds(LATER_MS // ROUND_MS + 10)
    assert len(cluster.results()) == 5 * TASKS
    assert one.session.disk.room.text == ""


def test_tasks_of_a_static_placement_are_tried_every_ten_seconds(small_disk: Mount, bench: Bench) -> None:
    place = small_disk(MIB)
    cluster = Cluster(bench, padded, placement="static", **STORED)
    one = cluster.start(str(place))
    one.session.assign(active=ALL)
    cluster.rounds()
    filler = fill(place)
    cluster.fill(5)
    cluster.rounds(2 * LATER_MS // ROUND_MS)
    assert str(place) in " ".join(one.session.missing()) and "bytes free" in " ".join(one.session.missing())
    filler.unlink()
    cluster.rounds(LATER_MS // ROUND_MS + 10)
    assert len(cluster.results()) == 5 * TASKS


def test_commit_under_an_external_consumer_says_disk_path_and_bytes(small_disk: Mount, bench: Bench) -> None:
    place = small_disk(MIB)
    session = bench.session(str(place), stores=[PAD], partitions=1)
    session.assign(active=[0])
    session.wait_ready(10)
    fill(place)
    task = session.task(0)
    task.store(PAD).put("a", "x" * 8_000)
    with pytest.raises(sf.CommitUnknown, match=rf"{place}.* has 0 of {MIB << 20} bytes free; free space"):
        task.commit({("in", 0): 1})
    with pytest.raises(sf.Unavailable, match=f"{place}.* bytes free"):
        session.reopen(0)
    assert session.disk.room.text


def test_standby_whose_promotion_meets_a_full_disk_is_opened_as_active_once_there_is_room(
    small_disk: Mount, bench: Bench
) -> None:
    place = small_disk(MIB)
    owner = bench.active(stores=[PAD])
    standby = bench.session(str(place), stores=[PAD])
    standby.assign(standby=[0])
    owner.task(0).store(PAD).put("a", "x")
    owner.task(0).commit({("in", 0): 1})
    bench.settle(standby)
    owner.close()
    bench.clock.now_ms -= 1_000  # so that the promotion stamps the standby's position
    (task,) = standby.all_tasks().values()
    with read_only_over(place):
        with suppress(sf.Unavailable):
            task.stores.flush()
        with pytest.raises(sf.Unavailable, match=f"{place}.* takes no writes"):
            standby.assign(active=[0])
    standby.assign(active=[0])
    standby.wait_ready(10)
    assert standby.task(0).store(PAD).get("a") == "x"


def test_standby_that_only_confirms_its_position_meets_the_full_disk_and_the_instance_reports_it(
    small_disk: Mount, bench: Bench
) -> None:
    disks = Disks(bench, small_disk, lease_ms=10_000_000)
    with read_only_over(disks.places["b"]):
        for task in disks.one("b").session.all_tasks().values():
            with suppress(sf.Unavailable):
                task.stores.flush()
        bench.clock.advance(2 * CONFIRM_AFTER_MS)
        disks.wait(lambda: disks.active() == {"a": ALL, "b": []} and disks.running("a") == TASKS)
