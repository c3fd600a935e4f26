"""An application prepared to run on a log: topics checked and created, partitions counted, groups of tasks.

Rules of this file: it uses the log's admin and creates the application's own internal topics; external topics must
exist, unless the application creates them for trying. Every problem is reported at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from standfast.replication.log import Log, LogAdmin, TopicInfo, TopicPolicy
from standfast.replication.offsets import TaskId
from standfast.replication.permissions import application_needs
from standfast.replication.topics.claims import other_readings, refusals
from standfast.replication.topics.fixes import Fixes
from standfast.replication.topics.rules import errors, repartition_policy
from standfast.replication.topics.settings import OWN_TIMESTAMPS
from standfast.store import serde
from standfast.store.errors import BadConfig
from standfast.stream.task.groups import TaskGroup
from standfast.stream.topology.metadata_room import metadata_problems
from standfast.stream.topology.nodes import SubTopology
from standfast.stream.topology.topology import Topology, TopologyBuilder
from standfast.stream.topology.unclaimed import unclaimed

CREATED = 4  # partitions of topics that are created for trying
# Records stay until they are processed: then the loop deletes them. Small segments free the space soon.
BETWEEN_TASKS = TopicPolicy(extra={**OWN_TIMESTAMPS, "segment.bytes": str(50 << 20)})


@dataclass(frozen=True, slots=True)
class Assembled:
    """The parts of an application that runners and session need."""

    topology: Topology
    partitions_of: Mapping[str, int]
    groups: Mapping[int, TaskGroup]
    upstream: Mapping[str, tuple[str, ...]]  # internal topic -> tasks that send watermarks there
    event_time: frozenset[int]
    notes: tuple[str, ...] = ()  # created topics; stores and topics that no processor claims
    outputs: Mapping[str, TopicInfo] = field(default_factory=dict)  # the output topics by name


def assemble(
    builder: TopologyBuilder,
    admin: LogAdmin,
    address: str,
    *,
    growing: bool = True,
    create: bool = False,
    log: Log | None = None,
) -> Assembled:
    """Check and create topics. Raises BadConfig with every problem.

    `log`: look there for other applications that have claimed internal topics, before one is created; the session,
    which claims them, looks again.

    `growing`: a source topic may have got more partitions; topics between tasks then keep their number. `create`:
    create external topics, too.
    """
    # First, so that an application that may not read or write a topic has created none.
    read, written = external_topics(builder)
    _check_permissions(builder, written, admin)
    created = create_absent(read, written, admin) if create else []
    sources = {topic: info.partitions for topic in read if (info := admin.describe_topic(topic)) is not None}
    outputs = {topic: info for topic in written if (info := admin.describe_topic(topic)) is not None}
    # All of them in one error: one at a time costs a start each.
    fixes = Fixes(address)
    missing = [f"source topic {fixes.absent(topic)}" for topic in read if topic not in sources]
    missing += [f"output topic {fixes.absent(topic)}" for topic in written if topic not in outputs]
    if missing:
        raise BadConfig(missing)
    topology = builder.build(sources)
    kept = _smaller_than_now(topology, builder, admin) if growing else {}
    # Another number of partitions would send keys to tasks that do not have their state.
    if kept:
        topology = builder.build(sources, kept)
    left = unclaimed(topology, frozenset(admin.topic_names()), admin.groups)
    if left.problems:
        raise BadConfig(left.problems)  # before a topic is created under the new name
    if taken := _claimed_by_others(topology, log):
        raise BadConfig(taken)
    event_time = _event_time_groups(topology)
    upstream = {one.name: _tasks_with_watermarks(topology, one.name, event_time) for one in topology.internal}
    if too_large := metadata_problems(topology, upstream):
        raise BadConfig(too_large)
    problems = [*_make_internal(topology, admin, fixes), *_make_own(topology, admin, fixes)]
    if problems:
        raise BadConfig(problems)
    internal = {one.name: one.partitions for one in topology.internal}
    own = {one.topic: one.own.partitions for one in topology.own_sources if one.own is not None}
    return Assembled(
        topology,
        {**sources, **{topic: info.partitions for topic, info in outputs.items()}, **internal, **own},
        {
            one.group: TaskGroup(
                one.partitions,
                one.specs,
                one.topics,
                declared=bool(one.own_sources),
                between=one.topics & (internal.keys() | own.keys()),
                sorting=_sorting(one, {each.name for each in topology.internal if each.kind == "repartition"}),
            )
            for one in topology.groups
        },
        upstream,
        event_time,
        (*created, *left.lines),
        outputs,
    )


def _sorting(group: SubTopology, repartitions: Collection[str]) -> frozenset[str]:
    """The repartition topics of a group whose keys are those of `serde.json`, if it reads no other topic.

    The form of keys in a topic that others write is theirs, and so are its partitions: see `KeyForms`.
    """
    if not group.topics <= set(repartitions) or any(spec.from_source for spec in group.specs):
        return frozenset()
    return frozenset(source.topic for source in group.sources if source.settings.key is serde.json)


def external_topics(builder: TopologyBuilder) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The external topics that an application reads, and those that it writes, in order."""
    topology = Topology(builder.app, builder.sub_topologies(), tuple(builder.internal.values()))
    return topology.source_topics, topology.output_topics


