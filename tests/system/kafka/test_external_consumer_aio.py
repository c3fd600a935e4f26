"""Cancelled awaits of an asyncio session under an asyncio consumer, on a real broker: each record counts once.

Rules of this file: checked are the rows of the session and the committed offsets.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.aio import AIOConsumer

import standfast as sf
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

WAIT_S = 60.0
PARTITIONS = 2
COUNTS = sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)


class Topic:
    """An application's topic, and the records that it was fed."""

    def __init__(self, root: Path, address: str) -> None:
        self.root, self.address = root, f"kafka://{address}"
        self.app = f"aio-{uuid.uuid4().hex[:8]}"
        self.name = f"{self.app}-in"
        self.log = KafkaLog(self.address)
        self.log.admin.create_topic(self.name, PARTITIONS, TopicPolicy())
        self.producer = self.log.producer()
        self.fed: Counter[str] = Counter()

    def feed(self, count: int) -> None:
        batches: dict[TopicPartition, list[Outgoing]] = {}
        for number in range(count):
            at = TopicPartition(self.name, number % PARTITIONS)
            batches.setdefault(at, []).append(Outgoing(b"k%d" % (number % 10), b"", time.time_ns() // 1_000_000))
            self.fed[f"k{number % 10}"] += 1
        self.producer.append(batches)

    def session(self, **settings: Any) -> sf.aio.Session:
        return sf.aio.Session(
            self.app, log=self.address, state_dir=self.root / "a", stores=[COUNTS], placement="group", **settings
        )

    def committed(self) -> int:
        return sum(one.offset for at, one in self.log.group(self.app).committed().items() if at.topic == self.name)


@pytest.fixture
def topic(tmp_path: Path, kafka_address: str) -> Iterator[Topic]:
    made = Topic(tmp_path, kafka_address)
    yield made
    made.log.close()


async def process(session: sf.aio.Session, consumer: AIOConsumer) -> dict[tuple[str, int], int]:
    """Count the records of one poll; returns their offsets."""
    offsets = {}
    for message in await consumer.consume(20, 0.1):
        counts, key = session.task(message).store("counts"), message.key().decode()
        counts.put(key, (counts.get(key) or 0) + 1, message.timestamp()[1])
        offsets[message.topic(), message.partition()] = message.offset() + 1
    return offsets


def counted(session: sf.aio.Session) -> Counter[str]:
    return Counter(
        {key: count for number in session.tasks() for key, count in session.read("counts", number).store.all()}
    )


@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
def test_each_record_counts_once_whose_commit_is_cancelled(topic: Topic, guarantee: str) -> None:
    async def run() -> None:
        async with topic.session(guarantee=guarantee) as session:
            consumer = AIOConsumer(session.consumer_settings())
            await consumer.subscribe([topic.name], on_assign=session.on_assign, on_revoke=session.on_revoke)
            cancelled, deadline = 0, time.monotonic() + WAIT_S
            while sum(counted(session).values()) < topic.fed.total():
                assert time.monotonic() < deadline, counted(session)
                offsets = await process(session, consumer)
                try:
                    # At another step each time: in its turn, in a call of the consumer, or in the log.
                    await asyncio.wait_for(session.commit(offsets), 0.0005 * (1 + cancelled % 20))
                except TimeoutError:
                    cancelled += 1
                    await session.commit({})  # its offsets go with this one
            assert cancelled
            assert counted(session) == topic.fed
            await consumer.close()

    topic.feed(400)
    asyncio.run(run())
    assert topic.committed() == topic.fed.total()


def test_offsets_of_a_commit_that_is_cancelled_in_a_call_of_the_consumer_go_with_the_next(topic: Topic) -> None:
    async def run() -> None:
        async with topic.session() as session:
            consumer: Any = AIOConsumer(session.consumer_settings())
            await consumer.subscribe([topic.name], on_assign=session.on_assign, on_revoke=session.on_revoke)
            offsets: dict[tuple[str, int], int] = {}
            deadline = time.monotonic() + WAIT_S
            while sum(offsets.values()) < topic.fed.total():
                assert time.monotonic() < deadline, offsets
                offsets |= await process(session, consumer)
                await session.commit({})  # without offsets yet: it resumes restored partitions
            position, asked, never = consumer.position, asyncio.Event(), asyncio.Event()

            async def held(partitions: list[Any]) -> Any:
                asked.set()
                await never.wait()

            consumer.position = held
            waiting = asyncio.create_task(session.commit(offsets))
            await asked.wait()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            consumer.position = position
            await session.commit({})
            await consumer.close()

    topic.feed(20)
    asyncio.run(run())
    assert topic.committed() == topic.fed.total()


def test_tasks_of_a_cancelled_on_assign_are_closed(topic: Topic) -> None:
    async def run() -> None:
        async with topic.session() as session:
            consumer: Any = AIOConsumer(session.consumer_settings())
            assign, calls, never = consumer.incremental_assign, 0, asyncio.Event()
            cancelled = asyncio.Event()

            async def held(partitions: list[Any]) -> Any:
                nonlocal calls
                calls += 1
                if calls == 1:
                    asked.set()
                    await never.wait()
                return await assign(partitions)

            async def on_assign(of: Any, partitions: list[Any]) -> None:
                opening = asyncio.create_task(session.on_assign(of, partitions))
                if not asked.is_set():
                    await asked.wait()
                    assert session.tasks()
                    opening.cancel()
                    with suppress(asyncio.CancelledError):
                        await opening
                    cancelled.set()
                    return
                await opening

            asked = asyncio.Event()
            consumer.incremental_assign = held
            await consumer.subscribe([topic.name], on_assign=on_assign, on_revoke=session.on_revoke)
            deadline = time.monotonic() + WAIT_S
            while not cancelled.is_set():
                assert time.monotonic() < deadline
                await consumer.consume(1, 0.1)
            await session.wait_ready(WAIT_S)  # waits until they are closed
            assert not session.tasks()
            await consumer.unsubscribe()
            await consumer.subscribe([topic.name], on_assign=on_assign, on_revoke=session.on_revoke)
            while sum(counted(session).values()) < topic.fed.total():
                assert time.monotonic() < deadline, counted(session)
                await session.commit(await process(session, consumer))
            assert counted(session) == topic.fed
            await consumer.close()

    topic.feed(20)
    asyncio.run(run())
    assert topic.committed() == topic.fed.total()
