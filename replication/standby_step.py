"""What a standby may do and what it answers: states, the table of its transitions, steps, counters.

Rules of this file: frozen values only; the machine that makes them, and the picture of it, are in
`standfast.replication.standby`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from standfast.replication.log import Record


class State(Enum):
    """Where a standby is in its life."""

    RUNNING = "running"
    PAUSED = "paused"
    REINITIALISING = "reinitialising"
    CLOSED = "closed"


_FOLLOWS = frozenset({State.RUNNING, State.PAUSED})
_RUNS, _STAYS_PAUSED = frozenset({State.RUNNING}), frozenset({State.PAUSED})
_REBUILDS, _CLOSES = frozenset({State.REINITIALISING}), frozenset({State.CLOSED})

# State -> method -> states it may lead to. What is absent is illegal. Commits go on while a store is rebuilt, so the
# tick and a newer limit are legal then; they apply nothing.
TABLE: dict[State, dict[str, frozenset[State]]] = {
    State.RUNNING: {
        "update": _FOLLOWS, "set_limit": _RUNS, "on_commit_tick": _RUNS, "reinitialise": _REBUILDS, "close": _CLOSES,
    },
    State.PAUSED: {
        "update": _FOLLOWS, "set_limit": _STAYS_PAUSED, "on_commit_tick": _FOLLOWS, "reinitialise": _REBUILDS,
        "close": _CLOSES,
    },
    State.REINITIALISING: {
        "set_limit": _REBUILDS, "on_commit_tick": _REBUILDS, "begin_again": _RUNS, "close": _CLOSES,
    },
    State.CLOSED: {"close": _CLOSES},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """What the shell must do now, in this order.

    1. write `apply` (records in offset order) and `position` in one batch: the position never goes ahead of its rows;
    2. `pause`: fetch no more of the partition;
    3. `seek`, if not None: go back to this offset, and throw away whatever was fetched before the seek;
    4. `resume`: fetch again.

    `kept` is the number of records that wait beyond the limit. If the write fails, the machine is ahead of its data:
    close it and make another from the stored position.
    """

    apply: Sequence[Record]
    kept: int
    position: int
    pause: bool = False
    resume: bool = False
    seek: int | None = None


@dataclass(frozen=True, slots=True)
class Applied(Step):
    """Records were applied, or the position moved over a gap: there is something to write."""


@dataclass(frozen=True, slots=True)
class Kept(Step):
    """Nothing to write; the position is as it was."""


@dataclass(frozen=True, slots=True)
class LimitSet:
    """The limit in force. `regressed`: a smaller one was given and refused."""

    limit: int | None
    regressed: bool


@dataclass(frozen=True, slots=True)
class Reinitialise:
    """Set the store aside and build it anew. `position` is where it had been, `dropped` how many kept were let go."""

    reason: str
    position: int
    dropped: int


@dataclass(frozen=True, slots=True)
class StandbyStatistics:
    """Counters since the standby was made, and where it is now."""

    state: State
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
