"""An applier borrows the fetch thread's reader: no record lost or doubled, requests and the end wait for it.

Rules of this file: a real embedded log. A held fetch is held in the reader, so that the test knows its place.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.log import Fetched
from standfast.replication.tail.fetch_lane import Lane
from standfast.replication.tail.fetch_pipeline import FetchPipeline
from standfast.replication.tail.fetch_thread import Batch, Failure, FetchThread
from standfast.store.errors import Closed, Corruption, StateLost, Unavailable
from support.fetch import COUNT, P0, P1, WAIT_S, Wrapped, drain, failing, flights_log, offsets, position
from support.lanes import WAIT_MS, pipeline_of
from support.lanes import drain as drain_lane

ASKED_MAX = 10_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    """Three partitions of COUNT records each."""
    with flights_log(tmp_path) as opened:
        yield opened


class Held(Wrapped):
    """Its next fetch on an applier's thread waits for `go`; the fetch after it raises `failure`."""

    def __init__(self, log: EmbeddedLog) -> None:
        super().__init__(log.reader())
        self.begun, self.go = threading.Event(), threading.Event()
        self.failure: Exception | None = None
        self.closed_while_lent = False
        self._lent = False

    def fetch_ready(self, max_records: int) -> list[Fetched]:
        self._lent = True
        self.begun.set()
        assert self.go.wait(WAIT_S)
        self._lent = False
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        return self.reader.fetch_ready(max_records)

    def close(self) -> None:
        self.closed_while_lent = self._lent
        self.reader.close()


def on_demand(reader: Any) -> FetchThread:
    return FetchThread(reader, fetch_records_max=5, fetch_timeout_ms=5, on_demand=True)


def here(thread: FetchThread, records: int) -> Batch | Failure:
    """The first available batch. The fetch thread is idle soon after its answer."""
    for _ in range(ASKED_MAX):
        item = thread.fetch_here(records)
        if item is not None:
            return item
        position(thread)
    raise AssertionError("the fetch thread keeps its reader")


def fetched(item: Batch | Failure | None) -> list[Fetched]:
    assert isinstance(item, Batch)
    return item.fetched


def test_what_is_fetched_here_follows_what_was_handed_over(log: EmbeddedLog) -> None:
    with on_demand(log.reader()) as thread:
        thread.assign({P0: 0})
        thread.want(3)
        first = thread.take(WAIT_S)
        assert offsets(fetched(first)) == [0, 1, 2]
        assert offsets(fetched(here(thread, 4))) == [3, 4, 5, 6]
        thread.want(2)
        assert offsets(fetched(thread.take(WAIT_S))) == [7, 8]
        assert thread.statistics().borrowed == 1


def test_nothing_is_fetched_here_while_something_is_handed_over(log: EmbeddedLog) -> None:
    with on_demand(log.reader()) as thread:
        thread.assign({P0: 0})
        thread.want(3)
        while not thread.statistics().batches:
            pass
        assert position(thread) == 3
        assert [thread.fetch_here(4) for _ in range(100)] == [None] * 100
        assert offsets(fetched(thread.take(WAIT_S))) == [0, 1, 2]


def test_request_waits_for_a_fetch_that_is_under_way_here(log: EmbeddedLog) -> None:
    reader = Held(log)
    with on_demand(reader) as thread:
        thread.assign({P0: 0})
        came: list[Batch | Failure] = []
        applier = threading.Thread(target=lambda: came.append(here(thread, 2)))
        applier.start()
        assert reader.begun.wait(WAIT_S)
        number = thread.seek(P0, 15)
        assert thread.fetch_here(2) is None
        reader.go.set()
        applier.join(WAIT_S)
        (batch,) = came
        assert isinstance(batch, Batch)
        assert offsets(batch.fetched) == [0, 1]
        assert batch.carried < number, "whoever sorts it knows that it is out of date"
        assert position(thread) == 15


def test_end_waits_for_a_fetch_that_is_under_way_here(log: EmbeddedLog) -> None:
    reader = Held(log)
    thread = on_demand(reader)
    thread.assign({P0: 0})
    applier = threading.Thread(target=lambda: here(thread, 2))
    applier.start()
    assert reader.begun.wait(WAIT_S)
    with pytest.raises(Unavailable, match="did not end within"):
        thread.close(0.05)
    assert not reader.closed_while_lent
    reader.go.set()
    applier.join(WAIT_S)
    thread.close()
    assert not reader.closed_while_lent
    assert not thread.statistics().alive


