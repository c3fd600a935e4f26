"""Progress of the restore of one changelog: position, rate, time left, and whether it is stuck.

    start ......... position ............... end        offsets; `remaining` is an upper bound, logs have gaps
    <-- fraction -->         <-- remaining -->

Rules of this file: pure; `now_ms` (monotonic) comes with each call. Memory is bounded: about SAMPLES_MAX samples of
the last `window_ms` are kept. A snapshot is immutable and may cross threads.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from standfast.replication.offsets import TaskId, TopicPartition
from standfast.store.errors import InternalError

WINDOW_MS = 10_000
STUCK_MS = 30_000
SAMPLES_MAX = 100


class _Sample(NamedTuple):
    at_ms: int
    position: int
    records: int


@dataclass(frozen=True, slots=True)
class RestoreProgress:
    """One restore at one moment. Rates are per second; `seconds_left` is None while nothing moves."""

    task: TaskId
    changelog: TopicPartition
    start: int
    position: int
    end: int
    records: int
    bytes: int
    elapsed_ms: int
    records_per_second: float
    seconds_left: float | None
    stuck: bool

    @property
    def remaining(self) -> int:
        """Offsets still to pass."""
        return max(self.end - self.position, 0)

    @property
    def fraction(self) -> float:
        """0.0 at the start, 1.0 at the end."""
        if self.position >= self.end:
            return 1.0
        return (self.position - self.start) / (self.end - self.start)

    @property
    def done(self) -> bool:
        """The position reached the end."""
        return self.position >= self.end


class ProgressMeter:
    """Measures one restore."""

    def __init__(
        self,
        task: TaskId,
        changelog: TopicPartition,
        start: int,
        end: int,
        *,
        now_ms: int,
        window_ms: int = WINDOW_MS,
        stuck_ms: int = STUCK_MS,
    ) -> None:
        self._task = task
        self._changelog = changelog
        self._start = self._position = start
        self._end = end
        self._records = self._bytes = 0
        self._window_ms = window_ms
        self._stuck_ms = stuck_ms
        self._began_ms = self._now_ms = self._moved_ms = now_ms
        self._samples: deque[_Sample] = deque([_Sample(now_ms, start, 0)])

    def advance(self, position: int, *, records: int, bytes_: int, now_ms: int) -> None:
        """Move to `position`, after `records` records of `bytes_` bytes since the last call.

        Raises InternalError for a position that goes back: a reinitialised restore gets a new meter.
        """
        if position < self._position or records < 0 or bytes_ < 0:
            raise InternalError(
                f"restore of {self._changelog}: progress cannot go back from position {self._position} to {position} "
                f"or count {records} records and {bytes_} bytes"
            )
        self._tick(now_ms)
        if position > self._position:
            self._moved_ms = self._now_ms
        self._position = position
        self._records += records
        self._bytes += bytes_
        self._sample()

    def snapshot(self, now_ms: int) -> RestoreProgress:
        """The progress at `now_ms`."""
        self._tick(now_ms)
        self._forget()
        oldest = self._samples[0]
        span_s = (self._now_ms - oldest.at_ms) / 1_000
        # By offsets, not by records: only offsets are known of what remains, since logs have gaps.
        moving = (self._position - oldest.position) / span_s if span_s > 0 else 0.0
        remaining = max(self._end - self._position, 0)
        return RestoreProgress(
            task=self._task,
            changelog=self._changelog,
            start=self._start,
            position=self._position,
            end=self._end,
            records=self._records,
            bytes=self._bytes,
            elapsed_ms=self._now_ms - self._began_ms,
            records_per_second=(self._records - oldest.records) / span_s if span_s > 0 else 0.0,
            seconds_left=0.0 if not remaining else remaining / moving if moving > 0 else None,
            stuck=remaining > 0 and self._now_ms - self._moved_ms >= self._stuck_ms,
        )

    def _tick(self, now_ms: int) -> None:
        # Readings of several threads may arrive out of order; time here never goes back.
        self._now_ms = max(self._now_ms, now_ms)

    def _sample(self) -> None:
        # One sample per slot of the window bounds their number; newer counts stand in the totals.
        if (self._now_ms - self._samples[-1].at_ms) * SAMPLES_MAX >= self._window_ms:
            self._samples.append(_Sample(self._now_ms, self._position, self._records))
        self._forget()

    def _forget(self) -> None:
        # One sample at or before the window's edge stays, so that the rate covers the whole window.
        edge_ms = self._now_ms - self._window_ms
        while len(self._samples) > 1 and self._samples[1].at_ms <= edge_ms:
            self._samples.popleft()
