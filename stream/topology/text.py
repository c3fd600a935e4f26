"""The topology as text: for people, in the manner of Kafka Streams' TopologyDescription, and as a Mermaid flowchart.

    Topologies:
       Sub-topology: 0
        Source: clicks-source (topics: [clicks])
          --> count
        Processor: count (stores: [visits])
          --> none
          <-- clicks-source

In Mermaid each sub-topology is a subgraph. Shapes: node [name], source of one's own [/name/], store [(name)], topic
([name]), internal topic {{name}}. Lines: the path of the records is solid; uses of stores, dead letters and late
records are dotted.

Rules of this file: pure; text out, only the topology in. Ids in Mermaid are numbers, because names may hold characters
that an id may not; names stand in quotes, so that no character in them is read as markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from standfast.stream.topology.nodes import SourceNode, SubTopology


def describe(groups: Sequence[SubTopology]) -> str:
    """The whole topology: a line for each node and for each direction of its connections."""
    blocks = ["\n".join(_sub_topology(group)) for group in groups]
    return "Topologies:\n" + "\n\n".join(blocks) + "\n"


def mermaid(groups: Sequence[SubTopology], internal: Sequence[str], topics: Sequence[str]) -> str:
    """The text of a Mermaid flowchart. `internal` are the `topics` that connect sub-topologies."""
    return "\n".join(_flowchart(groups, internal, list(dict.fromkeys(topics)))) + "\n"


def _sub_topology(group: SubTopology) -> Iterator[str]:
    sources = {node.name: f"Source: {node.name} ({_read(node)})" for node in group.sources}
    processors = {
        node.name: f"Processor: {node.name} (stores: [{', '.join(sorted(group.connected[node.name]))}])"
        for node in group.processors
    }
    sinks = {node.name: f"Sink: {node.name} (topic: {node.topic})" for node in group.sinks}
    titles = sources | processors | sinks
    parents = _parents(group)
    yield f"   Sub-topology: {group.group}"
    for node in group.nodes:
        name = node.name
        yield f"    {titles[name]}"
        if name not in sinks:
            children = [child for child, above in parents.items() if name in above]
            yield f"      --> {', '.join(children) or 'none'}"
        if name not in sources:
            yield f"      <-- {', '.join(parents[name])}"


def _read(node: SourceNode) -> str:
    if node.own is None:
        return f"topics: [{node.topic}]"
    return f"own: [{node.own.name}], partitions: {node.own.partitions}, offsets: [{node.topic}]"


def _parents(group: SubTopology) -> dict[str, tuple[str, ...]]:
    parents = {node.name: node.parents for node in group.processors}
    return parents | {node.name: node.parents for node in group.sinks}


def _flowchart(groups: Sequence[SubTopology], internal: Sequence[str], topics: Sequence[str]) -> Iterator[str]:
    ids = _ids(groups, topics)
    yield "flowchart LR"
    for topic in topics:
        left, right = ("{{", "}}") if topic in internal else ("([", "])")
        yield f"  {ids['topic', topic]}{left}{_quoted(topic)}{right}"
    for group in groups:
        yield f"  subgraph sub{group.group}[{_quoted(f'Sub-topology {group.group}')}]"
        own = {node.name for node in group.own_sources}
        for node in group.nodes:
            left, right = ("[/", "/]") if node.name in own else ("[", "]")
            yield f"    {ids['node', node.name]}{left}{_quoted(node.name)}{right}"
        yield from (f"    {ids['store', spec.name]}[({_quoted(spec.name)})]" for spec in group.specs)
        yield "  end"
    for group in groups:
        yield from _edges(group, ids)


def _edges(group: SubTopology, ids: Mapping[tuple[str, str], str]) -> Iterator[str]:
    for source in group.sources:
        own = ids["node", source.name]
        if source.own is None:
            yield f"  {ids['topic', source.topic]} --> {own}"
        for what, topic in (("dead letters", source.settings.dead_letter), ("late", source.settings.late)):
            if topic is not None:
                yield f"  {own} -. {what} .-> {ids['topic', topic]}"
    for name, topic in group.dead_letters:
        yield f"  {ids['node', name]} -. dead letters .-> {ids['topic', topic]}"
    for name, parents in _parents(group).items():
        yield from (f"  {ids['node', parent]} --> {ids['node', name]}" for parent in parents)
    for processor in group.processors:
        for store in sorted(group.connected[processor.name]):
            yield f"  {ids['node', processor.name]} -.- {ids['store', store]}"
    for sink in group.sinks:
        yield f"  {ids['node', sink.name]} --> {ids['topic', sink.topic]}"


def _ids(groups: Sequence[SubTopology], topics: Sequence[str]) -> dict[tuple[str, str], str]:
    names = {
        "topic": topics,
        "node": [node.name for group in groups for node in group.nodes],
        "store": [spec.name for group in groups for spec in group.specs],
    }
    return {(kind, name): f"{kind}{number}" for kind, some in names.items() for number, name in enumerate(some)}


def _quoted(name: str) -> str:
    # The number sign first, because the other escape contains one.
    return '"' + name.replace("#", "#35;").replace('"', "#quot;") + '"'
