"""Processors that note their records and run a test's actions at a record; for tests of the real loop.

Rules of this file: the real parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import standfast as sf

TEXT, JSON = sf.serde.string, sf.serde.json


class Seen:
    """Events that processors saw, in order, and the actions that a test set for a record."""

    def __init__(self) -> None:
        self.records: list[tuple[str, str | None, Any]] = []  # task, topic, key
        self.closed: list[str] = []
        self.on: dict[Any, Callable[[sf.Context], object]] = {}
        self.on_close: Callable[[], object] = lambda: None
        self.on_init: Callable[[sf.Context], object] = lambda context: None

    def processor(self) -> type[sf.Processor]:
        seen = self

        class Noting(sf.Processor):
            def init(self, context: sf.Context) -> None:
                self.context = context
                seen.on_init(context)

            def process(self, record: sf.Record) -> None:
                context = self.context
                seen.records.append((context.task_id, context.topic, record.key))
                seen.on.get(record.key, lambda context: None)(context)
                context.forward(record)

            def close(self) -> None:
                seen.closed.append(self.context.task_id)
                seen.on_close()

        return Noting

    @property
    def keys(self) -> list[Any]:
        return [key for _, _, key in self.records]

    def of(self, task: str) -> list[Any]:
        return [key for one, _, key in self.records if one == task]


def reads(seen: Seen, *topics: str) -> Callable[[sf.App], None]:
    def make(app: sf.App) -> None:
        processor = seen.processor()
        for topic in topics:
            app.source(topic, key=TEXT, value=JSON)(processor)

    return make


def fail(context: sf.Context) -> None:
    raise ValueError("the processor fails")


def keys(prefix: str, count: int, first: int = 0) -> list[tuple[str, str, int]]:
    return [(f"{prefix}{number}", "1", number) for number in range(first, first + count)]
