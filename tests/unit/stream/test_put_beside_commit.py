"""Writes that come while a commit is under way, of the same thread between two steps of it or of others.

Rules of this file: a commit is held between its steps (`commit_steps`), or in its call to the log, and never by chance.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

import standfast as sf
from standfast.replication.log import Log, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.stream.runtime.guard import TaskGuard
from standfast.stream.steps import Steps
from standfast.stream.task.states import TaskState
from standfast.stream.task.task import Task
from standfast.stream.topology.drops import Drops
from support.serve import wait_for
from support.sessions import DAY_MS, HOUR_MS, START_MS, Bench

TEXT, INT = sf.serde.string, sf.serde.int64
SOURCE = ("input", 0)
OUT = TopicPartition("out", 0)
PATIENCE_S = 30.0
GUARANTEES = ("exactly_once", "at_least_once")
both_guarantees = pytest.mark.parametrize("guarantee", GUARANTEES)

Rows = dict[str, list[Any]]


def stores(**overrides: Any) -> list[Any]:
    """A store of each kind, with one that keeps duplicates and one without a changelog."""
    return [
        sf.KeyValueStore("kv", TEXT, TEXT, **overrides),
        sf.KeyValueStore("plain", TEXT, TEXT, timestamped=False, **overrides),
        sf.KeyValueStore("own", TEXT, TEXT, logging=False),
        sf.WindowStore("win", TEXT, TEXT, window_size_ms=HOUR_MS, retention_ms=DAY_MS, **overrides),
        sf.WindowStore(
            "dup", TEXT, TEXT, window_size_ms=HOUR_MS, retention_ms=DAY_MS, retain_duplicates=True, **overrides
        ),
        sf.SessionStore("ses", TEXT, TEXT, retention_ms=DAY_MS, **overrides),
        sf.VersionedStore("ver", TEXT, TEXT, history_retention_ms=DAY_MS, **overrides),
    ]


def opened(bench: Bench, guarantee: str = "exactly_once", directory: str = "a", **settings: Any) -> sf.Session:
    with closing(open_log(settings.get("log", bench.address), clock=bench.clock)) as log:
        if log.admin.describe_topic("out") is None:
            log.admin.create_topic("out", 1, TopicPolicy())
    given: dict[str, Any] = {"stores": stores(), "guarantee": guarantee, **settings}
    return bench.active(directory, **given)


def write(task: Task, number: int) -> None:
    """One record's writes into every store, an output and its time."""
    key, value, at_ms = f"k{number}", f"v{number}", START_MS + number * HOUR_MS
    for name in ("kv", "plain", "own"):
        task.store(name).put(key, value, at_ms)
        task.store(name).put("last", value, at_ms)
    for name in ("win", "dup"):
        task.store(name).put(key, value, at_ms, at_ms)
    task.store("ses").put(key, at_ms, at_ms + 1, value, at_ms)
    task.store("ver").put(key, value, at_ms)
    task.send("out", key.encode(), value.encode(), at_ms, partition=0)
    task.observe(*SOURCE, at_ms)
    task.progress["close:win"] = at_ms


def rows_of(task: Task) -> Rows:
    """All rows of all stores, as the task reads them."""
    found: Rows = {}
    for name in ("kv", "plain", "own", "win", "dup", "ses"):
        with task.store(name).all() as rows:
            found[name] = [tuple(row) for row in rows]
    found["ver"] = [task.store("ver").get(f"k{number}") for number in range(6)]
    return found


def rows_after(bench: Bench, *numbers: int) -> Rows:
    """The rows of a task that wrote these records alone."""
    session = opened(bench, directory="plain", log=f"sqlite:///{bench.root}/plain-log", guarantee="at_least_once")
    for number in numbers:
        write(session.task(0), number)
    rows = rows_of(session.task(0))
    session.close()
    return rows


def outputs_of(log: Log) -> list[bytes | None]:
    reader = log.reader()
    reader.assign({OUT: 0})
    found: list[bytes | None] = []
    while batches := reader.fetch(1_000, 0):
        found += [record.value for batch in batches for record in batch.records]
    return found


