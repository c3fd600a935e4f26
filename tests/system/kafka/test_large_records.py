"""Applications whose topics take small batches, on a real broker: every result once, and on_error for a large one.

Limits known at the start, and lowered while the application runs; both producers, both guarantees; processes and
brokers that die between two parts of a write.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.tools.broker import Broker
from standfast.replication.kafka.log import KafkaLog
from standfast.replication.log import Outgoing, Record, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.record_limits import MESSAGE_BYTES
from standfast.store.native_module import SWITCH
from support.waits import until

pytestmark = [pytest.mark.kafka(2), pytest.mark.slow]

TEXT, JSON = sf.serde.string, sf.serde.json
LAST = sf.KeyValueStore("last", TEXT, JSON, changelog={MESSAGE_BYTES: "1000"})
GUARANTEES = ("exactly_once", "at_least_once")
WAIT_S = 40.0
PROGRAM = Path(__file__).parents[2] / "support/programs/small_topic.py"


class Place:
    """An application on a log, in a thread of its own, and its topics."""

    def __init__(self, log: KafkaLog, root: Path, guarantee: Any) -> None:
        self.log, self._root, self._guarantee = log, root, guarantee
        self.name = f"app-{uuid.uuid4().hex[:8]}"
        self.app = sf.App(
            self.name, log=log.address, state_dir=root, guarantee=guarantee, restart=sf.NoRestart(),
            commit_interval_ms=100, stores=[LAST],
        )  # fmt: skip
        self.ended: list[BaseException | None] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def topic(self, part: str, most_bytes: int | None = None) -> str:
        name = f"{self.name}-{part}"
        extra = {} if most_bytes is None else {MESSAGE_BYTES: str(most_bytes)}
        self.log.admin.create_topic(name, 1, TopicPolicy(extra=extra))
        return name

    def feed(self, topic: str, *records: tuple[str, Any]) -> None:
        writer = self.log.producer()
        rows = [Outgoing(key.encode(), json.dumps(value).encode(), 5) for key, value in records]
        writer.append({TopicPartition(topic, 0): rows})
        writer.close()

    def read(self, topic: str, count: int) -> list[Record]:
        return read(self.log, topic, count)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> BaseException | None:
        """The error that ended it."""
        self._thread.join(WAIT_S)
        assert self.ended, "it goes on"
        return self.ended[0]

    def stop(self) -> None:
        self.app.stop()
        if self._thread.ident is not None:
            self._thread.join(WAIT_S)

    def _run(self) -> None:
        try:
            self.app.run()
        except BaseException as error:
            self.ended.append(error)
        else:
            self.ended.append(None)


def read(log: KafkaLog, topic: str, count: int) -> list[Record]:
    """All committed records of a topic, of which there are `count` or more."""
    reader, source = log.reader(), TopicPartition(topic, 0)
    reader.assign({source: 0})
    found: list[Record] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count or reader.assignment()[source] < reader.bounds([source])[source].end:
        assert time.monotonic() < deadline, f"{len(found)} records of {topic}, not {count}"
        found += [record for fetched in reader.fetch(1_000, 100) for record in fetched.records]
    reader.close()
    return found


def keys(records: list[Record]) -> list[bytes | None]:
    return [record.key for record in records]


def results(log: KafkaLog, topic: str, count: int) -> Counter[bytes | None]:
    """How often each of `count` results comes: under at least once some come again before the last ones."""
    found: Counter[bytes | None] = Counter()
    while len(found) < count:
        found = Counter(keys(read(log, topic, found.total() + count - len(found))))
    return found


@pytest.fixture(params=["compiled", pytest.param("python", marks=pytest.mark.long)])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both producers, one after the other."""
    if request.param == "python":
        monkeypatch.setenv(SWITCH, "0")


