"""Applications with one processor that makes schedules, and runs a test's actions in callbacks.

Rules of this file: the real parts; the test checks the calls that fired.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import standfast as sf
from standfast.stream.punctuation import Cancellable

TEXT, JSON, INT = sf.serde.string, sf.serde.json, sf.serde.int64
STREAM, WALL = sf.STREAM_TIME, sf.WALL_CLOCK_TIME
Schedule = tuple[str, int, Any, int | None]  # name, interval, kind, start


class Probe:
    """An application with one processor that runs a test's actions, and notes its calls."""

    def __init__(self, *schedules: Schedule, sources: tuple[str, ...] = ("in",), **given: Any) -> None:
        self.fired: list[tuple[str, int]] = []
        self.handles: dict[str, Cancellable] = {}
        self.on: dict[str, Callable[[sf.Context, int], object]] = {}
        self.on_record: Callable[[sf.Context, sf.Record], object] = lambda context, record: None
        self.contexts: list[sf.Context] = []
        self.schedules = list(schedules)
        source = {name: given.pop(name) for name in ("idle_after_ms", "on_error") if name in given}
        self.app = sf.App("app", stores=[sf.KeyValueStore("kv", TEXT, INT)], **given)
        for topic in sources:
            self.app.source(topic, key=TEXT, value=JSON, **source)(self.processor())
        self.app.sink("out", key=TEXT, value=INT)(self.processor())

    def processor(self) -> type[sf.Processor]:
        if hasattr(self, "_made"):
            return self._made
        probe = self

        class Probing(sf.Processor):
            stores = ("kv",)

            def init(self, context: sf.Context) -> None:
                self.context = context
                probe.contexts.append(context)
                for schedule in probe.schedules:
                    probe.schedule(context, *schedule)

            def process(self, record: sf.Record) -> None:
                probe.on_record(self.context, record)

        self._made: type[sf.Processor] = Probing
        return Probing

    def schedule(self, context: sf.Context, name: str, interval: int, kind: Any, start: int | None = None) -> None:
        def callback(now_ms: int) -> None:
            self.fired.append((name, now_ms))
            self.on.get(name, lambda context, now_ms: None)(context, now_ms)

        self.handles[name] = context.schedule(interval, kind, callback, start)

    @property
    def times(self) -> list[int]:
        return [now_ms for _, now_ms in self.fired]


def pipe(driver: sf.testing.Driver, *stamps: int, topic: str = "in") -> None:
    for stamp in stamps:
        driver.pipe(topic, "a", 1, stamp)