def clocks(session: sf.Session) -> dict[str, Any]:
    """The times of the cut on disk."""
    cut = session.tasks()[0].stores.cut
    return {
        "stream": dict(cut.stream_times),
        "progress": dict(cut.progress),
        "observed": {name: (times.observed_ms, times.sequence) for name, times in cut.stores.items()},
        "sources": dict(cut.sources),
    }


def go_on(steps: Steps[bool], answer: Any) -> None:
    """Bring a commit to its end from the answer of its last call on."""
    with pytest.raises(StopIteration):
        while True:
            answer = steps.send(answer)()


@both_guarantees
def test_writes_that_come_while_the_log_has_a_commit_belong_to_the_next_one(bench: Bench, guarantee: str) -> None:
    session = opened(bench, guarantee)
    task = session.task(0)
    write(task, 0)
    reference = opened(bench, guarantee, "reference", log=f"sqlite:///{bench.root}/reference-log")
    write(reference.task(0), 0)
    reference.task(0).commit({SOURCE: 1})

    steps = task.commit_steps({SOURCE: 1})
    call = next(steps)
    write(task, 1)
    task.store("kv").delete("k0")
    assert task.store("kv").get("last") == "v1"
    answer = call()
    write(task, 2)
    go_on(steps, answer)
    assert clocks(session) == clocks(reference), "the times of the cut are those of its rows"
    assert outputs_of(bench.log) == [b"v0"]
    expected = rows_after(bench, 0, 1, 2)
    expected["kv"] = [row for row in expected["kv"] if row[0] != "k0"]
    assert rows_of(task) == expected
    assert task.uncommitted

    task.commit({SOURCE: 3})
    assert not task.uncommitted
    assert outputs_of(bench.log) == [b"v0", b"v1", b"v2"]
    session.close()
    for directory in ("a", "restored from the changelogs"):
        again = opened(bench, guarantee, directory)
        rows = rows_of(again.task(0))
        if directory != "a":
            rows["own"] = expected["own"]  # it has no changelog
        assert rows == expected
        assert again.task(0).source_offsets() == {SOURCE: 3}
        again.close()


@both_guarantees
def test_what_is_not_taken_is_gone_with_a_crash_and_the_taken_part_is_whole(bench: Bench, guarantee: str) -> None:
    session = opened(bench, guarantee)
    task = session.task(0)
    write(task, 0)
    steps = task.commit_steps({SOURCE: 1})
    answer = next(steps)()
    write(task, 1)
    go_on(steps, answer)
    session.close()  # as a kill: nothing is committed on the way out
    again = opened(bench, guarantee)
    assert rows_of(again.task(0)) == rows_after(bench, 0)
    assert again.task(0).source_offsets() == {SOURCE: 1}


def test_refused_commit_leaves_its_part_under_the_writes_that_came_since(bench: Bench) -> None:
    session = opened(bench)
    task = session.task(0)
    task.keeps_refused = True
    write(task, 0)
    steps = task.commit_steps({SOURCE: 1})
    next(steps)
    write(task, 1)
    task.store("kv").put("k0", None, START_MS + 1)
    away = sf.Unavailable("the log is away")
    away.unwritten = True
    with pytest.raises(sf.Unavailable, match="away"):
        steps.throw(away)
    assert task.state is TaskState.RUNNING
    write(task, 2)
    expected = rows_after(bench, 0, 1, 2)
    expected["kv"] = [row for row in expected["kv"] if row[0] != "k0"]
    assert rows_of(task) == expected
    held_bytes = task.stores.buffer.held_bytes

    steps = task.commit_steps({SOURCE: 3})
    call = next(steps)
    assert task.stores.buffer.held_bytes <= held_bytes, "no row counts twice"
    logged = [change[0] for change in task.stores.buffer.taken.logged()["kv"]]  # type: ignore[union-attr]
    assert logged == [b"k0", b"last", b"k1", b"k2"], "in the order of first writes"
    answer = call()
    go_on(steps, answer)
    assert outputs_of(bench.log) == [b"v0", b"v1", b"v2"]
    assert rows_of(task) == expected
    session.close()
    assert rows_of(opened(bench).task(0)) == expected


