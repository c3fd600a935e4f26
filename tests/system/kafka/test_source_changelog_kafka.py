"""A source topic as changelog on a real broker: transactional and compacted topics, limits, standbys, take-over.

Rules of this file: as in test_source_changelog.py; the application's name and its topic are the test's own.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

import standfast as sf
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import Committed, Outgoing, TopicPolicy
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.restore.verify.verify import committed_views, verify_task
from standfast.stream.task.statistics import StoreStatistics

pytestmark = [pytest.mark.kafka(2), pytest.mark.slow]

WAIT_S = 40.0
COMPACT = TopicPolicy(
    frozenset({"compact"}),
    extra={"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "100"},
)
GUARANTEES = pytest.mark.parametrize(
    "guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)]
)


class Prices:
    """An application with one table, read from a topic of two partitions; partition 0 is used."""

    def __init__(self, root: Path, address: str) -> None:
        self.root = root
        self.servers = address
        self.address = f"kafka://{address}"
        self.app = f"tab-{uuid.uuid4().hex[:8]}"
        self.source = TopicPartition(f"{self.app}-prices", 0)
        self.spec = sf.KeyValueStore("table", sf.serde.string, sf.serde.json, source_topic=self.source.topic)
        self.counts = sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)
        self.log = KafkaLog(self.address)
        self.group = self.log.group(self.app)
        self.opened: list[sf.Session] = []
        self.number = 0
        self.written: list[tuple[int, str, Any, int]] = []  # offset, key, value, timestamp; of committed records

    def topic(self, policy: TopicPolicy) -> None:
        self.log.admin.create_topic(self.source.topic, 2, policy)

    def session(self, directory: str = "a", **settings: Any) -> sf.Session:
        arguments: dict[str, Any] = {"stores": [self.spec, self.counts], "partitions": 2, "background": False}
        arguments |= {"log": self.address, "state_dir": self.root / directory, "take_over": False}
        session = sf.Session(self.app, **{**arguments, **settings})
        self.opened.append(session)
        return session

    def active(self, directory: str = "a", **settings: Any) -> sf.Session:
        session = self.session(directory, **settings)
        session.assign(active=[0])
        session.wait_ready(WAIT_S)
        return session

    def records(self, count: int) -> list[Outgoing]:
        """Records of seven keys; every fifth is a delete; values have a space that our serde would not write."""
        numbers = range(self.number, self.number + count)
        self.number += count
        stamp = time.time_ns() // 1_000_000
        return [
            Outgoing(b"k%d" % (number % 7), None if number % 5 == 4 else b'{"n": %d}' % number, stamp + number)
            for number in numbers
        ]

    def produce(self, count: int) -> int:
        """Produce plain records; returns the next offset."""
        return self.log.producer().append({self.source: self.records(count)})[self.source]

    def transaction(self, count: int, *, commit: bool = True) -> None:
        """A transaction of another application, which leaves a marker; on return it is in the log."""
        producer = self.feed()
        producer.begin_transaction()
        for key, value, stamp, _ in self.records(count):
            producer.produce(self.source.topic, value, key, 0, timestamp=stamp)
        producer.flush(20)
        if commit:
            producer.commit_transaction(20)
        else:
            producer.abort_transaction(20)
        # The reply to a commit comes before the markers are in the partitions, and the last stable offset before them.
        # The next producer of the id waits for them, as a take-over does.
        self.feed()

    def feed(self) -> Producer:
        """A producer of the other application, whose last transaction has ended everywhere."""
        producer = Producer({"bootstrap.servers": self.servers, "transactional.id": f"{self.app}-feed"})
        producer.init_transactions(20)
        return producer

    def fetched(self, start: int, stop: int) -> Iterator[Any]:
        reader = self.log.reader()
        reader.assign({self.source: start})
        while reader.assignment()[self.source] < stop:
            for batch in reader.fetch(10_000, 200):
                yield from (record for record in batch.records if record.offset < stop)
        reader.close()

    def pump(self, session: sf.Session, stop: int) -> None:
        """Process the topic up to `stop`, as the application does."""
        task = session.task(0)
        for record in self.fetched(task.source_offsets().get(self.source, self.begin()), stop):
            key = record.key.decode()
            task.store("table").put(
                key, None if record.value is None else sf.serde.json.deserialize(record.value), record.timestamp
            )
            task.store("counts").put(key, (task.store("counts").get(key) or 0) + 1, record.timestamp)
        task.commit({self.source: stop})

    def begin(self) -> int:
        return self.log.reader().bounds([self.source])[self.source].begin

    def end(self) -> int:
        return self.log.reader().bounds([self.source])[self.source].end

    def expected(self, stop: int) -> list[Any]:
        """The topic's committed records below `stop`, folded."""
        latest: dict[bytes, Any] = {}
        for record in self.fetched(self.begin(), stop):
            latest[record.key] = record
        return [
            (key, one.timestamp, one.value.replace(b" ", b""))
            for key, one in sorted(latest.items())
            if one.value is not None
        ]

    def settle(self, session: sf.Session, reached: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not reached():
            session.poll_once()
            time.sleep(0.005)
            assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}: {statistics(session)}"

    def close(self) -> None:
        for session in self.opened:
            session.close()
        self.log.close()


