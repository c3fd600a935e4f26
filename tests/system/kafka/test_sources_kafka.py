"""Starts of topics, and sources of one's own, on a real broker.

Rules of this file: the application runs as a user runs it, in a thread of its own, until a listener has seen the commit
that the test waits for.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.store.clock import SystemClock
from support.own_sources import Numbers, until

pytestmark = [pytest.mark.kafka(2), pytest.mark.slow]


class Commits(sf.Listener):
    """The largest committed offset of each source partition."""

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, int] = {}

    def on_commit(self, task: TaskId, sources: Mapping[TopicPartition, int]) -> None:
        self.offsets.update(sources)


class Place:
    """A broker, a topic of ten records, 100 to 109 ms after a recent time, and runs of an application."""

    def __init__(self, address: str, root: Path) -> None:
        self.address = f"kafka://{address}"
        self.root = root
        self.name = f"app-{uuid.uuid4().hex[:8]}"
        self.topic = f"{self.name}-in"
        self.seen: list[str] = []
        with closing(sf.open_log(self.address)) as log:
            log.admin.create_topic(self.topic, 1, sf.TopicPolicy())

    def write(self, *stamps: int) -> None:
        with closing(sf.open_log(self.address)) as log, closing(log.producer()) as producer:
            batch = [sf.Outgoing(b"k", str(stamp).encode(), stamp) for stamp in stamps]
            # In a transaction, whose marker takes an offset of its own at the end of the topic.
            producer.transact({TopicPartition(self.topic, 0): batch})

    def run(self, make: Any, at: TopicPartition, offset: int, directory: str = "a", **given: Any) -> None:
        """Run until this offset of a source is committed."""
        commits = Commits()
        app = sf.App(
            self.name, log=self.address, state_dir=self.root / directory, listeners=[commits], commit_interval_ms=50,
            restart_grace_ms=0, **given,  # the next run may have another directory
        )  # fmt: skip
        make(app)
        errors: list[BaseException] = []

        def work() -> None:
            try:
                app.run()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            until(lambda: errors or commits.offsets.get(at, -1) >= offset)
        finally:
            app.stop()
            thread.join()
        if errors:
            raise errors[0]


@pytest.fixture
def place(kafka_address: str, tmp_path: Path) -> Place:
    return Place(kafka_address, tmp_path)


@pytest.mark.parametrize(
    ("start", "first"),
    [
        pytest.param("earliest", 0, marks=pytest.mark.long),
        pytest.param("latest", 10, marks=pytest.mark.long),
        (104, 4),
        pytest.param(500, 10, marks=pytest.mark.long),
    ],
)
def test_first_run_begins_at_the_start_and_later_ones_at_the_committed_offset(
    place: Place, start: Any, first: int
) -> None:
    base_ms = SystemClock().wall_ms() - 60_000
    place.write(*(base_ms + 100 + number for number in range(10)))
    given = base_ms + start if isinstance(start, int) else start

    def make(app: sf.App) -> None:
        stream = app.stream(place.topic, key=sf.serde.string, value=sf.serde.string, start=given)
        stream.peek(lambda _key, value: place.seen.append(value))

    at = TopicPartition(place.topic, 0)
    place.run(make, at, 10)
    assert place.seen == [str(base_ms + 100 + number) for number in range(first, 10)]
    place.seen.clear()
    place.write(base_ms + 50)
    place.run(make, at, 12, "empty")
    assert place.seen == [str(base_ms + 50)]


@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
def test_position_of_a_source_is_the_groups_offset_of_a_topic_without_records(place: Place, guarantee: Any) -> None:
    at = TopicPartition(f"{place.name}-numbers-source-offsets", 0)

    def make(count: int) -> Any:
        def declare(app: sf.App) -> None:
            numbers = app.stream(Numbers(count), name="numbers", key=sf.serde.string, value=sf.serde.int64)
            numbers.peek(lambda _key, value: place.seen.append(str(value)))
            numbers.group_by_key().count("counts")

        return declare

    stores = [sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)]
    place.run(make(3_000), at, 3_000, stores=stores, guarantee=guarantee)
    assert len(place.seen) == 3_000
    place.seen.clear()
    place.run(make(3_005), at, 3_005, "empty", stores=stores, guarantee=guarantee)
    assert place.seen == ["3000", "3001", "3002", "3003", "3004"]
    with closing(sf.open_log(place.address)) as log, closing(log.reader()) as reader:
        assert reader.bounds([at])[at].end == 0
        assert log.group(place.name).committed([at])[at].offset == 3_005
