"""Time and asynchronous steps: watermarks, timers and stream-time punctuations never overtake a record.

An application runs twice over the same records, with an asynchronous step whose answers come in random order and with
the plain step of the same function: the steps behind it see the same records, timers and times in the same order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

import standfast as sf
from support.apps import Drive, Running, create, write, written
from support.calls import Service, until
from support.sessions import Bench

TEXT, JSON, INT = sf.serde.string, sf.serde.json, sf.serde.int64
MINUTE = 60
RECORDS = 120


class Noting(sf.Processor):
    """Notes records, timers and punctuations with the watermark of that moment."""

    stores = ()
    timer_key = TEXT
    lines: list[str]
    timers = True

    def init(self, context: sf.Context) -> None:
        self.context = context
        context.schedule(40, sf.STREAM_TIME, self.tick)

    def process(self, record: sf.Record) -> None:
        context, key = self.context, getattr(record.key, "key", record.key)  # of a window, the plain key
        self.lines.append(f"{key}={record.value} at {record.timestamp}, {context.offset}: {context.watermark_ms}")
        if self.timers and record.value % 7 == 0:
            context.timer(key, record.timestamp + 25)
        context.forward(record)

    def tick(self, now_ms: int) -> None:
        self.lines.append(f"tick at {now_ms}")
        self.context.forward(sf.Record("tick", 0, now_ms))

    def on_timer(self, timer: sf.Timer) -> None:
        self.lines.append(f"timer {timer.key} at {timer.time}: {self.context.watermark_ms}")
        self.context.forward(sf.Record(timer.key, 0, timer.time))


def records(seed: int) -> list[tuple[str, str, int]]:
    rng, stamp, made = random.Random(seed), 1_000, []
    for number in range(RECORDS):
        stamp += rng.choice((0, 1, 3, 20))
        made.append((f"k{rng.randrange(5)}", str(number), max(stamp - rng.choice((0, 0, 5, 70)), 0)))
    return made


def run(bench: Bench, name: str, seed: int, slow: bool, **source: Any) -> tuple[list[str], dict[str, list[Any]]]:
    """The lines and outputs of one run."""
    rng = random.Random(seed)

    def tenfold(value: int) -> int:
        return value * 10

    async def ask(value: int) -> int:
        for _ in range(rng.randrange(6)):
            await asyncio.sleep(rng.choice((0, 0.001)))
        return tenfold(value)

    lines: list[str] = []
    behind: list[str] = []
    noting: Any = type("Noting", (Noting,), {"lines": lines, "timers": bool(source)})
    of_finals: Any = type("OfFinals", (Noting,), {"lines": behind, "timers": bool(source)})

    def make(app: sf.App) -> None:
        stream = app.stream("in", key=TEXT, value=JSON, **source)
        asked = stream.map_values_async(ask, parallel=5, value=INT) if slow else stream.map_values(tenfold, value=INT)
        noted = asked.process(noting, key=TEXT, value=INT)
        noted.to("out")
        counted = asked.group_by_key().window(sf.TumblingWindows(MINUTE, grace_ms=30))
        finals = counted.count("final", emit=sf.ON_WINDOW_CLOSE).to_stream()
        finals.to("finals", value=INT)
        # At a watermark, the windows close first, then timers behind them fire: a call between must not change that.
        again = finals.map_values_async(ask, value=INT) if slow else finals.map_values(tenfold, value=INT)
        again.process(of_finals, name="of-finals", key=TEXT, value=INT)

    store = sf.WindowStore("final", TEXT, INT, window_size_ms=MINUTE, retention_ms=10_000)
    one = Running(bench, make, name, name=name, stores=[store], watermark_interval_ms=0)
    until(one, lambda: one.loop._running and one.runner().inputs["in"].consumed == RECORDS)
    one.loop.commit_all()
    counts = sorted(one.app.drops.counts.items())
    one.close()
    outputs: dict[str, list[Any]] = {
        topic: [(record.key, record.value, record.timestamp) for record in written(bench, topic)]
        for topic in ("out", "late", "finals")
    }
    return [*lines, "behind the windows:", *behind], {**outputs, "drops": counts}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3))])
@pytest.mark.parametrize("watermarks", [None, sf.BoundedDisorder(10)])
def test_steps_behind_an_asynchronous_one_see_records_and_time_in_the_order_of_a_plain_run(
    bench: Bench, seed: int, watermarks: Any
) -> None:
    source = {} if watermarks is None else {"watermarks": watermarks, "late": "late"}
    create(bench, 1, "in", "out", "late", "finals")
    write(bench, "in", *records(seed))
    plain, outputs = run(bench, "plain", seed, False, **source)
    before = {topic: len(written(bench, topic)) for topic in ("out", "late", "finals")}
    asked, all_outputs = run(bench, "asked", seed, True, **source)
    assert asked == plain
    assert any(line.startswith("tick") for line in plain)
    assert any(line.startswith("timer") for line in plain) == (watermarks is not None)
    for topic, count in before.items():
        assert all_outputs[topic][len(outputs[topic]) :] == outputs[topic], topic
        assert count or (topic == "late" and watermarks is None)
    assert all_outputs["drops"] == outputs["drops"]


@pytest.fixture
def service() -> Iterator[Service]:
    yield Service()


def test_poll_of_watermarks_that_is_due_waits_for_the_results_in_flight(bench: Bench, service: Service) -> None:
    create(bench, 1, "in", "out")
    write(bench, "in", ("k", "1", 100), ("k", "2", 200))
    service.held.add(2)
    stamps: list[int | None] = []

    class Notes(sf.Processor):
        def init(self, context: sf.Context) -> None:
            self.context = context

        def process(self, record: sf.Record) -> None:
            stamps.append(self.context.watermark_ms)

    def make(app: sf.App) -> None:
        stream = app.stream("in", key=TEXT, value=JSON, watermarks=sf.BoundedDisorder(0))
        stream.map_values_async(service.ask).process(Notes)

    one = Running(bench, make)
    until(one, lambda: len(service.asked) == 2)
    bench.clock.advance(200)
    for _ in range(20):
        one.loop.poll_once(1)
    runner = one.runner()
    assert runner.watermark_ms() is None
    service.held.clear()
    until(one, lambda: runner.in_flight == 0)
    assert stamps == [None, None]
    until(one, lambda: runner.watermark_ms() == 199)
    one.close()


def test_wall_clock_punctuation_fires_while_calls_are_in_flight(bench: Bench, service: Service) -> None:
    create(bench, 1, "in", "out")
    write(bench, "in", ("k", "1", 100))
    service.held.add(1)
    ticks: list[int] = []

    class Ticks(sf.Processor):
        def init(self, context: sf.Context) -> None:
            context.schedule(100, sf.WALL_CLOCK_TIME, ticks.append)

        def process(self, record: sf.Record) -> None: ...

    one = Running(bench, lambda app: app.stream("in").map_values_async(service.ask).process(Ticks))
    until(one, lambda: service.asked)
    bench.clock.advance(100)
    one.loop.poll_once()
    assert len(ticks) == 1
    # A commit that waits comes first: with a call made by each tick it would never come.
    bench.clock.advance(5_000)
    one.loop.poll_once()
    count = len(ticks)
    bench.clock.advance(100)
    one.loop.poll_once()
    assert len(ticks) == count
    service.held.clear()
    until(one, lambda: len(ticks) == count + 1)
    one.close()


def test_records_between_tasks_pass_an_asynchronous_step_with_their_watermarks(drive: Drive, service: Service) -> None:
    lines: list[str] = []
    noting: Any = type("Noting", (Noting,), {"lines": lines})
    app = sf.App("app", watermark_interval_ms=0)
    stream = app.stream("in", value=INT, watermarks=sf.BoundedDisorder(0)).map_values_async(service.ask, value=INT)
    stream.repartition("x").map_values_async(service.ask, value=INT).process(noting, key=TEXT)
    driver = drive(app)
    driver.pipe("in", "k", 7, 100)
    driver.pipe("in", "k", 1, 200)
    assert lines == [
        "k=700 at 100, 1: None", "tick at 100", "k=100 at 200, 3: 99", "tick at 200", "timer k at 125: 199",
    ]  # fmt: skip