@pytest.fixture
def prices(tmp_path: Path, kafka_address: str) -> Iterator[Prices]:
    made = Prices(tmp_path, kafka_address)
    yield made
    made.close()


def rows(session: sf.Session) -> list[Any]:
    return list(session.read("table", 0, allow_stale=True).store.logical_rows())


def position(session: sf.Session) -> int:
    stored = session.all_tasks()[TaskId(0, 0)].stores.cut.positions.get("table")
    return -1 if stored is None else stored.offset


def statistics(session: sf.Session) -> StoreStatistics:
    (found,) = [one for one in session.statistics().tasks[0].stores if one.store == "table"]
    return found


def verified(prices: Prices, session: sf.Session) -> str:
    task = session.task(0)
    found = verify_task(
        task.id,
        committed_views(task.stores),
        task.stores.cut.positions,
        prices.log,
        prices.app,
        now_ms=time.time_ns() // 1_000_000,
    )
    return next(one.verdict for one in found if one.store == "table")


@GUARANTEES
def test_cold_restore_of_a_transactional_topic_stops_at_the_committed_offset(prices: Prices, guarantee: str) -> None:
    prices.topic(TopicPolicy(frozenset({"compact"})))
    first = prices.active(guarantee=guarantee)
    assert (rows(first), position(first)) == ([], 0)  # nothing is committed: the limit is 0
    prices.transaction(20)
    prices.transaction(5, commit=False)
    prices.transaction(15)
    stop = prices.end()
    assert stop == 20 + 1 + 5 + 1 + 15 + 1  # each transaction has left a marker
    prices.pump(first, stop)
    prices.transaction(10)
    before = rows(first)
    assert before == prices.expected(stop)
    assert verified(prices, first) == "equal"
    first.close()
    cold = prices.active("cold", guarantee=guarantee)
    assert rows(cold) == before
    assert position(cold) == stop
    assert cold.task(0).source_offsets() == {prices.source: stop}
    assert verified(prices, cold) == "equal"
    prices.pump(cold, prices.end())
    assert rows(cold) == prices.expected(prices.end())


@pytest.mark.parametrize("stop", [21, 27, *(pytest.param(one, marks=pytest.mark.long) for one in (20, 22, 26, 28))])
def test_restore_ends_at_a_limit_on_or_beside_a_marker_or_an_aborted_record(prices: Prices, stop: int) -> None:
    prices.topic(TopicPolicy(frozenset({"compact"})))
    prices.transaction(20)  # marker at 20
    prices.transaction(5, commit=False)  # 21 to 25, marker at 26
    prices.transaction(3)  # 27 to 29, marker at 30
    prices.group.commit({prices.source: Committed(stop)})
    cold = prices.active()
    assert rows(cold) == prices.expected(stop)
    assert position(cold) == stop


