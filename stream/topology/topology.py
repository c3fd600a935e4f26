"""The topology of an application: sources, processors, sinks and stores, and their grouping into sub-topologies.

    source ──> processor ──> processor ──> sink            one sub-topology: called directly, one task per partition
                    │
                    └──> <app>-<name>-repartition ──> source ──> processor ...        the next one

Nodes that are connected, or that share a store, are one sub-topology; a topic between two nodes divides them. Groups
are numbered in the order in which their first node was added, so that the same program always gives the same TaskIds.

Rules of this file: pure; it knows node and topic names, serdes and store definitions, no log. The caller passes the
topics' partition counts. Every problem of a topology is reported at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from standfast.replication.checkpoint_flow import Flow
from standfast.replication.topics.app_topics import SOURCE_OFFSETS
from standfast.store import serde
from standfast.store.arguments import is_whole
from standfast.store.errors import BadConfig
from standfast.store.names import check_name, check_topic, few
from standfast.store.serde import Serde
from standfast.store.specs import KeyValueStore, StoreSpec
from standfast.stream.source import Source
from standfast.stream.topology.inherited import policies_of
from standfast.stream.topology.nodes import (
    InternalKind,
    InternalTopic,
    Node,
    OwnSource,
    Partitioner,
    ProcessorNode,
    Serdes,
    SinkNode,
    SourceNode,
    SubTopology,
)
from standfast.stream.topology.policy import ErrorPolicy
from standfast.stream.topology.processor import Processor
from standfast.stream.topology.sources import COMMITTED, EARLIEST, SourceSettings
from standfast.stream.topology.stateless import ToTable
from standfast.stream.topology.text import describe, mermaid

PARTITIONS_MAX = 10_000  # of a source of one's own: each is a task with a thread


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """A whole application. `groups[n].group == n`."""

    app: str
    groups: tuple[SubTopology, ...]
    internal: tuple[InternalTopic, ...]

    def __str__(self) -> str:
        return describe(self.groups)

    def to_mermaid(self) -> str:
        """The text of a Mermaid flowchart: a subgraph for each sub-topology, joined by internal topics."""
        internal = tuple(one.name for one in self.internal)
        return mermaid(self.groups, internal, (*self.source_topics, *internal, *self.output_topics))

    def writers_of(self, topic: str) -> tuple[SubTopology, ...]:
        """Sub-topologies that write to a topic."""
        return tuple(group for group in self.groups if any(sink.topic == topic for sink in group.sinks))

    def flow(self) -> Flow:
        """How its groups are joined by internal topics."""
        own = {one.name for one in self.internal}
        return Flow(
            {group.group: group.topics & own for group in self.groups},
            {group.group: frozenset(sink.topic for sink in group.sinks) & own for group in self.groups},
            {one.name: one.partitions for one in self.internal},
        )

    @property
    def source_topics(self) -> tuple[str, ...]:
        """External topics that it reads, in order."""
        sources = (source for group in self.groups for source in group.sources)
        return tuple(dict.fromkeys(one.topic for one in sources if not one.internal and one.own is None))

    @property
    def own_sources(self) -> tuple[SourceNode, ...]:
        """Sources of one's own, in order; the topic of each holds its offsets."""
        return tuple(source for group in self.groups for source in group.own_sources)

    @property
    def output_topics(self) -> tuple[str, ...]:
        """External topics that it writes: sinks, dead letters, late records."""
        names: dict[str, None] = {}
        for group in self.groups:
            names.update((sink.topic, None) for sink in group.sinks if sink.internal is None)
            names.update((topic, None) for _, topic in group.dead_letters)
            letters = (source.settings.dead_letter for source in group.sources)
            names.update((topic, None) for topic in letters if topic is not None)
            names.update((topic, None) for _, topic in group.late)
        return tuple(names)


