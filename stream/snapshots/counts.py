"""Counts of a session's snapshots.

Rules of this file: plain data; the thread of the snapshots and the openings of tasks add to it.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from standfast.store.histogram import Histogram

MADE, UNCHANGED, FAILED = "made", "unchanged", "failed"
RESTORED, NONE, UNANSWERED = "restored", "none", "failed"
COMPLETE, ABANDONED = "complete", "abandoned"
PAUSE_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
PAUSES_KEPT = 1_000


@dataclass(slots=True)
class SnapshotCounts:
    """Numbers that only grow. Without a policy the counters are empty; with one every outcome exists from the start."""

    made: Counter[str] = field(default_factory=Counter)  # outcome
    restores: Counter[str] = field(default_factory=Counter)  # outcome
    uploaded_bytes: int = 0
    at_ms: dict[str, int] = field(default_factory=dict)  # task; wall time of its last snapshot here
    checkpoints: Counter[str] = field(default_factory=Counter)  # outcome; of those that this instance led
    pauses: Histogram = field(default_factory=lambda: Histogram(PAUSE_BUCKETS_S))  # of tasks, for checkpoints
    pauses_ms: list[int] = field(default_factory=list)  # the last PAUSES_KEPT of them
    checkpoint: str = ""  # the last one, in words

    def paused(self, ms: int) -> None:
        """Count the pause of one task for a checkpoint."""
        self.pauses.observe(ms / 1_000)
        self.pauses_ms.append(ms)
        del self.pauses_ms[:-PAUSES_KEPT]

    def pause_ms(self, share: float) -> int | None:
        """The pause that this share of the last pauses did not exceed, in milliseconds; None without any."""
        found = sorted(self.pauses_ms)
        return found[max(math.ceil(share * len(found)) - 1, 0)] if found else None

    def add(self, other: SnapshotCounts) -> None:
        """Add the numbers of another process; of a task that both had, the later time counts."""
        self.made.update(other.made)
        self.restores.update(other.restores)
        self.uploaded_bytes += other.uploaded_bytes
        for task, at_ms in other.at_ms.items():
            self.at_ms[task] = max(at_ms, self.at_ms.get(task, 0))
        self.checkpoints.update(other.checkpoints)
        self.pauses.add(other.pauses)
        self.pauses_ms = [*self.pauses_ms, *other.pauses_ms][-PAUSES_KEPT:]
        self.checkpoint = self.checkpoint or other.checkpoint

    def copy(self) -> SnapshotCounts:
        """A copy of the numbers."""
        return SnapshotCounts(
            self.made.copy(),
            self.restores.copy(),
            self.uploaded_bytes,
            self.at_ms.copy(),
            self.checkpoints.copy(),
            self.pauses.copy(),
            self.pauses_ms.copy(),
            self.checkpoint,
        )
