"""Questions to the leaders of partitions while topics come, grow and go, and the client's calls that ask them.

    offsets         a synchronous question of a consumer; never `list_offsets` of the admin client, which may crash
    delete_records  of the admin client, for partitions whose leaders this very client has just learned, and no others

Rules of this file: real clients on a real broker; a test looks at their calls and answers, and changes none. Topics are
deleted by another process, in a loop, or through another log.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from standfast.replication.kafka.bounds import bounds_of, first_offsets, written_end
from standfast.replication.kafka.cluster import Cluster
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import GroupCommit, Outgoing, TopicPolicy
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.store.errors import Unavailable, UnknownStore
from standfast.store.native_module import SWITCH
from support.waits import until

pytestmark = pytest.mark.kafka

Source = tuple[str, int]
QUESTIONS = 100
CHURN = """
import sys, threading
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import TopicPolicy
from standfast.store.errors import StandfastError
log = KafkaLog(sys.argv[1])
print("ready", flush=True)
reading = threading.Thread(target=sys.stdin.read, daemon=True)
reading.start()
while reading.is_alive():
    try:
        log.admin.create_topic(sys.argv[2], 4, TopicPolicy())
        log.admin.delete_topic(sys.argv[2])
    except StandfastError:
        pass
"""


class Calls:
    """The calls of all admin clients, and the leaders that each has learned by then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self._learned: dict[int, set[Source]] = {}
        self._clients: list[AdminClient] = []  # kept, so that no other one gets the same id
        self._mutex = threading.Lock()
        describe, delete = AdminClient.describe_topics, AdminClient.delete_records

        def describe_topics(client: AdminClient, topics: Any, **given: Any) -> dict[str, Future[Any]]:
            self.names.append("describe")
            answer = describe(client, topics, **given)
            for future in answer.values():
                future.add_done_callback(lambda done: self._learn(client, done))
            return answer

        def list_offsets(client: AdminClient, asked: dict[Any, Any], **given: Any) -> Any:
            pytest.fail("list_offsets may end the process")

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


def test_topic_is_described_before_the_first_question_about_its_offsets_and_not_again(
    log: KafkaLog, topic: str, calls: Calls
) -> None:
    cluster = cluster_of(log)
    cluster.forget(topic)
    calls.made()
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    end = log.reader().bounds([first])[first].end
    assert end >= 3
    assert calls.made() == ["describe"]
    assert bounds_of(cluster, [first]) == {first: Bounds(0, end)}
    assert written_end(cluster, first) == end
    assert first_offsets(cluster, {first: 2_000}) == {first: end}
    assert first_offsets(cluster, {first: -1}) == {first: 0}
    assert calls.made() == []
    with pytest.raises(UnknownStore, match="has no partition 1"):
        bounds_of(cluster, [first, second])
    log.admin.add_partitions(topic, 2)
    assert bounds_of(cluster, [second, first]) == {second: Bounds(0, 0), first: Bounds(0, end)}


@pytest.mark.parametrize("native", ["1", "0"], ids=["compiled", "python"])
def test_both_ends_of_an_open_transaction_are_found_with_both_kinds_of_clients(
    kafka_address: str, monkeypatch: pytest.MonkeyPatch, calls: Calls, native: str
) -> None:
    monkeypatch.setenv(SWITCH, native)
    log = KafkaLog(f"kafka://{kafka_address}")
    source = TopicPartition(f"open-{uuid.uuid4().hex[:8]}", 0)
    log.admin.create_topic(source.topic, 1, TopicPolicy())
    writer, reader = log.writer("open", group=source.topic, owner="a"), log.reader()
    seen: list[tuple[int, int]] = []

    def meanwhile() -> None:
        while not seen or seen[-1][1] < 3:  # the records are on their way
            seen.append((reader.bounds([source])[source].end, reader.written_ends([source])[source]))

    writer.transact({source: [Outgoing(b"k", b"v", 1_000)] * 3}, GroupCommit(source.topic, {}), meanwhile=meanwhile)
    assert seen[-1] == (0, 3)
    until(lambda: reader.bounds([source]) == {source: Bounds(0, 4)}, "the marker")
    assert reader.written_ends([source]) == {source: 4}
    log.close()