class TopologyBuilder:
    """Collects nodes; `build` creates a Topology from them."""

    def __init__(self, app: str, specs: Sequence[StoreSpec] = ()) -> None:
        self.app = app
        self.specs: dict[str, StoreSpec] = {spec.name: spec for spec in specs}
        self.nodes: dict[str, Node] = {}
        self.internal: dict[str, InternalTopic] = {}
        self.nameless: list[str] = []  # steps that need a name before the application runs, and why

    def add_source(self, topic: str, settings: SourceSettings, *, internal: bool = False) -> str:
        """Add a source; the same topic with the same settings is the same node. Returns the node's name."""
        check_topic(topic)
        problems = settings.problems()
        name = f"{topic}-source"
        found = self.nodes.get(name)
        if isinstance(found, SourceNode) and found.own is not None:
            problems.append("a source of one's own has that name: give it another one, name=...")
        elif isinstance(found, SourceNode) and found.settings != settings:
            problems.append(
                "it is read already, with other settings: read it once, and connect both steps to that source"
            )
        if problems:
            raise BadConfig([f"source {topic!r}: {problem}" for problem in problems])
        self.nodes.setdefault(name, SourceNode(name, topic, settings, internal))
        return name

    def add_own_source(self, own: OwnSource, settings: SourceSettings) -> str:
        """Add a source of one's own; the same object under the same name is the same node. Returns the node's name."""
        check_name("source", own.name)
        name, topic = f"{own.name}-source", check_topic(f"{self.app}-{own.name}{SOURCE_OFFSETS}")
        problems = settings.problems()
        if settings.start != COMMITTED:
            problems.append("start is for topics: its first run begins at position 0")
        found = self.nodes.get(name)
        if isinstance(found, SourceNode):
            before = found.own
            if before is None or before.source is not own.source:
                problems.append("another source has that name: give it another one, name=...")
            elif before.partitions != own.partitions or found.settings != settings:
                problems.append("it is read already, with other settings: read it once, and connect both steps to it")
        if problems:
            raise BadConfig([f"source {own.name!r}: {problem}" for problem in problems])
        self.nodes.setdefault(name, SourceNode(name, topic, settings, own=own))
        return name

    def add_any_source(
        self, given: str | Source, name: str | None, partitions: int | None, settings: SourceSettings
    ) -> str:
        """Add the node of a topic, or of a source of one's own. Raises BadConfig."""
        if isinstance(given, Source):
            if name is None:
                raise BadConfig(
                    [f"source {type(given).__name__} needs a name, name=...: its position is kept under that name"]
                )
            if type(given).run is Source.run:
                raise BadConfig([f"source {name!r}: class {type(given).__name__} defines no run(self, context)"])
            if partitions is not None and not is_whole(partitions, 1, PARTITIONS_MAX):
                raise BadConfig([f"source {name!r}: partitions must be a whole number from 1, not {partitions!r:.100}"])
            return self.add_own_source(OwnSource(name, given, partitions or 1), settings)
        if isinstance(given, type) and issubclass(given, Source):
            raise BadConfig([f"source {given.__name__}: give an object of the class, {given.__name__}(...)"])
        if name is not None or partitions is not None:
            raise BadConfig([f"source {given!r}: name and partitions are for sources of one's own: a topic has both"])
        return self.add_source(given, settings)

    def add_table(self, topic: str, spec: KeyValueStore, settings: SourceSettings) -> tuple[str, KeyValueStore]:
        """Add a table over a topic; returns the node's name and the store, which has the topic as its changelog.

        Not with rows that differ from those of the topic. Raises BadConfig.
        """
        # The topic has every row already: a changelog beside it would double them.
        if settings.timestamp is None and settings.invalid_timestamp == "fail":
            spec = replace(spec, source_topic=topic)
        elif spec.source_topic is not None:
            raise BadConfig(
                [
                    f"table {topic!r}: with timestamp or invalid_timestamp the rows of store {spec.name!r} are not "
                    "those of its source topic: leave source_topic out of the store's declaration"
                ]
            )
        source = self.add_source(topic, settings)
        self.specs[spec.name] = spec
        make, results = partial(ToTable, spec.name), (spec.key, spec.value)
        return self.add_processor(f"{spec.name}-table", make, [source], [spec.name], results=results), spec

    def add_processor(
        self,
        name: str,
        make: Callable[[], Processor],
        parents: Sequence[str],
        stores: Sequence[str] | None = (),
        timer_key: Serde[Any] | None = None,
        *,
        null_keys: bool = False,
        policy: ErrorPolicy | None = None,
        given: Serdes | None = None,
        results: Serdes | None = None,
        late: str | None = None,
        numbers: Sequence[str] = (),
    ) -> str:
        """Add a processor below `parents`. Returns its name; BadConfig for a taken name or an unknown store."""
        check_name("node", name)
        self._check_new(name, parents)
        unknown = [store for store in stores or () if store not in self.specs]
        if unknown:
            declared = few(self.specs) or "none"
            raise BadConfig([f"processor {name!r}: store {one!r} is not declared ({declared})" for one in unknown])
        named = None if stores is None else tuple(stores)
        node = ProcessorNode(
            name, make, tuple(parents), named, timer_key, null_keys, policy, given, results, late, tuple(numbers)
        )
        if node.timer_store in self.specs:
            raise BadConfig([f"processor {name!r}: its timers need the store name {node.timer_store!r}: rename yours"])
        self.nodes[name] = node
        return name

    def connect(self, name: str, parent: str) -> None:
        """Add an input to an existing processor."""
        node = self.nodes[name]
        if isinstance(node, ProcessorNode) and parent not in node.parents:
            self.nodes[name] = replace(node, parents=(*node.parents, parent))

    def add_sink(
        self,
        name: str,
        topic: str,
        parents: Sequence[str],
        key: Serde[Any],
        value: Serde[Any],
        partitioner: Partitioner | None = None,
        internal: InternalKind | None = None,
        *,
        policy: ErrorPolicy | None = None,
    ) -> str:
        """Add a sink below `parents`. Returns its name."""
        check_topic(topic)
        self._check_new(name, parents)
        self.nodes[name] = SinkNode(name, topic, tuple(parents), key, value, partitioner, internal, policy=policy)
        return name

    def add_exchange(
        self,
        name: str,
        kind: InternalKind,
        parents: Sequence[str],
        key: Serde[Any],
        value: Serde[Any],
        partitions: int = 0,
        policy: ErrorPolicy | None = None,
    ) -> str:
        """Add an internal topic between `parents` and the source whose name is returned.

        One name is one topic: records of several parents come out of it together, once.
        """
        check_name(kind, name)
        topic = check_topic(f"{self.app}-{name}-{kind}")
        found = self.internal.get(topic)
        if found is not None and found.partitions != partitions:
            raise BadConfig([f"{kind} {name!r} is declared with {found.partitions} and with {partitions} partitions"])
        self._check_new(f"{topic}-sink-{len(self.nodes)}", parents)
        source = self.add_source(topic, SourceSettings(key=key, value=value), internal=True)
        self.internal[topic] = InternalTopic(topic, kind, partitions)
        # Only parents that do not write there yet: a second sink would write their records twice.
        there = {parent for node in self.nodes.values() if isinstance(node, SinkNode) and node.topic == topic
                 for parent in node.parents}  # fmt: skip
        new = [parent for parent in parents if parent not in there]
        if new:
            sink = f"{topic}-sink" if found is None else f"{topic}-sink-{len(self.nodes)}"
            self.add_sink(sink, topic, new, key, value, internal=kind, policy=policy)
        elif policy is not None:
            raise BadConfig([f"{kind} {name!r} is connected already: give on_error where it is named first"])
        return source

    def new_name(self, kind: str) -> str:
        """A name for an unnamed node; the same program gives the same names.

        Adding a step changes it, so no kept state may be called after it: see `lasting_name`.
        """
        return f"{kind}-{len(self.nodes)}"

    def lasting_name(self, name: str, what: str) -> str:
        """A name for a node whose state is kept under it.

        If the name is taken the node gets a number, which is good for one run only, and `nameless` reports it.
        """
        # Topics count too, because a lasting name may become that of a repartition topic.
        taken = {*self.nodes, *(topic.removeprefix(f"{self.app}-") for topic in self.internal)}
        free, number = name, 1
        while not taken.isdisjoint({free, f"{free}-repartition"}):
            number += 1
            free = f"{name}-{number}"
        if free != name:
            self.nameless.append(
                f"{what}: {name!r} is the name of another step, and a step's state is found by its name: give this "
                "step a name of its own, name=..., and keep that name"
            )
        return free

    def sub_topologies(self) -> tuple[SubTopology, ...]:
        """The groups, without partition counts."""
        if not any(isinstance(node, SourceNode) for node in self.nodes.values()):
            raise BadConfig([f"application {self.app!r} has no source: add one with @app.source or app.stream(topic)"])
        connected = self._connected()
        # Reversed, so that the first processor that names a store is its owner.
        owner = {store: name for name, stores in reversed(connected.items()) for store in stores}
        roots: dict[str, str] = {}

        def root(name: str) -> str:
            while roots.setdefault(name, name) != name:
                name = roots[name]
            return name

        for name, node in self.nodes.items():
            parents = () if isinstance(node, SourceNode) else node.parents
            sharing = (owner[store] for store in connected.get(name, ()))
            for other in (*parents, *sharing):
                roots[root(name)] = root(other)
        members: dict[str, list[Node]] = {}
        keyless = self._read_without_keys()
        for name, node in self.nodes.items():
            if isinstance(node, SinkNode) and node.topic in keyless:
                node = replace(node, null_keys=True)
            members.setdefault(root(name), []).append(node)
        # An unused store is opened, too, by group 0: its changelog is restored and its rows can be read.
        unused = tuple(spec for name, spec in self.specs.items() if name not in owner)
        policies = policies_of(self.nodes)
        return tuple(
            self._group(number, nodes, connected, unused if number == 0 else (), policies)
            for number, nodes in enumerate(members.values())
        )

    def build(self, partitions_of: Mapping[str, int], kept: Mapping[str, int] | None = None) -> Topology:
        """The topology, given the partition count of every external topic that it reads.

        `kept`: partition counts of internal topics that are to stay, where none is declared.
        """
        groups = list(self.sub_topologies())
        self._check_tables()
        known = {topic: count for topic, count in partitions_of.items() if topic not in self.internal}
        own = (one.own for one in self.nodes.values() if isinstance(one, SourceNode) and one.own is not None)
        known.update({f"{self.app}-{one.name}{SOURCE_OFFSETS}": one.partitions for one in own})
        sized = {
            topic: replace(one, partitions=one.partitions or (kept or {}).get(topic, 0))
            for topic, one in self.internal.items()
        }
        problems = _resolve(groups, known, sized)
        if problems:
            raise BadConfig(problems)
        internal = tuple(replace(one, partitions=known[one.name]) for one in self.internal.values())
        return Topology(self.app, tuple(groups), internal)

    def _check_tables(self) -> None:
        """BadConfig where a row that a restore from the source topic would put could be rolled back or never put."""
        held = {spec.changelog_of(self.app): spec.name for spec in self.specs.values() if spec.from_source}
        problems = []
        for node in self.nodes.values():
            if not isinstance(node, SourceNode) or node.topic not in held:
                continue
            if node.settings.start not in (COMMITTED, EARLIEST):
                problems.append(
                    f"source {node.topic!r} has start={node.settings.start!r} and is the changelog of store "
                    f"{held[node.topic]!r}: a restore would bring the rows before it: leave start out"
                )
            if node.settings.on_error == "fail":
                continue
            readers = [
                one for one in self.nodes.values() if not isinstance(one, SourceNode) and node.name in one.parents
            ]
            if len(readers) > 1 or not all(_keeps_a_table(one) for one in readers):
                names = few(repr(one.name) for one in readers)
                problems.append(
                    f"source {node.topic!r} has on_error={node.settings.on_error!r}, is read by {names} and is the "
                    f"changelog of store {held[node.topic]!r}: records left out would be in the store after a restore; "
                    "read it by app.table(...) alone and go on from its .to_stream(), or leave on_error out"
                )
        if problems:
            raise BadConfig(problems)

    def _read_without_keys(self) -> frozenset[str]:
        """Internal topics behind which a processor accepts records without a key."""
        behind: dict[str, set[str]] = {}  # node -> topics whose records reach it within its sub-topology
        for node in _in_order(list(self.nodes.values())):
            if isinstance(node, SourceNode):
                behind[node.name] = {node.topic} if node.internal else set()
            else:
                behind[node.name] = set().union(*(behind[parent] for parent in node.parents))
        takers = (node.name for node in self.nodes.values() if isinstance(node, ProcessorNode) and node.null_keys)
        return frozenset(topic for name in takers for topic in behind[name])

    def _connected(self) -> dict[str, tuple[str, ...]]:
        processors = [node for node in self.nodes.values() if isinstance(node, ProcessorNode)]
        named = {store for node in processors for store in node.stores or ()}
        free = tuple(store for store in self.specs if store not in named)
        return {
            node.name: (*(free if node.stores is None else node.stores), *filter(None, [node.timer_store]))
            for node in processors
        }

    def _group(
        self,
        number: int,
        nodes: list[Node],
        connected: Mapping[str, tuple[str, ...]],
        unused: tuple[StoreSpec, ...],
        policies: Mapping[str, ErrorPolicy],
    ) -> SubTopology:
        own = {node.name: connected[node.name] for node in nodes if isinstance(node, ProcessorNode)}
        names = dict.fromkeys(store for stores in own.values() for store in stores)
        # A store that is not declared is that of a node's timers, which hold bytes.
        specs = [self.specs.get(name) or KeyValueStore(name, serde.bytes, serde.bytes) for name in names]
        held = {node.name: policies[node.name] for node in nodes}
        return SubTopology(number, _in_order(nodes), (*specs, *unused), own, policies=held)

    def _check_new(self, name: str, parents: Sequence[str]) -> None:
        if name in self.nodes:
            raise BadConfig([f"node {name!r} exists already: give this one another name"])
        unknown = [parent for parent in parents if parent not in self.nodes]
        if unknown or not parents:
            raise BadConfig([f"node {name!r}: {few(unknown) or 'nothing'} is not a node to connect to"])