@pytest.fixture(params=[GUARANTEES[0], pytest.param(GUARANTEES[1], marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest, kafka_log: KafkaLog, tmp_path: Path) -> Iterator[Place]:
    made = Place(kafka_log, tmp_path, request.param)
    yield made
    made.stop()


def passing(place: Place, most_bytes: int | None, **policy: Any) -> tuple[str, str]:
    """Records of a topic go into another one, as they are."""
    source, out = place.topic("in"), place.topic("out", most_bytes)
    place.app.stream(source, key=TEXT, value=JSON, **policy).to(out)
    return source, out


def test_small_records_above_the_limit_together_are_written_once_each(place: Place, way: None) -> None:
    source, out = passing(place, 10_000)
    place.feed(source, *((str(number), "x" * 30) for number in range(2_000)))
    place.start()
    assert keys(place.read(out, 2_000)) == [b"%d" % number for number in range(2_000)]
    assert not place.ended


def test_record_above_a_known_limit_falls_under_on_error_of_its_source(place: Place, way: None) -> None:
    source, out = passing(place, 1_000, on_error="skip")
    place.feed(source, ("a", 1), ("large", "x" * 5_000), ("c", 1))
    place.start()
    assert keys(place.read(out, 2)) == [b"a", b"c"]
    assert place.app.drops.counts == {"process": 1} and not place.ended


def test_record_above_a_limit_that_was_lowered_falls_under_on_error_of_its_source(place: Place, way: None) -> None:
    source, out = passing(place, None, on_error="skip")
    place.feed(source, ("first", 1))
    place.start()
    place.read(out, 1)
    place.log.admin.change_topic(out, {MESSAGE_BYTES: "1000"})
    place.feed(source, ("a", 1), ("large", "x" * 5_000), ("c", 1))
    until(lambda: place.app.drops.counts == {"process": 1}, "the record is left out")
    found = keys(place.read(out, 3))
    assert set(found) == {b"first", b"a", b"c"} and not place.ended
    assert len(found) == 3 or place.app.settings.get("guarantee") == "at_least_once"


def test_record_above_a_limit_that_was_lowered_is_named_with_its_source_where_it_may_not_be_left_out(
    place: Place,
) -> None:
    source, out = passing(place, None)
    place.feed(source, ("first", 1))
    place.start()
    place.read(out, 1)
    place.log.admin.change_topic(out, {MESSAGE_BYTES: "1000"})
    place.feed(source, ("a", 1), ("large", "x" * 5_000))
    error = place.end()
    assert isinstance(error, sf.TooLarge)
    assert "record with key b'large'" in str(error) and f"max.message.bytes of {out}" in str(error)


def test_row_above_the_limit_of_its_changelog_fails_the_task_with_store_and_key(place: Place) -> None:
    source = place.topic("in")

    class Keep(sf.Processor):
        stores = (LAST.name,)

        def init(self, context: sf.Context) -> None:
            self.rows = context.store(LAST.name)

        def process(self, record: sf.Record) -> None:
            self.rows.put(record.key, record.value)

    place.app.source(source, key=TEXT, value=JSON)(Keep)
    place.feed(source, ("a", 1), ("large", "x" * 5_000))
    place.start()
    error = place.end()
    assert isinstance(error, sf.TooLarge)
    assert "a row of store 'last'" in str(error) and "key b'large'" in str(error)


def test_dead_letter_above_the_limit_of_its_topic_is_cut_and_says_the_size(place: Place) -> None:
    dead = place.topic("dead", 20_000)
    source, out = passing(place, 1_000, on_error="dead_letter", dead_letter=dead)
    place.feed(source, ("a", 1), ("large", "x" * 50_000), ("c", 1))
    place.start()
    assert keys(place.read(out, 2)) == [b"a", b"c"]
    (letter,) = place.read(dead, 1)
    headers = dict(letter.headers)
    assert letter.key == b"large" and headers["__streams.errors.value.bytes"] == b"50002"
    assert 10_000 < len(letter.value or b"") < 20_000 and not place.ended


# -- deaths between two parts of a write ------------------------------------------------------------------------------


@pytest.mark.parametrize("guarantee", [GUARANTEES[0], pytest.param(GUARANTEES[1], marks=pytest.mark.long)])
@pytest.mark.parametrize("part", [pytest.param(1, marks=pytest.mark.long), 7])
def test_process_killed_between_two_parts_of_a_commit_leaves_no_result_out(
    kafka_log: KafkaLog, tmp_path: Path, guarantee: str, part: int
) -> None:
    place = Place(kafka_log, tmp_path, guarantee)
    source, out = place.topic("in"), place.topic("out", 10_000)
    place.feed(source, *((str(number), "x" * 30) for number in range(2_000)))
    words = [sys.executable, str(PROGRAM), place.name, kafka_log.address, str(tmp_path), guarantee, source, out]
    killed = subprocess.run(
        words, env={**os.environ, "STANDFAST_FAILPOINT": f"writer.piece=kill:{part}"}, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    with subprocess.Popen(words) as second:
        try:
            found = results(place.log, out, 2_000)
        finally:
            second.terminate()
    assert len(found) == 2_000
    assert guarantee == "at_least_once" or set(found.values()) == {1}


@pytest.mark.long
@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_broker_killed_between_two_parts_of_a_commit_leaves_no_result_out(
    restartable_broker: Broker, tmp_path: Path, guarantee: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, back = count(), threading.Event()

    def reach(name: str) -> None:
        if next(parts) == 4:
            restartable_broker.kill()
            restartable_broker.start()
            back.set()

    monkeypatch.setattr("standfast.replication.kafka.writer.reach", reach)
    log = KafkaLog(f"kafka://{restartable_broker.address}")
    place = Place(log, tmp_path, guarantee)
    source, out = passing(place, 10_000)
    place.feed(source, *((str(number), "x" * 30) for number in range(2_000)))
    place.start()
    try:
        assert back.wait(2 * WAIT_S)  # before it no client gets an answer
        found = results(log, out, 2_000)
        assert len(found) == 2_000
        assert guarantee == "at_least_once" or set(found.values()) == {1}
    finally:
        place.stop()
        log.close()
