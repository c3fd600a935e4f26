"""Source topics that grow under a running application: tasks without a restart, on both logs.

Rules of this file: the application runs as a user runs it, in a thread of its own; the test writes to the log and waits
for the expected result.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

import standfast as sf
from standfast.replication.log import Log, Outgoing, TopicPolicy
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.replication.topics.fixes import Fixes
from standfast.store.errors import BadConfig
from standfast.stream.runtime.source_discovery import SourceDiscovery
from support.apps import Running as ByHand
from support.apps import create, write
from support.sessions import Bench

TEXT = sf.serde.string
WAIT_S = 30.0
EVERY_MS = 100


class Place:
    """A log, and applications that run on it in threads."""

    def __init__(self, root: Path, address: str) -> None:
        self.root = root
        self.address = address
        self.log: Log = open_log(address)
        self.name = f"app-{uuid.uuid4().hex[:8]}"
        self.source = f"{self.name}-src"
        self.opened: list[Running] = []

    def create(self, topic: str, partitions: int) -> None:
        self.log.admin.create_topic(topic, partitions, TopicPolicy())

    def write(self, topic: str, partition: int, *keys: str, at_ms: int = 1_000) -> None:
        batch = [Outgoing(key.encode(), b"1", at_ms + number) for number, key in enumerate(keys)]
        self.log.producer().append({TopicPartition(topic, partition): batch})

    def run(self, make: Callable[[sf.App], object], directory: str = "a", **settings: Any) -> Running:
        self.opened.append(Running(self, make, directory, settings))
        return self.opened[-1]

    def partitions(self, topic: str) -> int:
        info = self.log.admin.describe_topic(topic)
        assert info is not None
        return info.partitions


class Running:
    """An application in a thread."""

    def __init__(
        self, place: Place, make: Callable[[sf.App], object], directory: str, settings: dict[str, Any]
    ) -> None:
        given: dict[str, Any] = {
            "discovery_interval_ms": EVERY_MS,
            "commit_interval_ms": 50,
            "restart_grace_ms": 0,  # the next instance has another directory
            **settings,
        }
        self.app = sf.App(place.name, log=place.address, state_dir=place.root / directory, **given)
        make(self.app)
        self.session = self.app.open()
        self.failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.app.run()
        except BaseException as error:
            self.failed.append(error)

    def active(self) -> set[str]:
        return {str(task_id) for task_id, task in self.session.all_tasks().items() if task.role == "active"}

    def rows(self, store: str, partition: int) -> dict[Any, Any]:
        try:
            return dict(self.session.read(store, partition).store.all())
        except sf.StandfastError:
            return {}

    def stop(self) -> None:
        self.app.stop()
        self._thread.join()
        assert not self.failed, self.failed


KAFKA = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=[*KAFKA, pytest.mark.long])])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "kafka":
        address = f"kafka://{request.getfixturevalue('kafka_address')}"
    else:
        address = f"sqlite:///{tmp_path}/log"
    made = Place(tmp_path, address)
    yield made
    for running in made.opened:
        running.app.stop()
    for running in made.opened:
        running.stop()
    made.log.close()


def until(reached: Callable[[], bool], what: str, *running: Running) -> None:
    deadline = time.monotonic() + WAIT_S
    while not reached():
        assert not any(one.failed for one in running), running[0].failed
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        time.sleep(0.01)


def counting(source: str) -> Callable[[sf.App], object]:
    return lambda app: app.stream(source, key=TEXT, value=TEXT).group_by_key().count("visits")


@pytest.mark.parametrize("place", ["embedded", pytest.param("kafka", marks=KAFKA)], indirect=True)
def test_new_partitions_are_read_from_their_beginning_by_tasks_of_their_own(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.create(place.source, 2)
    place.write(place.source, 0, "a", "a")
    running = place.run(counting(place.source), stores=[sf.KeyValueStore("visits", TEXT, sf.serde.int64)])
    until(lambda: running.rows("visits", 0) == {"a": 2}, "the first records", running)
    with caplog.at_level(logging.WARNING, logger="standfast"):
        place.log.admin.add_partitions(place.source, 4)
        place.write(place.source, 3, "d", "d", "d")  # before any member has discovered the partition
        until(lambda: running.rows("visits", 3) == {"d": 3}, "records of the new partition", running)
    assert running.active() == {"0_0", "0_1", "0_2", "0_3"}
    assert place.partitions(f"{place.name}-visits-changelog") == 4
    assert "4 partitions now, so there are new tasks 0_2, 0_3" in caplog.text
    place.write(place.source, 0, "a")
    place.write(place.source, 2, "c")
    until(lambda: running.rows("visits", 2) == {"c": 1} and running.rows("visits", 0) == {"a": 3}, "all", running)
    running.stop()
    again = place.run(counting(place.source), "b", stores=[sf.KeyValueStore("visits", TEXT, sf.serde.int64)])
    until(
        lambda: [again.rows("visits", number) for number in range(4)] == [{"a": 3}, {}, {"c": 1}, {"d": 3}],
        "all is restored elsewhere",
        again,
    )


def test_topic_that_grew_while_nobody_ran_has_its_tasks_at_the_next_start(place: Place) -> None:
    place.create(place.source, 1)
    place.write(place.source, 0, "a")
    stores = [sf.KeyValueStore("visits", TEXT, sf.serde.int64)]
    running = place.run(counting(place.source), stores=stores)
    until(lambda: running.rows("visits", 0) == {"a": 1}, "the first record", running)
    running.stop()
    place.log.admin.add_partitions(place.source, 2)
    place.write(place.source, 1, "b")
    with pytest.raises(BadConfig, match=r"has 1 partitions but the application has 2: .* let the topic grow: ") as off:
        place.run(counting(place.source), stores=stores, discovery_interval_ms=None)
    assert Fixes(place.log.address).grow(f"{place.name}-visits-changelog", 2) in str(off.value)
    assert place.partitions(f"{place.name}-visits-changelog") == 1
    again = place.run(counting(place.source), stores=stores)
    until(lambda: again.rows("visits", 0) == {"a": 1} and again.rows("visits", 1) == {"b": 1}, "both", again)


def test_topic_between_tasks_keeps_its_partitions_when_the_source_grows(place: Place) -> None:
    place.create(place.source, 1)
    between = f"{place.name}-by-key-repartition"

    def make(app: sf.App) -> object:
        stream = app.stream(place.source, key=TEXT, value=TEXT)
        return stream.repartition("by-key").group_by_key().count("visits")

    stores = [sf.KeyValueStore("visits", TEXT, sf.serde.int64)]
    running = place.run(make, stores=stores)
    place.write(place.source, 0, "a")
    until(lambda: running.rows("visits", 0) == {"a": 1}, "the first record", running)
    place.log.admin.add_partitions(place.source, 2)
    place.write(place.source, 1, "a", "b")
    until(lambda: running.rows("visits", 0) == {"a": 2, "b": 1}, "records of both partitions in one store", running)
    assert running.active() == {"0_0", "0_1", "1_0"}
    assert place.partitions(between) == 1
    running.stop()
    again = place.run(make, stores=stores)
    place.write(place.source, 1, "b")
    until(lambda: again.rows("visits", 0) == {"a": 2, "b": 2}, "after a restart", again)
    assert place.partitions(between) == 1


def test_watermarks_of_new_tasks_are_waited_for_downstream(place: Place) -> None:
    place.create(place.source, 1)

    def make(app: sf.App) -> object:
        stream = app.stream(place.source, key=TEXT, value=TEXT, watermarks=sf.BoundedDisorder(0), idle_after_ms=60_000)
        return stream.repartition("by-key").group_by_key().count("visits")

    running = place.run(make, stores=[sf.KeyValueStore("visits", TEXT, sf.serde.int64)], watermark_interval_ms=0)
    place.write(place.source, 0, "a", at_ms=10_000)
    until(lambda: running.rows("visits", 0) == {"a": 1}, "the first record", running)
    place.log.admin.add_partitions(place.source, 2)
    place.write(place.source, 1, "b", at_ms=20_000)
    until(lambda: running.rows("visits", 0) == {"a": 1, "b": 1}, "a record of the new partition", running)
    place.write(place.source, 0, "c", at_ms=30_000)
    until(lambda: "c" in running.rows("visits", 0), "a record of the old partition", running)


def test_two_instances_share_the_new_tasks_and_stand_by_for_them(place: Place) -> None:
    place.create(place.source, 1)
    stores = [sf.KeyValueStore("visits", TEXT, sf.serde.int64)]
    first = place.run(counting(place.source), "a", stores=stores, standby_replicas=1)
    second = place.run(counting(place.source), "b", stores=stores, standby_replicas=1)
    place.write(place.source, 0, "a")
    until(lambda: {"a": 1} in [one.rows("visits", 0) for one in (first, second)], "the first record", first, second)
    place.log.admin.add_partitions(place.source, 2)
    place.write(place.source, 1, "b")
    until(lambda: {"b": 1} in [one.rows("visits", 1) for one in (first, second)], "the new partition", first, second)
    until(
        lambda: all(len(one.session.all_tasks()) == 2 for one in (first, second)),
        "each task is held twice, active and standby",
        first,
        second,
    )
    owners = [one.active() for one in (first, second)]
    assert set.union(*owners) == {"0_0", "0_1"}
    assert not set.intersection(*owners)


def test_instance_that_does_not_look_for_partitions_finds_those_of_tasks_that_the_leader_gives_it(place: Place) -> None:
    place.create(place.source, 2)
    stores = [sf.KeyValueStore("visits", TEXT, sf.serde.int64)]
    leader = place.run(counting(place.source), "a", stores=stores)
    other = place.run(counting(place.source), "b", stores=stores, discovery_interval_ms=None)
    until(lambda: [len(one.active()) for one in (leader, other)] == [1, 1], "a task each", leader, other)
    place.log.admin.add_partitions(place.source, 4)
    for partition in range(4):
        place.write(place.source, partition, "k")
    until(lambda: [len(one.active()) for one in (leader, other)] == [2, 2], "two tasks each", leader, other)
    until(
        lambda: all({"k": 1} in [one.rows("visits", at) for one in (leader, other)] for at in range(4)),
        "a record of each partition",
        leader,
        other,
    )


def test_topic_that_is_processed_together_with_one_that_did_not_grow_waits_for_it(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    other = f"{place.name}-other"
    place.create(place.source, 1)
    place.create(other, 1)

    class Count(sf.Processor):
        def init(self, context: sf.Context) -> None:
            self.store = context.store("visits")

        def process(self, record: sf.Record) -> None:
            self.store.put(record.key, (self.store.get(record.key) or 0) + 1)

    def make(app: sf.App) -> None:
        for topic in (place.source, other):
            app.source(topic, key=TEXT, value=TEXT)(Count)

    with caplog.at_level(logging.WARNING, logger="standfast"):
        running = place.run(make, stores=[sf.KeyValueStore("visits", TEXT, sf.serde.int64)])
        place.log.admin.add_partitions(place.source, 2)
        place.write(place.source, 1, "b")
        until(lambda: f"but {other} has 1" in caplog.text, "it is told", running)
        assert running.active() <= {"0_0"}
        place.log.admin.add_partitions(other, 2)
        until(lambda: running.rows("visits", 1) == {"b": 1}, "both have grown", running)


# -- the application's own consumer ------------------------------------------------------------------------------------


@pytest.mark.kafka
@pytest.mark.slow
def test_consumer_that_is_given_a_new_partition_finds_its_store(kafka_address: str, tmp_path: Path) -> None:
    place = Place(tmp_path, f"kafka://{kafka_address}")
    place.create(place.source, 1)
    seen: dict[tuple[int, str], int] = {}
    stores = [sf.KeyValueStore("visits", TEXT, sf.serde.int64)]
    with sf.Session(
        place.name, log=place.address, state_dir=tmp_path / "a", stores=stores, placement="group"
    ) as session:
        settings = {"topic.metadata.refresh.interval.ms": 200, "auto.offset.reset": "earliest"}
        consumer = Consumer(session.consumer_settings(settings))
        consumer.subscribe([place.source], on_assign=session.on_assign, on_revoke=session.on_revoke)
        place.write(place.source, 0, "a")
        deadline = time.monotonic() + WAIT_S
        while seen != {(0, "a"): 1, (1, "b"): 1}:
            assert time.monotonic() < deadline, seen
            if len(seen) == 1 and place.partitions(place.source) == 1:
                place.log.admin.add_partitions(place.source, 2)
                place.write(place.source, 1, "b")
            message: Any = consumer.poll(0.1)
            offsets: dict[tuple[str, int], int] = {}
            if message is not None and message.error() is None:
                partition, key = message.partition(), message.key().decode()
                store = session.task(partition).store("visits")
                store.put(key, (store.get(key) or 0) + 1)
                seen[partition, key] = store.get(key)
                offsets = {(place.source, partition): message.offset() + 1}
            session.commit(offsets)
        assert place.partitions(f"{place.name}-visits-changelog") == 2
        consumer.close()
    place.log.close()


# -- step by step, on a clock that only the test moves ----------------------------------------------------------------


def by_hand(bench: Bench, make: Callable[[sf.App], object], interval_ms: int | None = 1_000) -> ByHand:
    spec = sf.KeyValueStore("visits", TEXT, sf.serde.int64)
    running = ByHand(bench, make, stores=[spec], lease_ms=60_000)  # no thread renews while the test moves the clock
    discovery = SourceDiscovery(
        running.session,
        running.assembled.topology,
        running.loop._runners,
        interval_ms,
        bench.clock,
    )
    running.loop._discovery = discovery
    return running


def hand_written(bench: Bench, partition: int, *keys: str, at_ms: int = 1_000) -> None:
    write(bench, "in", *((key, '"1"', at_ms) for key in keys), partition=partition)


def test_topics_are_looked_at_once_the_interval_is_over(bench: Bench) -> None:
    create(bench, 1, "in")
    running = by_hand(bench, counting("in"))
    discovery = running.loop._discovery
    assert discovery is not None
    bench.log.admin.add_partitions("in", 2)
    hand_written(bench, 1, "b")
    bench.clock.advance(999)
    assert not discovery.poll()
    bench.clock.advance(1)
    assert discovery.poll()
    assert not discovery.poll()
    bench.clock.advance(1_000)
    assert not discovery.poll()  # known by now
    bench.settle(running.session)
    running.run()
    running.commit()
    assert running.rows("visits", 1) == {"b": 1}
    running.close()


def test_discovery_that_is_off_never_looks(bench: Bench) -> None:
    create(bench, 1, "in")
    running = by_hand(bench, counting("in"), None)
    bench.log.admin.add_partitions("in", 2)
    bench.clock.advance(10**9)
    running.loop.poll_once()
    bench.settle(running.session)
    assert set(running.session.all_tasks()) == {TaskId(0, 0)}
    running.close()


def test_downstream_task_waits_for_the_watermark_of_a_new_upstream_task(bench: Bench) -> None:
    create(bench, 1, "in")

    def make(app: sf.App) -> None:
        stream = app.stream("in", key=TEXT, value=TEXT, watermarks=sf.BoundedDisorder(0))
        stream.repartition("by-key").group_by_key().count("visits")

    running = by_hand(bench, make)
    hand_written(bench, 0, "a", at_ms=10_000)
    running.run()
    running.commit()
    bench.log.admin.add_partitions("in", 2)
    bench.clock.advance(1_000)
    running.loop.poll_once()
    downstream = running.runner(1)
    waits = downstream.status().event_time
    assert waits is not None
    assert [str(one.channel) for one in waits.inputs] == [
        "app-by-key-repartition/0@0_0",
        "app-by-key-repartition/0@0_1",
    ]
    bench.settle(running.session)
    hand_written(bench, 0, "b", at_ms=30_000)
    hand_written(bench, 1, "c", at_ms=20_000)
    running.run()
    running.commit()
    bench.clock.advance(1_000)
    running.run()
    running.commit()
    assert running.runner(1).watermark_ms() == 19_999  # before: it would wait only for 0_0
    running.close()


def test_source_topic_that_is_gone_or_made_anew_is_told_at_each_look(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    create(bench, 2, "in")
    running = by_hand(bench, counting("in"))
    discovery = running.loop._discovery
    assert discovery is not None
    bench.log.admin.delete_topic("in")
    told = []
    for again in (False, True):
        if again:
            create(bench, 3, "in")
        caplog.clear()
        bench.clock.advance(1_000)
        assert not discovery.poll()
        told.append(caplog.messages)
    assert "partition discovery: topic 'in' with 2 partitions is gone from the log" in told[0][0]
    assert "partition discovery: topic 'in' was deleted and recreated" in told[1][0]
    assert set(running.session.all_tasks()) == {TaskId(0, 0), TaskId(0, 1)}
    running.session.close()
