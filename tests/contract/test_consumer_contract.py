"""A consumer of Kafka's protocol beside a log: the real client's on a broker, and the simulator's stand-in.

Rules of this file: the behaviour that an external consumer of the product relies on. Both
protocols of a broker, and both kinds of assignors of the stand-in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition

from simulator.calls import DirectCalls
from simulator.log import SimLog, SimLogClient
from simulator.log.consumer import SimConsumer
from standfast.replication.log import ConsumerMember
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store.clock import ManualClock
from standfast.store.errors import Fenced, Unavailable
from support.consumers import Joined, poll_until

Join = Callable[..., Joined]
PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {"partition.assignment.strategy": "range", "heartbeat.interval.ms": 300},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky", "heartbeat.interval.ms": 300},
    "consumer": {"group.protocol": "consumer"},
}
ON_BROKER = [pytest.param(("broker", name), id=name, marks=[pytest.mark.kafka, pytest.mark.slow]) for name in PROTOCOLS]
STOOD_IN = [pytest.param(("simulator", name), id=f"simulated_{name}") for name in PROTOCOLS]


@pytest.fixture(params=[*ON_BROKER, *STOOD_IN])
def join(request: pytest.FixtureRequest) -> Iterator[Join]:
    where, protocol = request.param
    made: list[Joined] = []

    def begin(**given: Any) -> Joined:
        settings = PROTOCOLS[protocol]
        if where == "broker":
            address = request.getfixturevalue("kafka_address")
            at: Any = (open_log(f"kafka://{address}"), Consumer, {**settings, "bootstrap.servers": address})
        else:
            clock = ManualClock(1_356_998_400_000)
            data = SimLog("world", clock, DirectCalls(clock), style="kafka")
            at = SimLogClient(data), lambda given: SimConsumer(given, data), settings
        made.append(Joined(*at, **given))
        return made[-1]

    yield begin
    for one in made:
        one.close()


@pytest.fixture
def joined(join: Join) -> Joined:
    return join()


def own(consumer: Any) -> list[int]:
    return sorted(one.partition for one in consumer.assignment())


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
        ConsumerMember(joined.generation, "stranger"),
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


def test_offsets_alone_are_taken_of_the_present_member_and_of_no_other_one(joined: Joined) -> None:
    """At least once, the broker refuses plain commits from outside the group; it checks a transaction of offsets."""
    joined.commit_offsets(3, ConsumerMember(joined.generation, joined.member))
    assert joined.found() == 3
    for member in (
        ConsumerMember(joined.generation - 1, joined.member),
        ConsumerMember(joined.generation + 1, joined.member),
        ConsumerMember(joined.generation, "stranger"),
    ):
        with pytest.raises(Fenced, match="moved on"):
            joined.commit_offsets(9, member)
    assert joined.found() == 3
    joined.commit_offsets(4, ConsumerMember(joined.generation, joined.member))
    joined.commit_offsets(5, None)
    assert joined.found() == 5


@pytest.mark.parametrize("join", [*ON_BROKER[:2], *STOOD_IN[:2]], indirect=True)
def test_member_of_an_earlier_generation_commits_nothing(join: Join) -> None:
    """Of the classic protocol: under its own a broker takes offsets of partitions that have stayed with the member."""
    joined = join(partitions=2)
    joined.join(joined.consumer)
    with pytest.raises(Fenced, match="moved on"):
        joined.commit(1, ConsumerMember(joined.generation, joined.member))
    assert joined.found() is None


def test_consumers_share_the_partitions_and_one_that_leaves_gives_its_own_back(join: Join) -> None:
    joined = join(partitions=4)
    first = joined.consumer
    assert own(first) == [0, 1, 2, 3]
    second = joined.join(first)
    poll_until([first, second], lambda: len(own(first)) == len(own(second)) == 2, "each has two partitions")
    assert sorted(own(first) + own(second)) == [0, 1, 2, 3]
    second.close()
    poll_until([first], lambda: own(first) == [0, 1, 2, 3], "the first has all again")


def test_records_come_from_the_committed_offset_on_and_else_from_the_beginning(join: Join) -> None:
    joined = join(partitions=2)
    joined.feed("a", "b", "c")
    joined.feed("x", partition=1)
    assert joined.read(4) == [(0, 0, "a"), (0, 1, "b"), (0, 2, "c"), (1, 0, "x")]
    joined.commit(2, None)
    joined.replace_consumer()
    assert joined.read(2) == [(0, 2, "c"), (1, 0, "x")]


def test_paused_partition_gives_no_record_until_it_is_resumed(join: Join) -> None:
    joined = join(partitions=2)
    paused = [KafkaPartition(*joined.source)]
    joined.consumer.pause(paused)
    joined.feed("a")
    joined.feed("x", partition=1)
    assert joined.read(1) == [(1, 0, "x")]
    assert joined.consumer.consume(1, 0.3) == []
    joined.consumer.resume(paused)
    assert joined.read(1) == [(0, 0, "a")]


def test_position_is_behind_the_last_record_since_an_assignment_or_a_seek(joined: Joined) -> None:
    at = [KafkaPartition(*joined.source)]
    assert [one.offset for one in joined.consumer.position(at)] == [OFFSET_INVALID]
    joined.feed("a", "b", "c")
    joined.read(2)
    assert [one.offset for one in joined.consumer.position(at)] == [2]
    joined.consumer.seek(KafkaPartition(*joined.source, 1))
    assert [one.offset for one in joined.consumer.position(at)] == [OFFSET_INVALID]
    assert joined.read(2) == [(0, 1, "b"), (0, 2, "c")]


def test_no_seek_before_the_partition_is_assigned(joined: Joined) -> None:
    joined.consumer.close()
    consumer = joined.consumer = joined.join(on_assign=lambda consumer, partitions: refused(consumer, joined.source))
    assert own(consumer) == [0]


def refused(consumer: Any, at: TopicPartition) -> None:
    with pytest.raises(KafkaException):
        consumer.seek(KafkaPartition(*at, 0))


def test_callbacks_assign_and_give_back_all_or_what_changes(join: Join) -> None:
    joined = join(partitions=2)
    told: list[tuple[str, list[int]]] = []

    def tell(kind: str) -> Callable[[Any, list[Any]], None]:
        return lambda consumer, partitions: told.append((kind, sorted(one.partition for one in partitions)))

    joined.consumer.close()
    first = joined.consumer = joined.join(on_assign=tell("assign"), on_revoke=tell("revoke"))
    second = joined.join(first)
    poll_until([first, second], lambda: len(own(first)) == len(own(second)) == 1, "each has one partition")
    changes = [one for one in told if one[1]]
    assert changes[0] == ("assign", [0, 1])
    eager = [("revoke", [0, 1]), ("assign", own(first))]
    assert changes[1:] in (eager, [("revoke", own(second))])


def test_error_of_a_callback_comes_out_of_the_poll_and_the_partitions_are_assigned(joined: Joined) -> None:
    def fails(consumer: Any, partitions: list[Any]) -> None:
        raise Unavailable("no answer")

    joined.consumer.close()
    with pytest.raises(Unavailable, match="no answer"):
        joined.join(on_assign=fails)
    consumer = joined.consumer = joined.last
    poll_until([consumer], lambda: own(consumer) == [0], "it has the partition")
    joined.feed("a")
    assert joined.read(1) == [(0, 0, "a")]
