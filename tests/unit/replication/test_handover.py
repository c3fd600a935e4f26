"""The hand-over between fetch thread and applying thread: each of its promises, then many batches with wake-ups.

Rules of this file: real threads, joined with a time-out; the hand-over's own condition shows which thread waits, so no
test sleeps or depends on the faster thread. The scripts of tests/scenarios/handover play it step by step.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator

import pytest

from standfast.replication.handover import Closed, Handover, HandoverStatistics, WakeUp
from standfast.store.errors import InvalidRequest, StandfastError
from worked_examples.handover import Cast, FetchFailed

JOIN_S = 30.0
BATCHES = 500


class Worker(threading.Thread):
    """A thread whose end and error tests can wait for."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._action = action
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._action()
        except BaseException as error:
            self._error = error

    def finish(self) -> None:
        self.join(JOIN_S)
        assert not self.is_alive(), "the thread is stuck"
        if self._error is not None:
            raise self._error


@pytest.fixture
def cast() -> Iterator[Cast]:
    """A hand-over that is played in steps; every thread is joined in the end."""
    made = Cast()
    yield made
    made.close()


def produce_all(handover: Handover[int], count: int) -> None:
    """Act as the fetch thread: a batch that was woken is offered again."""
    for number in range(count):
        while True:
            try:
                handover.produce(number)
                break
            except WakeUp:
                continue


@pytest.mark.parametrize("wakers", [0, 1, 2])
def test_every_batch_comes_once_and_in_order_whatever_wakes_the_producer(wakers: int) -> None:
    handover: Handover[int] = Handover()
    done = threading.Event()
    came: list[int] = []

    def wake() -> None:
        while not done.is_set():
            handover.wake_up_producer()

    threads = [Worker(wake) for _ in range(wakers)]
    producer = Worker(lambda: produce_all(handover, BATCHES))
    consumer = Worker(lambda: came.extend(handover.poll_next() for _ in range(BATCHES)))
    try:
        consumer.finish()
        producer.finish()
    finally:
        done.set()
        for thread in threads:
            thread.finish()
    assert came == list(range(BATCHES))
    statistics = handover.statistics()
    assert (statistics.produced, statistics.polled, statistics.full) == (BATCHES, BATCHES, False)


@pytest.mark.parametrize("slow", ["producer", "consumer"])
def test_the_faster_side_waits_for_the_slower(slow: str) -> None:
    # The slower side goes on only when the other one waits for it, at every single batch.
    cast = Cast()
    for number in range(20):
        if slow == "producer":
            assert cast.poll() == ["poll: waits"]
            assert cast.produce(str(number)) == [f"poll: {number}", f"produce {number}: taken"]
        else:
            expected = "taken" if number == 0 else "waits"
            assert cast.produce(str(number)) == [f"produce {number}: {expected}"]
            if number:
                assert cast.poll() == [f"produce {number}: taken", f"poll: {number - 1}"]
    cast.close()


# -- errors ------------------------------------------------------------------------------------------------------------


def test_error_on_an_empty_hand_over_is_raised_by_poll() -> None:
    handover: Handover[str] = Handover()
    error = FetchFailed("E")
    assert handover.report_error(error)
    with pytest.raises(FetchFailed) as raised:
        handover.poll_next()
    assert raised.value is error


def test_batch_in_the_slot_is_delivered_before_the_error() -> None:
    handover: Handover[str] = Handover()
    handover.produce("A")
    handover.report_error(FetchFailed("E"))
    assert handover.poll_next() == "A"
    with pytest.raises(FetchFailed, match="E"):
        handover.poll_next()


@pytest.mark.parametrize("full", [False, True])
def test_produce_after_an_error_raises_closed_and_names_it(full: bool) -> None:
    handover: Handover[str] = Handover()
    if full:
        handover.produce("A")
    handover.report_error(LookupError("broker gone"))
    with pytest.raises(Closed, match="LookupError: broker gone") as raised:
        handover.produce("B")
    assert isinstance(raised.value.__cause__, LookupError)


def test_first_error_wins() -> None:
    handover: Handover[str] = Handover()
    assert handover.report_error(FetchFailed("first"))
    assert not handover.report_error(FetchFailed("second"))
    with pytest.raises(FetchFailed, match="first"):
        handover.poll_next()


def test_error_is_raised_by_every_poll_with_the_traceback_of_its_origin() -> None:
    handover: Handover[str] = Handover()
    try:
        raise FetchFailed("E")
    except FetchFailed as error:
        handover.report_error(error)
    depths = []
    for _ in range(3):
        with pytest.raises(FetchFailed) as raised:
            handover.poll_next()
        depths.append(len(traceback.extract_tb(raised.value.__traceback__)))
    assert len(set(depths)) == 1


def test_waiting_poll_gets_the_error(cast: Cast) -> None:
    assert cast.poll() == ["poll: waits"]
    assert cast.do(lambda: cast.handover.report_error(FetchFailed("E"))) == ["poll: raises E"]


def test_waiting_produce_is_ended_by_an_error(cast: Cast) -> None:
    cast.produce("A")
    assert cast.produce("B") == ["produce B: waits"]
    assert cast.do(lambda: cast.handover.report_error(FetchFailed("E"))) == ["produce B: Closed"]


