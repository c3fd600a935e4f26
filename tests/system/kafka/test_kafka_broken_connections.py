"""Requests whose connection breaks: reads are asked again within their time, changes are made once or looked for.

    broken      the first calls end at once, as librdkafka ends them on a connection that goes away
    made        the same, but the broker has carried the request out

Rules of this file: a real broker answers all other calls. Brokers that really go away are in test_kafka_broker_down.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from standfast.replication.kafka import cluster as kafka_cluster
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import Committed, Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.permissions import TOPIC, Need
from standfast.store.errors import Unavailable

pytestmark = pytest.mark.kafka

CODES = (KafkaError._DESTROY_BROKER, KafkaError._TRANSPORT)
BROKEN = 3  # calls
OPEN_S = 20.0
OF_CONSUMER = ("committed", "commit", "offsets_for_times")
BLOCKING = ("list_topics", *OF_CONSUMER)
READS: dict[str, tuple[str, Callable[[KafkaLog, TopicPartition], Any], Any]] = {  # the client's call, ours, its answer
    "topic": ("describe_topics", lambda log, at: at.topic in [one.name for one in log.admin.topics()], True),
    "settings": ("describe_configs", lambda log, at: log.admin.topics() != [], True),
    "brokers": ("list_topics", lambda log, at: len(log.admin.survey([at.topic]).brokers), 1),
    "names": ("list_topics", lambda log, at: at.topic in log.admin.topic_names(), True),
    "bounds": ("offsets_for_times", lambda log, at: tuple(log.reader().bounds([at])[at]), (0, 3)),
    "permissions": ("describe_topics", lambda log, at: log.admin.lacking([Need(TOPIC, at.topic, "READ")]), []),
    "groups": ("list_consumer_groups", lambda log, at: at.topic in log.admin.groups(), True),
    "committed": ("committed", lambda log, at: log.group(at.topic).committed([at])[at].offset, 2),
}
CHANGES: dict[str, Callable[[KafkaLog, TopicPartition], Any]] = {
    "delete_topics": lambda log, at: log.admin.delete_topic(at.topic),
    "create_partitions": lambda log, at: log.admin.add_partitions(at.topic, 2),
    "incremental_alter_configs": lambda log, at: log.admin.change_topic(at.topic, {"retention.ms": "1000"}),
    "delete_records": lambda log, at: log.admin.delete_records({at: 1}),
    "delete_consumer_groups": lambda log, at: log.admin.delete_group(at.topic),
    "commit": lambda log, at: log.group(at.topic).commit({at: Committed(3, "later")}),
}


class Broken:
    """The first calls of one kind end at once; `made`: the broker carries them out all the same."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, name: str, code: int, times: int = BROKEN, *, made: bool = False
    ) -> None:
        self.calls = 0
        of_consumer = name in OF_CONSUMER
        real: Any = getattr(Consumer if of_consumer else AdminClient, name)

        def call(itself: Any, *given: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls > times:
                return real(itself, *given, **named)
            if name in BLOCKING:
                raise KafkaException(KafkaError(code))
            failed: Future[Any] = Future()
            failed.set_exception(KafkaException(KafkaError(code)))
            for future in real(itself, *given, **named).values() if made else ():
                future.result()
            return failed if name == "list_consumer_groups" else dict.fromkeys(_keys(name, given[0]), failed)

        if of_consumer:  # a class of C takes no other methods
            monkeypatch.setattr(kafka_cluster, "Consumer", type("BrokenConsumer", (Consumer,), {name: call}))
        else:
            monkeypatch.setattr(AdminClient, name, call, raising=False)


def _keys(name: str, asked: Any) -> list[Any]:
    """The keys of an answer to this call."""
    if name == "describe_topics":
        return list(asked.topic_names)
    if name in ("create_topics", "create_partitions"):
        return [one.topic for one in asked]
    return list(asked)


@pytest.fixture
def log(kafka_address: str) -> Iterator[KafkaLog]:
    opened = KafkaLog(f"kafka://{kafka_address}?timeout.ms=20000")
    yield opened
    opened.close()


@pytest.fixture
def at(log: KafkaLog) -> TopicPartition:
    """A partition with three records, of which a group of the topic's name has read two."""
    name = f"broken-{uuid.uuid4().hex[:8]}"
    log.admin.create_topic(name, 1, TopicPolicy())
    made = TopicPartition(name, 0)
    log.producer().append({made: [Outgoing(b"k", b"v", 1_000)] * 3})
    log.group(name).commit({made: Committed(2, "")})
    return made


@pytest.mark.parametrize("code", CODES, ids=["destroyed", "transport"])
@pytest.mark.parametrize("read", READS)
def test_read_whose_connection_breaks_is_asked_again(
    log: KafkaLog, at: TopicPartition, monkeypatch: pytest.MonkeyPatch, read: str, code: int
) -> None:
    name, ours, expected = READS[read]
    broken = Broken(monkeypatch, name, code)
    assert ours(log, at) == expected
    assert broken.calls > BROKEN


def test_consumers_are_described_once_and_not_again_for_a_while_after_a_broken_connection(
    log: KafkaLog, at: TopicPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert log.admin.consumers(at.topic) == ()
    broken = Broken(monkeypatch, "describe_consumer_groups", KafkaError._TRANSPORT)
    for _ in range(2):  # such a request at a broker that has just come back would end the process
        with pytest.raises(Unavailable, match=r"did not answer within the last 30 s: try again"):
            log.admin.consumers(at.topic)
    assert broken.calls == 1


def test_log_is_opened_though_connections_break(kafka_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Broken(monkeypatch, "list_topics", KafkaError._TRANSPORT)
    KafkaLog(f"kafka://{kafka_address}").close()
    assert broken.calls > BROKEN


@pytest.mark.parametrize("read", READS)
def test_read_ends_with_its_time_and_says_so(
    log: KafkaLog, at: TopicPartition, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    name, ours, _ = READS[read]
    broken = Broken(monkeypatch, name, KafkaError._DESTROY_BROKER, 10**9)
    log._cluster._timeout_ms = 500  # only now: a busy machine may take longer to connect
    began = time.monotonic()
    with pytest.raises(Unavailable, match=r"no answer within 500 ms, and its connections broke \(_DESTROY_BROKER\)"):
        ours(log, at)
    assert 0.4 < time.monotonic() - began < OPEN_S
    assert 1 < broken.calls < 60  # with pauses


@pytest.mark.parametrize(
    "describe",
    [
        lambda log, name: log.admin.describe_topic(name),
        lambda log, name: not log.admin.lacking([Need(TOPIC, name, "READ")]),
    ],
)
def test_topics_are_not_described_before_a_broker_that_came_back_names_a_live_one(
    log: KafkaLog, at: TopicPartition, monkeypatch: pytest.MonkeyPatch, describe: Callable[[KafkaLog, str], Any]
) -> None:
    asked: list[str] = []
    topics, metadata = AdminClient.describe_topics, AdminClient.list_topics

    def list_topics(client: AdminClient, *given: Any, **named: Any) -> Any:
        asked.append("metadata")
        found = metadata(client, *given, **named)
        if len(asked) <= BROKEN:
            found.brokers = {}  # the answer of a broker that has not joined its cluster again
        return found

    def describe_topics(client: AdminClient, *given: Any, **named: Any) -> Any:
        asked.append("topics")
        return topics(client, *given, **named)

    monkeypatch.setattr(AdminClient, "list_topics", list_topics)
    monkeypatch.setattr(AdminClient, "describe_topics", describe_topics)
    assert describe(log, at.topic)
    assert "metadata" not in asked[: asked.index("topics")]  # no trouble so far: no further request
    asked.clear()
    log._cluster._note(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert describe(log, at.topic)
    assert asked[: asked.index("topics")] == ["metadata"] * (BROKEN + 1)


@pytest.mark.parametrize("change", CHANGES)
def test_change_whose_connection_breaks_is_not_repeated_and_its_error_says_that_it_may_have_been_made(
    log: KafkaLog, at: TopicPartition, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    broken = Broken(monkeypatch, change, KafkaError._TRANSPORT)
    with pytest.raises(Unavailable, match=r"the connection broke before an answer.*may have done it or not"):
        CHANGES[change](log, at)
    assert broken.calls == 1
    found = log.admin.describe_topic(at.topic)
    assert found is not None and (found.partitions, found.policy.retention_ms) == (1, -1)
    assert tuple(log.reader().bounds([at])[at]) == (0, 3)
    assert log.group(at.topic).committed([at])[at].offset == 2


@pytest.mark.parametrize("made", [False, True])
def test_topic_is_created_once_whether_the_broken_request_made_it_or_not(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch, made: bool
) -> None:
    name = f"broken-{uuid.uuid4().hex[:8]}"
    broken = Broken(monkeypatch, "create_topics", KafkaError._DESTROY_BROKER, 1, made=made)
    assert log.admin.create_topic(name, 2, TopicPolicy(retention_ms=7_000)).policy.retention_ms == 7_000
    assert broken.calls == (1 if made else 2)
    found = log.admin.describe_topic(name)
    assert found is not None and found.partitions == 2