def test_discard_after_a_refused_commit_forgets_its_part_too(bench: Bench) -> None:
    task = opened(bench).task(0)
    task.keeps_refused = True
    write(task, 0)
    steps = task.commit_steps({SOURCE: 1})
    next(steps)
    away = sf.Unavailable("the log is away")
    away.unwritten = True
    with pytest.raises(sf.Unavailable):
        steps.throw(away)
    task.discard()
    assert rows_of(task) == rows_after(bench)
    assert (task.uncommitted, task.stores.buffer.held_bytes) == (False, 0)
    task.commit()
    assert outputs_of(bench.log) == []


@both_guarantees
@pytest.mark.parametrize("answers", [0, 1])
def test_discard_beside_a_commit_returns_to_the_times_of_its_rows(bench: Bench, guarantee: str, answers: int) -> None:
    session = opened(bench, guarantee)
    task = session.task(0)
    write(task, 0)
    steps = task.commit_steps({SOURCE: 1})
    call = next(steps)
    ended = False
    for _ in range(answers):  # at least once, the first step has written the rows, and the second commits the offsets
        try:
            call = steps.send(call())
        except StopIteration:
            ended = True
    write(task, 1)
    task.discard()
    while not ended:
        try:
            call = steps.send(call())
        except StopIteration:
            ended = True
    assert not task.uncommitted
    assert rows_of(task) == rows_after(bench, 0)
    taken = clocks(session)
    task.commit({SOURCE: 2})
    assert clocks(session) == {**taken, "sources": {"input/0": 2}}, "no time goes back"


def test_discard_after_a_refused_commit_returns_to_the_times_of_the_last_one(bench: Bench) -> None:
    session = opened(bench)
    task = session.task(0)
    task.keeps_refused = True
    write(task, 0)
    task.commit({SOURCE: 1})
    before = clocks(session)
    write(task, 1)
    steps = task.commit_steps({SOURCE: 2})
    next(steps)
    away = sf.Unavailable("the log is away")
    away.unwritten = True
    with pytest.raises(sf.Unavailable):
        steps.throw(away)
    task.discard()
    assert not task.uncommitted
    task.commit({SOURCE: 2})
    assert clocks(session) == {**before, "sources": {"input/0": 2}}


def test_failed_commit_discards_its_part_and_what_came_since(bench: Bench) -> None:
    session = opened(bench)
    task = session.task(0)
    write(task, 0)
    steps = task.commit_steps({SOURCE: 1})
    next(steps)
    write(task, 1)
    with pytest.raises(ZeroDivisionError):
        steps.throw(ZeroDivisionError())
    with pytest.raises(sf.Closed, match="opened again"):
        task.store("kv")
    session.reopen(0)
    session.wait_ready(30)
    assert rows_of(session.task(0)) == rows_after(bench)
    assert session.task(0).source_offsets() == {}


def test_both_parts_count_against_the_bound_of_the_buffer(bench: Bench) -> None:
    task = opened(bench).task(0)
    buffer = task.stores.buffer
    buffer.bound_bytes, buffer.refuse_bytes = 20_000, 40_000
    task.store("kv").put("taken", "x" * 8_000, 1)
    taken_bytes = buffer.size_bytes
    steps = task.commit_steps()
    next(steps)
    assert (buffer.size_bytes, buffer.held_bytes) == (0, taken_bytes)
    task.store("kv").put("since", "x" * 8_000, 1)
    assert buffer.full
    with pytest.raises(sf.Backpressure, match=f"holds {buffer.held_bytes} bytes"):
        task.store("kv").put("third", "x" * 8_000, 1)
    steps.close()


def test_commit_within_a_commit_of_the_same_thread_is_refused_and_harms_neither(bench: Bench) -> None:
    task = opened(bench).task(0)
    write(task, 0)
    steps = task.commit_steps({SOURCE: 1})
    answer = next(steps)()
    with pytest.raises(sf.InvalidRequest, match="in the middle of a commit"):
        task.commit()
    assert task.committing
    go_on(steps, answer)
    assert (task.committing, task.source_offsets()) == (False, {SOURCE: 1})


@contextmanager
def other_thread(work: Callable[[], Any]) -> Iterator[threading.Thread]:
    """Runs `work`, and raises its error at the end of the block."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(PATIENCE_S)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


def waits_in(thread: threading.Thread, function: str) -> bool:
    """Whether a thread is in this function."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


