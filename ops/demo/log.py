"""The application's progress as the log shows it, for the process that watches it from outside.

    committed()    flights, by partition            backlog()    offsets of the repartition topic that wait
    finals()       final results written so far     settled()    nothing is on its way any more in either group
    board()        the live board: the newest record of each task in `board-live`, added up

    board-live     key task id -> {"flights": 812, "aircraft": 301, "retired": 97, "at": 1357..., "worst": {...}}
                       written by a wall-clock punctuator of each task, several times a second

Rules of this file: it reads committed offsets and topics, as any other program could; it asks no process. Not every
offset is a record: on Kafka the end of a transaction takes one, too. Exact numbers are read, not subtracted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from standfast.ops.demo.board import BY_AIRPORT, LIVE, PARTITIONS, RESULTS, TOPIC, BoardSettings
from standfast.ops.demo.compare import read_finals
from standfast.replication.log import Log, TopicPolicy
from standfast.replication.offsets import TopicPartition

FETCH_RECORDS = 500
WAIT_MS = 100


@dataclass(frozen=True, slots=True)
class LiveBoard:
    """All tasks together. `at_ms` is their newest stream time, -1 before the first flight; delays in minutes."""

    flights: int = 0
    aircraft: int = 0
    retired: int = 0
    at_ms: int = -1
    worst_delay: int | None = None
    worst_flight: str = ""

    @property
    def at(self) -> str:
        """The board's time, as `Tue 15 Jan 14:30`; empty before the first flight."""
        return "" if self.at_ms < 0 else datetime.fromtimestamp(self.at_ms / 1_000, UTC).strftime("%a %d %b %H:%M")

    def __str__(self) -> str:
        text = f"{self.flights:,} flights, {self.aircraft:,} aircraft, {self.retired:,} retired"
        return text if self.worst_delay is None else f"{text}, worst delay {self.worst_delay} min ({self.worst_flight})"


class LogView:
    """One reader's view of the log; makes the application's output topics. `published` counts live boards read."""

    def __init__(self, log: Log, settings: BoardSettings) -> None:
        log.admin.create_topic(settings.named(LIVE), 1, TopicPolicy())
        log.admin.create_topic(settings.named(RESULTS), PARTITIONS, TopicPolicy())
        self.published = 0
        self._log = log
        self._settings = settings
        self._group = log.group(settings.app)
        self._reader = log.reader()
        self._live = log.reader()
        self._live.assign({TopicPartition(settings.named(LIVE), 0): 0})
        self._parts: dict[bytes, Mapping[str, Any]] = {}

    def committed(self) -> dict[int, int]:
        """Next flight to process, by partition; absent before the first commit."""
        # By name: asked for all partitions of a group, Kafka omits one whose first offset is still being written.
        flights = [TopicPartition(self._settings.named(TOPIC), part) for part in range(PARTITIONS)]
        return {at.partition: one.offset for at, one in self._group.committed(flights).items()}

    def backlog(self) -> int:
        """Offsets of the repartition topic that are not committed: its waiting records, or somewhat more."""
        return sum(end - offset for offset, end in self._behind().values())

    def settled(self, total: int) -> bool:
        """Whether `total` flights and all records behind the repartition topic that came of them are committed."""
        # Flights and the records made of them are committed together: no more can come once all flights are.
        return sum(self.committed().values()) >= total and not self._waiting()

    def finals(self) -> int:
        """Final results in the log."""
        return len(read_finals(self._log, self._settings.named(RESULTS)))

    def board(self) -> LiveBoard:
        """The live board now."""
        for batch in self._live.fetch(FETCH_RECORDS):
            for record in batch.records:
                # A record has a task's whole part, so only its newest one counts.
                self.published += 1
                self._parts[record.key or b""] = json.loads(record.value or b"{}")
        return add_up(self._parts.values())

    def close(self) -> None:
        """Release the log."""
        for one in (self._live, self._reader, self._group):
            one.close()

    def _behind(self) -> dict[TopicPartition, tuple[int, int]]:
        """Next offset to process and end, of each partition of the repartition topic."""
        topic = self._settings.named(BY_AIRPORT)
        bounds = self._reader.bounds(TopicPartition(topic, part) for part in range(PARTITIONS))
        done = self._group.committed(bounds)
        return {at: (done[at].offset if at in done else begin, end) for at, (begin, end) in bounds.items()}

    def _waiting(self) -> bool:
        """Whether a record of the repartition topic is not committed."""
        left = {at: offset for at, (offset, end) in self._behind().items() if offset < end}
        self._reader.assign(left)
        while left:
            for batch in self._reader.fetch(1, WAIT_MS):
                if batch.records:
                    return True
                # At the end without a record: only ends of transactions lie there.
                if batch.at_end:
                    left.pop(batch.source, None)
        return False


def add_up(parts: Iterable[Mapping[str, Any]]) -> LiveBoard:
    """The board of all tasks from the parts of each."""
    parts = list(parts)
    flights, aircraft, retired = (sum(part[name] for part in parts) for name in ("flights", "aircraft", "retired"))
    at_ms = max((part["at"] for part in parts if part["at"] is not None), default=-1)
    worst = max((part["worst"] for part in parts if part["worst"]), key=lambda one: one["delay"], default=None)
    if worst is None:
        return LiveBoard(flights, aircraft, retired, at_ms)
    return LiveBoard(flights, aircraft, retired, at_ms, worst["delay"], f"{worst['flight']} from {worst['origin']}")
