"""Counts of a session's snapshots, the downloads that run now, and the snapshots that the storage held last.

Rules of this file: plain data; the thread of the snapshots and the openings of tasks add to it, other threads read.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from dataclasses import dataclass, field

from standfast.store.histogram import Histogram

MADE, UNCHANGED, FAILED = "made", "unchanged", "failed"
LISTING = "listing"  # beside the tasks, among errors
RESTORED, NONE, UNANSWERED = "restored", "none", "failed"
COMPLETE, ABANDONED = "complete", "abandoned"
PAUSE_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
PAUSES_KEPT = 1_000
ERROR_SHOWN_MAX = 400
STORE = "store"  # one lost store of a task, whose neighbours stayed


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot of a task that runs here, as the storage held it at the last listing; times in milliseconds."""

    snapshot: str
    task: str
    epoch: int
    position: int
    bytes: int
    files: int
    stored_ms: int


@dataclass(frozen=True, slots=True)
class DownloadStatistics:
    """One snapshot on its way into a task's directory; rate in bytes per second, seconds_left None while none come."""

    task: str
    snapshot: str
    bytes: int
    done_bytes: int
    elapsed_ms: int
    rate: float
    seconds_left: float | None


class Downloads:
    """The downloads of a session by task. Any thread may add to it or look."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now: dict[str, tuple[str, int, int, int]] = {}  # snapshot, bytes, those done, begun at (monotonic)

    def add(self, task: str, snapshot: str, size: int, count: int, now_ms: int) -> None:
        """Count bytes that have arrived, none at the begin; another snapshot of the task replaces the one before."""
        with self._lock:
            kept = self._now.get(task)
            begun, done = (now_ms, 0) if kept is None or kept[0] != snapshot else (kept[3], kept[2])
            self._now[task] = (snapshot, size, done + count, begun)

    def end(self, task: str) -> None:
        """The task's download has ended, however it did."""
        with self._lock:
            self._now.pop(task, None)

    def statistics(self, now_ms: int) -> tuple[DownloadStatistics, ...]:
        """The downloads at `now_ms` (monotonic)."""
        with self._lock:
            now = sorted(self._now.items())
        found = []
        for task, (snapshot, size, done, begun_ms) in now:
            elapsed_ms = max(now_ms - begun_ms, 0)
            rate = done * 1_000 / elapsed_ms if elapsed_ms else 0.0
            left_s = max(size - done, 0) / rate if rate else None
            found.append(DownloadStatistics(task, snapshot, size, done, elapsed_ms, rate, left_s))
        return tuple(found)


@dataclass(slots=True)
class SnapshotCounts:
    """Numbers that only grow, and the last listing. Without a policy all is empty; with one every outcome exists."""

    made: Counter[str] = field(default_factory=Counter)  # outcome
    restores: Counter[str] = field(default_factory=Counter)  # outcome
    uploaded_bytes: int = 0
    at_ms: dict[str, int] = field(default_factory=dict)  # task; wall time of its last snapshot here
    checkpoints: Counter[str] = field(default_factory=Counter)  # outcome; of those that this instance led
    pauses: Histogram = field(default_factory=lambda: Histogram(PAUSE_BUCKETS_S))  # of tasks, for checkpoints
    pauses_ms: list[int] = field(default_factory=list)  # the last PAUSES_KEPT of them
    checkpoint: str = ""  # the last one, in words
    downloaded_bytes: int = 0
    storage: str = ""  # where the snapshots are, without its query
    stored: tuple[StoredSnapshot, ...] = ()
    listed_ms: int = 0  # wall time of the listing that `stored` shows; 0: none yet
    # By task or LISTING: text and wall time, until mended.
    errors: dict[str, tuple[str, int]] = field(default_factory=dict)

    def note_error(self, what: str, error: Exception, now_ms: int) -> None:
        """Show an error of a task, or of LISTING, until it is mended."""
        self.errors[what] = (str(error)[:ERROR_SHOWN_MAX], now_ms)

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
        self.downloaded_bytes += other.downloaded_bytes
        for task, at_ms in other.at_ms.items():
            self.at_ms[task] = max(at_ms, self.at_ms.get(task, 0))
        self.checkpoints.update(other.checkpoints)
        self.pauses.add(other.pauses)
        self.pauses_ms = [*self.pauses_ms, *other.pauses_ms][-PAUSES_KEPT:]
        self.checkpoint = self.checkpoint or other.checkpoint
        self.storage = self.storage or other.storage
        self.stored = tuple({one.snapshot: one for one in (*self.stored, *other.stored)}.values())
        self.listed_ms = max(self.listed_ms, other.listed_ms)
        for task, error in other.errors.items():
            self.errors[task] = max(error, self.errors.get(task, error), key=lambda one: one[1])

    def copy(self) -> SnapshotCounts:
        """A copy of the numbers."""
        # A copy of each dictionary first: another thread may add to it while this one reads.
        return SnapshotCounts(
            self.made.copy(),
            self.restores.copy(),
            self.uploaded_bytes,
            self.at_ms.copy(),
            self.checkpoints.copy(),
            self.pauses.copy(),
            self.pauses_ms.copy(),
            self.checkpoint,
            self.downloaded_bytes,
            self.storage,
            self.stored,
            self.listed_ms,
            self.errors.copy(),
        )
