"""The first position of source partitions of which the application has committed no offset: `start` of their source.

    committed, earliest    the beginning
    latest                 the end now; the beginning of a partition that was added while the application ran, whose
                           records are all newer than the start
    a time                 the first record of that time or a later one; the end if there is none

As Kafka's `auto.offset.reset` it never moves a committed offset. The loop commits the chosen position at once, so that
a restart before the first record does not choose again.

Rules of this file: it asks the log for the offsets of times and decides nothing else about a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from standfast.replication.log import LogAdmin
from standfast.replication.offsets import Bounds, TopicPartition
from standfast.stream.topology.sources import COMMITTED, EARLIEST, LATEST, Start
from standfast.stream.topology.topology import Topology


class Starts:
    """The starts of one application. `partitions_of` are the counts that its topics had when it began to run."""

    def __init__(self, topology: Topology, partitions_of: Mapping[str, int], admin: LogAdmin) -> None:
        self._admin = admin
        self._counts = dict(partitions_of)
        self._starts: dict[str, Start] = {
            source.topic: source.settings.start for group in topology.groups for source in group.sources
        }

    def chosen(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether a later choice for one of these partitions might be another one."""
        return any(self._starts[at.topic] not in (COMMITTED, EARLIEST) for at in partitions)

    def of(
        self, uncommitted: Iterable[TopicPartition], bounds: Mapping[TopicPartition, Bounds]
    ) -> dict[TopicPartition, int]:
        """The first position of each partition. Raises Unavailable where the log must be asked and does not answer."""
        times: dict[TopicPartition, int] = {}
        found: dict[TopicPartition, int] = {}
        for at in uncommitted:
            start = self._starts[at.topic]
            if isinstance(start, int):
                times[at] = start
                continue
            begin, end = bounds[at]
            found[at] = end if start == LATEST and at.partition < self._counts[at.topic] else begin
        for at, offset in (self._admin.first_offsets(times) if times else {}).items():
            found[at] = max(bounds[at].begin, offset)  # the look-up may name a record that was deleted since
        return found
