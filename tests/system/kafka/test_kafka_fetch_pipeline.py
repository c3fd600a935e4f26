"""The fetch pipeline on a real broker: a slow lane delays no other, errors find their lane, the end without a broker.

Rules of this file: one broker serves all tests but the one that kills its own; topics are the test's own.
"""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import closing

import pytest

from standfast.ops.tools.broker import Broker
from standfast.replication.credits import CreditLimits
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.fetch_pipeline import FetchPipeline
from standfast.store.errors import StateLost, Unavailable, UnknownStore
from support.lanes import WAIT_MS, drain

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

COUNT = 4_000
LIMITS = CreditLimits(floating_batches=2, queue_batches_high=3, queue_batches_low=1)


@pytest.fixture
def log(kafka_log: KafkaLog) -> KafkaLog:
    return kafka_log


def filled(log: KafkaLog, partitions: int) -> list[TopicPartition]:
    """A new topic with COUNT records in each partition."""
    topic = f"lanes-{uuid.uuid4().hex[:8]}"
    log.admin.create_topic(topic, partitions, TopicPolicy())
    sources = [TopicPartition(topic, number) for number in range(partitions)]
    with closing(log.producer()) as producer:
        producer.append({source: [Outgoing(b"k%d" % n, b"v", 1_000 + n) for n in range(COUNT)] for source in sources})
    return sources


def test_slow_lane_on_kafka_holds_nobody_back_and_loses_nothing(log: KafkaLog) -> None:
    slow_part, quick_part = filled(log, 2)
    with closing(FetchPipeline(log, fetch_records_max=200, limits=LIMITS)) as pipeline:
        slow, quick = pipeline.lane("standby"), pipeline.lane("restore")
        slow.add({slow_part: 0})
        quick.add({quick_part: 0})
        assert drain(quick, {quick_part: COUNT}) == {quick_part: list(range(COUNT))}
        held = pipeline.statistics().credits.partitions[slow_part]
        assert held.backlog + held.in_hand <= 8
        assert slow.assignment() == {slow_part: 0}
        assert drain(slow, {slow_part: COUNT}) == {slow_part: list(range(COUNT))}
        slow.seek(slow_part, COUNT - 5)
        assert drain(slow, {slow_part: COUNT}) == {slow_part: list(range(COUNT - 5, COUNT))}


def test_errors_on_kafka_reach_the_lane_that_they_are_about_and_the_other_goes_on(log: KafkaLog) -> None:
    lost, gone = filled(log, 1) + filled(log, 1)
    (kept,) = filled(log, 1)
    with closing(FetchPipeline(log, fetch_records_max=200, limits=LIMITS)) as pipeline:
        restore, standby, source = (pipeline.lane(name) for name in ("restore", "standby", "source"))
        log.admin.delete_records({lost: COUNT - 10})
        restore.add({lost: 5})
        standby.add({gone: 0})
        assert drain(standby, {gone: COUNT}) == {gone: list(range(COUNT))}
        with pytest.raises(StateLost, match=f"{lost.topic}-0: position 5 is outside"):
            drain(restore, {lost: COUNT})
        source.add({kept: 0})
        log.admin.delete_topic(gone.topic)
        assert drain(source, {kept: COUNT}) == {kept: list(range(COUNT))}
        with pytest.raises((UnknownStore, StateLost), match=gone.topic):
            until_error(standby)
        restore.seek(lost, COUNT - 10)
        assert drain(restore, {lost: COUNT}) == {lost: list(range(COUNT - 10, COUNT))}
        assert source.fetch(1) == []


def until_error(lane: object) -> None:
    deadline = time.monotonic() + WAIT_MS / 1_000
    while time.monotonic() < deadline:
        lane.fetch(1, 50)  # type: ignore[attr-defined]


@pytest.mark.long
def test_pipeline_closes_within_its_deadline_without_the_broker_and_leaves_no_thread(
    restartable_broker: Broker,
) -> None:
    log = KafkaLog(f"kafka://{restartable_broker.address}?timeout.ms=2000")
    sources = filled(log, 2)
    pipeline = FetchPipeline(log, fetch_records_max=100)
    lane = pipeline.lane("restore")
    lane.add(dict.fromkeys(sources, 0))
    lane.fetch(10, WAIT_MS)
    restartable_broker.kill()
    with pytest.raises(Unavailable):
        other = pipeline.lane("source")
        other.add({sources[0]: 0})
    began = time.monotonic()
    pipeline.close()
    assert time.monotonic() - began < 10
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("standfast-fetch")]
    log.close()
