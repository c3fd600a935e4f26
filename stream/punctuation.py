"""Punctuation: callbacks that repeat at an interval of stream time or of the wall clock.

    queue = PunctuationQueue()                                   one per task and kind of time
    handle = queue.schedule(first_due(STREAM_TIME, None, 5_000), 5_000, callback)
    queue.may_punctuate(now_ms)                                  how many fired; the next commit has their writes
    handle.cancel()

While the head of the queue is due, the queue removes it, puts it back at its next time and fires it once, with *now*.
However many of its times have passed, it fires once; the next time is the first one after now on the same grid (first
due 5 s, interval 5 s, now 21 s: next is 25 s). Order: time due, then registration; a schedule keeps its place for life.

Decisions of this file that a reader may question:
- A schedule made inside a callback and already due fires in the same call, in its turn, as in Kafka Streams. So a
  callback that makes another such schedule each time it fires, and whose schedules do the same, never returns.
- Unknown time (None, or negative) fires nothing: first times are never negative.
- A clock that goes back fires nothing until it has passed the next time again.
- An exception of a callback propagates to the caller. Its schedule is back in the queue at its next time (in Kafka
  Streams it is lost); schedules that were due after it still are and fire with the next call.
- A call from inside a callback fires the other due schedules, never the schedule that is firing.

Rules of this file: pure; no clock, thread, store, task or record. It does not know which of the two times it is given:
stream time before wall clock, none on a standby, the callback's context and the commit are the shell's business. A
firing asks for no commit: its writes wait for the commit interval, as the writes of a record do.
`Cancellable.cancel` is one assignment and may come from any thread; all other calls belong to the task's own thread.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from heapq import heapify, heappop, heappush

from standfast.store.errors import InvalidRequest

INTERVAL_MIN_MS = 1
_SWEEP_LEAST = 64

Callback = Callable[[int], object]
"""Given *now* in milliseconds, not the time it was due."""


class PunctuationType(Enum):
    """The time that drives a schedule."""

    STREAM_TIME = "stream_time"
    WALL_CLOCK_TIME = "wall_clock_time"


STREAM_TIME = PunctuationType.STREAM_TIME
WALL_CLOCK_TIME = PunctuationType.WALL_CLOCK_TIME


def first_due(kind: PunctuationType, now_ms: int | None, interval_ms: int, start_ms: int | None = None) -> int:
    """The first due time of a new schedule, in milliseconds of the time of its kind.

    STREAM_TIME: `start_ms`, or 0: the first record that makes stream time known fires it. `now_ms` is ignored.
    WALL_CLOCK_TIME: one interval after `now_ms`. With `start_ms` the schedule is anchored: `start_ms` itself if it is
    not past (exactly now counts), otherwise the first of `start_ms + n * interval_ms` after `now_ms`.

    InvalidRequest: interval below 1 ms, a negative or non-integer time, an unknown kind, a wall clock without now.
    """
    if not isinstance(kind, PunctuationType):
        raise InvalidRequest(f"kind {kind!r} of a punctuation: take STREAM_TIME or WALL_CLOCK_TIME")
    _check_interval(interval_ms)
    if start_ms is not None:
        _check_time("start_ms", start_ms)
    if kind is STREAM_TIME:
        return 0 if start_ms is None else start_ms
    if now_ms is None:
        raise InvalidRequest("a wall-clock punctuation needs now_ms: give the reading of the clock")
    _check_time("now_ms", now_ms)
    if start_ms is None:
        return now_ms + interval_ms
    # A start in the past counts as a firing just now: of its grid, only a time after now is due.
    return start_ms if start_ms >= now_ms else next_due(start_ms, interval_ms, now_ms)


def next_due(due_ms: int, interval_ms: int, now_ms: int) -> int:
    """First of `due_ms + interval_ms`, `due_ms + 2 * interval_ms`, ... that lies after `now_ms`; `due_ms` <= `now_ms`.

    One step, however long the gap (no records, a long pause): missed times never fire later.
    """
    return due_ms + ((now_ms - due_ms) // interval_ms + 1) * interval_ms


class Cancellable:
    """Handle of one schedule, the same over all its firings."""

    __slots__ = ("_callback",)

    def __init__(self, callback: Callback) -> None:
        self._callback: Callback | None = callback

    def cancel(self) -> None:
        """Fire no more. May be called from any thread and from inside any callback; a second call changes nothing."""
        self._callback = None  # frees the callback's objects at once; the entry may stay queued until a far time

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._callback is None


# Time due, number of registration, interval, handle. The numbers differ, so that tuples never compare handles.
_Entry = tuple[int, int, int, Cancellable]


class PunctuationQueue:
    """Schedules of one task over one kind of time."""

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._registered = 0
        self.late_ms = 0  # delay of the last firing after its due time
        self._sweep_at = _SWEEP_LEAST

    def schedule(self, first_due_ms: int, interval_ms: int, callback: Callback) -> Cancellable:
        """Call `callback(now_ms)` when `first_due_ms` is reached and every `interval_ms` from there.

        InvalidRequest, and nothing changed: interval below 1 ms, a negative or non-integer time, no callable.
        """
        _check_time("first_due_ms", first_due_ms)
        _check_interval(interval_ms)
        if not callable(callback):
            raise InvalidRequest(f"callback {callback!r} of a punctuation cannot be called: give a function of now_ms")
        if len(self._heap) >= self._sweep_at:
            self._sweep()
        handle = Cancellable(callback)
        heappush(self._heap, (first_due_ms, self._registered, interval_ms, handle))
        self._registered += 1
        return handle

    def may_punctuate(self, now_ms: int | None) -> int:
        """Fire each due schedule once and return how many fired. 0 if the time is unknown (None or negative).

        Exceptions of callbacks propagate; the module header says in which state they leave the queue.
        """
        if now_ms is None:
            return 0
        fired = 0
        while self.can_punctuate(now_ms):
            due_ms, number, interval_ms, handle = heappop(self._heap)
            callback = handle._callback
            if callback is None:  # cancelled by another thread just now
                continue
            # Back in the queue before it fires, so that neither an exception nor a call from inside can lose it.
            heappush(self._heap, (next_due(due_ms, interval_ms, now_ms), number, interval_ms, handle))
            self.late_ms = now_ms - due_ms
            callback(now_ms)
            fired += 1
        return fired

    def can_punctuate(self, now_ms: int | None) -> bool:
        """Whether `may_punctuate` would fire anything. A cancelled schedule does not count."""
        if now_ms is None:
            return False
        due_ms = self.next_due_ms
        return due_ms is not None and due_ms <= now_ms

    @property
    def next_due_ms(self) -> int | None:
        """The earliest due time; None if no schedule is left."""
        heap = self._heap
        while heap and heap[0][3].cancelled:
            heappop(heap)
        return heap[0][0] if heap else None

    def _sweep(self) -> None:
        """Drop cancelled entries with far due times; an application that schedules and cancels often would leak."""
        self._heap = [entry for entry in self._heap if not entry[3].cancelled]
        heapify(self._heap)
        self._sweep_at = max(_SWEEP_LEAST, 2 * len(self._heap))


def _check_time(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidRequest(f"{name} {value!r} of a punctuation: give whole milliseconds from 0")


def _check_interval(value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < INTERVAL_MIN_MS:
        raise InvalidRequest(f"interval_ms {value!r} of a punctuation: give whole milliseconds from {INTERVAL_MIN_MS}")
