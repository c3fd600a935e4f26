"""Claims of warm copies: the tasks of an instance that is gone go to them at once, and not when the leader has decided.

    valid generation: task ── active on an instance that was killed, or has stopped
        ├── the log gave it to another live instance since ──────────────────────> that one runs it
        ├── a copy here, near the end, the first of the live ones ───────────────> claimed now, if it is free
        ├── the k-th of them ────────────────────────────────────────────────────> k times 50 ms later, likewise
        └── none ────────────────────────────────────────────────────────────────> the leader decides

    claimed ──> it runs here, beside the generation ──> the next one of the leader, which reads the claim and keeps it

The log has the last word: such a claim never ends that of a live instance. Where the leader decides before it reads a
claim, and gives the task to another copy, the task moves once more, in order.

Rules of this file: pure; milliseconds. `stream/session/managed.py` reads and opens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import IntEnum

from standfast.replication.leases import Busy
from standfast.replication.offsets import TaskId
from standfast.replication.placement.model import Assignment
from standfast.replication.placement.records import Report

TURN_MS = 50  # between the claims of two copies: the first one is in the log by then


class Free(IntEnum):
    """Whether a task may be opened here, as far as the group and the reports of its members say."""

    NO = 0
    UNOWNED = 1  # no live instance owns it: it is claimed only if that is so at the log as well
    GIVEN = 2  # its owner reports that it runs the task no more, or is this instance


def orphans(valid: Assignment, members: Collection[str]) -> dict[TaskId, str]:
    """The tasks of instances that are gone, and these."""
    gone = set(valid.active.values()).difference(members)
    return {task: owner for task, owner in valid.active.items() if owner in gone} if gone else {}


def claimed(orphans: Collection[TaskId], valid: Assignment, owners: Mapping[TaskId, str]) -> dict[TaskId, str]:
    """Those of the tasks that a copy has claimed by the log, and its instance."""
    found = ((task, owners.get(task)) for task in orphans)
    return {task: owner for task, owner in found if owner is not None and owner in valid.standbys.get(task, ())}


def to_claim(
    orphans: Mapping[TaskId, str],
    valid: Assignment,
    me: str,
    members: Collection[str],
    owners: Mapping[TaskId, str],
    mine: Report,
    *,
    busy: Busy,
    max_tasks: int | None,
    acceptable_lag: int,
    gone_ms: Mapping[str, int],
) -> frozenset[TaskId]:
    """The tasks that instance `me` is to run before the leader has decided; `mine` is its own report.

    `gone_ms`: for how long each instance has been gone, as far as this one has seen.
    """
    kept, coming = set(), []
    for task, owner in sorted(orphans.items()):
        copies = [name for name in valid.standbys.get(task, ()) if name in members]
        if me not in copies:
            continue
        turn_ms = TURN_MS * copies.index(me)
        if owners.get(task) == me:
            kept.add(task)
        elif owners.get(task) not in members and gone_ms.get(owner, 0) >= turn_ms:
            coming += [task] if _is_ready(task, mine, busy) and mine.lags[task] <= acceptable_lag else []
    has = len((mine.running | mine.restoring | kept).difference(coming))
    return frozenset([*kept, *(coming if max_tasks is None else coming[: max(max_tasks - has, 0)])])


def _is_ready(task: TaskId, mine: Report, busy: Busy) -> bool:
    """Whether a copy follows its changelogs and can begin now: not beside a record in hand, and not on a full disk."""
    follows = task in mine.lags and task not in mine.restoring
    return follows and not mine.no_room and not busy.of_worker(mine.worker_of(task))
