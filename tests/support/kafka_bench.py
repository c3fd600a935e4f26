"""One application with one key-value store and one task over a real Kafka log: its sessions, its changelog, its source.

Rules of this file: no fixtures, so tests import the parts they use. The application's name is new for each bench.
Record n of the source puts a writer's name under a key of its own, so that the changelog shows which process processed
which records.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

import standfast as sf
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import Record, TopicPolicy
from standfast.replication.offsets import TopicPartition

WAIT_S = 40.0
TEXT = sf.serde.string
STORES = [sf.KeyValueStore("kv", TEXT, TEXT)]


class KafkaBench:
    """An application with one task over a broker: sessions, the changelog, the source's offsets."""

    def __init__(self, root: Path, address: str) -> None:
        self.root = root
        self.address = f"kafka://{address}"
        self.app = f"app-{uuid.uuid4().hex[:8]}"
        self.source = TopicPartition(f"{self.app}-src", 0)
        self.changelog = TopicPartition(f"{self.app}-kv-changelog", 0)
        self.log = KafkaLog(self.address)
        self.group = self.log.group(self.app)
        self.log.admin.create_topic(self.source.topic, 1, TopicPolicy())
        self.opened: list[sf.Session] = []

    def session(self, directory: str = "a", options: str = "", **settings: Any) -> sf.Session:
        given: dict[str, Any] = {"stores": STORES, "partitions": 1, "background": False} | settings
        session = sf.Session(self.app, log=self.address + options, state_dir=self.root / directory, **given)
        self.opened.append(session)
        return session

    def active(self, directory: str = "a", options: str = "", **settings: Any) -> sf.Session:
        session = self.session(directory, options, **settings)
        session.assign(active=[0])
        session.wait_ready(WAIT_S)
        return session

    def write(self, session: sf.Session, upto: int, name: str) -> None:
        """Process the source up to a record: record n puts the writer's name under a key of its own."""
        while (offset := self.offset(session)) < upto:
            session.task(0).store("kv").put(f"k{offset}", name)
            session.task(0).commit({self.source: offset + 1})

    def offset(self, session: sf.Session) -> int:
        return session.task(0).source_offsets().get(self.source, 0)

    def committed(self) -> int:
        found = self.group.committed([self.source])
        return found[self.source].offset if found else 0

    def records(self) -> list[Record]:
        """The changelog's committed records."""
        reader = self.log.reader()
        end = reader.bounds([self.changelog])[self.changelog].end
        reader.assign({self.changelog: 0})
        found: list[Record] = []
        deadline = time.monotonic() + WAIT_S
        while reader.assignment()[self.changelog] < end:
            assert time.monotonic() < deadline
            found += [record for fetched in reader.fetch(1_000, 100) for record in fetched.records]
        reader.close()
        return found

    def logged(self) -> list[tuple[str, str]]:
        return [((record.key or b"").decode(), (record.value or b"").decode()) for record in self.records()]

    def close(self) -> None:
        for session in self.opened:
            session.close()
        self.log.close()


def transaction(bench: KafkaBench, *values: str, partition: int = 0) -> Producer:
    """Records of another client in the changelog, in a transaction that is still open."""
    producer = Producer(
        {
            "bootstrap.servers": bench.address.removeprefix("kafka://"),
            "transactional.id": f"raw-{uuid.uuid4().hex}",
            "transaction.timeout.ms": 60_000,
        }
    )
    producer.init_transactions(10)
    producer.begin_transaction()
    for number, value in enumerate(values):
        producer.produce(bench.changelog.topic, value.encode(), f"k{number}".encode(), partition)
    assert producer.flush(10) == 0
    return producer


def rows(session: sf.Session) -> dict[str, str]:
    return dict(session.read("kv", 0, allow_stale=True).store.all())
