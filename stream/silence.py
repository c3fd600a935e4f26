"""Wall-clock silence of one step: when it has had no record for so long that its windows may be closed.

    record ──> counting ──(after_ms on the monotonic clock)──> due ──> ends of the inputs are asked once
                  ^                                                          │
                  ├── another record, or a restart of the count              ├── not processed up to them: it waits
                  └──────────────────────────────────────────────────────────┴── processed, and still no record: done

The ends make it certain that the silence is the source's: a record that lies in the log and was not read yet, because
the application lags, was paused, stopped by the system, or lost its broker, is below them.

Rules of this file: pure; `now_ms` is monotonic time, so that a wall clock that is set forwards or back changes nothing.
A reading below an earlier one counts as no time at all.
"""

from __future__ import annotations

from collections.abc import Mapping

from standfast.replication.offsets import TopicPartition

Ends = Mapping[TopicPartition, int]


class Silence:
    """The silence of one step. `after_ms`: how long it must last; `now_ms`: when the step begins."""

    __slots__ = ("_after_ms", "_ends", "_since_ms")

    def __init__(self, after_ms: int, now_ms: int) -> None:
        self._after_ms = after_ms
        self._since_ms: int | None = now_ms
        self._ends: Ends | None = None

    def heard(self, now_ms: int) -> None:
        """Note a record of the step; also for a restart of the count, after a time in which nothing was read."""
        self._since_ms = now_ms
        self._ends = None

    def is_due(self, now_ms: int) -> bool:
        """Whether there was no record for `after_ms`."""
        since_ms = self._since_ms
        return since_ms is not None and now_ms - since_ms >= self._after_ms

    @property
    def needs_ends(self) -> bool:
        """Whether the ends of the inputs are still to be asked; only while it is due."""
        return self._ends is None

    def ask(self, ends: Ends) -> None:
        """Note the ends of the inputs: next offset by partition, as the log has them after the silence."""
        self._ends = ends

    def is_confirmed(self, consumed: Ends) -> bool:
        """Whether every record below the ends was processed; `consumed` is the next offset to process by partition."""
        ends = self._ends
        return ends is not None and all(consumed.get(at, end) >= end for at, end in ends.items())

    def done(self) -> None:
        """Note that the windows were closed: nothing is due before the next record."""
        self._since_ms = None
        self._ends = None
