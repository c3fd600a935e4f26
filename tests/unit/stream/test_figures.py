"""Figures read by a thread: the present ones, or the last ones with their age while a reading does not end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from standfast.store.clock import ManualClock
from standfast.store.process.figures import Figures

WAIT_S = 20.0


class Source:
    """Counts its readings, and holds one back on a test's command."""

    def __init__(self) -> None:
        self.readings = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self.error: Exception | None = None

    def read(self) -> int:
        self.readings += 1
        number = self.readings
        assert self.go_on.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        return number


@pytest.fixture
def source() -> Iterator[Source]:
    source = Source()
    yield source
    source.go_on.set()


def test_each_call_gets_figures_that_were_read_for_it(source: Source, clock: ManualClock) -> None:
    figures = Figures(source.read, clock)
    assert [figures.take() for _ in range(3)] == [(1, 0), (2, 0), (3, 0)]


def test_while_a_reading_hangs_the_last_figures_are_given_with_their_age(source: Source, clock: ManualClock) -> None:
    figures = Figures(source.read, clock)
    figures.take()
    source.go_on.clear()
    clock.advance(5_000)
    assert figures.take(0.01) == (1, 5_000)
    clock.advance(1_000)
    # It takes longer than a call would wait: no caller waits, and no second reading begins.
    assert figures.take(1.0) == (1, 6_000)
    assert source.readings == 2
    source.go_on.set()
    assert figures.take(WAIT_S)[0] >= 2


def test_error_is_raised_to_who_asked_and_the_next_call_reads_again(source: Source, clock: ManualClock) -> None:
    figures = Figures(source.read, clock)
    source.error = ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        figures.take()
    source.error = None
    assert figures.take() == (2, 0)


def test_a_reading_whose_thread_a_signal_handler_kept_from_beginning_is_not_waited_for(
    source: Source, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    figures = Figures(source.read, clock)
    figures.take()
    with monkeypatch.context() as signal, pytest.raises(KeyboardInterrupt):
        signal.setattr(threading.Thread, "start", start)
        figures.take()
    clock.advance(5_000)
    assert figures.take() == (2, 0)
