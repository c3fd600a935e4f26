"""Asynchronous steps in the real loop: bounds, the commit, other tasks, revocation, a function that blocks or stays."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import standfast as sf
from standfast.ops.observe.metrics_values import session_samples
from standfast.ops.observe.status import counters_document
from standfast.ops.observe.status_merge import counters_of
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.stream.runtime import call_loop, loop, task_calls
from support.apps import Running, create, text_of, write, written
from support.calls import Service, until, wait_for
from support.sessions import Bench

TEXT, JSON, INT = sf.serde.string, sf.serde.json, sf.serde.int64
IN = TopicPartition("in", 0)
Start = Callable[..., Running]


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def start(bench: Bench) -> Iterator[Start]:
    """Starts instances whose loops are closed when the test ends."""
    opened: list[Running] = []

    def begin(make: Callable[[sf.App], object], *given: Any, **settings: Any) -> Running:
        one = Running(bench, make, *given, **settings)
        opened.append(one)
        return one

    yield begin
    for one in opened:
        one.loop.close()


def asking(service: Service, **options: Any) -> Callable[[sf.App], None]:
    def make(app: sf.App) -> None:
        app.stream("in", key=TEXT, value=JSON).map_values_async(service.ask, name="ask", **options).to("out")

    return make


def committed(one: Running, partition: int = 0) -> int:
    at = TopicPartition("in", partition)
    found = one.session.log.group("app").committed([at]).get(at)
    return 0 if found is None else found.offset


def processed(one: Running, partition: int = 0) -> int:
    """The next offset to process of a partition's task; -1 while it does not run."""
    running = one.loop._running.get(TaskId(0, partition))
    return -1 if running is None else running.runner.inputs["in"].consumed


def values(bench: Bench, partition: int = 0) -> list[str | None]:
    return [value for _, value, _ in text_of(written(bench, "out", partition))]


# --- bounds and the commit ---


def test_task_takes_no_further_record_while_twice_parallel_calls_are_in_flight(
    bench: Bench, start: Start, service: Service
) -> None:
    create(bench, 1, "in", "out")
    write(bench, "in", *[("k", str(number), number) for number in range(20)])
    service.held.update(range(20))
    one = start(asking(service, parallel=3))
    until(one, lambda: len(service.asked) == 3)
    for _ in range(3):
        one.loop.poll_once()
    runner = one.runner()
    assert (runner.in_flight, service.active, runner.inputs["in"].consumed) == (6, 3, 6)
    assert runner.status().calls == (task_calls.CallStatus("ask", 6, 0),)
    service.held.clear()
    until(one, lambda: runner.inputs["in"].consumed == 20)
    one.loop.commit_all()
    assert values(bench) == [str(10 * number) for number in range(20)]
    assert service.most == 3


def test_nothing_is_committed_before_its_result_and_polling_goes_on_meanwhile(
    bench: Bench, start: Start, service: Service
) -> None:
    create(bench, 1, "in", "out")
    write(bench, "in", ("k", "1", 1), ("k", "2", 2))
    service.held.add(2)
    one = start(asking(service))
    until(one, lambda: service.asked == [1, 2])
    bench.clock.advance(5_000)
    steps = list(one.session.progress.words)
    for _ in range(20):
        one.loop.poll_once(1)
    assert list(one.session.progress.words) != steps
    assert (values(bench), committed(one)) == ([], 0)
    # A record that comes while the commit waits is fetched, and not processed before it.
    write(bench, "in", ("k", "3", 3))
    for _ in range(5):
        one.loop.poll_once(1)
    assert service.asked == [1, 2] and one.runner().waiting(IN) == 1
    service.held.clear()
    until(one, lambda: committed(one) == 2)
    assert values(bench) == ["10", "20"]
    bench.clock.advance(5_000)
    until(one, lambda: committed(one) == 3)
    assert values(bench) == ["10", "20", "30"]


