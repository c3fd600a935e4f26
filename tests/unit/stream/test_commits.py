"""Commits under way: threads wait for the log, the loop goes on, and a task is left alone until its commit ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

import standfast as sf
from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.log import Batches, GroupCommit, LogWriter
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.store.clock import ManualClock
from standfast.store.process.threads import THREADS
from standfast.stream.runtime import commits
from standfast.stream.runtime.commit_pace import LEAST_ROOM, CommitPace
from standfast.stream.runtime.commits import HOLD_MS, Commits, groups_before
from standfast.stream.runtime.failures import RETRY_WAIT_MS
from standfast.stream.steps import Steps, run_steps
from standfast.stream.task.states import TaskState
from standfast.stream.task.task import Task
from support.apps import Running, create, text_of, write, written
from support.loops import Seen, fail, keys
from support.sessions import Bench

TEXT, JSON, INT = sf.serde.string, sf.serde.json, sf.serde.int64
COUNT = sf.KeyValueStore("count", TEXT, INT)
WAIT_S = 30.0
INTERVAL_MS = 100


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded log counts as one of other machines."""
    monkeypatch.setattr(EmbeddedLog, "remote", True)


class SlowWriter:
    """A task's writer whose transactions wait for `go`, and then raise `error` if there is one."""

    def __init__(self, task: Task) -> None:
        assert task.writer is not None
        self.inner: Any = task.writer
        self.go = threading.Event()
        self.entered = threading.Event()
        self.error: Exception | None = None
        task.open_writer(cast("LogWriter", self))

    def transact(self, batches: Batches, commit: GroupCommit | None = None, **others: Any) -> Any:
        self.entered.set()
        assert self.go.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        return self.inner.transact(batches, commit, **others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.fixture
def slow() -> Iterator[Callable[[Task], SlowWriter]]:
    """Makes slow writers, which go on when the test ends at the latest."""
    made: list[SlowWriter] = []

    def of(task: Task) -> SlowWriter:
        made.append(SlowWriter(task))
        return made[-1]

    yield of
    for one in made:
        one.go.set()


def counting(seen: Seen) -> Callable[[sf.App], None]:
    """Counts the records of each key in a store, in one sub-topology."""
    noting: Any = seen.processor()

    class Counting(noting):
        def process(self, record: sf.Record) -> None:
            store = self.context.store("count")
            store.put(record.key, (store.get(record.key) or 0) + 1)
            super().process(record)

    def make(app: sf.App) -> None:
        app.source("in", key=TEXT, value=JSON)(Counting)

    return make


def hopping(seen: Seen) -> Callable[[sf.App], None]:
    def make(app: sf.App) -> None:
        stream = app.stream("in", key=TEXT, value=JSON).select_key(lambda key, value: key).repartition("x")
        stream.process(seen.processor(), name="below", key=TEXT, value=JSON).to("out")

    return make


def running(bench: Bench, make: Callable[[sf.App], None], directory: str = "a", **given: Any) -> Running:
    stores = [COUNT] if make.__qualname__.startswith("counting") else []
    return Running(bench, make, directory, stores=stores, threads=THREADS, **given)


def task_of(one: Running, partition: int = 0, group: int = 0) -> Task:
    return one.session.all_tasks()[TaskId(group, partition)]


def rounds(one: Running, until: Callable[[], bool]) -> None:
    """Rounds of the loop until this holds; calls in other threads take a moment.

    A round that waited for records would move the clock of the test past due times.
    """
    for _ in range(10_000):
        if until():
            return
        one.loop.poll_once()
        one.loop._commits.wait(1)
    raise AssertionError("not within 10,000 rounds")


def begun(bench: Bench, one: Running, writer: SlowWriter) -> None:
    """Rounds until the slow task's commit waits in its thread."""
    one.run()
    bench.clock.advance(INTERVAL_MS)
    rounds(one, writer.entered.is_set)


def committing(bench: Bench, slow: Any, seen: Seen, *records: tuple[str, str, int]) -> tuple[Running, SlowWriter]:
    """An application with one task, whose commit of these records (by default two, of keys k0 and k1) is under way."""
    create(bench, 1, "in")
    one = running(bench, counting(seen))
    write(bench, "in", *(records or keys("k", 2)))
    writer = slow(task_of(one))
    begun(bench, one, writer)
    return one, writer


# --- a slow commit ---


@pytest.mark.usefixtures("remote")
def test_slow_commit_of_a_task_holds_neither_records_nor_commits_of_the_others(bench: Bench, slow: Any) -> None:
    create(bench, 2, "in")
    seen = Seen()
    one = running(bench, counting(seen))
    for partition in range(2):
        write(bench, "in", *keys(f"p{partition}-", 3), partition=partition)
    writer = slow(task_of(one))
    begun(bench, one, writer)
    rounds(one, lambda: task_of(one, 1).source_offsets() == {("in", 1): 3})
    write(bench, "in", *keys("later-", 2), partition=1)
    rounds(one, lambda: len(seen.of("0_1")) == 5)
    assert task_of(one).source_offsets() == {}
    writer.go.set()
    rounds(one, lambda: task_of(one).source_offsets() == {("in", 0): 3})


@pytest.mark.usefixtures("remote")
def test_task_takes_no_record_while_its_commit_is_under_way_and_all_of_them_after_it(bench: Bench, slow: Any) -> None:
    seen = Seen()
    one, writer = committing(bench, slow, seen, *keys("a", 3))
    write(bench, "in", *keys("b", 3))
    for _ in range(20):
        one.loop.poll_once()
    assert seen.keys == ["a0", "a1", "a2"]
    writer.go.set()
    rounds(one, lambda: seen.keys == ["a0", "a1", "a2", "b0", "b1", "b2"])
    one.loop.commit_all()
    assert one.rows("count") == dict.fromkeys(seen.keys, 1)


@pytest.mark.usefixtures("remote")
def test_task_whose_commit_ends_in_the_middle_of_a_round_takes_no_record_while_the_gate_is_shut(bench: Bench) -> None:
    create(bench, 3, "in")
    seen = Seen()
    given: Any = {"guarantee": "at_least_once", "commit_interval_ms": INTERVAL_MS, "stores": [COUNT]}
    one = Running(bench, counting(seen), **given)
    one.run()
    one.commit()
    for partition in range(2):
        write(bench, "in", *keys(f"p{partition}-", 2), partition=partition)
    one.run()
    bench.clock.advance(INTERVAL_MS)
    one.loop._commit_due()  # without threads each step of the loop makes one call of each commit
    assert len(one.loop._commits) == 2
    one.session.task(2).fail(ValueError("it fails"))
    one.session.reopen(2)
    assert not one.session.ready
    for partition in range(2):
        write(bench, "in", *keys("later-", 2), partition=partition)
    assert [one.loop.poll_once() for _ in range(5)] == [0] * 5
    bench.settle(one.session)
    one.run()
    assert [seen.of(f"0_{number}") for number in range(2)] == [
        [f"p{number}-0", f"p{number}-1", "later-0", "later-1"] for number in range(2)
    ]


@pytest.mark.usefixtures("remote")
def test_next_task_gets_nothing_before_the_transaction_that_wrote_it_has_committed(bench: Bench, slow: Any) -> None:
    create(bench, 1, "in", "out")
    seen = Seen()
    one = running(bench, hopping(seen))
    write(bench, "in", *keys("k", 3))
    writer = slow(task_of(one))
    begun(bench, one, writer)
    for _ in range(20):
        one.loop.poll_once()
    assert seen.keys == []
    writer.go.set()
    rounds(one, lambda: seen.keys == ["k0", "k1", "k2"])
    one.loop.commit_all()
    assert len(written(bench, "out")) == 3


@pytest.mark.usefixtures("remote")
def test_task_commits_after_the_due_commits_of_the_tasks_before_it(bench: Bench, slow: Any) -> None:
    create(bench, 1, "in", "out")
    seen = Seen()
    one = running(bench, hopping(seen), commit_interval_ms=INTERVAL_MS)
    write(bench, "in", *keys("a", 3))
    one.run()
    one.loop.commit_all()
    one.run()  # the second task has records that are not committed
    write(bench, "in", *keys("b", 3))
    writer = slow(task_of(one))
    begun(bench, one, writer)
    for _ in range(20):
        one.loop.poll_once()
    assert written(bench, "out") == []  # due, and not committed
    assert one.session.counters.commits["committed"] == 2
    writer.go.set()
    # A commit is counted by the loop, in this round or the next one after its thread has written.
    rounds(one, lambda: len(written(bench, "out")) == 6 and not len(one.loop._commits))
    assert one.session.counters.commits["committed"] == 4  # that of the first task, and the records of both in one


@pytest.mark.usefixtures("remote")
def test_task_waits_for_the_tasks_before_it_for_one_interval_at_most(bench: Bench, slow: Any) -> None:
    create(bench, 1, "in", "out")
    seen = Seen()
    one = running(bench, hopping(seen), commit_interval_ms=INTERVAL_MS)
    write(bench, "in", *keys("a", 3))
    one.run()
    one.loop.commit_all()
    one.run()
    write(bench, "in", *keys("b", 3))
    begun(bench, one, slow(task_of(one)))
    bench.clock.advance(INTERVAL_MS)
    rounds(one, lambda: len(written(bench, "out")) == 3)


def with_every_room_taken(bench: Bench, slow: Any, tasks: int, seen: Seen) -> tuple[Running, list[Any]]:
    """An application with a commit under way for each room, and the slow writers of all of its tasks."""
    create(bench, tasks, "in")
    one = running(bench, counting(seen))
    writers = [slow(task_of(one, partition)) for partition in range(tasks)]
    for partition in range(tasks):
        write(bench, "in", *keys("k", 1), partition=partition)
    one.run()
    bench.clock.advance(INTERVAL_MS)
    rounds(one, lambda: sum(writer.entered.is_set() for writer in writers) == LEAST_ROOM)
    return one, writers


@pytest.mark.usefixtures("remote")
def test_as_many_commits_are_under_way_as_there_is_room_for_and_the_other_tasks_go_on(bench: Bench, slow: Any) -> None:
    tasks, seen = LEAST_ROOM + 2, Seen()
    one, writers = with_every_room_taken(bench, slow, tasks, seen)
    going = [number for number, writer in enumerate(writers) if not writer.entered.is_set()]
    for partition in going:
        write(bench, "in", *keys("more", 2), partition=partition)
    rounds(one, lambda: all(len(seen.of(f"0_{number}")) == 3 for number in going))
    for writer in writers:
        writer.go.set()
    one.loop.commit_all()
    for partition in range(tasks):
        assert sum(one.rows("count", partition).values()) == len(seen.of(f"0_{partition}"))


@pytest.mark.usefixtures("remote")
def test_task_whose_commit_is_due_for_longest_gets_the_next_room(bench: Bench, slow: Any) -> None:
    tasks = LEAST_ROOM + 1
    one, writers = with_every_room_taken(bench, slow, tasks, Seen())
    waiting = next(writer for writer in writers if not writer.entered.is_set())
    first = next(writer for writer in writers if writer is not waiting)
    for partition in range(tasks):
        write(bench, "in", *keys("more", 1), partition=partition)
    bench.clock.advance(5 * INTERVAL_MS)  # every task is due again
    first.entered.clear()
    first.go.set()
    rounds(one, waiting.entered.is_set)
    assert not first.entered.is_set()


def test_commits_of_the_embedded_log_run_in_the_loop(bench: Bench) -> None:
    create(bench, 1, "in")
    one = running(bench, counting(Seen()))
    threads: list[str] = []
    task = task_of(one)
    assert task.writer is not None
    transact = task.writer.transact

    def noting(*given: Any, **others: Any) -> Any:
        threads.append(threading.current_thread().name)
        return transact(*given, **others)

    task.writer.transact = noting  # type: ignore[method-assign]
    write(bench, "in", *keys("k", 1))
    one.run()
    one.loop.commit_all()
    assert threads == [threading.current_thread().name]


# --- errors and ends ---


@pytest.mark.usefixtures("remote")
def test_error_of_a_commit_under_way_fails_its_task_alone(bench: Bench, slow: Any) -> None:
    create(bench, 2, "in")
    seen = Seen()
    one = running(bench, counting(seen), restart=sf.FixedDelay(3, 500))
    for partition in range(2):
        write(bench, "in", *keys("k", 2), partition=partition)
    writer = slow(task_of(one))
    writer.error = sf.Unavailable("the log does not answer")
    begun(bench, one, writer)
    writer.go.set()
    rounds(one, lambda: task_of(one).state is TaskState.FAILED)
    assert isinstance(task_of(one).error, sf.Unavailable)
    rounds(one, lambda: task_of(one, 1).source_offsets() == {("in", 1): 2})
    bench.clock.advance(RETRY_WAIT_MS)
    one.loop.poll_once()
    bench.settle(one.session)
    rounds(one, lambda: seen.of("0_0") == ["k0", "k1"] * 2)
    one.loop.commit_all()
    assert one.rows("count") == {"k0": 1, "k1": 1}


@pytest.mark.usefixtures("remote")
def test_processor_that_fails_while_another_task_commits_does_not_touch_that_commit(bench: Bench, slow: Any) -> None:
    create(bench, 2, "in")
    seen = Seen()
    seen.on["bad"] = fail
    one = running(bench, counting(seen), restart=sf.FixedDelay(3, 500))
    write(bench, "in", *keys("k", 2))
    writer = slow(task_of(one))
    begun(bench, one, writer)
    write(bench, "in", ("bad", "1", 1), partition=1)
    rounds(one, lambda: task_of(one, 1).state is TaskState.FAILED)
    writer.go.set()
    rounds(one, lambda: task_of(one).source_offsets() == {("in", 0): 2})
    assert one.rows("count") == {"k0": 1, "k1": 1}


@pytest.mark.usefixtures("remote")
def test_close_waits_for_a_commit_under_way_which_counts(
    bench: Bench, slow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, writer = committing(bench, slow, Seen())
    released_by_wait(writer, monkeypatch)
    one.close()
    seen = Seen()
    again = running(bench, counting(seen))
    again.run()
    assert seen.keys == []
    assert again.rows("count") == {"k0": 1, "k1": 1}


def released_by_wait(writer: SlowWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow call goes on once the loop waits for it."""
    wait = commits.wait

    def waiting(*given: Any, **named: Any) -> Any:
        writer.go.set()
        return wait(*given, **named)

    monkeypatch.setattr(commits, "wait", waiting)


@pytest.mark.usefixtures("remote")
def test_last_commit_of_all_waits_for_the_commits_under_way(
    bench: Bench, slow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(bench, 2, "in")
    one = running(bench, counting(Seen()))
    for partition in range(2):
        write(bench, "in", *keys("k", 2), partition=partition)
    writer = slow(task_of(one))
    begun(bench, one, writer)
    released_by_wait(writer, monkeypatch)
    one.loop.commit_all()
    assert [one.rows("count", partition) for partition in range(2)] == [{"k0": 1, "k1": 1}] * 2


@pytest.mark.usefixtures("remote")
def test_task_that_is_revoked_during_its_commit_ends_here_and_counts_each_record_once(bench: Bench, slow: Any) -> None:
    create(bench, 2, "in")
    seen = Seen()
    one = running(bench, counting(seen), alone=False, placement="static", settle=False)
    one.session.assign(active=[0, 1])
    bench.settle(one.session)
    write(bench, "in", *keys("k", 2))
    writer = slow(task_of(one))
    begun(bench, one, writer)
    one.session.assign(active=[1])
    writer.go.set()
    rounds(one, lambda: TaskId(0, 0) not in one.loop._running)
    write(bench, "in", *keys("x", 2), partition=1)
    rounds(one, lambda: seen.of("0_1") == ["x0", "x1"])
    one.session.assign(active=[0, 1])
    bench.settle(one.session)
    rounds(one, lambda: TaskId(0, 0) in one.loop._running)
    one.run()
    one.loop.commit_all()
    assert one.rows("count") == {"k0": 1, "k1": 1}


@pytest.mark.usefixtures("remote")
def test_task_that_another_instance_gets_leaves_after_the_commit_under_way(bench: Bench, slow: Any) -> None:
    seen = Seen()
    one, writer = committing(bench, slow, seen)
    task = task_of(one)
    task.leaving = True
    write(bench, "in", *keys("later", 2))
    for _ in range(20):
        one.loop.poll_once()
    assert task.id in one.loop._running
    writer.go.set()
    rounds(one, lambda: task.id not in one.loop._running)
    assert task.source_offsets()[TopicPartition("in", 0)] >= 2
    assert one.rows("count") == dict.fromkeys(seen.keys, 1)


@pytest.mark.usefixtures("remote")
def test_task_that_leaves_takes_no_record_after_its_last_commit_so_that_it_may_stay_after_all(bench: Bench) -> None:
    create(bench, 2, "in")
    seen = Seen()
    one = Running(bench, counting(seen), stores=[COUNT])
    write(bench, "in", *keys("a", 2))
    one.run()
    task = task_of(one)
    task.leaving = True
    write(bench, "in", *keys("b", 2))
    one.loop.poll_once()  # its last commit begins, and ends after the turn of the other task
    assert not len(one.loop._commits)
    assert task.id in one.loop._running
    one.loop.poll_once()
    assert task.id not in one.loop._running
    task.leaving = False  # as the next generation takes the move back
    one.run()
    one.loop.commit_all()
    assert seen.keys == ["a0", "a1", "b0", "b1"]
    assert one.rows("count") == dict.fromkeys(seen.keys, 1)


def test_writes_of_a_closing_processor_are_in_no_later_run_of_a_task_that_stays(bench: Bench) -> None:
    class Closing(sf.Processor):
        def init(self, context: Any) -> None:
            self.store = context.store("count")

        def process(self, record: sf.Record) -> None:
            self.store.put(record.key, 1)

        def close(self) -> None:
            self.store.put("closed", 1)

    create(bench, 1, "in")
    one = Running(bench, lambda app: app.source("in", key=TEXT, value=JSON)(Closing), stores=[COUNT])
    write(bench, "in", *keys("a", 1))
    one.run()
    task = task_of(one)
    task.leaving = True
    for _ in range(3):
        one.loop.poll_once()
    assert task.id not in one.loop._running
    task.leaving = False
    write(bench, "in", *keys("b", 1))
    one.run()
    one.loop.commit_all()
    assert one.rows("count") == {"a0": 1, "b0": 1}


@pytest.mark.usefixtures("remote")
def test_task_that_stays_after_all_goes_on_after_the_commit_that_was_to_be_its_last(bench: Bench, slow: Any) -> None:
    seen = Seen()
    one, writer = committing(bench, slow, seen)
    task = task_of(one)
    task.leaving = True
    write(bench, "in", *keys("later", 2))
    one.loop.poll_once()
    task.leaving = False
    writer.go.set()
    rounds(one, lambda: len(seen.keys) == 4)
    one.loop.commit_all()
    assert one.rows("count") == dict.fromkeys(seen.keys, 1)


@pytest.mark.usefixtures("remote")
def test_commit_that_takes_very_long_holds_the_loop_so_that_its_lease_shows_it(
    bench: Bench, slow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, writer = committing(bench, slow, Seen())
    bench.clock.advance(HOLD_MS)
    one.loop.poll_once()
    assert not writer.go.is_set()
    released_by_wait(writer, monkeypatch)
    bench.clock.advance(1)
    one.loop.poll_once()
    assert writer.go.is_set()
    assert task_of(one).source_offsets() == {("in", 0): 2}


@pytest.mark.usefixtures("remote")
def test_external_consumer_commits_in_its_own_thread(bench: Bench) -> None:
    session = bench.session(stores=[COUNT], partitions=1)
    session.assign(active=[0])
    bench.settle(session)
    before = threading.active_count()
    session.task(0).store("count").put("k", 1)
    session.commit({("in", 0): 1})
    assert session.task(0).source_offsets() == {("in", 0): 1}
    assert threading.active_count() == before


@pytest.mark.usefixtures("remote")
def test_records_of_several_hops_count_once_whatever_round_they_commit_in(bench: Bench) -> None:
    create(bench, 3, "in", "out")
    seen = Seen()
    one = running(bench, hopping(seen))
    for number in range(5):
        for partition in range(3):
            write(bench, "in", *keys(f"{number}-{partition}-", 20), partition=partition)
        bench.clock.advance(INTERVAL_MS)
        for _ in range(5):
            one.loop.poll_once(1)

    def processed() -> bool:
        bench.clock.advance(1)  # the rest of a task's commit is due once its interval is over
        return len(seen.keys) == 300

    rounds(one, processed)
    one.loop.commit_all()
    found = [key for partition in range(3) for key, _, _ in text_of(written(bench, "out", partition))]
    assert sorted(map(str, found)) == sorted(f"{n}-{p}-{k}" for n in range(5) for p in range(3) for k in range(20))


# --- the parts ---


def steps_of(*calls: Callable[[], object], result: bool = True) -> Steps[bool]:
    for call in calls:  # noqa: UP028 - a tuple would refuse the results that are sent
        yield call
    return result


def test_steps_run_every_call_in_order_and_return_their_result() -> None:
    made: list[int] = []
    assert run_steps(steps_of(lambda: made.append(1), lambda: made.append(2)))
    assert made == [1, 2]


def test_steps_get_the_error_of_a_call_and_may_go_on() -> None:
    def steps() -> Steps[str]:
        try:
            yield fail_now
        except ValueError as error:
            return f"got {error}"
        return "got none"

    assert run_steps(steps()) == "got it"


def fail_now() -> None:
    raise ValueError("it")


def test_steps_see_the_error_that_a_signal_handler_raises_between_two_of_them() -> None:
    seen: list[BaseException] = []

    class Interrupted(BaseException):
        """As a signal handler raises it."""

    def steps() -> Any:
        try:
            yield lambda: None
        except BaseException as error:
            seen.append(error)
            raise

    class Interrupting:
        """A generator that a signal interrupts before it gets the result of its call."""

        def __init__(self) -> None:
            self.inner = steps()

        def __next__(self) -> Any:
            return next(self.inner)

        def send(self, outcome: Any) -> Any:
            raise Interrupted

        def throw(self, error: BaseException) -> Any:
            return self.inner.throw(error)

        gi_running, gi_suspended = False, True

        @property
        def gi_frame(self) -> Any:
            return self.inner.gi_frame

    with pytest.raises(Interrupted):
        run_steps(Interrupting())  # type: ignore[arg-type]
    assert [type(error) for error in seen] == [Interrupted]


def test_commit_of_several_calls_ends_with_the_last_of_them() -> None:
    ended: list[bool] = []
    made = Commits(ManualClock(), CommitPace("exactly_once"), remote=True)
    made.begin(TaskId(0, 0), steps_of(lambda: 1, lambda: 2), ended.append)
    assert TaskId(0, 0) in made
    assert not made.go_on(TaskId(0, 0))
    assert made.go_on(TaskId(0, 0))
    assert (ended, len(made)) == ([True], 0)
    made.close()


def test_commit_with_nothing_to_commit_ends_without_a_thread() -> None:
    ended: list[bool] = []
    made = Commits(ManualClock(), CommitPace("exactly_once"), remote=True)
    made.begin(TaskId(0, 0), steps_of(result=False), ended.append)
    assert (ended, len(made), made.returned()) == ([False], 0, [])


def test_commit_whose_call_fails_is_not_under_way_any_more() -> None:
    made = Commits(ManualClock(), CommitPace("exactly_once"), remote=True)
    made.begin(TaskId(0, 0), steps_of(fail_now), lambda wrote: None)
    with pytest.raises(ValueError, match="it"):
        made.finish(TaskId(0, 0))
    assert TaskId(0, 0) not in made
    made.close()


def test_groups_before_are_those_that_write_to_a_topic_between_them(bench: Bench) -> None:
    create(bench, 1, "in", "out")
    app = sf.App("app")
    stream = app.stream("in", key=TEXT, value=JSON).select_key(lambda key, value: key).repartition("x")
    stream.select_key(lambda key, value: key).repartition("y").to("out")
    assert groups_before(app.topology().groups) == {0: frozenset(), 1: frozenset({0}), 2: frozenset({1})}
