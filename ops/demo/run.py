"""The whole demo: settings that fit the data, the course with two processes, the checks after it, the result.

    flights ──> lead, grace, retention ──> Course ──> check ──> Spark ──> DemoResult

Rules of this file: it only puts together.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from standfast.ops.demo.board import DAY_MS, HOUR_MS, LEASE_MS, PARTITIONS, VIEW_MS, BoardSettings
from standfast.ops.demo.check import Checked, check
from standfast.ops.demo.course import SLICE_RECORDS_MIN, Course
from standfast.ops.demo.display import Display
from standfast.ops.demo.feeder import Feeder, grace_for
from standfast.ops.demo.flights import FlightData
from standfast.ops.demo.log import LogView
from standfast.ops.demo.result import Board, DemoResult, Fed, LogUsed, Returned
from standfast.ops.demo.spark import run_spark
from standfast.replication.tail.open_log import open_log
from standfast.store.clock import Clock
from standfast.stream.session.settings import Guarantee

# The feeder is at most this part of all flights ahead of the committed ones; that, and the delays, make the grace.
LEAD_PARTS = 10
LEAD_RECORDS_MAX = 8_000
# Short against the length of the data, so that segments expire on the way.
RETENTION_MS = {"sample": 7 * DAY_MS, "full": 30 * DAY_MS}


def run_demo(
    folder: Path,
    data: FlightData,
    display: Display,
    clock: Clock,
    used: LogUsed,
    *,
    guarantee: Guarantee = "exactly_once",
    lease_ms: int = LEASE_MS,
    kept: bool,
    metrics_port: int = 0,
    spark: bool = False,
) -> DemoResult:
    """Run the whole course in `folder`. Leaves no process behind, whatever happens. Raises StandfastError."""
    started_ms = clock.monotonic_ms()
    lead_max = lead_for(len(data.flights))
    settings = replace(settings_for(data), guarantee=guarantee, prefix=used.prefix, lease_ms=lease_ms)
    display.event(
        f"{len(data.flights):,} flights of {data.source}, {PARTITIONS} partitions, two processes; "
        f"windows wait {settings.grace_ms / DAY_MS:.1f} days for late flights"
    )
    with closing(open_log(used.address, clock=clock)) as log:
        # Closed before the checks, which compare a state that nothing changes any more.
        with (
            closing(Feeder(log, settings.topic, PARTITIONS, data.flights, lead_max)) as feeder,
            closing(LogView(log, settings)) as view,
        ):
            course = Course(folder, used.address, settings, feeder, view, display, clock, metrics_port)
            try:
                course.run()
            finally:
                course.abandon()
        checked = check(folder, log, data, settings, clock, display)
        ran, left_out = run_spark(folder, log, settings, display, clock) if spark else (None, "leave --no-spark out")
    took_ms = clock.monotonic_ms() - started_ms
    result = _result(_fed(data, feeder, settings), course, checked, used, took_ms, str(folder) if kept else None)
    return replace(result, spark=ran, spark_left_out=left_out)


def lead_for(flights: int) -> int:
    """Number of flights that may be written beyond the earliest one that is not committed."""
    return min(max(flights // LEAD_PARTS, SLICE_RECORDS_MIN), LEAD_RECORDS_MAX)


def settings_for(data: FlightData) -> BoardSettings:
    """Grace with which no flight can be late, whatever the order of tasks; retention that holds every open window."""
    grace_ms = grace_for(data.flights, lead_for(len(data.flights)), HOUR_MS)
    return BoardSettings(grace_ms, max(RETENTION_MS[data.name], grace_ms + VIEW_MS))


def _fed(data: FlightData, feeder: Feeder, settings: BoardSettings) -> Fed:
    return Fed(
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
    )


def _result(
    fed: Fed, course: Course, checked: Checked, used: LogUsed, duration_ms: int, kept_in: str | None
) -> DemoResult:
    a, b = course.a_last, course.b_last
    return DemoResult(
        log=used,
        fed=fed,
        takeover=course.takeover(),
        board=Board(
            late_windows=sum(one.counter("dropped", "late_window") for one in (a, b)),
            late_dropped=sum(one.stores("late_dropped") for one in (a, b)),
            segments_expired=b.stores("segments_expired"),
            finals_by_a=course.killed.finals,
            live_records=course.published,
            handed_over=b.status["counters"]["handed_over_records"],
        ),
        returned=Returned(course.a_back.standby_records, checked.a_equal),
        comparison=checked.comparison,
        finals=checked.finals,
        offsets=checked.offsets,
        verified=checked.verified,
        cold=checked.cold,
        metrics=course.metrics,
        duration_ms=duration_ms,
        kept_in=kept_in,
    )
