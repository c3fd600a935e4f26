"""The restore plan of one changelog partition, decided from the local position and the bounds of the log.

    local position      log                                             plan            reason
    none                any (but see history-missing)                   FromBeginning   no-local-state
    known to be lost    holds records                                   Reinitialise    `LocalPosition.lost`, as corrupt
    topic id differs    holds records                                   Reinitialise    topic-recreated
    any                 empty, and recreated or not up to the position  Refuse          log-empty (if rows here)
    above end           holds records                                   Reinitialise    position-ahead
    below begin         holds records                                   Reinitialise    truncated
    above diverged_at   holds records                                   Reinitialise    diverged
    none, below begin   begin > 0, delete only, kept for ever           Refuse          history-missing
    begin..end - 1      compacted, position too old                     Reinitialise    tombstones-expired
    begin..end - 1      compacted, position ahead of our clock          Reinitialise    time-ahead
    begin..end - 1                                                      Resume          resume
    end                                                                 UpToDate        up-to-date

    any of FromBeginning and Reinitialise above, and
                        begin > 0, compact only                         Refuse          history-missing

Kafka marks the end of a transaction by an offset of its own, so the position after an owner's commit stands at the
marker: it counts as seen in the rows "below begin" and "too old", so that a log that retention emptied, or that was
idle for long, has lost nothing.

A position that was stamped while a clock stood ahead never looks old, and deletes that it has missed would come back as
rows. So its age counts as unknown once its time lies further ahead of this machine's clock than the share of
delete.retention.ms that is left as a margin; below that the margin covers it. At the end of the log every delete has
been read, and opening the store stamps the position with the present time.

A source topic that serves as changelog has a limit, the group's committed offset (0 if none): records beyond it are not
processed yet. The limit replaces `end` in the last two rows and as the end of reading; a local position above it (at
least once, the group's commit comes last) is up to date, since reading goes on from there or replays.
An application that reads uncommitted records may have committed an offset above the end, within an open transaction.
Those records count as processed and will not come again, so reading goes on to the limit after the transaction's end.

Two refusals, because a silent wipe may destroy the last copy:

- log-empty: the log holds nothing, and the local rows cannot be those that it held last (topic recreated, log emptied,
  or records deleted by retention before they were read here). Retention by wall clock proves nothing about the rows:
  their stream time may be years behind, and updates may have been deleted unread. So a person decides.
- history-missing: records at the head are gone although the topic is neither compacted nor deleted by age, so the
  earlier state is unknown. The same without local state: a store built from the rest would look whole and not be.
  Compaction removes no head either: if it alone cleans, a begin above 0 means that a person or program removed
  records, and with them every key that was last written there. A restore from the beginning of such a log makes a store
  that looks whole and is not, whatever its reason. Positions at or above the begin have read the removed records, so
  local rows and snapshots there are whole, and go on. (With `compact,delete` retention removes heads all the time.)
  The content of a source topic is its owner's decision, and it may have begun above 0 before the application did. So of
  a source topic that serves as changelog only local rows that have not seen its begin, or are damaged, are refused:
  they may be the last copy.
  Rows that are known to be lost (a damaged block) must come from the whole log: for them any missing head counts.

Rules of this file: pure; times come in as `now_ms`. Reading begins at a plan's `position` (next to read) and ends at
its `end`; a restore ends when the reader's position reaches `end`, whatever the last record's offset was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from standfast.replication.offsets import TopicPartition
from standfast.replication.topics.tombstones import TOMBSTONE_AGE_MAX_PERCENT, are_expired
from standfast.store.errors import InternalError

NO_LOCAL_STATE = "no-local-state"
UP_TO_DATE = "up-to-date"
RESUME = "resume"
TOPIC_RECREATED = "topic-recreated"
POSITION_AHEAD = "position-ahead"
TRUNCATED = "truncated"
DIVERGED = "diverged"
TOMBSTONES_EXPIRED = "tombstones-expired"
TIME_AHEAD = "time-ahead"
CORRUPT = "corrupt"
LOG_EMPTY = "log-empty"
HISTORY_MISSING = "history-missing"

# The log that the rows were made of was replaced by another one: rows of the former may be here alone.
_REPLACED = frozenset({TOPIC_RECREATED, POSITION_AHEAD, DIVERGED})


@dataclass(frozen=True, slots=True)
class LocalPosition:
    """The local state of one changelog: next offset to read, and how it came about.

    `at_ms` is the wall time at which the position was last known to be the log's own (its last commit), `rows` whether
    the local store holds any. An empty `topic_id` is unknown and matches any. `marker`: the offset at the position
    holds no record but the end of the last written transaction, so that no record is lost with it.
    `lost`: why the rows cannot be used although the position may fit, such as "corrupt"; "" if they can.
    """

    position: int
    topic_id: str
    leader_epoch: int = -1
    at_ms: int = field(kw_only=True)
    rows: bool = field(kw_only=True)
    marker: bool = field(default=False, kw_only=True)
    lost: str = field(default="", kw_only=True)

    @property
    def seen(self) -> int:
        """The first offset that may hold a record not applied here."""
        return self.position + self.marker


class StoredPosition(Protocol):
    """A position with the facts by which a plan judges it, as a commit record and a snapshot's manifest hold it."""

    @property
    def offset(self) -> int: ...
    @property
    def topic_id(self) -> str: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def at_ms(self) -> int: ...
    @property
    def marker(self) -> bool: ...