def create_absent(read: Sequence[str], written: Sequence[str], admin: LogAdmin) -> list[str]:
    """Create absent external topics, for trying; returns a line for each.

    They get the partitions of the largest existing source, so that sources that are read together agree.
    """
    found = {topic: admin.describe_topic(topic) for topic in dict.fromkeys((*read, *written))}
    partitions = max((info.partitions for topic in read if (info := found[topic]) is not None), default=CREATED)
    absent = [topic for topic, info in found.items() if info is None]
    for topic in absent:
        admin.create_topic(topic, partitions, TopicPolicy())
    return [f"topic {topic} was absent and is created with {partitions} partitions" for topic in absent]


def _check_permissions(builder: TopologyBuilder, written: Sequence[str], admin: LogAdmin) -> None:
    """Raise BadConfig with every missing permission for the application's topics, before any topic is used."""
    read = (node.topic for group in builder.sub_topologies() for node in group.sources)
    problems = admin.lacking(application_needs(read, written, builder.internal))
    if problems:
        raise BadConfig(problems)


def _smaller_than_now(topology: Topology, builder: TopologyBuilder, admin: LogAdmin) -> dict[str, int]:
    """Topics between tasks, of no declared size, that were created when their writers had fewer partitions."""
    found = {one.name: admin.describe_topic(one.name) for one in topology.internal
             if not builder.internal[one.name].partitions}  # fmt: skip
    now = {one.name: one.partitions for one in topology.internal}
    return {name: info.partitions for name, info in found.items() if info is not None and info.partitions < now[name]}


def _claimed_by_others(topology: Topology, log: Log | None) -> list[str]:
    """Problems of internal topics that belong to another application, whose name fits them as well."""
    if log is None:
        return []
    specs = (spec for group in topology.groups for spec in group.specs if spec.logging and not spec.from_source)
    names = [spec.changelog_of(topology.app) for spec in specs]
    names += [one.name for one in topology.internal] + [one.topic for one in topology.own_sources]
    shared = [name for name in names if other_readings(topology.app, name)]
    found = {name: info.topic_id for name in shared if (info := log.admin.describe_topic(name)) is not None}
    return refusals(log, topology.app, found)


def _make_internal(topology: Topology, admin: LogAdmin, fixes: Fixes) -> list[str]:
    problems = []
    for one in topology.internal:
        info = admin.describe_topic(one.name) or admin.create_topic(one.name, one.partitions, BETWEEN_TASKS)
        problems += [str(wrong) for wrong in errors(repartition_policy(info, fixes))]
        if info.partitions != one.partitions:
            problems.append(
                f"{one.kind} topic {one.name} has {info.partitions} partitions but the application needs "
                f"{one.partitions}: give .{one.kind}(name, partitions={info.partitions}), or reset the application"
            )
    return problems


def _make_own(topology: Topology, admin: LogAdmin, fixes: Fixes) -> list[str]:
    """Create the topics that stand for sources of one's own, and let them grow with the sources."""
    problems = []
    for node in topology.own_sources:
        own = node.own
        assert own is not None
        info = admin.describe_topic(node.topic) or admin.create_topic(node.topic, own.partitions, BETWEEN_TASKS)
        problems += [str(wrong) for wrong in errors(repartition_policy(info, fixes))]
        if info.partitions > own.partitions:
            problems.append(
                f"source {own.name!r} has partitions={own.partitions}, but had {info.partitions}, and the positions of "
                f"the others in topic {node.topic} would never be read again: give partitions={info.partitions}, or "
                "reset the application"
            )
        elif info.partitions < own.partitions:
            admin.add_partitions(node.topic, own.partitions)
    return problems


def _event_time_groups(topology: Topology) -> frozenset[int]:
    """Groups with a source that generates watermarks, and those downstream; only internal topics forward watermarks."""
    found = {
        group.group
        for group in topology.groups
        if any(source.settings.watermarks is not None for source in group.sources)
    }
    # To a fixed point, because internal topics may feed each other in a circle.
    while True:
        reached = {
            group.group
            for group in topology.groups
            for source in group.sources
            if source.internal and any(writer.group in found for writer in topology.writers_of(source.topic))
        }
        if reached <= found:
            return frozenset(found)
        found |= reached


def _tasks_with_watermarks(topology: Topology, topic: str, event_time: frozenset[int]) -> tuple[str, ...]:
    return tuple(
        str(TaskId(writer.group, partition))
        for writer in topology.writers_of(topic)
        if writer.group in event_time
        for partition in range(writer.partitions)
    )
