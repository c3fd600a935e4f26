"""The whole demo: place of the log, settings that fit the data, the course with its processes, checks, the result.

    flights ──> lead, grace, retention ──> Course ──> check ──> Spark ──> DemoResult

Rules of this file: it only puts together.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from rich.console import Console

from standfast.ops.demo.board import DAY_MS, HOUR_MS, PARTITIONS, TOPIC, VIEW_MS, BoardSettings
from standfast.ops.demo.check import Checked, check
from standfast.ops.demo.course import SLICE_RECORDS_MIN, Course
from standfast.ops.demo.display import Display
from standfast.ops.demo.feeder import Feeder, grace_for
from standfast.ops.demo.flights import FlightData, read_flights
from standfast.ops.demo.log import LogView
from standfast.ops.demo.place import left_behind, place_for, remove_own
from standfast.ops.demo.result import Board, DemoResult, Fed, LogUsed, Returned
from standfast.ops.demo.spark import run_spark
from standfast.replication.tail.open_log import open_log
from standfast.store.clock import Clock, SystemClock

# The feeder is at most this part of all flights ahead of the committed ones; that, and the delays, make the grace.
LEAD_PARTS = 10
LEAD_RECORDS_MAX = 8_000
# Short against the length of the data, so that segments expire on the way.
RETENTION_MS = {"sample": 7 * DAY_MS, "full": 30 * DAY_MS}


def run_demo(arguments: argparse.Namespace, folder: Path) -> DemoResult:
    """Run the demo of the command's arguments in `folder`. Raises StandfastError."""
    data, clock = read_flights(arguments.data, arguments.limit), SystemClock()
    with (
        _own_stderr() as stderr,
        Display(Console(file=stderr, highlight=False)) as display,
        place_for(arguments.log, arguments.prefix, folder, display, clock) as used,
        left_behind(used),
    ):
        result = _run(arguments, folder, data, used, display, clock)
        # After a problem, folder and topics stay for a look.
        if arguments.dir is not None or result.problems:
            return replace(result, kept_in=str(folder))
        return replace(result, log=remove_own(used, display, clock)) if used.shared else result


def _run(
    arguments: argparse.Namespace, folder: Path, data: FlightData, used: LogUsed, display: Display, clock: Clock
) -> DemoResult:
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
        ran, left_out = (
            (None, "leave --no-spark out") if arguments.no_spark else run_spark(folder, log, settings, display, clock)
        )
    result = _result(data, course, checked, used, clock.monotonic_ms() - started_ms)
    return replace(result, spark=ran, spark_left_out=left_out)


def lead_for(flights: int) -> int:
    """Number of flights that may be written beyond the earliest one that is not committed."""
    return min(max(flights // LEAD_PARTS, SLICE_RECORDS_MIN), LEAD_RECORDS_MAX)


def settings_for(data: FlightData) -> BoardSettings:
    """Grace with which no flight can be late, whatever the order of tasks; retention that holds every open window."""
    grace_ms = grace_for(data.flights, lead_for(len(data.flights)), HOUR_MS)
    return BoardSettings(grace_ms, max(RETENTION_MS[data.name], grace_ms + VIEW_MS))


def _result(data: FlightData, course: Course, checked: Checked, used: LogUsed, duration_ms: int) -> DemoResult:
    b, feeder, settings = course.last["b"], course.feeder, course.settings
    return DemoResult(
        log=used,
        fed=Fed(
            data=data.name,
            source=data.source,
            rows=data.rows,
            cancelled=data.cancelled,
            without_aircraft=data.without_aircraft,
            records=feeder.fed,
            out_of_order=feeder.out_of_order(),
            partitions=PARTITIONS,
            lead_max=feeder.lead_max,
            grace_ms=settings.grace_ms,
            retention_ms=settings.retention_ms,
            guarantee=settings.guarantee,
        ),
        scale_out=course.scale_out,
        takeover=course.takeover,
        processed=course.processed,
        board=Board(
            late_windows=sum(one.counter("dropped", "late_window") for one in course.statuses),
            late_dropped=sum(one.stores("late_dropped") for one in course.statuses),
            segments_expired=b.stores("segments_expired"),
            finals_before=course.finals,
            live_records=course.view.published,
            handed_over=b.status["counters"]["handed_over_records"],
        ),
        returned=Returned(course.last["a"].standby_records, course.returned, checked.a_equal),
        comparison=checked.comparison,
        finals=checked.finals,
        offsets=checked.offsets,
        verified=checked.verified,
        cold=checked.cold,
        metrics=course.metrics,
        duration_ms=duration_ms,
    )


@contextmanager
def _own_stderr() -> Iterator[TextIO]:
    """On a terminal a handle of the display's own: while Spark starts, the other one leads to a file."""
    if not sys.stderr.isatty():
        yield sys.stderr
        return
    encoding, errors = sys.stderr.encoding, sys.stderr.errors
    with os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1, encoding=encoding, errors=errors) as own:
        yield own
