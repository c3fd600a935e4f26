"""The pace of commits: the time between two of a task, and how many of several tasks are under way at once.

    interval, at least once     1,000 ms
    interval, exactly once      100 ms, and more while commits take more than 20 % of a task's time; 1,000 ms at most
    at once                     3, and more, up to 8, while transactions beside each other take little longer than alone

A task takes no records while its commit is under way, so a commit of 50 ms is followed by 250 ms of work. Kafka Streams
has 100 ms under exactly once, however long a commit takes. The application's own interval stays as it is.

Measured on one broker that shares two cores with the application (24 tasks, 1,000 records/s, 12 seconds): eight at
once gave 650 transactions of 52 ms (p50), three 1,070 of 20 ms. Beyond its processors a broker only lets them wait.
Where a transaction is mostly a wait for replicas, more of them end in a second: the shortest transaction of late,
beside the mean one, shows which of the two it is, as the round-trip time does for TCP Vegas.

Rules of this file: pure; durations come in, in milliseconds.
"""

from __future__ import annotations

LEAST_MS = 100
MOST_MS = 1_000
SHARE = 0.2  # of a task's time that its commits may take
SMOOTHING = 0.125  # weight of the latest commit: one slow commit does not change the pace, a slow log does

LEAST_ROOM = 3
MOST_ROOM = 8
WINDOW = 100  # commits; the shortest one of the last one or two windows counts
FIRST = 30  # commits until the mean, which begins at 0, is one
# The number of commits under way that only wait for others: fewer let another one begin, more take one away.
FEW_WAITING = 1.5
MANY_WAITING = 3.0


class CommitPace:
    """The pace in force. `given_ms`: the application's own interval, which stays; None: by the guarantee."""

    def __init__(self, guarantee: str, given_ms: int | None = None) -> None:
        self._adapts = given_ms is None and guarantee == "exactly_once"
        self._fixed_ms = MOST_MS if given_ms is None else given_ms
        self._mean_ms = 0.0
        self._room = float(LEAST_ROOM)
        self._least_ms = self._least_before_ms = float("inf")
        self._count = 0

    @property
    def interval_ms(self) -> int:
        """Milliseconds from the beginning of a task's commit to that of its next one."""
        if not self._adapts:
            return self._fixed_ms
        return min(max(round(self._mean_ms / SHARE), LEAST_MS), MOST_MS)

    @property
    def room(self) -> int:
        """The number of commits that may be under way at once."""
        return int(self._room)

    def took(self, duration_ms: int, *, full: bool = False) -> None:
        """A commit that wrote something has ended, so many milliseconds after it began.

        `full`: as many commits were under way as there is room for; fewer say nothing about the room.
        """
        self._mean_ms += (duration_ms - self._mean_ms) * SMOOTHING
        self._count += 1
        if self._count % WINDOW == 0:
            self._least_before_ms, self._least_ms = self._least_ms, float("inf")
        self._least_ms = min(self._least_ms, max(duration_ms, 1))
        if full and self._count > FIRST and self._mean_ms > 0:
            self._adapt()

    def _adapt(self) -> None:
        alone_ms = min(self._least_ms, self._least_before_ms)
        waiting = self._room * max(1 - alone_ms / self._mean_ms, 0.0)
        if waiting < FEW_WAITING:
            self._room = min(self._room + 1 / self._room, MOST_ROOM)
        elif waiting > MANY_WAITING:
            self._room = max(self._room - 1 / self._room, LEAST_ROOM)
