"""Applications without threads on a real broker: two instances in one thread, in real time."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import standfast as sf
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition

pytestmark = [pytest.mark.kafka(2), pytest.mark.slow]

LEASE_MS = 2_000
WAIT_S = 60.0
RECORDS = 40


class Results:
    """The results of the application, read on at each look; and its source."""

    def __init__(self, log: KafkaLog, name: str) -> None:
        self.source, self.out = f"{name}-in", f"{name}-out"
        for topic in (self.source, self.out):
            log.admin.create_topic(topic, 2, TopicPolicy())
        self._producer, self._reader = log.producer(), log.reader()
        self._reader.assign({TopicPartition(self.out, at): 0 for at in (0, 1)})
        self._counts: dict[str, int] = {}

    def feed(self, first: int) -> None:
        for at in (0, 1):
            numbers = range(first + at, first + RECORDS, 2)
            batch = [Outgoing(f"k{one % 8}".encode(), b"x", 1_000 + one) for one in numbers]
            self._producer.append({TopicPartition(self.source, at): batch})

    def are(self, count: int) -> bool:
        """Whether each key was counted so often."""
        for batch in self._reader.fetch(1_000, 0):
            for one in batch.records:
                self._counts[(one.key or b"").decode()] = int.from_bytes(one.value or b"")
        return self._counts == {f"k{key}": count for key in range(8)}

    def close(self) -> None:
        self._producer.close()
        self._reader.close()


def until(done: Callable[[], bool], *apps: sf.App) -> None:
    """Rounds of these instances."""
    deadline = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline, [app.session.missing() for app in apps if app.session is not None]
        for app in apps:
            app.poll_once(timeout_ms=5)


def running(app: sf.App) -> int:
    return 0 if app.session is None else len(app.session.open_tasks())


def test_tasks_of_an_instance_that_is_polled_no_more_go_on_elsewhere_on_kafka(
    kafka_log: KafkaLog, kafka_address: str, tmp_path: Path
) -> None:
    name = f"app-{uuid.uuid4().hex[:8]}"

    def instance(directory: str) -> sf.App:
        counts = sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)
        app = sf.App(name, log=f"kafka://{kafka_address}", state_dir=tmp_path / directory, stores=[counts],
                     lease_ms=LEASE_MS)  # fmt: skip
        stream = app.stream(results.source, value=sf.serde.string).group_by_key().count("counts").to_stream()
        stream.to(results.out, value=sf.serde.int64)
        app.open(background=False)
        return app

    with closing(Results(kafka_log, name)) as results:
        before = {thread.name for thread in threading.enumerate()}
        a, b = instance("a"), instance("b")
        with closing(a), closing(b):
            until(lambda: running(a) == running(b) == 1, a, b)
            results.feed(0)
            until(lambda: results.are(RECORDS // 8), a, b)
            until(lambda: running(b) == 2, b)  # the lease of the other one runs out
            results.feed(RECORDS)
            until(lambda: results.are(2 * RECORDS // 8), b)
            assert a.session is not None
            lost = a.session.counters.leases_lost
            until(lambda: sum(lost.values()) == 1 and running(a) == 1, a, b)
            started = {thread.name for thread in threading.enumerate()} - before
            assert [one for one in started if not one.startswith("standfast-connect")] == []  # those of the client
