"""The time between two commits of a task, where the application does not set it.

    at least once     1,000 ms
    exactly once      100 ms, and more while commits take more than 20 % of a task's time; 1,000 ms at most

A task takes no records while its commit is under way, so a commit of 50 ms is followed by 250 ms of work. Kafka Streams
has 100 ms under exactly once, however long a commit takes.

Rules of this file: pure; durations come in, in milliseconds.
"""

from __future__ import annotations

LEAST_MS = 100
MOST_MS = 1_000
SHARE = 0.2  # of a task's time that its commits may take
SMOOTHING = 0.125  # weight of the latest commit: one slow commit does not change the pace, a slow log does


class CommitPace:
    """The interval in force. `given_ms`: the application's own number, which stays; None: by the guarantee."""

    def __init__(self, guarantee: str, given_ms: int | None = None) -> None:
        self._adapts = given_ms is None and guarantee == "exactly_once"
        self._fixed_ms = MOST_MS if given_ms is None else given_ms
        self._mean_ms = 0.0

    @property
    def interval_ms(self) -> int:
        """Milliseconds from the beginning of a task's commit to that of its next one."""
        if not self._adapts:
            return self._fixed_ms
        return min(max(round(self._mean_ms / SHARE), LEAST_MS), MOST_MS)

    def took(self, duration_ms: int) -> None:
        """A commit that wrote something has ended, so many milliseconds after it began."""
        self._mean_ms += (duration_ms - self._mean_ms) * SMOOTHING
