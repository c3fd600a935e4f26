"""Records counted by key under an own consumer: external_consumer.py APPLICATION kafka://HOST:9092 TOPIC STATE_DIR."""

import sys
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer

import standfast as sf

app, log, topic, directory = sys.argv[1:]
store = sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)
session = sf.Session(app, log=log, state_dir=directory, stores=[store], placement="group", standby_replicas=1)
consumer: Any = Consumer(session.consumer_settings({"session.timeout.ms": 6_000}))  # 45,000 by default
consumer.subscribe([topic], on_assign=session.on_assign, on_revoke=session.on_revoke, on_lost=session.on_lost)
while True:
    offsets = {}
    for message in consumer.consume(500, 0.2):  # polling goes on while partitions wait, paused, for their restore
        with suppress(sf.Fenced, sf.Unavailable):  # the task moved or reopens: the record comes again
            counts, key = session.task(message).store("counts"), message.key().decode()
            counts.put(key, (counts.get(key) or 0) + 1, message.timestamp()[1])
            offsets[message.topic(), message.partition()] = message.offset() + 1
    with suppress(sf.Fenced, sf.Unavailable):  # as above: uncommitted records come again, here or elsewhere
        session.commit(offsets)  # state and offsets as one; also without offsets: it resumes restored partitions
