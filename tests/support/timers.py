"""Applications whose records set and cancel timers.

Rules of this file: the real parts; the test checks the timers that fired.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import standfast as sf

TEXT, JSON, INT = sf.serde.string, sf.serde.json, sf.serde.int64
EVENT, WALL = sf.EVENT_TIME, sf.PROCESSING_TIME
Act = Callable[[sf.Context, sf.Timer], object]


class Timed:
    """An application whose records set and cancel timers.

    Records are ["set" | "cancel", time, key, kind]; any other value is only a time. Watermarks follow at once and are
    one below the largest timestamp, so that a record at t + 1 brings the clock to t.
    """

    def __init__(self, key_serde: Any = TEXT, **given: Any) -> None:
        self.fired: list[tuple[Any, int]] = []
        self.timers: list[sf.Timer] = []
        self.on: dict[Any, Act] = {}
        self.contexts: list[sf.Context] = []
        self.app = sf.App("app", watermark_interval_ms=0, **given)
        self.declare(self.app, key_serde)

    def declare(self, app: sf.App, key_serde: Any = TEXT) -> None:
        timed = self

        class Timing(sf.Processor):
            timer_key = key_serde

            def init(self, context: sf.Context) -> None:
                self.context = context
                timed.contexts.append(context)

            def process(self, record: sf.Record) -> None:
                if isinstance(record.value, list):
                    what, time_ms, key, kind = record.value
                    act = self.context.timer if what == "set" else self.context.cancel_timer
                    act(key, time_ms, sf.Timer(key, 0, WALL).kind if kind == "wall" else EVENT)

            def on_timer(self, timer: sf.Timer) -> None:
                timed.timers.append(timer)
                timed.fired.append((timer.key, timer.time))
                timed.on.get(timer.key, lambda context, timer: None)(self.context, timer)
                self.context.forward(sf.Record(None, f"{timer.key}@{timer.time}", timer.time))

        app.source("in", key=TEXT, value=JSON, watermarks=sf.BoundedDisorder(0))(Timing)
        app.sink("out", key=TEXT, value=JSON)(Timing)


def at(driver: sf.testing.Driver, clock_ms: int) -> None:
    """Bring the event-time clock to a time."""
    driver.pipe("in", "time", None, clock_ms + 1)


def ask(driver: sf.testing.Driver, what: str, key: Any, *times: int, kind: str = "event", stamp: int = 0) -> None:
    for time_ms in times:
        driver.pipe("in", "a", [what, time_ms, key, kind], stamp)
