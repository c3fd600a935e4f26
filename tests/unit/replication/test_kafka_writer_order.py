"""The order in which a Kafka writer gives offsets and records to its client, and when it waits for no more."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, cast

import pytest

from standfast.replication.kafka.cluster import Cluster
from standfast.replication.kafka.producer import Delivered
from standfast.replication.kafka.writer import SETTLE_MS, Fence, KafkaWriter
from standfast.replication.log import Committed, GroupCommit, Outgoing
from standfast.replication.offsets import TopicPartition
from standfast.replication.record_limits import TopicLimits
from standfast.store.errors import Corruption

AT, SOURCE = TopicPartition("out", 0), TopicPartition("in", 0)
BATCH = {AT: [Outgoing(b"k", b"v", 1)]}
COMMIT = GroupCommit("g", {SOURCE: Committed(1)})


class Noting:
    """A client that notes its calls, and acknowledges every record."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    left = 0  # records and events that the client holds after its first flush

    def __len__(self) -> int:
        return self.left if self.calls.count("flush") < 2 else 0

    def produce(self, source: TopicPartition, columns: Any, start: int, wait_ms: int) -> int:
        self.calls.append("records")
        return len(columns)

    def delivered(self) -> Mapping[TopicPartition, Delivered]:
        return {AT: Delivered(1, None, 0)} if "records" in self.calls else {}

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.calls.append(name)


class OneClient:
    """A cluster without brokers: it makes this one client."""

    timeout_ms, timeout_s = 1_000, 1.0

    def __init__(self, client: Noting) -> None:
        self.client = client
        self.limits = TopicLimits()
        self.limits.note(AT.topic, None)

    def producer(self) -> Noting:
        return self.client

    def transactional(self, name: str) -> Noting:
        return self.client

    def connected(self, client: Noting) -> Noting:
        return client

    def released_on_error(self, client: Noting) -> Any:
        return nullcontext()

    def run(self, what: str, call: Any, *needs: Any) -> Any:
        return call()

    def bounds(self, partitions: Any, *, committed: bool) -> dict[Any, Any]:
        return {}

    def check_new(self, partitions: Any, operations: Any) -> None:
        """Every partition exists."""

    def release(self, *clients: Any) -> None:
        """Nothing to destroy."""


class Clock:
    """The writer's clock."""

    def __init__(self) -> None:
        self.now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms


@pytest.mark.parametrize(
    ("after_ms", "order"),
    [(SETTLE_MS, ["records", "offsets", "flush"]), (SETTLE_MS - 1, ["offsets", "records", "flush"])],
    ids=["later", "at once"],
)
def test_records_go_out_before_the_offsets_unless_the_last_transaction_ended_a_moment_ago(
    after_ms: int, order: list[str]
) -> None:
    client, clock = Noting(), Clock()
    writer = KafkaWriter(cast("Cluster", OneClient(client)), Fence("id"), lambda group: b"", lambda one: None)
    writer._clock = cast("Any", clock)
    writer._ended_ms = 0
    clock.now_ms = 1_000
    writer.transact(BATCH, COMMIT)
    client.calls.clear()
    clock.now_ms += after_ms
    assert writer.transact(BATCH, COMMIT) == {AT: 1}
    assert client.calls == ["begin", *order, "commit"]


def test_offsets_alone_are_a_transaction_too() -> None:
    client = Noting()
    writer = KafkaWriter(cast("Cluster", OneClient(client)), Fence("id"), lambda group: b"", lambda one: None)
    assert writer.transact({}, COMMIT) == {}
    assert [one for one in client.calls if one != "flush"] == ["init_transactions", "begin", "offsets", "commit"]


def test_an_event_behind_the_last_acknowledgement_is_no_record_without_one() -> None:
    client = Noting()
    client.left = 1
    writer = KafkaWriter(cast("Cluster", OneClient(client)), Fence("id"), lambda group: b"", lambda one: None)
    assert writer.append(BATCH) == {AT: 1}
    assert client.calls == ["records", "flush", "flush"]


@pytest.mark.parametrize("transacts", [False, True])
def test_work_of_the_caller_is_done_between_the_records_and_the_wait_for_their_answers(transacts: bool) -> None:
    client = Noting()
    writer = KafkaWriter(cast("Cluster", OneClient(client)), Fence("id"), lambda group: b"", lambda one: None)
    write = writer.transact if transacts else writer.append
    write(BATCH, meanwhile=lambda: client.calls.append("work"))
    at = client.calls.index("work")
    assert client.calls[at - 1 : at + 1] in (["records", "work"], ["flush", "work"])
    assert "records" in client.calls[:at]
    assert "flush" in client.calls[at:]
    assert client.calls.count("work") == 1


@pytest.mark.parametrize("transacts", [False, True])
def test_work_of_the_caller_that_fails_fails_the_write_and_commits_nothing(transacts: bool) -> None:
    client = Noting()
    writer = KafkaWriter(cast("Cluster", OneClient(client)), Fence("id"), lambda group: b"", lambda one: None)
    write = writer.transact if transacts else writer.append

    def work() -> None:
        raise Corruption("no row of it can be read")

    with pytest.raises(Corruption) as failed:
        write(BATCH, meanwhile=work)
    assert ("abort" in client.calls, "commit" in client.calls) == (transacts, False)
    assert failed.value.in_doubt is not transacts, "records of an append are on their way, a transaction is aborted"
