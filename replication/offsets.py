"""The words for offsets, each defined once.

    begin       first offset the log still holds
    position    next offset to read or to write
    committed   next offset to process, as the group recorded it
    limit       first offset a standby must not apply
    end         next offset the log will assign (Kafka: the last stable offset)

All of them are exclusive: they mean *next*, never *last seen*. Offsets of a partition increase strictly but may have
gaps (compaction, transaction markers), so "end - position" is an upper bound of the remaining records.

Rules of this file: words and plain values only; pure.
"""

from __future__ import annotations

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of one topic; written `topic-partition`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Bounds(NamedTuple):
    """The log's offsets of a partition: begin <= offset < end."""

    begin: int
    end: int


class TaskId(NamedTuple):
    """One sub-topology (group) and partition of an application; written `group_partition`, as `0_3`."""

    group: int
    partition: int

    def __str__(self) -> str:
        return f"{self.group}_{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Inverse of str()."""
        group, _, partition = text.partition("_")
        return cls(int(group), int(partition))