def _keeps_a_table(node: Node) -> bool:
    return isinstance(node, ProcessorNode) and isinstance(node.make, partial) and node.make.func is ToTable


def _in_order(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Order nodes with parents first; a processor may have a parent that was added after it."""
    waiting, done = {node.name: node for node in nodes}, dict[str, Node]()
    while waiting:
        for name, node in list(waiting.items()):
            parents = () if isinstance(node, SourceNode) else node.parents
            if all(parent in done for parent in parents):
                done[name] = waiting.pop(name)
    return tuple(done.values())


def _resolve(groups: list[SubTopology], known: dict[str, int], internal: Mapping[str, InternalTopic]) -> list[str]:
    """Set the partitions of every group and internal topic, in place; returns the problems."""
    known.update({topic: one.partitions for topic, one in internal.items() if one.partitions})
    while _resolve_more(groups, known, internal, patient=True) or _resolve_more(groups, known, internal, patient=False):
        pass
    problems = []
    for group in groups:
        counts = {topic: known.get(topic, 0) for topic in sorted(group.topics)}
        if len(set(counts.values())) > 1 or 0 in counts.values():
            listed = few(f"{topic} has {count}" for topic, count in counts.items())
            problems.append(
                f"topics that are processed together need equal partition counts, but {listed}: "
                "put .repartition(name, partitions=n) behind one of them"
            )
    return problems


def _resolve_more(
    groups: list[SubTopology], known: dict[str, int], internal: Mapping[str, InternalTopic], *, patient: bool
) -> bool:
    """Derive one more count from the known ones; return whether there was one. Not `patient`: a topic may do without
    some writers' counts, which is needed only where topics feed each other in a circle."""
    for number, group in enumerate(groups):
        counts = [known[topic] for topic in group.topics if topic in known]
        if counts and not group.partitions:
            groups[number] = replace(group, partitions=max(counts))
            return True
    for topic in internal:
        if topic in known:
            continue
        reader = next(group for group in groups if topic in group.topics)
        writers = [group.partitions for group in groups if any(sink.topic == topic for sink in group.sinks)]
        # A topic read together with others needs as many partitions as they have; alone, as many as its writers' tasks.
        wanted = reader.partitions or (max(writers) if all(writers) or not patient else 0)
        if wanted:
            known[topic] = wanted
            return True
    return False
