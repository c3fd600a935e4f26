"""The scenario `watermarks`: how a task's event-time clock moves, and what becomes of late records.

    bounded disorder, never back; late records to a side output; two inputs, one clock; idleness; across a topic

Rules of this file: it plays applications on the test driver, and the valve of `standfast.stream.watermarks` where that
says who holds the clock back; the numbers expected stand in the calls of `stage.step`.
"""

from __future__ import annotations

from typing import Any

from standfast.ops.scenarios.stage import Stage, take
from standfast.store import serde
from standfast.stream.app.app import App
from standfast.stream.app.testing import Driver
from standfast.stream.record import Record
from standfast.stream.topology.processor import Context, Processor
from standfast.stream.watermarks import Active, BoundedDisorder, Channel, Idle, Watermark, WatermarkValve

LATE = "late"
IDLE_AFTER_MS = 1_000


def play(stage: Stage) -> None:
    """Every part in turn."""
    _one_source(stage)
    _two_inputs(stage)
    _idle(stage)
    _behind(stage)
    _across_a_topic(stage)


class Seen:
    """What processors met: the context of each task, and each record's timestamp."""

    def __init__(self) -> None:
        self.contexts: dict[str, Context] = {}
        self.stamps: list[int] = []

    def processor(self) -> type[Processor]:
        """A processor that notes them here."""
        seen = self

        class Noting(Processor):
            stores = ()

            def init(self, context: Context) -> None:
                seen.contexts[context.task_id] = context

            def process(self, record: Record) -> None:
                seen.stamps.append(record.timestamp)

        return Noting

    def clock(self, task: str = "0_0") -> int | None:
        """The event-time clock of a task; None while it is unknown."""
        return self.contexts[task].watermark_ms


def _one_source(stage: Stage) -> None:
    stage.part("One source, records at most 5 behind the largest: the watermark is the largest - 5 - 1")
    app, seen = App("watermarks", watermark_interval_ms=0), Seen()
    app.source("in", watermarks=BoundedDisorder(5), late=LATE)(seen.processor())
    with Driver(app) as driver:
        stage.step("nothing", {"watermark": seen.clock()}, {"watermark": None}, "unknown: no record is late")
        for stamp, watermark, processed, why in (
            (100, 94, True, "94: one at 95 may still come"),
            (97, 94, True, "3 behind; the watermark never goes back"),
            (103, 97, True, "moves on"),
            (98, 97, True, "one after the watermark: in time"),
            (97, 97, False, "exactly at the watermark: late, to the side output"),
            (96, 97, False, "one before: late"),
            (110, 104, True, "moves on"),
        ):
            driver.pipe("in", "k", "v", stamp)
            late = [record.timestamp for record in driver.read(LATE)]
            came: dict[str, Any] = {"processed": take(seen.stamps), "late": late, "watermark": seen.clock()}
            wanted = {"processed": [stamp] * processed, "late": [stamp] * (not processed), "watermark": watermark}
            stage.step(f"record at {stamp}", came, wanted, why)
        stage.step("dropped", driver.dropped, 0, "what went to the side output is not lost")


def _two_inputs(stage: Stage) -> None:
    stage.part("Two inputs share one clock: the smallest of both; who holds it back is told")
    clicks, orders = Channel("clicks/0"), Channel("orders/0")
    valve = WatermarkValve([clicks, orders])
    for channel, watermark, clock, holds, why in (
        (clicks, 100, None, "orders/0", "orders said nothing yet"),
        (orders, 50, 50, "orders/0", "the smallest of 100 and 50"),
        (orders, 40, 50, "orders/0", "never back"),
        (orders, 120, 100, "clicks/0", "the smallest of 100 and 120"),
        (clicks, 120, 120, "clicks/0", "both are there: the first is named"),
    ):
        valve.on_signal(channel, Watermark(watermark))
        seen = {"clock": valve.clock_ms, "waits_for": str(valve.holding_back())}
        stage.step(f"{channel} says {watermark}", seen, {"clock": clock, "waits_for": holds}, why)
    for stamp, late in ((120, True), (121, False)):
        why = "at the clock, of either input" if late else "one after"
        stage.step(f"is a record at {stamp} late?", valve.is_late(stamp), late, why)


