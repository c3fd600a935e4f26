"""Logs for the log contract: each adds itself as one more parameter of `bench`.

    embedded   a file of the test's own, under a clock that the test moves
    kafka      the broker that all tests share, emptied before each test; leases run by the test's clock here too
    pure_kafka the same without the compiled reader
    simulated_embedded, simulated_kafka    the log of the simulator (proof/), which must be like the one or the other

Rules of this file: each log defines here how to reopen it (as another process would), how to let time pass, how to
remove records from its head, and its allowed differences: a log over a network may show acknowledged records a moment
later (`settle` waits for them), and a client may not be able to write every timestamp (`timestamp_least`). The tests
see the port and these. They begin with topic `flights` of 3 partitions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from simulator.calls import DirectCalls
from simulator.log import SimLog, SimLogClient
from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import Log, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.store.clock import ManualClock
from standfast.store.native_module import SWITCH
from support.waits import until

T = TypeVar("T")


class Bench(NamedTuple):
    """A log with topic `flights` of 3 partitions, and a test's controls beside the port."""

    log: Log
    reopen: Callable[[], Log]
    pass_time_ms: Callable[[int], None]
    truncate: Callable[[TopicPartition, int], object]
    settle: Callable[[Mapping[TopicPartition, int]], None]  # until readers see these end offsets
    timestamp_least: int
    takes_any_offsets: bool  # also of topics that are not in the log
    wait_ms: int  # how long a record just written may be on its way to a reader


class MakeBench(Protocol):
    """Sets up one kind of log in an empty folder."""

    def __call__(self, folder: Path, request: pytest.FixtureRequest) -> tuple[Bench, Callable[[], None]]: ...


def embedded(folder: Path, request: pytest.FixtureRequest) -> tuple[Bench, Callable[[], None]]:
    """The embedded log, with a clock that only the test moves."""
    clock = ManualClock(1_356_998_400_000)
    opened: list[EmbeddedLog] = []

    def reopen() -> EmbeddedLog:
        opened.append(EmbeddedLog(folder / "log.sqlite", clock=clock))
        return opened[-1]

    def close_all() -> None:
        for log in opened:
            log.close()

    log = reopen()
    return Bench(log, reopen, clock.advance, log.truncate, lambda ends: None, 0, True, 0), close_all


def kafka(folder: Path, request: pytest.FixtureRequest) -> tuple[Bench, Callable[[], None]]:
    """The Kafka log on a real broker, with a clock for leases that only the test moves."""
    address: str = request.getfixturevalue("kafka_address")
    clear(address)
    clock = ManualClock(1_356_998_400_000)
    opened: list[KafkaLog] = []

    def reopen() -> KafkaLog:
        opened.append(KafkaLog(f"kafka://{address}", clock=clock))
        return opened[-1]

    def close_all() -> None:
        for log in opened:
            log.close()

    log = reopen()

    def truncate(source: TopicPartition, before: int) -> None:
        log.admin.delete_records({source: before})

    def settle(ends: Mapping[TopicPartition, int]) -> None:
        # A transaction is committed at the broker's decision; its markers follow within milliseconds.
        until(
            lambda: all(found.end >= ends[source] for source, found in log.reader().bounds(ends).items()),
            "what was committed becomes visible",
            10,
        )

    return Bench(log, reopen, clock.advance, truncate, settle, 1, False, 5_000), close_all


def pure_kafka(folder: Path, request: pytest.FixtureRequest) -> tuple[Bench, Callable[[], None]]:
    """The Kafka log whose readers use the client of confluent_kafka."""
    request.getfixturevalue("monkeypatch").setenv(SWITCH, "0")
    return kafka(folder, request)


