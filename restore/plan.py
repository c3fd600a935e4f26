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
    below begin         begin > 0, compact only                         Refuse          history-missing (if rows here)
    begin..end - 1      compacted, position too old                     Reinitialise    tombstones-expired
    begin..end - 1                                                      Resume          resume
    end                                                                 UpToDate        up-to-date

Kafka marks the end of a transaction by an offset of its own, so the position after an owner's commit stands at the
marker: it counts as seen in the rows "below begin" and "too old", so that a log that retention emptied, or that was
idle for long, has lost nothing.

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
  Compaction removes no head either: if it alone cleans, a begin above the local position means that a person or program
  removed records unread here, and the local rows may be the last copy of every key that was last written below it.
  (With `compact,delete` retention does that all the time; and without local rows nothing can be lost.)
  Rows that are known to be lost (a damaged block) must come from the whole log: for them any missing head counts.

Rules of this file: pure; times come in as `now_ms`. Reading begins at a plan's `position` (next to read) and ends at
its `end`; a restore ends when the reader's position reaches `end`, whatever the last record's offset was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from standfast.replication.offsets import TopicPartition
from standfast.store.errors import InternalError

NO_LOCAL_STATE = "no-local-state"
UP_TO_DATE = "up-to-date"
RESUME = "resume"
TOPIC_RECREATED = "topic-recreated"
POSITION_AHEAD = "position-ahead"
TRUNCATED = "truncated"
DIVERGED = "diverged"
TOMBSTONES_EXPIRED = "tombstones-expired"
CORRUPT = "corrupt"
LOG_EMPTY = "log-empty"
HISTORY_MISSING = "history-missing"

# A position older than this share of delete.retention.ms may have missed deletes.
TOMBSTONE_AGE_MAX_PERCENT = 90


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
    """No local state exists: read the whole log into an empty store."""


@dataclass(frozen=True, slots=True)
class Reinitialise(Plan):
    """Set the local store aside and read the log into an empty one; the old one goes when the new one is whole."""


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
) -> UpToDate | Resume | FromBeginning | Reinitialise | Refuse:
    """Decide by the table above. The `accept_*` flags are the operator's explicit consent to data loss.

    Raises InternalError for impossible bounds or positions.
    """
    _check(local, log)
    if local is None:
        # A store built from the rest would look whole.
        if log.head_missing and not accept_missing_history:
            return _refuse_history(None, log)
        return FromBeginning(log.topic_partition, NO_LOCAL_STATE, log.begin, log.stop)
    lost = _loss(local, log)
    if lost is not None:
        # First of the refusals: there is no log to restore from, so a wipe would destroy the last copy.
        if log.empty and local.rows and not accept_empty_log:
            return _refuse_empty(local, log, lost)
        if (lost == TRUNCATED or local.lost) and log.head_missing and not accept_missing_history:
            return _refuse_history(local, log)
        # A topic of another id counts other offsets: nothing follows from where its begin lies.
        unread = (local.seen < log.begin or local.lost) and lost != TOPIC_RECREATED and not log.empty
        if unread and log.head_removed and local.rows and not accept_missing_history:
            return _refuse_head(local, log)
        return Reinitialise(log.topic_partition, lost, log.begin, log.stop)
    # Before the test of age: a position at the end has read every delete, however old it is.
    if local.position >= log.stop:
        return UpToDate(log.topic_partition, UP_TO_DATE, local.position, local.position)
    if local.seen < log.stop and _tombstones_expired(local, log, now_ms):
        return Reinitialise(log.topic_partition, TOMBSTONES_EXPIRED, log.begin, log.stop)
    # The position may be one below the begin: at the marker of its own last transaction.
    return Resume(log.topic_partition, RESUME, max(local.position, log.begin), log.stop)


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


def _tombstones_expired(local: LocalPosition, log: LogState, now_ms: int) -> bool:
    if "compact" not in log.cleanup or log.delete_retention_ms < 0:
        return False
    # The position's age, not the log's: a delete written just after the position is the first one to expire.
    return (now_ms - local.at_ms) * 100 > log.delete_retention_ms * TOMBSTONE_AGE_MAX_PERCENT


_EMPTY_BECAUSE = {
    TOPIC_RECREATED: "the topic was recreated and is empty",
    POSITION_AHEAD: "the log is empty and ends before the local position",
    DIVERGED: "the log is empty and diverged before the local position",
    TRUNCATED: "every record after the local position was deleted before it was read here",
}


def _refuse_empty(local: LocalPosition, log: LogState, lost: str) -> Refuse:
    because = _EMPTY_BECAUSE.get(lost, f"the local rows are {lost} and the log that would restore them is empty")
    return Refuse(
        log.topic_partition,
        LOG_EMPTY,
        local.position,
        log.end,
        what=f"{because} (begin = end = {log.end}, local position {local.position}), "
        "and the local rows may be the last copy",
        fix="bring the topic back, or copy the state directory away and accept the empty log (accept_empty_log): "
        "the local rows are then set aside and the store starts empty",
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


def _refuse_head(local: LocalPosition, log: LogState) -> Refuse:
    return Refuse(
        log.topic_partition,
        HISTORY_MISSING,
        local.position,
        log.end,
        what=f"records below offset {log.begin} were removed although the topic is only compacted, the local position "
        f"is {local.position}{', the local rows are ' + local.lost if local.lost else ''}, and the local rows may be "
        "the last copy of the removed records",
        fix="bring the log back, restore a snapshot or the state directory of an instance that has read those records, "
        "or copy this state directory away and accept the loss (accept_missing_history): the local rows are then set "
        "aside and the store is built from the records that remain",
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