@pytest.mark.slow
def test_questions_amid_deletions_by_another_process_are_answered_or_say_that_the_topic_is_gone(
    log: KafkaLog, kafka_address: str, topic: str
) -> None:
    name, stays = f"churn-{uuid.uuid4().hex[:8]}", TopicPartition(topic, 0)
    wanted = [stays, *(TopicPartition(name, number) for number in range(4))]
    command = [sys.executable, "-P", "-c", CHURN, f"kafka://{kafka_address}", name]
    seen: set[type] = set()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as churning:
        try:
            assert churning.stdin is not None and churning.stdout is not None
            churning.stdout.readline()
            readers = log.reader(), log.reader()

            def ask(reader: Any) -> None:
                for _ in range(QUESTIONS):
                    try:
                        answer: Any = reader.bounds(wanted), reader.written_ends(wanted)
                    except Exception as error:
                        answer = error
                    seen.add(type(answer))

            threads = [threading.Thread(target=ask, args=(reader,)) for reader in readers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            # Not killed: the broker would still make the topic of a request that is under way.
            churning.stdin.close()
            churning.wait(60)
        finally:
            churning.kill()
    assert UnknownStore in seen
    assert seen <= {tuple, UnknownStore}
    with suppress(UnknownStore):
        log.admin.delete_topic(name)
    with pytest.raises(UnknownStore, match=f"there is no topic '{name}'"):
        log.reader().bounds(wanted)
    assert log.reader().bounds([stays])[stays].begin == 0


def test_topic_that_another_client_deleted_and_made_again_smaller_lacks_a_partition(
    log: KafkaLog, topic: str, kafka_address: str
) -> None:
    log.admin.add_partitions(topic, 3)
    wanted = [TopicPartition(topic, number) for number in range(3)]
    assert len(log.reader().bounds(wanted)) == 3
    other = KafkaLog(f"kafka://{kafka_address}")
    other.admin.delete_topic(topic)
    other.admin.create_topic(topic, 2, TopicPolicy())
    other.close()
    with pytest.raises(UnknownStore, match="has no partition 2, only 0 to 1"):
        log.reader().bounds(wanted)
    assert log.reader().bounds(wanted[:2]) == dict.fromkeys(wanted[:2], Bounds(0, 0))


@pytest.mark.parametrize("name", ["\udcff", "", "a\0b", "ä", ".", "x" * 250])
def test_name_that_no_topic_can_have_is_that_of_no_topic(log: KafkaLog, name: str) -> None:
    # The first one ended the process.
    assert log.admin.describe_topic(name) is None
    with pytest.raises(UnknownStore, match="there is no topic"):
        log.reader().bounds([TopicPartition(name, 0)])
    with pytest.raises(UnknownStore, match="there is no topic"):
        log.reader().assign({TopicPartition(name, 0): 0})


def test_question_that_gets_no_answer_ends_with_the_time_of_the_log_and_the_next_one_asks_a_new_client(
    log: KafkaLog, topic: str
) -> None:
    cluster, source = cluster_of(log), TopicPartition(topic, 0)
    expected = bounds_of(cluster, [source])
    with cluster.askers.use("read_committed") as before:
        cluster.askers.renew(before)
        with cluster.askers.use("read_committed") as after:
            assert after is not before
        assert before.list_topics(topic, timeout=5).topics  # lives as long as it is used
    with pytest.raises(RuntimeError, match="closed"):
        before.list_topics(topic, timeout=5)
    assert bounds_of(cluster, [source]) == expected


def test_records_are_deleted_only_of_partitions_whose_leaders_are_known(
    log: KafkaLog, topic: str, calls: Calls
) -> None:
    cluster_of(log).forget(topic)
    calls.made()
    log.admin.delete_records({TopicPartition(topic, 0): 2})
    assert calls.made()[-2:] == ["describe", "delete"]
    assert bounds_of(cluster_of(log), [TopicPartition(topic, 0)], committed=False)[topic, 0].begin == 2  # type: ignore[index]


def test_client_that_was_renewed_after_the_description_deletes_no_records_before_it_knows_the_leaders(
    log: KafkaLog, topic: str, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, source = cluster_of(log), TopicPartition(topic, 0)
    bounds_of(cluster, [source], committed=False)
    check, renewals = cluster.check, [1, 1]

    def checked(*given: Any) -> dict[str, Any]:
        found = check(*given)
        if renewals:
            renewals.pop()
            cluster._renew()  # as by another thread
        return found

    monkeypatch.setattr(cluster, "check", checked)
    calls.made()
    log.admin.delete_records({source: 1})
    assert calls.made() == ["describe", "describe", "describe", "delete"]


def test_records_of_a_partition_without_a_leader_are_not_deleted_and_it_is_named_in_the_end(
    log: KafkaLog, topic: str, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, source = cluster_of(log), TopicPartition(topic, 0)
    bounds_of(cluster, [source], committed=False)
    leaderless = SimpleNamespace(partitions=[SimpleNamespace(id=0, leader=None)])
    monkeypatch.setattr(cluster, "check", lambda *given: {topic: leaderless})
    cluster._timeout_ms = 100  # of the retries
    calls.made()
    with pytest.raises(Unavailable, match=f"{topic}-0 have no leader now"):
        log.admin.delete_records({source: 1})
    assert calls.made() == []
