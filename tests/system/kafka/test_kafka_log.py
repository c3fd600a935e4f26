"""The Kafka log on a real broker: every tail of a partition, transactions, fencing, flow, limits, a broker that dies.

The contract of every log is in `contract/`; members are in `test_kafka_group.py`, settings in `test_kafka_settings.py`.

Rules of this file: topics and groups of a test carry a name of its own. Waits are for a condition, with a bound.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from standfast.ops.tools.broker import Broker
from standfast.replication.columns import RecordColumns
from standfast.replication.fetch_limits import LIMITS
from standfast.replication.kafka import cluster as kafka_cluster
from standfast.replication.kafka.feed import FeedEvent, Piece, PythonFeed
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.kafka.reader import KafkaReader
from standfast.replication.log import Committed, GroupCommit, Outgoing, Record, TopicPolicy
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.store import serde
from standfast.store.errors import BadConfig, Fenced, InvalidRequest, StateLost, Unavailable
from standfast.store.specs import KeyValueStore
from standfast.stream.session.session import Session

pytestmark = [pytest.mark.kafka(2), pytest.mark.slow]

COMPACT_NOW = TopicPolicy(
    frozenset({"compact"}),
    delete_retention_ms=0,
    extra={"min.cleanable.dirty.ratio": "0.001", "segment.ms": "100", "max.compaction.lag.ms": "100"},
)
WAIT_S = 30.0


@pytest.fixture
def log(kafka_log: KafkaLog) -> KafkaLog:
    return kafka_log


@pytest.fixture
def part(log: KafkaLog) -> TopicPartition:
    """Partition 0 of a new topic with one partition that keeps everything."""
    return topic(log)


def topic(log: KafkaLog, policy: TopicPolicy | None = None, partitions: int = 1) -> TopicPartition:
    name = f"t-{uuid.uuid4().hex[:8]}"
    log.admin.create_topic(name, partitions, policy or TopicPolicy())
    return TopicPartition(name, 0)


def out(*values: str, key: str = "k", at_ms: int = 0) -> list[Outgoing]:
    stamp = at_ms or int(time.time() * 1_000)
    return [Outgoing(key.encode(), value.encode(), stamp) for value in values]


def until(reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        time.sleep(0.02)


def read_to_end(log: KafkaLog, source: TopicPartition, position: int = 0) -> tuple[list[Record], int]:
    """All records up to the first report of the end, and the next offset there."""
    reader = log.reader()
    reader.assign({source: position})
    found: list[Record] = []
    deadline = time.monotonic() + WAIT_S
    try:
        while True:
            assert time.monotonic() < deadline, f"no end of {source} after {len(found)} records"
            for fetched in reader.fetch(1_000, 200):
                found += fetched.records
                if fetched.at_end:
                    return found, fetched.next_offset
    finally:
        reader.close()


def values(log: KafkaLog, source: TopicPartition, position: int = 0) -> list[bytes | None]:
    return [record.value for record in read_to_end(log, source, position)[0]]


def raw_transaction(address: str, source: TopicPartition, *texts: str, timeout_ms: int = 2_000) -> Producer:
    """A transaction of another client that is still open; its records are in the log."""
    name = f"raw-{uuid.uuid4().hex}"
    producer = Producer({"bootstrap.servers": address, "transactional.id": name, "transaction.timeout.ms": timeout_ms})
    producer.init_transactions(10)
    producer.begin_transaction()
    for text in texts:
        producer.produce(source.topic, text.encode(), b"k", source.partition)
    assert producer.flush(10) == 0
    return producer


# -- tails ------------------------------------------------------------------------------------------------------------


def test_empty_topic_ends_at_once(log: KafkaLog, part: TopicPartition) -> None:
    assert read_to_end(log, part) == ([], 0)


def test_position_steps_over_the_marker_of_a_committed_transaction(log: KafkaLog, part: TopicPartition) -> None:
    writer = log.writer(f"w-{part.topic}", group=part.topic, owner="a")
    position = writer.transact({part: out("a", "b")})
    assert position == {part: 2}
    until(lambda: log.reader().bounds([part])[part].end == 3, "the marker is written")
    found, end = read_to_end(log, part)
    assert [record.offset for record in found] == [0, 1]
    assert end == 3
    assert read_to_end(log, part, 2) == ([], 3)


def test_aborted_records_are_stepped_over_and_never_seen(
    log: KafkaLog, part: TopicPartition, kafka_address: str
) -> None:
    log.producer().append({part: out("a")})
    raw_transaction(kafka_address, part, *(f"aborted {number}" for number in range(500))).abort_transaction(10)
    until(lambda: log.reader().bounds([part])[part].end == 502, "the transaction is aborted")
    found, end = read_to_end(log, part)
    assert ([record.value for record in found], end) == ([b"a"], 502)
    assert read_to_end(log, part, 100) == ([], 502)


def test_open_transaction_holds_the_end_back_and_its_records_come_with_the_commit(
    log: KafkaLog, part: TopicPartition, kafka_address: str
) -> None:
    log.producer().append({part: out("a")})
    transaction = raw_transaction(kafka_address, part, "b")
    log.producer().append({part: out("c")})
    assert log.reader().bounds([part]) == {part: Bounds(0, 1)}
    reader = log.reader()
    reader.assign({part: 0})
    [first] = reader.fetch(10, 5_000)
    first = first if first.at_end else reader.fetch(10, 5_000)[0]
    assert (first.next_offset, first.at_end) == (1, True)
    transaction.commit_transaction(10)
    found: list[Record] = []
    until(lambda: found.extend(r for f in reader.fetch(10, 100) for r in f.records) or len(found) == 2, "b and c")
    assert [record.value for record in found] == [b"b", b"c"]


def test_killed_writer_holds_the_end_back_only_until_its_transaction_times_out(
    log: KafkaLog, part: TopicPartition, kafka_address: str
) -> None:
    transaction = raw_transaction(kafka_address, part, "lost")
    log.producer().append({part: out("a")})
    began = time.monotonic()
    until(lambda: values(log, part) == [b"a"], "the open transaction times out")
    assert time.monotonic() - began < 10
    del transaction


def test_position_over_an_open_transaction_is_not_out_of_range(
    log: KafkaLog, part: TopicPartition, kafka_address: str
) -> None:
    transaction = raw_transaction(kafka_address, part, "b")
    after = log.producer().append({part: out("c")})[part]
    assert log.reader().bounds([part])[part].end < after
    reader = log.reader()
    reader.assign({part: after})
    assert reader.fetch(10, 1_500) == []
    transaction.commit_transaction(10)
    log.producer().append({part: out("d")})
    found: list[Record] = []
    until(lambda: found.extend(r for f in reader.fetch(10, 100) for r in f.records) or bool(found), "d")
    assert [record.value for record in found] == [b"d"]


def compacted(log: KafkaLog, texts: list[str | None]) -> TopicPartition:
    """A topic whose compaction left at most the last of these values of one key, and a last record of another."""
    source = topic(log, COMPACT_NOW)
    producer = log.producer()
    for text in texts:
        value = None if text is None else text.encode()
        producer.append({source: [Outgoing(b"k", value, int(time.time() * 1_000))]})
        time.sleep(0.12)  # segments are rolled by age

    def squeezed() -> bool:
        # Compaction looks again only after a new record; a tombstone goes with the second look.
        producer.append({source: out("tick", key="other")})
        time.sleep(0.2)
        found = read_to_end(log, source)[0]
        return sum(record.key == b"k" for record in found) == (texts[-1] is not None)

    until(squeezed, "compaction")
    producer.append({source: out("last", key="other")})
    return source


@pytest.mark.parametrize("texts", [["1", "2", "3", "4", "5"], ["1", "2", None]])
def test_compacted_topic_is_read_to_its_end_from_anywhere(log: KafkaLog, texts: list[str | None]) -> None:
    source = compacted(log, texts)
    wanted = log.reader().bounds([source])[source].end
    for position in range(wanted + 1):
        found, end = read_to_end(log, source, position)
        assert end == wanted
        assert all(record.offset >= position for record in found)
        assert position == wanted or found[-1].value == b"last"


def test_topic_whose_last_records_are_all_aborted_and_compacted_is_read_to_its_end(
    log: KafkaLog, kafka_address: str
) -> None:
    source = compacted(log, ["1", "2"])
    before = log.reader().bounds([source])[source].end
    raw_transaction(kafka_address, source, "x", "y").abort_transaction(10)
    until(lambda: log.reader().bounds([source])[source].end == before + 3, "the abort")
    assert read_to_end(log, source)[0][-1].value == b"last"


def test_records_deleted_at_the_head_are_out_of_range_and_an_emptied_log_ends(
    log: KafkaLog, part: TopicPartition
) -> None:
    end = log.producer().append({part: out(*"abcde")})[part]
    log.admin.delete_records({part: end})
    assert log.reader().bounds([part]) == {part: Bounds(5, 5)}
    assert read_to_end(log, part, 5) == ([], 5)
    reader = log.reader()
    reader.assign({part: 3})
    with pytest.raises(StateLost, match=r"position 3 .* begin 5 to end 5"):
        reader.fetch(10, 5_000)


def test_retention_that_empties_the_log_leaves_a_begin_at_its_end(log: KafkaLog) -> None:
    source = topic(log, TopicPolicy(retention_ms=100, extra={"segment.ms": "100"}))
    log.producer().append({source: out("old", at_ms=1_000)})
    until(lambda: log.reader().bounds([source])[source].begin == 1, "retention")
    assert read_to_end(log, source, 1) == ([], 1)


def test_topic_made_anew_with_more_records_is_not_taken_for_the_old_one(log: KafkaLog, part: TopicPartition) -> None:
    log.producer().append({part: out(*"abc")})
    reader = log.reader()
    reader.assign({part: 0})
    assert sum(len(fetched.records) for fetched in reader.fetch(10, 5_000)) == 3
    log.admin.delete_topic(part.topic)
    log.admin.create_topic(part.topic, 1, TopicPolicy())
    log.producer().append({part: out(*"uvwxyz")})
    with pytest.raises(StateLost, match=str(part)) as caught:
        for _ in range(100):
            reader.fetch(10, 100)
    assert caught.value.reason == "topic-recreated"


# -- flow -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_pauses_and_seeks_at_random_lose_and_repeat_nothing(log: KafkaLog, seed: int) -> None:
    first = topic(log, partitions=3)
    sources = [TopicPartition(first.topic, number) for number in range(3)]
    count = 20_000
    for source in sources:
        log.producer().append({source: out(*map(str, range(count)))})
    chance = random.Random(seed)
    reader: KafkaReader = log.reader()
    reader.assign(dict.fromkeys(sources, 0))
    expected = dict.fromkeys(sources, 0)
    paused: set[TopicPartition] = set()
    while any(position < count for position in expected.values()):
        source = chance.choice(sources)
        if chance.random() < 0.4:
            (paused.discard if source in paused else paused.add)(source)
            (reader.pause if source in paused else reader.resume)([source])
        elif chance.random() < 0.1:
            expected[source] = chance.randrange(max(expected[source] - 500, 0), min(expected[source] + 2_000, count))
            reader.seek(source, expected[source])
        for fetched in reader.fetch(chance.choice([1, 10, 700, 5_000]), 20):
            assert fetched.source not in paused
            offsets = [record.offset for record in fetched.records]
            assert offsets == list(range(expected[fetched.source], expected[fetched.source] + len(offsets)))
            expected[fetched.source] = fetched.next_offset
        assert reader.assignment() == expected
        if len(paused) == 3:
            reader.resume(sources)
            paused.clear()
    reader.close()


def test_paused_partition_does_not_fill_memory_nor_stop_the_others(log: KafkaLog) -> None:
    first = topic(log, partitions=2)
    other = TopicPartition(first.topic, 1)
    many = out(*map(str, range(30_000)))
    log.producer().append({first: many, other: many})
    reader = log.reader()
    reader.assign({first: 0, other: 0})
    reader.pause([first])
    position = 0
    deadline = time.monotonic() + WAIT_S
    while position < 30_000:
        assert time.monotonic() < deadline
        for fetched in reader.fetch(1_000, 100):
            assert fetched.source == other
            position = fetched.next_offset
    assert reader._slots[first].count <= LIMITS.slot_records
    reader.resume([first])
    assert reader.fetch(1, 1_000)[0].records[0].offset == 0


# -- writing ----------------------------------------------------------------------------------------------------------


def test_value_over_the_limit_of_the_topic_is_refused_by_name_and_leaves_nothing(log: KafkaLog) -> None:
    source = topic(log, TopicPolicy(extra={"max.message.bytes": "5000"}))
    writer = log.writer(f"w-{source.topic}", group=source.topic, owner="a")
    large = [*out("small"), Outgoing(b"k", b"x" * 20_000, 1_000)]
    with pytest.raises(InvalidRequest, match=rf"{source}.*max\.message\.bytes"):
        writer.transact({source: large}, GroupCommit(source.topic, {source: Committed(7)}))
    assert log.group(source.topic).committed() == {}
    with pytest.raises(InvalidRequest, match=str(source)):
        writer.append({source: [Outgoing(b"k", b"x" * 20_000, 1_000)]})
    writer.transact({source: out("after")})
    until(lambda: values(log, source) == [b"after"], "the next transaction")


def test_null_key_for_a_compacted_topic_is_refused_and_the_transaction_leaves_nothing(log: KafkaLog) -> None:
    source = topic(log, TopicPolicy(frozenset({"compact"})))
    writer = log.writer(f"w-{source.topic}", group=source.topic, owner="a")
    with pytest.raises(InvalidRequest, match=rf"{source}.*without a key"):
        writer.transact({source: [*out("a"), Outgoing(None, b"v", 1)]})
    writer.transact({source: out("after")})
    until(lambda: values(log, source) == [b"after"], "the next transaction")


def test_zombie_writes_never_show_and_it_is_told_who_fenced_it(
    log: KafkaLog, part: TopicPartition, kafka_address: str
) -> None:
    name = f"w-{part.topic}"
    zombie = log.writer(name, group=part.topic, owner="a")
    zombie.transact({part: out("a")})
    other = KafkaLog(f"kafka://{kafka_address}")
    owner = other.writer(name, group=part.topic, owner="b")
    owner.transact({part: out("b")})
    for call in (zombie.transact, zombie.append, zombie.transact):
        with pytest.raises(Fenced, match=rf"epoch {zombie.epoch} was fenced by epoch {owner.epoch} of 'b'"):
            call({part: out("lost")})
    owner.transact({part: out("c")})
    until(lambda: values(log, part) == [b"a", b"b", b"c"], "b and c")
    other.close()


def test_new_writer_aborts_what_the_old_one_left_open(log: KafkaLog, part: TopicPartition, kafka_address: str) -> None:
    name = f"w-{part.topic}"
    old = Producer({"bootstrap.servers": kafka_address, "transactional.id": name, "transaction.timeout.ms": 60_000})
    old.init_transactions(10)
    old.begin_transaction()
    old.produce(part.topic, b"lost", b"k", 0)
    assert old.flush(10) == 0
    writer = log.writer(name, group=part.topic, owner="b")
    # No wait here: a restore takes this end, and it must be the true one.
    assert log.reader().bounds([part])[part].end == 2
    writer.transact({part: out("b")})
    until(lambda: values(log, part) == [b"b"], "b")


def test_offsets_in_a_transaction_that_does_not_end_are_unavailable_and_say_why(
    log: KafkaLog, part: TopicPartition, kafka_address: str
) -> None:
    name = part.topic
    log.group(name).commit({part: Committed(1)})
    stuck = raw_transaction(kafka_address, part, timeout_ms=60_000)
    stuck.send_offsets_to_transaction([KafkaPartition(*part, 9)], metadata_of(name, kafka_address), 10)
    with closing(KafkaLog(f"kafka://{kafka_address}?transaction.timeout.ms=1000")) as hasty:
        with pytest.raises(Unavailable, match=f"offsets of group '{name}' are in a transaction .*find-hanging"):
            hasty.group(name).committed([part])
        stuck.abort_transaction(10)
        assert hasty.group(name).committed([part]) == {part: Committed(1)}


def test_task_opens_while_a_transaction_of_another_task_stays_open(
    log: KafkaLog, part: TopicPartition, kafka_address: str, tmp_path: Path
) -> None:
    other = topic(log, partitions=2)
    log.group(part.topic).commit({part: Committed(1), other: Committed(2)})
    stuck = raw_transaction(kafka_address, part, timeout_ms=60_000)
    other_task = KafkaPartition(other.topic, 1, 9)
    stuck.send_offsets_to_transaction([other_task], metadata_of(part.topic, kafka_address), 10)
    store = KeyValueStore("kv", serde.string, serde.string)
    with Session(
        part.topic, log=f"kafka://{kafka_address}", state_dir=tmp_path, stores=[store], partitions=2
    ) as session:
        session.assign(active=[0])
        session.wait_ready(10)  # a request that waits for the transaction takes twelve seconds
        assert session.task(0).source_offsets() == {part: 1, other: 2}
    stuck.abort_transaction(10)


def metadata_of(group: str, address: str) -> Any:
    with closing(Consumer({"bootstrap.servers": address, "group.id": group})) as consumer:
        return consumer.consumer_group_metadata()


def test_offsets_are_committed_beside_a_consumer_that_is_a_member(log: KafkaLog, part: TopicPartition) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": log.address.removeprefix("kafka://"),
            "group.id": part.topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([part.topic])
    until(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()), "the consumer has its partition")
    group = log.group(part.topic)
    group.commit({part: Committed(0, "first")})
    group.commit({part: Committed(3, "by hand")})
    writer = log.writer(f"w-{part.topic}", group=part.topic, owner="a")
    assert group.committed() == {part: Committed(3, "by hand")}
    writer.transact({part: out("a")}, GroupCommit(part.topic, {part: Committed(4, "cut")}))
    assert group.committed() == {part: Committed(4, "cut")}
    consumer.close()


# -- a broker that dies -----------------------------------------------------------------------------------------------


def test_answer_that_never_comes_is_unavailable(kafka_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = KafkaLog(f"kafka://{kafka_address}")._cluster
    monkeypatch.setattr(kafka_cluster, "ANSWER_EXTRA_S", 0.0)
    # Only now: a busy machine may take longer to connect.
    cluster._timeout_ms = 100
    with pytest.raises(Unavailable, match="asking: no answer within 100 ms"):
        cluster.wait("asking", Future())


@pytest.mark.long
def test_writers_and_readers_go_on_when_the_broker_is_back(restartable_broker: Broker) -> None:
    log = KafkaLog(f"kafka://{restartable_broker.address}?timeout.ms=3000")
    source = topic(log)
    writer = log.writer("w", group="app", owner="a")
    reader = log.reader()
    reader.assign({source: 0})
    found: list[bytes | None] = []

    def read() -> None:
        found.extend(record.value for fetched in reader.fetch(100, 50) for record in fetched.records)

    written = []
    for number in range(5):
        writer.transact({source: out(f"{number}")}, GroupCommit("app", {source: Committed(number)}))
        written.append(f"{number}".encode())
    until(lambda: read() or found == written, "the first five")
    restartable_broker.kill()
    began = time.monotonic()
    with pytest.raises(Unavailable, match=restartable_broker.address):
        writer.transact({source: out("nobody hears")})
    with pytest.raises(Unavailable, match=restartable_broker.address):
        log.reader().bounds([source])
    assert time.monotonic() - began < 20
    restartable_broker.start()
    began = time.monotonic()
    again = None
    while again is None:
        try:
            again = writer.transact({source: out("5")}, GroupCommit("app", {source: Committed(5)}))
        except Unavailable:
            assert time.monotonic() - began < WAIT_S
    written.append(b"5")

    def read_on() -> bool:
        try:
            read()
        except Unavailable:
            pass
        return found == written

    until(read_on, f"the sixth, and nothing twice: {found}")
    assert log.group("app").committed() == {source: Committed(5)}
    log.close()


def test_records_that_the_client_gives_beside_an_error_of_another_partition_are_kept(log: KafkaLog) -> None:
    part = topic(log, partitions=2)
    other = TopicPartition(part.topic, 1)
    reader = log.reader()
    reader.assign({part: 0, other: 0})
    refused = FeedEvent(other, KafkaError(KafkaError.UNKNOWN), 0)
    first, second = (Piece(part, RecordColumns([at], [1_000 + at], [b"k"], [b"v%d" % at])) for at in (0, 1))
    with pytest.raises(Unavailable, match=str(other)):
        reader._ingest([first, refused, second])
    # The end of the empty topic may come as a batch of its own.
    found = [record for batch in reader.fetch_ready(10) for record in batch.records]
    assert [(record.offset, record.value) for record in found] == [(0, b"v0"), (1, b"v1")]


def test_feed_of_the_python_client_keeps_the_order_of_records_and_events(log: KafkaLog) -> None:
    feed = PythonFeed(log._cluster, narrow=False)
    error = KafkaError(KafkaError.UNKNOWN)

    def message(partition: int, offset: int, **more: Any) -> Message:
        return Message(topic="t", partition=partition, offset=offset, timestamp=(1, offset), **more)

    news = feed._news(
        [message(0, 0, key=b"a"), message(1, 5, key=b"b"), message(0, 1, error=error), message(0, 1, value=b"v")]
    )
    feed.close()
    zero, one = TopicPartition("t", 0), TopicPartition("t", 1)
    assert [(each.source, type(each)) for each in news] == [
        (zero, Piece),
        (one, Piece),
        (zero, FeedEvent),
        (zero, Piece),
    ]
    assert [each.records.offsets[0] for each in news if isinstance(each, Piece)] == [0, 5, 1]


def test_permission_that_a_partition_lacks_is_told_at_each_fetch_until_it_is_unassigned(log: KafkaLog) -> None:
    part = topic(log, partitions=2)
    other = TopicPartition(part.topic, 1)
    reader = log.reader()
    reader.assign({part: 0, other: 0})
    error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)  # the client reports it once
    reader._ingest([FeedEvent(other, error, 0)])
    for _ in range(2):
        with pytest.raises(BadConfig, match=rf"{other}: User:ANONYMOUS has no permission READ") as refused:
            reader.fetch(10)
        assert refused.value.sources == (other,)
    reader.remove([other])
    log.producer().append({part: [Outgoing(b"k", b"v", 1)]})
    offsets: list[int] = []  # a fetch may also end with no more than the end of the partition

    def told() -> bool:
        offsets.extend(one.offset for batch in reader.fetch(10, 1_000) for one in batch.records)
        return bool(offsets)

    until(told, "the record of the other partition")
    assert offsets == [0]
