"""The end of the fetch thread: from any of its places, both sides are released, it is joined, its reader is closed.

Rules of this file: as in test_fetch_thread.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.log import Fetched, LogReader
from standfast.replication.tail.fetch_thread import FetchThread
from standfast.store.errors import Closed, InvalidRequest, StateLost, Unavailable
from support.fetch import P0, WAIT_S, drain, flights_log, started, wait_until_full


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    """Three partitions of COUNT records each."""
    with flights_log(tmp_path) as opened:
        yield opened


def assert_ended(thread: FetchThread, reader: LogReader) -> None:
    thread.close()
    assert not thread.statistics().alive
    assert thread._thread not in threading.enumerate()
    with pytest.raises(Closed):
        reader.fetch(1)
    with pytest.raises(Closed):
        thread.poll_next(timeout_s=0)
    with pytest.raises(Closed):
        thread.add({P0: 0})
    with pytest.raises(Closed):
        thread.call(lambda reader: reader.assignment())
    thread.close()


def test_close_while_nothing_is_assigned(log: EmbeddedLog) -> None:
    reader = log.reader()
    assert_ended(FetchThread(reader), reader)


def test_close_while_the_hand_over_is_full(log: EmbeddedLog) -> None:
    reader = log.reader()
    thread = FetchThread(reader, fetch_records_max=1)
    thread.assign({P0: 0})
    wait_until_full(thread)
    assert_ended(thread, reader)


def test_close_while_at_the_end_of_the_log(log: EmbeddedLog) -> None:
    reader = log.reader()
    thread = FetchThread(reader, fetch_timeout_ms=5)
    thread.assign({P0: 0})
    drain(thread)
    assert_ended(thread, reader)


def test_close_while_a_lost_position_waits_for_a_request(log: EmbeddedLog) -> None:
    log.truncate(P0, 10)
    reader = log.reader()
    thread = FetchThread(reader)
    thread.assign({P0: 5})
    with pytest.raises(StateLost):
        thread.poll_next()
    assert_ended(thread, reader)


def test_close_ends_a_poll_in_another_thread(log: EmbeddedLog) -> None:
    reader = log.reader()
    thread = FetchThread(reader)
    ended: list[BaseException] = []

    def poll() -> None:
        try:
            thread.poll_next()
        except Closed as error:
            ended.append(error)

    poller = threading.Thread(target=poll, daemon=True)
    poller.start()
    assert_ended(thread, reader)
    poller.join(WAIT_S)
    assert not poller.is_alive()
    assert len(ended) == 1


def test_close_after_the_log_was_closed_is_fine(log: EmbeddedLog) -> None:
    thread = started(log)
    log.close()
    thread.close()
    assert not thread.statistics().alive


def test_close_gives_up_at_its_deadline_and_the_thread_ends_once_the_log_lets_it_go(log: EmbeddedLog) -> None:
    hold, held = threading.Event(), threading.Event()

    def stuck() -> list[Fetched]:
        held.set()
        hold.wait(WAIT_S)
        return []

    thread = started(log, stuck)
    thread.assign({P0: 0})
    assert held.wait(WAIT_S)
    with pytest.raises(Unavailable, match="did not end within 0 s"):
        thread.close(timeout_s=0)
    hold.set()
    thread.close()
    assert not thread.statistics().alive


def test_call_that_waits_while_the_thread_is_closed_gets_an_answer(log: EmbeddedLog) -> None:
    hold, held = threading.Event(), threading.Event()

    def stuck() -> list[Fetched]:
        held.set()
        hold.wait(WAIT_S)
        return []

    thread = started(log, stuck)
    thread.assign({P0: 0})
    assert held.wait(WAIT_S)
    answers: list[BaseException] = []

    def ask() -> None:
        try:
            thread.call(lambda _: None)
        except Closed as error:
            answers.append(error)

    asker = threading.Thread(target=ask, daemon=True)
    asker.start()
    with pytest.raises(Unavailable):
        thread.close(timeout_s=0)
    hold.set()
    thread.close()
    asker.join(WAIT_S)
    assert len(answers) == 1


def test_close_on_the_fetch_thread_itself_is_refused(log: EmbeddedLog) -> None:
    with started(log) as thread, pytest.raises(InvalidRequest, match="on the thread itself"):
        thread.call(lambda _: thread.close())


@pytest.mark.parametrize(("records", "timeout_ms"), [(0, 1), (-1, 1), (1, -1)])
def test_settings_that_cannot_be_used_are_refused(log: EmbeddedLog, records: int, timeout_ms: int) -> None:
    reader = log.reader()
    with pytest.raises(InvalidRequest, match="fetch_records_max"):
        FetchThread(reader, fetch_records_max=records, fetch_timeout_ms=timeout_ms)
    reader.close()