def test_what_is_no_error_cannot_be_reported() -> None:
    handover: Handover[str] = Handover()
    with pytest.raises(InvalidRequest):
        handover.report_error(None)  # type: ignore[arg-type]
    handover.produce("A")
    assert handover.poll_next() == "A"


# -- closing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("full", [False, True])
def test_poll_and_produce_after_close_raise_closed(full: bool) -> None:
    handover: Handover[str] = Handover()
    if full:
        handover.produce("A")
    handover.close()
    with pytest.raises(Closed):
        handover.poll_next()
    with pytest.raises(Closed):
        handover.produce("B")
    handover.close()


def test_close_ends_a_waiting_poll(cast: Cast) -> None:
    assert cast.poll() == ["poll: waits"]
    assert cast.do(cast.handover.close) == ["poll: Closed"]


def test_close_ends_a_waiting_produce(cast: Cast) -> None:
    cast.produce("A")
    assert cast.produce("B") == ["produce B: waits"]
    assert cast.do(cast.handover.close) == ["produce B: Closed"]


def test_close_keeps_the_error_and_lets_the_batch_go() -> None:
    handover: Handover[str] = Handover()
    handover.produce("A")
    handover.report_error(FetchFailed("E"))
    handover.close()
    with pytest.raises(FetchFailed, match="E"):
        handover.poll_next()


def test_error_after_close_changes_nothing() -> None:
    handover: Handover[str] = Handover()
    handover.close()
    assert not handover.report_error(FetchFailed("E"))
    with pytest.raises(Closed):
        handover.poll_next()


# -- waking up ---------------------------------------------------------------------------------------------------------


def test_wake_up_raises_only_while_the_slot_is_full() -> None:
    handover: Handover[str] = Handover()
    handover.wake_up_producer()
    handover.produce("A")  # the slot was empty
    handover.wake_up_producer()
    with pytest.raises(WakeUp):
        handover.produce("B")
    assert handover.poll_next() == "A"
    handover.produce("B")
    assert handover.poll_next() == "B"


def test_wake_up_wakes_only_once(cast: Cast) -> None:
    cast.produce("A")
    cast.do(cast.handover.wake_up_producer)
    assert cast.produce("B") == ["produce B: WakeUp"]
    assert cast.produce("B") == ["produce B: waits"]
    assert cast.poll() == ["produce B: taken", "poll: A"]


def test_two_wake_ups_before_a_produce_are_one(cast: Cast) -> None:
    cast.produce("A")
    cast.do(cast.handover.wake_up_producer)
    cast.do(cast.handover.wake_up_producer)
    assert cast.produce("B") == ["produce B: WakeUp"]
    assert cast.produce("B") == ["produce B: waits"]


def test_wake_up_does_not_touch_a_waiting_poll(cast: Cast) -> None:
    assert cast.poll() == ["poll: waits"]
    assert cast.do(cast.handover.wake_up_producer) == []
    assert cast.produce("A") == ["poll: A", "produce A: taken"]


def test_produce_woken_after_an_error_raises_closed() -> None:
    handover: Handover[str] = Handover()
    handover.produce("A")
    handover.report_error(FetchFailed("E"))
    handover.wake_up_producer()
    with pytest.raises(Closed):
        handover.produce("B")


def test_wake_up_tells_what_to_do_and_is_no_failure() -> None:
    handover: Handover[str] = Handover()
    handover.produce("A")
    handover.wake_up_producer()
    with pytest.raises(WakeUp, match="offer the batch again") as raised:
        handover.produce("B")
    assert isinstance(raised.value, StandfastError)
    assert not isinstance(raised.value, Closed)


# -- arguments and time-outs -------------------------------------------------------------------------------------------


def test_none_is_refused_and_changes_nothing() -> None:
    handover: Handover[str | None] = Handover()
    with pytest.raises(InvalidRequest, match="None is not a batch"):
        handover.produce(None)
    assert handover.statistics() == HandoverStatistics(0, 0, 0, full=False)
    handover.wake_up_producer()
    with pytest.raises(InvalidRequest):
        handover.produce(None)
    handover.produce("A")
    assert handover.poll_next() == "A"


@pytest.mark.parametrize("batch", [[], {}, "", 0, False])
def test_an_empty_batch_is_a_batch(batch: object) -> None:
    handover: Handover[object] = Handover()
    handover.produce(batch)
    assert handover.poll_next() is batch


def test_poll_with_a_time_out_gives_none_when_nothing_comes() -> None:
    handover: Handover[str] = Handover()
    assert handover.poll_next(timeout_s=0) is None
    assert handover.poll_next(timeout_s=0.001) is None
    handover.produce("A")
    assert handover.poll_next(timeout_s=0) == "A"
    handover.close()
    with pytest.raises(Closed):
        handover.poll_next(timeout_s=0)


def test_statistics_tell_what_happened() -> None:
    handover: Handover[str] = Handover()
    handover.produce("A")
    handover.wake_up_producer()
    with pytest.raises(WakeUp):
        handover.produce("B")
    assert handover.statistics() == HandoverStatistics(produced=1, polled=0, wake_ups=1, full=True)
    handover.poll_next()
    assert handover.statistics() == HandoverStatistics(produced=1, polled=1, wake_ups=1, full=False)
