"""Windows: the windows that a record belongs to, the windows that it creates, and when each one closes.

    tumbling, hopping   [start, end)   aligned to 0: every `advance_ms`, `size_ms` long
    sliding             [start, end]   aligned to the records: `difference_ms` long
    session             [start, end]   first to last record with no pause longer than `gap_ms`
    unlimited           [start, ...)   one window that never closes

    kind        close time                     closed once           smallest retention   nothing open is hidden with
    aligned     observed - grace               end <= close time     size + grace         size + grace
    sliding     observed - grace               end <  close time     2 difference + grace 2 difference + grace + 2
    session     observed - grace - gap         end <  close time     gap + grace          gap + grace + 1
    unlimited   -                              never                 unlimited            unlimited

`observed` is the observed stream time of the aggregation, the record in hand included: the largest timestamp that it
processed. Semantics and boundaries are those of Kafka Streams (TimeWindows, KIP-450, KIP-94).

Rules of this file: pure. Whole milliseconds from 0 to 2^63 - 1, and lengths may be given as a `timedelta` of them;
stores, serdes, topics and clocks are unknown here. Settings are checked on construction (BadConfig, every problem at
once), timestamps at each call (InvalidRequest). An end beyond 2^63 - 1 is given as 2^63 - 1; whether the window is
closed still goes by start + size, which the stream time never reaches, so that no record is late for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple, cast

from standfast.store import window_key
from standfast.store.arguments import checked
from standfast.store.errors import BadConfig, InvalidRequest
from standfast.store.window_key import end_of

MILLISECOND = timedelta(milliseconds=1)
TIME_MAX = window_key.TIME_MAX  # the layouts of the stores hold times in 8 signed bytes
WINDOWS_PER_RECORD_MAX = 100_000  # hopping: a day that advances by the second; a record updates each of its windows


# Methods that check times and lengths by themselves, with their bounds.
EXACT = ("__init__", "windows_for", "search_starts", "plan", "search_bounds", "merge")
Length = int | timedelta  # of whole milliseconds


class Window(NamedTuple):
    """A range of time in milliseconds. The end is excluded for aligned windows, included for sliding and session."""

    start: int
    end: int


class SlidingChange(NamedTuple):
    """One row to write: take the aggregate of `source`, add the record if `adds`, put the result at window.start.

    source      start of the stored window to begin with, in its state *before* this record; None: the initial value
    adds        False only for the window right of an out-of-order record, which does not hold the record itself
    timestamp   of the result: the newest record in the window
    """

    window: Window
    source: int | None
    adds: bool
    timestamp: int


class SlidingPlan(NamedTuple):
    """The changes of a record to its key's sliding windows, by window start. Each of `dropped` counts as one skip."""

    changes: tuple[SlidingChange, ...]
    dropped: tuple[Window, ...]


class SessionMerge(NamedTuple):
    """The changes of a record to its key's sessions.

    session     the session that holds the record now
    absorbed    stored sessions whose aggregates are merged into it, by end
    removed     rows to delete before `session` is put: all of `absorbed`, except where the record met only a session
                at its very timestamp, which is overwritten. A session that did not change its bounds is removed too
                and put again, as in Kafka Streams: downstream sees the old result go before the new one comes.
    """

    session: Window
    absorbed: tuple[Window, ...]
    removed: tuple[Window, ...]


@checked(InvalidRequest, exact=EXACT)
@dataclass(frozen=True, slots=True)
class _AlignedWindows:
    size_ms: int
    grace_ms: int = 0

    @property
    def retention_min_ms(self) -> int:
        """Smallest retention that a store of these windows may have."""
        return min(self.size_ms + self.grace_ms, TIME_MAX)

    @property
    def retention_safe_ms(self) -> int:
        """Smallest retention with which no open window is hidden: equal to `retention_min_ms`."""
        return self.retention_min_ms

    def close_time(self, observed_ms: int) -> int:
        """Windows that end at or before this are closed."""
        return observed_ms - self.grace_ms

    def is_closed(self, window: Window, observed_ms: int) -> bool:
        """Whether the window takes no further record: it takes records while end > observed - grace."""
        # At the bound, the given end is smaller than start + size and would close the window too early.
        end = window.end if window.end < TIME_MAX else window.start + self.size_ms
        return end <= observed_ms - self.grace_ms

    def closed_through(self, observed_ms: int) -> int:
        """The largest end that is closed; negative while no window can be closed."""
        return observed_ms - self.grace_ms


