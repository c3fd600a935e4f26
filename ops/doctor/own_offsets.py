"""The offsets of an application's own records, to be committed again after another client of its group has committed.

    task directories ── records ──> own offsets ──┐
    group            ── commits ──────────────────┴──> a step for each that another client made, and that differs

Rules of this file: it looks, and changes nothing; `reset.carry_out` commits the steps. The caller has the state
directory's lock. No topic and no directory is part of such a plan.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from standfast.ops.doctor.doctor import app_tasks, known_of
from standfast.ops.doctor.reset import refuse_running
from standfast.ops.doctor.reset_plan import OffsetStep, ResetPlan
from standfast.ops.observe.offline import open_tasks
from standfast.replication.commit_metadata import CommitMetadata
from standfast.replication.log import Committed, Log
from standfast.replication.metadata_parts import texts_of
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.restore.foreign_offsets import Foreign, foreign_offsets, recorded_offsets
from standfast.store.errors import InvalidRequest


class OwnOffsets(NamedTuple):
    """The plan, the offsets that it replaces, and the records that changelogs have beyond each task's record."""

    plan: ResetPlan
    replaced: tuple[Foreign, ...]
    behind: dict[TaskId, int]


def look_for_own(log: Log, app: str, state_dir: Path) -> OwnOffsets:
    """The own offsets of the tasks below a state directory, where another client's differ. Raises NotReady while the
    application runs, InvalidRequest without any record."""
    refuse_running(log, app)
    committed = log.group(app).committed()
    own: dict[TopicPartition, tuple[int, TaskId]] = {}
    texts: dict[TaskId, tuple[str, dict[TopicPartition, Committed]]] = {}
    tasks = app_tasks(state_dir, app)
    kept = known_of(app, tasks).kept
    for task in tasks:
        with open_tasks([task]) as (opened,):
            ends = {one.topic: one.position.offset for one in kept if one.task == task.task and not one.from_source}
            text, pieces = texts_of(CommitMetadata.of(opened.cut), [*ends])
            beside = {TopicPartition(at, task.task.partition): Committed(ends[at], one) for at, one in pieces.items()}
            texts[task.task] = text, beside
            for at, offset in recorded_offsets(opened.cut, lambda _topic: True).items():
                # A directory that another sub-topology has left may have an older record of the same source.
                if at.partition == task.task.partition and (at not in own or offset > own[at][0]):
                    own[at] = offset, task.task
    if not own:
        raise InvalidRequest(
            f"{state_dir / app} has no record of source offsets: name the state directory that the refused start named"
        )
    replaced = foreign_offsets({at: offset for at, (offset, _) in own.items()}, committed)
    steps = tuple(OffsetStep(one.at, one.theirs, one.own, *texts[own[one.at][1]]) for one in replaced)
    used = {own[one.at][1] for one in replaced}
    behind = {task: count for task, count in _behind(log, app, state_dir).items() if task in used}
    return OwnOffsets(ResetPlan(app, steps), replaced, behind)


def _behind(log: Log, app: str, state_dir: Path) -> dict[TaskId, int]:
    """Records that the changelogs of each task have beyond its record, where there are any."""
    found: dict[TaskId, int] = {}
    with closing(log.reader()) as reader:
        for one in known_of(app, app_tasks(state_dir, app)).kept:
            info = None if one.from_source else log.admin.describe_topic(one.topic)
            if info is None or one.task.partition >= info.partitions:
                continue
            at = TopicPartition(one.topic, one.task.partition)
            ahead = reader.bounds([at])[at].end - one.position.offset - one.position.marker
            if ahead > 0:
                found[one.task] = found.get(one.task, 0) + ahead
    return found
