"""The start of a task whose stores are whole: the next offset of each source, and the clocks.

    offsets of the group    win under exactly once, since its commit is atomic with the log
    offsets in the cut      may be ahead of the group's at least once: they count if every changelog stood at its end
    clocks                  the later of cut and group, so that none goes back, whichever of directory and log is older

Rules of this file: decisions, and their lines in the log of the program; the task takes the start over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from standfast.replication.log import Committed
from standfast.replication.metadata_parts import group_metadata
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.tail.applier import ChangelogApplier
from standfast.restore.foreign_offsets import (
    ForeignOffsets,
    foreign_offsets,
    recorded_offsets,
    recorded_tags,
    tell_of_other_topology,
)
from standfast.restore.lost_commits import LostCommits
from standfast.store.log import as_event, logger
from standfast.store.task.task_stores import TaskStores
from standfast.stream.cut import Times
from standfast.stream.task.settings import Guarantee
from standfast.stream.watermarks import CLOCK_KEY, PROGRESS_PREFIX


class Restore(NamedTuple):
    """A restore of a task. `local_counts`: its stored source offsets count, too, not the group's alone."""

    local_counts: bool
    started_ms: int
    why: str


class Start(NamedTuple):
    """`restates`: the next commit writes the offsets again, since the group lacks some; `foreign`: of another client.

    `observed` are stream times of stores by name.
    """

    sources: dict[TopicPartition, int]
    restates: bool
    foreign: bool
    times: Times
    observed: dict[str, int]


class Judges(NamedTuple):
    """Checks that refuse a start: offsets of another client, and lost commits of rows without a log."""

    foreign_offsets: ForeignOffsets
    lost_commits: LostCommits


def start_of(
    task: TaskId,
    stores: TaskStores,
    applier: ChangelogApplier,
    offsets: Mapping[TopicPartition, Committed],
    committed: Mapping[TopicPartition, Committed],
    judges: Judges,
    *,
    owns: Callable[[str], bool],
    guarantee: Guarantee,
    local_counts: bool,
) -> Start:
    """The start by the group's `offsets`, of which `committed` are the sources'. Raises StateLost; changes nothing."""
    cut = stores.cut
    local = recorded_offsets(cut, owns)
    for at in applier.diverged(local, recorded_tags(cut)):
        logger.warning(
            "task %s: %s was put back to an earlier state and written on: offset %d, up to which it was read here, "
            "no longer counts, and reading goes on from the offset that the group committed",
            task,
            at,
            local.pop(at),
            extra=as_event("offset_diverged", task=task, source=at),
        )
    theirs = judges.foreign_offsets.judge(task, foreign_offsets(local, committed))
    judges.foreign_offsets.tell(task, local, committed)
    metadata = group_metadata(task, committed, offsets, cut.epoch if local_counts else -1)
    judges.lost_commits.judge(stores, metadata)
    sources, restates = {at: found.offset for at, found in committed.items()}, False
    # Local offsets of a partition without a committed one count under either guarantee: nothing contradicts them.
    for at, offset in local.items():
        if local_counts and (at not in committed or (guarantee == "at_least_once" and at not in theirs)):
            restates |= at not in committed or offset > committed[at].offset  # of a commit that did not reach the group
            sources[at] = max(offset, sources.get(at, 0))
    stream_times, progress, observed = dict(cut.stream_times), dict(cut.progress), dict[str, int]()
    # Sources, but none of this task's topics: the directory is that of another sub-topology.
    if cut.sources and not local:
        tell_of_other_topology(task, cut.sources)
        progress.pop(PROGRESS_PREFIX + CLOCK_KEY, None)
    for one in metadata:
        for stamps, known in ((one.stream_times, stream_times), (one.progress, progress), (one.observed, observed)):
            for key, stamp in stamps.items():
                known[key] = max(stamp, known.get(key, stamp))
    return Start(sources, restates, bool(theirs), (stream_times, progress), observed)
