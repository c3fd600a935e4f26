"""The loop and tasks that fail: restart strategies, other tasks go on, the owner of a failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import standfast as sf
from standfast.ops.observe.status import status_document
from standfast.replication.offsets import TaskId
from standfast.stream.runtime.failures import RETRY_WAIT_MS
from support.apps import Running, create, write
from support.loops import Seen, fail, reads
from support.sessions import Bench

TEXT, JSON, INT = sf.serde.string, sf.serde.json, sf.serde.int64
COUNT = sf.KeyValueStore("count", TEXT, INT)


# --- failures ---


def test_failing_task_is_opened_again_after_its_delay_and_the_others_go_on_meanwhile(bench: Bench) -> None:
    create(bench, 2, "in")
    write(bench, "in", ("ok", "1", 1), ("bad", "1", 2))
    write(bench, "in", ("x0", "1", 1), partition=1)
    seen = Seen()
    seen.on["bad"] = fail
    one = Running(bench, reads(seen, "in"), restart=sf.FixedDelay(attempts=3, delay_ms=500))
    one.run()
    assert seen.of("0_0") == ["ok", "bad"]
    assert seen.closed == ["0_0"]
    write(bench, "in", ("x1", "1", 2), partition=1)
    assert one.run() == 1
    bench.clock.advance(499)
    one.run()
    assert seen.of("0_0") == ["ok", "bad"]
    del seen.on["bad"]
    bench.clock.advance(1)
    one.run()
    bench.settle(one.session)
    one.run()
    assert seen.of("0_0") == ["ok", "bad", "ok", "bad"]
    assert seen.of("0_1") == ["x0", "x1"]
    assert one.session.counters.task_failures == 1


def test_status_shows_how_often_a_task_failed_and_when_it_is_opened_again(bench: Bench) -> None:
    create(bench, 2, "in")
    write(bench, "in", ("bad", "1", 1))
    seen = Seen()
    seen.on["bad"] = fail
    one = Running(bench, reads(seen, "in"), restart=sf.FixedDelay(attempts=3, delay_ms=500))

    def shown() -> list[tuple[str, int, int | None]]:
        found = status_document(one.session.statistics())["tasks"]
        return [(task["state"], task["failures"], task["opened_again_ms"]) for task in found]

    one.run()
    assert shown() == [("failed", 1, 500), ("running", 0, None)]
    bench.clock.advance(200)
    assert shown()[0] == ("failed", 1, 300)
    bench.clock.advance(300)
    bench.settle(one.session)
    one.run()
    assert shown()[0] == ("failed", 2, 500)
    del seen.on["bad"]
    bench.clock.advance(500)
    bench.settle(one.session)
    one.run()
    assert shown()[0] == ("running", 2, None)


def test_task_that_may_not_be_restarted_any_more_ends_the_loop_with_its_error(bench: Bench) -> None:
    create(bench, 1, "in")
    write(bench, "in", ("bad", "1", 1))
    seen = Seen()
    seen.on["bad"] = fail
    one = Running(bench, reads(seen, "in"), restart=sf.FixedDelay(attempts=2, delay_ms=100))
    for _ in range(2):
        one.run()
        bench.clock.advance(100)
        one.loop.poll_once()
        bench.settle(one.session)
    with pytest.raises(ValueError, match="the processor fails"):
        one.loop.poll_once()
    assert seen.keys == ["bad"] * 3


@pytest.mark.parametrize("where", ["init", "constructor"])
def test_exception_before_the_first_record_is_the_tasks_own(bench: Bench, where: str) -> None:
    create(bench, 2, "in")
    for partition in range(2):
        write(bench, "in", ("k", "1", 1), partition=partition)
    seen, failures = Seen(), [1]

    def fail_once(*_: object) -> None:
        if failures:
            failures.pop()
            raise ValueError("it does not begin")

    def make(app: sf.App) -> None:
        processor = seen.processor()

        class Begins(processor):  # type: ignore[misc, valid-type]
            def __init__(self) -> None:
                if where == "constructor":
                    fail_once()

        app.source("in", key=TEXT, value=JSON)(Begins)

    if where == "init":
        seen.on_init = fail_once
    one = Running(bench, make, restart=sf.FixedDelay(attempts=1, delay_ms=100))
    one.run()
    assert len(seen.keys) == 1
    bench.clock.advance(100)
    one.loop.poll_once()
    bench.settle(one.session)
    one.run()
    assert sorted(task for task, _, _ in seen.records) == ["0_0", "0_1"]


def test_processor_whose_init_was_not_reached_is_not_closed(bench: Bench) -> None:
    create(bench, 1, "in")
    closed: list[str] = []

    class Step(sf.Processor):
        stores = ()

        def init(self, context: sf.Context) -> None:
            self.name = context.name
            if context.name == "second":
                raise ValueError("it does not begin")

        def close(self) -> None:
            closed.append(self.name)

    def make(app: sf.App) -> None:
        stream = app.stream("in")
        for name in ("first", "second", "third"):
            stream = stream.process(Step, name=name)

    one = Running(bench, make, restart=sf.NoRestart())
    with pytest.raises(ValueError, match="it does not begin"):
        one.loop.poll_once()
    assert closed == ["first", "second"]


def test_failing_close_of_a_task_that_leaves_does_not_take_the_others_down(bench: Bench) -> None:
    create(bench, 2, "in")
    seen = Seen()
    one = Running(bench, reads(seen, "in"))
    one.loop.poll_once()

    def fail_once() -> None:
        seen.on_close = lambda: None
        raise ValueError("close fails")

    seen.on_close = fail_once
    one.session.assign(active=[1])
    write(bench, "in", ("k", "1", 1), partition=1)
    assert one.run() == 1


def test_every_task_is_closed_even_if_the_first_one_fails_in_it(bench: Bench) -> None:
    create(bench, 3, "in")
    seen = Seen()
    one = Running(bench, reads(seen, "in"))
    one.loop.poll_once()

    def close_fails() -> None:
        raise ValueError(f"close {len(seen.closed)} fails")

    seen.on_close = close_fails
    with pytest.raises(ValueError, match="close 1 fails"):
        one.loop.close()
    assert sorted(seen.closed) == ["0_0", "0_1", "0_2"]


def test_failure_of_a_task_that_is_given_records_is_not_its_givers(bench: Bench) -> None:
    create(bench, 1, "in")
    write(bench, "in", ("k", "1", 1))

    def make(app: sf.App) -> None:
        stream = app.stream("in", key=TEXT, value=JSON).map_values(lambda value: b"\xff", value=sf.serde.bytes)
        app.builder.add_exchange("x", "repartition", [stream.node], TEXT, sf.serde.pair("odd", bytes, _refuse))
        app.builder.add_processor("below", sf.Processor, ["app-x-repartition-source"])

    one = Running(bench, make, restart=sf.NoRestart())
    with pytest.raises(sf.InvalidRequest, match="record of app-x-repartition-0 at offset 0: cannot be deserialised"):
        one.commit()
    states = {str(name): task.state.value for name, task in one.session.all_tasks().items()}
    assert states == {"0_0": "running", "1_0": "failed"}


def _refuse(raw: bytes) -> Any:
    raise ValueError("nothing reads this")


def test_task_that_the_session_closed_meanwhile_is_no_failure_of_the_task(bench: Bench) -> None:
    create(bench, 1, "in")
    write(bench, "in", ("k", "1", 1))
    seen = Seen()
    one = Running(bench, reads(seen, "in"), stores=[COUNT], restart=sf.NoRestart())

    def lose(context: sf.Context) -> None:
        task = one.session.task(0)
        task.fail(sf.Fenced("somebody else owns it"))
        task.close()  # as the session does it in its own thread
        context.store("count").put("k", 1)

    seen.on["k"] = lose
    assert one.loop.poll_once() == 0
    assert one.session.counters.task_failures == 0


def test_task_whose_commit_may_have_happened_is_opened_again_as_soon_as_the_log_answers(bench: Bench) -> None:
    """Its error differed from the loop's, which took the task for one that another caller had closed."""
    create(bench, 1, "in")
    write(bench, "in", ("a", "1", 1))
    seen = Seen()
    one = Running(bench, reads(seen, "in"), stores=[COUNT], guarantee="at_least_once", restart=sf.NoRestart())
    seen.on["a"] = lambda context: context.store("count").put("a", 1)
    one.run()
    with _offsets_that_meet_no_answer(one):
        one.loop.commit_all()
    failed = one.session.all_tasks()[TaskId(0, 0)]
    assert isinstance(failed.error, sf.CommitUnknown), failed.error
    assert isinstance(failed.error.__cause__, sf.Unavailable)
    write(bench, "in", ("b", "1", 2))
    bench.clock.advance(RETRY_WAIT_MS)
    one.loop.poll_once()
    bench.settle(one.session)
    one.commit()
    assert seen.keys == ["a", "b"], "its rows and offsets were in the local commit"
    assert one.rows("count") == {"a": 1}


@contextmanager
def _offsets_that_meet_no_answer(one: Running) -> Iterator[None]:
    """The log takes the changes of a commit, and does not reply when its source offsets follow."""
    group = one.session.task(0)._group

    def unanswered(*_: object) -> None:
        raise sf.Unavailable("no answer within 2000 ms")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(group), "commit", unanswered)
        yield
