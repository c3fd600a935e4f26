"""Applications whose processors note records and timers with the watermark of that moment.

Rules of this file: the real parts; watermarks follow each record unless a test says otherwise.
"""

from __future__ import annotations

from typing import Any

import standfast as sf
from standfast.stream.runtime.task_status import TaskStatus

TEXT, JSON = sf.serde.string, sf.serde.json
ORDER = sf.BoundedDisorder(0)  # the watermark is one below the largest timestamp


class Seen:
    """Events that an application's processors saw, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.contexts: dict[str, sf.Context] = {}
        self.fails_at = -1  # the time of records that a processor fails at

    def processor(self, label: str, *timers_at: int) -> type[sf.Processor]:
        """Notes records and timers with the clock of that moment; sets timers for each record; forwards both."""
        seen = self

        class Noting(sf.Processor):
            stores = ()

            def init(self, context: sf.Context) -> None:
                self.context = context
                seen.contexts[f"{label} {context.task_id}"] = context

            def process(self, record: sf.Record) -> None:
                seen.lines.append(f"{label} record {record.timestamp} clock {self.context.watermark_ms}")
                if record.timestamp == seen.fails_at:
                    raise ValueError("the processor fails")
                for time_ms in timers_at:
                    self.context.timer("k", time_ms)
                self.context.forward(record)

            def on_timer(self, timer: sf.Timer) -> None:
                seen.lines.append(f"{label} timer {timer.time} clock {self.context.watermark_ms}")
                self.context.forward(sf.Record("timer", timer.time, timer.time))

        return Noting


def one_source(seen: Seen, *timers_at: int, **source: Any) -> sf.App:
    app = sf.App("app", watermark_interval_ms=0)
    settings: dict[str, Any] = {"watermarks": ORDER, **source}
    app.stream("in", **settings).process(seen.processor("first", *timers_at), key=TEXT).to("out")
    return app


def pipe(driver: sf.testing.Driver, *stamps: int, topic: str = "in", partition: int = 0, value: Any = 1) -> None:
    for stamp in stamps:
        driver.pipe(topic, "k", value, stamp, partition=partition)


def status(driver: sf.testing.Driver, task: str = "0_0") -> TaskStatus:
    (found,) = [one.status() for name, one in driver._runners.items() if str(name) == task]
    return found
