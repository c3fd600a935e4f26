"""The live board as its readers see it: the newest record of each task in `board-live`, added up.

    board-live   key task id -> {"flights": 812, "aircraft": 301, "retired": 97, "at": 1357..., "worst": {...}}
                     written by a wall-clock punctuator of each task, several times a second

Rules of this file: a reader of a topic like any other; it knows nothing of the stores behind it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from standfast.ops.demo.board import LIVE
from standfast.replication.log import Log
from standfast.replication.offsets import TopicPartition

FETCH_RECORDS = 500


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


class LiveReader:
    """Follows the topic. `published` counts its records."""

    def __init__(self, log: Log, topic: str = LIVE) -> None:
        self.published = 0
        self._parts: dict[bytes, Mapping[str, Any]] = {}
        self._reader = log.reader()
        self._reader.assign({TopicPartition(topic, 0): 0})

    def poll(self) -> LiveBoard:
        """The board now."""
        for batch in self._reader.fetch(FETCH_RECORDS):
            for record in batch.records:
                # A record has a task's whole part, so only its newest one counts.
                self.published += 1
                self._parts[record.key or b""] = json.loads(record.value or b"{}")
        return add_up(self._parts.values())

    def close(self) -> None:
        """Release the log."""
        self._reader.close()


def add_up(parts: Iterable[Mapping[str, Any]]) -> LiveBoard:
    """The board of all tasks from the parts of each."""
    parts = list(parts)
    worst = max((part["worst"] for part in parts if part["worst"]), key=lambda one: one["delay"], default=None)
    return LiveBoard(
        flights=sum(part["flights"] for part in parts),
        aircraft=sum(part["aircraft"] for part in parts),
        retired=sum(part["retired"] for part in parts),
        at_ms=max((part["at"] for part in parts if part["at"] is not None), default=-1),
        worst_delay=None if worst is None else worst["delay"],
        worst_flight="" if worst is None else f"{worst['flight']} from {worst['origin']}",
    )