def test_task_that_waits_for_its_calls_does_not_stop_the_others(bench: Bench, start: Start, service: Service) -> None:
    create(bench, 2, "in", "out")
    write(bench, "in", ("k", "1", 1))
    service.held.add(1)
    one = start(asking(service))
    until(one, lambda: service.asked == [1])
    bench.clock.advance(5_000)
    one.loop.poll_once()
    write(bench, "in", *[("o", str(number), number) for number in range(2, 40)], partition=1)
    until(one, lambda: processed(one, 1) == 38)
    bench.clock.advance(5_000)
    until(one, lambda: committed(one, 1) > 0)
    assert (committed(one), committed(one, 1) > 0) == (0, True)
    service.held.clear()
    until(one, lambda: committed(one) == 1)


def test_commit_asked_for_by_a_step_behind_comes_after_the_results_in_flight(
    bench: Bench, start: Start, service: Service
) -> None:
    class Commits(sf.Processor):
        def init(self, context: sf.Context) -> None:
            self.context = context

        def process(self, record: sf.Record) -> None:
            self.context.forward(record)
            self.context.commit()

    def make(app: sf.App) -> None:
        app.stream("in", key=TEXT, value=JSON).map_values_async(service.ask).process(Commits).to("out")

    create(bench, 1, "in", "out")
    write(bench, "in", ("k", "1", 1), ("k", "2", 2), ("k", "3", 3))
    service.held.add(3)
    one = start(make)
    until(one, lambda: len(service.asked) == 3)
    for _ in range(20):
        one.loop.poll_once(1)
    assert committed(one) == 0
    service.held.clear()
    until(one, lambda: committed(one) == 3)
    assert values(bench) == ["10", "20", "30"]


