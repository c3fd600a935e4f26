"""Requests to the leaders of partitions are made only where the admin client knows each leader: else it may crash.

    describe_topics   a client learns the leaders
    list_offsets      and delete_records: of partitions whose leader the same client has learned, and no others

Rules of this file: real clients on a real broker; a test looks at their calls and answers, and changes none.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from standfast.replication.kafka.cluster import LED_MS, Cluster
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.store.clock import ManualClock
from standfast.store.errors import Unavailable, UnknownStore

pytestmark = pytest.mark.kafka

Source = tuple[str, int]


class Calls:
    """The calls of all admin clients, and the leaders that each has learned by then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self._learned: dict[int, set[Source]] = {}
        self._clients: list[AdminClient] = []  # kept, so that no other one gets the same id
        self._mutex = threading.Lock()
        describe, offsets, delete = AdminClient.describe_topics, AdminClient.list_offsets, AdminClient.delete_records

        def describe_topics(client: AdminClient, topics: Any, **given: Any) -> dict[str, Future[Any]]:
            self.names.append("describe")
            answer = describe(client, topics, **given)
            for future in answer.values():
                future.add_done_callback(lambda done: self._learn(client, done))
            return answer

        def list_offsets(client: AdminClient, asked: dict[Any, Any], **given: Any) -> Any:
            self._check("offsets", client, asked)
            return offsets(client, asked, **given)

        def delete_records(client: AdminClient, asked: list[Any], **given: Any) -> Any:
            self._check("delete", client, asked)
            return delete(client, asked, **given)

        monkeypatch.setattr(AdminClient, "describe_topics", describe_topics)
        monkeypatch.setattr(AdminClient, "list_offsets", list_offsets)
        monkeypatch.setattr(AdminClient, "delete_records", delete_records)

    def _learn(self, client: AdminClient, done: Future[Any]) -> None:
        if done.exception() is None:
            found = done.result()
            with self._mutex:
                self._clients.append(client)
                self._learned.setdefault(id(client), set()).update((found.name, one.id) for one in found.partitions)

    def _check(self, name: str, client: AdminClient, asked: Iterable[Any]) -> None:
        self.names.append(name)
        with self._mutex:
            known = self._learned.get(id(client), set())
            unknown = [one for one in asked if (one.topic, one.partition) not in known]
        assert not unknown, f"{name} of partitions whose leaders the client has not learned"

    def made(self) -> list[str]:
        """The calls since the last look."""
        names, self.names = self.names, []
        return names


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.fixture
def log(calls: Calls, kafka_address: str) -> Iterator[KafkaLog]:
    opened = KafkaLog(f"kafka://{kafka_address}?timeout.ms=5000")
    yield opened
    opened.close()


@pytest.fixture
def topic(log: KafkaLog) -> str:
    name = f"leaders-{uuid.uuid4().hex[:8]}"
    log.admin.create_topic(name, 1, TopicPolicy())
    log.producer().append({TopicPartition(name, 0): [Outgoing(b"k", b"v", 1_000)] * 3})
    return name


def cluster_of(log: KafkaLog) -> Cluster:
    return log._cluster


def test_every_question_about_offsets_follows_the_description_of_its_leader(
    log: KafkaLog, topic: str, calls: Calls
) -> None:
    cluster = cluster_of(log)
    cluster.forget(topic)
    calls.made()
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    end = log.reader().bounds([first])[first].end
    assert end >= 3
    assert calls.made() == ["describe", "offsets", "offsets"]
    assert cluster.bounds([first]) == {first: Bounds(0, end)}
    assert calls.made() == ["offsets", "offsets", "describe"], "one round trip, once the leader is known"
    with pytest.raises(UnknownStore, match="has no partition 1"):
        cluster.bounds([second])
    assert "offsets" not in calls.made()
    log.admin.add_partitions(topic, 2)
    assert cluster.bounds([second, first]) == {second: Bounds(0, 0), first: Bounds(0, end)}
    cluster.forget(topic)
    calls.made()
    assert cluster.written_end(first) >= end
    assert cluster.first_offset(first, 2_000) == end
    assert calls.made()[:2] == ["describe", "offsets"]


