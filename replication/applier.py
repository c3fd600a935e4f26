"""Applies changelog records to the stores of one task, together with their positions.

    Fetched ──> stores.restore (rows) + cut with the new position ──> one WriteBatch

Rules of this file: used by restore and standby alike; it decides nothing (how far, when, whether: see
`standfast.restore.plan` and `standfast.replication.standby`). A position never moves without its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from standfast.replication.log import Log, LogReader, Record, TopicInfo
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.store.clock import Clock
from standfast.store.cut import Position
from standfast.store.errors import InternalError
from standfast.store.task_stores import TaskStores


class ChangelogApplier:
    """The changelogs of one task: which partition feeds which store, and where each stands."""

    def __init__(self, task: TaskId, stores: TaskStores, topics: Mapping[str, TopicInfo], clock: Clock) -> None:
        self.task = task
        self.stores = stores
        self._clock = clock
        self._topic_ids = {name: info.topic_id for name, info in topics.items()}
        self.changelogs = {name: TopicPartition(info.name, task.partition) for name, info in topics.items()}
        self.store_of = {partition: name for name, partition in self.changelogs.items()}

    def position(self, changelog: TopicPartition) -> Position | None:
        """The stored position of a changelog, or None if nothing was ever applied."""
        return self.stores.cut.positions.get(self._store(changelog))

    def topic_id(self, changelog: TopicPartition) -> str:
        """Identity of the topic that the stored positions count in."""
        return self._topic_ids[self._store(changelog)]

    def lost_reason(self, log: Log, reader: LogReader, changelog: TopicPartition, position: int) -> str | None:
        """Why a position no longer fits the log, or None if it does."""
        info = log.admin.describe_topic(changelog.topic)
        if info is None or info.topic_id != self.topic_id(changelog):
            return "topic-recreated"
        begin, end = reader.bounds([changelog])[changelog]
        if position < begin:
            return "truncated"
        return "position-ahead" if position > end else None

    def apply(self, changelog: TopicPartition, records: Sequence[Record], next_offset: int) -> None:
        """Apply records (in offset order) and move the position to `next_offset`, in one batch."""
        name = self._store(changelog)
        position = Position(next_offset, -1, self._topic_ids[name], self._clock.wall_ms())
        cut = self.stores.cut
        cut = replace(cut, positions={**cut.positions, name: position})
        self.stores.apply({name: records} if records else {}, cut)

    def advanced(self, acknowledged: Mapping[TopicPartition, int]) -> dict[str, Position]:
        """Positions by store after the task's own writes were acknowledged up to these next offsets.

        The task is the only writer, so the others stand at their ends as well and are known to be good now.
        """
        now_ms = self._clock.wall_ms()
        positions = {name: stored._replace(at_ms=now_ms) for name, stored in self.stores.cut.positions.items()}
        for name, changelog in self.changelogs.items():
            if changelog in acknowledged:
                positions[name] = Position(acknowledged[changelog], -1, self._topic_ids[name], now_ms)
        return positions

    def _store(self, changelog: TopicPartition) -> str:
        try:
            return self.store_of[changelog]
        except KeyError:
            raise InternalError(f"task {self.task} was handed a record of {changelog}, which is not its own") from None
