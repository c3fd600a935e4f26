"""Source offsets that another client of the group committed, beside the application's own record of them.

    commit of the group    record of the task
    has our metadata       any                  ours: `Task.resume_from_log` chooses
    other text, or none    the same offset      followed: the two agree
    other text, or none    no offset            followed, with a line in the log: a first start, a migration
    other text, or none    another offset       refused; with accept_foreign_offsets recorded, and followed

A task's own commit is atomic with its changelogs, or comes after them, so the group's commit wins over the record. The
commit of another client is neither: followed in silence, it skips records or processes them twice.

Rules of this file: it decides by values and asks no log. Nothing is judged where a consumer of the application's own is
in the group (`external_consumer.py` watches its commits).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from standfast.replication.commit_metadata import is_ours
from standfast.replication.log import Committed
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.restore.accepted import Accepted, note_loss
from standfast.store.clock import Clock
from standfast.store.errors import StateLost
from standfast.store.log import as_event, logger
from standfast.store.names import few
from standfast.store.task.commit_record import CommitRecord, parse_source_key

FOREIGN_OFFSETS = "foreign-offsets"


class Foreign(NamedTuple):
    """A source partition with the offset of the application's own record, and the one that another client committed."""

    at: TopicPartition
    own: int
    theirs: int

    def __str__(self) -> str:
        return f"{self.at}: {self.theirs}, own record {self.own}"

    @property
    def cost(self) -> str:
        """The cost of going on from the other client's offset."""
        if self.theirs > self.own:
            return f"offsets {self.own} to {self.theirs - 1} of {self.at} are never processed"
        return f"offsets {self.theirs} to {self.own - 1} of {self.at} are processed twice"


def recorded_offsets(record: CommitRecord, owns: Callable[[str], bool]) -> dict[TopicPartition, int]:
    """The source offsets of a task's record, of the topics that the task owns now."""
    found = {TopicPartition(*parse_source_key(key)): offset for key, offset in record.sources.items()}
    return {at: offset for at, offset in found.items() if owns(at.topic)}


def recorded_tags(record: CommitRecord) -> dict[TopicPartition, str]:
    """The epoch tags of these offsets."""
    return {TopicPartition(*parse_source_key(key)): tag for key, tag in record.source_tags.items()}


def foreign_offsets(
    own: Mapping[TopicPartition, int], committed: Mapping[TopicPartition, Committed]
) -> tuple[Foreign, ...]:
    """The recorded offsets from which another client's commit differs."""
    return tuple(
        Foreign(at, own[at], found.offset)
        for at, found in sorted(committed.items())
        if at in own and found.offset != own[at] and not is_ours(found.metadata)
    )


class ForeignOffsets:
    """The judge of one session. `accept`: the operator's consent to go on from another client's offsets."""

    def __init__(self, app: str, state_path: Path, address: str, clock: Clock, *, accept: bool) -> None:
        self.judges = True  # False: a consumer of the application's own is in the group
        self._app = app
        self._state_path = state_path
        self._address = address
        self._clock = clock
        self._accept = accept

    def judge(self, task: TaskId, found: Collection[Foreign], *, behind: bool = True) -> frozenset[TopicPartition]:
        """Raise StateLost for differing offsets, or record the consent; returns the partitions with consent.

        `behind`: the changelogs may have records of commits after the task's record.
        """
        if not self.judges or not found:
            return frozenset()
        if not self._accept:
            raise StateLost(self._refusal(task, found, behind=behind), reason=FOREIGN_OFFSETS)
        for one in found:
            loss = f"offset {one.theirs}, which another client of group {self._app!r} committed: {one.cost}"
            noted = Accepted(str(task), "", str(one.at), one.own, one.theirs, loss, self._clock.wall_ms())
            note_loss(self._state_path, noted)
        return frozenset(one.at for one in found)

    def tell(
        self, task: TaskId, own: Collection[TopicPartition], committed: Mapping[TopicPartition, Committed]
    ) -> None:
        """Log the offsets of other clients that are followed since the task has no record of its own."""
        for at, found in sorted(committed.items()) if self.judges else ():
            if at not in own and not is_ours(found.metadata):
                logger.info(
                    "task %s begins %s at offset %d, which another client of group %r committed: it has no record of "
                    "its own here",
                    task,
                    at,
                    found.offset,
                    self._app,
                    extra=as_event("foreign_offset_followed", task=task, source=at, offset=found.offset),
                )

    def _refusal(self, task: TaskId, found: Collection[Foreign], *, behind: bool) -> str:
        command = f"standfast reset --offsets own --app {self._app} --log {self._address}"
        # Positions at the end prove nothing: a standby's move on without its record of source offsets.
        later = "there are some, since its changelogs are ahead of it" if behind else "if the task ran elsewhere since"
        return (
            f"task {task}: another client of group {self._app!r} committed offsets of its sources, which differ from "
            f"the application's own record in {self._state_path / str(task)}: {few(found, '; ')}. Nothing "
            "was changed. Give that client a group.id of its own, then either go on from its offsets "
            f"(accept_foreign_offsets=True): {few(one.cost for one in found)}; or go on from the record "
            f"(`{command} --state-dir {self._state_path.parent}`): nothing is skipped, and records of commits "
            f"that are newer than the record are processed twice ({later})"
        )


def tell_of_other_topology(task: TaskId, sources: Iterable[str]) -> None:
    """Warn that the record has offsets of sources alone that the task does not read."""
    logger.warning(
        "task %s: this directory was left by a sub-topology that read %s, which these tasks do not read: "
        "sub-topologies are numbered as the program adds them, so the stores of one whose number changed are "
        "restored from their changelogs; add new sources after the others to keep the numbers",
        task,
        few(sorted({parse_source_key(key)[0] for key in sources})),
        extra=as_event("directory_of_other_topology", task=task),
    )
