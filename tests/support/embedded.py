"""Fixtures and helpers for tests of the embedded log: one topic `board`, written and read back.

Rules of this file: a real log file under a clock that the test moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.log import Outgoing, Record
from standfast.replication.offsets import TopicPartition
from standfast.store.clock import ManualClock

T0 = TopicPartition("board", 0)
COMPACT = frozenset({"compact"})
DAY_MS = 86_400_000


@pytest.fixture
def embedded_log(tmp_path: Path, clock: ManualClock) -> Iterator[EmbeddedLog]:
    opened = EmbeddedLog(tmp_path / "log.sqlite", clock=clock)
    yield opened
    opened.close()


def put(log: EmbeddedLog, *pairs: tuple[str, str | None], at_ms: int = 1_000) -> None:
    """Append (key, value) pairs to partition 0 of the topic."""
    producer = log.producer()
    producer.append(
        {T0: [Outgoing(key.encode(), None if value is None else value.encode(), at_ms) for key, value in pairs]}
    )
    producer.close()


def contents(log: EmbeddedLog, position: int | None = None) -> list[Record]:
    reader = log.reader()
    reader.assign({T0: log.reader().bounds([T0])[T0].begin if position is None else position})
    found: list[Record] = []
    while batch := reader.fetch(1_000):
        found += [record for fetched in batch for record in fetched.records]
    reader.close()
    return found


def pairs(log: EmbeddedLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in contents(log)]
