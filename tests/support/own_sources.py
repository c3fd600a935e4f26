"""Sources of one's own for tests: from a list, a gate that the test opens, failures and hangs.

Rules of this file: a test waits for a thread by `until`, which fails after a while; no source waits for a fixed time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import standfast as sf

WAIT_S = 20.0


class Numbers(sf.Source):
    """Collects the records 0 .. `count` - 1, each with the next offset behind it, as a partition of its own."""

    def __init__(self, count: int, at_ms: int = 1_000) -> None:
        self.count = count
        self.at_ms = at_ms

    def run(self, context: sf.SourceContext) -> None:
        for number in range(context.position, self.count):
            context.collect(sf.Record(f"k{number % 5}", number, self.at_ms + number), number + 1)


class Notes:
    """Events of the runs of a source; shared by all of them, as arguments are."""

    def __init__(self) -> None:
        self.begun: list[int] = []  # position of each run
        self.cancelled = 0
        self.at_work = 0
        self.most_at_work = 0
        self.release = threading.Event()
        self.lock = threading.Lock()


class Noted(sf.Source):
    """Runs `body(context)` and notes when it begins, how many run at once, and when it is cancelled."""

    def __init__(self, notes: Notes, body: Callable[[sf.SourceContext], Any]) -> None:
        self.notes = notes
        self.body = body

    def run(self, context: sf.SourceContext) -> None:
        notes = self.notes
        with notes.lock:
            notes.begun.append(context.position)
            notes.at_work += 1
            notes.most_at_work = max(notes.at_work, notes.most_at_work)
        try:
            self.body(context)
        finally:
            with notes.lock:
                notes.at_work -= 1

    def cancel(self) -> None:
        self.notes.cancelled += 1


def until(condition: Callable[[], object], step: Callable[[], object] = lambda: None) -> None:
    """Repeat `step` until the condition holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        step()
        time.sleep(0.001)
