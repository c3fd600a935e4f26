"""The fetch thread on a real embedded log: no record lost or doubled, requests in between, errors once, an end.

Rules of this file: failures and waits come from a wrapper around the log's reader, on command. A test learns the fetch
thread's place by a `call` (which runs between two fetches), never by waiting for time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from standfast.replication.embedded.log import EmbeddedLog
from standfast.replication.log import Fetched
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.fetch_thread import FetchThread
from standfast.store.errors import Closed, Corruption, InvalidRequest, StateLost, Unavailable, UnknownStore
from support.fetch import (
    COUNT,
    P0,
    P1,
    P2,
    WAIT_S,
    drain,
    failing,
    flights_log,
    offsets,
    position,
    started,
    wait_until_full,
    write,
)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    """Three partitions of COUNT records each."""
    with flights_log(tmp_path) as opened:
        yield opened


def test_every_record_comes_once_and_in_order(log: EmbeddedLog) -> None:
    with started(log, records=7) as thread:
        thread.assign({P0: 0, P1: 5, P2: 0})
        came: dict[TopicPartition, list[int]] = {P0: [], P1: [], P2: []}
        while any(not offsets_of or offsets_of[-1] < COUNT - 1 for offsets_of in came.values()):
            fetched = thread.poll_next()
            for partition, offsets_of in came.items():
                offsets_of += offsets(fetched, partition)
        assert came == {P0: list(range(COUNT)), P1: list(range(5, COUNT)), P2: list(range(COUNT))}


def test_records_written_later_come_too(log: EmbeddedLog) -> None:
    with started(log, records=100) as thread:
        thread.assign({P0: 0})
        assert drain(thread) == list(range(COUNT))
        write(log, 3)
        assert drain(thread, end=COUNT + 3) == [COUNT, COUNT + 1, COUNT + 2]


def test_it_fetches_one_batch_ahead_and_no_more(log: EmbeddedLog) -> None:
    with started(log) as thread:
        thread.assign({P0: 0})
        wait_until_full(thread)
        for _ in range(20):
            assert position(thread) == 2
        assert thread.statistics().fetches == 2


def test_woken_batch_is_offered_again_never_fetched_twice_and_never_lost(log: EmbeddedLog) -> None:
    with started(log) as thread:
        thread.assign({P0: 0})
        wait_until_full(thread)
        before = thread.statistics().wake_ups
        position(thread)
        position(thread)
        assert thread.statistics().wake_ups > before
        assert drain(thread) == list(range(COUNT))


# -- requests ----------------------------------------------------------------------------------------------------------


def test_after_a_seek_nothing_comes_that_was_fetched_before(log: EmbeddedLog) -> None:
    with started(log) as thread:
        thread.assign({P0: 0})
        wait_until_full(thread)
        thread.seek(P0, 15)
        assert drain(thread) == [15, 16, 17, 18, 19]
        assert thread.statistics().outdated == 2
        thread.seek(P0, 3)
        assert drain(thread) == list(range(3, COUNT))


def test_after_a_remove_nothing_comes_of_the_partition_and_the_others_go_on(log: EmbeddedLog) -> None:
    with started(log, records=4) as thread:
        thread.assign({P0: 0, P1: 0})
        wait_until_full(thread, 4)  # two of each in a batch
        thread.remove([P0, P2])
        came: list[int] = []
        while len(came) < COUNT:
            fetched = thread.poll_next()
            assert offsets(fetched, P0) == []
            came += offsets(fetched, P1)
        assert came == list(range(COUNT))
        thread.add({P0: 18})
        assert drain(thread) == [18, 19]


def test_assign_replaces_everything(log: EmbeddedLog) -> None:
    with started(log) as thread:
        thread.assign({P0: 0})
        wait_until_full(thread)
        thread.assign({P1: 18})
        assert offsets(thread.poll_next(), P1) == [18]
        thread.assign({P0: 19})
        assert drain(thread) == [19]
        assert thread.call(lambda reader: dict(reader.assignment())) == {P0: COUNT}


def test_paused_partition_gives_what_is_under_way_then_nothing_until_resumed(log: EmbeddedLog) -> None:
    with started(log) as thread:
        thread.assign({P0: 0})
        wait_until_full(thread)
        thread.pause([P0])
        assert [offsets(thread.poll_next(WAIT_S)) for _ in range(2)] == [[0], [1]]
        thread.add({P1: 19})
        assert offsets(thread.poll_next(), P1) == [19]
        assert position(thread) == 2
        thread.resume([P0])
        assert drain(thread) == list(range(2, COUNT))


@pytest.mark.parametrize(
    ("request_it", "told"),
    [
        (lambda thread: thread.seek(P0, -1), "flights-0: position -1"),
        (lambda thread: thread.assign({P0: -1}), "flights-0: position -1"),
        (lambda thread: thread.add({P0: 7}), "flights-0 already assigned"),
    ],
    ids=["seek", "assign", "add"],
)
def test_a_request_that_fails_is_raised_once_and_what_was_fetched_stays_good(
    log: EmbeddedLog, request_it: Callable[[FetchThread], None], told: str
) -> None:
    with started(log) as thread:
        thread.assign({P0: 0})
        wait_until_full(thread)
        request_it(thread)
        assert [offsets(thread.poll_next()) for _ in range(2)] == [[0], [1]]
        with pytest.raises(InvalidRequest, match=told):
            thread.poll_next()
        assert drain(thread) == list(range(2, COUNT))


def test_unknown_topic_is_raised_once_and_the_others_go_on(log: EmbeddedLog) -> None:
    with started(log, records=100) as thread:
        thread.add({TopicPartition("absent", 0): 0})
        with pytest.raises(UnknownStore, match="absent"):
            thread.poll_next()
        thread.add({P0: 0})
        assert drain(thread) == list(range(COUNT))


def test_call_answers_after_all_requests_before_it(log: EmbeddedLog) -> None:
    with started(log, records=100) as thread:
        thread.assign({P0: 0, P1: 0})
        thread.remove([P1])
        thread.pause([P0])
        thread.seek(P0, 7)
        assert thread.call(lambda reader: dict(reader.assignment())) == {P0: 7}
        assert thread.call(lambda reader: reader.bounds([P2])) == {P2: (0, COUNT)}


def test_error_of_a_call_is_raised_there_and_nowhere_else(log: EmbeddedLog) -> None:
    with started(log, records=100) as thread:
        thread.assign({P0: 0})
        with pytest.raises(UnknownStore, match="absent"):
            thread.call(lambda reader: reader.bounds([TopicPartition("absent", 0)]))
        with pytest.raises(ZeroDivisionError):
            thread.call(lambda _: 1 // 0)
        assert drain(thread) == list(range(COUNT))


def test_call_that_is_not_begun_in_time_is_unavailable_and_never_done(log: EmbeddedLog) -> None:
    hold, held = threading.Event(), threading.Event()

    def stuck() -> list[Fetched]:
        held.set()
        hold.wait(WAIT_S)
        return []

    with started(log, stuck, records=100) as thread:
        thread.assign({P0: 0})
        assert held.wait(WAIT_S)
        done: list[int] = []
        with pytest.raises(Unavailable, match="not begun within 0 s"):
            thread.call(lambda _: done.append(1), timeout_s=0)
        hold.set()
        assert drain(thread) == list(range(COUNT))
        assert position(thread) == COUNT
        assert done == []


# -- errors ------------------------------------------------------------------------------------------------------------


def test_lost_position_is_raised_once_and_fetching_waits_for_a_request(log: EmbeddedLog) -> None:
    with started(log, records=2) as thread:
        log.truncate(P0, 10)
        thread.assign({P0: 5, P1: 0})
        with pytest.raises(StateLost, match="flights-0: position 5") as raised:
            while True:
                thread.poll_next()
        assert raised.value.reason == "offset-out-of-range"
        fetches = thread.statistics().fetches
        assert thread.call(lambda reader: reader.bounds([P0]))[P0].begin == 10  # a call changes nothing
        assert thread.poll_next(timeout_s=0) == []
        assert thread.statistics().fetches == fetches
        thread.remove([P0])
        assert drain(thread, P1)[-1] == COUNT - 1
        thread.add({P0: 10})
        assert drain(thread) == list(range(10, COUNT))


def test_lost_position_that_a_request_mended_meanwhile_is_not_raised(log: EmbeddedLog) -> None:
    with started(log) as thread:
        log.truncate(P0, 10)
        thread.assign({P0: 5})
        assert position(thread) == 5
        while thread.statistics().batches == 0:  # until the error is in the slot
            position(thread)
        thread.seek(P0, 18)
        assert drain(thread) == [18, 19]


def test_lost_position_comes_again_if_the_request_did_not_mend_it(log: EmbeddedLog) -> None:
    with started(log) as thread:
        log.truncate(P0, 10)
        thread.assign({P0: 5})
        for _ in range(3):
            with pytest.raises(StateLost):
                thread.poll_next()
            thread.resume([])
        thread.seek(P0, 19)
        assert drain(thread) == [19]


def test_log_that_does_not_answer_is_told_and_fetching_goes_on(log: EmbeddedLog) -> None:
    with started(log, failing(Unavailable("no answer")), records=100) as thread:
        thread.assign({P0: 0})
        with pytest.raises(Unavailable, match="no answer"):
            thread.poll_next()
        assert drain(thread) == list(range(COUNT))


@pytest.mark.parametrize("error", [Corruption("page 7"), RuntimeError("a bug"), KeyboardInterrupt()])
def test_error_that_ends_the_thread_comes_after_the_batch_and_once(log: EmbeddedLog, error: BaseException) -> None:
    reader = log.reader()
    reader.assign({P0: 0})
    first = reader.fetch(1)
    thread = started(log, lambda: first, failing(error))
    thread.assign({P0: 1})
    assert offsets(thread.poll_next()) == [0]
    with pytest.raises(type(error)) as raised:
        thread.poll_next()
    assert raised.value is error
    for _ in range(2):
        with pytest.raises(Closed) as closed:
            thread.poll_next()
        assert closed.value.__cause__ is error
    with pytest.raises(Closed):
        thread.seek(P0, 0)
    thread.close()
    assert not thread.statistics().alive


def test_error_that_nobody_polled_is_raised_by_close_once(log: EmbeddedLog) -> None:
    thread = started(log, failing(Corruption("page 7")))
    thread.assign({P0: 0})
    thread._thread.join(WAIT_S)
    assert not thread.statistics().alive
    with pytest.raises(Corruption, match="page 7"):
        thread.close()
    thread.close()


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_asked_for_each_partition_goes_on_exactly_where_it_stands(log: EmbeddedLog, seed: int) -> None:
    random = Random(seed)
    expected: dict[TopicPartition, int] = {}
    with started(log, records=random.choice([1, 2, 5, 9])) as thread:

        def poll() -> None:
            for one in thread.poll_next(timeout_s=0):
                assert one.source in expected
                came = [record.offset for record in one.records]
                assert came == list(range(expected[one.source], expected[one.source] + len(came)))
                assert one.next_offset == expected[one.source] + len(came)
                expected[one.source] = one.next_offset

        for _ in range(150):
            partition, offset = random.choice([P0, P1, P2]), random.randrange(COUNT + 1)
            match random.choice(["poll"] * 6 + ["add", "remove", "seek", "pause", "resume", "assign", "call"]):
                case "poll":
                    poll()
                case "assign":
                    expected = {partition: offset}
                    thread.assign(expected)
                case "remove":
                    expected.pop(partition, None)
                    thread.remove([partition])
                case "call":
                    position_now = thread.call(lambda reader: dict(reader.assignment()))
                    assert position_now.keys() == expected.keys()
                case "add" if partition not in expected:
                    expected[partition] = offset
                    thread.add({partition: offset})
                case "seek" if partition in expected:
                    expected[partition] = offset
                    thread.seek(partition, offset)
                case "pause" if partition in expected:
                    thread.pause([partition])
                case "resume" if partition in expected:
                    thread.resume([partition])
        thread.resume(list(expected))
        while any(offset < COUNT for offset in expected.values()):
            poll()
