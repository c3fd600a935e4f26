"""The policy at each node of a topology, for failures without a record in hand and behind an internal topic.

    own policy, of a step or a source          holds there and further downstream
    none                                       that of the nodes before it, through repartition and broadcast topics too
    several, because branches merge            the strictest

Rules of this file: pure; policies and their order are defined in `standfast.stream.topology.policy`.
"""

from __future__ import annotations

from collections.abc import Mapping

from standfast.stream.topology.nodes import Node, SinkNode, SourceNode
from standfast.stream.topology.policy import FAIL, ErrorPolicy, strictest


def policies_of(nodes: Mapping[str, Node]) -> dict[str, ErrorPolicy]:
    """The policy of every node, by name."""
    before = {name: _before(node, nodes) for name, node in nodes.items()}
    found = {name: own for name, node in nodes.items() if (own := _own(node)) is not None}
    return {name: found[name] if name in found else strictest(_origins(name, before, found)) for name in nodes}


def _own(node: Node) -> ErrorPolicy | None:
    if isinstance(node, SourceNode):
        return None if node.internal else ErrorPolicy(node.settings.on_error, node.settings.dead_letter)
    return node.policy


def _before(node: Node, nodes: Mapping[str, Node]) -> tuple[str, ...]:
    if not isinstance(node, SourceNode):
        return node.parents
    if not node.internal:
        return ()
    return tuple(name for name, one in nodes.items() if isinstance(one, SinkNode) and one.topic == node.topic)


def _origins(name: str, before: Mapping[str, tuple[str, ...]], found: Mapping[str, ErrorPolicy]) -> list[ErrorPolicy]:
    """The policies that lead to a node; each node is visited once, since topics may feed each other in a circle."""
    seen, waiting, origins = {name}, list(before[name]), list[ErrorPolicy]()
    while waiting:
        one = waiting.pop(0)
        if one in seen:
            continue
        seen.add(one)
        if one in found:
            origins.append(found[one])
        else:
            waiting += before[one]
    # A circle of internal topics alone leads to no policy.
    return origins or [FAIL]
