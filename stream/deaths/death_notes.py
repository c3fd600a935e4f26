"""Notes about processes that died with a record in hand, by the one that owns their state directory.

    a worker has ended ──> its last words, and how the kernel says that it ended ──> note in the log
    a process begins   ──> last words of the processes before it, with their stacks ──> notes in the log

    its own doing    SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT; an exit; a stall of a process that was not stopped
    not its own      any other signal; the end of a process of which nothing is known, such as one that was killed

Rules of this file: one thread. A note that the log does not take now is written later. Words of another boot of the
machine count for nothing: all of its processes ended together.
"""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path

from standfast.replication.log import Group
from standfast.store.errors import Unavailable
from standfast.store.log import as_event, logger
from standfast.store.process.in_hand import FOLDER, HeldRecord, InHand, LastWords, last_words, left_behind
from standfast.stream.deaths.deaths import Death, death_of, note_death
from standfast.stream.session.session import Session

OWN_SIGNALS = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT))
UNKNOWN = "ended without a word, as by a kill"


class DeathNotes:
    """Reads last words in a folder, and notes the deaths in a group."""

    def __init__(self, group: Group, folder: Path, member: str) -> None:
        self._group = group
        self._folder = folder
        self._member = member
        self._unnoted: list[Death] = []

    @classmethod
    def begun(cls, group: Group, state_path: Path, member: str) -> DeathNotes:
        """Those of a state directory, once the deaths of its former processes are noted."""
        notes = cls(group, state_path / FOLDER, member)
        notes.of_former()
        return notes

    def of_former(self) -> None:
        """Note the deaths of the processes that had the directory before; called before a process begins."""
        for left in left_behind(self._folder):
            if left.record is None or not left.same_boot:
                continue
            how = _signal(left.fatal) if left.fatal else UNKNOWN
            death = death_of(left.record, how, self._member, own=bool(left.fatal), stack=left.stack)
            self._note(death)
            logger.error(
                "process %d, which ran here before, %s with %s in hand%s", left.pid,
                f"ended ({how})" if left.fatal else how, left.record, f":\n{left.stack}" if left.stack else "",
                extra=as_event("died_with_record", task=left.record.task, how=how),
            )  # fmt: skip

    def take(self, pid: int) -> LastWords | None:
        """The last words of a process that has ended; None if it has ended well."""
        return last_words(self._folder, pid)

    def note(self, left: LastWords | None, code: int, why: str, *, stalled: bool) -> tuple[HeldRecord, int] | None:
        """Note how a worker ended; the record that it had in hand, and the number of deaths at it, 0 if unknown.

        `code` is negative for a signal; `why` says that its supervisor killed it, `stalled` that it made no progress.
        """
        if left is None or left.record is None:
            return None
        own = stalled or code >= 0 or -code in OWN_SIGNALS
        how = why or (_signal(-code) if code < 0 else f"exit code {code}")
        death = death_of(left.record, how, self._member, own=own and not (why and not stalled), stack=left.stack)
        return left.record, self._note(death)

    def clear(self) -> None:
        """Remove the files in the folder, once all processes have ended: a spare one has no record in hand."""
        for _ in left_behind(self._folder):
            pass

    def again(self) -> None:
        """Write the notes that the log did not take."""
        unnoted, self._unnoted = self._unnoted, []
        for death in unnoted:
            self._note(death)

    def _note(self, death: Death) -> int:
        try:
            return note_death(self._group, death)
        except Unavailable:
            self._unnoted.append(death)
            return 0


def note_stall(session: Session, in_hand: InHand, why: str) -> None:
    """Note a stall of this process at the record in hand; called by the thread that watches its progress."""
    record = in_hand.held()
    if record is None:
        return
    logger.error("%s is in hand", record, extra=as_event("stalled_with_record", task=record.task))
    try:
        with closing(session.log.group(session.app)) as group:
            note_death(group, death_of(record, why, session.instance_id, own=True))
    except Unavailable:
        return  # the next start on the directory notes it, as a kill
    in_hand.noted(record)


def note_former_deaths(session: Session) -> None:
    """Note the deaths of the processes that had a session's directory before it."""
    with closing(session.log.group(session.app)) as group:
        DeathNotes.begun(group, session.state_path, session.instance_id)


def _signal(number: int) -> str:
    try:
        return f"signal {number}, {signal.Signals(number).name}"
    except ValueError:
        return f"signal {number}"
