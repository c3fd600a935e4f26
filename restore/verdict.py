"""Verdicts on rows that differ between store and log, and on the store: one table for every kind of verify.

    last record below the position   store      record at or above it   verdict on the row
    value                            equal      any                     matched
    value                            absent     no / yes                missing / again (a second look)
    value                            other      no / yes                different / again
    tombstone                        present    no / yes                stale (a delete was not applied) / again
    none                             present    yes                     indeterminate where the log has gaps below the
                                                                        position: compaction may have removed an older
                                                                        one; extra where it has none: the row is from
                                                                        beyond the position, which is too low
    none                             present    no                      extra, unless its record may be gone: the log
                                                                        begins above 0; the partition was compacted
                                                                        and the store is versioned, or its position
                                                                        is older than tombstones are kept

    equal          every row that the log can still speak for is as the log has it; the verdict names the number of
                   rows that it cannot speak for (`verdict_text`)
    different      at least one row is missing, extra, different or stale
    inconclusive   the log cannot speak for the store (see REASONS), or for not one of its rows

Rules of this file: pure. The caller knows which keys have a record below the position and which have a later one; it
looks a second time at rows judged "again", because a log may be compacted while it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from standfast.replication.log import TopicPolicy
from standfast.restore.plan import age_is_unknown

Kind = Literal["missing", "extra", "different"]
Verdict = Literal["equal", "different", "inconclusive"]
RowVerdict = Literal["missing", "extra", "different", "stale", "indeterminate", "lost", "again"]
UNSURE: frozenset[RowVerdict] = frozenset({"indeterminate", "lost"})

# Why the log cannot speak for a store; the texts take the names and numbers in braces by keyword.
REASONS = {
    "no-position": "the store has no position: no record of its changelog was applied yet",
    "topic-missing": "the log has no topic {topic}: is it the log of this application?",
    "topic-recreated": "topic {topic} was recreated since the store was written: its offsets mean other records now",
    "position-ahead": "the store stands at {position}, but the log ends at {end}: the log is older, or another one",
    "position-behind": "the log begins at {begin}, beyond the position {position}: the store's records are gone",
    "log-truncated": "the log begins at {begin}: the records of {lost} rows below the position are gone",
    "log-changed": "the log was truncated or recreated while it was read: verify again",
    "compacted": "compaction removed the records below the position of all {indeterminate} rows: verify after a commit",
    "compacted-in-part": "{indeterminate} of {rows} rows are undecided: the log has no record of them below the "
    "position {position}; compaction removes older records, and a position that is too low looks the same",
    "beyond-position": "{beyond} extra rows have a record at or above the position {position} and none below it, where "
    "the log has no gaps: the store is ahead of its position; remove the task's directory, so that it is restored",
    "digest-only": "the digests differ, but records below the position were compacted or later ones follow, so that "
    "this proves nothing: verify row by row",
    "serdes-unknown": "rows differ, but {topic} is the application's own topic, and the application's serdes are "
    "unknown here: verify with the application's definitions (standfast.restore.verify.verify)",
}


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The log of a partition as a whole: its begin, and which of its records may be gone.

    `compacted`: records below the position are gone. `deletes_expired`: tombstones above it may be gone as well, so
    that a key without any record may have been deleted after the position.
    """

    begin: int
    compacted: bool
    deletes_expired: bool = False


def judge(kind: Kind, facts: LogFacts, *, below: bool, later: bool, versioned: bool, last: bool) -> RowVerdict:
    """The table at the top, for a row that is not equal; `last`: no second look follows.

    `below`, `later`: its key has a record below the position, and one at or above it.
    """
    # Compaction keeps the last record of a key, not every version; once a tombstone expires not even that.
    unknown = versioned and facts.compacted and kind != "different"
    if kind == "extra" and (not below or unknown):
        if facts.begin > 0:
            return "lost"
        # Without gaps every record below the position was read, none was compacted away: a later one explains nothing.
        return "indeterminate" if unknown or facts.deletes_expired or (later and facts.compacted) else "extra"
    if unknown:
        return "indeterminate"
    if later and not last:
        return "again"
    if kind == "extra" and not versioned:
        return "stale"
    return kind


def deletes_expired(policy: TopicPolicy, age_ms: int, *, compacted: bool, gaps: bool) -> bool:
    """Whether a tombstone above a position of this age may be gone; `gaps`: offsets above it hold no record.

    Such a tombstone was appended after the position was written, and is kept for delete.retention.ms. A position whose
    time lies ahead of the clock may be of any age.
    """
    kept_ms = policy.delete_retention_ms
    old = kept_ms >= 0 and (age_ms >= kept_ms or age_is_unknown(age_ms, kept_ms))
    return compacted and old and gaps


def is_beyond(verdict: RowVerdict, *, below: bool, later: bool) -> bool:
    """Whether a row is extra because the store is ahead of its position."""
    return verdict == "extra" and later and not below


def conclude(
    wrong: int, unsure: int, lost: int, matched: int, *, beyond: int = 0, serdes_known: bool = True
) -> tuple[Verdict, str]:
    """(verdict, reason) of a store from its numbers of rows; the reason is "" or one of REASONS.

    `beyond` counts the rows of `wrong` whose records lie beyond the position.
    """
    # A source topic's records pass through the application's serdes: without them a difference proves nothing.
    if wrong and not serdes_known:
        return "inconclusive", "serdes-unknown"
    silent = "log-truncated" if lost else "compacted" if unsure and not matched else ""
    reason = silent or ("beyond-position" if beyond else "compacted-in-part" if unsure else "")
    return "different" if wrong else "inconclusive" if silent else "equal", reason


def verdict_text(verdict: str, indeterminate: int) -> str:
    """A verdict for people: "equal" comes with the number of rows that the log could not speak for."""
    if verdict != "equal" or not indeterminate:
        return verdict
    return f"equal, but {indeterminate:,} {'row is' if indeterminate == 1 else 'rows are'} undecided"