def test_last_commit_waits_for_its_calls_but_not_for_ever(
    bench: Bench, start: Start, service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create(bench, 1, "in", "out")
    write(bench, "in", ("k", "1", 1))
    one = start(asking(service))
    one.run()
    one.loop.commit_all()
    assert (values(bench), committed(one)) == (["10"], 1)
    monkeypatch.setattr(loop, "LAST_CALLS_MS", 20)
    write(bench, "in", ("k", "2", 2))
    service.held.add(2)
    until(one, lambda: service.asked == [1, 2])
    one.loop.commit_all()
    assert committed(one) == 1
    assert "1 calls have no result after 20 ms" in caplog.text
    one.close()
    assert service.cancelled == [2]
    service.held.clear()
    again = start(asking(service))
    until(again, lambda: service.asked == [1, 2, 2])
    again.loop.commit_all()
    assert values(bench) == ["10", "20"]


def test_full_buffer_commits_once_results_are_in(bench: Bench, start: Start, service: Service) -> None:
    create(bench, 1, "in", "out")
    write(bench, "in", *[("k", str(number), number) for number in range(200)])
    one = start(asking(service, parallel=8))
    until(one, lambda: processed(one) > 0)
    buffer = one.runner().task.stores.buffer
    buffer.bound_bytes = 50
    until(one, lambda: one.runner().inputs["in"].consumed == 200)
    one.loop.commit_all()
    assert values(bench) == [str(10 * number) for number in range(200)]
    assert one.session.counters.commits["committed"] > 5


# --- failures and leaving ---


def test_failed_call_fails_its_task_at_the_record_and_the_record_is_asked_again(
    bench: Bench, start: Start, service: Service
) -> None:
    create(bench, 1, "in", "out")
    write(bench, "in", ("k", "1", 1), ("k", "2", 2), ("k", "3", 3))
    service.fails[2] = 1
    one = start(asking(service), restart=sf.FixedDelay(attempts=3, delay_ms=100))
    until(one, lambda: one.session.counters.task_failures)
    assert committed(one) == 0 and one.session.counters.calls_ended["ask", "failed"] == 1
    bench.clock.advance(100)
    one.loop.poll_once()
    bench.settle(one.session)
    until(one, lambda: processed(one) == 3)
    one.loop.commit_all()
    assert values(bench) == ["10", "20", "30"]


def test_task_is_given_up_at_the_offset_of_the_call_that_always_fails(
    bench: Bench, start: Start, service: Service
) -> None:
    create(bench, 1, "in", "out")
    write(bench, "in", ("k", "1", 1), ("k", "2", 2))
    service.fails[2] = 1_000
    one = start(asking(service), restart=sf.ExponentialDelay(initial_ms=1, same_offset=2))
    with pytest.raises(ConnectionError) as failed:
        for failures in range(1, 4):
            until(one, lambda failures=failures: one.session.counters.task_failures == failures)
            bench.clock.advance(10)
            one.loop.poll_once()
            bench.settle(one.session)
    assert any("in-0 at offset 1" in note and "on_error" in note for note in failed.value.__notes__)


def test_revoked_task_cancels_its_calls_and_the_next_owner_makes_them_again(
    bench: Bench, start: Start, service: Service
) -> None:
    create(bench, 1, "in", "out")
    write(bench, "in", ("k", "1", 1), ("k", "2", 2))
    service.held.update((1, 2))
    one = start(asking(service))
    until(one, lambda: service.asked == [1, 2])
    one.close()
    assert sorted(service.cancelled) == [1, 2] and service.active == 0
    service.held.clear()
    two = start(asking(service), "b")
    until(two, lambda: service.asked == [1, 2, 1, 2])
    two.loop.commit_all()
    assert values(bench) == ["10", "20"]


def test_function_that_ignores_its_cancellation_is_named(
    bench: Bench, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_loop, "CANCEL_MS", 30)
    let_go = threading.Event()
    begun = threading.Event()

    async def stubborn(value: Any) -> Any:
        begun.set()
        while not let_go.is_set():
            try:
                await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                continue

    create(bench, 1, "in", "out")
    write(bench, "in", ("k", "1", 1))
    one = start(lambda app: app.stream("in").map_values_async(stubborn, name="ask").to("out"))
    until(one, begun.is_set)
    with pytest.raises(
        sf.InvalidRequest, match=r"(?s)step 'ask' of task 0_0.*stubborn still runs 30 ms after.*test_as"
    ):
        one.loop.close()
    let_go.set()


def test_time_out_of_a_function_that_ignores_its_cancellation_is_its_failure(
    bench: Bench, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_loop, "CANCEL_MS", 30)
    let_go = threading.Event()

    async def stubborn(value: Any) -> Any:
        while not let_go.is_set():
            try:
                await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                continue

    create(bench, 1, "in", "out")
    write(bench, "in", ("k", "1", 1))
    one = start(
        lambda app: app.stream("in").map_values_async(stubborn, timeout_ms=5, retries=9).to("out"),
        restart=sf.NoRestart(),
    )
    with pytest.raises(sf.InvalidRequest, match="stubborn still runs"):
        until(one, lambda: False)
    let_go.set()


def test_function_that_blocks_the_event_loop_is_reported_with_its_line(
    bench: Bench, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(call_loop, "BEAT_MS", 5)
    monkeypatch.setattr(call_loop, "BLOCKED_MS", 20)
    let_go = threading.Event()

    async def blocks(value: Any) -> Any:
        let_go.wait(30)
        return value

    create(bench, 1, "in", "out")
    write(bench, "in", ("k", "1", 1))
    one = start(lambda app: app.stream("in").map_values_async(blocks, name="ask").to("out"))
    until(one, lambda: "blocks the event loop" in caplog.text)
    assert "test_async_loop.py" in caplog.text and "in blocks" in caplog.text and "step 'ask'" in caplog.text
    let_go.set()
    until(one, lambda: one.runner().in_flight == 0 and one.runner().inputs["in"].consumed == 1)
    one.loop.commit_all()
    assert len(values(bench)) == 1


def test_function_that_blocks_for_ever_fails_its_task_and_others_get_a_new_event_loop(
    bench: Bench, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, short_ms in (("BEAT_MS", 5), ("BLOCKED_MS", 10), ("BLOCKED_MAX_MS", 60), ("CANCEL_MS", 20)):
        monkeypatch.setattr(call_loop, name, short_ms)
    for name in ("CANCEL_MS", "SPARE_MS"):
        monkeypatch.setattr(task_calls, name, 20)
    let_go = threading.Event()
    blocked: list[Any] = []

    async def blocks(value: Any) -> Any:
        if not blocked:
            blocked.append(value)
            let_go.wait(30)
        return value

    create(bench, 1, "in", "out")
    write(bench, "in", ("k", "1", 1))
    one = start(lambda app: app.stream("in").map_values_async(blocks).to("out"), restart=sf.FixedDelay(1, 0))
    until(one, lambda: one.session.counters.task_failures)
    one.loop.poll_once()
    bench.settle(one.session)
    until(one, lambda: processed(one) == 1)
    one.loop.commit_all()
    assert len(values(bench)) == 1
    let_go.set()


def test_init_that_never_ends_fails_the_task(bench: Bench, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("standfast.stream.runtime.runner.START_MAX_MS", 30)

    class Hangs(sf.Processor):
        async def init(self, context: sf.Context) -> None:
            await asyncio.Event().wait()

        async def process(self, record: sf.Record) -> None: ...

    create(bench, 1, "in")
    one = start(lambda app: app.source("in")(Hangs), restart=sf.NoRestart())
    with pytest.raises(sf.InvalidRequest, match="init of processor 'Hangs' of task 0_0 has not ended after 30 ms"):
        until(one, lambda: False)


def test_no_thread_is_started_without_an_asynchronous_step_and_none_stays(
    bench: Bench, start: Start, service: Service
) -> None:
    def threads() -> list[str]:
        return [one.name for one in threading.enumerate() if one.name == "standfast-calls"]

    before = len(threads())
    create(bench, 1, "in", "out")
    write(bench, "in", ("k", "1", 1))
    one = start(lambda app: app.stream("in").map_values(lambda value: value).to("out"))
    one.run()
    assert len(threads()) == before
    one.close()
    two = start(asking(service), "b")
    until(two, lambda: service.asked == [1])
    assert len(threads()) == before + 1
    two.close()
    wait_for(lambda: len(threads()) == before)


# --- figures ---


def test_calls_are_counted_by_step(bench: Bench, start: Start, service: Service) -> None:
    create(bench, 1, "in", "out")
    write(bench, "in", ("k", "1", 1), ("k", "2", 2), ("k", "3", 3))
    service.fails.update({1: 1, 2: 9})
    service.held.add(3)
    one = start(asking(service, retries=1, backoff_ms=0, on_error="skip"))
    until(one, lambda: one.session.counters.calls_ended["ask", "failed"])
    samples = {(name, labels): value for name, labels, value in session_samples(one.session.statistics())}
    assert samples["calls_in_flight", ("ask",)] == 1
    service.held.clear()
    until(one, lambda: one.runner().in_flight == 0)
    statistics = one.session.statistics()
    samples = {(name, labels): value for name, labels, value in session_samples(statistics)}
    assert samples["calls_in_flight", ("ask",)] == 0
    assert samples["calls_total", ("ask", "succeeded")] == 2
    assert samples["calls_total", ("ask", "failed")] == 1
    assert samples["call_retries_total", ("ask",)] == 2
    assert samples["call_timeouts_total", ("ask",)] == 0
    again = counters_of(counters_document(statistics.counters))
    assert again.calls_ended == statistics.counters.calls_ended
    assert again.call_seconds[("ask",)].counts == statistics.counters.call_seconds[("ask",)].counts


def test_many_tasks_share_one_event_loop(bench: Bench, start: Start, service: Service) -> None:
    create(bench, 3, "in", "out")
    for partition in range(3):
        write(bench, "in", *[("k", str(number), number) for number in range(30)], partition=partition)
    one = start(asking(service, parallel=4))
    started = time.monotonic()
    until(one, lambda: [processed(one, partition) for partition in range(3)] == [30, 30, 30])
    one.loop.commit_all()
    assert time.monotonic() - started < 30
    found = [value for partition in range(3) for value in values(bench, partition)]
    assert found == [str(10 * number) for number in range(30)] * 3
    assert service.most <= 12
