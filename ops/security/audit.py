"""The audit: actions with their actor, and refusals, as structured lines for the log; the last of them for the page.

    standfast.audit   {"event": "wipe", "actor": "ops", "at_ms": 1357020000000, "task": "0_3", "outcome": "done"}

Rules of this file: events of operators and of security, never keys, values or tokens. A flood of refusals becomes a few
lines and a count, so that no client can fill the disk. Safe to call from any thread.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

from standfast.store.clock import Clock
from standfast.store.log import AUDIT_LOGGER, as_event

KEPT_MAX = 200
TEXT_MAX = 200
REFUSALS_MAX = 10  # lines in REFUSALS_MS
REFUSALS_MS = 10_000
REFUSED = "refused"

audit_logger = logging.getLogger(AUDIT_LOGGER)


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One event. `number` grows by one from 1; `at_ms` is wall time."""

    number: int
    at_ms: int
    event: str
    actor: str
    outcome: str = "done"
    fields: dict[str, str | int] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The event as JSON."""
        return asdict(self)


class Audit:
    """The last KEPT_MAX events; each is logged as well."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: deque[AuditEvent] = deque(maxlen=KEPT_MAX)
        self._number = 0
        self._window_ms = -REFUSALS_MS
        self._refused = 0

    def done(self, event: str, actor: str, **fields: str | int) -> None:
        """Record a completed action: assign, revoke, promote, fence, wipe, skip, drain, reload, ..."""
        self._add(event, actor, "done", fields)

    def failed(self, event: str, actor: str, **fields: str | int) -> None:
        """Record an action that failed."""
        self._add(event, actor, "failed", fields)

    def refused(self, event: str, actor: str, **fields: str | int) -> None:
        """Record a refusal. Of a flood only the first are recorded, and then their number."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            if now_ms - self._window_ms >= REFUSALS_MS:
                left_out, self._refused, self._window_ms = self._refused - REFUSALS_MAX, 0, now_ms
            else:
                left_out = 0
            self._refused += 1
            if self._refused > REFUSALS_MAX:
                return
        # With the next refusal: no timer runs for the count.
        if left_out > 0:
            self._add("refusals_left_out", "-", REFUSED, {"count": left_out})
        self._add(event, actor, REFUSED, fields)

    def recent(self, after: int = 0) -> list[AuditEvent]:
        """Events with a number above `after`, the oldest first."""
        with self._lock:
            return [event for event in self._kept if event.number > after]

    def _add(self, event: str, actor: str, outcome: str, fields: dict[str, str | int]) -> None:
        # Texts come from requests: unbounded they would let a client fill the log.
        short = {name: value if isinstance(value, int) else str(value)[:TEXT_MAX] for name, value in fields.items()}
        with self._lock:
            self._number += 1
            one = AuditEvent(self._number, self._clock.wall_ms(), event, actor[:TEXT_MAX], outcome, short)
            self._kept.append(one)
        line: dict[str, Any] = {"event": event, "actor": one.actor, "outcome": outcome, "at_ms": one.at_ms, **short}
        # ASCII: no control character reaches a terminal.
        audit_logger.info("%s", json.dumps(line), extra=as_event(**line))
