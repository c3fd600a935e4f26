"""The table of a task's life in one process: state x event ──> effects.

                       named, offered, due
      ABSENT ──────────────────────────────────> RESTORING ──> RUNNING ──> LEAVING ──> ABSENT
        │  ^ dropped, closed                        ^   ^         │
        │  │                                promote │   │ due     │ an error, lost rows, no answer
        └──┴──> STANDBY ────────────────────────────┘   └──── FAILED       FAILED_STANDBY ──due──> STANDBY
                   any of them ── a newer owner is seen ──> LOST ── named again ──> RESTORING

    NAMED            the caller assigns the task as active, also from a live owner      NAMED_STANDBY   as a standby
    DROPPED          the caller's assignment does not name it
    OFFERED          placement wants it active here, where no live owner keeps it       OFFERED_STANDBY as a standby
    DUE              its next attempt is due: it is to be active, DUE_STANDBY a standby, or DUE_UNNAMED neither here
    REOPENED         the caller opens it again by hand, and REOPENED_STANDBY where it is to be a standby
    OWNER_SEEN       a newer owner has it
    ROWS_LOST        its rows are lost or damaged: the plan decides which stores are restored, or refuses
    NO_ANSWER        the log, a service or the disk did not answer
    ERROR            any other error
    INTERRUPTED      a signal handler interrupted a round: records may be read and not applied

Each state that waits has a due time in the task's life (`Life.attempt`), but for FAILED after an ERROR. There the host
decides: a loop by its restart strategy, a sidecar by its own, a program by `reopen`. The task manager carries an effect
out at once, under the session's lock: no answer of an older opening meets a newer one. A worker numbers its openings.

Rules of this file: pure; every state has every event. `stream/session/task_manager.py` carries the effects out.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias


class LifeState(Enum):
    """The state of a task in one process."""

    ABSENT = "absent"
    STANDBY = "standby"
    RESTORING = "restoring"
    RUNNING = "running"
    LEAVING = "leaving"  # active, on its way to another instance
    FAILED = "failed"  # active, closed or about to be, with its error
    FAILED_STANDBY = "failed standby"
    LOST = "lost"  # another instance has taken it over, and it is absent here


class LifeEvent(Enum):
    """See the head of this file."""

    NAMED = "named"
    NAMED_STANDBY = "named as a standby"
    DROPPED = "dropped"
    OFFERED = "offered"
    OFFERED_STANDBY = "offered as a standby"
    DUE = "due"
    DUE_STANDBY = "due as a standby"
    DUE_UNNAMED = "due, named by no caller"
    REOPENED = "reopened"
    REOPENED_STANDBY = "reopened as a standby"
    OWNER_SEEN = "newer owner seen"
    ROWS_LOST = "rows lost"
    NO_ANSWER = "no answer"
    ERROR = "error"
    INTERRUPTED = "interrupted"


class Effect(Enum):
    """A step of the task manager."""

    CLOSE = "close"
    OPEN = "open"  # claim it in the log, then open it as active
    PROMOTE = "promote"  # claim it in the log, then restore its standby to the end
    STAND_BY = "stand by"
    START_OVER = "start over"  # close it, and open it again by a new plan
    FAIL = "fail"
    WAIT = "wait"  # note its next attempt
    FORGET = "forget"  # drop its next attempt
    LOSE = "lose"  # close it, and refuse its commits until the caller names it again


_S, _X = LifeState, Effect
_Row: TypeAlias = dict[LifeState, tuple[Effect, ...]]
_OPEN: _Row = {_S.ABSENT: (_X.OPEN,), _S.LOST: (_X.OPEN,), _S.STANDBY: (_X.PROMOTE,)}
_STAND_BY: _Row = {_S.ABSENT: (_X.STAND_BY,), _S.LOST: (_X.STAND_BY,)}
_ACTIVE = (_S.RESTORING, _S.RUNNING, _S.LEAVING)
_HERE = (*_ACTIVE, _S.STANDBY, _S.FAILED, _S.FAILED_STANDBY)
_AGAIN: _Row = dict.fromkeys((_S.FAILED, _S.FAILED_STANDBY), (_X.START_OVER,))
_PUT_OFF = (_X.FAIL, _X.WAIT)


def _every(*rows: _Row) -> _Row:
    """The effects in each state: of the first row that names it, or none."""
    return {state: next((row[state] for row in rows if state in row), ()) for state in LifeState}


# A state without effects stays as it is.
TABLE: Mapping[LifeEvent, Mapping[LifeState, tuple[Effect, ...]]] = {
    LifeEvent.NAMED: _every(_OPEN, dict.fromkeys((_S.FAILED, _S.FAILED_STANDBY), (_X.CLOSE, _X.OPEN))),
    LifeEvent.NAMED_STANDBY: _every(
        _STAND_BY, dict.fromkeys((*_ACTIVE, _S.FAILED, _S.FAILED_STANDBY), (_X.CLOSE, _X.STAND_BY))
    ),
    LifeEvent.DROPPED: _every(dict.fromkeys(_HERE, (_X.CLOSE,))),
    LifeEvent.OFFERED: _every(_OPEN),
    LifeEvent.OFFERED_STANDBY: _every(_STAND_BY),
    # A failed task that leaves keeps its attempt until it is closed, since the move may be taken back.
    LifeEvent.DUE: _every(_OPEN, _AGAIN, {_S.LEAVING: ()}, dict.fromkeys(LifeState, (_X.FORGET,))),
    LifeEvent.DUE_STANDBY: _every(_STAND_BY, _AGAIN, {_S.LEAVING: ()}, dict.fromkeys(LifeState, (_X.FORGET,))),
    LifeEvent.DUE_UNNAMED: _every(_AGAIN, {_S.LEAVING: ()}, dict.fromkeys(LifeState, (_X.FORGET,))),
    LifeEvent.REOPENED: _every(_OPEN, dict.fromkeys(_HERE, (_X.CLOSE, _X.OPEN))),
    LifeEvent.REOPENED_STANDBY: _every({_S.FAILED_STANDBY: (_X.CLOSE, _X.STAND_BY)}),
    LifeEvent.OWNER_SEEN: _every(dict.fromkeys(LifeState, (_X.LOSE,))),
    LifeEvent.ROWS_LOST: _every(dict.fromkeys(_HERE, (_X.START_OVER,))),
    LifeEvent.NO_ANSWER: _every(dict.fromkeys(_HERE, _PUT_OFF)),
    LifeEvent.ERROR: _every(dict.fromkeys(_HERE, (_X.FAIL,))),
    LifeEvent.INTERRUPTED: _every(dict.fromkeys((_S.RESTORING, _S.STANDBY), _PUT_OFF)),
}