def local_position(stored: StoredPosition, *, rows: bool, lost: str = "") -> LocalPosition:
    """The plan's view of a stored position; `rows` and `lost` as in LocalPosition."""
    return LocalPosition(
        position=stored.offset,
        topic_id=stored.topic_id,
        leader_epoch=stored.leader_epoch,
        at_ms=stored.at_ms,
        rows=rows,
        marker=stored.marker,
        lost=lost,
    )


@dataclass(frozen=True, slots=True)
class LogState:
    """The log of one changelog now. Times in milliseconds, -1 = for ever.

    `diverged_at` is the first offset at which the log differs from the records of the stored epoch (0: the log has no
    such epoch); `limit` is the first offset that must not be read, None for no limit; `written` is the end including
    records of open transactions, if that is more than `end`.
    """

    topic_partition: TopicPartition
    topic_id: str
    begin: int
    end: int
    cleanup: frozenset[str] = frozenset({"compact"})
    retention_ms: int = -1
    delete_retention_ms: int = -1
    diverged_at: int | None = None
    limit: int | None = None
    written: int = -1

    @property
    def stop(self) -> int:
        """The offset at which reading ends: the end, or the limit bounded by `begin` and `last`."""
        return self.end if self.limit is None else max(self.begin, min(self.limit, self.last))

    @property
    def last(self) -> int:
        """The last offset that any reader can have reached."""
        return max(self.end, self.written)

    @property
    def empty(self) -> bool:
        """Whether no record is left to read."""
        return self.begin == self.end

    @property
    def head_missing(self) -> bool:
        """Whether records at the head are gone, and neither compaction nor retention explains it."""
        return self.begin > 0 and "compact" not in self.cleanup and self.retention_ms < 0

    @property
    def head_removed(self) -> bool:
        """Whether records at the head of an only compacted log are gone: compaction moves no begin."""
        return self.begin > 0 and self.cleanup == {"compact"}


@dataclass(frozen=True, slots=True)
class Plan:
    """Read `topic_partition` from `position` up to `end`; `reason` is one of the constants above."""

    topic_partition: TopicPartition
    reason: str
    position: int
    end: int

    @property
    def records_max(self) -> int:
        """Upper bound of the records to read; gaps make it fewer."""
        return self.end - self.position


@dataclass(frozen=True, slots=True)
class UpToDate(Plan):
    """Nothing to read."""


@dataclass(frozen=True, slots=True)
class Resume(Plan):
    """Read on from the local position, over the rows that are here."""


