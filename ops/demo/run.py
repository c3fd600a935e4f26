"""The whole demo: settings that fit the data, the course with its processes, checks, the result.

    flights ──> lead, grace, retention ──> Course ──> check ──> Spark ──> the document

Rules of this file: it only puts together.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

from standfast.ops.demo.board import DAY_MS, HOUR_MS, PARTITIONS, TOPIC, VIEW_MS, BoardSettings
from standfast.ops.demo.check import check
from standfast.ops.demo.course import Course
from standfast.ops.demo.feeder import Feeder, grace_for
from standfast.ops.demo.flights import FlightData, read_flights
from standfast.ops.demo.place import place_for
from standfast.ops.demo.result import Json, judged
from standfast.ops.demo.spark import run_spark
from standfast.ops.demo.view import LogView
from standfast.ops.shared.output import Output
from standfast.ops.shared.streams import say
from standfast.replication.tail.open_log import open_log
from standfast.store.clock import SystemClock

PREFIX = "standfast-demo"
# The feeder is at most this part of all flights ahead of the committed ones; that, and the delays, make the grace.
LEAD_PARTS = 10
LEAD_RECORDS_MIN, LEAD_RECORDS_MAX = 25, 8_000
# Short against the length of the data, so that segments expire on the way.
RETENTION_MS = {"sample": 7 * DAY_MS, "full": 30 * DAY_MS}


def run_demo(args: argparse.Namespace, folder: Path, out: Output) -> Json:
    """Run the demo of the command's arguments in `folder`; its document. Raises StandfastError."""
    data, clock = read_flights(args.data, args.limit), SystemClock()
    place = place_for(args.log, args.prefix or PREFIX, folder, tell, light=True, keep=args.dir is not None)
    with place as used, closing(open_log(used.address)) as log:
        given = {name: getattr(args, name) for name in ("guarantee", "lease_ms")}
        settings, fed = replace(settings_for(data), prefix=used.prefix, **given), data.document()
        started_ms = clock.monotonic_ms()
        tell(
            f"{fed['records']:,} flights of {data.source}, {fed['out_of_order']:,} out of order by schedule: "
            f"an hour closes {settings.grace_ms / DAY_MS:.1f} days after its end"
        )
        topic, lead = settings.named(TOPIC), lead_for(len(data.flights))
        with (
            closing(LogView(log, settings, clock)) as view,
            closing(Feeder(log, topic, PARTITIONS, data.flights, lead, view.settled)) as feeder,
        ):
            with out.progress("flights", feeder.total) as bar:
                course = Course(folder, used.address, settings, feeder, view, tell, bar.advance, clock)
                found = course.run()
            tell("comparing every row with a plain computation from the file")
            found |= check(folder, log, view, data.flights, settings, clock)
        spark, hint = None, "leave --no-spark out"
        if not args.no_spark:
            spark, hint = run_spark(folder, log, settings, out)
        fed |= {name: getattr(settings, name) for name in ("grace_ms", "retention_ms", "guarantee")}
        found |= {"spark": spark, "duration_ms": clock.monotonic_ms() - started_ms}
        return judged({"log": asdict(used), "fed": fed, **found}, hint)


def tell(text: str) -> None:
    """A line about the demo's progress."""
    say(f"-- {text}")


def lead_for(flights: int) -> int:
    """Number of flights that may be written beyond those of which everything is committed."""
    return min(max(flights // LEAD_PARTS, LEAD_RECORDS_MIN), LEAD_RECORDS_MAX)


def settings_for(data: FlightData) -> BoardSettings:
    """Grace with which no flight can be late, whatever the order of tasks; retention that holds every open window."""
    grace_ms = grace_for(data.flights, lead_for(len(data.flights)), HOUR_MS)
    return BoardSettings(grace_ms, max(RETENTION_MS[data.name], grace_ms + VIEW_MS))
