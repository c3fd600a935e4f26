"""The storage of an instance whose worker processes make the snapshots: its supervisor lists and prunes.

    workers ── counts of snapshots ──> supervisor ── note ──> a thread: prune if the storage grew, list if that is due

Rules of this file: as `snapshots/care.py`. The supervisor's thread only notes facts here, and waits for no storage.
"""

from __future__ import annotations

from standfast.restore.snapshot.policy import SnapshotPolicy
from standfast.store.clock import Clock
from standfast.stream.snapshot_counts import SnapshotCounts
from standfast.stream.snapshots.care import StorageCare


class InstanceCare(StorageCare):
    """See the head of this file."""

    def __init__(self, app: str, policy: SnapshotPolicy, *, clock: Clock, counts: SnapshotCounts) -> None:
        super().__init__(app, policy, clock=clock, counts=counts)
        self._noted: tuple[frozenset[str], int] = (frozenset(), 0)  # replaced as a whole
        self._made = 0  # as of the last round

    def note(self, tasks: frozenset[str], made: int) -> None:
        """The tasks that run in the workers now, and the number of snapshots that they have made so far."""
        self._noted = tasks, made

    def round(self) -> None:
        """Prune and list, if that is due."""
        tasks, made = self._noted
        grew, self._made = made != self._made, made
        self.care(self._clock.monotonic_ms(), tasks, grew=grew)
