"""Groups of tasks: the sub-topologies of one application, each with its own stores, partitions and source topics.

    group 0   topics {flights}                    partitions 4   tasks 0_0 .. 0_3
    group 1   topics {delays-by-day-repartition}  partitions 2   tasks 1_0, 1_1

All groups share the application's consumer group, so a committed offset belongs to the group that names its topic.
State directories, transactional ids and members' plans hold whole task ids; store names are unique over all groups.

Rules of this file: plain data and its checks; every problem is reported at once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from standfast.replication.offsets import TaskId
from standfast.replication.programs import GroupShape
from standfast.store.errors import InvalidRequest
from standfast.store.names import check_topic
from standfast.store.specs import StoreSpec


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """One sub-topology: `partitions` tasks with the same stores.

    `topics` are the source topics whose committed offsets belong to these tasks; None: any topic, allowed only for the
    one group of an application without sub-topologies. `declared`: the program declares the number of partitions,
    which else is that of topics of the log, and grows with them. `between`: those of the topics that are internal ones
    of the application, which it claims. `sorting`: those of them that may get the sorted form of keys.
    """

    partitions: int
    specs: tuple[StoreSpec, ...]
    topics: frozenset[str] | None = None
    declared: bool = False
    between: frozenset[str] = frozenset()
    sorting: frozenset[str] = frozenset()

    @property
    def has_unlogged(self) -> bool:
        """Whether a store on disk has no changelog."""
        return any(spec.engine == "rocksdb" and not spec.logging for spec in self.specs)


def all_task_ids(groups: Mapping[int, TaskGroup]) -> frozenset[TaskId]:
    """Every task of every group."""
    return frozenset(TaskId(number, partition) for number, one in groups.items() for partition in range(one.partitions))


def program_of(groups: Mapping[int, TaskGroup]) -> str:
    """A short text that is equal for equal groups: their numbers, source topics, stores, and declared partitions.

    Instances of one application may share tasks if it is equal, whatever their functions do.
    """
    content = {
        str(number): {
            "topics": None if one.topics is None else sorted(one.topics),
            "stores": sorted((spec.name, spec.declaration()) for spec in one.specs),
            **({"partitions": one.partitions} if one.declared else {}),
        }
        for number, one in groups.items()
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def shapes_of(groups: Mapping[int, TaskGroup]) -> dict[str, GroupShape]:
    """The facts that `program_of` stands for, so that a difference can be named."""
    return {
        str(number): GroupShape(
            None if one.topics is None else tuple(sorted(one.topics)),
            {spec.name: spec.declaration() for spec in one.specs},
            one.partitions if one.declared else None,
        )
        for number, one in sorted(groups.items())
    }


def all_specs(groups: Mapping[int, TaskGroup]) -> tuple[StoreSpec, ...]:
    """The stores of all groups, in order of the groups."""
    return tuple(spec for _, one in sorted(groups.items()) for spec in one.specs)


def group_problems(groups: Mapping[int, TaskGroup]) -> list[str]:
    """Problems of the groups themselves; their stores are checked as those of a plain session are."""
    if not groups:
        return ["groups is empty: give at least one TaskGroup, or leave groups out"]
    problems = []
    owner: dict[str, int] = {}
    for number, one in groups.items():
        where = f"group {number!r}"
        if not _whole(number, 0):
            problems.append(f"{where}: groups are numbered with whole numbers from 0")
        if not _whole(one.partitions, 1):
            problems.append(f"{where}: partitions must be a whole number of at least 1, not {one.partitions!r}")
        if one.topics is None:
            # Offsets are committed under one group name: without topics two tasks of one number would share them.
            if len(groups) > 1:
                problems.append(f"{where} names no topics: with several groups each must name its source topics")
            continue
        for topic in sorted(one.topics):
            if topic in owner:
                problems.append(
                    f"topic {topic!r} belongs to groups {owner[topic]} and {number}: one group reads a topic"
                )
            owner[topic] = number
        problems += _topic_problems(where, one)
    return problems


def source_topic_problems(specs: Iterable[StoreSpec], app: str) -> list[str]:
    """Problems of source topics: each is the changelog of one store, since its position is the task's source offset."""
    owners: dict[str, str] = {}
    problems = []
    for spec in specs:
        if not spec.logging:
            continue
        topic = spec.changelog_of(app)
        if topic in owners and owners[topic] != spec.name:
            problems.append(
                f"topic {topic!r} is the changelog of stores {owners[topic]!r} and {spec.name!r}: "
                "give one of them its own changelog (no source_topic)"
            )
        owners.setdefault(topic, spec.name)
    return problems


def _topic_problems(where: str, group: TaskGroup) -> Iterator[str]:
    assert group.topics is not None
    for topic in sorted(group.topics):
        try:
            check_topic(topic)
        except InvalidRequest as error:
            yield f"{where}: {error}"
    for spec in group.specs:
        source = getattr(spec, "source_topic", None)
        if source is not None and source not in group.topics:
            yield (
                f"{where}: store {spec.name!r} is read from topic {source!r}, which is not among the group's topics: "
                "add it, because the group's committed offset bounds the store's restore"
            )


def _whole(number: object, least: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= least
