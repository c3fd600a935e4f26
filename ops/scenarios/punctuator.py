"""The scenario `punctuator`: when scheduled callbacks fire.

    gaps in time keep the phase; first due times; both clocks and their order; cancelling from inside

Rules of this file: it plays the queue of `standfast.stream.punctuation`, applications on the test driver, and for the
order of the two clocks one pass of the real loop; the numbers expected stand in the calls of `stage.step`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from standfast.ops.scenarios.stage import Stage, take
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store.clock import ManualClock
from standfast.stream.app.app import App
from standfast.stream.app.testing import Driver
from standfast.stream.punctuation import STREAM_TIME, WALL_CLOCK_TIME, PunctuationQueue
from standfast.stream.record import Record
from standfast.stream.runtime.loop import Loop
from standfast.stream.session.session import Session
from standfast.stream.topology.assembly import Assembled, assemble
from standfast.stream.topology.processor import Context, Processor

SECOND_MS = 1_000
EVERY_MS = 5_000
TOPIC = "records"
ROUNDS_MAX = 1_000

Fired = list[Any]


def play(stage: Stage) -> None:
    """Every part in turn."""
    _gaps(stage)
    _first_due(stage, None, {1: [1_000], 4: [], 8: [8_000], 10: [10_000]})
    _first_due(stage, 1_000, {1: [1_000], 4: [], 8: [8_000], 10: []})
    _wall_clock(stage)
    _order(stage)
    _both_clocks(stage)
    _cancelling(stage)


def scheduled(init: Callable[[Context], object]) -> App:
    """An application whose one processor only makes schedules."""
    app = App("punctuator")

    @app.source(TOPIC)
    class Scheduled(Processor):
        stores = ()

        def init(self, context: Context) -> None:
            init(context)

        def process(self, record: Record) -> None:
            """A record only moves stream time on."""

    return app


def _gaps(stage: Stage) -> None:
    stage.part("Missed intervals: first due at 5 s, then every 5 s")
    fired: Fired = []
    queue = PunctuationQueue()
    queue.schedule(5_000, EVERY_MS, fired.append)

    def at(now_ms: int, expected: Fired, next_ms: int, why: str) -> None:
        queue.may_punctuate(now_ms)
        seen = {"fired": take(fired), "next": queue.next_due_ms}
        stage.step(f"the time is {now_ms} ms", seen, {"fired": expected, "next": next_ms}, why)

    at(4_999, [], 5_000, "one millisecond before")
    at(21_000, [21_000], 25_000, "5, 10, 15 and 20 s went by: fires once, with now; the grid of 5 s stays")
    at(24_999, [], 25_000, "not 5 s after the last firing (26 s), but the next time of the grid")
    at(25_000, [25_000], 30_000, "exactly at")


def _first_due(stage: Stage, start_ms: int | None, expected: dict[int, Fired]) -> None:
    how = "first due at 0, the default" if start_ms is None else f"start = {start_ms // SECOND_MS} s"
    due = {1: "0", 4: "5", 8: "5", 10: "10"} if start_ms is None else {1: "1", 4: "6", 8: "6", 10: "11"}
    stage.part(f"Stream time: interval 5 s, records at 1, 4, 8 and 10 s, {how}")
    fired: Fired = []
    with Driver(scheduled(lambda context: context.schedule(EVERY_MS, STREAM_TIME, fired.append, start_ms))) as driver:
        for second, wanted in expected.items():
            driver.pipe(TOPIC, "k", "v", second * SECOND_MS)
            why = f"due at {due[second]} s" + (": not yet" if not wanted else "")
            stage.step(f"record at {second} s", take(fired), wanted, why)
        driver.advance_wall_clock(3_600_000)
        stage.step("no record for an hour", take(fired), [], "without records stream time stands still")


def _wall_clock(stage: Stage) -> None:
    stage.part("Wall clock: interval 5 s, made at 100 s, no record at all")
    fired: Fired = []

    def init(context: Context) -> None:
        def callback(now_ms: int) -> None:
            fired.append(now_ms)
            in_hand.append((context.topic, context.partition, context.offset, list(context.headers)))

        context.schedule(EVERY_MS, WALL_CLOCK_TIME, callback)

    in_hand: list[Any] = []
    with Driver(scheduled(init), now_ms=100_000) as driver:

        def forward(duration_ms: int, expected: Fired, why: str) -> None:
            driver.advance_wall_clock(duration_ms)
            stage.step(f"{duration_ms} ms pass: {driver.clock.wall_ms()} ms", take(fired), expected, why)

        forward(4_999, [], "first due one interval after it was made")
        forward(1, [105_000], "exactly at")
        forward(16_000, [121_000], "110, 115 and 120 s were missed: once, with now")
        forward(3_999, [], "125 s is next")
        forward(1, [125_000], "the grid stayed")
    seen = [list(one) for one in dict.fromkeys((t, p, o) for t, p, o, _ in in_hand)]
    stage.step("what the callbacks have in hand", seen, [[None, -1, -1]], "no record: topic, partition, offset")


def _note(fired: Fired, name: str, _now_ms: int) -> None:
    fired.append(name)


def _order(stage: Stage) -> None:
    stage.part("Order: by time due, then by registration")
    fired: Fired = []
    queue = PunctuationQueue()
    for name, due_ms, interval_ms in (("C", 30, 100), ("B", 20, 100), ("A", 10, 10), ("D", 30, 100)):
        queue.schedule(due_ms, interval_ms, partial(_note, fired, name))
    given = "C due at 30, B at 20, A at 10 every 10, D at 30; the time is"
    queue.may_punctuate(30)
    stage.step(f"{given} 30", take(fired), ["A", "B", "C", "D"], "A missed 20 and 30: still once")
    queue.may_punctuate(130)
    stage.step("the time is 130", take(fired), ["A", "B", "C", "D"], "A is due since 40; B, C and D since 120 and 130")


def _both_clocks(stage: Stage) -> None:
    stage.part("Both clocks due in one pass of the loop: stream time first")
    fired: Fired = []

    def init(context: Context) -> None:
        context.schedule(EVERY_MS, WALL_CLOCK_TIME, lambda now_ms: fired.append(f"wall clock {now_ms}"))
        context.schedule(EVERY_MS, STREAM_TIME, lambda now_ms: fired.append(f"stream time {now_ms}"))

    with tempfile.TemporaryDirectory(prefix="standfast-demo-") as folder, LoopRun(scheduled(init), Path(folder)) as run:
        run.poll_once()
        stage.step("the task begins", take(fired), [], "nothing is due")
        run.feed(7_000)
        run.clock.advance(EVERY_MS)
        run.poll_once()
        expected = ["stream time 7000", f"wall clock {run.clock.wall_ms()}"]
        stage.step("record at 7 s, and 5 s pass", take(fired), expected, "the wall clock was registered first")


def _cancelling(stage: Stage) -> None:
    stage.part("Cancelling from inside a callback")
    fired: Fired = []

    def alone(context: Context) -> None:
        def callback(now_ms: int) -> None:
            fired.append(now_ms)
            if now_ms == 2_000:
                handle.cancel()

        handle = context.schedule(SECOND_MS, STREAM_TIME, callback)

    with Driver(scheduled(alone)) as driver:
        for stamp, expected, why in (
            (1_000, [1_000], "not cancelled yet"),
            (2_000, [2_000], "this firing still counts; the callback cancels itself"),
            (3_000, [], "cancelled"),
        ):
            driver.pipe(TOPIC, "k", "v", stamp)
            stage.step(f"record at {stamp} ms", take(fired), expected, why)
    queue = PunctuationQueue()

    def first(_now_ms: int) -> None:
        fired.append("A")
        second.cancel()

    queue.schedule(0, 100, first)
    second = queue.schedule(0, 100, partial(_note, fired, "B"))
    queue.schedule(0, 100, partial(_note, fired, "C"))
    count = queue.may_punctuate(0)
    seen = {"fired": take(fired), "counted": count}
    stage.step("A, B, C due; A cancels B", seen, {"fired": ["A", "C"], "counted": 2}, "B neither fires nor counts")


class LoopRun:
    """An application on an embedded log, its loop driven by hand under a clock that only the scenario moves."""

    def __init__(self, app: App, folder: Path) -> None:
        self.clock = ManualClock(100_000)
        address = f"sqlite:///{folder}/log?synchronous=normal"
        self._log = open_log(address, clock=self.clock)
        self._log.admin.create_topic(TOPIC, 1, TopicPolicy())
        assembled = assemble(app.builder, self._log.admin, address)
        self._session = app.open_session(assembled, address, folder / "state", self.clock, background=False)
        self._restore(self._session, assembled)
        self._loop = Loop(
            self._session,
            assembled.topology,
            app.runner_settings(assembled, self.clock),
            commit_interval_ms=app.commit_interval_ms,
            restart=app.restart,
            clock=self.clock,
        )

    def feed(self, timestamp: int) -> None:
        """One record in the log."""
        producer = self._log.producer()
        producer.append({TopicPartition(TOPIC, 0): [Outgoing(b"k", b'"v"', timestamp)]})
        producer.close()

    def poll_once(self) -> None:
        """One pass."""
        self._loop.poll_once()

    def __enter__(self) -> LoopRun:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.close()
        self._session.close()
        self._log.close()

    @staticmethod
    def _restore(session: Session, assembled: Assembled) -> None:
        wanted = sum(group.partitions for group in assembled.groups.values())
        for _ in range(ROUNDS_MAX):
            if len(session.open_tasks()) == wanted:
                return
            session.poll_once()
        raise AssertionError(f"the task does not run: {session.missing()}")
