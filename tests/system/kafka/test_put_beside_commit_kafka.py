"""Threads that put and commit beside each other on a real broker, under both guarantees and with both clients.

The steps of a commit, one by one, are those of `unit/stream/test_put_beside_commit.py`; here the log is slow.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import standfast as sf
from standfast.replication.log import TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.store.native_module import SWITCH
from support.kafka_bench import WAIT_S, KafkaBench

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TEXT, INT = sf.serde.string, sf.serde.int64
RECORDS = 60


@pytest.fixture(autouse=True, params=["compiled", pytest.param("python", marks=pytest.mark.long)])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both clients of Kafka."""
    if request.param == "python":
        monkeypatch.setenv(SWITCH, "0")


@pytest.fixture
def bench(tmp_path: Path, kafka_address: str) -> Iterator[KafkaBench]:
    made = KafkaBench(tmp_path, kafka_address)
    yield made
    made.close()


@pytest.mark.long
@pytest.mark.parametrize("guarantee", ["exactly_once", pytest.param("at_least_once", marks=pytest.mark.long)])
def test_threads_on_one_task_lose_no_row_and_count_each_record_once(bench: KafkaBench, guarantee: str) -> None:
    stores = [sf.KeyValueStore("sums", TEXT, INT), sf.KeyValueStore("rows", TEXT, TEXT)]
    out, sources = f"{bench.app}-out", [(f"{bench.app}-in{number}", 0) for number in range(3)]
    for topic in (out, *(topic for topic, _ in sources)):
        bench.log.admin.create_topic(topic, 1, TopicPolicy())
    session = bench.session("a", stores=stores, partitions=1, guarantee=guarantee)
    session.assign(active=[0])
    session.wait_ready(WAIT_S)
    task, read, ended = session.task(0), dict.fromkeys(sources, 0), threading.Event()
    committed: list[str] = []

    def process(at: tuple[str, int]) -> None:
        for number in range(RECORDS):
            with task.exclusive():
                sums = task.store("sums")
                sums.put("all", (sums.get("all") or 0) + number, 1)
                task.send(out, b"k", str(number).encode(), 1, partition=0)
                read[at] = number + 1
                if number % 5 == 0:
                    session.commit(dict(read))

    def put_beside() -> None:
        number = 0
        while not ended.is_set():
            keys = [f"{number}-{row}" for row in range(50)]
            for key in keys:
                task.store("rows").put(key, "v", 1)
            with task.exclusive():
                session.commit(dict(read))
            committed.extend(keys)
            number += 1

    threads = [threading.Thread(target=process, args=(at,)) for at in sources]
    beside = threading.Thread(target=put_beside)
    for thread in (*threads, beside):
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    ended.set()
    beside.join(WAIT_S)
    assert not any(thread.is_alive() for thread in (*threads, beside))
    session.commit(dict(read))
    total = len(sources) * sum(range(RECORDS))
    session.close()
    for directory in ("a", "restored"):
        again = bench.session(directory, stores=stores, partitions=1, guarantee=guarantee)
        again.assign(active=[0])
        again.wait_ready(WAIT_S)
        assert again.task(0).store("sums").get("all") == total
        assert again.task(0).source_offsets() == dict.fromkeys(sources, RECORDS)
        with again.task(0).store("rows").all() as rows:
            assert {key for key, _ in rows} == set(committed)
        again.close()
    reader = bench.log.reader()
    at = TopicPartition(out, 0)
    begin, end = reader.bounds([at])[at]
    reader.assign({at: begin})
    sent: list[int] = []
    while reader.assignment()[at] < end:
        sent += [int(record.value or b"") for batch in reader.fetch(1_000, 200) for record in batch.records]
    reader.close()
    assert sum(sent) == total and len(sent) == len(sources) * RECORDS
