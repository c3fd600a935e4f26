"""Assigning tasks to a sidecar's session: a repeated order takes back no task that another instance took."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.sidecar.worker.session import SidecarSession
from standfast.replication.offsets import TaskId
from standfast.store.rocks.engine import RocksEngine
from standfast.store.rocks.opening import RocksShared
from standfast.stream.task.states import GONE, TaskState

STORES = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
BOTH, FIRST, NONE = frozenset({0, 1}), frozenset({0}), frozenset[int]()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[SidecarSession, sf.Session]]:
    """Two instances of one application, driven by hand; the first is a sidecar's."""
    log = f"sqlite:///{tmp_path / 'log'}"
    settings: dict[str, Any] = {"stores": STORES, "partitions": 2, "background": False, "take_over": False}
    settings["gate"] = "task"  # as in a sidecar
    first = SidecarSession("app", log=log, state_dir=tmp_path / "a", **settings)
    second = sf.Session("app", log=log, state_dir=tmp_path / "b", **settings)
    yield first, second
    second.close()
    first.close()


def rows_of(session: sf.Session) -> dict[str, str]:
    return dict(session.task(0).store("kv").all())


def lose_first(first: SidecarSession, second: sf.Session, *, seen: bool) -> None:
    """The second instance takes task 0; the first commits, and has noticed its loss (`seen`) or not yet."""
    first.hold(FIRST, NONE)
    first.wait_ready(10)
    task = first.task(0)
    second.assign(active=[0])
    second.wait_ready(10)
    task.store("kv").put("a", "1")
    with pytest.raises(sf.Fenced):
        task.commit()
    if seen:
        first.poll_once()


@pytest.mark.parametrize("seen", [True, False])
def test_task_that_another_instance_took_is_not_taken_back_by_the_same_order(
    pair: tuple[SidecarSession, sf.Session], seen: bool
) -> None:
    first, second = pair
    lose_first(first, second, seen=seen)
    first.hold(BOTH, NONE)
    assert first.held().lost == FIRST
    assert set(first.all_tasks()) == {TaskId(0, 1)}
    first.hold(BOTH, NONE)
    assert first.held().lost == FIRST
    second.task(0).store("kv").put("b", "2")
    second.task(0).commit()  # its owner still
    assert rows_of(second) == {"b": "2"}


@pytest.mark.parametrize("seen", [True, False])
def test_task_that_is_named_again_is_taken_back(pair: tuple[SidecarSession, sf.Session], seen: bool) -> None:
    first, second = pair
    lose_first(first, second, seen=seen)
    first.hold(BOTH, NONE, take_back=FIRST)
    assert first.held().lost == NONE
    first.wait_ready(10)
    assert rows_of(first) == {}
    second.task(0).store("kv").put("b", "2")
    with pytest.raises(sf.Fenced):
        second.task(0).commit()


def test_order_without_a_lost_task_gives_it_up_so_that_the_next_may_name_it(
    pair: tuple[SidecarSession, sf.Session],
) -> None:
    first, second = pair
    lose_first(first, second, seen=True)
    first.hold(frozenset({1}), NONE)
    assert first.held().lost == NONE
    first.hold(BOTH, NONE)
    assert set(first.all_tasks()) == {TaskId(0, 0), TaskId(0, 1)}


def test_failed_task_is_opened_again_only_if_no_live_member_took_it(pair: tuple[SidecarSession, sf.Session]) -> None:
    first, second = pair
    first.hold(FIRST, NONE)
    first.wait_ready(10)
    failed = first.task(0)
    failed.fail(sf.InternalError("as after a full disk"))
    first.open_failed()
    while first.tasks()[0] is failed:
        first.poll_once()
    first.wait_ready(10)
    assert first.task(0).state is TaskState.RUNNING
    second.assign(active=[0])
    second.wait_ready(10)
    second.poll_once()  # publishes its tasks to the group
    first.task(0).fail(sf.InternalError("as after a full disk"))
    first.open_failed()
    while 0 in first.tasks():
        first.poll_once()
    assert first.held().lost == FIRST


@pytest.mark.usefixtures("earlier_objects_stay")  # each attempt to open the directory collects garbage
def test_refused_task_keeps_no_other_closed_and_is_opened_once_its_directory_is_free(
    pair: tuple[SidecarSession, sf.Session], tmp_path: Path
) -> None:
    first, _ = pair
    first.hold(BOTH, NONE)
    first.wait_ready(10)
    first.hold(NONE, NONE)
    holder = RocksEngine(tmp_path / "a/app/0_0", shared=RocksShared(64 << 20))
    first.hold(BOTH, NONE)
    while not first.open_tasks():
        first.poll_once()
    first.open_failed()  # its next attempt is noted already
    first.poll_once()
    tasks = first.held().tasks
    assert {at: one.is_open for at, one in tasks.items()} == {0: False, 1: True}
    assert tasks[0].state in GONE and isinstance(tasks[0].task.error, sf.Held)
    assert first.statistics().tasks[0].failures == 0  # it waits, and has not failed
    holder.close()
    while not first.ready:
        first.poll_once()
    assert first.task(0).state is TaskState.RUNNING