def test_commit_of_a_second_thread_waits_for_the_first_and_has_its_own_rows(bench: Bench) -> None:
    session = opened(bench)
    task = session.task(0)
    write(task, 0)
    steps = task.commit_steps({SOURCE: 1})
    answer = next(steps)()
    with other_thread(lambda: (write(task, 1), task.commit({SOURCE: 2}))) as second:
        wait_for(lambda: waits_in(second, "_take"), PATIENCE_S)
        assert task.source_offsets() == {}
        go_on(steps, answer)
    assert task.source_offsets() == {SOURCE: 2}
    assert rows_of(task) == rows_after(bench, 0, 1)
    assert outputs_of(bench.log) == [b"v0", b"v1"]


@pytest.mark.parametrize("within", ["exclusive", "savepoint"])
def test_commit_of_another_thread_waits_for_the_end_of_a_record(bench: Bench, within: str) -> None:
    task = opened(bench).task(0)
    begun = threading.Event()
    with other_thread(lambda: begun.wait(PATIENCE_S) and task.commit()) as committer:
        with task.exclusive() if within == "exclusive" else savepoint(task):
            task.store("kv").put("first", "1", 1)
            begun.set()
            wait_for(lambda: waits_in(committer, "_take"), PATIENCE_S)
            task.store("kv").put("second", "2", 1)
            assert task.stores.committed_view("kv").get("first") is None
    view = task.stores.committed_view("kv")
    assert (view.get("first"), view.get("second")) == ("1", "2")


@contextmanager
def savepoint(task: Task) -> Iterator[None]:
    task.savepoint()
    yield
    task.release()


def test_commit_within_a_savepoint_of_its_own_thread_is_refused_and_a_discard_ends_it(bench: Bench) -> None:
    session = opened(bench)
    task = session.task(0)
    write(task, 0)
    task.savepoint()
    write(task, 1)
    with pytest.raises(sf.InvalidRequest, match="savepoint"):
        task.commit({SOURCE: 2})
    task.rollback()
    task.commit({SOURCE: 1})
    assert rows_of(task) == rows_after(bench, 0)
    assert clocks(session)["stream"] == {"input/0": START_MS}

    task.savepoint()
    task.savepoint()
    task.discard()
    with other_thread(lambda: write(task, 1)) as thread:
        thread.join(PATIENCE_S)
    assert rows_of(task) == rows_after(bench, 0, 1)


@pytest.mark.parametrize("fails", [False, True])
def test_attempt_whose_task_another_thread_closes_ends_with_its_own_error(bench: Bench, fails: bool) -> None:
    task = opened(bench).task(0)
    store = task.store("kv")

    def work(_: object) -> None:
        store.put("k", "v", 1)
        with other_thread(task.close):
            pass
        if fails:
            store.put("k", "v", 2)

    guard = TaskGuard(task, Drops(bench.clock))
    if fails:
        with pytest.raises(sf.Closed):
            guard.attempt(work, None)
    else:
        assert guard.attempt(work, None) is None
    with pytest.raises(sf.Closed):
        task.commit()
    with other_thread(lambda: task.exclusive().__enter__()):
        pass


def test_write_of_another_thread_waits_for_a_savepoint_and_is_not_rolled_back(bench: Bench) -> None:
    task = opened(bench).task(0)
    task.store("kv").put("before", "0", 1)
    task.savepoint()
    task.store("kv").put("undone", "1", 1)
    with other_thread(lambda: task.store("kv").put("other", "2", 1)) as writer:
        wait_for(lambda: waits_in(writer, "put"), PATIENCE_S)
        task.rollback()
    with task.store("kv").all() as rows:
        assert [tuple(row) for row in rows] == [("before", "0"), ("other", "2")]


def test_commit_within_an_exclusive_block_commits_the_writes_so_far(bench: Bench) -> None:
    task = opened(bench).task(0)
    with task.exclusive():
        task.store("kv").put("a", "1", 1)
        task.commit({SOURCE: 1})
        task.store("kv").put("b", "2", 1)
    assert task.stores.committed_view("kv").get("b") is None
    task.commit({SOURCE: 2})
    assert task.stores.committed_view("kv").get("b") == "2"