@checked(InvalidRequest, exact=EXACT)
@dataclass(frozen=True, slots=True, init=False)
class TumblingWindows(_AlignedWindows):
    """Adjacent windows: [0, size), [size, 2 size), ... A record belongs to exactly one."""

    def __init__(self, size_ms: Length, grace_ms: Length = 0) -> None:
        size_ms, grace_ms = _whole_ms(size_ms), _whole_ms(grace_ms)
        _refuse(self, _lengths(size_ms=size_ms) + _graces(grace_ms))
        _settle(self, size_ms=size_ms, grace_ms=grace_ms)

    def windows_for(self, timestamp: int) -> list[Window]:
        """The one window with start <= timestamp < end."""
        if timestamp.__class__ is not int or not 0 <= timestamp <= TIME_MAX:
            raise _bad_timestamp(timestamp)
        start = timestamp - timestamp % self.size_ms
        return [Window(start, end_of(start, self.size_ms))]


@checked(InvalidRequest, exact=EXACT)
@dataclass(frozen=True, slots=True, init=False)
class HoppingWindows(_AlignedWindows):
    """Windows of `size_ms` that begin every `advance_ms`, from 0 on. They overlap where the advance is smaller.

    The default advance is the size; the windows are then tumbling.
    """

    advance_ms: int = field(kw_only=True)  # the base has defaults; __init__ below takes it as the second argument

    def __init__(self, size_ms: Length, advance_ms: Length | None = None, grace_ms: Length = 0) -> None:
        size_ms, grace_ms = _whole_ms(size_ms), _whole_ms(grace_ms)
        advance_ms = size_ms if advance_ms is None else _whole_ms(advance_ms)
        problems = _lengths(size_ms=size_ms, advance_ms=advance_ms) + _graces(grace_ms)
        if not problems and advance_ms > size_ms:
            problems.append(
                f"advance_ms {advance_ms} is above size_ms {size_ms}, so records between two windows would be in "
                "neither: give an advance of at most the size"
            )
        if not problems and size_ms > advance_ms * WINDOWS_PER_RECORD_MAX:
            problems.append(
                f"size_ms {size_ms} with advance_ms {advance_ms} puts each record into more than "
                f"{WINDOWS_PER_RECORD_MAX} windows: give a larger advance, or use SlidingWindows"
            )
        _refuse(self, problems)
        _settle(self, size_ms=size_ms, advance_ms=advance_ms, grace_ms=grace_ms)

    def windows_for(self, timestamp: int) -> list[Window]:
        """Every window with start <= timestamp < end, by start. No window begins before 0."""
        if timestamp.__class__ is not int or not 0 <= timestamp <= TIME_MAX:
            raise _bad_timestamp(timestamp)
        size, advance = self.size_ms, self.advance_ms
        first = max(0, timestamp - size + advance) // advance * advance
        return [Window(start, end_of(start, size)) for start in range(first, timestamp + 1, advance)]


@checked(InvalidRequest, exact=EXACT)
@dataclass(frozen=True, slots=True)
class UnlimitedWindows:
    """One window from `start_ms` on that never closes; its end is 2^63 - 1. Earlier records belong to no window."""

    start_ms: int = 0

    def __post_init__(self) -> None:
        _refuse(self, _numbers("at least 0", 0, start_ms=self.start_ms))

    @property
    def size_ms(self) -> int:
        """start + size is the end, as for the windows of a store."""
        return TIME_MAX - self.start_ms

    @property
    def grace_ms(self) -> int:
        """0: no record of an unlimited window is late."""
        return 0

    @property
    def retention_min_ms(self) -> int:
        """Smallest retention that a store of this window may have."""
        return TIME_MAX

    @property
    def retention_safe_ms(self) -> int:
        """Equal to `retention_min_ms`: the window is open for ever."""
        return TIME_MAX

    def windows_for(self, timestamp: int) -> list[Window]:
        """The one window; empty for a record before its start."""
        _check_timestamp(timestamp)
        return [Window(self.start_ms, TIME_MAX)] if timestamp >= self.start_ms else []

    def is_closed(self, window: Window, observed_ms: int) -> bool:
        """Never."""
        return False

    def closed_through(self, observed_ms: int) -> int:
        """-1: no window is ever closed."""
        return -1


