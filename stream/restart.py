"""Restart strategies: whether a failed task is opened again, and when.

    FixedDelay         the same delay each time, a limited number of times in the task's whole life
    ExponentialDelay   1 s, 2 s, 4 s ... up to a bound; starts over after a time without failures. The default. It gives
                       up on a task that makes no progress: five failures in a row at one source offset, or ten minutes
                       of failures without a commit
    FailureRate        the same delay each time, unless too many failures lie within an interval
    NoRestart          never

    history = RestartHistory(FixedDelay(attempts=2, delay_ms=500))     one per task
    history.failed(now_ms)          500, 500, then None: the task stays failed, and `reason` says why
    history.failed(now_ms, "in-0 at offset 7")      the same, with the offset; without it a failure is at no offset
    history.committed()                             the task made progress
    history.interrupted()                           the log was away: time without a commit is not the task's fault

Semantics and boundaries are Flink's. Flink merges failures that come before the restart, because many tasks share one
strategy; here each failure counts, since one task fails once between two restarts.

Rules of this file: pure. It knows no task and no clock; `now_ms` comes in and is monotonic. Strategies are values,
checked on construction (BadConfig, every problem at once); only a history changes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from standfast.store.arguments import checked
from standfast.store.errors import BadConfig, InvalidRequest

DELAY_MAX_MS = 2**63 - 1
COUNT_MAX = 1_000_000  # bounds attempts, and the failure times that a FailureRate keeps in memory


@checked(BadConfig)
@dataclass(frozen=True, slots=True)
class FixedDelay:
    """At most `attempts` restarts over the task's whole life, each `delay_ms` after the failure. 0: no restart."""

    attempts: int = 3
    delay_ms: int = 10_000

    def __post_init__(self) -> None:
        _refuse(
            self,
            *_whole("attempts", self.attempts, 0, COUNT_MAX),
            *_whole("delay_ms", self.delay_ms, 0, DELAY_MAX_MS),
        )


@checked(BadConfig)
@dataclass(frozen=True, slots=True)
class ExponentialDelay:
    """The n-th restart in a row comes `initial_ms * multiplier ** (n - 1)` after the failure, at most `max_ms`.

    When the task has run for `reset_after_ms` since its restart was due, the row starts over. `attempts` bounds the
    restarts of one row; None: no bound. `same_offset`: no restart after so many failures in a row at one source offset.
    `without_commit_ms`: no restart after a failure so long after the first one since the task's last commit. None: no
    bound.
    """

    initial_ms: int = 1_000
    max_ms: int = 60_000
    multiplier: float = 2.0
    reset_after_ms: int = 3_600_000
    attempts: int | None = None
    same_offset: int | None = 5
    without_commit_ms: int | None = 600_000

    def __post_init__(self) -> None:
        problems = [
            *_whole("initial_ms", self.initial_ms, 1, DELAY_MAX_MS),
            *_whole("max_ms", self.max_ms, 1, DELAY_MAX_MS),
        ]
        if not problems and self.initial_ms > self.max_ms:
            problems.append(f"initial_ms {self.initial_ms} is above max_ms {self.max_ms}: give a larger max_ms")
        if not _is_number(self.multiplier) or not 1 < self.multiplier < math.inf:
            problems.append(
                f"multiplier must be a number above 1, not {self.multiplier!r} (FixedDelay has delays that do not grow)"
            )
        problems += _whole("reset_after_ms", self.reset_after_ms, 1, DELAY_MAX_MS)
        for name, most in (("attempts", COUNT_MAX), ("same_offset", COUNT_MAX), ("without_commit_ms", DELAY_MAX_MS)):
            value = getattr(self, name)
            if value is not None:
                problems += _whole(name, value, 1, most)
        _refuse(self, *problems)

    def delay_of(self, attempt: int) -> int:
        """Delay before the restart with this number in its row, from 1, in whole milliseconds (rounded down)."""
        try:
            delay = self.initial_ms * float(self.multiplier) ** (attempt - 1)
        # Far along a row the power leaves the range of floats.
        except OverflowError:
            return self.max_ms
        return self.max_ms if delay >= self.max_ms else int(delay)


@checked(BadConfig)
@dataclass(frozen=True, slots=True)
class FailureRate:
    """Restart `delay_ms` after each failure, until more than `failures` lie within `interval_ms`.

    Two failures exactly the interval apart are both within it.
    """

    failures: int = 3
    interval_ms: int = 60_000
    delay_ms: int = 1_000

    def __post_init__(self) -> None:
        _refuse(
            self,
            *_whole("failures", self.failures, 1, COUNT_MAX),
            *_whole("interval_ms", self.interval_ms, 1, DELAY_MAX_MS),
            *_whole("delay_ms", self.delay_ms, 0, DELAY_MAX_MS),
        )


