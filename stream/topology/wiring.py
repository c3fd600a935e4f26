"""One instance of every processor of a task, wired so that they call each other directly.

    source ──> to_all(children) ──> processor.process ──> context.forward ──> children ... ──> sink ──> task.send
                                └─> a call, where process is async def; its results go to the children later

Rules of this file: it builds, and calls nothing that it has built. Processors are created children first, because a
parent needs the calls of its children; the returned lists are in the topology's order, parents first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from standfast.stream.topology.calls import AsyncContext, AsyncServices, is_async
from standfast.stream.topology.nodes import ProcessorNode, SinkNode, SubTopology
from standfast.stream.topology.processor import Context, Forward, Processor, to_all
from standfast.stream.topology.sinks import make_sink


@dataclass(frozen=True, slots=True)
class Wired:
    """The processors of one task with their contexts, and the call that receives the records of each source node."""

    processors: tuple[tuple[ProcessorNode, Processor, Context], ...]
    entries: Mapping[str, Forward]


def wire(
    topology: SubTopology,
    services: AsyncServices,
    partitions_of: Mapping[str, int],
    own_policy: Callable[[ProcessorNode | SinkNode, Forward], Forward],
) -> Wired:
    """Create the processors of a sub-topology for the task of `services`; `partitions_of` has its sinks' topics.

    `own_policy` wraps the call of a node that has an on_error of its own.
    """
    children: dict[str, dict[str, Forward]] = {node.name: {} for node in topology.nodes}
    built: list[tuple[ProcessorNode, Processor, Context]] = []
    # Children first, because a parent needs their calls.
    for node in reversed(topology.nodes):
        if isinstance(node, SinkNode):
            forward = make_sink(node, services.task, partitions_of, services.drop, services.inject)
        elif isinstance(node, ProcessorNode):
            processor = node.make()
            if is_async(processor):
                calling = AsyncContext(node.name, services, children[node.name])
                context: Context = calling
                forward = services.caller(node.name, processor, calling)
            else:
                context = Context(node.name, services, topology.connected[node.name], children[node.name])
                forward = cast("Forward", processor.process)
            built.append((node, processor, context))
        else:
            continue
        if node.policy is not None:
            forward = own_policy(node, forward)
        for parent, times in Counter(node.parents).items():
            # A stream that is merged with itself has each record as often as it is named.
            called = forward if times == 1 else to_all((forward,) * times)
            # In front, because nodes come in reverse: children are called in the order in which they were added.
            children[parent] = {node.name: called, **children[parent]}
    entries = {source.name: to_all(tuple(children[source.name].values())) for source in topology.sources}
    return Wired(tuple(reversed(built)), entries)