@checked(InvalidRequest, exact=EXACT)
@dataclass(frozen=True, slots=True, init=False)
class SlidingWindows:
    """For each record at t the window [t - difference, t] left of it and [t + 1, t + 1 + difference] right of it.

    Two records share a window if they are at most `difference_ms` apart. A window right of a record exists only once
    it holds another record. No window begins before 0: a record before `difference_ms` has [0, difference] for its left
    window, which also holds later records up to its end.

    An aggregation reads the key's rows in `search_starts`, calls `plan`, and writes the rows of the plan.

    Records within grace, in any order, end up in exactly the windows of this definition. A later record, of which only
    windows right of it are open, goes into the stored ones; as its left window is closed and never written, windows
    made afterwards may miss it (two such records at one time: may hold it where they should not), as in Kafka Streams.
    """

    difference_ms: int
    grace_ms: int = 0

    def __init__(self, difference_ms: Length, grace_ms: Length = 0) -> None:
        difference_ms, grace_ms = _whole_ms(difference_ms), _whole_ms(grace_ms)
        _refuse(self, _lengths(difference_ms=difference_ms) + _graces(grace_ms))
        _settle(self, difference_ms=difference_ms, grace_ms=grace_ms)

    @property
    def size_ms(self) -> int:
        """start + size is the end, as for the windows of a store."""
        return self.difference_ms

    @property
    def retention_min_ms(self) -> int:
        """Smallest retention that a store of these windows may have."""
        return min(2 * self.difference_ms + self.grace_ms, TIME_MAX)

    @property
    def retention_safe_ms(self) -> int:
        """Smallest retention with which every row that an open window is made from can be read.

        The window right of a record at p is open while p + 1 + difference >= observed - grace; the row at
        p - difference shows that the record exists; and a store hides rows with start <= observed - retention.
        """
        return min(self.retention_min_ms + 2, TIME_MAX)

    def windows_for(self, timestamp: int) -> list[Window]:
        """The windows that the record itself defines: the left one, which holds it, and the right one."""
        _check_timestamp(timestamp)
        left = self._window(max(0, timestamp - self.difference_ms))
        return [left, self._window(timestamp + 1)] if timestamp < TIME_MAX else [left]

    def close_time(self, observed_ms: int) -> int:
        """Windows that end before this are closed."""
        return observed_ms - self.grace_ms

    def is_closed(self, window: Window, observed_ms: int) -> bool:
        """Whether the window takes no further record. The end is included, so end = close time is open."""
        return window.end < observed_ms - self.grace_ms

    def closed_through(self, observed_ms: int) -> int:
        """The largest end that is closed; negative while no window can be closed."""
        return observed_ms - self.grace_ms - 1

    def search_starts(self, timestamp: int) -> tuple[int, int]:
        """First and last start, both included, of the stored windows that `plan` must see."""
        return self._starts(timestamp)

    def plan(self, timestamp: int, stored: Iterable[tuple[int, int]], observed_ms: int) -> SlidingPlan:
        """The windows that the record updates and creates.

        `stored` has (start, timestamp of the newest record) of each of the key's windows in `search_starts`, in any
        order; other windows are ignored. A record that no open window can hold is dropped as one: `dropped` then names
        its left window only.
        """
        low, high = self._starts(timestamp)
        length = self.difference_ms
        left_start = max(0, timestamp - length)
        open_from = observed_ms - self.grace_ms
        if timestamp + length < open_from:
            return SlidingPlan((), (self._window(left_start),))
        newest = {start: at for start, at in sorted(stored) if low <= start <= high}
        holding = [start for start in newest if start <= timestamp <= start + length]
        changes = [SlidingChange(self._window(s), s, True, max(timestamp, newest[s])) for s in holding]
        if timestamp < length or newest.get(left_start) != timestamp:  # else a record at this time created them all
            changes += self._created(timestamp, left_start, newest, holding)
        changes.sort()
        late = [change.window for change in changes if change.window.end < open_from]
        return SlidingPlan(tuple(c for c in changes if c.window.end >= open_from), tuple(late))

    def _starts(self, timestamp: int) -> tuple[int, int]:
        _check_timestamp(timestamp)
        return max(0, timestamp - 2 * self.difference_ms), min(timestamp + 1, TIME_MAX)

    def _created(
        self, timestamp: int, left_start: int, newest: dict[int, int], holding: list[int]
    ) -> Iterable[SlidingChange]:
        length = self.difference_ms
        ended = max((start for start in newest if start + length < timestamp), default=None)
        # The record before this one, where it is near enough to share a window with it.
        before = None if ended is None else newest[ended]
        if left_start in newest and newest[left_start] < timestamp:
            before = newest[left_start]
        if left_start not in newest:
            reaches = before is not None and before >= timestamp - length
            yield SlidingChange(self._window(left_start), ended if reaches else None, True, timestamp)
        if before is not None and before + 1 not in {left_start, *newest} and before + 1 + length >= timestamp:
            yield SlidingChange(self._window(before + 1), None, True, timestamp)  # this record is the first in it
        # The last window that begins at or before the record and reaches beyond it holds, of later records, exactly
        # those of the record's right window: any other later record would have made a window that begins later.
        source = max((start for start in holding if start + length > timestamp), default=None)
        if source is not None and newest[source] > timestamp and timestamp + 1 not in newest:
            yield SlidingChange(self._window(timestamp + 1), source, False, newest[source])

    def _window(self, start: int) -> Window:
        return Window(start, end_of(start, self.difference_ms))