def test_a_new_client_learns_the_leaders_again(log: KafkaLog, topic: str, calls: Calls) -> None:
    cluster, source = cluster_of(log), TopicPartition(topic, 0)
    before = cluster.bounds([source])
    cluster._renew()
    calls.made()
    assert cluster.bounds([source]) == before
    assert calls.made() == ["describe", "offsets", "offsets"]


def test_client_that_was_renewed_after_the_description_is_not_asked_and_the_topic_is_not_called_unknown(
    log: KafkaLog, topic: str, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, source = cluster_of(log), TopicPartition(topic, 0)
    before, describe, renewals = cluster.bounds([source]), cluster.describe, [1, 1]

    def described(*given: Any) -> dict[str, Any]:
        found = describe(*given)
        if renewals:
            renewals.pop()
            cluster._renew()  # as by another thread
        return found

    monkeypatch.setattr(cluster, "describe", described)
    cluster.forget(topic)
    (failed,) = cluster.of_leaders([source], lambda admin, led: pytest.fail("asked")).values()
    assert failed.exception().args[0].code() == KafkaError.LEADER_NOT_AVAILABLE  # type: ignore[union-attr]
    assert cluster.bounds([source]) == before


def test_leaders_that_were_learned_long_ago_are_learned_again(log: KafkaLog, topic: str, calls: Calls) -> None:
    cluster, source = cluster_of(log), TopicPartition(topic, 0)
    clock = ManualClock(1_356_998_400_000)
    cluster._clock = clock  # type: ignore[assignment]
    cluster.forget(topic)
    cluster.bounds([source])
    calls.made()
    clock.advance(LED_MS - 1)
    cluster.written_end(source)
    assert calls.made() == ["offsets"]
    clock.advance(1)
    cluster.written_end(source)
    assert calls.made() == ["describe", "offsets"]


def test_records_are_deleted_only_of_partitions_whose_leaders_are_known(
    log: KafkaLog, topic: str, calls: Calls
) -> None:
    cluster_of(log).forget(topic)
    calls.made()
    log.admin.delete_records({TopicPartition(topic, 0): 2})
    assert calls.made()[-1] == "delete"
    assert cluster_of(log).bounds([TopicPartition(topic, 0)], committed=False)[topic, 0].begin == 2  # type: ignore[index]


def test_partition_without_a_leader_is_not_asked_for_and_named_in_the_end(
    log: KafkaLog, topic: str, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, source = cluster_of(log), TopicPartition(topic, 0)
    leaderless = SimpleNamespace(partitions=[SimpleNamespace(id=0, leader=None)])

    def describe(names: Iterable[str], operation: str = "DESCRIBE") -> dict[str, Any]:
        cluster._note_leaders(cluster._led, topic, leaderless)
        return {topic: leaderless}

    monkeypatch.setattr(cluster, "describe", describe)
    cluster.forget(topic)
    cluster._timeout_ms = 100  # of the retries
    calls.made()
    with pytest.raises(Unavailable, match="LEADER_NOT_AVAILABLE"):
        cluster.written_end(source)
    assert calls.made() == []


def test_topic_that_does_not_exist_is_not_asked_for(log: KafkaLog, calls: Calls) -> None:
    cluster = cluster_of(log)
    cluster._timeout_ms = 100  # of the retries
    with pytest.raises(UnknownStore, match="UNKNOWN_TOPIC_OR_PART"):
        cluster.written_end(TopicPartition("no-such-topic", 0))
    assert "offsets" not in calls.made()
    answer = cluster.of_leaders([TopicPartition("no-such-topic", 0)], lambda admin, led: pytest.fail("asked"))
    (failed,) = answer.values()
    error: Any = failed.exception()
    assert error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
