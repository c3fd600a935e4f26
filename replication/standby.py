"""A standby of one changelog partition: decides on records to apply or keep, and on pause, resume and seek.

                      a record lies beyond the limit
            +---------+  ------------------------->  +--------+
     new -> | RUNNING |                              | PAUSED |
            +---------+  <-------------------------  +--------+
              ^  |         all kept records are drained   |
              |  +-------------------+--------------------+
              |                      | reinitialise
       begin_again                   v
              |             +----------------+
              +-------------| REINITIALISING |
                            +----------------+
     any state --close--> CLOSED (closing again is fine; everything else raises Closed)

    position   next offset to apply; it moves only with its rows
    limit      first offset that must not be applied; None = unlimited; it never moves back
    kept       records that were read but lie beyond the limit, at most `keep_max_records` and `keep_max_bytes`
    read       next offset that is neither applied nor kept; position <= read

Rules of this file: a pure state machine without I/O, clock or thread. It returns a `StandbyStep`; the shell carries it
out. An illegal event, or a batch whose offsets do not increase strictly, raises and changes nothing. A caller without a
committed offset passes limit 0: None always means unlimited.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from operator import itemgetter, lt

from standfast.replication.columns import RecordColumns, offsets_of
from standfast.replication.log import Record
from standfast.store.errors import Closed, InternalError, InvalidRequest

KEEP_MAX_RECORDS = 10_000
KEEP_MAX_BYTES = 8 << 20


class StandbyState(Enum):
    """The state of a standby."""

    RUNNING = "running"
    PAUSED = "paused"
    REINITIALISING = "reinitialising"
    CLOSED = "closed"


_FOLLOWS = frozenset({StandbyState.RUNNING, StandbyState.PAUSED})
_RUNS, _STAYS_PAUSED = frozenset({StandbyState.RUNNING}), frozenset({StandbyState.PAUSED})
_REBUILDS, _CLOSES = frozenset({StandbyState.REINITIALISING}), frozenset({StandbyState.CLOSED})

# State -> method -> states it may lead to; an absent method is illegal. Commits go on while a store is rebuilt, so the
# tick and a newer limit are legal then; they apply nothing.
TABLE: dict[StandbyState, dict[str, frozenset[StandbyState]]] = {
    StandbyState.RUNNING: {
        "update": _FOLLOWS, "set_limit": _RUNS, "on_commit_tick": _RUNS, "reinitialise": _REBUILDS, "close": _CLOSES,
    },
    StandbyState.PAUSED: {
        "update": _FOLLOWS, "set_limit": _STAYS_PAUSED, "on_commit_tick": _FOLLOWS, "reinitialise": _REBUILDS,
        "close": _CLOSES,
    },
    StandbyState.REINITIALISING: {
        "set_limit": _REBUILDS, "on_commit_tick": _REBUILDS, "begin_again": _RUNS, "close": _CLOSES,
    },
    StandbyState.CLOSED: {"close": _CLOSES},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StandbyStep:
    """The shell's actions, in this order.

    1. write `apply` (records in offset order) and `position` in one batch: the position never goes ahead of its rows;
    2. `pause`: fetch no more of the partition;
    3. `seek`, if not None: go back to this offset, and drop all records fetched before the seek;
    4. `resume`: fetch again.

    `kept` is the number of records kept beyond the limit. If the write fails, the machine is ahead of its data: close
    it and make another from the stored position.
    """

    apply: Sequence[Record]
    kept: int
    position: int
    pause: bool = False
    resume: bool = False
    seek: int | None = None


@dataclass(frozen=True, slots=True)
class Applied(StandbyStep):
    """A step with a write: records to apply, or a position that moved over a gap."""


@dataclass(frozen=True, slots=True)
class Kept(StandbyStep):
    """A step without a write; the position is unchanged."""


@dataclass(frozen=True, slots=True)
class LimitSet:
    """The limit in force. `regressed`: the caller gave a smaller one, which was refused."""

    limit: int | None
    regressed: bool


@dataclass(frozen=True, slots=True)
class Reinitialise:
    """Set the store aside and rebuild it. `position` is its last one, `dropped` the number of dropped kept records."""

    reason: str
    position: int
    dropped: int


@dataclass(frozen=True, slots=True)
class StandbyStatistics:
    """Counters since the standby was made, and its present state."""

    state: StandbyState
    position: int
    limit: int | None
    kept_records: int
    kept_bytes: int
    applied_records: int
    duplicate_records: int
    dropped_records: int
    limit_waits: int
    limit_regressions: int
    reinitialisations: int


_offset_of = itemgetter(0)


class Standby:
    """One partition's standby. Raises InvalidRequest for unusable settings."""

    def __init__(
        self,
        position: int,
        limit: int | None = None,
        *,
        keep_max_records: int = KEEP_MAX_RECORDS,
        keep_max_bytes: int = KEEP_MAX_BYTES,
    ) -> None:
        if position < 0:
            raise InvalidRequest(f"standby: position {position} is negative: positions are offsets of the log")
        if keep_max_records < 1 or keep_max_bytes < 1:
            raise InvalidRequest(
                f"standby: keep_max_records {keep_max_records} and keep_max_bytes {keep_max_bytes} must be at least 1"
            )
        self._state = StandbyState.RUNNING
        self._position = position
        self._limit = None if limit is None else _checked_limit(limit)
        self._keep_max_records = keep_max_records
        self._keep_max_bytes = keep_max_bytes
        self._kept: deque[Record] = deque()
        self._kept_bytes = 0
        self._read = position
        self._overflowed = False
        self._applied = self._duplicates = self._dropped = 0
        self._waits = self._regressions = self._reinitialisations = 0
        self._was_paused = False

    @property
    def state(self) -> StandbyState:
        """The present state."""
        return self._state

    @property
    def position(self) -> int:
        """Next offset to apply."""
        return self._position

    @property
    def limit(self) -> int | None:
        """First offset that must not be applied; None = unlimited."""
        return self._limit

    def update(self, records: Sequence[Record], next_offset: int | None = None) -> Applied | Kept:
        """Take a fetched batch; `next_offset` (see `Fetched`) covers gaps and markers after its last record.

        Records below the read offset are duplicates and are ignored. Raises InternalError, with nothing changed, if the
        offsets do not increase strictly or do not stay below next_offset.
        """
        self._check("update")
        offsets = offsets_of(records)
        _check_batch(offsets, next_offset)
        known = bisect_left(offsets, self._read)
        self._duplicates += known
        fresh = records[known:] if known else records  # no slice in the usual case: it would copy every batch
        if self._overflowed:
            # The seek fetches all records from `read` on again; taking these now would leave a hole before them.
            self._dropped += len(fresh)
            return self._advance("update", ())
        self._read = max(self._read, offsets[-1] + 1 if offsets else 0, next_offset or 0)
        return self._advance("update", fresh)

    def on_commit_tick(self) -> Applied | Kept:
        """Apply kept records that the limit allows now; call it after each commit, with the newest limit set."""
        self._check("on_commit_tick")
        if self._state is StandbyState.REINITIALISING:
            return Kept((), 0, self._position)
        return self._advance("on_commit_tick", ())

    def set_limit(self, limit: int) -> LimitSet:
        """Raise the limit. A smaller one is counted and refused; kept records move with the next tick."""
        self._check("set_limit")
        if _checked_limit(limit) == self._limit:
            return LimitSet(self._limit, regressed=False)
        regressed = self._limit is None or limit < self._limit
        if regressed:
            self._regressions += 1
        else:
            self._limit = limit
        return LimitSet(self._limit, regressed)

    def reinitialise(self, reason: str) -> Reinitialise:
        """Drop all kept records, since the position is not valid any more. `begin_again` follows the set-aside.

        The limit stays, because a limit never moves back. If the log itself was recreated, its offsets have another
        meaning: close this standby and make another.
        """
        self._check("reinitialise")
        dropped = len(self._kept)
        self._release()
        # The reader's pause outlasts the rebuild, and `begin_again` must end it.
        self._was_paused = self._state is StandbyState.PAUSED
        self._reinitialisations += 1
        self._go("reinitialise", StandbyState.REINITIALISING)
        return Reinitialise(reason, self._position, dropped)

    def begin_again(self, position: int) -> Kept:
        """Tail from `position` of the rebuilt store. The step has no write: it seeks, and resumes if it was paused."""
        self._check("begin_again")
        if position < 0:
            raise InvalidRequest(f"standby: position {position} is negative: positions are offsets of the log")
        self._position = self._read = position
        self._go("begin_again", StandbyState.RUNNING)
        return Kept((), 0, position, resume=self._was_paused, seek=position)

    def close(self) -> None:
        """Drop all kept records. Closing twice is fine; every other method then raises Closed."""
        self._release()
        self._go("close", StandbyState.CLOSED)

    def statistics(self) -> StandbyStatistics:
        """An immutable snapshot."""
        return StandbyStatistics(
            state=self._state,
            position=self._position,
            limit=self._limit,
            kept_records=len(self._kept),
            kept_bytes=self._kept_bytes,
            applied_records=self._applied,
            duplicate_records=self._duplicates,
            dropped_records=self._dropped,
            limit_waits=self._waits,
            limit_regressions=self._regressions,
            reinitialisations=self._reinitialisations,
        )

    def _advance(self, event: str, fresh: Sequence[Record]) -> Applied | Kept:
        """Apply records below the limit, first kept ones, then those of `fresh`; keep the rest, within bounds."""
        apply: Sequence[Record] = self._drain()
        # While any are kept, fresh records lie behind them: applying one would break the order.
        if not self._kept:
            below = len(fresh) if self._limit is None else bisect_left(fresh, self._limit, key=_offset_of)
            own = fresh if below == len(fresh) else fresh[:below]  # columns stay columns
            apply = [*apply, *own] if apply else own
            fresh = fresh[below:]
        self._keep(fresh)
        self._applied += len(apply)
        before = self._position
        if not self._kept:
            # Over markers and gaps, too, but not over the limit: records above it may exist that were not read yet.
            reach = self._read if self._limit is None else min(self._read, self._limit)
            self._position = max(before, reach)
        elif apply:
            # Not to `read`: the kept records in between are not applied.
            self._position = apply[-1].offset + 1
        paused, pauses = self._state is StandbyState.PAUSED, bool(self._kept)
        # Only when all kept ones are drained: earlier the records fetched again would find no room either.
        seek = self._read if self._overflowed and not pauses else None
        if seek is not None:
            self._overflowed = False
        self._waits += pauses and not paused
        self._go(event, StandbyState.PAUSED if pauses else StandbyState.RUNNING)
        kind = Applied if apply or self._position != before else Kept
        return kind(
            apply=apply if isinstance(apply, RecordColumns) else tuple(apply),
            kept=len(self._kept),
            position=self._position,
            pause=pauses and not paused,
            resume=paused and not pauses,
            seek=seek,
        )

    def _drain(self) -> list[Record]:
        """Remove and return kept records that are below the limit now."""
        taken: list[Record] = []
        while self._kept and (self._limit is None or self._kept[0].offset < self._limit):
            record = self._kept.popleft()
            self._kept_bytes -= record_bytes(record)
            taken.append(record)
        return taken

    def _keep(self, fresh: Sequence[Record]) -> None:
        """Keep records in order while there is room; the first is always kept, so that each drain makes progress."""
        for index, record in enumerate(fresh):
            size = record_bytes(record)
            full = len(self._kept) >= self._keep_max_records or self._kept_bytes + size > self._keep_max_bytes
            if full and self._kept:
                # The reader has passed these; it must go back here once the kept ones are drained.
                self._read = record.offset
                self._overflowed = True
                self._dropped += len(fresh) - index
                return
            self._kept.append(record)
            self._kept_bytes += size

    def _release(self) -> None:
        self._kept.clear()
        self._kept_bytes = 0
        self._overflowed = False

    def _check(self, event: str) -> None:
        """Refuse an event that the table does not list for the present state."""
        if event in TABLE[self._state]:
            return
        if self._state is StandbyState.CLOSED:
            raise Closed(
                f"standby at position {self._position} is closed: make a new one to follow the partition again"
            )
        raise InternalError(
            f"standby at position {self._position}: {event}() is illegal while {self._state.value}; "
            f"legal are {', '.join(sorted(TABLE[self._state]))}"
        )

    def _go(self, event: str, state: StandbyState) -> None:
        assert state in TABLE[self._state].get(event, ()), f"{self._state} --{event}--> {state} is not in the table"
        self._state = state


def record_bytes(record: Record) -> int:
    """Size of a kept record for the bound: its key, value and headers, in bytes."""
    size = len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += len(name) + len(value or b"")
    return size


def _checked_limit(limit: int) -> int:
    # A missing committed offset must arrive here as 0: taken for "unlimited" it would break the promise.
    if not isinstance(limit, int) or limit < 0:
        raise InvalidRequest(f"standby: limit {limit!r} is not an offset; where no offset is committed, the limit is 0")
    return limit


def _check_batch(offsets: Sequence[int], next_offset: int | None) -> None:
    if not isinstance(offsets, range) and not all(map(lt, offsets, islice(offsets, 1, None))):
        at = next(index for index in range(1, len(offsets)) if offsets[index - 1] >= offsets[index])
        raise InternalError(
            f"standby: offset {offsets[at]} follows {offsets[at - 1]} in one batch, but offsets increase strictly; "
            "the log's reader is at fault"
        )
    if next_offset is not None and offsets and offsets[-1] >= next_offset:
        raise InternalError(
            f"standby: the batch reaches offset {offsets[-1]}, but its next offset is {next_offset}; "
            "the log's reader is at fault"
        )