def test_session_commits_within_blocks_of_two_tasks_do_not_wait_for_each_other(bench: Bench) -> None:
    session = bench.active("a", (0, 1), stores=stores())
    both = threading.Barrier(2)

    def work(partition: int) -> None:
        task = session.task(partition)
        with task.exclusive():
            task.store("kv").put("k", "v", 1)
            both.wait(PATIENCE_S)
            session.commit({("input", partition): 1})

    threads = [threading.Thread(target=work, args=(partition,), daemon=True) for partition in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S / 3)
    assert not any(thread.is_alive() for thread in threads)
    for partition in (0, 1):
        assert session.task(partition).stores.committed_view("kv").get("k") == "v"
        assert session.task(partition).source_offsets() == {("input", partition): 1}


def test_session_commit_within_a_block_leaves_the_other_tasks_to_a_later_commit(bench: Bench) -> None:
    session = bench.active("a", (0, 1), stores=stores())
    for partition in (0, 1):
        session.task(partition).store("kv").put("k", "v", 1)
    with session.task(0).exclusive():
        with pytest.raises(sf.InvalidRequest, match=r"task\.exclusive\(\).*offsets of task 0_1"):
            session.commit({SOURCE: 1, ("input", 1): 1})
        assert session.task(0).uncommitted  # nothing was committed
        session.commit({SOURCE: 1})
    assert not session.task(0).uncommitted and session.task(1).uncommitted
    session.commit({("input", 1): 1})
    assert session.task(1).source_offsets() == {("input", 1): 1}


@both_guarantees
def test_sums_of_four_threads_are_exact_with_exclusive_blocks(bench: Bench, guarantee: str) -> None:
    sums = [sf.KeyValueStore("sums", TEXT, INT)]
    session = opened(bench, guarantee, stores=sums)
    task, sources = session.task(0), [(f"input{number}", 0) for number in range(4)]
    records = 200
    read = dict.fromkeys(sources, 0)

    def work(source: tuple[str, int]) -> None:
        for number in range(records):
            with task.exclusive():  # the sum and the offset of its record go with one commit
                store = task.store("sums")
                store.put("all", (store.get("all") or 0) + number, 1)
                store.put(source[0], number, 1)
                task.send("out", b"k", str(number).encode(), 1, partition=0)
                read[source] = number + 1
                if number % 7 == 0:
                    session.commit(dict(read))

    threads = [threading.Thread(target=work, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    session.commit(dict(read))
    total = 4 * sum(range(records))
    assert task.store("sums").get("all") == total
    session.close()
    for directory in ("a", "b"):
        again = opened(bench, guarantee, directory, stores=sums)
        assert again.task(0).store("sums").get("all") == total
        assert again.task(0).source_offsets() == dict.fromkeys(sources, records)
        again.close()
    assert sum(int(value or b"0") for value in outputs_of(bench.log)) == total


def test_rows_that_threads_put_beside_commits_are_all_there(bench: Bench) -> None:
    session = opened(bench)
    task = session.task(0)
    rounds = {"large": (20, 300), "small": (200, 1), "mixed": (60, 20)}
    barrier = threading.Barrier(len(rounds))

    def work(name: str) -> None:
        barrier.wait(PATIENCE_S)
        for number in range(rounds[name][0]):
            for row in range(rounds[name][1]):
                key = f"{name}-{number}-{row}"
                task.store("kv").put(key, "v", 1)
                task.store("win").put(key, "v", START_MS, 1)
                task.store("dup").put(name, key, START_MS, 1)
                task.store("own").put(key, "v", 1)
            task.send("out", name.encode(), f"{name}-{number}".encode(), 1, partition=0)
            session.commit({})

    threads = [threading.Thread(target=work, args=(name,)) for name in rounds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    wanted = {
        f"{name}-{n}-{row}" for name, (count, rows) in rounds.items() for n in range(count) for row in range(rows)
    }
    session.close()
    again = opened(bench).task(0)
    for name in ("kv", "own"):
        assert {key for key, _ in again.store(name).all()} == wanted
    assert {window.key for window, _ in again.store("win").all()} == wanted
    assert {value for _, value in again.store("dup").all()} == wanted
    sent = [f"{name}-{number}".encode() for name, (count, _) in rounds.items() for number in range(count)]
    assert sorted(value or b"" for value in outputs_of(bench.log)) == sorted(sent)
