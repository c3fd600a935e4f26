"""The start of a topic that an application has committed no offset of: beginning, end, or a time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import standfast as sf
from standfast.replication.offsets import TaskId
from standfast.store.clock import ManualClock
from standfast.stream.runtime.running import wait_for_task
from standfast.stream.task.states import TaskState
from standfast.stream.tasks.life import Again, Attempt, Lives
from support.apps import Running, create, write
from support.loops import JSON, TEXT, Seen
from support.sessions import Bench


def reads(seen: Seen, start: Any) -> Callable[[sf.App], None]:
    def make(app: sf.App) -> None:
        app.stream("src", key=TEXT, value=JSON, start=start).process(seen.processor())

    return make


def run_once(bench: Bench, start: Any, directory: str = "a", name: str = "app") -> list[str]:
    seen = Seen()
    running = Running(bench, reads(seen, start), directory, name=name)
    running.run()
    running.commit()
    running.close()
    return seen.keys


@pytest.fixture
def filled(bench: Bench) -> Bench:
    """Ten records of 100 to 109 ms in one partition."""
    create(bench, 1, "src")
    write(bench, "src", *[(f"k{number}", "1", 100 + number) for number in range(10)])
    return bench


@pytest.mark.parametrize(
    ("start", "first"),
    [("committed", 0), ("earliest", 0), ("latest", 10), (0, 0), (99, 0), (100, 0), (104, 4), (109, 9), (110, 10)],
)
def test_first_run_begins_at_the_start(filled: Bench, start: Any, first: int) -> None:
    assert run_once(filled, start) == [f"k{number}" for number in range(first, 10)]


@pytest.mark.parametrize("start", ["committed", "earliest", "latest", 0, 103])
def test_committed_offset_wins_over_every_start(filled: Bench, start: Any) -> None:
    assert len(run_once(filled, "earliest")) == 10
    write(filled, "src", ("more", "1", 50))
    assert run_once(filled, start) == ["more"]
    assert run_once(filled, start, "empty directory") == []


@pytest.mark.parametrize("start", ["latest", 500])
def test_start_is_committed_before_the_first_record(filled: Bench, start: Any) -> None:
    first = Running(filled, reads(Seen(), start))
    assert first.loop.poll_once() == 0
    first.close()  # without a commit, as a kill
    write(filled, "src", ("since", "1", 400))
    assert run_once(filled, start, "b") == ["since"]


def test_time_names_the_first_record_that_is_not_older_whatever_comes_behind_it(bench: Bench) -> None:
    create(bench, 1, "src")
    write(bench, "src", ("old", "1", 100), ("new", "1", 300), ("late", "1", 200))
    assert run_once(bench, 250) == ["new", "late"]


def test_each_partition_has_a_start_of_its_own(bench: Bench) -> None:
    create(bench, 2, "src")
    write(bench, "src", ("a", "1", 100), ("b", "1", 200), partition=0)
    write(bench, "src", ("c", "1", 300), ("d", "1", 100), partition=1)
    assert sorted(run_once(bench, 150)) == ["b", "c", "d"]


def test_partition_added_while_the_application_runs_is_read_from_its_beginning(bench: Bench) -> None:
    create(bench, 1, "src")
    write(bench, "src", ("old", "1", 100))
    seen = Seen()
    running = Running(bench, reads(seen, "latest"))
    running.run()
    bench.log.admin.add_partitions("src", 2)
    write(bench, "src", ("first", "1", 200), partition=1)
    running.session.grow({0: 2})
    bench.settle(running.session)
    running.run()
    assert seen.keys == ["first"]


def test_processor_on_several_topics_has_a_start_for_each(bench: Bench) -> None:
    create(bench, 1, "src", "other")
    write(bench, "src", ("a", "1", 100))
    write(bench, "other", ("b", "1", 100))
    seen = Seen()

    def make(app: sf.App) -> None:
        processor = seen.processor()
        app.source("src", key=TEXT, value=JSON, start="latest")(processor)
        app.source("other", key=TEXT, value=JSON)(processor)

    Running(bench, make).run()
    assert seen.keys == ["b"]


@pytest.mark.parametrize("start", ["newest", -1, 1.5, True, None, 2**63])
def test_wrong_start_is_refused(start: Any) -> None:
    says = "source 'src': start must be one of committed, earliest, latest, or whole"
    if type(start) not in (int, str):
        says = 'App.stream: start must be "committed" or "earliest" or "latest" or a whole number'
    with pytest.raises(sf.BadConfig, match=says):
        sf.App("app").stream("src", start=start)


def test_table_takes_no_start() -> None:
    options: Any = {"start": "latest"}
    with pytest.raises(sf.BadConfig, match=r"App\.table: there is no setting 'start'"):
        sf.App("app").table("src", **options)


def test_start_above_the_rows_of_a_source_that_is_a_changelog_is_refused(bench: Bench) -> None:
    create(bench, 1, "src")
    stores = [sf.KeyValueStore("rows", TEXT, JSON, source_topic="src")]
    with pytest.raises(sf.BadConfig, match="has start='latest' and is the changelog of store 'rows': a restore would"):
        Running(bench, reads(Seen(), "latest"), stores=stores)


class _Held:
    """A session whose one task has this state, open from `opens_ms` of the clock on; a failed one is due then."""

    def __init__(self, clock: ManualClock, opens_ms: int, state: TaskState) -> None:
        self._clock, self._opens_ms, self._state = clock, opens_ms, state
        self.lives = Lives()
        if state is TaskState.FAILED:
            self.lives[TaskId(0, 0)].attempt = Attempt(opens_ms, "the log does not answer", True, Again("assign"))

    def open_tasks(self) -> dict[str, Any]:
        return {"0_0": self} if self._clock.monotonic_ms() >= self._opens_ms else {}

    def held_tasks(self) -> dict[str, Any]:
        return {"0_0": SimpleNamespace(state=self._state)}


@pytest.mark.parametrize(
    ("state", "opens_ms", "waited_ms"),
    [
        (TaskState.RESTORING, 12, 15),
        (TaskState.RESTORING, 1_000, 50),
        (TaskState.FAILED, 12, 15),
        (TaskState.FAILED, 1_000, 50),
        (TaskState.STANDBY, 12, 50),
        (TaskState.STANDBY, 1_000, 50),
    ],
)
def test_loop_without_a_task_looks_often_only_while_one_restores_or_is_opened_again(
    state: TaskState, opens_ms: int, waited_ms: int
) -> None:
    clock = ManualClock()
    began_ms = clock.monotonic_ms()
    session: Any = _Held(clock, began_ms + opens_ms, state)
    wait_for_task(session, clock, 50)
    assert clock.monotonic_ms() - began_ms == waited_ms
