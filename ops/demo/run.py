"""The whole demo: place of the log, settings that fit the data, the course with its processes, checks, the result.

    flights ──> lead, grace, retention ──> Course ──> check ──> Spark ──> the document

Rules of this file: it only puts together.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TextIO

from rich.console import Console

from standfast.ops.demo.board import DAY_MS, HOUR_MS, PARTITIONS, TOPIC, VIEW_MS, BoardSettings
from standfast.ops.demo.check import check
from standfast.ops.demo.course import SLICE_RECORDS_MIN, Course
from standfast.ops.demo.display import Display
from standfast.ops.demo.feeder import Feeder, grace_for
from standfast.ops.demo.flights import FlightData, read_flights
from standfast.ops.demo.log import LogView
from standfast.ops.demo.place import place_for, remove_own
from standfast.ops.demo.result import Json, LogUsed, judged
from standfast.ops.demo.spark import run_spark
from standfast.replication.tail.open_log import open_log
from standfast.store.clock import Clock, SystemClock

# The feeder is at most this part of all flights ahead of the committed ones; that, and the delays, make the grace.
LEAD_PARTS = 10
LEAD_RECORDS_MAX = 8_000
# Short against the length of the data, so that segments expire on the way.
RETENTION_MS = {"sample": 7 * DAY_MS, "full": 30 * DAY_MS}


def run_demo(arguments: argparse.Namespace, folder: Path) -> Json:
    """Run the demo of the command's arguments in `folder`; its document. Raises StandfastError."""
    data, clock = read_flights(arguments.data, arguments.limit), SystemClock()
    with (
        _own_stderr() as stderr,
        Display(Console(file=stderr, highlight=False)) as display,
        place_for(arguments.log, arguments.prefix, folder, display, clock) as used,
    ):
        result = _run(arguments, folder, data, used, display, clock)
        # After a problem, folder and topics stay for a look.
        if arguments.dir is not None or not result["ok"]:
            return result | {"kept_in": str(folder)}
        return result | {"log": asdict(remove_own(used, display, clock))} if used.topics else result


def _run(
    arguments: argparse.Namespace, folder: Path, data: FlightData, used: LogUsed, display: Display, clock: Clock
) -> Json:
    """Run the whole course. Leaves no process behind, whatever happens."""
    started_ms = clock.monotonic_ms()
    lead_max = lead_for(len(data.flights))
    settings = replace(
        settings_for(data), guarantee=arguments.guarantee, prefix=used.prefix, lease_ms=arguments.lease_ms
    )
    display.event(
        f"{len(data.flights):,} flights of {data.source}, {PARTITIONS} partitions, three processes; "
        f"windows wait {settings.grace_ms / DAY_MS:.1f} days for late flights"
    )
    with (
        closing(open_log(used.address, clock=clock)) as log,
        closing(Feeder(log, settings.named(TOPIC), PARTITIONS, data.flights, lead_max)) as feeder,
        closing(LogView(log, settings)) as view,
    ):
        course = Course(folder, used.address, settings, feeder, view, display, clock, arguments.metrics_port)
        try:
            course.run()
        finally:
            course.abandon()
        checked = check(folder, log, view, data, settings, clock, display)
        spark, hint = None, "leave --no-spark out"
        if not arguments.no_spark:
            spark, hint = run_spark(folder, log, settings, display, clock)
    replayed, equal = course.last["a"].standby_records, checked.pop("a_equal")
    result = {
        "log": asdict(used),
        "fed": _fed(data, feeder, settings),
        **course.found,
        "processed": course.processed,
        "board": _board(course),
        "returned": {"standby_replayed": replayed, "tasks": course.returned, "equal": equal},
        **checked,
        "spark": spark,
        "kept_in": None,
        "duration_ms": clock.monotonic_ms() - started_ms,
    }
    return judged(result, hint)


def lead_for(flights: int) -> int:
    """Number of flights that may be written beyond the earliest one that is not committed."""
    return min(max(flights // LEAD_PARTS, SLICE_RECORDS_MIN), LEAD_RECORDS_MAX)


def settings_for(data: FlightData) -> BoardSettings:
    """Grace with which no flight can be late, whatever the order of tasks; retention that holds every open window."""
    grace_ms = grace_for(data.flights, lead_for(len(data.flights)), HOUR_MS)
    return BoardSettings(grace_ms, max(RETENTION_MS[data.name], grace_ms + VIEW_MS))


def _fed(data: FlightData, feeder: Feeder, settings: BoardSettings) -> Json:
    return {
        "data": data.name,
        **{name: getattr(data, name) for name in ("source", "rows", "cancelled", "without_aircraft")},
        "records": feeder.fed,
        "out_of_order": feeder.out_of_order(),
        "partitions": PARTITIONS,
        "lead_max": feeder.lead_max,
        **{name: getattr(settings, name) for name in ("grace_ms", "retention_ms", "guarantee")},
    }


def _board(course: Course) -> Json:
    b = course.last["b"]
    return {
        # Updates that a process refused because their window was closed, and rows past their store's retention.
        "late_windows": sum(one.counter("dropped", "late_window") for one in course.statuses),
        "late_dropped": sum(one.stores("late_dropped") for one in course.statuses),
        "segments_expired": b.stores("segments_expired"),  # since B opened each task last
        "finals_before": course.finals,  # in the log when A was killed
        "live_records": course.view.published,  # that a reader of the live board got
        # Records that a task of B got from its neighbour, without reading the log.
        "handed_over": b.status["counters"]["handed_over_records"],
    }


@contextmanager
def _own_stderr() -> Iterator[TextIO]:
    """On a terminal a handle of the display's own: while Spark starts, the other one leads to a file."""
    if not sys.stderr.isatty():
        yield sys.stderr
        return
    encoding, errors = sys.stderr.encoding, sys.stderr.errors
    with os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1, encoding=encoding, errors=errors) as own:
        yield own
