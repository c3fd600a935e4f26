"""Logs for the log contract: each brings itself as one more parameter of `bench`.

Rules of this file: a log says here how to open it again (as another process would), how to let time pass, and how to
remove records from its head; the tests see the port and these three. Begin with topic `flights` of 3 partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

from standfast.replication.embedded import EmbeddedLog
from standfast.replication.log import Log, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.store.clock import ManualClock


class Bench(NamedTuple):
    """A log with topic `flights` of 3 partitions, and what a test may do beside the port."""

    log: Log
    reopen: Callable[[], Log]
    pass_time_ms: Callable[[int], None]
    truncate: Callable[[TopicPartition, int], object]


class MakeBench(Protocol):
    """Sets up one kind of log in an empty folder."""

    def __call__(self, folder: Path) -> tuple[Bench, Callable[[], None]]: ...


def embedded(folder: Path) -> tuple[Bench, Callable[[], None]]:
    """The embedded log, with a clock that moves only when told to."""
    clock = ManualClock(1_356_998_400_000)
    opened: list[EmbeddedLog] = []

    def reopen() -> EmbeddedLog:
        opened.append(EmbeddedLog(folder / "log.sqlite", clock=clock))
        return opened[-1]

    def close_all() -> None:
        for log in opened:
            log.close()

    log = reopen()
    return Bench(log, reopen, clock.advance, log.truncate), close_all


@pytest.fixture(params=[embedded])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    make: MakeBench = request.param
    made, close = make(tmp_path)
    made.log.admin.create_topic("flights", 3, TopicPolicy())
    yield made
    close()


@pytest.fixture
def log(bench: Bench) -> Log:
    """The log under test."""
    return bench.log


@pytest.fixture
def reopen(bench: Bench) -> Callable[[], Log]:
    """Opens the log once more."""
    return bench.reopen


@pytest.fixture
def pass_time_ms(bench: Bench) -> Callable[[int], None]:
    """Lets leases grow older."""
    return bench.pass_time_ms


@pytest.fixture
def truncate(bench: Bench) -> Callable[[TopicPartition, int], object]:
    """Removes records of a partition below an offset."""
    return bench.truncate