def test_compacted_topic_with_gaps_restores_what_it_still_has(prices: Prices) -> None:
    prices.topic(COMPACT)
    first = prices.active()
    for _ in range(4):
        prices.produce(30)
        time.sleep(0.15)  # into another segment
    prices.pump(first, 120)
    before = rows(first)
    prices.produce(1)  # the segment before it is closed now
    deadline = time.monotonic() + WAIT_S
    while len(list(prices.fetched(prices.begin(), 120))) > 60:
        assert time.monotonic() < deadline, "the broker does not compact"
        time.sleep(0.1)
    first.close()
    cold = prices.active("cold")
    assert rows(cold) == before
    assert position(cold) == 120
    assert verified(prices, cold) in ("equal", "inconclusive")
    prices.pump(cold, prices.end())
    assert rows(cold) == prices.expected(prices.end())


@GUARANTEES
def test_standby_keeps_to_the_limit_which_follows_the_commits_and_takes_over(prices: Prices, guarantee: str) -> None:
    prices.topic(TopicPolicy(frozenset({"compact"})))
    first = prices.active(guarantee=guarantee)
    standby = prices.session("b", guarantee=guarantee)
    standby.assign(standby=[0])
    prices.transaction(40)
    prices.settle(standby, lambda: statistics(standby).paused, "the standby waits at its limit")
    assert (rows(standby), statistics(standby).limit, position(standby)) == ([], 0, 0)
    for stop in (10, 25):
        prices.pump(first, stop)
        prices.settle(standby, lambda stop=stop: statistics(standby).limit == stop, "limit")  # type: ignore[misc]
        prices.settle(standby, lambda stop=stop: position(standby) == stop, "position")  # type: ignore[misc]
        assert rows(standby) == rows(first) == prices.expected(stop)
        assert statistics(standby).lag == 0
    first.close()
    standby.assign(active=[0])
    standby.wait_ready(WAIT_S)
    assert rows(standby) == prices.expected(25)
    assert standby.task(0).source_offsets() == {prices.source: 25}
    prices.pump(standby, prices.end())
    assert rows(standby) == prices.expected(prices.end())
    assert verified(prices, standby) == "equal"


def test_limit_never_moves_back_and_a_batch_beyond_it_moves_no_position(prices: Prices) -> None:
    prices.topic(TopicPolicy(frozenset({"compact"})))
    prices.produce(20)
    prices.group.commit({prices.source: Committed(20)})
    standby = prices.session("b")
    standby.assign(standby=[0])
    prices.settle(standby, lambda: position(standby) == 20, "it has all that may be applied")
    machine = standby._instance.readiness.tailer.changelogs[prices.source].machine
    prices.group.commit({prices.source: Committed(5)})  # as an operator may
    prices.produce(30)
    prices.settle(standby, lambda: machine.statistics().limit_regressions > 0, "the smaller offset was seen")
    prices.settle(standby, lambda: machine.statistics().kept_records > 0, "the records beyond wait")
    assert (machine.limit, machine.position, position(standby)) == (20, 20, 20)
    assert rows(standby) == prices.expected(20)
    prices.group.commit({prices.source: Committed(50)})
    prices.settle(standby, lambda: position(standby) == 50, "it goes on with the next larger one")
    assert rows(standby) == prices.expected(50)


