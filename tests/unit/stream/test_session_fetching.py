"""Sessions with their threads: one fetch thread for all, errors that hit one task, and an end without leftovers.

Rules of this file: real sessions on the embedded log under the machine's clock. A test waits for a condition, with a
limit that only a failure reaches. Fetches are small, so that a restore takes many of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest

import standfast as sf
from standfast.replication.credits import CreditLimits
from standfast.replication.log import Committed, Fetched, Log, LogReader, Outgoing, TopicPolicy
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.tail.fetch_pipeline import FetchPipeline
from standfast.store.clock import SystemClock
from standfast.store.errors import Unavailable
from standfast.stream.task.statistics import StoreStatistics
from support.fetch import Wrapped, failing
from support.sessions import Bench
from support.tables import COMPACT, TABLE

pytestmark = pytest.mark.slow

WAIT_S = 60.0
RECORDS = 6_000
KV = sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)
CHANGELOG = TopicPartition("app-kv-changelog", 0)
LIMITS = CreditLimits(floating_batches=2, queue_batches_high=3, queue_batches_low=1)


@pytest.fixture(autouse=True)
def small_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    small = partial(FetchPipeline, fetch_records_max=100, limits=LIMITS)
    monkeypatch.setattr("standfast.stream.session.host.FetchPipeline", small)
    monkeypatch.setattr("standfast.restore.replay.restorer.BATCH_RECORDS_MAX", 100)


def filled(bench: Bench, records: int = RECORDS) -> None:
    """Partitions 0 and 1 of the store hold so many records each."""
    first = bench.active("first", (0, 1), stores=[KV])
    for partition in (0, 1):
        store = first.task(partition).store("kv")
        for number in range(records):
            store.put(f"k{number}", "v")
            if number % 1_000 == 999:
                first.task(partition).commit()
    first.close()


def threaded(bench: Bench, directory: str = "b", **settings: Any) -> sf.Session:
    return bench.session(directory, **{"stores": [KV], "background": True, "clock": SystemClock(), **settings})


def until(reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        time.sleep(0.005)


def fetch_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("standfast-fetch")]


def rows(session: sf.Session, partition: int, store: str = "kv") -> int:
    return len(list(session.read(store, partition, allow_stale=True).store.all()))


def test_restore_and_standby_of_a_session_share_one_fetch_thread(bench: Bench) -> None:
    filled(bench)
    session = threaded(bench)
    session.assign(active=[0], standby=[1])
    session.wait_ready(WAIT_S)
    until(lambda: rows(session, 1) == RECORDS, "the standby is at its end")
    assert rows(session, 0) == RECORDS
    assert fetch_threads() == ["standfast-fetch"]
    session.assign(active=[0, 1])
    session.wait_ready(WAIT_S)
    assert rows(session, 1) == RECORDS
    session.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("standfast-")]


def test_standby_that_may_not_go_on_does_not_hold_a_restore_back(bench: Bench) -> None:
    stores = [KV, TABLE]
    filled(bench)
    bench.log.admin.create_topic("prices", 2, COMPACT)
    prices = TopicPartition("prices", 1)
    values = [Outgoing(b"k%d" % number, b"1", number) for number in range(RECORDS)]
    producer = bench.log.producer()
    producer.append({prices: values})
    session = threaded(bench, stores=stores, take_over=False)
    session.assign(standby=[1])
    # The group has committed nothing: all of it lies beyond the standby's limit.
    until(lambda: table_of(session).paused, "the standby is paused")
    session.assign(active=[0], standby=[1])
    session.wait_ready(WAIT_S)
    assert rows(session, 0) == RECORDS
    assert rows(session, 1, "table") == 0
    group = bench.log.group("app")
    group.commit({prices: Committed(RECORDS - 1)})
    until(lambda: rows(session, 1, "table") == RECORDS - 1, "the standby goes on to the new limit, and no further")


def table_of(session: sf.Session) -> StoreStatistics:
    (found,) = [one for task in session.statistics().tasks for one in task.stores if one.limit is not None]
    return found


class TruncatesOnce(sf.Listener):
    """Removes the head of a changelog while it is restored."""

    def __init__(self, bench: Bench, before: int) -> None:
        self.bench = bench
        self.before = before
        self.lost: list[tuple[TaskId, str]] = []
        self.ended: list[tuple[TaskId, int]] = []

    def on_batch_restored(self, task: TaskId, store: str, changelog: object, position: int, records: int) -> None:
        if changelog == CHANGELOG and self.before:
            before, self.before = self.before, 0
            self.bench.embedded.truncate(CHANGELOG, before)

    def on_state_lost(self, task: TaskId, reason: str) -> None:
        self.lost.append((task, reason))

    def on_restore_end(self, task: TaskId, store: str, changelog: object, records: int) -> None:
        self.ended.append((task, records))


def test_error_of_a_fetch_hits_the_task_that_it_is_about_and_no_other(bench: Bench) -> None:
    filled(bench)
    seen = TruncatesOnce(bench, RECORDS - 500)
    session = threaded(bench, listeners=[seen], accept_missing_history=True)
    session.assign(active=[0, 1])
    session.wait_ready(WAIT_S)
    assert [(str(task), reason) for task, reason in seen.lost] == [("0_0", "truncated")]
    assert session.counters.wipes == {"truncated": 1}
    assert sorted((str(task), records) for task, records in seen.ended) == [("0_0", 500), ("0_1", RECORDS)]
    assert (rows(session, 0), rows(session, 1)) == (500, RECORDS)


def test_close_in_the_middle_of_a_restore_is_quick_and_the_next_session_goes_on(bench: Bench) -> None:
    filled(bench)
    session = threaded(bench)
    session.assign(active=[0, 1])
    until(lambda: rows(session, 0) > 0, "the restore has begun")
    began = time.monotonic()
    session.close()
    assert time.monotonic() - began < 10
    assert fetch_threads() == []
    again = threaded(bench)
    again.assign(active=[0, 1])
    again.wait_ready(WAIT_S)
    assert (rows(again, 0), rows(again, 1)) == (RECORDS, RECORDS)


class Holding:
    """A log whose first reader, the fetch thread's, does not return from a fetch until it may."""

    def __init__(self, log: Log) -> None:
        self.fetching, self.released = threading.Event(), threading.Event()
        self._log = log
        self._given = False

    def reader(self) -> Any:
        if self._given:
            return self._log.reader()
        self._given = True
        return Wrapped(self._log.reader(), self._hold)

    def _hold(self) -> list[Fetched]:
        self.fetching.set()
        self.released.wait(WAIT_S)
        return []


