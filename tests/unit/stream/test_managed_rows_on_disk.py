"""Rows on the disk of instances: the lags that they are reported with, and that tasks go where the rows are."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

import standfast as sf
from standfast.replication.offsets import TaskId
from standfast.store.rocks.opening import RocksShared
from standfast.store.task.state_dir import StateDir
from standfast.stream.task.rows_on_disk import ENDS_MS, READ_MS, RowsOnDisk
from support.placement import TASKS, Cluster, placement_of, spread
from support.sessions import Bench

STORES = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]


def stored(cluster: Cluster, name: str) -> dict[int, int]:
    """Lags of an instance's closed rows, as its leader has read them."""
    (leader,) = cluster.leader()
    report = placement_of(cluster.live[leader])._topic.state.report(cluster.live[name].session.instance_id)
    return {task.partition: lag for task, lag in report.stored.items()}


def codes(cluster: Cluster, name: str) -> set[str]:
    """The reasons by which tasks came to an instance in the last generation that moved any."""
    one = cluster.live[name].session
    placement = one.statistics().placement
    assert placement is not None
    return {move.moved.reason.code for move in placement.seen("app").moves if move.moved.target == one.instance_id}


def test_instance_that_comes_back_late_gets_the_tasks_whose_rows_it_has(bench: Bench) -> None:
    cluster = Cluster(bench, restart_grace_ms=1_000)
    for name in ("a", "b", "c"):
        cluster.start(name)
        cluster.rounds()
    cluster.fill(50)
    cluster.rounds()
    held = cluster.active()["c"]
    assert held != [0, 1], "other tasks than those that are moved first without rows"
    cluster.stop("c")
    cluster.rounds(60)
    assert sum(map(len, cluster.active().values())) == TASKS
    cluster.start("c")
    cluster.rounds(60)
    assert cluster.active()["c"] == held


def test_tasks_without_an_owner_start_where_their_rows_are(bench: Bench) -> None:
    cluster = Cluster(bench, restart_grace_ms=1_000)
    for name in ("a", "b"):
        cluster.start(name)
        cluster.rounds()
    cluster.fill(50)
    cluster.rounds()
    held = cluster.active()["b"]
    cluster.stop("b")
    cluster.rounds(60)
    assert cluster.active() == {"a": list(range(TASKS))}
    cluster.stop("a")
    cluster.start("d")
    cluster.start("b")
    cluster.rounds(60)
    assert cluster.active()["b"] == held
    assert "ROWS_ON_DISK" in codes(cluster, "b")
    assert "EMPTIEST" in codes(cluster, "d")


def test_instance_reports_how_many_records_its_rows_lack(bench: Bench) -> None:
    cluster = Cluster(bench, restart_grace_ms=1_000, acceptable_lag=0, warmups_max=1)
    for name in ("a", "b"):
        cluster.start(name)
        cluster.rounds()
    cluster.fill(50)
    cluster.rounds()
    held = cluster.active()["b"]
    cluster.stop("b")
    cluster.rounds(60)
    cluster.fill(30, first=50)
    cluster.rounds()
    cluster.start("b")
    cluster.rounds(2)
    found = stored(cluster, "b")
    assert sorted(found) == held
    assert min(found.values()) >= 30


def test_leader_gives_nothing_to_an_instance_that_has_not_reported(bench: Bench) -> None:
    cluster = Cluster(bench)
    cluster.start("a")
    cluster.rounds()
    cluster.start("b")
    late = cluster.freeze("b")
    for _ in range(20):
        late.session._instance.membership.heartbeat(late.session._lease_group)
        cluster.rounds(1)
    members = [one.member_id for one in bench.log.group("app").view().members]
    assert late.session.instance_id in members
    assert cluster.active() == {"a": list(range(TASKS))}
    assert placement_of(cluster.live["a"]).valid.assignment.warmups == {}
    cluster.live["b"] = late
    cluster.rounds()
    assert spread(cluster.active()) == [3, 3]


@pytest.fixture
def disk(bench: Bench) -> Iterator[tuple[RowsOnDisk, StateDir]]:
    """The state directory of a session that ran four tasks and is closed."""
    bench.fill(STORES, 4, 10)
    state = StateDir(bench.root / "filling", "app")
    reader = bench.log.reader()
    made = RowsOnDisk(
        state,
        reader,
        lambda group: STORES if group == 0 else [],
        RocksShared(8 << 20),
        clock=bench.clock,
        opening=lambda path: nullcontext(),
    )
    yield made, state
    reader.close()
    state.close()


def t(number: int) -> TaskId:
    return TaskId(0, number)


def test_closed_tasks_lack_the_records_beyond_their_position(bench: Bench, disk: tuple[RowsOnDisk, StateDir]) -> None:
    rows, _ = disk
    assert rows.look([t(1)], 10_000) == {t(0): 0, t(2): 0, t(3): 0}
    writer = bench.session("other", stores=STORES, partitions=4)
    writer.assign(active=[2])
    writer.wait_ready(30)
    for number in range(7):
        writer.task(2).store("kv").put(f"new{number}", "v")
    writer.task(2).commit()
    assert rows.look([t(1)])[t(2)] == 0, "the ends are read at an interval"
    bench.clock.advance(ENDS_MS)
    assert rows.look([t(1)])[t(2)] == 7
    assert rows.look([t(1)])[t(3)] == 0


def test_tasks_are_read_one_after_the_other_after_the_first_look(
    bench: Bench, disk: tuple[RowsOnDisk, StateDir]
) -> None:
    rows, _ = disk
    sizes = []
    for _ in range(8):
        sizes.append(len(rows.look([])))
        bench.clock.advance(READ_MS // 2)
    assert sizes == [1, 1, 1, 1, 1, 1, 4, 4], "each new lag is a report, so the rest comes at once"


def test_task_that_was_open_is_read_again(bench: Bench, disk: tuple[RowsOnDisk, StateDir]) -> None:
    rows, _ = disk
    assert set(rows.look([], 10_000)) == {t(0), t(1), t(2), t(3)}
    assert t(0) not in rows.look([t(0)])
    bench.clock.advance(READ_MS)
    assert rows.look([])[t(0)] == 0


def test_directory_that_cannot_be_read_counts_as_none_and_is_named(
    bench: Bench, disk: tuple[RowsOnDisk, StateDir], caplog: pytest.LogCaptureFixture
) -> None:
    rows, state = disk
    (state.task_path("0_1") / "CURRENT").write_text("MANIFEST-999999\n")
    with caplog.at_level(logging.WARNING):
        found = rows.look([], 10_000)
        bench.clock.advance(ENDS_MS)
        rows.look([], 10_000)
    assert set(found) == {t(0), t(2), t(3)}
    named = [
        one.getMessage() for one in caplog.records if "the rows of task 0_1 on disk do not count" in one.getMessage()
    ]
    assert len(named) == 1


def test_rows_of_a_changelog_that_is_gone_count_as_none(bench: Bench, disk: tuple[RowsOnDisk, StateDir]) -> None:
    rows, _ = disk
    bench.log.admin.delete_topic("app-kv-changelog")
    assert rows.look([], 10_000) == {}


def test_directory_that_is_no_task_is_passed_over(disk: tuple[RowsOnDisk, StateDir]) -> None:
    rows, state = disk
    shutil.copytree(state.task_path("0_1"), state.path / "0_1.bak")
    shutil.copytree(state.task_path("0_1"), state.path / "7_0")  # of a group that the program no longer has
    assert set(rows.look([], 10_000)) == {t(number) for number in range(4)}
