"""Bulk restore from a real Kafka log: transactions and their markers, and skipping by time.

Rules of this file: those of `test_kafka_session.py`. Each test runs with the compiled reader and fold, and without.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from system.kafka.test_kafka_session import Sessions

import standfast as sf
from standfast.replication.listeners import Listener
from standfast.replication.log import Outgoing
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.store import window_key
from standfast.store.native_module import SWITCH
from support.bulk import BATCHES, BULK, digests, drive, loader
from support.sessions import HOUR_MS

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(params=["1", pytest.param("0", marks=pytest.mark.long)], ids=["compiled", "python"])
def sessions(
    tmp_path: Path, kafka_address: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Sessions]:
    monkeypatch.setenv(SWITCH, request.param)
    made = Sessions(tmp_path, kafka_address)
    yield made
    made.close()


class Counted(Listener):
    def __init__(self) -> None:
        self.records: dict[str, int] = {}

    def on_restore_end(self, task: TaskId, store: str, changelog: TopicPartition, records: int) -> None:
        self.records[store] = records


def restored(sessions: Sessions, directory: str, **how: Any) -> sf.Session:
    session = sessions.open(directory, **how)
    session.assign(active=[0])
    drive(session)
    return session


def test_log_with_markers_of_transactions_restores_alike(sessions: Sessions, many_runs: None) -> None:
    first = sessions.active("live")
    for batch in range(12):
        sessions.fill(first, batch * 20)
        if batch == 6:
            task = first.task(0)
            task.store("kv").put("discarded", "never", timestamp=int(time.time() * 1_000))
            task.discard()
    expected = digests(first)
    first.close()
    assert digests(restored(sessions, "batches", **BATCHES)) == expected
    session = restored(sessions, "bulk", **BULK)
    assert digests(session) == expected
    assert loader(session).statistics().runs >= 6
    for changelog, bounds in sessions.log.reader().bounds(session.task(0).applier.store_of).items():
        position = session.task(0).applier.position(changelog)
        assert position is not None and position.offset == bounds.end, changelog


def test_expired_records_are_skipped_by_the_brokers_index_of_times(sessions: Sessions, many_runs: None) -> None:
    text = sf.serde.string
    stores = [sf.WindowStore("win", text, text, window_size_ms=60_000, retention_ms=600_000)]
    sessions.open("topics", stores=stores, **BATCHES).close()
    now_ms = int(time.time() * 1_000) // HOUR_MS * HOUR_MS
    rows = [(f"k{number % 7}", now_ms - 12 * HOUR_MS + number * 12_000) for number in range(3_000)]
    sessions.log.producer().append(
        {
            TopicPartition(f"{sessions.app}-win-changelog", 0): [
                Outgoing(window_key.pack(key.encode(), start), b"v", start + 50) for key, start in rows
            ]
        }
    )
    told = Counted()
    session = restored(sessions, "bulk", stores=stores, listeners=[told], **BULK)
    assert 0 < told.records["win"] < 300
    assert digests(session) == digests(restored(sessions, "batches", stores=stores, **BATCHES))
