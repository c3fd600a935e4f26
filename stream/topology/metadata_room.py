"""Whether the metadata of a task's commits fits, by the largest numbers that it may have; known at the start.

    observed times    of window, session and versioned stores
    stream times      of each source partition
    progress          of windowed aggregations, and of watermarks: the task's and each input's

Numbers that processors keep under names of their own (`Context.progress`) are not known before they write them.

Rules of this file: pure. Room is one text for each source offset, and one for each changelog of the task.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from standfast.replication.commit_metadata import CommitMetadata
from standfast.replication.metadata_parts import texts_of
from standfast.store.arguments import INT64_MAX
from standfast.store.errors import InvalidRequest
from standfast.store.task.commit_record import source_key
from standfast.stream.topology.nodes import SubTopology
from standfast.stream.topology.topology import Topology
from standfast.stream.watermarks import CLOCK_KEY, PROGRESS_PREFIX, Channel

EPOCH_MAX = 2**31 - 1
LEAST = INT64_MAX // 2  # numbers from here on have as many digits as the largest


def metadata_problems(topology: Topology, watermarks: Mapping[str, Sequence[str]]) -> list[str]:
    """A problem for each sub-topology whose tasks could not commit; `watermarks`: upstream tasks by internal topic."""
    problems = []
    for group in topology.groups:
        own = [spec.changelog_of(topology.app) for spec in group.specs if spec.logging and not spec.from_source]
        try:
            texts_of(_largest(group, watermarks), own)
        except InvalidRequest as error:
            problems.append(f"tasks of sub-topology {group.group} could not commit: {error}")
    return problems


def _largest(group: SubTopology, watermarks: Mapping[str, Sequence[str]]) -> CommitMetadata:
    rng = random.Random(0)  # numbers that no packing helps

    def numbers(names: Sequence[str]) -> dict[str, int]:
        return {name: rng.randrange(LEAST, INT64_MAX) for name in names}

    last = max(group.partitions - 1, 0)
    sources = [source_key(node.topic, last) for node in group.sources]
    observed = [spec.name for spec in group.specs if spec.traits.times is not None or spec.traits.versions]
    progress = [name for node in group.processors for name in node.numbers]
    channels = [Channel(source_key(topic, last), task) for topic in group.topics for task in watermarks.get(topic, ())]
    if channels or any(node.settings.watermarks is not None for node in group.sources):
        progress += [PROGRESS_PREFIX + name for name in (CLOCK_KEY, *sources, *map(str, channels))]
    return CommitMetadata(EPOCH_MAX, numbers(sources), numbers(observed), numbers(progress), EPOCH_MAX)
