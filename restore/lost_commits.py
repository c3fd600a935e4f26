"""Commits that a task's directory lost, found by their numbers: rows that no log has are gone with these.

    opened as owner      record: epoch 7, commit 0, in a table file       from here on a lost write-ahead log shows
    commit n             record: epoch 7, commit n                        in the batch of the rows
                         group:  epoch 7, the commit that is in the directory by then: at least once n, since the group
                                 comes last; exactly once n - 1, since the log comes first
    next opening         group ahead of the record, same epoch            commits that were written here are gone

A kill between two steps of a commit never shows, whichever of them it meets. A write-ahead log that was cut, emptied or
replaced by an older one does, and so may the loss of power of a machine.

Rules of this file: tasks with rows that no log has, alone. It decides by values and asks no log.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from standfast.replication.commit_metadata import CommitMetadata
from standfast.restore.accepted import Accepted, note_loss
from standfast.store.clock import Clock
from standfast.store.errors import StateLost
from standfast.store.names import few
from standfast.store.task.commit_record import CommitRecord
from standfast.store.task.task_stores import TaskStores

LOST_COMMITS = "lost-commits"


def newest_commit(record: CommitRecord, metadata: Collection[CommitMetadata]) -> int:
    """The newest commit of the record's epoch that the directory had, by the group's word; -1: the group has none."""
    return max((one.commit for one in metadata if one.epoch == record.epoch), default=-1)


class LostCommits:
    """The judge of one session, and the counter of its commits. `accept`: the operator's consent to go on without."""

    def __init__(self, state_path: Path, clock: Clock, *, exactly_once: bool, accept: bool) -> None:
        self._state_path = state_path
        self._clock = clock
        self._behind = 1 if exactly_once else 0
        self._accept = accept

    def judge(self, stores: TaskStores, metadata: Collection[CommitMetadata]) -> None:
        """Raise StateLost if the directory of an owner lost commits, or record the consent. `metadata`: the group's."""
        record = stores.cut
        if record.commit < 0 or not stores.unlogged:
            return
        newest = newest_commit(record, metadata)
        if newest <= record.commit:
            return
        names = sorted(stores.unlogged)
        loss = f"commits {record.commit + 1} to {newest} of epoch {record.epoch} are missing in {stores.directory}"
        if not self._accept:
            raise StateLost(
                f"task {stores.task}: {loss}, though the group has them: its write-ahead log was cut, emptied or "
                f"replaced, or the machine lost power. Store {few(map(repr, names))} has no changelog (logging=False), "
                "so no log has the rows of these commits; they were not changed. Put a copy of the directory back that "
                "has these commits, or accept the loss (accept_unreadable_rows): the present rows are then kept, and "
                "stores with a changelog are restored from it",
                reason=LOST_COMMITS,
            )
        for name in names:
            noted = Accepted(stores.task, name, "", record.commit, newest, loss, self._clock.wall_ms())
            note_loss(self._state_path, noted)

    def begin(self, stores: TaskStores, epoch: int) -> None:
        """Begin to count the commits of an owner's epoch.

        The zero goes into a table file: emptied write-ahead logs would take it with the commits that it is to show. All
        rows go with it, or a log of before, with rows of a restore, could be lost beside a record that has their end.
        """
        if not (stores.unlogged and stores.engine.durable):
            stores.cut = replace(stores.cut, commit=-1)
            return
        stores.apply({}, replace(stores.cut, epoch=epoch, commit=0))
        stores.flush()

    def number(self, record: CommitRecord) -> tuple[int, int]:
        """The number of the next commit, and the one that its metadata has; -1 where commits are not counted."""
        if record.commit < 0:
            return -1, -1
        return record.commit + 1, record.commit + 1 - self._behind
