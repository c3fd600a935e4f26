"""A service for asynchronous steps, whose answers a test holds back and lets go; loops that run until they come.

Rules of this file: the functions run on the event loop's thread, a test sets their behaviour from its own. No test
waits for a fixed time: `until` runs rounds until a condition holds.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from support.apps import Running

PATIENCE_S = 30.0


class Service:
    """Answers ten times the value, once the value is not held any more."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.held: set[Any] = set()
        self.fails: Counter[Any] = Counter()  # value -> how often it fails before it answers
        self.cancelled: list[Any] = []
        self.active = 0
        self.most = 0

    async def ask(self, value: Any) -> Any:
        self.asked.append(value)
        self.active += 1
        self.most = max(self.most, self.active)
        try:
            await asyncio.sleep(0)
            while value in self.held:
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled.append(value)
            raise
        finally:
            self.active -= 1
        if self.fails[value] > 0:
            self.fails[value] -= 1
            raise ConnectionError(f"no answer for {value}")
        return value * 10

    async def pair(self, key: Any, value: Any) -> tuple[Any, Any]:
        return f"{key}!", await self.ask(value)


def until(one: Running, condition: Callable[[], object]) -> None:
    """Rounds of the loop until the condition holds."""
    wait_for(condition, lambda: one.loop.poll_once(1))


def wait_for(condition: Callable[[], object], work: Callable[[], object] = lambda: time.sleep(0.001)) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        work()