@checked(InvalidRequest, exact=EXACT)
@dataclass(frozen=True, slots=True, init=False)
class SessionWindows:
    """Records of a key with no pause longer than `gap_ms`: exactly the gap apart is one session, one more is two.

    An aggregation reads the key's sessions in `search_bounds`, calls `merge`, and drops the record if the merged
    session is closed; otherwise it removes, merges the aggregates, adds the record and puts.
    """

    gap_ms: int
    grace_ms: int = 0

    def __init__(self, gap_ms: Length, grace_ms: Length = 0) -> None:
        gap_ms, grace_ms = _whole_ms(gap_ms), _whole_ms(grace_ms)
        _refuse(self, _lengths(gap_ms=gap_ms) + _graces(grace_ms))
        _settle(self, gap_ms=gap_ms, grace_ms=grace_ms)

    @property
    def retention_min_ms(self) -> int:
        """Smallest retention that a store of these sessions may have."""
        return min(self.gap_ms + self.grace_ms, TIME_MAX)

    @property
    def retention_safe_ms(self) -> int:
        """Smallest retention with which no open session is hidden: a store hides end <= observed - retention."""
        return min(self.retention_min_ms + 1, TIME_MAX)

    def close_time(self, observed_ms: int) -> int:
        """Sessions that end before this are closed: no record within grace can come within the gap of them."""
        return observed_ms - self.grace_ms - self.gap_ms

    def is_closed(self, session: Window, observed_ms: int) -> bool:
        """Whether the session is final; for a merged session: whether the record that made it is too late."""
        return session.end < self.close_time(observed_ms)

    def closed_through(self, observed_ms: int) -> int:
        """The largest end that is closed; negative while no session can be closed."""
        return self.close_time(observed_ms) - 1

    def search_bounds(self, timestamp: int) -> tuple[int, int]:
        """(earliest end, latest start) of the stored sessions that the record joins, for `find_sessions`."""
        return self._bounds(timestamp)

    def _bounds(self, timestamp: int) -> tuple[int, int]:
        _check_timestamp(timestamp)
        return timestamp - self.gap_ms, min(timestamp + self.gap_ms, TIME_MAX)

    def merge(self, existing: Iterable[tuple[int, int]], timestamp: int) -> SessionMerge:
        """The session that holds the record, and the changes to the sessions that it joins.

        `existing` has (start, end) of the key's sessions, in any order; those outside `search_bounds` stay unchanged.
        An out-of-order record may join two sessions into one. It never joins more: two sessions are more than a gap
        apart, and both must be within a gap of the record.
        """
        earliest_end, latest_start = self._bounds(timestamp)
        near = (Window(start, end) for start, end in existing if end >= earliest_end and start <= latest_start)
        absorbed = tuple(sorted(near, key=lambda session: (session.end, session.start)))
        alone = Window(timestamp, timestamp)
        start = min((session.start for session in absorbed), default=timestamp)
        end = max((session.end for session in absorbed), default=timestamp)
        session = Window(min(start, timestamp), max(end, timestamp))
        return SessionMerge(session, absorbed, absorbed if session != alone else ())


AnyWindows = TumblingWindows | HoppingWindows | SlidingWindows | SessionWindows | UnlimitedWindows


def _refuse(windows: object, problems: list[str]) -> None:
    if problems:
        raise BadConfig([f"{type(windows).__name__}: {problem}" for problem in problems])


def _settle(windows: object, **settings: int) -> None:
    for name, value in settings.items():  # the dataclasses are frozen, also for an __init__ of their own
        object.__setattr__(windows, name, value)


def _whole_ms(length: Length) -> int:
    """A length in milliseconds; one that has none is given back, for its problem to be reported."""
    if isinstance(length, timedelta) and not length % MILLISECOND:
        return length // MILLISECOND
    return cast("int", length)


def _lengths(**lengths: object) -> list[str]:
    return _numbers("above 0", 1, **lengths)


def _graces(grace_ms: object) -> list[str]:
    return _numbers("at least 0 (0: no record may be late)", 0, grace_ms=grace_ms)


def _numbers(rule: str, least: int, **numbers: object) -> list[str]:
    return [
        f"{name} must be a whole number of milliseconds {rule} and at most 2^63 - 1, not {number!r}"
        for name, number in numbers.items()
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= TIME_MAX
    ]


def _check_timestamp(timestamp: int) -> None:
    if timestamp.__class__ is not int or not 0 <= timestamp <= TIME_MAX:
        raise _bad_timestamp(timestamp)


def _bad_timestamp(timestamp: object) -> InvalidRequest:
    return InvalidRequest(
        f"windows: timestamp {timestamp!r} is not a whole number of milliseconds from 0 to 2^63 - 1: skip the record, "
        "or give it a time with the source's timestamp extractor"
    )