def test_session_closes_while_the_log_holds_the_fetch_thread(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    holding: list[Holding] = []

    def pipeline(log: Log, **settings: Any) -> FetchPipeline:
        holding.append(Holding(log))
        held: Any = holding[-1]
        return FetchPipeline(held, close_timeout_s=0.3, **settings)

    filled(bench, 1_000)
    with monkeypatch.context() as patch:
        patch.setattr("standfast.stream.session.host.FetchPipeline", pipeline)
        session = threaded(bench)
    session.assign(active=[0])
    assert holding[0].fetching.wait(WAIT_S)
    began = time.monotonic()
    with pytest.raises(sf.Unavailable, match="did not end within"):
        session.close()
    assert time.monotonic() - began < 10
    holding[0].released.set()
    until(lambda: not fetch_threads(), "the thread ends once the log lets go")
    again = threaded(bench)  # the directory is free, and no row of it was lost
    again.assign(active=[0])
    again.wait_ready(WAIT_S)
    assert rows(again, 0) == 1_000


def test_application_processes_through_the_shared_fetch_thread_and_leaves_none(bench: Bench) -> None:
    bench.log.admin.create_topic("clicks", 2, TopicPolicy())
    counts = sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)
    app = sf.App("counter", log=bench.address, state_dir=bench.root / "app", stores=[counts], commit_interval_ms=20)
    app.stream("clicks").group_by_key().count("counts").to("out")
    bench.log.admin.create_topic("out", 2, TopicPolicy())
    bench.log.producer().append(
        {TopicPartition("clicks", n): [Outgoing(b"k%d" % (i % 9), b"1", i) for i in range(5_000)] for n in (0, 1)}
    )
    runs = threading.Thread(target=app.run)
    runs.start()
    group = bench.log.group("counter")
    until(lambda: sum(at.offset for at in group.committed().values()) == 10_000, "everything is committed")
    assert fetch_threads() == ["standfast-fetch"]
    app.stop()
    runs.join(WAIT_S)
    assert not runs.is_alive()
    assert fetch_threads() == []


def test_what_was_read_before_the_log_went_away_is_written_with_its_position(bench: Bench) -> None:
    filled(bench, 2_000)
    second = bench.session("b", stores=[KV])
    second.assign(active=[0])
    restorer = second._instance.readiness.restorer
    reader: Any = restorer._reader
    wrapped = Wrapped(reader, lambda: reader.fetch(50), failing(Unavailable("the log is away")))
    restorer._reader = cast(LogReader, wrapped)
    with pytest.raises(Unavailable, match="away"):
        restorer.poll_once(0)
    assert rows(second, 0) == 50
    position = second._instance.tasks[TaskId(0, 0)].applier.position(CHANGELOG)
    assert position is not None
    assert position.offset == 50
    second.wait_ready(WAIT_S)
    assert rows(second, 0) == 2_000