@dataclass(frozen=True, slots=True)
class FromBeginning(Plan):
    """No local state exists: read the whole log into an empty store. `accepted` as in Reinitialise."""

    accepted: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ReinitialisePlan(Plan):
    """Set the local store aside and read the log into an empty one; the old one goes when the new one is whole.

    `accepted`: the loss that an operator has accepted, without which this would be a Refuse; "" if there is none.
    `keep`: the local rows may be nowhere else, so a copy of them stays when the new store is whole, too.
    """

    accepted: str = field(default="", compare=False)
    keep: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Refuse(Plan):
    """Change nothing: a person decides. `position` is the local one (0 if none)."""

    what: str
    fix: str

    @property
    def records_max(self) -> int:
        """Nothing is read."""
        return 0

    @property
    def where(self) -> str:
        """The changelog partition."""
        return str(self.topic_partition)

    @property
    def message(self) -> str:
        """The problem, its place and the fix, for an error."""
        return f"changelog {self.where}: {self.what}; {self.fix}"


def plan_changelog(
    local: LocalPosition | None,
    log: LogState,
    *,
    now_ms: int,
    accept_empty_log: bool = False,
    accept_missing_history: bool = False,
) -> UpToDate | Resume | FromBeginning | ReinitialisePlan | Refuse:
    """Decide by the table above. The `accept_*` flags are the operator's explicit consent to data loss.

    Raises InternalError for impossible bounds or positions.
    """
    _check(local, log)
    lost = NO_LOCAL_STATE if local is None else _loss(local, log)
    if local is not None and lost is None:
        # Before the test of age: a position at the end has read every delete, however old it is.
        if local.position >= log.stop:
            return UpToDate(log.topic_partition, UP_TO_DATE, local.position, local.position)
        lost = _deletes_missed(local, log, now_ms) if local.seen < log.stop else ""
    if local is not None and not lost:
        # The position may be one below the begin: at the marker of its own last transaction.
        return Resume(log.topic_partition, RESUME, max(local.position, log.begin), log.stop)
    why = lost or NO_LOCAL_STATE
    refusals = _refusals(local, log, why)
    # A store that starts empty beside an empty log loses nothing more by the head of that log.
    accept_head = accept_missing_history or (accept_empty_log and log.empty)
    for one in refusals:
        if not (accept_empty_log if one.reason == LOG_EMPTY else accept_head):
            return one
    accepted = "; ".join(one.what for one in refusals)
    if local is None:
        return FromBeginning(log.topic_partition, why, log.begin, log.stop, accepted=accepted)
    # The log that the rows were made of is not this one any more, or lacks a part of it by an operator's word.
    keep = local.rows and (bool(accepted) or why in _REPLACED)
    return ReinitialisePlan(log.topic_partition, why, log.begin, log.stop, accepted=accepted, keep=keep)


def _refusals(local: LocalPosition | None, log: LogState, why: str) -> list[Refuse]:
    """The losses of a restore from the beginning, each for an operator to accept; `why` is its reason."""
    found = []
    rows = local is not None and local.rows
    # First: there is no log to restore from, so a wipe would destroy the last copy.
    if local is not None and rows and log.empty:
        found.append(_refuse_empty(local, log, why))
    # Without local state, too: a store built from the rest would look whole.
    if log.head_missing and (local is None or why == TRUNCATED or local.lost):
        found.append(_refuse_history(local, log))
    if log.head_removed:
        # A topic of another id counts other offsets: nothing follows from where its begin lies.
        unread = local is not None and why != TOPIC_RECREATED and (local.seen < log.begin or bool(local.lost))
        if log.limit is None or (unread and rows):
            found.append(_refuse_head(local, log, why))
    return found


def _loss(local: LocalPosition, log: LogState) -> str | None:
    """Why the local position does not fit the log, or None if it does."""
    if local.lost:
        return local.lost
    # The id before any offset: offsets of a recreated topic are not comparable.
    if local.topic_id and log.topic_id and local.topic_id != log.topic_id:
        return TOPIC_RECREATED
    if local.position > log.last:
        return POSITION_AHEAD
    if local.seen < log.begin:  # before the epochs are compared: with its head, a log forgets those that ended there
        return TRUNCATED
    if log.diverged_at is not None and local.position > log.diverged_at:
        return DIVERGED
    return None


def age_is_unknown(age_ms: int, delete_retention_ms: int) -> bool:
    """Whether a position's time lies so far ahead of this clock (a negative age) that its age proves nothing."""
    return -age_ms * 100 > delete_retention_ms * (100 - TOMBSTONE_AGE_MAX_PERCENT)