def _idle(stage: Stage) -> None:
    stage.part(f"An input without records for more than {IDLE_AFTER_MS} ms is left out")
    app, seen = App("watermarks"), Seen()
    processor = seen.processor()
    for topic in ("clicks", "orders"):
        app.source(topic, watermarks=BoundedDisorder(0), idle_after_ms=IDLE_AFTER_MS)(processor)
    with Driver(app) as driver:

        def pipe(topic: str, stamp: int, expected: int | None, why: str) -> None:
            driver.pipe(topic, "k", "v", stamp)
            stage.step(f"{topic}: record at {stamp}", {"clock": seen.clock()}, {"clock": expected}, why)

        def forward(duration_ms: int, expected: int, why: str) -> None:
            driver.advance_wall_clock(duration_ms)
            stage.step(f"{duration_ms} ms pass", {"clock": seen.clock()}, {"clock": expected}, why)

        pipe("clicks", 100, None, "the sources are asked every 200 ms")
        pipe("orders", 50, None, "not asked yet")
        forward(500, 49, "clicks is at 99, orders at 49: the smallest")
        pipe("clicks", 200, 49, "not asked yet")
        forward(500, 49, "orders was silent for exactly 1000 ms: still waited for")
        forward(199, 49, "1199 ms, but the sources are not asked yet")
        forward(1, 199, "orders was silent for 1200 ms: idle, so the clock follows clicks alone")
        pipe("orders", 60, 199, "active again, but behind: the clock does not go back")
        forward(200, 199, "its 59 does not count before it has caught up")


def _behind(stage: Stage) -> None:
    stage.part("An input that comes back behind the clock counts again from where it has caught up")
    clicks, orders = Channel("clicks/0"), Channel("orders/0")
    valve = WatermarkValve([clicks, orders])
    valve.on_signal(clicks, Watermark(100))
    valve.on_signal(orders, Watermark(50))
    for given, channel, signal, clock, state, why in (
        ("orders/0 is idle", orders, Idle(), 100, "idle", "the clock goes on to the smallest of the rest"),
        ("orders/0 is active", orders, Active(), 100, "behind", "its 50 is behind the clock"),
        ("clicks/0 says 150", clicks, Watermark(150), 150, "behind", "it does not hold the clock back"),
        ("orders/0 says 149", orders, Watermark(149), 150, "behind", "one before the clock"),
        ("orders/0 says 150", orders, Watermark(150), 150, "active", "caught up: it counts again"),
        ("clicks/0 says 200", clicks, Watermark(200), 150, "active", "and holds the clock back"),
    ):
        valve.on_signal(channel, signal)
        states = {str(one.channel): one.state for one in valve.statistics().inputs}
        seen = {"clock": valve.clock_ms, "orders/0": states["orders/0"]}
        stage.step(given, seen, {"clock": clock, "orders/0": state}, why)


def _across_a_topic(stage: Stage) -> None:
    stage.part("Across a repartition topic: each upstream task writes its own watermark, downstream takes the smallest")
    app, seen = App("watermarks", watermark_interval_ms=0), Seen()
    stream = app.stream("in", key=serde.string, value=serde.json, watermarks=BoundedDisorder(0))
    stream.repartition("middle").process(seen.processor())
    with Driver(app, partitions=2) as driver:
        for partition, stamp, clock, why in (
            (0, 101, None, "task 0_1 said nothing yet"),
            (1, 51, 50, "0_0 is at 100, 0_1 at 50"),
            (0, 201, 50, "0_1 holds both tasks behind the topic back"),
            (1, 151, 150, "0_0 is at 200, 0_1 at 150"),
        ):
            driver.pipe("in", "k", "v", stamp, partition=partition)
            clocks = {task: seen.clock(task) for task in ("1_0", "1_1")}
            given = f"record at {stamp} in partition {partition}"
            stage.step(given, clocks, {"1_0": clock, "1_1": clock}, why)
        driver.restart()
        clocks = {task: seen.clock(task) for task in ("1_0", "1_1")}
        stage.step("restart", clocks, {"1_0": 150, "1_1": 150}, "clocks are part of what is committed")