@checked(BadConfig)
@dataclass(frozen=True, slots=True)
class NoRestart:
    """A failed task stays failed."""


RestartStrategy = FixedDelay | ExponentialDelay | FailureRate | NoRestart


class RestartHistory:
    """The failures of one task under one strategy. After its first None it returns None for ever."""

    def __init__(self, strategy: RestartStrategy) -> None:
        if not isinstance(strategy, RestartStrategy):
            raise BadConfig(
                [f"restart strategy {strategy!r}: take FixedDelay, ExponentialDelay, FailureRate or NoRestart"]
            )
        self.strategy = strategy
        self._failures = 0
        self._given_up = False
        self._last_ms: int | None = None
        self._in_row = 0  # exponential: failures since the backoff started over
        self._restart_ms = 0  # exponential: when the last restart was due
        self._recent: deque[int] = deque()  # failure rate: the last failures + 1 times
        self._at: str | None = None  # offset of the last failure
        self._at_same = 0  # failures in a row at that offset
        self._since_ms: int | None = None  # of the first failure since the last commit
        self.reason = ""  # why the task is not restarted any more

    @property
    def failures(self) -> int:
        """The number of failures of the task."""
        return self._failures

    def failed(self, now_ms: int, at: str | None = None) -> int | None:
        """Note a failure; return the delay until the restart in milliseconds, or None: no restart, see `reason`.

        `at` is the source offset in hand, or the task's committed offsets, as text.

        Raises InvalidRequest, and notes nothing, for a time that is no whole number or lies before the last failure.
        """
        if type(now_ms) is not int or (self._last_ms is not None and now_ms < self._last_ms):
            raise InvalidRequest(
                f"restart: now_ms {now_ms!r} after a failure at {self._last_ms}: give whole milliseconds of a "
                "monotonic clock"
            )
        self._failures += 1
        self._last_ms = now_ms
        self._at_same = self._at_same + 1 if at is not None and at == self._at else 1
        self._at = at
        if self._since_ms is None:
            self._since_ms = now_ms
        delay_ms = None if self._given_up or self._stuck(now_ms) else self._delay(now_ms)
        self._given_up = delay_ms is None
        if self._given_up and not self.reason:
            self.reason = f"{self._failures} failures are more than {self.strategy} allows"
        return delay_ms

    def committed(self) -> None:
        """Note a commit of the task."""
        # `_at_same` stays: other partitions of the task may commit while one record fails again and again.
        self._since_ms = None

    def interrupted(self) -> None:
        """Note that the log was unavailable: the time without a commit so far does not count."""
        self._since_ms = None

    def _stuck(self, now_ms: int) -> bool:
        """Whether the task makes no progress, however often it is opened again."""
        strategy, at = self.strategy, self._at
        if not isinstance(strategy, ExponentialDelay) or at is None:
            return False
        if strategy.same_offset is not None and self._at_same >= strategy.same_offset:
            self.reason = f"it failed {self._at_same} times in a row at the same source offset: {at}"
        elif strategy.without_commit_ms is not None:
            stuck_ms = now_ms - (now_ms if self._since_ms is None else self._since_ms)
            if stuck_ms >= strategy.without_commit_ms:
                self.reason = f"it failed for {stuck_ms / 1_000:.0f} s without a commit, the last time at {at}"
        return bool(self.reason)

    def _delay(self, now_ms: int) -> int | None:
        strategy = self.strategy
        if isinstance(strategy, FixedDelay):
            return strategy.delay_ms if self._failures <= strategy.attempts else None
        if isinstance(strategy, ExponentialDelay):
            return self._exponential(strategy, now_ms)
        if isinstance(strategy, FailureRate):
            return self._by_rate(strategy, now_ms)
        return None

    def _exponential(self, strategy: ExponentialDelay, now_ms: int) -> int | None:
        if self._in_row and now_ms - self._restart_ms >= strategy.reset_after_ms:
            self._in_row = 0
        self._in_row += 1
        if strategy.attempts is not None and self._in_row > strategy.attempts:
            return None
        delay_ms = strategy.delay_of(self._in_row)
        self._restart_ms = now_ms + delay_ms
        return delay_ms

    def _by_rate(self, strategy: FailureRate, now_ms: int) -> int | None:
        self._recent.append(now_ms)
        if len(self._recent) <= strategy.failures:
            return strategy.delay_ms
        return strategy.delay_ms if now_ms - self._recent.popleft() > strategy.interval_ms else None


def _refuse(strategy: object, *problems: str) -> None:
    if problems:
        raise BadConfig([f"{type(strategy).__name__}: {problem}" for problem in problems])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(name: str, value: object, least: int, most: int) -> Iterator[str]:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        yield f"{name} must be a whole number from {least} to {most}, not {value!r}"
