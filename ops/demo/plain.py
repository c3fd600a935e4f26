"""The delay board computed plainly from the list of flights, for the comparison at the end of the demo.

    aircraft     (partition, tail)            -> airport, flight, departed    left within a day of the last retiring
    delays       (partition, airport, start)  -> flights, delay, worst        start > newest hour - retention
    three_hours  the same over three hours, beginning every hour
    finals       the same over one hour, of every hour that closed            end <= newest flight - grace

Partitions of aircraft are those of the tail, all others those of the airport.

Rules of this file: dictionaries and sums, nothing of stores, windows, logs or the application: code shared with
them could be wrong in the same way.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from standfast.ops.demo.flights import Flight

AN_HOUR = 60 * 60 * 1000
A_DAY = 24 * AN_HOUR

AircraftRows = dict[tuple[int, str], dict[str, Any]]
DelayRows = dict[tuple[int, str, int], dict[str, Any]]


@dataclass(slots=True)
class PlainBoard:
    """The expected contents of stores and results."""

    aircraft: AircraftRows = field(default_factory=dict)
    delays: DelayRows = field(default_factory=dict)
    three_hours: DelayRows = field(default_factory=dict)
    finals: DelayRows = field(default_factory=dict)


def plain_board(flights: Iterable[Flight], partitions: int, grace_ms: int, retention_ms: int) -> PlainBoard:
    """Compute every expected row after all flights, in the order in which they left."""
    # An iterator would be used up by the first of the two passes.
    flights = list(flights)
    board = PlainBoard()
    newest: dict[int, int] = {}
    for flight in flights:
        part = _part(flight.origin, partitions)
        newest[part] = max(newest.get(part, 0), flight.scheduled)
        hour = flight.scheduled - flight.scheduled % AN_HOUR
        _count_delay(board.delays, (part, flight.origin, hour), flight.delay)
        for start in (hour - 2 * AN_HOUR, hour - AN_HOUR, hour):
            if start >= 0:
                _count_delay(board.three_hours, (part, flight.origin, start), flight.delay)
    board.aircraft = _aircraft(flights, partitions)
    for at, row in board.delays.items():
        if at[2] + AN_HOUR <= newest[at[0]] - grace_ms:
            board.finals[at] = row
    for rows in (board.delays, board.three_hours):
        for at in [at for at in rows if at[2] <= newest[at[0]] - newest[at[0]] % AN_HOUR - retention_ms]:
            del rows[at]
    return board


def _aircraft(flights: Iterable[Flight], partitions: int) -> AircraftRows:
    """Last departure of each aircraft, deleted at every sixth hour if it is more than a day ago.

    The time is that of the partition: the newest scheduled departure so far.
    """
    known: dict[int, dict[str, dict[str, Any]]] = {part: {} for part in range(partitions)}
    newest = dict.fromkeys(known, -1)
    for flight in flights:
        part = _part(flight.tail, partitions)
        rows = known[part]
        if flight.tail not in rows or flight.departed >= rows[flight.tail]["departed"]:
            name = f"{flight.carrier}{flight.number}"
            rows[flight.tail] = {"airport": flight.origin, "flight": name, "departed": flight.departed}
        before = newest[part]
        now = newest[part] = max(before, flight.scheduled)
        if now // (6 * AN_HOUR) != before // (6 * AN_HOUR):
            for tail in [tail for tail, row in rows.items() if row["departed"] < now - A_DAY]:
                del rows[tail]
    return {(part, tail): row for part, rows in known.items() for tail, row in rows.items()}


def _count_delay(rows: DelayRows, at: tuple[int, str, int], delay: int) -> None:
    row = rows.setdefault(at, {"flights": 0, "delay": 0, "worst": delay})
    row["flights"] += 1
    row["delay"] += delay
    row["worst"] = max(row["worst"], delay)


def _part(key: str, partitions: int) -> int:
    return zlib.crc32(key.encode()) % partitions
