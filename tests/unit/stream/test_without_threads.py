"""Sessions and applications without threads: everything happens as steps of `poll_once`, in the caller's thread.

Several instances are driven by hand, in one thread and under one clock, which moves by the test's steps alone.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import standfast as sf
from standfast.replication.offsets import TaskId
from standfast.restore.snapshot.catalogue import listed
from standfast.restore.snapshot.checkpoints import CheckpointState, checkpoints
from standfast.restore.snapshot.opening import open_storage
from standfast.store.clock import Clock
from standfast.store.process.interrupts import IS_MAIN
from standfast.store.process.threads import NoThreads, Running
from standfast.stream.task.statistics import LEASE_LATE
from support.apps import create, write, written
from support.sessions import Bench

LEASE_MS = 1_500
STEP_MS = 50


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the threads that a test starts: there are none."""
    names: list[str] = []
    start = threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        names.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    with IS_MAIN.replaced(lambda: False):  # else a helper makes some calls, and ends with them
        yield names
    assert names == []


class Instances:
    """Instances of one application on one log, each with a state directory, and the steps of all of them."""

    def __init__(self, bench: Bench, **given: Any) -> None:
        self._bench = bench
        self._given = given
        self.apps: dict[str, sf.App] = {}

    def open(self, name: str, **given: Any) -> sf.App:
        bench = self._bench
        app = sf.App("app", log=bench.address, state_dir=bench.root / name, clock=bench.clock, lease_ms=LEASE_MS,
                     stores=[sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)],
                     **{**self._given, **given})  # fmt: skip
        app.stream("in", value=sf.serde.string).group_by_key().count("counts").to_stream().to(
            "out", value=sf.serde.int64
        )
        app.open(background=False)
        self.apps[name] = app
        return app

    def until(self, done: Callable[[], bool], *names: str, steps: int = 400) -> None:
        """Rounds of these instances, by default of all, with time in between."""
        for _ in range(steps):
            for name in names or tuple(self.apps):
                self.apps[name].poll_once()
            if done():
                return
            self._bench.clock.advance(STEP_MS)
        raise AssertionError(f"not reached within {steps} steps")

    def running(self, name: str) -> set[TaskId]:
        session = self.apps[name].session
        assert session is not None
        return set(session.open_tasks())

    def close(self) -> None:
        for app in self.apps.values():
            app.close()


@pytest.fixture
def instances(bench: Bench) -> Iterator[Callable[..., Instances]]:
    with ExitStack() as stack:

        def make(**given: Any) -> Instances:
            found = Instances(bench, **given)
            stack.callback(found.close)
            return found

        create(bench, 2, "in", "out")
        yield make


