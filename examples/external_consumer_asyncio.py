"""Records counted by key, from asyncio: external_consumer_asyncio.py APPLICATION kafka://HOST:9092 TOPIC STATE_DIR."""

import asyncio
import sys
from contextlib import suppress

from confluent_kafka.aio import AIOConsumer

import standfast as sf


async def main(app: str, log: str, topic: str, state_dir: str) -> None:
    store = sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)
    async with sf.aio.Session(app, log=log, state_dir=state_dir, stores=[store], placement="group") as session:
        consumer = AIOConsumer(session.consumer_settings({"session.timeout.ms": 6_000}))  # 45,000 by default
        await consumer.subscribe([topic], on_assign=session.on_assign, on_revoke=session.on_revoke)
        while True:
            offsets: dict[tuple[str, int], int] = {}
            for message in await consumer.consume(500, 0.2):
                with suppress(sf.Fenced, sf.Unavailable):  # the task moved or reopens: the record comes again
                    counts, key = session.task(message).store("counts"), message.key().decode()
                    counts.put(key, (counts.get(key) or 0) + 1, message.timestamp()[1])
                    offsets[message.topic(), message.partition()] = message.offset() + 1
            with suppress(sf.Fenced, sf.Unavailable):
                await session.commit(offsets)  # after every poll, also without offsets: it resumes restored partitions


asyncio.run(main(*sys.argv[1:]))
