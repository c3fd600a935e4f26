"""The loop over several tasks: the choice of the next record, fairness, full inputs, pause and stop."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

import standfast as sf
from standfast.replication.offsets import TopicPartition
from standfast.store.clock import SystemClock
from standfast.stream.runtime import loop as loops
from support.apps import Running, create, write
from support.loops import Seen, keys, reads
from support.sessions import Bench

TEXT, JSON, INT = sf.serde.string, sf.serde.json, sf.serde.int64
COUNT = sf.KeyValueStore("count", TEXT, INT)


# --- the next record ---


@pytest.mark.parametrize("fetched", [1, 2, 3, 7, 1_000])
def test_smallest_timestamp_over_the_inputs_comes_first_however_records_are_fetched(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, fetched: int
) -> None:
    monkeypatch.setattr(loops, "FETCH_RECORDS_MAX", fetched)
    create(bench, 1, "a", "b")
    write(bench, "a", *((f"a{stamp}", "1", stamp) for stamp in (1, 4, 2, 9, 9, 30)))
    write(bench, "b", *((f"b{stamp}", "1", stamp) for stamp in (3, 9, 10, 11, 5)))
    seen = Seen()
    one = Running(bench, reads(seen, "a", "b"))
    for _ in range(40):
        one.loop.poll_once()
    # Order within an input stays; of equal timestamps the first input's comes first.
    assert seen.keys == ["a1", "b3", "a4", "a2", "a9", "a9", "b9", "b10", "b11", "b5", "a30"]


def test_input_that_is_not_at_its_end_is_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    create(bench, 1, "a", "b")
    seen = Seen()
    one = Running(bench, reads(seen, "a", "b"))
    write(bench, "a", ("a5", "1", 5))
    write(bench, "b", *((f"b{stamp}", "1", stamp) for stamp in (6, 3)))
    monkeypatch.setattr(loops, "FETCH_RECORDS_MAX", 1)
    one.loop.poll_once()
    assert seen.keys == []  # one record was fetched; the other input has not been read yet
    for _ in range(5):
        one.loop.poll_once()
    assert seen.keys == ["a5", "b6", "b3"]


def test_input_that_is_empty_at_its_end_holds_nothing_up(bench: Bench) -> None:
    create(bench, 1, "a", "b")
    write(bench, "a", *keys("a", 3))
    seen = Seen()
    one = Running(bench, reads(seen, "a", "b"))
    one.run()
    assert seen.keys == ["a0", "a1", "a2"]


# --- fairness and back-pressure ---


def test_task_with_a_huge_backlog_does_not_keep_the_others_waiting(bench: Bench) -> None:
    create(bench, 2, "in")
    write(bench, "in", *keys("big", 5_000))
    write(bench, "in", *keys("small", 5), partition=1)
    seen = Seen()
    one = Running(bench, reads(seen, "in"))
    one.loop.poll_once()
    assert len(seen.of("0_1")) == 5
    assert len(seen.of("0_0")) <= loops.RECORDS_PER_TURN
    one.run()
    assert len(seen.of("0_0")) == 5_000


def test_two_backlogs_are_processed_turn_by_turn(bench: Bench) -> None:
    create(bench, 2, "in")
    for partition in range(2):
        write(bench, "in", *keys("k", 4_000), partition=partition)
    seen = Seen()
    one = Running(bench, reads(seen, "in"))
    for _ in range(6):
        one.loop.poll_once()
        assert abs(len(seen.of("0_0")) - len(seen.of("0_1"))) <= loops.RECORDS_PER_TURN


def test_reader_pauses_an_input_that_runs_full_and_resumes_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "WAITING_MAX", 20)
    monkeypatch.setattr(loops, "RECORDS_PER_TURN", 10)
    monkeypatch.setattr(loops, "FETCH_RECORDS_MAX", 15)
    create(bench, 1, "in")
    write(bench, "in", *keys("k", 100))
    seen = Seen()
    one = Running(bench, reads(seen, "in"))
    waiting, held = [], []
    for _ in range(12):
        one.loop.poll_once()
        waiting.append(one.runner().status().inputs[0].waiting)
        held.append(bool(one.loop._held))
    assert max(waiting) <= 20 + 15
    assert held[0] is False
    assert held.count(True) >= 2  # and resumed, or the checks below would fail
    assert len(seen.keys) == 100
    assert seen.keys == [key for key, _, _ in keys("k", 100)]


def test_one_full_input_of_two_does_not_stop_the_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "WAITING_MAX", 20)
    monkeypatch.setattr(loops, "FETCH_RECORDS_MAX", 30)
    create(bench, 1, "a", "b")
    write(bench, "a", *((f"a{number}", "1", 10_000 + number) for number in range(100)))
    write(bench, "b", *((f"b{number}", "1", number) for number in range(100)))
    seen = Seen()
    one = Running(bench, reads(seen, "a", "b"))
    one.run()
    assert seen.keys == [f"b{number}" for number in range(100)] + [f"a{number}" for number in range(100)]


# --- pause ---


def test_paused_loop_processes_nothing_keeps_its_tasks_and_commits_what_was_done(bench: Bench) -> None:
    create(bench, 1, "in")
    write(bench, "in", *keys("k", 3))
    seen = Seen()
    one = Running(bench, reads(seen, "in"))
    one.run()
    one.loop.paused = True
    write(bench, "in", *keys("k", 2, first=3))
    assert [one.loop.poll_once() for _ in range(3)] == [0, 0, 0]
    bench.clock.advance(1_000)
    one.loop.poll_once()
    assert one.session.task(0).source_offsets() == {TopicPartition("in", 0): 3}
    one.loop.paused = False
    assert one.run() == 2
    assert seen.closed == []


class Stopped:
    """An application in a thread of its own, stopped at the end."""

    def __init__(self, app: sf.App) -> None:
        self.app = app
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.app.run()
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Stopped:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.app.stop()
        self.thread.join(30)
        assert not self.thread.is_alive()


def real_app(bench: Bench, make: Callable[[sf.App], None], **given: Any) -> sf.App:
    app = sf.App("app", log=bench.address, state_dir=bench.root / "real", **given)
    make(app)
    return app


class NoticedClock(SystemClock):
    """Signals when the loop sleeps, and for how long."""

    def __init__(self) -> None:
        self.slept: dict[float, threading.Event] = defaultdict(threading.Event)
        self.any = threading.Event()

    def sleep_ms(self, duration_ms: float) -> None:
        self.any.set()
        self.slept[duration_ms].set()
        super().sleep_ms(duration_ms)


@pytest.fixture
def shut_wait_ms(monkeypatch: pytest.MonkeyPatch) -> float:
    """The sleep of a paused loop; no wait for records has this length."""
    monkeypatch.setattr(loops, "SHUT_WAIT_MS", 0.5)
    return 0.5


def test_application_pauses_and_resumes_from_another_thread(bench: Bench, shut_wait_ms: float) -> None:
    create(bench, 1, "in")
    write(bench, "in", ("first", "1", 1))
    seen, first, second, clock = Seen(), threading.Event(), threading.Event(), NoticedClock()
    seen.on = {"first": lambda context: first.set(), "second": lambda context: second.set()}
    app = real_app(bench, reads(seen, "in"), clock=clock)
    with Stopped(app):
        assert first.wait(30)
        app.pause()
        clock.slept[shut_wait_ms].clear()
        assert clock.slept[shut_wait_ms].wait(30)
        write(bench, "in", ("second", "1", 2))
        for _ in range(3):
            clock.slept[shut_wait_ms].clear()
            assert clock.slept[shut_wait_ms].wait(30)
        assert not second.is_set()
        app.resume()
        assert second.wait(30)


def test_stop_ends_the_run_from_a_wait_within_a_deadline_and_commits(bench: Bench) -> None:
    create(bench, 1, "in")
    write(bench, "in", ("k", "1", 1))
    seen, arrived, clock = Seen(), threading.Event(), NoticedClock()
    seen.on["k"] = lambda context: arrived.set()
    app = real_app(bench, reads(seen, "in"), commit_interval_ms=1_000_000, clock=clock)
    with Stopped(app) as run:
        assert arrived.wait(30)
        clock.any.clear()
        assert clock.any.wait(30)  # no record is left: it waits for new ones
        app.stop()
        run.thread.join(5)
        assert not run.thread.is_alive()
    assert run.error is None
    assert seen.closed == ["0_0"]
    after = Running(bench, reads(Seen(), "in"), "after")
    assert after.session.task(0).source_offsets() == {TopicPartition("in", 0): 1}


def test_stop_ends_a_run_that_is_paused(bench: Bench, shut_wait_ms: float) -> None:
    create(bench, 1, "in")
    clock = NoticedClock()
    app = real_app(bench, reads(Seen(), "in"), clock=clock)
    app.pause()
    with Stopped(app) as run:
        assert clock.slept[shut_wait_ms].wait(30)
    assert run.error is None


def test_sources_of_every_task_are_paused_and_polled_while_the_gate_is_shut(bench: Bench) -> None:
    create(bench, 2, "in")
    for partition in (0, 1):
        write(bench, "in", (f"before{partition}", "1", 1), partition=partition)
    seen = Seen()
    running = Running(bench, reads(seen, "in"))
    running.run()
    running.commit()
    session, loop = running.session, running.loop
    session.task(1).fail(ValueError("it fails"))
    session.reopen(1)
    assert not session.ready
    for partition in (0, 1):
        write(bench, "in", (f"after{partition}", "1", 2), partition=partition)
    positions = dict(loop._reader.assignment())
    assert [loop.poll_once() for _ in range(3)] == [0, 0, 0]
    assert {at for at in loop._shut if at.partition == 0} == {TopicPartition("in", 0)}
    assert loop._reader.assignment()[TopicPartition("in", 0)] == positions[TopicPartition("in", 0)]
    bench.settle(session)
    running.run()
    assert sorted(seen.keys) == ["after0", "after1", "before0", "before1"]
    assert loop._shut == set()
    loop.close()
