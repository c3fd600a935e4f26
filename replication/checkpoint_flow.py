"""The order in which the groups of an application stop for a checkpoint: those first whose output the others read.

    orders ──> [group 0] ──> by-day-repartition ──> [group 1] ──> by-month-repartition ──> [group 2]
                stage 0                              stage 1                                stage 2

A group is in the stage after the last group that writes to an internal topic of its own. Groups of one stage stop
together. The ends of an internal topic are read while all of its writers stand still, so all of them are of one stage.

Rules of this file: pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from standfast.replication.offsets import TopicPartition
from standfast.store.errors import InvalidRequest
from standfast.store.names import few


@dataclass(frozen=True, slots=True)
class Flow:
    """Internal topics that each group reads and writes, and the partitions of each. Every group is in `reads`."""

    reads: Mapping[int, frozenset[str]]
    writes: Mapping[int, frozenset[str]]
    partitions: Mapping[str, int]

    def written(self, groups: Iterable[int]) -> frozenset[str]:
        """The internal topics that these groups write to."""
        return frozenset().union(*(self.writes.get(group, frozenset()) for group in groups))

    def readers(self, topics: Iterable[str]) -> frozenset[int]:
        """The groups that read one of these topics."""
        wanted = frozenset(topics)
        return frozenset(group for group, read in self.reads.items() if read & wanted)

    def inputs(self, topics: Iterable[str]) -> list[TopicPartition]:
        """Every partition of these topics."""
        return [TopicPartition(topic, number) for topic in sorted(topics) for number in range(self.partitions[topic])]

    def stages(self) -> tuple[frozenset[int], ...]:
        """Groups by stage. Raises InvalidRequest for an application that has no such order."""
        before = {
            group: frozenset(writer for writer, written in self.writes.items() if written & read)
            for group, read in self.reads.items()
        }
        stage: dict[int, int] = {}
        while len(stage) < len(before):
            ready = [one for one in before if one not in stage and before[one] <= stage.keys()]
            if not ready:
                cycle = sorted(before.keys() - stage.keys())
                raise InvalidRequest(
                    f"groups {few(cycle)} read their own output through internal topics, so that none "
                    "of them can stop before the others: a checkpoint needs groups in an order"
                )
            for one in ready:
                stage[one] = max((stage[writer] + 1 for writer in before[one]), default=0)
        for topic in sorted(self.written(self.writes)):
            writers = sorted(group for group, written in self.writes.items() if topic in written)
            if len({stage[one] for one in writers}) > 1:
                raise InvalidRequest(
                    f"groups {few(writers)} write to {topic}, and one of them reads the output of "
                    "another: a checkpoint needs all writers of an internal topic in one stage"
                )
        last = max(stage.values(), default=-1)
        return tuple(frozenset(one for one, at in stage.items() if at == number) for number in range(last + 1))
