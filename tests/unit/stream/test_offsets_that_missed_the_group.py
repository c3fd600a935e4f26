"""At least once: rows and offsets are written one after the other, and the log may go away in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

import standfast as sf
from simulator.calls import DirectCalls
from simulator.log import SimLog, SimLogClient
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail import open_log
from standfast.store.clock import ManualClock
from standfast.store.errors import Unavailable

T = TypeVar("T")
AT = TopicPartition("in", 0)


class CutCalls(DirectCalls):
    """A line to the log that is cut at one call."""

    cut_at = ""

    def run(self, name: str, effect: Callable[[], T]) -> T:
        if name == self.cut_at:
            self.cut_at = ""
            raise Unavailable(f"{name}: no answer")
        return super().run(name, effect)


@pytest.fixture
def calls(clock: ManualClock) -> CutCalls:
    return CutCalls(clock)


@pytest.fixture(params=["embedded", "kafka"])
def log(request: pytest.FixtureRequest, clock: ManualClock, calls: CutCalls) -> Iterator[SimLogClient]:
    log = SimLog("one", clock, calls, style=request.param)
    scheme = open_log.Scheme(lambda address: address, lambda address, its_clock: SimLogClient(log, its_clock))
    with open_log.OTHERS.added("sim", scheme):
        yield SimLogClient(log, clock)


def test_an_offset_that_missed_the_group_is_committed_again_without_another_record(
    tmp_path: Path, clock: ManualClock, log: SimLogClient, calls: CutCalls
) -> None:
    log.admin.create_topic("in", 1, TopicPolicy())
    log.producer().append({AT: [Outgoing(b"k", b"v", 1_356_998_400_000)]})
    app = sf.App("app", log=log.address, state_dir=tmp_path, clock=clock, guarantee="at_least_once",
                 stores=[sf.KeyValueStore("counts", sf.serde.string, sf.serde.int64)])  # fmt: skip
    app.stream("in", value=sf.serde.string).group_by_key().count("counts")
    app.open(background=False)
    calls.cut_at = "log.commit"
    for _ in range(400):
        app.poll_once()
        clock.advance(50)
    assert calls.cut_at == ""
    found = log.group("app").committed([AT])
    app.close()
    assert found[AT].offset == 1
