"""Fixtures for tests of applications: the driver, closed at the end, and loops on a real embedded log.

Rules of this file: the real parts. A `Running` is one instance of an application whose session and loop the
test drives by hand, on a clock that only the test moves; several of them share one log as several processes would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import standfast as sf
from standfast.replication.log import Headers, Outgoing, TopicPolicy
from standfast.replication.log import Record as LogRecord
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.store.clock import ManualClock
from standfast.store.process.threads import Threads
from standfast.stream.runtime.loop import Loop
from standfast.stream.runtime.runner import TaskRunner
from standfast.stream.topology.assembly import assemble
from support.sessions import Bench

Drive = Callable[..., sf.testing.Driver]


@pytest.fixture
def drive() -> Iterator[Drive]:
    """Makes drivers that are closed when the test ends."""
    with ExitStack() as stack:
        yield lambda app, now_ms=0, **given: stack.enter_context(sf.testing.Driver(app, now_ms, **given))


def create(bench: Bench, partitions: int, *topics: str) -> None:
    for topic in topics:
        bench.log.admin.create_topic(topic, partitions, TopicPolicy())


def write(bench: Bench, topic: str, *records: tuple[str | None, str | None, int], partition: int = 0) -> None:
    """Append (key, value, timestamp) as UTF-8."""
    batch = [Outgoing(_raw(key), _raw(value), stamp) for key, value, stamp in records]
    bench.log.producer().append({TopicPartition(topic, partition): batch})


def written(bench: Bench, topic: str, partition: int = 0) -> list[LogRecord]:
    """All committed records of a partition."""
    reader = bench.log.reader()
    at = TopicPartition(topic, partition)
    reader.assign({at: reader.bounds([at])[at].begin})
    found = [record for batch in reader.fetch(100_000) for record in batch.records]
    reader.close()
    return found


def text_of(records: list[LogRecord]) -> list[tuple[str | None, str | None, int]]:
    """(key, value, timestamp), without the signals between tasks."""
    return [
        (_text(one.key), _text(one.value), one.timestamp)
        for one in records
        if not (one.key is None and one.value is None and one.headers)
    ]


def headers_of(record: Any) -> dict[str, str]:
    headers: Headers = record.headers
    return {name: (value or b"").decode() for name, value in headers}


class Running:
    """One instance of the application that `make(app)` declares. Further arguments go to App."""

    def __init__(
        self,
        bench: Bench,
        make: Callable[[sf.App], object],
        directory: str = "a",
        *,
        settle: bool = True,
        alone: bool = True,
        name: str = "app",
        clock: ManualClock | None = None,
        threads: Threads | None = None,
        **given: Any,
    ) -> None:
        """`threads`: for the commits of its loop, None: none."""
        self.bench = bench
        clock = clock or bench.clock
        self.app = sf.App(name, log=bench.address, state_dir=bench.root / directory, clock=clock, **given)
        make(self.app)
        self.assembled = assemble(self.app.builder, bench.log.admin, bench.address)
        self.session = self.app.open_session(
            self.assembled, bench.address, bench.root / directory, clock, background=False, alone=alone
        )
        bench.opened.append(self.session)
        if threads is not None:
            self.session.threads = threads
        if settle:
            bench.settle(self.session)
        self.loop = Loop(
            self.session,
            self.assembled.topology,
            self.app.runner_settings(self.assembled, clock),
            commit_interval_ms=self.app.commit_interval_ms,
            restart=self.app.restart,
            clock=clock,
            sources=self.app.source_runs,
        )

    def run(self, rounds: int = 50) -> int:
        """Rounds until no record is left; returns the number of records processed."""
        total = 0
        for _ in range(rounds):
            count = self.loop.poll_once()
            total += count
            if not count:
                return total
        raise AssertionError(f"still processing after {rounds} rounds")

    def commit(self) -> None:
        """Commit, then process and commit the records that this produces, until none is left."""
        for _ in range(20):
            self.loop.commit_all()
            if not self.run():
                return
        raise AssertionError("still processing after 20 commits")

    def runner(self, group: int = 0, partition: int = 0) -> TaskRunner:
        return self.loop._running[TaskId(group, partition)].runner

    def rows(self, store: str, partition: int = 0) -> dict[Any, Any]:
        """Committed rows."""
        return dict(self.session.read(store, partition).store.all())

    def close(self) -> None:
        """Stop without a commit."""
        self.loop.close()
        self.session.close()


def _raw(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode()
