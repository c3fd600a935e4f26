"""State in the log that no processor of an application claims, found at start by names alone.

    changelog of a store that is not declared      reported: it is neither read nor deleted
    topic between tasks that no step writes        reported: its records are not processed
    offsets of a source that is not there          reported: its position is kept
    declared store that no processor names         reported
    the same under a name that was once counted    refused, while its present name has nothing in the log

Earlier versions kept the timers of an unnamed step as `<class>-<n>-timers`, and sent an unnamed join through
`<app>-<table>-join-<n>-repartition`, n being the number of steps before it. Both begin empty under their present
names, so an application that left such a topic behind must say which step it belongs to.

Rules of this file: pure; names of topics and groups come in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from standfast.replication.topics.app_topics import SOURCE_OFFSETS, app_topics, is_internal, store_of
from standfast.store.names import changelog_topic
from standfast.stream.topology.topology import Topology

JOIN = "-join"


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """`problems` refuse the start; `lines` are reported. Each names the state, its place, and the fix."""

    problems: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


def unclaimed(topology: Topology, names: Collection[str], groups: Callable[[], Iterable[str]]) -> Unclaimed:
    """Compare the topics of a log with those of the topology.

    `names` are all topics of the log; `groups` lists its groups, and is called only if a topic may be another
    application's.
    """
    app = topology.app
    claimed = _claimed(topology)
    left = [name for name in names if is_internal(f"{app}-", name) and name not in claimed]
    lines = [*_unconnected(topology)]
    # Listing the groups asks the broker; most starts find no unclaimed topic and need no list.
    if left:
        found = app_topics(app, left, groups=groups(), known=(), sources=())
        lines += [
            f"changelog {name}: no processor of application {app!r} claims store {store_of(app, name)!r}; it is "
            "neither read nor deleted: declare the store again under that name, or delete the topic"
            for name in found.changelogs
        ]
        lines += [
            f"topic {name}: no step of application {app!r} writes or reads it; its unprocessed records stay in it: "
            "name the step as before, or delete the topic"
            for name in found.between
            if not name.endswith(SOURCE_OFFSETS)
        ]
        lines += [
            f"topic {name}: it keeps the position of a source that application {app!r} no longer has: name the source "
            "as before, or delete the topic"
            for name in found.between
            if name.endswith(SOURCE_OFFSETS)
        ]
    return Unclaimed((*_timers(topology, names, left), *_joins(topology, names, left)), tuple(lines))


def _claimed(topology: Topology) -> set[str]:
    specs = (spec for group in topology.groups for spec in group.specs)
    changelogs = {spec.changelog_of(topology.app) for spec in specs if spec.logging}
    internal = {one.name for one in topology.internal}
    own = {one.topic for one in topology.own_sources}
    return {*changelogs, *internal, *own, *topology.source_topics, *topology.output_topics}


def _unconnected(topology: Topology) -> Iterator[str]:
    for group in topology.groups:
        connected = {store for stores in group.connected.values() for store in stores}
        for spec in group.specs:
            if spec.name not in connected:
                yield (
                    f"store {spec.name!r} is declared, but no processor is connected to it: name it in a processor's "
                    "`stores`, or leave it out"
                )


def _timers(topology: Topology, names: Collection[str], left: Iterable[str]) -> Iterator[str]:
    for group in topology.groups:
        for node in group.processors:
            # A topic under the present name: the step has started with this name, and has its timers.
            if node.timer_store is None or changelog_topic(topology.app, node.timer_store) in names:
                continue
            earlier = _counted(left, f"{topology.app}-{node.name}", "-timers-changelog")
            if earlier:
                topics = ", ".join(f"{topology.app}-{name}-timers-changelog" for name in _named(node.name, earlier))
                yield (
                    f"processor {node.name!r}: its timers would begin empty, but those of an unnamed step of this "
                    f"class are in {topics}: give the step the name that it was numbered by, and they go on: "
                    f".process({node.name}, name={_choice(node.name, earlier)}); any other name leaves them behind"
                )


def _joins(topology: Topology, names: Collection[str], left: Iterable[str]) -> Iterator[str]:
    for topic in topology.internal:
        base = topic.name.removeprefix(f"{topology.app}-").removesuffix(f"-{topic.kind}")
        if topic.name in names or not base.endswith(JOIN):
            continue
        earlier = _counted(left, f"{topology.app}-{base}", f"-{topic.kind}")
        if earlier:
            topics = ", ".join(f"{topology.app}-{name}-{topic.kind}" for name in _named(base, earlier))
            yield (
                f"join {base!r}: its records would go through {topic.name}, which is new, but an unnamed join left "
                f"{topics}, and unprocessed records there would be lost: give the join the name that it was "
                f"numbered by: name={_choice(base, earlier)}; any other name leaves them behind"
            )


def _counted(left: Iterable[str], stem: str, suffix: str) -> list[int]:
    """Numbers n of topics `<stem>-<n><suffix>`."""
    pattern = re.compile(rf"{re.escape(stem)}-(\d+){re.escape(suffix)}")
    return sorted(int(match[1]) for name in left if (match := pattern.fullmatch(name)))


def _named(base: str, numbers: Iterable[int]) -> list[str]:
    return [f"{base}-{number}" for number in numbers]


def _choice(base: str, numbers: Iterable[int]) -> str:
    return " or ".join(map(repr, _named(base, numbers)))