def test_what_waits_beyond_the_limit_is_bounded_and_nothing_of_it_is_lost(prices: Prices) -> None:
    prices.topic(TopicPolicy(frozenset({"compact"})))
    for _ in range(4):
        prices.produce(5_000)
    standby = prices.session("b")
    standby.assign(standby=[0])
    machine = standby._instance.readiness.tailer.changelogs[prices.source].machine
    prices.settle(standby, lambda: statistics(standby).paused, "it waits at limit 0")
    for _ in range(50):
        standby.poll_once()
    assert 0 < machine.statistics().kept_records <= 10_000
    assert rows(standby) == []
    for stop in (1, 9_999, 15_000, 20_000):
        prices.group.commit({prices.source: Committed(stop)})
        prices.settle(standby, lambda stop=stop: position(standby) == stop, "it follows")  # type: ignore[misc]
        assert machine.statistics().kept_records <= 10_000
    assert rows(standby) == prices.expected(20_000)


@pytest.mark.long
def test_table_of_an_application_is_restored_from_its_topic_alone(prices: Prices) -> None:
    prices.topic(TopicPolicy(frozenset({"compact"})))
    prices.transaction(30)
    prices.transaction(5, commit=False)
    for directory in ("one", "two"):
        app = sf.App(
            prices.app, log=prices.address, state_dir=prices.root / directory, stores=[prices.spec], take_over=True
        )
        app.table(prices.source.topic, "table")
        thread = threading.Thread(target=app.run, daemon=True)
        thread.start()
        deadline = time.monotonic() + WAIT_S
        wanted = prices.expected(prices.end())
        while not app.session or not app.session.open_tasks() or rows(app.session) != wanted:
            assert time.monotonic() < deadline, "the table does not follow its topic"
            time.sleep(0.05)
        app.stop()
        thread.join(WAIT_S)
        prices.transaction(10)
    names = [one.name for one in prices.log.admin.topics() if one.name.startswith(prices.app)]
    assert names == [f"{prices.app}-prices", f"{prices.app}-standfast-placement"]  # no changelog of its own


@pytest.mark.parametrize("commit", [True, pytest.param(False, marks=pytest.mark.long)], ids=["committed", "aborted"])
def test_restore_waits_for_an_open_transaction_below_the_committed_offset(prices: Prices, commit: bool) -> None:
    prices.topic(COMPACT)
    prices.produce(3)
    feed = prices.feed()
    feed.begin_transaction()
    for key, value, stamp, _ in prices.records(2):
        feed.produce(prices.source.topic, value, key, 0, timestamp=stamp)
    feed.flush(20)
    # An application that reads uncommitted records has processed them.
    prices.group.commit({prices.source: Committed(5)})
    assert prices.end() == 3
    session = prices.session()
    session.assign(active=[0])
    with pytest.raises(sf.NotReady, match=r"0_0.*table"):
        session.wait_ready(1.0)
    (feed.commit_transaction if commit else feed.abort_transaction)(20)
    session.wait_ready(WAIT_S)
    assert verify_rows(session) == prices.expected(5)
    assert len(prices.expected(5)) == (4 if commit else 3)


def test_restart_within_an_open_transaction_keeps_what_was_processed_of_it(prices: Prices) -> None:
    prices.topic(COMPACT)
    prices.produce(3)
    feed = prices.feed()
    feed.begin_transaction()
    feed.produce(prices.source.topic, b'{"n": 77}', b"k77", 0)
    feed.flush(20)
    session = prices.active()
    prices.pump(session, 3)
    session.task(0).store("table").put("k77", {"n": 77}, 1)
    session.task(0).commit({prices.source: 4})
    session.close()
    again = prices.active()
    assert again.task(0).store("table").get("k77") == {"n": 77}
    assert again.task(0).source_offsets()[prices.source] == 4
    assert not again.counters.wipes
    feed.commit_transaction(20)


def verify_rows(session: sf.Session) -> list[Any]:
    return list(session.task(0).store("table").logical_rows())


def test_offset_that_was_committed_above_all_that_was_written_does_not_keep_a_restore_waiting(prices: Prices) -> None:
    prices.topic(COMPACT)
    prices.produce(3)
    prices.group.commit({prices.source: Committed(50)})
    session = prices.active()
    assert verify_rows(session) == prices.expected(3)
