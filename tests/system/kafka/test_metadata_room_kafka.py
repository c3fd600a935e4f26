"""Commits of tasks with many numbers, and lost commits of a store without a log, on a real Kafka log.

Rules of this file: the application's name is the test's own, so that one broker serves all tests.
"""

from __future__ import annotations

import random
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

import standfast as sf
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.metadata_parts import is_part, source_offsets
from standfast.replication.offsets import TopicPartition
from standfast.store.rocks.wal import records, wal_files

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

WAIT_S = 40.0
TEXT = sf.serde.string
GUARANTEES = pytest.mark.parametrize(
    "guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)]
)
NAMES = tuple(f"s{number}" for number in range(12))


class Application:
    """Sessions of one application over the shared broker; a topic `<app>-src` is its source."""

    def __init__(self, root: Path, address: str) -> None:
        self.root, self.address = root, f"kafka://{address}"
        self.name = f"app-{uuid.uuid4().hex[:8]}"
        self.source = f"{self.name}-src"
        self.log = KafkaLog(self.address)
        self.log.admin.create_topic(self.source, 1, TopicPolicy())
        self.log.producer().append({TopicPartition(self.source, 0): [Outgoing(b"k", b"v", 5)] * 30})

    def session(self, directory: str, stores: list[Any], **settings: Any) -> sf.Session:
        given: dict[str, Any] = {"partitions": 1, "background": False, **settings}
        return sf.Session(self.name, log=self.address, state_dir=self.root / directory, stores=stores, **given)

    def active(self, directory: str, stores: list[Any], **settings: Any) -> sf.Session:
        session = self.session(directory, stores, **settings)
        session.assign(active=[0])
        session.wait_ready(WAIT_S)
        return session


@pytest.fixture
def application(tmp_path: Path, kafka_address: str) -> Iterator[Application]:
    made = Application(tmp_path, kafka_address)
    yield made
    made.log.close()


def numbers(count: int) -> dict[str, int]:
    rng = random.Random(count)
    return {f"number:{name}": rng.randrange(2**63) for name in range(count)}


def many() -> list[Any]:
    return [sf.KeyValueStore(name, TEXT, TEXT) for name in NAMES]


@GUARANTEES
def test_a_cold_start_has_every_number_of_a_large_commit(application: Application, guarantee: str) -> None:
    at = (application.source, 0)
    with application.active("a", many(), guarantee=guarantee) as session:
        task = session.task(0)
        for offset in (1, 2):
            task.progress.update(numbers(1_500))
            task.store("s0").put("k", str(offset))
            task.commit({at: offset})
    found = application.log.group(application.name).committed()
    assert sum(is_part(one.metadata) for one in found.values()) >= 4
    assert set(source_offsets(found)) == {TopicPartition(*at)}
    with application.active("cold", many()[::-1], guarantee=guarantee) as session:
        assert session.task(0).progress == numbers(1_500)
        assert session.task(0).source_offsets() == {at: 2}


@pytest.mark.long
@GUARANTEES
def test_an_external_consumer_commits_many_numbers_and_finds_them_again(
    application: Application, guarantee: Any
) -> None:
    for turn, directory in enumerate(("a", "cold")):
        session = sf.Session(
            application.name, log=application.address, state_dir=application.root / directory, stores=many(),
            placement="group", guarantee=guarantee,
        )  # fmt: skip
        consumer = Consumer(session.consumer_settings({"auto.offset.reset": "earliest", "session.timeout.ms": 6_000}))
        consumer.subscribe([application.source], on_assign=session.on_assign, on_revoke=session.on_revoke,
                           on_lost=session.on_lost)  # fmt: skip
        deadline, done = time.monotonic() + WAIT_S, 0
        while done < (10 if turn == 0 else 30):
            assert time.monotonic() < deadline
            offsets = {}
            for message in consumer.consume(10 if turn == 0 else 20, 0.1):
                assert message.error() is None, message.error()
                task = session.task(message)
                if turn == 1:
                    assert task.progress == numbers(900)
                task.progress.update(numbers(900))
                done = (message.offset() or 0) + 1
                offsets[application.source, 0] = done
            session.commit(offsets)
            if turn == 0 and done:
                break
        consumer.close()
        session.close()
    found = application.log.group(application.name).committed()
    assert source_offsets(found)[TopicPartition(application.source, 0)].offset == 30
    assert any(is_part(one.metadata) for one in found.values())


@pytest.mark.long
@GUARANTEES
def test_commits_that_a_write_ahead_log_lost_are_refused(application: Application, guarantee: str) -> None:
    stores = [sf.KeyValueStore("kv", TEXT, TEXT), sf.KeyValueStore("plain", TEXT, TEXT, logging=False)]
    at = (application.source, 0)
    session = application.active("a", stores, guarantee=guarantee)
    task = session.task(0)
    for number in range(6):
        for store in stores:
            task.store(store.name).put(str(number), "v")
        task.commit({at: number + 1})
    shutil.copytree(application.root / "a", application.root / "killed")
    path = task.stores.directory.relative_to(application.root / "a")
    session.close()
    wal = wal_files(application.root / "killed" / path)[-1]
    ends = [start for start, _ in records(wal.read_bytes())]
    wal.write_bytes(wal.read_bytes()[: ends[-2]])
    refused = application.session("killed", stores, guarantee=guarantee)
    with pytest.raises((sf.StateLost, sf.NotReady), match="write-ahead log was cut"):
        refused.assign(active=[0])
        for _ in range(100):
            refused.poll_once()
        refused.wait_ready(1)
    refused.close()
    with application.active("killed", stores, guarantee=guarantee, accept_unreadable_rows=True) as session:
        assert [key for key, _ in session.task(0).store("kv").all()] == [str(number) for number in range(6)]
        assert [key for key, _ in session.task(0).store("plain").all()] == [str(number) for number in range(4)]
