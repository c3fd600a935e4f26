"""Counts of a session's snapshots.

Rules of this file: plain data; the thread of the snapshots and the openings of tasks add to it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

MADE, UNCHANGED, FAILED = "made", "unchanged", "failed"
RESTORED, NONE, UNANSWERED = "restored", "none", "failed"


@dataclass(slots=True)
class SnapshotCounts:
    """Numbers that only grow. Without a policy the counters are empty; with one every outcome exists from the start."""

    made: Counter[str] = field(default_factory=Counter)  # outcome
    restores: Counter[str] = field(default_factory=Counter)  # outcome
    uploaded_bytes: int = 0
    at_ms: dict[str, int] = field(default_factory=dict)  # task; wall time of its last snapshot here

    def add(self, other: SnapshotCounts) -> None:
        """Add the numbers of another process; of a task that both had, the later time counts."""
        self.made.update(other.made)
        self.restores.update(other.restores)
        self.uploaded_bytes += other.uploaded_bytes
        for task, at_ms in other.at_ms.items():
            self.at_ms[task] = max(at_ms, self.at_ms.get(task, 0))

    def copy(self) -> SnapshotCounts:
        """A copy of the numbers."""
        return SnapshotCounts(self.made.copy(), self.restores.copy(), self.uploaded_bytes, self.at_ms.copy())
