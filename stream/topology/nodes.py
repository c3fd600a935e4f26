"""The parts of a topology: sources, processors, sinks, and the sub-topologies that they fall into.

Rules of this file: plain frozen data. `standfast.stream.topology.topology` puts the parts together and refuses wrong
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from standfast.store.serde import Serde
from standfast.store.specs import StoreSpec
from standfast.stream.source import Source
from standfast.stream.topology.policy import FAIL, ErrorPolicy
from standfast.stream.topology.processor import Processor
from standfast.stream.topology.sources import SourceSettings

InternalKind = Literal["repartition", "broadcast"]
Partitioner = Callable[[Any, Any, int], int]
Serdes = tuple[Serde[Any], Serde[Any]]  # of key and value


@dataclass(frozen=True, slots=True, eq=False)
class OwnSource:
    """A source of one's own: its name, the object whose `another()` runs, and its number of partitions."""

    name: str
    source: Source
    partitions: int


@dataclass(frozen=True, slots=True, eq=False)
class SourceNode:
    """Reads one topic. `internal`: a topic between two sub-topologies, which the application creates itself.

    With `own` it reads a source of one's own, and the topic has no records: the source's offsets are committed as those
    of this topic, so that the log has them wherever it has those of topics.
    """

    name: str
    topic: str
    settings: SourceSettings
    internal: bool = False
    own: OwnSource | None = None

    @property
    def label(self) -> str:
        """The name that the application gave: of the topic, or of its own source."""
        return self.topic if self.own is None else self.own.name


@dataclass(frozen=True, slots=True, eq=False)
class ProcessorNode:
    """Calls a processor, created for each task. `stores` None: every store that no other node names.

    `null_keys`: it processes records without a key, so that a repartition before it lets them through.
    `policy`: its own on_error. `given`, `results`: serdes of its input records, and of its results, for dead letters.
    `late`: topic for records that its windows are closed for. `numbers`: names of progress numbers that it may keep.
    """

    name: str
    make: Callable[[], Processor]
    parents: tuple[str, ...]
    stores: tuple[str, ...] | None = ()
    timer_key: Serde[Any] | None = None
    null_keys: bool = False
    policy: ErrorPolicy | None = None
    given: Serdes | None = None
    results: Serdes | None = None
    late: str | None = None
    numbers: tuple[str, ...] = ()

    @property
    def timer_store(self) -> str | None:
        """The store that keeps its timers, if it has any."""
        return f"{self.name}-timers" if self.timer_key is not None else None


@dataclass(frozen=True, slots=True, eq=False)
class SinkNode:
    """Writes to a topic; `partitioner` chooses from key, value and number of partitions (default: hash of the key).

    `null_keys`: whether a repartition forwards records without a key; the topology sets it.
    """

    name: str
    topic: str
    parents: tuple[str, ...]
    key: Serde[Any]
    value: Serde[Any]
    partitioner: Partitioner | None = None
    internal: InternalKind | None = None
    null_keys: bool = False
    policy: ErrorPolicy | None = None

    @property
    def given(self) -> Serdes:
        """Serdes of its input records."""
        return self.key, self.value


Node = SourceNode | ProcessorNode | SinkNode


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """A topic between two sub-topologies; partitions 0: to be derived."""

    name: str
    kind: InternalKind
    partitions: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class SubTopology:
    """The work of one group of tasks. Nodes are ordered with parents first."""

    group: int
    nodes: tuple[Node, ...]
    specs: tuple[StoreSpec, ...]
    connected: Mapping[str, tuple[str, ...]]  # processor -> its stores
    partitions: int = 0
    policies: Mapping[str, ErrorPolicy] = field(default_factory=dict)  # by node; absent: "fail"

    def policy_at(self, node: str) -> ErrorPolicy:
        """The policy for failures at a node without a record in hand."""
        return self.policies.get(node, FAIL)

    @property
    def dead_letters(self) -> tuple[tuple[str, str], ...]:
        """Nodes with a dead-letter topic of their own, and that topic."""
        nodes: tuple[ProcessorNode | SinkNode, ...] = (*self.processors, *self.sinks)
        own = ((node.name, node.policy) for node in nodes if node.policy is not None)
        return tuple((name, policy.dead_letter) for name, policy in own if policy.dead_letter is not None)

    @property
    def late(self) -> tuple[tuple[str, str], ...]:
        """Sources and processors with a topic for late records, and that topic."""
        sources = ((node.name, node.settings.late) for node in self.sources)
        processors = ((node.name, node.late) for node in self.processors)
        return tuple((name, topic) for name, topic in (*sources, *processors) if topic is not None)

    @property
    def sources(self) -> tuple[SourceNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SourceNode))

    @property
    def processors(self) -> tuple[ProcessorNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, ProcessorNode))

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        return tuple(node for node in self.nodes if isinstance(node, SinkNode))

    @property
    def topics(self) -> frozenset[str]:
        """Topics that its tasks read."""
        return frozenset(source.topic for source in self.sources)

    @property
    def own_sources(self) -> tuple[SourceNode, ...]:
        """Its sources of one's own."""
        return tuple(source for source in self.sources if source.own is not None)