def _deletes_missed(local: LocalPosition, log: LogState, now_ms: int) -> str:
    """Why deletes behind the position may be gone, or "" if they are all there."""
    if "compact" not in log.cleanup or log.delete_retention_ms < 0:
        return ""
    # The position's age, not the log's: a delete written just after the position is the first one to expire.
    age_ms = now_ms - local.at_ms
    if are_expired(age_ms, log.cleanup, log.delete_retention_ms):
        return TOMBSTONES_EXPIRED
    return TIME_AHEAD if age_is_unknown(age_ms, log.delete_retention_ms) else ""


_EMPTY_BECAUSE = {
    TOPIC_RECREATED: "the topic was recreated and is empty",
    POSITION_AHEAD: "the log is empty and ends before the local position",
    DIVERGED: "the log is empty and diverged before the local position",
    TRUNCATED: "every record after the local position was deleted before it was read here",
}


KEPT_IN = "in .kept of the application's state directory"


def _refuse_empty(local: LocalPosition, log: LogState, lost: str) -> Refuse:
    because = _EMPTY_BECAUSE.get(lost, f"the local rows are {lost} and the log that would restore them is empty")
    return Refuse(
        log.topic_partition,
        LOG_EMPTY,
        local.position,
        log.end,
        what=f"{because} (begin = end = {log.end}, local position {local.position}), "
        "and the local rows may be the last copy",
        fix="bring the topic back, or accept the empty log (accept_empty_log): the store then starts empty, and a copy "
        f"of the local rows stays {KEPT_IN}",
    )


def _refuse_history(local: LocalPosition | None, log: LogState) -> Refuse:
    have = "there is no local state" if local is None else f"the local position is {local.position}"
    return Refuse(
        log.topic_partition,
        HISTORY_MISSING,
        0 if local is None else local.position,
        log.end,
        what=f"records below offset {log.begin} are gone although the topic is neither compacted nor deleted by age, "
        f"and {have}: a store built from the rest would be incomplete",
        fix="restore a snapshot or the state directory of an instance that has read them, set the topic's "
        "cleanup.policy to what its store needs, or accept the loss (accept_missing_history)",
    )


_NEEDS_ALL_BECAUSE = {
    NO_LOCAL_STATE: "there is no local state",
    TOPIC_RECREATED: "the local rows are of an earlier topic of this name",
    POSITION_AHEAD: "the local rows are ahead of its end",
    TRUNCATED: "the local rows end before them",
    DIVERGED: "it differs from the log that the local rows were made of",
    TOMBSTONES_EXPIRED: "the local rows are so old that deletes after them may be gone",
    TIME_AHEAD: "the local rows are of unknown age, so that deletes after them may be gone",
}


def _refuse_head(local: LocalPosition | None, log: LogState, lost: str) -> Refuse:
    because = _NEEDS_ALL_BECAUSE.get(lost, f"the local rows are {lost}")
    at = "" if local is None else f" (local position {local.position})"
    copy = ", and the local rows may be the last copy of the removed ones" if local is not None and local.rows else ""
    return Refuse(
        log.topic_partition,
        HISTORY_MISSING,
        0 if local is None else local.position,
        log.end,
        what=f"records below offset {log.begin} were removed although the topic is only compacted, and {because}{at}: "
        f"a store built from the records that remain would be incomplete{copy}",
        fix="bring the log back, put the state directory of an instance that has read those records here, give this "
        "instance the snapshots of one (snapshots=; the task begins with one that has them by itself), or accept the "
        "loss (accept_missing_history): the store is then built from the records that remain"
        + (f", and a copy of the local rows stays {KEPT_IN}" if local is not None and local.rows else ""),
    )


def _check(local: LocalPosition | None, log: LogState) -> None:
    if not 0 <= log.begin <= log.end:
        raise InternalError(
            f"changelog {log.topic_partition}: begin {log.begin} and end {log.end} are negative or out of order"
        )
    if log.limit is not None and log.limit < 0:
        raise InternalError(f"changelog {log.topic_partition}: limit {log.limit} is negative")
    if local is not None and local.position < 0:
        raise InternalError(f"changelog {log.topic_partition}: local position {local.position} is negative")
