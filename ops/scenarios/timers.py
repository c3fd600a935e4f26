"""The scenario `timers`: timers per key, by event time and by the wall clock.

    order by time, then key; exactly at its time; cancelling; what a callback sets; a restart

Rules of this file: it plays applications on the test driver; the timers lie in a real logged store. The numbers
expected stand in the calls of `stage.step`. The source's watermarks are the largest timestamp - 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from standfast.ops.scenarios.stage import Stage, take
from standfast.store import serde
from standfast.stream.app.app import App
from standfast.stream.app.testing import Driver
from standfast.stream.record import Record
from standfast.stream.timer import EVENT_TIME, PROCESSING_TIME, Timer, TimerKind
from standfast.stream.topology.processor import Context, Processor
from standfast.stream.watermarks import BoundedDisorder

TOPIC = "in"
CLOCK = "clock"  # the key of records that only move the watermark on

Fired = list[list[Any]]
OnTimer = Callable[[Context, Timer], None]


def play(stage: Stage) -> None:
    """Every part in turn."""
    _order(stage)
    _cancel(stage)
    _from_callbacks(stage)
    _restart(stage)
    _wall_clock(stage)


def with_timers(fired: Fired, kind: TimerKind = EVENT_TIME, then: OnTimer | None = None) -> App:
    """A record's value says what to do: {"set": [times], "cancel": [times]} for its key. What fires is noted."""
    app = App("timers", watermark_interval_ms=0)

    @app.source(TOPIC, key=serde.string, value=serde.json, watermarks=BoundedDisorder(0))
    class Timed(Processor):
        stores = ()

        def init(self, context: Context) -> None:
            self.context = context

        def process(self, record: Record) -> None:
            for time_ms in record.value.get("set", ()):
                self.context.timer(record.key, time_ms, kind)
            for time_ms in record.value.get("cancel", ()):
                self.context.cancel_timer(record.key, time_ms, kind)

        def on_timer(self, timer: Timer) -> None:
            fired.append([timer.key, timer.time])
            if then is not None:
                then(self.context, timer)

    return app


def watermark(driver: Driver, to_ms: int) -> None:
    """Move the watermark on with a record one after it."""
    driver.pipe(TOPIC, CLOCK, {}, to_ms + 1)


def _order(stage: Stage) -> None:
    stage.part("Order: by time, then by key, whatever the order in which they were set")
    fired: Fired = []
    with Driver(with_timers(fired)) as driver:
        for key, times in (("b", [30]), ("a", [30, 31]), ("c", [20])):
            driver.pipe(TOPIC, key, {"set": times}, 10)
            driver.pipe(TOPIC, key, {"set": times}, 10)  # the same key and time is one timer
        stage.step("b at 30, a at 30 and 31, c at 20, each set twice", take(fired), [], "the watermark is 9")
        for to_ms, expected, why in (
            (19, [], "one before"),
            (20, [["c", 20]], "exactly at; set twice, it is one timer"),
            (30, [["a", 30], ["b", 30]], "of one time: by key"),
            (100, [["a", 31]], "each fires once"),
        ):
            watermark(driver, to_ms)
            stage.step(f"watermark {to_ms}", take(fired), expected, why)
        driver.pipe(TOPIC, "d", {"set": [50]}, 102)
        stage.step("d set at 50, behind the watermark", take(fired), [["d", 50]], "fires with the next watermark")


def _cancel(stage: Stage) -> None:
    stage.part("Cancelling")
    fired: Fired = []
    with Driver(with_timers(fired)) as driver:
        driver.pipe(TOPIC, "a", {"set": [40, 50]}, 10)
        driver.pipe(TOPIC, "b", {"set": [40]}, 10)
        driver.pipe(TOPIC, "a", {"cancel": [40, 41]}, 10)
        watermark(driver, 40)
        why = "a's was taken back; to cancel one that is not there (41) is fine"
        stage.step("a at 40 and 50, b at 40; a's 40 cancelled; watermark 40", take(fired), [["b", 40]], why)
        watermark(driver, 50)
        stage.step("watermark 50", take(fired), [["a", 50]], "the other one of a stays")


def _from_callbacks(stage: Stage) -> None:
    stage.part("What a callback sets and cancels counts in the same step")
    fired: Fired = []

    def then(context: Context, timer: Timer) -> None:
        if timer.key == "a" and timer.time == 10:
            context.timer("a", 15)
            context.timer("a", 26)
            context.cancel_timer("b", 20)

    with Driver(with_timers(fired, then=then)) as driver:
        for key, time_ms in (("a", 10), ("b", 20), ("c", 20)):
            driver.pipe(TOPIC, key, {"set": [time_ms]}, 5)
        watermark(driver, 25)
        given = "a at 10, b and c at 20; a's callback sets a at 15 and 26 and cancels b; watermark 25"
        expected: Fired = [["a", 10], ["a", 15], ["c", 20]]
        stage.step(given, take(fired), expected, "15 is due and comes before 20; 26 is not yet")
        watermark(driver, 26)
        stage.step("watermark 26", take(fired), [["a", 26]], "exactly at")


def _restart(stage: Stage) -> None:
    stage.part("Timers are kept in a logged store: a restart loses none and fires none twice")
    fired: Fired = []
    with Driver(with_timers(fired)) as driver:
        driver.pipe(TOPIC, "a", {"set": [50, 60]}, 10)
        driver.restart()
        stage.step("a at 50 and 60; restart", take(fired), [], "both wait in the store")
        watermark(driver, 50)
        stage.step("watermark 50", take(fired), [["a", 50]], "set before the restart")
        driver.restart()
        stage.step("restart", take(fired), [], "50 has fired")
        watermark(driver, 60)
        stage.step("watermark 60", take(fired), [["a", 60]], "once")


def _wall_clock(stage: Stage) -> None:
    stage.part("By the wall clock: no record is needed")
    fired: Fired = []
    with Driver(with_timers(fired, PROCESSING_TIME), now_ms=1_000) as driver:
        driver.pipe(TOPIC, "a", {"set": [2_000]}, 10)
        for duration_ms, expected, why in (
            (999, [], "one before"),
            (1, [["a", 2_000]], "exactly at"),
            (5_000, [], "once: it does not come again"),
        ):
            driver.advance_wall_clock(duration_ms)
            stage.step(f"the clock is {driver.clock.wall_ms()}", take(fired), expected, why)
