"""The delay board computed plainly from the list of flights, for the comparison at the end of the demo.

    aircraft  (partition, tail)            -> airport, flight, departed, flights
    delays    (partition, airport, hour)   -> flights, delay, worst        hour > largest hour - retention

Rules of this file: dictionaries and sums, nothing of stores, windows, logs or the application: what it shares with
them, it could get wrong in the same way.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from standfast.ops.demo_flights import Flight

AN_HOUR = 60 * 60 * 1000

AircraftRows = dict[tuple[int, str], dict[str, Any]]
DelayRows = dict[tuple[int, str, int], dict[str, Any]]


@dataclass(slots=True)
class PlainBoard:
    """What the stores must hold. `records` is flights per partition, `expired` flights in hours past retention."""

    aircraft: AircraftRows = field(default_factory=dict)
    delays: DelayRows = field(default_factory=dict)
    records: dict[int, int] = field(default_factory=dict)
    expired: int = 0


def plain_board(flights: Iterable[Flight], partitions: int, retention_ms: int) -> PlainBoard:
    """Compute every row that must be visible after all flights, in whatever order they come within an hour."""
    board = PlainBoard(records=dict.fromkeys(range(partitions), 0))
    newest_hour: dict[int, int] = {}
    for flight in flights:
        part = zlib.crc32(flight.tail.encode()) % partitions
        hour = flight.scheduled - flight.scheduled % AN_HOUR
        newest_hour[part] = max(newest_hour.get(part, hour), hour)
        board.records[part] += 1
        _count_aircraft(board.aircraft, part, flight)
        _count_delay(board.delays, (part, flight.origin, hour), flight.delay)
    for row in [row for row in board.delays if row[2] <= newest_hour[row[0]] - retention_ms]:
        board.expired += board.delays.pop(row)["flights"]
    return board


def _count_aircraft(rows: AircraftRows, part: int, flight: Flight) -> None:
    row = rows.setdefault((part, flight.tail), {"departed": -1, "flights": 0})
    row["flights"] += 1
    if flight.departed >= row["departed"]:
        row["airport"] = flight.origin
        row["flight"] = f"{flight.carrier}{flight.number}"
        row["departed"] = flight.departed


def _count_delay(rows: DelayRows, at: tuple[int, str, int], delay: int) -> None:
    row = rows.setdefault(at, {"flights": 0, "delay": 0, "worst": delay})
    row["flights"] += 1
    row["delay"] += delay
    row["worst"] = max(row["worst"], delay)
