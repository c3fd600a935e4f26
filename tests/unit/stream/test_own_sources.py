"""Sources of one's own in the loop: positions, the cut, back-pressure, failures, ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import standfast as sf
from standfast.replication.offsets import TopicPartition
from support.apps import Running, create, text_of, written
from support.loops import TEXT
from support.own_sources import Noted, Notes, Numbers, until
from support.sessions import Bench

OFFSETS = "app-numbers-source-offsets"
INT = sf.serde.int64


def summed(source: sf.Source, **options: Any) -> Callable[[sf.App], None]:
    """Sums by key into `sums`, and each record to `out`."""

    def make(app: sf.App) -> None:
        stream = app.stream(source, name="numbers", key=TEXT, value=INT, **options)
        stream.group_by_key().aggregate(lambda: 0, lambda _key, value, total: total + value, "sums")
        stream.to("out")

    return make


STORES = [sf.KeyValueStore("sums", TEXT, INT)]


@pytest.fixture
def start(bench: Bench) -> Iterator[Callable[..., Running]]:
    opened: list[Running] = []
    create(bench, 1, "out")

    def begin(source: sf.Source, directory: str = "a", **given: Any) -> Running:
        options = given.pop("options", {})
        opened.append(Running(bench, summed(source, **options), directory, stores=STORES, **given))
        return opened[-1]

    yield begin
    for running in opened:
        running.loop.close()


def position(bench: Bench, topic: str = OFFSETS, partition: int = 0) -> int | None:
    at = TopicPartition(topic, partition)
    found = bench.log.group("app").committed([at])
    return found[at].offset if at in found else None


def finish(running: Running, count: int) -> None:
    until(lambda: running.loop.records_total >= count, running.loop.poll_once)


def sums(count: int) -> dict[str, int]:
    expected: dict[str, int] = {}
    for number in range(count):
        expected[f"k{number % 5}"] = expected.get(f"k{number % 5}", 0) + number
    return expected


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_position_outputs_and_rows_are_one_cut(bench: Bench, start: Callable[..., Running], guarantee: str) -> None:
    running = start(Numbers(3_000), guarantee=guarantee)
    finish(running, 3_000)
    running.commit()
    assert position(bench) == 3_000
    assert running.rows("sums") == sums(3_000)
    assert len(written(bench, "out")) == 3_000


def test_run_begins_at_the_committed_position_in_any_directory(bench: Bench, start: Callable[..., Running]) -> None:
    notes = Notes()

    def one_by_one(context: sf.SourceContext) -> None:
        for number in range(context.position, context.position + 10):
            context.collect(sf.Record("k", number, 1_000), number + 1)

    for round_, directory in enumerate(("a", "a", "empty")):
        running = start(Noted(notes, one_by_one), directory)
        finish(running, 10)
        running.commit()
        running.close()
        assert position(bench) == 10 * (round_ + 1)
    assert notes.begun == [0, 10, 20]


def test_uncommitted_records_come_again(bench: Bench, start: Callable[..., Running]) -> None:
    running = start(Numbers(20))
    finish(running, 20)
    running.close()  # no commit
    assert position(bench) is None
    again = start(Numbers(20))
    finish(again, 20)
    again.commit()
    assert again.rows("sums") == sums(20)
    assert len(written(bench, "out")) == 20


def test_position_of_a_source_without_any_store_is_in_the_log(bench: Bench) -> None:
    create(bench, 1, "out")
    begun = Notes()

    def make(app: sf.App) -> None:
        def body(context: sf.SourceContext) -> None:
            context.collect(sf.Record(None, context.position, 1_000), context.position + 7)

        app.stream(Noted(begun, body), name="numbers", value=INT).to("out")

    for directory in ("a", "b"):
        running = Running(bench, make, directory)
        finish(running, 1)
        running.commit()
        running.close()
    assert begun.begun == [0, 7]
    assert len(written(bench, "out")) == 2


def test_stream_time_of_a_source_survives_on_another_machine(bench: Bench, start: Callable[..., Running]) -> None:
    running = start(Numbers(20, at_ms=5_000))
    finish(running, 20)
    running.commit()
    running.close()
    again = start(Numbers(20), "another")
    again.loop.poll_once()
    assert again.runner().stream_time_ms() == 5_019


def test_collect_waits_while_the_loop_does_not_process(bench: Bench, start: Callable[..., Running]) -> None:
    collected = [0]

    def endless(context: sf.SourceContext) -> None:
        while True:
            context.collect(sf.Record("k", 1, 1_000), context.position + 1)
            collected[0] += 1

    running = start(Noted(Notes(), endless))
    running.loop.poll_once()
    running.loop.paused = True
    until(lambda: collected[0] >= 1_000)
    for _ in range(20):
        running.loop.poll_once()
    most = collected[0]
    until(lambda: True)
    assert most <= 1_000 + 500 + 250
    assert collected[0] == most
    running.loop.paused = False
    finish(running, most + 1_000)


def test_finished_source_is_idle_and_its_status_says_so(bench: Bench, start: Callable[..., Running]) -> None:
    running = start(Numbers(10))
    finish(running, 10)
    until(lambda: states(running) == ["finished"], running.loop.poll_once)
    status = running.session.statistics().own_sources[0]
    assert (status.source, status.partition, status.task, status.collected, status.processed, status.waiting) == (
        "numbers", 0, "0_0", 10, 10, 0,
    )  # fmt: skip
    until(lambda: running.runner().status().inputs[0].idle, running.loop.poll_once)
    assert running.session.statistics().counters.source_records == {("numbers", 0): 10}


def states(running: Running) -> list[str]:
    return [one.state for one in running.session.statistics().own_sources]


# --- failures ---------------------------------------------------------------------------------------------------------


def test_source_that_raises_fails_its_task_and_begins_again_at_the_position(
    bench: Bench, start: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    notes = Notes()

    def breaks(context: sf.SourceContext) -> None:
        for number in range(context.position, 30):
            context.collect(sf.Record(f"k{number % 5}", number, 1_000), number + 1)
            if number == 10 * len(notes.begun) - 1 and len(notes.begun) < 3:
                raise ConnectionError("the line is cut")

    running = start(Noted(notes, breaks), restart=sf.FixedDelay(5, 100))

    def step() -> None:
        running.loop.poll_once()
        bench.clock.advance(50)
        running.session.poll_once()

    until(lambda: position(bench) == 30, step)
    # Records collected before a failure are committed: a source that fails often gets ahead all the same.
    assert notes.begun == [0, 10, 20]
    assert running.rows("sums") == sums(30)
    assert len(written(bench, "out")) == 30
    assert "the line is cut" in caplog.text
    assert "source 'numbers' of task 0_0 failed behind offset 10" in caplog.text


def test_source_that_always_raises_ends_the_application_with_its_error(
    bench: Bench, start: Callable[..., Running]
) -> None:
    def breaks(context: sf.SourceContext) -> None:
        raise ConnectionError("the line is cut")

    running = start(Noted(Notes(), breaks), restart=sf.NoRestart())
    with pytest.raises(ConnectionError, match="the line is cut") as caught:
        until(lambda: False, running.loop.poll_once)
    assert any("source 'numbers' of task 0_0 failed behind offset 0" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("error", [sf.Unavailable("down"), sf.Fenced("other"), SystemExit(3), sf.Closed("gone")])
def test_error_of_a_class_that_the_loop_would_misread_is_the_sources_own(
    bench: Bench, start: Callable[..., Running], error: BaseException
) -> None:
    def breaks(context: sf.SourceContext) -> None:
        raise error

    running = start(Noted(Notes(), breaks), restart=sf.NoRestart())
    with pytest.raises(sf.InvalidRequest, match="source 'numbers' of task 0_0 failed behind offset 0") as caught:
        until(lambda: False, running.loop.poll_once)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    ("offset", "said"),
    [
        (4, "its offset goes back from 5 to 4"),
        (5, "its offset stays at 5"),
        (-1, "offset -1 is not valid"),
        (5.5, "offset 5.5 is not valid"),
        (True, "offset True is not valid"),
        (2**62, "offset 4611686018427387904 is not valid"),
        (None, "offset None is not valid"),
    ],
)
@pytest.mark.parametrize("swallowed", [False, True])
def test_offset_that_does_not_grow_fails_the_task_and_names_both(
    bench: Bench, start: Callable[..., Running], offset: Any, said: str, swallowed: bool
) -> None:
    def goes_back(context: sf.SourceContext) -> None:
        context.collect(sf.Record("k", 1, 1_000), 5)
        try:
            context.collect(sf.Record("k", 2, 1_000), offset)
        except sf.InvalidRequest:
            if not swallowed:
                raise

    running = start(Noted(Notes(), goes_back), restart=sf.NoRestart())
    with pytest.raises(sf.InvalidRequest, match=f"source 'numbers', partition 0: {said}"):
        until(lambda: False, running.loop.poll_once)
    assert position(bench) == 5


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (("k", 1, 1_000), "it collects tuple"),
        (sf.Record("k", 1, None), "it collects a record with timestamp None"),  # type: ignore[arg-type]
        (sf.Record("k", 1, 1.5), "it collects a record with timestamp 1.5"),  # type: ignore[arg-type]
    ],
)
def test_anything_but_a_record_with_a_time_fails_the_task(
    bench: Bench, start: Callable[..., Running], record: Any, said: str
) -> None:
    running = start(Noted(Notes(), lambda context: context.collect(record, 1)), restart=sf.NoRestart())
    with pytest.raises(sf.InvalidRequest, match=said):
        until(lambda: False, running.loop.poll_once)


def test_negative_timestamp_is_handled_as_the_sources_setting_says(bench: Bench, start: Callable[..., Running]) -> None:
    def body(context: sf.SourceContext) -> None:
        for offset, stamp in enumerate((5, -1, 7), 1):
            context.collect(sf.Record("k", 1, stamp), offset)

    running = start(Noted(Notes(), body), options={"invalid_timestamp": "skip"})
    until(lambda: states(running) == ["finished"], running.loop.poll_once)
    running.commit()
    assert [stamp for _, _, stamp in text_of(written(bench, "out"))] == [5, 7]
    assert running.app.drops.counts == {"invalid_timestamp": 1}
    assert position(bench) == 3


# --- ends -------------------------------------------------------------------------------------------------------------


def hangs(notes: Notes) -> Callable[[sf.SourceContext], None]:
    def body(context: sf.SourceContext) -> None:
        context.collect(sf.Record("k", 1, 1_000), context.position + 1)
        notes.release.wait()

    return body


def test_close_cancels_the_source_and_waits_for_its_end(bench: Bench, start: Callable[..., Running]) -> None:
    notes = Notes()
    running = start(Noted(notes, lambda context: until(lambda: context.wait(0.01))))
    until(lambda: notes.at_work, running.loop.poll_once)
    running.close()
    assert (notes.at_work, notes.cancelled) == (0, 1)


def test_close_names_a_source_whose_thread_does_not_end(bench: Bench, start: Callable[..., Running]) -> None:
    notes = Notes()
    running = start(Noted(notes, hangs(notes)), source_cancel_timeout_ms=40)
    finish(running, 1)
    with pytest.raises(
        sf.InvalidRequest, match=r"not ended within 40 ms: source 'numbers' of task 0_0: its run\(\) does"
    ):
        running.loop.close()
    notes.release.set()


def test_failed_task_begins_again_only_when_its_source_has_ended(bench: Bench, start: Callable[..., Running]) -> None:
    notes = Notes()
    running = start(Noted(notes, hangs(notes)), restart=sf.FixedDelay(5, 100))
    finish(running, 1)
    task = running.runner().task
    running.loop._failed(task.id, task, ValueError("a processor fails"))
    bench.clock.advance(200)
    for _ in range(20):
        running.loop.poll_once()
        running.session.poll_once()
    assert notes.begun == [0]
    assert task.id not in running.loop._running
    notes.release.set()
    until(lambda: len(notes.begun) == 2, lambda: (running.loop.poll_once(), running.session.poll_once()))
    assert notes.most_at_work == 1
    assert notes.cancelled == 1


def test_source_that_does_not_end_for_a_restart_ends_the_application_at_the_deadline(
    bench: Bench, start: Callable[..., Running]
) -> None:
    notes = Notes()
    running = start(Noted(notes, hangs(notes)), restart=sf.FixedDelay(5, 100), source_cancel_timeout_ms=7_000)
    finish(running, 1)
    task = running.runner().task
    running.loop._failed(task.id, task, ValueError("a processor fails"))
    bench.clock.advance(6_999)
    running.loop.poll_once()
    bench.clock.advance(1)
    with pytest.raises(
        sf.InvalidRequest, match=r"not ended within 7\.0 s: source 'numbers' of task 0_0: .*support/own_sou"
    ):
        running.loop.poll_once()
    assert notes.most_at_work == 1
    notes.release.set()
    # Its deadline by the test's clock is over, so that a close would not wait for the thread.
    until(lambda: not notes.at_work)


def test_cancel_that_hangs_is_named_too(bench: Bench, start: Callable[..., Running]) -> None:
    release = threading.Event()

    class Stuck(sf.Source):
        def run(self, context: sf.SourceContext) -> None:
            while not context.wait(0.01):
                pass

        def cancel(self) -> None:
            release.wait()

    running = start(Stuck(), source_cancel_timeout_ms=40)
    until(lambda: states(running) == ["running"], running.loop.poll_once)
    with pytest.raises(sf.InvalidRequest, match=r"source 'numbers' of task 0_0: its cancel\(\) does not return"):
        running.loop.close()
    release.set()


def test_cancel_that_raises_is_logged_and_the_run_ends(
    bench: Bench, start: Callable[..., Running], caplog: pytest.LogCaptureFixture
) -> None:
    class Raises(sf.Source):
        def run(self, context: sf.SourceContext) -> None:
            while not context.wait(0.01):
                pass

        def cancel(self) -> None:
            raise OSError("no such socket")

    running = start(Raises())
    until(lambda: states(running) == ["running"], running.loop.poll_once)
    running.close()
    assert "source 'numbers' of task 0_0: its cancel() failed" in caplog.text


def test_application_refuses_a_second_thread_beside_one_of_an_earlier_run(bench: Bench) -> None:
    create(bench, 1, "out")
    notes = Notes()
    app = sf.App("app", log=bench.address, state_dir=bench.root / "a", stores=STORES, source_cancel_timeout_ms=200)
    summed(Noted(notes, hangs(notes)))(app)
    errors: list[str] = []

    def run() -> None:
        try:
            app.run()
        except sf.InvalidRequest as error:
            errors.append(str(error))

    for _ in range(2):
        thread = threading.Thread(target=run)
        thread.start()
        until(lambda: notes.begun)
        app.stop()
        thread.join()
        app._stop.clear()
    assert ["source 'numbers' of task 0_0: its run() does not return" in error for error in errors] == [True, True]
    assert notes.begun == [0]
    notes.release.set()


def test_taken_over_source_ends_here_and_goes_on_there(bench: Bench, start: Callable[..., Running]) -> None:
    notes = Notes()

    def steadily(context: sf.SourceContext) -> None:
        while not context.wait(0):
            context.collect(sf.Record("k0", 1, 1_000), context.position + 1)

    first = start(Noted(notes, steadily), "a")
    finish(first, 100)
    first.loop.commit_all()
    at = position(bench)
    assert at is not None
    second = start(Noted(notes, steadily), "b", settle=False)
    task = first.runner().task.id
    first.session._instance.give_up([task])
    until(lambda: notes.at_work == 0, first.loop.poll_once)
    first.close()
    until(lambda: second.loop.records_total > 100, lambda: (second.session.poll_once(), second.loop.poll_once()))
    second.loop.commit_all()
    assert notes.begun[1] == at
    rows = second.rows("sums")
    assert rows == {"k0": position(bench)}
    assert len(written(bench, "out")) == position(bench)


def test_source_of_a_task_that_moves_away_ends_the_application_at_the_deadline(
    bench: Bench, start: Callable[..., Running]
) -> None:
    notes = Notes()
    running = start(Noted(notes, hangs(notes)), source_cancel_timeout_ms=7_000)
    finish(running, 1)
    running.loop.commit_all()
    running.session._instance.give_up([running.runner().task.id])
    running.loop.poll_once()
    assert notes.cancelled == 1
    bench.clock.advance(6_999)
    running.loop.poll_once()
    bench.clock.advance(1)
    with pytest.raises(sf.InvalidRequest, match=r"not ended within 7\.0 s: source 'numbers' of task 0_0"):
        running.loop.poll_once()
    notes.release.set()
    until(lambda: not notes.at_work)