def test_failure_here_is_told_once_and_fetching_waits_for_a_request(log: EmbeddedLog) -> None:
    reader = Held(log)
    reader.failure = StateLost("gone", reason="truncated")
    reader.go.set()
    with on_demand(reader) as thread:
        thread.assign({P0: 0})
        failure = here(thread, 2)
        assert isinstance(failure, Failure)
        assert failure.of_fetch
        assert "gone" in str(failure.error)
        assert [thread.fetch_here(2) for _ in range(100)] == [None] * 100
        thread.want(2)
        assert thread.take(0.02) is None
        thread.seek(P0, 18)
        assert drain(thread) == [18, 19]


def test_other_error_here_ends_the_thread_as_one_of_its_own(log: EmbeddedLog) -> None:
    reader = Held(log)
    reader.failure = Corruption("a damaged page")
    reader.go.set()
    thread = on_demand(reader)
    thread.assign({P0: 0})
    until_failed(thread, reader)
    with pytest.raises(Corruption, match="damaged"):
        thread.take(WAIT_S)
    with pytest.raises(Closed):
        thread.take(0)
    assert thread.fetch_here(2) is None
    thread.close()


def until_failed(thread: FetchThread, reader: Held) -> None:
    while reader.failure is not None:
        assert thread.fetch_here(2) is None
        if reader.failure is not None:
            position(thread)


# -- lanes -------------------------------------------------------------------------------------------------------------


def test_lane_fetches_on_its_own_thread_what_is_at_hand(log: EmbeddedLog) -> None:
    with pipeline_of(log) as pipeline:
        lane = pipeline.lane("restore")
        lane.add({P0: 0})
        assert drain_lane(lane, {P0: COUNT}) == {P0: list(range(COUNT))}
        thread = pipeline.statistics().thread
        assert thread.borrowed >= thread.fetches - 2, "but for the first, and where the thread was still at work"


def test_lane_brings_another_what_it_finds_for_it(log: EmbeddedLog) -> None:
    with pipeline_of(log) as pipeline:
        told: list[str] = []
        slow, quick = pipeline.lane("standby", lambda: told.append("standby")), pipeline.lane("restore")
        slow.add({P0: 0})
        quick.add({P1: 0})
        assert drain_lane(quick, {P1: COUNT}) == {P1: list(range(COUNT))}
        assert "standby" in told
        assert drain_lane(slow, {P0: COUNT}) == {P0: list(range(COUNT))}


def test_after_a_seek_nothing_comes_that_another_lane_fetched_before_it_was_carried_out(log: EmbeddedLog) -> None:
    with held_pipeline(log) as (pipeline, reader):
        quick, slow = pipeline.lane("restore"), pipeline.lane("standby")
        quick.add({P0: 0})
        slow.add({P1: 0})
        applier = threading.Thread(target=lambda: until_borrowed(quick, reader))
        applier.start()
        assert reader.begun.wait(WAIT_S)
        slow.seek(P1, 15)
        reader.go.set()
        applier.join(WAIT_S)
        assert drain_lane(slow, {P1: COUNT}) == {P1: [15, 16, 17, 18, 19]}


def test_trouble_that_was_told_is_raised_before_a_lane_fetches_again(log: EmbeddedLog) -> None:
    with pipeline_of(log, failing(Unavailable("the log is away"))) as pipeline:
        lane = pipeline.lane("restore")
        lane.add({P0: 0})
        with pytest.raises(Unavailable, match="away"):
            lane.fetch(1, WAIT_MS)
        assert drain_lane(lane, {P0: COUNT}) == {P0: list(range(COUNT))}


def until_borrowed(lane: Lane, reader: Held) -> None:
    while not reader.begun.is_set():
        lane.fetch(2, WAIT_MS)


@contextmanager
def held_pipeline(log: EmbeddedLog) -> Iterator[tuple[FetchPipeline, Held]]:
    """A pipeline whose reader is held by the first applier that borrows it."""
    reader = Held(log)

    class Readers:
        given = False

        def reader(self) -> Any:
            if self.given:
                return log.reader()
            self.given = True
            return reader

    readers: Any = Readers()
    pipeline = FetchPipeline(readers, fetch_records_max=5, fetch_timeout_ms=5)
    try:
        yield pipeline, reader
    finally:
        reader.go.set()
        pipeline.close()
