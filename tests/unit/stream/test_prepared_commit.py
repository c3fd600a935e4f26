"""The local batch of a commit is filled while the log has its records: what that may change, which is nothing.

Rules of this file: real stores on the embedded log, whose writer is wrapped into one that waits as Kafka's does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

import standfast as sf
from standfast.replication.log import Batches, LogWriter
from standfast.replication.offsets import TopicPartition
from standfast.store.errors import Closed, StandfastError, Unavailable
from standfast.store.task.task_stores import PREPARED_ROWS_MIN
from standfast.stream.task.task import Task
from support.sessions import Bench

KV = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
GUARANTEES = pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
SRC: tuple[str, int] = ("src", 0)


class Waiting:
    """A task's writer that does the caller's work before its records are acknowledged."""

    def __init__(self, task: Task) -> None:
        assert task.writer is not None
        self.inner: Any = task.writer
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self.prepared: list[bool] = []
        self._task = task
        task.open_writer(cast("LogWriter", self))

    def append(self, batches: Batches, *, meanwhile: Callable[[], None]) -> Any:
        self._wait(meanwhile)
        return self.inner.append(batches)

    def transact(self, batches: Batches, *commit: Any, meanwhile: Callable[[], None]) -> Any:
        self._wait(meanwhile)
        return self.inner.transact(batches, *commit)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def _wait(self, meanwhile: Callable[[], None]) -> None:
        self.before()
        meanwhile()
        self.prepared.append(self._task._write is not None and self._task._write.prepared is not None)
        self.after()


def put(task: Task, value: str, count: int = PREPARED_ROWS_MIN) -> dict[str, str]:
    for number in range(count):
        task.store("kv").put(f"{number:04}", value)
    return {f"{number:04}": value for number in range(count)}


def committed(task: Task) -> dict[str, str]:
    """The rows on disk, without buffered ones."""
    return dict(task.stores.committed_view("kv").all())


@GUARANTEES
def test_commits_large_and_small_are_on_disk_when_they_return_and_after_a_restart(bench: Bench, guarantee: str) -> None:
    first = bench.active(stores=KV, guarantee=guarantee)
    task = first.task(0)
    writer = Waiting(task)
    expected: dict[str, str] = {}
    for number, count in enumerate((PREPARED_ROWS_MIN, 1, 2 * PREPARED_ROWS_MIN)):
        expected |= put(task, f"v{number}", count)
        task.commit({SRC: number + 1})
        assert committed(task) == expected
    assert writer.prepared == [True, False, True]
    first.close()
    again = bench.active(stores=KV, guarantee=guarantee)
    assert dict(again.task(0).store("kv").all()) == expected
    assert again.task(0).source_offsets() == {TopicPartition(*SRC): 3}


@GUARANTEES
def test_nothing_is_on_disk_before_the_log_has_answered(bench: Bench, guarantee: str) -> None:
    first = bench.active(stores=KV, guarantee=guarantee)
    task = first.task(0)
    writer = Waiting(task)
    seen: list[dict[str, str]] = []
    writer.before = writer.after = lambda: seen.append(committed(task))
    expected = put(task, "1")
    task.commit({SRC: 1})
    assert seen == [{}, {}]
    assert committed(task) == expected


@GUARANTEES
def test_a_commit_that_the_log_refuses_after_the_preparation_leaves_no_row(bench: Bench, guarantee: str) -> None:
    first = bench.active(stores=KV, guarantee=guarantee)
    task = first.task(0)
    expected = put(task, "kept")
    task.commit({SRC: 1})
    writer = Waiting(task)

    def refuse() -> None:
        raise Unavailable("no broker answers: try again")

    writer.after = refuse
    put(task, "gone")
    with pytest.raises(StandfastError):
        task.commit({SRC: 2})
    assert task._write is not None and task._write.prepared is None
    assert committed(task) == expected
    first.close()
    again = bench.active(stores=KV, guarantee=guarantee)
    assert dict(again.task(0).store("kv").all()) == expected
    assert again.task(0).source_offsets() == {TopicPartition(*SRC): 1}


@GUARANTEES
def test_stores_that_another_thread_closes_meanwhile_fail_the_commit(bench: Bench, guarantee: str) -> None:
    first = bench.active(stores=KV, guarantee=guarantee)
    task = first.task(0)
    writer = Waiting(task)
    writer.before = task.stores.close
    put(task, "1")
    with pytest.raises(Closed):
        task.commit({SRC: 1})
    first.close()
    again = bench.active(stores=KV, guarantee=guarantee)
    assert again.task(0).source_offsets() == {}
    assert dict(again.task(0).store("kv").all()) == {}
