"""Commits of several tasks at the same time, exactly once on a real broker.

    overlap     transactions of independent tasks are open together; a slow one does not hold the others
    hop         the next task sees a record once its transaction has committed
    kill -9     in the middle of several transactions: each record counts once

Rules of this file: names are the test's own. Waits are for a condition, with a bound. Tests compare committed records.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.kafka.writer import KafkaWriter
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.stream.runtime import commits
from support.kafka_bench import WAIT_S
from support.waits import until

pytestmark = [pytest.mark.kafka(2), pytest.mark.slow]

TASKS = 4
RECORDS = 400
TEXT = sf.serde.string
KILLS = 3
PROGRAM = """
import json, sys, standfast as sf
name, address, folder = json.loads(sys.argv[1])
app = sf.App(name, log=address, state_dir=folder, commit_interval_ms=20)
app.stream(f"{name}-in", key=sf.serde.string, value=sf.serde.string) \
    .select_key(lambda key, value: key).repartition("x").to(f"{name}-out")
app.run()
"""


class Place:
    """An application's topics on a broker of its own name."""

    def __init__(self, root: Path, address: str) -> None:
        self.root = root
        self.address = f"kafka://{address}"
        self.name = f"overlap-{uuid.uuid4().hex[:8]}"
        self.log = KafkaLog(self.address)
        for topic in ("in", "out"):
            self.log.admin.create_topic(f"{self.name}-{topic}", TASKS, TopicPolicy())

    def feed(self, first: int, count: int) -> None:
        batches: dict[TopicPartition, list[Outgoing]] = {}
        for number in range(first, first + count):
            at = TopicPartition(f"{self.name}-in", number % TASKS)
            batches.setdefault(at, []).append(Outgoing(f"k{number}".encode(), b"v", 1_000 + number))
        writer = self.log.producer()
        writer.append(batches)
        writer.close()

    def keys_out(self) -> list[str]:
        """The keys of all committed records of the output topic."""
        at = [TopicPartition(f"{self.name}-out", number) for number in range(TASKS)]
        reader = self.log.reader()
        ends = {one: bounds.end for one, bounds in reader.bounds(at).items()}
        reader.assign(dict.fromkeys(at, 0))
        found: list[str] = []
        while any(reader.assignment()[one] < end for one, end in ends.items()):
            found += [(record.key or b"").decode() for batch in reader.fetch(10_000, 50) for record in batch.records]
        reader.close()
        return found

    @contextmanager
    def running(self, make: Callable[[sf.App], None], **given: Any) -> Iterator[sf.App]:
        """The application in a thread of this process, until the block ends."""
        app = sf.App(self.name, log=self.address, state_dir=self.root / "a", **given)
        make(app)
        app.open()
        thread = threading.Thread(target=app.run, daemon=True)
        thread.start()
        try:
            yield app
        finally:
            app.stop()
            thread.join(WAIT_S)
            assert not thread.is_alive()


@pytest.fixture
def place(tmp_path: Path, kafka_address: str) -> Iterator[Place]:
    made = Place(tmp_path, kafka_address)
    yield made
    made.log.close()


class Commits(sf.Listener):
    """The largest committed offset of each source partition."""

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, int] = {}

    def on_commit(self, task: TaskId, sources: Mapping[TopicPartition, int]) -> None:
        self.offsets.update(sources)

    def of(self, place: Place) -> dict[int, int]:
        """Offsets of the input topic by partition."""
        return {at.partition: offset for at, offset in self.offsets.copy().items() if at.topic == f"{place.name}-in"}


class SlowCommit:
    """The commits of one transactional id wait for `go`."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self.go = threading.Event(), threading.Event()
        commit = KafkaWriter._commit

        def waiting(writer: KafkaWriter, producer: Any) -> None:
            if writer._fence.transactional_id == name:
                self.entered.set()
                assert self.go.wait(WAIT_S)
            commit(writer, producer)

        monkeypatch.setattr(KafkaWriter, "_commit", waiting)


def hopping(place: Place) -> Callable[[sf.App], None]:
    def make(app: sf.App) -> None:
        stream = app.stream(f"{place.name}-in", key=TEXT, value=TEXT).select_key(lambda key, value: key)
        stream.repartition("x").to(f"{place.name}-out")

    return make


def test_a_slow_transaction_of_a_task_does_not_hold_the_others(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "HOLD_MS", WAIT_S * 1_000)
    slow, seen = SlowCommit(f"{place.name}-0-0", monkeypatch), Commits()
    place.feed(0, RECORDS)
    with place.running(hopping(place), commit_interval_ms=20, listeners=[seen]):
        assert slow.entered.wait(WAIT_S)
        until(lambda: seen.of(place) == dict.fromkeys(range(1, TASKS), RECORDS // TASKS), "the others commit")
        # Its records were never acknowledged by a commit, so that no task has got them.
        keys = {f"k{number}" for number in range(0, RECORDS, TASKS)}
        assert not keys & set(place.keys_out())
        slow.go.set()
        until(lambda: len(place.keys_out()) == RECORDS, "all records are out")
    assert set(Counter(place.keys_out()).values()) == {1}


def test_transactions_of_several_tasks_are_open_at_the_same_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    task = re.compile(rf"{place.name}-\d+-\d+")
    inside: set[str] = set()
    together = threading.Event()
    commit = KafkaWriter._commit

    def meeting(writer: KafkaWriter, producer: Any) -> None:
        name = writer._fence.transactional_id
        if task.fullmatch(name):
            inside.add(name)
            if len(inside) > 1:
                together.set()
            assert together.wait(WAIT_S)
        commit(writer, producer)

    monkeypatch.setattr(KafkaWriter, "_commit", meeting)
    place.feed(0, RECORDS)
    with place.running(hopping(place)):
        until(lambda: len(place.keys_out()) == RECORDS, "all records are out")
    assert set(Counter(place.keys_out()).values()) == {1}


@pytest.mark.long
def test_records_count_once_when_the_process_is_killed_in_the_middle_of_several_transactions(place: Place) -> None:
    arguments = json.dumps([place.name, place.address, str(place.root / "a")])
    command = [sys.executable, "-c", PROGRAM, arguments]
    for number in range(KILLS + 1):
        place.feed(number * RECORDS, RECORDS)
        child = subprocess.Popen(command)
        try:
            # Some of the new records are out, so that transactions of others are under way; of the last run all.
            wanted = number * RECORDS + RECORDS // 10 if number < KILLS else (KILLS + 1) * RECORDS
            until(lambda wanted=wanted: len(place.keys_out()) >= wanted, f"{wanted} records are out")  # type: ignore[misc]
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait(WAIT_S)
    counts = Counter(place.keys_out())
    assert set(counts.values()) == {1}
    assert len(counts) == (KILLS + 1) * RECORDS
