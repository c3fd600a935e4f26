"""The words of placement: every choice is a code and its facts, and this table turns them into a sentence.

Rules of this file: text only; a code that `place` uses without words here is a defect that a test finds.
"""

from __future__ import annotations

from collections.abc import Mapping

from standfast.replication.placement.model import Fact, Reason
from standfast.store.errors import InternalError
from standfast.store.timestamps import duration_text

WORDS: Mapping[str, str] = {
    # the active of a task
    "RUNS": "it runs on {instance}, which keeps it",
    "OPENS": "{instance} is to open it",
    "RESTORES": "{instance} restores it: {lag} records are left",
    "WAITS_FOR_CLOSE": "{instance} opens it once {source} has closed it",
    "BACK": "{instance} came back within the grace and keeps it",
    "MORE_CAUGHT_UP": "the copy on {instance} lacks {lag} records; the restore on {source} lacks {source_lag}",
    "HELD": "{source} stopped cleanly {for_ms} ago and is expected back within {grace_ms}; no standby is ready",
    "STANDBY_TAKES": "{source} is gone, and {instance} is its most caught-up standby: it lacks {lag} records",
    "IDLE_STANDBY_TAKES": "{source} is gone, and {instance}, which lacks {lag} records, can open it first: the standby "
    "on {other} has been busy with one record for {busy_ms}",
    "BUSY_OWNER": "{source} has been busy with one record for {busy_ms} and does not run the task yet; the standby on "
    "{instance}, which lacks {lag} records, takes it",
    "ROWS_ON_DISK": "{instance} has its rows on disk, which lack {lag} records, and is below its share",
    "EMPTIEST": "no instance has its rows; of those below their share {instance} has the fewest tasks ({load})",
    "HANDED_OVER": "{source} has more than its share, and the copy on {instance} lacks only {lag} records",
    "HANDED_OVER_STATELESS": "{source} has more than its share; without stores {instance} takes it at once",
    "STANDBY_CATCHES_UP": "{target} is to get it for the balance; it runs on {instance} until the standby there lacks "
    "at most {limit} records",
    "WARMS_UP": "{target} is to get it for the balance; it runs on {instance} until the warm-up there lacks at most "
    "{limit} records ({lag} now)",
    "WAITS_FOR_WARM_UP": "{target} is to get it for the balance; it runs on {instance} while other copies warm up, at "
    "most {max} at a time",
    "WAITING_FOR_SLOTS": "WAITING_FOR_SLOTS: {missing} more needed; the tasks that run take the {places} places of all "
    "instances, and this one starts on the next that comes free",
    "NO_ROOM": "the disk of {instance} takes no writes, and no other instance has both room and a caught-up copy",
    "NO_ROOM_WARM": "the disk of {source} takes no writes, and the copy on {instance} lacks only {lag} records",
    "NO_ROOM_COLD": "the disk of {source} takes no writes; {instance} has room and restores it: {lag} records are left",
    "WAITS_FOR_ROOM": "no instance has room on its disk: until one has, no task without an owner starts",
    # standbys and warm-ups
    "STAYS": "{instance} stands by already",
    "EXPECTED_BACK": "{instance} left a moment ago and is expected back",
    "RAN_IT": "{instance} ran the task until now and has all of its rows",
    "ADDED": "{instance} shares the fewest racks and tags with the other copies ({clash}); it has {load} standbys",
    "ADDED_ANYWHERE": "{instance} has the fewest standbys ({load})",
    "SPREAD": "{instance} shares fewer racks and tags with the other copies than {source}, which stays until it has "
    "caught up",
    "EVENED": "{instance} has fewer standbys than {source}, which stays until it has caught up",
    # copies that end
    "SUCCEEDED": "the standby that replaces the one on {instance} has caught up",
    "TOO_MANY": "the task has more standbys than wanted",
    "NOT_NEEDED": "the balance no longer needs the task on {instance}",
    # shown where the leader's record of reasons had no room for all of them, or has none yet
    "NOT_RECORDED": "the leader has not recorded why",
}
# Words for reasons whose facts are not all known: no former owner, no lag yet.
WITHOUT: Mapping[str, str] = {
    "NO_ROOM_COLD": "the disk of {source} takes no writes; {instance} has room, and takes it without a copy",
    "STANDBY_TAKES": "{instance} is its most caught-up standby",
    "IDLE_STANDBY_TAKES": "{instance} can open it first: the standby on {other} has been busy with one record for "
    "{busy_ms}",
    "WARMS_UP": "{target} is to get it for the balance; it runs on {instance} until the warm-up there lacks at most "
    "{limit} records",
    "WAITING_FOR_SLOTS": "WAITING_FOR_SLOTS: {missing} more needed; until then no task starts",
}


def words(reason: Reason) -> str:
    """The sentence of a reason. Raises InternalError for a code without words."""
    facts = {name: _text(name, fact) for name, fact in reason.facts.items()}
    for table in (WORDS, WITHOUT):
        try:
            return table[reason.code].format_map(facts)
        except KeyError:
            continue
    raise InternalError(f"placement has no words for {reason.code} with {sorted(reason.facts)}: please report this")


def words_of(reason: Reason) -> str:
    """As `words`, for a reason that was read: one of a later version is its code and facts."""
    try:
        return words(reason)
    except InternalError:
        return ", ".join([reason.code, *(f"{name} {_text(name, fact)}" for name, fact in sorted(reason.facts.items()))])


def _text(name: str, fact: Fact) -> str:
    if not isinstance(fact, int):
        return fact
    return duration_text(fact) if name.endswith("_ms") else f"{fact:,}"
