"""The cut of a commit: rows, outputs and times that it took in one step, their record, and checks of the log.

    rows, outputs, times  ──take──>  Cut  ──log──>  acknowledged offsets  ──recorded──>  CommitRecord of the local batch

Rules of this file: values and decisions; the task makes the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from standfast.replication.log import Batches, Committed
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.record_limits import RecordRefused
from standfast.replication.tail.applier import ChangelogApplier
from standfast.store.buffer.part import CommitPart
from standfast.store.errors import CommitUnknown, Fenced, StandfastError, StateLost, Unavailable
from standfast.store.file_errors import NoRoom
from standfast.store.task.commit_record import CommitRecord, parse_source_key, source_key

Times: TypeAlias = tuple[dict[str, int], dict[str, int]]  # stream times and progress


class Committer:
    """A commit under way, and its thread."""

    __slots__ = ("thread",)

    def __init__(self, thread: int) -> None:
        self.thread = thread


class Cut(NamedTuple):
    """The rows and outputs that a commit took, with the times that are theirs, and the commit's number (-1: none)."""

    part: CommitPart
    offsets: dict[TopicPartition, int]
    metadata: str
    times: Times
    commit: int = -1
    pieces: Mapping[TopicPartition, Committed] = MappingProxyType({})  # of the metadata, beside offsets of changelogs

    @property
    def committed(self) -> dict[TopicPartition, Committed]:
        """The offsets for the group: those of sources alone, where one text holds the metadata."""
        return {at: Committed(offset, self.metadata) for at, offset in self.offsets.items()} | dict(self.pieces)


def pieces_at(applier: ChangelogApplier, texts: Mapping[str, str]) -> dict[TopicPartition, Committed]:
    """Pieces of metadata, by topic, beside the offsets up to which their changelogs were written."""
    found = {at: applier.position(at) for at in applier.store_of if at.topic in texts} if texts else {}
    return {at: Committed(0 if stored is None else stored.offset, texts[at.topic]) for at, stored in found.items()}


def recorded(
    before: CommitRecord,
    cut: Cut,
    acknowledged: Mapping[TopicPartition, int],
    applier: ChangelogApplier,
    *,
    marked: bool,
    epoch: int,
    owns: Callable[[str], bool],
) -> CommitRecord:
    """The task's record once the log has acknowledged the cut; `owns`: whether the task reads a topic."""
    # Sources of a sub-topology that had this number before go: by them the next one would take this for its own.
    sources = {key: offset for key, offset in before.sources.items() if owns(parse_source_key(key)[0])}
    moved = cut.offsets
    sources.update({source_key(*at): offset for at, offset in moved.items()})
    tags = applier.epoch_tags({**acknowledged, **moved})
    source_tags = {key: tag for key, tag in before.source_tags.items() if key in sources}
    source_tags.update({source_key(*at): tags.get(at, "") for at in moved})
    return replace(
        before,
        positions=applier.advanced(acknowledged, moved, tags, marked=marked),
        sources=sources,
        source_tags={key: tag for key, tag in source_tags.items() if tag},
        stream_times=cut.times[0],
        progress=cut.times[1],
        epoch=epoch,
        commit=cut.commit,
    )


def check_log(
    task: TaskId,
    before: CommitRecord,
    batches: Batches,
    acknowledged: Mapping[TopicPartition, int],
    applier: ChangelogApplier,
    *,
    marked: bool,
) -> None:
    """Raise StateLost if the log assigned these offsets before: it has lost records that it had acknowledged.

    Raise CommitUnknown if records of another writer lie before these: the store lacks them, so that its position may
    not pass them. That is a former owner which stood still between its look at the owner and an append that no
    transaction fences, or this task is that owner itself. With markers (`marked`) offsets have gaps, and epochs fence.
    """
    for name, stored in before.positions.items():
        changelog = applier.changelogs.get(name)
        if changelog is not None and changelog in acknowledged and changelog not in applier.limited:
            first = acknowledged[changelog] - len(batches[changelog])
            if first < stored.offset:
                lost = StateLost(
                    f"task {task}: {changelog} put these records at offset {first}, though this store has its records "
                    f"below {stored.offset}: the log lost records, and the state is read from it again",
                    reason="diverged",
                )
                lost.sources = (changelog,)
                raise lost
            # The marker may be of an exactly once commit, before the application went over to at least once.
            begin = stored.offset + stored.marker
            if first > begin and not marked:
                raise CommitUnknown(
                    f"task {task}: {changelog} has {first - begin} records of another writer from offset {begin} on, "
                    "before the records of this commit: two instances had the task for a while. Open the task again: "
                    "it reads them all from the log"
                )


def told_of(
    task: TaskId, error: BaseException, changelogs: Mapping[str, str], *, in_log: bool
) -> tuple[BaseException, bool]:
    """The error of a failed commit, and whether it is in doubt: `in_log`, the log may have some or all of it.

    Fenced stays as it is: a fenced caller gives the task up, and the new owner reads the offsets.
    """
    if isinstance(error, RecordRefused):
        error = _named(task, error, changelogs)
    if not in_log or isinstance(error, Fenced):
        return error, False
    return _in_doubt(task, error), True


def _in_doubt(task: TaskId, error: BaseException) -> BaseException:
    """The error of a commit that the log may have: CommitUnknown, or marked."""
    if isinstance(error, Unavailable) and not isinstance(error, CommitUnknown):
        why = str(error) if isinstance(error, NoRoom) else type(error).__name__
        told = CommitUnknown(
            f"task {task}: the log may have the commit, but a step after it failed ({why}): open the task again and go "
            "on from its source offsets"
        )
        told.__cause__ = error  # so that `clear_frames` clears its frames, too
        return told
    if isinstance(error, StandfastError):
        error.in_doubt = True
    return error


def _named(task: TaskId, error: RecordRefused, changelogs: Mapping[str, str]) -> RecordRefused:
    """The refusal of a commit's record, with the store that it is a row of; `changelogs`: their topics by store."""
    store = next((name for name, topic in changelogs.items() if topic == error.topic), None)
    where = f"task {task}" if store is None else f"task {task}, a row of store {store!r}"
    found = RecordRefused(f"{where}: {error}", error.topic, error.partition, error.key, error.size)
    found.of_output = store is None
    found.__cause__ = error  # so that `clear_frames` clears its frames, too
    return found