class LockedCalls(DirectCalls):
    """Direct calls of several threads: the simulator has one, and its log no locks."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self._lock = threading.Lock()

    def run(self, name: str, effect: Callable[[], T]) -> T:
        """As of `DirectCalls`, one at a time."""
        with self._lock:
            return effect()


def simulated(style: str) -> tuple[Bench, Callable[[], None]]:
    """The log of the simulator, with a clock that only the test moves."""
    clock = ManualClock(1_356_998_400_000)
    world = SimLog("bench", clock, LockedCalls(clock), style=style)
    log = SimLogClient(world)
    is_embedded = style == "embedded"
    least = log.least_timestamp_ms
    return Bench(
        log, lambda: SimLogClient(world), clock.advance, log.truncate, lambda ends: None, least, is_embedded, 0
    ), (log.close)


def simulated_embedded(folder: Path, request: pytest.FixtureRequest) -> tuple[Bench, Callable[[], None]]:
    """The simulated log like the embedded one."""
    return simulated("embedded")


def simulated_kafka(folder: Path, request: pytest.FixtureRequest) -> tuple[Bench, Callable[[], None]]:
    """The simulated log like Kafka."""
    return simulated("kafka")


def clear(address: str) -> None:
    """Delete every topic and group that earlier tests left."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": "4"})
    topics = {name: one for name, one in admin.list_topics(timeout=10).topics.items() if not name.startswith("__")}
    groups = [group.group_id for group in admin.list_consumer_groups().result().valid]
    wait_for(admin.delete_topics(list(topics)) if topics else {})
    # The controller has replied, but the broker may list them for a moment: creating one would find the old one.
    until(
        lambda: topics.keys().isdisjoint(admin.list_topics(timeout=10).topics),
        f"deleted topics are listed no more: {sorted(topics)}",
        30,
    )
    # Some time after a topic is deleted the broker removes its committed offsets, also those of a new one of that name.
    partitions = [KafkaPartition(name, number) for name, one in topics.items() for number in one.partitions]
    for group in groups if partitions else ():
        wait_until_gone(address, group, partitions)
    wait_for(admin.delete_consumer_groups(groups) if groups else {})


def wait_until_gone(address: str, group: str, partitions: list[KafkaPartition]) -> None:
    """Wait until the group has no committed offset of these. (The admin client's call for them can end the process.)"""
    consumer = Consumer({"bootstrap.servers": address, "group.id": group, "log_level": "4"})
    until(
        lambda: all(at.offset < 0 for at in consumer.committed(partitions, 10)),
        "the broker forgets offsets of topics that were deleted",
        10,
    )
    consumer.close()


def wait_for(doomed: Mapping[str, Future[Any]]) -> None:
    for future in doomed.values():
        try:
            future.result(10)
        except KafkaException as error:
            assert error.args[0].name() in ("GROUP_ID_NOT_FOUND", "UNKNOWN_TOPIC_OR_PART"), error


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the fetch of `support.kafka` to tests of the Kafka log."""
    for item in items:
        call = getattr(item, "callspec", None)
        if isinstance(item, pytest.Function) and call is not None and call.params.get("bench") in (kafka, pure_kafka):
            item.fixturenames.append("kafka_files")
            item.add_marker(pytest.mark.kafka)
            item.add_marker(pytest.mark.slow)
            if call.params["bench"] is pure_kafka:
                item.add_marker(pytest.mark.long)


@pytest.fixture(params=[embedded, simulated_embedded, simulated_kafka, kafka, pure_kafka])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    make: MakeBench = request.param
    made, close = make(tmp_path, request)
    made.log.admin.create_topic("flights", 3, TopicPolicy())
    yield made
    close()


@pytest.fixture
def log(bench: Bench) -> Log:
    """The log under test."""
    return bench.log


@pytest.fixture
def reopen(bench: Bench) -> Callable[[], Log]:
    """Reopens the log."""
    return bench.reopen


@pytest.fixture
def pass_time_ms(bench: Bench) -> Callable[[int], None]:
    """Lets leases grow older."""
    return bench.pass_time_ms


@pytest.fixture
def truncate(bench: Bench) -> Callable[[TopicPartition, int], object]:
    """Removes records of a partition below an offset."""
    return bench.truncate


@pytest.fixture
def settle(bench: Bench) -> Callable[[Mapping[TopicPartition, int]], None]:
    """Waits until readers see these end offsets."""
    return bench.settle


@pytest.fixture
def wait_ms(bench: Bench) -> int:
    """How long a fetch may have to wait for a record just written."""
    return bench.wait_ms


@pytest.fixture
def timestamp_least(bench: Bench) -> int:
    """The smallest timestamp that the log can write; smaller ones are refused."""
    return bench.timestamp_least


@pytest.fixture
def takes_any_offsets(bench: Bench) -> bool:
    """Whether a group may commit offsets of topics that are not in the log."""
    return bench.takes_any_offsets
