"""Offsets committed for a consumer in another process: generations and members that the broker accepts or refuses."""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer

import standfast as sf
from standfast.replication.log import Committed, ConsumerMember, GroupCommit, Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store.errors import Fenced
from support.serve import Sidecars

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
JOIN_S = 30


class Joined:
    """A consumer of a group with one source partition, and a writer of the log beside it."""

    def __init__(self, address: str, protocol: str) -> None:
        self.group = f"g-{secrets.token_hex(4)}"
        self.log = open_log(f"kafka://{address}")
        self.source = TopicPartition(f"{self.group}-in", 0)
        self.out = TopicPartition(f"{self.group}-out", 0)
        for at in (self.source, self.out):
            self.log.admin.create_topic(at.topic, 1, TopicPolicy())
        settings: dict[str, Any] = {"bootstrap.servers": address, "group.id": self.group, "group.protocol": protocol}
        self._settings = {**settings, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        self.consumer = self._join()
        raw: bytes = self.consumer.consumer_group_metadata()
        self.generation = struct.unpack("=i", raw[7:11])[0]
        self.member = raw[11:].split(b"\0")[1].decode()
        self.writer = self.log.writer(f"{self.group}-0-0", group=self.group, owner="sidecar")

    def _join(self) -> Consumer:
        consumer = Consumer(self._settings)
        consumer.subscribe([self.source.topic])
        end = time.monotonic() + JOIN_S
        while not consumer.assignment():
            assert time.monotonic() < end, "the consumer was not given its partition"
            consumer.poll(0.1)
        return consumer

    def replace_consumer(self) -> None:
        """Another consumer gets the partition."""
        self.consumer.close()
        self.consumer = self._join()

    def commit(self, offset: int, member: ConsumerMember | None) -> None:
        commit = GroupCommit(self.group, {self.source: Committed(offset, "m")}, member)
        self.writer.transact({self.out: [Outgoing(b"k", b"%d" % offset, 1_000)]}, commit)

    def commit_offsets(self, offset: int, member: ConsumerMember | None) -> None:
        """Commit as at least once: the offsets alone, after the state."""
        group = self.log.group(self.group)
        try:
            group.commit({self.source: Committed(offset, "m")}, member)
        finally:
            group.close()

    def found(self) -> int | None:
        group = self.log.group(self.group)
        committed = group.committed([self.source]).get(self.source)
        group.close()
        return None if committed is None else committed.offset

    def close(self) -> None:
        self.consumer.close()
        self.log.close()


@pytest.fixture(params=["classic", "consumer"])
def joined(request: pytest.FixtureRequest, kafka_address: str) -> Iterator[Joined]:
    made = Joined(kafka_address, request.param)
    yield made
    made.close()


def test_generation_and_member_of_a_live_consumer_are_taken(joined: Joined) -> None:
    joined.commit(3, ConsumerMember(joined.generation, joined.member))
    assert joined.found() == 3


def test_commit_by_group_alone_is_taken_beside_a_live_consumer(joined: Joined) -> None:
    """Then only the transactional id fences: a newer writer of the task."""
    joined.commit(4, None)
    assert joined.found() == 4
    newer = joined.log.writer(f"{joined.group}-0-0", group=joined.group, owner="other")
    with pytest.raises(Fenced):
        joined.commit(5, None)
    assert joined.found() == 4
    newer.close()


def test_generation_that_is_over_and_strangers_commit_nothing(joined: Joined) -> None:
    joined.commit(1, ConsumerMember(joined.generation, joined.member))
    wrong = (
        ConsumerMember(joined.generation - 1, joined.member),
        ConsumerMember(joined.generation + 1, joined.member),
        ConsumerMember(joined.generation, "nobody"),
        ConsumerMember(joined.generation, ""),
    )
    for number, member in enumerate(wrong):
        with pytest.raises(Fenced, match="moved on"):
            joined.commit(10 + number, member)
    assert joined.found() == 1
    reader = joined.log.reader()
    assert reader.bounds([joined.out])[joined.out].end > 0
    reader.assign({joined.out: 0})
    values = [record.value for fetched in reader.fetch(100, 5_000) for record in fetched.records]
    reader.close()
    assert values == [b"1"], "the records of the refused ones were aborted with their offsets"
    joined.commit(2, ConsumerMember(joined.generation, joined.member))
    assert joined.found() == 2


def test_offsets_alone_are_taken_of_the_present_member_and_of_nobody_else(joined: Joined) -> None:
    """At least once, the broker refuses plain commits from outside the group; it checks a transaction of offsets."""
    joined.commit_offsets(3, ConsumerMember(joined.generation, joined.member))
    assert joined.found() == 3
    for member in (
        ConsumerMember(joined.generation - 1, joined.member),
        ConsumerMember(joined.generation + 1, joined.member),
        ConsumerMember(joined.generation, "nobody"),
    ):
        with pytest.raises(Fenced, match="moved on"):
            joined.commit_offsets(9, member)
    assert joined.found() == 3
    joined.commit_offsets(4, ConsumerMember(joined.generation, joined.member))
    joined.commit_offsets(5, None)
    assert joined.found() == 5


@pytest.mark.parametrize("guarantee", [pytest.param("at_least_once", marks=pytest.mark.long), "exactly_once"])
def test_commit_over_the_resp_server_is_fenced_once_its_consumer_is_replaced(
    sidecars: Sidecars, kafka_address: str, guarantee: str
) -> None:
    """The application's consumer loses its partition to another one while its sidecar still holds the task."""
    joined = Joined(kafka_address, "classic")
    stores = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
    sidecar = sidecars.start("m", f"kafka://{kafka_address}", joined.group, app__guarantee=guarantee)
    with sf.connect(sidecar.run_dir, stores=stores, partitions=1) as client:
        client.assign(active=[0])
        client.wait_ready(60)
        task = client.task(0)
        task.store("kv").put("a", "1")
        task.commit({(joined.source.topic, 0): 1}, member=(joined.generation, joined.member))
        assert joined.found() == 1
        joined.replace_consumer()
        task.store("kv").put("a", "2")
        with pytest.raises(Fenced):
            task.commit({(joined.source.topic, 0): 2}, member=(joined.generation, joined.member))
        assert joined.found() == 1, "the one that has the partition now begins where the last good commit ended"
    joined.close()
