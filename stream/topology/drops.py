"""Counts of skipped records and results, by reason, and log lines about them, but not one per record.

Rules of this file: counts are exact; a reason is logged at most once in `LOG_EVERY_MS`, with the number since then.
"""

from __future__ import annotations

from collections import Counter

from standfast.store.clock import Clock
from standfast.store.log import as_event, logger

LOG_EVERY_MS = 10_000

# Counted by reason; a step with an on_error of its own counts its failures by the step's name.
REASONS = (
    "null_key",
    "null_value",
    "late_window",
    "late_record",
    "invalid_timestamp",
    "deserialize",  # a record
    "process",  # a record
    "result",  # of a table, a cache or a closed window, which failed further downstream
    "timer",
    "call",  # of an asynchronous step
    "dead_letter",  # itself, above a limit of its topic: the record was counted as well
)


class Drops:
    """Counters of one instance, by reason or by step."""

    def __init__(self, clock: Clock) -> None:
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._logged: dict[str, tuple[int, int]] = {}  # reason -> time of its last log line, and the count then

    @property
    def total(self) -> int:
        """The number of all skipped records and results."""
        return sum(self.counts.values())

    def drop(self, reason: str, where: str, detail: str) -> None:
        """Count one, and log it unless the reason was logged within `LOG_EVERY_MS`."""
        self.counts[reason] += 1
        now_ms = self._clock.monotonic_ms()
        logged_ms, before = self._logged.get(reason, (None, 0))
        if logged_ms is not None and now_ms - logged_ms < LOG_EVERY_MS:
            return
        count = self.counts[reason]
        self._logged[reason] = (now_ms, count)
        logger.warning(
            "%s: dropped (%s): %s [%d since the last such line]",
            where,
            reason,
            detail,
            count - before,
            extra=as_event("records_dropped", where=where, reason=reason, records=count - before),
        )