def feed(bench: Bench, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        write(bench, "in", (f"k{number % 8}", "x", number), partition=number % 2)


def counted(bench: Bench) -> dict[str, int]:
    """The last result of each key."""
    found = [one for partition in range(2) for one in written(bench, "out", partition) if one.key is not None]
    return {one.key.decode(): int.from_bytes(one.value or b"") for one in found if one.key is not None}


def folded(count: int) -> dict[str, int]:
    """The results of so many records: keys of one partition are all even, those of the other one all odd."""
    return {f"k{key}": len(range(key, count, 8)) for key in range(8)}


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_tasks_of_an_instance_that_is_polled_no_more_go_on_elsewhere(
    bench: Bench, instances: Callable[..., Instances], guarantee: str
) -> None:
    both = instances(guarantee=guarantee)
    both.open("a")
    both.open("b")
    both.until(lambda: len(both.running("a")) == len(both.running("b")) == 1)
    feed(bench, 40)
    both.until(lambda: counted(bench) == folded(40))
    both.until(lambda: len(both.running("b")) == 2, "b")
    feed(bench, 40, first=40)
    both.until(lambda: counted(bench) == folded(80), "b")
    both.until(lambda: len(both.running("a")) == 1)  # it joins again, and gives its lost task up
    session = both.apps["a"].session
    assert session is not None
    assert session.counters.leases_lost[LEASE_LATE] == 1


@pytest.mark.slow
def test_asynchronous_steps_go_by_the_clock_of_the_session(bench: Bench) -> None:
    clock, text = bench.clock, sf.serde.string
    attempts: list[int] = []
    ended: list[int] = []

    class Slow(sf.Processor):
        """Answers its first attempt too late; begins and ends asynchronously, too."""

        calls = sf.Calls(timeout_ms=5_000, retries=1, backoff_ms=0)

        async def init(self, context: sf.Context) -> None:
            await asyncio.sleep(0.5)
            self.context = context

        async def process(self, record: sf.Record) -> None:
            attempts.append(clock.monotonic_ms())
            await asyncio.sleep(3_600 if len(attempts) == 1 else 2)
            self.context.forward(record)

        async def close(self) -> None:
            await asyncio.sleep(0.5)
            ended.append(clock.monotonic_ms())

    app = sf.App("app", log=bench.address, state_dir=bench.root / "a", clock=clock)
    app.stream("in", value=text).process(Slow).to("out", value=text)
    create(bench, 1, "in", "out")
    app.open(background=False)
    write(bench, "in", ("k", "x", 1))
    for _ in range(500):
        app.poll_once()
        if written(bench, "out"):
            break
        clock.advance(STEP_MS)
    app.close()
    assert [one.value for one in written(bench, "out")] == [b"x"]
    assert 5_000 <= attempts[1] - attempts[0] < 6_000
    assert len(ended) == 1


@pytest.mark.slow
def test_snapshots_and_checkpoints_are_made_and_a_new_instance_begins_with_one(
    bench: Bench, instances: Callable[..., Instances]
) -> None:
    to = str(bench.root / "snaps")
    several = instances(
        snapshots=sf.SnapshotPolicy(to=to, every_ms=2_000, checkpoint_every_ms=4_000),
        standby_replicas=0,
        restart_grace_ms=0,
    )
    several.open("a")
    several.open("b")
    several.until(lambda: len(several.running("a")) == len(several.running("b")) == 1)
    feed(bench, 40)
    storage = open_storage(to, "app", threads=NoThreads(bench.clock))
    several.until(lambda: counted(bench) == folded(40))
    several.until(lambda: {"0_0", "0_1"} <= {one.snapshot.task for one in listed(storage).whole})
    several.until(
        lambda: any(
            one.outcome is not None and one.outcome.state is CheckpointState.COMPLETE for one in checkpoints(storage)
        )
    )
    several.close()
    third = several.open("c")
    several.until(lambda: len(several.running("c")) == 2, "c")
    assert third.session is not None
    assert third.session.counters.snapshots.restores["restored"] == 2
    feed(bench, 40, first=40)
    several.until(lambda: counted(bench) == folded(80), "c")


class Numbers(sf.Source):
    """Collects some numbers."""

    def run(self, context: sf.SourceContext) -> None:
        for number in range(context.position, 30):
            context.collect(sf.Record(f"k{number % 8}", "x", number), number + 1)


class Actors(NoThreads):
    """Notes each start: a simulator makes actors there."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.started: list[str] = []

    def start(self, name: str, run: Callable[[], object]) -> Running:
        self.started.append(name)
        return super().start(name, run)


def test_sources_of_ones_own_run_where_the_application_is_given_threads_for_them(bench: Bench) -> None:
    app = sf.App("app", log=bench.address, state_dir=bench.root / "a", clock=bench.clock, commit_interval_ms=100)
    app.source_runs.threads = actors = Actors(bench.clock)
    app.stream(Numbers(), name="lines", value=sf.serde.string).to("out")
    create(bench, 1, "out")
    app.open(background=False)
    for _ in range(200):
        app.poll_once()
        bench.clock.advance(STEP_MS)
        if len(written(bench, "out")) == 30:
            break
    assert len(written(bench, "out")) == 30
    assert actors.started == ["standfast-source-lines-0"]
    app.close()


def test_figures_and_refusals_need_no_thread(bench: Bench) -> None:
    app = sf.App("app", log=bench.address, state_dir=bench.root / "a", clock=bench.clock)
    app.stream("in").to("out")
    create(bench, 1, "in", "out")
    with pytest.raises(sf.InvalidRequest, match="is not open: call open"):
        app.poll_once()
    session = app.open(background=False)
    with pytest.raises(sf.InvalidRequest, match="timeout_ms must be a whole number"):
        app.poll_once(timeout_ms=0.5)  # type: ignore[arg-type]
    assert session.statistics().app == "app"
    app.close()
    app.close()
    with pytest.raises(sf.Closed):
        session.poll_once()
