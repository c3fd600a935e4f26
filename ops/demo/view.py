"""The demo's application as its log shows it, to a program that watches it from outside.

    committed()    flights, by partition            placement()  which process has which task, and its last moves
    settled()      nothing is on its way any more   board()      the newest records of `board-live`, added up
    finals()       the final results

    board-live     key task id -> {"flights": 812, "aircraft": 301, "retired": 97, "at": 1357...}
                       written by a wall-clock punctuator of each task, several times a second

Rules of this file: it reads committed offsets and topics, as any other program could; it asks no process. Not every
offset is a record: on Kafka the end of a transaction takes one, too. Exact numbers are read, not subtracted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from typing import Any, TypeAlias

from standfast.ops.demo.board import BY_AIRPORT, HOUR_MS, LIVE, PARTITIONS, RESULTS, TOPIC, BoardSettings
from standfast.replication.log import Log, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.placement.seen import PlacementSeen, seen
from standfast.replication.placement.topic import PlacementTopic
from standfast.replication.takeover import plans
from standfast.store import serde
from standfast.store.clock import Clock
from standfast.stream.dsl.windowed_serde import windowed

FETCH_RECORDS = 500
WAIT_MS = 100
HOUR = windowed(serde.string, HOUR_MS)

At: TypeAlias = tuple[int, str, int]  # partition, airport, begin of the hour


class LogView:
    """One reader's view of the log; makes the application's output topics."""

    def __init__(self, log: Log, settings: BoardSettings, clock: Clock) -> None:
        live = settings.named(LIVE)
        log.admin.create_topic(live, 1, TopicPolicy())
        log.admin.create_topic(settings.named(RESULTS), PARTITIONS, TopicPolicy())
        self._settings = settings
        self._clock = clock
        self._held = ExitStack()
        self._group = self._held.enter_context(closing(log.group(settings.app)))
        self._reader = self._held.enter_context(closing(log.reader()))
        self._live = self._held.enter_context(closing(log.reader()))
        self._live.assign({TopicPartition(live, 0): 0})
        self._parts: dict[bytes, Mapping[str, Any]] = {}
        placement = PlacementTopic(log, settings.app, "", clock, acceptable_lag=0)
        self._placement = self._held.enter_context(closing(placement))

    def committed(self) -> dict[int, int]:
        """Next flight to process, by partition; absent before the first commit."""
        # By name: asked for all partitions of a group, Kafka omits one whose first offset is still being written.
        flights = [TopicPartition(self._settings.named(TOPIC), part) for part in range(PARTITIONS)]
        return {at.partition: one.offset for at, one in self._group.committed(flights).items()}

    def settled(self, total: int) -> bool:
        """Whether `total` flights and all records behind the repartition topic that came of them are committed."""
        # Flights and the records made of them are committed together: no more can come once all flights are.
        return sum(self.committed().values()) >= total and not self._waiting()

    def placement(self) -> PlacementSeen:
        """Tasks, instances and the last moves, as `standfast placement` shows them."""
        members = {name: plan.managed for name, plan in plans(self._group.view()).items()}
        leader = self._group.owners().get(self._placement.leader_id)
        return seen(self._settings.app, self._placement.look(), members, leader, self._clock.wall_ms())

    def board(self) -> dict[str, int]:
        """The live board of all tasks: flights, aircraft, retired, and `at`, the newest stream time of a task."""
        for batch in self._live.fetch(FETCH_RECORDS):
            # A record has a task's whole part, so only its newest one counts.
            for record in batch.records:
                self._parts[record.key or b""] = json.loads(record.value or b"{}")
        parts = self._parts.values()
        board = {name: sum(part[name] for part in parts) for name in ("flights", "aircraft", "retired")}
        return board | {"at": max((part["at"] or 0 for part in parts), default=0)}

    def finals(self) -> list[tuple[At, Any]]:
        """Every final result in the log with its hour, in order by partition."""
        found: list[tuple[At, Any]] = []
        for part in range(PARTITIONS):
            at = TopicPartition(self._settings.named(RESULTS), part)
            position, end = self._reader.bounds([at])[at]
            self._reader.assign({at: position})
            # By position and not by records: on Kafka the end of a transaction takes an offset, too.
            while position < end:
                for batch in self._reader.fetch(FETCH_RECORDS, WAIT_MS):
                    position = batch.next_offset
                    for record in batch.records:
                        hour = HOUR.deserialize(record.key or b"")
                        found.append(((part, hour.key, hour.start), json.loads(record.value or b"null")))
        return found

    def close(self) -> None:
        """Release the log."""
        self._held.close()

    def _waiting(self) -> bool:
        """Whether a record of the repartition topic is not committed."""
        topic = self._settings.named(BY_AIRPORT)
        bounds = self._reader.bounds(TopicPartition(topic, part) for part in range(PARTITIONS))
        done = self._group.committed(bounds)
        starts = {at: done[at].offset if at in done else bound.begin for at, bound in bounds.items()}
        left = {at: offset for at, offset in starts.items() if offset < bounds[at].end}
        self._reader.assign(left)
        while left:
            for batch in self._reader.fetch(1, WAIT_MS):
                if batch.records:
                    return True
                # At the end without a record: only ends of transactions lie there.
                if batch.at_end:
                    left.pop(batch.source, None)
        return False


def board_line(board: Mapping[str, int]) -> str:
    """The live board in words."""
    at = datetime.fromtimestamp(board["at"] / 1_000, UTC).strftime("%a %d %b %H:%M")
    numbers = ", ".join(f"{board[name]:,} {name}" for name in ("flights", "aircraft", "retired"))
    return f"live board of {at}: {numbers}"
