"""A wait for a condition, with a bound."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S = 60.0


def until(reached: Callable[[], object], what: str, wait_s: float = WAIT_S) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + wait_s
    while not reached():
        assert time.monotonic() < deadline, f"not within {wait_s} s: {what}"
        time.sleep(0.01)
