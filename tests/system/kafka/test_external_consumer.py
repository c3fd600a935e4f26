"""An external consumer on a real broker: its group decides which member is active, no record is lost or doubled.

Rules of this file: every member is a thread with a consumer, session and state directory of its own, as a process would
have. Checked are the committed records of the changelog.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as KafkaPartition

import standfast as sf
from standfast.ops.tools.broker import Broker
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.takeover import MemberPlan, plans

pytestmark = [pytest.mark.kafka(2), pytest.mark.slow]

WAIT_S = 60.0
COUNTS = sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)
PROTOCOLS = {
    "eager": {"partition.assignment.strategy": "range"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "consumer": {"group.protocol": "consumer"},
}
QUICK = {"session.timeout.ms": 2_000, "heartbeat.interval.ms": 300}


class Group:
    """One application: its topic, its input records, and its members."""

    def __init__(self, root: Path, address: str, *, options: str = "", partitions: int = 4) -> None:
        self.root = root
        self.address = f"kafka://{address}{options}"  # the members'
        self.app = f"own-{uuid.uuid4().hex[:8]}"
        self.topic = f"{self.app}-in"
        self.partitions = partitions
        self.log = KafkaLog(f"kafka://{address}")
        self.group = self.log.group(self.app)
        self.log.admin.create_topic(self.topic, partitions, TopicPolicy())
        self.producer = self.log.producer()
        self.fed: Counter[str] = Counter()
        self.members: list[Member] = []

    def feed(self, count: int) -> None:
        batches: dict[TopicPartition, list[Outgoing]] = {}
        for number in range(count):
            key = f"k{number % 40}"
            at = TopicPartition(self.topic, number % 40 % self.partitions)
            batches.setdefault(at, []).append(Outgoing(key.encode(), b"", time.time_ns() // 1_000_000))
            self.fed[key] += 1
        self.producer.append(batches)

    def member(self, name: str, **settings: Any) -> Member:
        member = Member(self, name, **settings)
        self.members.append(member)
        return member

    def committed(self) -> int:
        return sum(one.offset for at, one in self.group.committed().items() if at.topic == self.topic)

    def all_counted(self) -> bool:
        return self.committed() >= self.fed.total()

    def counted(self) -> Counter[str]:
        """Counts in the changelog."""
        reader = self.log.reader()
        sources = [TopicPartition(f"{self.app}-counts-changelog", number) for number in range(self.partitions)]
        bounds = reader.bounds(sources)
        reader.assign({at: bounds[at].begin for at in sources})
        found: Counter[str] = Counter()
        while any(position < bounds[at].end for at, position in reader.assignment().items()):
            for batch in reader.fetch(10_000, 100):
                for record in batch.records:
                    assert record.key is not None
                    assert record.value is not None
                    found[record.key.decode()] = sf.serde.int64.deserialize(record.value)
        reader.close()
        return found

    def plans(self) -> dict[str, MemberPlan]:
        return plans(self.group.view())

    def close(self) -> None:
        for member in self.members:
            member.stop()
        self.log.close()


class Member(threading.Thread):
    """An application with an external consumer."""

    def __init__(self, group: Group, name: str, *, consumer: dict[str, Any] | None = None, **settings: Any) -> None:
        super().__init__(name=name, daemon=True)
        self.group = group
        self.error: BaseException | None = None
        self.processed: list[tuple[int, int]] = []  # partition, offset
        self.events: list[tuple[str, tuple[int, ...]]] = []
        self.polls = 0
        self.ending, self.go_on, self.foreign = threading.Event(), threading.Event(), threading.Event()
        self.go_on.set()
        self.waits = False
        arguments: dict[str, Any] = {"placement": "group", "standby_replicas": 1, "stores": [COUNTS], "lease_ms": 1_500}
        self.session = sf.Session(
            group.app, log=group.address, state_dir=group.root / name, **{**arguments, **settings}
        )
        given = consumer or {}
        quick = {} if given.get("group.protocol") == "consumer" else QUICK  # under this protocol the broker decides
        self.consumer: Any = Consumer(self.session.consumer_settings({**quick, **given}))
        self.consumer.subscribe([group.topic], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._lost)
        self.start()

    def _assign(self, consumer: Any, partitions: list[Any]) -> None:
        self.events.append(("assign", tuple(one.partition for one in partitions)))
        self.session.on_assign(consumer, partitions)

    def _revoke(self, consumer: Any, partitions: list[Any]) -> None:
        self.events.append(("revoke", tuple(one.partition for one in partitions)))
        self.session.on_revoke(consumer, partitions)

    def _lost(self, consumer: Any, partitions: list[Any]) -> None:
        self.events.append(("lost", tuple(one.partition for one in partitions)))
        self.session.on_lost(consumer, partitions)

    def run(self) -> None:
        try:
            while not self.ending.is_set():
                self.turn()
            self.consumer.close()
        except BaseException as error:  # reported by `until`
            self.error = error

    def turn(self) -> None:
        offsets = {}
        if self.foreign.is_set():
            self.consumer.commit(offsets=[KafkaPartition(self.group.topic, 0, 99)], asynchronous=False)
        for message in self.consumer.consume(200, 0.05):
            if message.error() is not None:
                assert message.error().code() == KafkaError._MAX_POLL_EXCEEDED, message.error()
                continue
            counts, key = self.session.task(message.partition()).store("counts"), message.key().decode()
            counts.put(key, (counts.get(key) or 0) + 1, message.timestamp()[1])
            self.processed.append((message.partition(), message.offset()))
            offsets[message.topic(), message.partition()] = message.offset() + 1
        while offsets and not self.go_on.is_set():
            self.waits = True
            time.sleep(0.01)
        try:
            self.session.commit(offsets)
        except sf.Fenced:
            self.events.append(("fenced", ()))  # the consumer learns it at its next poll
        except sf.Unavailable:
            self.events.append(("unavailable", ()))  # the task is reopened, its records come again
        self.polls += 1

    def roles(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {"active": [], "standby": []}
        for number, task in sorted(self.session.tasks().items()):
            found[task.role].append(number)
        return found

    def stop(self) -> None:
        """Leave as an application would."""
        self.ending.set()
        self.join(WAIT_S)
        self.session.close()


@pytest.fixture
def group(tmp_path: Path, kafka_address: str) -> Iterator[Group]:
    made = Group(tmp_path, kafka_address)
    yield made
    made.close()


def until(group: Group, reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not reached():
        for member in group.members:
            assert member.error is None, f"{member.name}: {member.error!r}"
        told = {member.name: (member.roles(), member.events) for member in group.members if not member.ending.is_set()}
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}: {told}"
        time.sleep(0.02)


def complete(first: Member, second: Member) -> bool:
    """Wait until every task is active on one of the two and has its standby on the other."""
    one, other = first.roles(), second.roles()
    return (
        one["active"] == other["standby"]
        and one["standby"] == other["active"]
        and sorted(one["active"] + other["active"]) == [0, 1, 2, 3]
        and bool(one["active"] and other["active"])
    )


@pytest.mark.parametrize(
    ("protocol", "guarantee"),
    [
        pytest.param("eager", "exactly_once", marks=pytest.mark.long),
        pytest.param("cooperative", "exactly_once", marks=pytest.mark.long),
        pytest.param("cooperative", "at_least_once", marks=pytest.mark.long),
        ("consumer", "exactly_once"),
    ],
)
def test_each_record_counts_once_while_members_come_and_go(group: Group, protocol: str, guarantee: str) -> None:
    settings: dict[str, Any] = {"consumer": PROTOCOLS[protocol], "guarantee": guarantee}
    group.feed(400)
    first = group.member("a", **settings)
    until(group, group.all_counted, "one member counts all")
    assert group.counted() == group.fed
    until(group, lambda: first.session.statistics().standbys_missing == 4, "it is told that no member has a standby")
    second = group.member("b", **settings)
    for _ in range(10):  # rebalanced in the middle of work
        group.feed(80)
        time.sleep(0.05)
    until(group, lambda: complete(first, second), "standbys follow the actives")
    group.feed(400)
    until(group, group.all_counted, "two members count all")
    assert group.counted() == group.fed
    assert {at for at, _ in second.processed}
    until(group, lambda: first.session.statistics().standbys_missing == 0, "every standby is told to have a member")
    second.stop()
    group.feed(400)
    until(group, group.all_counted, "the one that stayed counts all")
    assert group.counted() == group.fed
    assert first.roles()["active"] == [0, 1, 2, 3]
    assert not [what for what, _ in first.events if what == "lost"]


@pytest.mark.long
def test_restore_longer_than_the_session_costs_no_membership_and_nothing_is_read_before_it_ends(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = group.member("a", cache_max_bytes=0)  # every put is in the changelog
    group.feed(1_200)
    until(group, group.all_counted, "the state is there")
    first.stop()
    group.members.remove(first)
    monkeypatch.setattr("standfast.restore.replay.restorer.BATCH_RECORDS_MAX", 60)
    slow = Slow()
    before = time.monotonic()
    cold = group.member("b", listeners=[slow], consumer={"max.poll.interval.ms": 5_000})
    until(group, lambda: not cold.session.ready, "the restore runs")
    group.feed(40)
    until(group, lambda: slow.batches >= 4, "the restore is under way")
    polls = cold.polls
    assert cold.processed == []
    with pytest.raises(sf.NotReady):
        cold.session.task(0)
    until(group, lambda: cold.polls > polls or cold.session.ready, "polling goes on")
    until(group, group.all_counted, "what came meanwhile is counted")
    assert time.monotonic() - before > 5.0
    assert [what for what, _ in cold.events] == ["assign"]
    assert {offset for _, offset in cold.processed} == {300 + number for number in range(10)}
    assert group.counted() == group.fed


class Slow(sf.Listener):
    """Delays each batch of a restore."""

    batches = 0

    def on_batch_restored(
        self, task: TaskId, store: str, changelog: TopicPartition, position: int, records: int
    ) -> None:
        self.batches += 1
        time.sleep(0.35)  # 20 batches: longer than the poll interval


@pytest.mark.long
def test_member_that_stalled_commits_nothing_of_what_others_own_by_then(group: Group) -> None:
    group.feed(400)
    first = group.member("a", consumer={"max.poll.interval.ms": 2_500})
    until(group, group.all_counted, "one member counts all")
    first.go_on.clear()
    group.feed(400)
    until(group, lambda: first.waits, "it holds records that it processed and did not commit")
    second = group.member("b")
    until(group, lambda: second.roles()["active"] == [0, 1, 2, 3], "the group gave its partitions away")
    until(group, group.all_counted, "the new owner counts what was in hand")
    first.go_on.set()
    group.feed(400)
    until(group, lambda: complete(first, second), "it is a member again")
    until(group, group.all_counted, "both go on")
    assert group.counted() == group.fed
    assert "lost" in [what for what, _ in first.events]


def test_offsets_left_from_before_a_seek_are_refused_and_change_nothing(group: Group) -> None:
    group.feed(40)
    member = group.member("a")
    until(group, group.all_counted, "all are counted")
    member.ending.set()
    member.join(WAIT_S)
    consumer: Any = Consumer(member.session.consumer_settings(QUICK))
    consumer.subscribe([group.topic], on_assign=member.session.on_assign, on_revoke=member.session.on_revoke)
    deadline = time.monotonic() + WAIT_S
    while not member.session.open_tasks():
        assert time.monotonic() < deadline
        consumer.consume(10, 0.05)
        member.session.commit({})
    member.session.commit({(group.topic, 0): 3})  # committed before: nothing to do
    with pytest.raises(sf.InvalidRequest, match=r"source offset 12 of .* is not of a record that"):
        member.session.commit({(group.topic, 0): 12})
    assert group.committed() == 40
    consumer.close()


def test_somebody_else_who_commits_is_found(group: Group) -> None:
    """As enable.auto.commit would, a setting that cannot be read from a consumer."""
    group.feed(40)
    member = group.member("a")
    until(group, group.all_counted, "all are counted")
    with pytest.raises(sf.BadConfig, match=r"committed outside of this session: .* was set to 99, the state stands"):
        for _ in range(200):
            member.foreign.set()
            time.sleep(0.05)
            if member.error is not None:
                raise member.error
    group.members.remove(member)
    member.consumer.close()
    member.session.close()


def test_settings_that_would_lose_records_are_refused(group: Group) -> None:
    with sf.Session(group.app, log=group.address, state_dir=group.root / "a", placement="group") as session:
        given = {"enable.auto.commit": True, "isolation.level": "read_uncommitted", "group.id": "other"}
        with pytest.raises(sf.BadConfig) as refused:
            session.consumer_settings(given)
        assert len(refused.value.problems) == 3
        assert "enable.auto.commit is True and must be False" in str(refused.value)
        settings = session.consumer_settings({"enable.auto.commit": "false", "client.id": "mine"})
        assert settings["group.id"] == group.app
        assert settings["client.id"] == "mine"
        stranger: Any = Consumer({**settings, "group.id": "other"})
        stranger.subscribe([group.topic], on_assign=session.on_assign)
        with pytest.raises(sf.BadConfig, match="the consumer is in group 'other', but offsets are committed for"):
            for _ in range(100):
                stranger.poll(0.1)
        stranger.close()


@pytest.mark.long
def test_broker_killed_in_the_middle_loses_and_doubles_nothing(tmp_path: Path, restartable_broker: Broker) -> None:
    group = Group(tmp_path, restartable_broker.address, options="?timeout.ms=1000")
    try:
        group.feed(400)
        member = group.member("a", standby_replicas=0, lease_ms=30_000)
        until(group, group.all_counted, "all are counted")
        member.go_on.clear()
        group.feed(400)
        until(group, lambda: member.waits, "it holds records that it did not commit")
        restartable_broker.kill()
        member.go_on.set()
        until(group, lambda: ("unavailable", ()) in member.events, "the commit fails")
        restartable_broker.start()
        group.feed(400)
        until(group, group.all_counted, "it goes on when the broker is back")
        assert group.counted() == group.fed
    finally:
        group.close()


def test_embedded_log_has_no_consumers(tmp_path: Path) -> None:
    with (
        sf.Session("app", log=f"sqlite:///{tmp_path}/log", state_dir=tmp_path / "a", placement="group") as session,
        pytest.raises(sf.BadConfig, match="has no consumers of Kafka"),
    ):
        session.consumer_settings()


@pytest.mark.parametrize(
    "protocol", [pytest.param(one, marks=() if one == "consumer" else pytest.mark.long) for one in PROTOCOLS]
)
def test_client_complains_of_no_assignment(kafka_address: str, tmp_path: Path, protocol: str) -> None:
    """Measured before: under eager assignors a warning `assign() call failed` at assignments."""
    app, said = f"app-{uuid.uuid4().hex[:8]}", list[str]()
    log = KafkaLog(f"kafka://{kafka_address}")
    log.admin.create_topic(f"{app}-in", 2, TopicPolicy())
    client_log = logging.Logger("client")
    client_log.addHandler(Listen(said))
    stores = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.int64)]
    with sf.Session(app, log=log.address, state_dir=tmp_path, stores=stores, placement="group") as session:
        settings = session.consumer_settings(PROTOCOLS[protocol])
        consumer: Any = Consumer({**settings, "logger": client_log})
        consumer.subscribe([f"{app}-in"], on_assign=session.on_assign, on_revoke=session.on_revoke)
        deadline = time.monotonic() + 60
        while len(session.open_tasks()) < 2 or len(consumer.assignment()) < 2:
            assert time.monotonic() < deadline
            consumer.consume(1, 0.1)
            session.commit({})
        consumer.close()
    log.close()
    assert not [text for text in said if "assign() call failed" in text]


class Listen(logging.Handler):
    """Keeps the log records."""

    def __init__(self, said: list[str]) -> None:
        super().__init__()
        self.said = said

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.mark.long
def test_records_given_before_a_commit_that_failed_count_once_when_the_broker_is_back(
    restartable_broker: Broker, tmp_path: Path
) -> None:
    """Two tasks, nothing committed before: one commit fails, the other is not reached, and both go on."""
    app, address = f"app-{uuid.uuid4().hex[:8]}", f"kafka://{restartable_broker.address}?timeout.ms=2000"
    log = KafkaLog(address)
    sources = [TopicPartition(f"{app}-in", number) for number in range(2)]
    log.admin.create_topic(f"{app}-in", 2, TopicPolicy())
    log.producer().append({at: [Outgoing(b"k", b"", 1)] * 10 for at in sources})
    counts = sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)
    given = {"log": address, "state_dir": tmp_path, "stores": [counts], "placement": "group"}
    deadline = time.monotonic() + 2 * WAIT_S
    with sf.Session(app, **given) as session:  # type: ignore[arg-type]
        consumer: Any = Consumer(session.consumer_settings())  # no rebalance meanwhile: it would restart
        consumer.subscribe([f"{app}-in"], on_assign=session.on_assign, on_revoke=session.on_revoke)

        def turn(offsets: dict[tuple[str, int], int], *, commit: bool) -> None:
            for message in consumer.consume(100, 0.1):
                with suppress(sf.Unavailable):
                    store = session.task(message).store("counts")
                    store.put("k", (store.get("k") or 0) + 1)
                    offsets[message.topic(), message.partition()] = message.offset() + 1
            if commit:
                session.commit(offsets)

        first: dict[tuple[str, int], int] = {}
        while len(session.open_tasks()) < 2:
            assert time.monotonic() < deadline
            turn({}, commit=True) if not consumer.assignment() else turn(first, commit=False)
        while sum(first.values()) < 20:
            assert time.monotonic() < deadline
            turn(first, commit=False)
        restartable_broker.kill()
        with pytest.raises(sf.Unavailable):
            session.commit(first)
        restartable_broker.start()

        group = log.group(app)

        def done() -> bool:
            with suppress(sf.Unavailable):
                turn({}, commit=True)
                return sum(one.offset for one in group.committed(sources).values()) == 20
            return False

        while not done():
            assert time.monotonic() < deadline
        assert [session.read("counts", number).store.get("k") for number in range(2)] == [10, 10]
        consumer.close()
    log.close()


def test_message_that_is_an_error_is_raised_by_what_is_to_be_done(kafka_address: str, tmp_path: Path) -> None:
    app = f"app-{uuid.uuid4().hex[:8]}"
    given = {"log": f"kafka://{kafka_address}", "state_dir": tmp_path, "stores": [COUNTS], "placement": "group"}
    with sf.Session(app, **given) as session:  # type: ignore[arg-type]
        refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(sf.BadConfig, match="User:ANONYMOUS has no permission READ on topic 'in'"):
            session.task(Message(topic="in", partition=0, error=refused))
        with pytest.raises(sf.Unavailable, match="reading"):
            session.task(Message(error=KafkaError(KafkaError._MAX_POLL_EXCEEDED)))
