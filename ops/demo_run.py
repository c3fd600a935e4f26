"""The course of the demo: two processes, one killed in the middle, the other taking over; then everything is checked.

    feed ─┬─> A active ──── half way: SIGKILL ····· comes back, stands by ──┐
          └─> B stands by ───────────> takes over, goes on to the end ──────┴─> stop ─> check

Rules of this file: it starts, feeds, kills and waits; what is right is decided by the modules that compare. Every wait
has a bound on how long nothing may move.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from standfast.ops.demo_board import APP, LEASE_MS, PARTITIONS, RETENTION_MS, TOPIC
from standfast.ops.demo_check import check
from standfast.ops.demo_display import Display, Numbers
from standfast.ops.demo_feeder import Feeder
from standfast.ops.demo_flights import FlightData
from standfast.ops.demo_process import POLL_MS, Status, Worker
from standfast.ops.demo_result import Board, DemoResult, Fed, Metrics, Returned, TakeOver
from standfast.ops.demo_worker import STATISTICS_EVERY_TICKS, TICK_S, log_address
from standfast.replication.log import Group
from standfast.replication.open_log import open_log
from standfast.store.clock import Clock
from standfast.store.errors import Unavailable

STALL_MS_MAX = 30_000
SETTLE_MS = round(TICK_S * 1_000 * (STATISTICS_EVERY_TICKS + 2))  # a worker's statistics are at most this old
FEEDER_LEAD_PARTS = 6  # before the kill the feeder is at most a sixth of all flights ahead of A
SLICE_PARTS = 80
SLICE_RECORDS_MIN = 25
METRICS_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Killed:
    """The moment of the SIGKILL: its monotonic time, and how far A and the feeder were."""

    at_ms: int
    processed: int
    committed: int
    waiting: int


def run_demo(
    folder: Path, data: FlightData, display: Display, clock: Clock, *, kept: bool, metrics_port: int = 0
) -> DemoResult:
    """The whole course in `folder`. Leaves no process behind, whatever happens. Raises StandfastError."""
    started_ms = clock.monotonic_ms()
    retention_ms = RETENTION_MS[data.name]
    display.event(f"{len(data.flights):,} flights of {data.source}, {PARTITIONS} partitions, two processes")
    log = open_log(log_address(folder), clock=clock)
    try:
        feeder = Feeder(log, TOPIC, PARTITIONS, data.flights)
        group = log.group(APP)
        try:
            course = Course(folder, retention_ms, feeder, group, display, clock, metrics_port)
            try:
                course.run()
            finally:
                course.abandon()
            out_of_order = feeder.out_of_order()
        finally:
            group.close()
            feeder.close()
        checked = check(folder, log, data, retention_ms, clock, display)
    finally:
        log.close()
    fed = Fed(
        data=data.name,
        source=data.source,
        rows=data.rows,
        cancelled=data.cancelled,
        without_aircraft=data.without_aircraft,
        records=feeder.fed,
        out_of_order=out_of_order,
        partitions=PARTITIONS,
        retention_ms=retention_ms,
    )
    return DemoResult(
        fed=fed,
        takeover=course.takeover(),
        board=Board(course.b_last.late_dropped, course.b_last.segments_expired),
        returned=Returned(course.a_back.standby_records, checked.a_equal),
        comparison=checked.comparison,
        offsets=checked.offsets,
        verified=checked.verified,
        cold=checked.cold,
        metrics=course.metrics,
        duration_ms=clock.monotonic_ms() - started_ms,
        kept_in=str(folder) if kept else None,
    )


class Course:
    """The part with live processes. What it learnt is in its attributes once `run` returned."""

    def __init__(
        self,
        folder: Path,
        retention_ms: int,
        feeder: Feeder,
        group: Group,
        display: Display,
        clock: Clock,
        metrics_port: int,
    ) -> None:
        self.killed = Killed(-1, 0, 0, 0)
        self.promoted = self.b_last = self.a_back = Status()
        self.metrics = Metrics("", 0)
        self._folder = folder
        self._retention_ms = retention_ms
        self._feeder = feeder
        self._group = group
        self._display = display
        self._clock = clock
        self._metrics_port = metrics_port
        self._slice = max(feeder.total // SLICE_PARTS, SLICE_RECORDS_MIN)
        self._workers: list[Worker] = []
        self._a = Status()
        self._b = Status()

    def run(self) -> None:
        """From the start of A to the clean stop of both."""
        a, b = self._start_both()
        self._until_half(a, b)
        self._kill(a)
        self._until_taken_over(b)
        returned = self._start("a")
        self._until_end(b, returned)
        # The standby goes first, so that it does not take over what the active gives up.
        returned.stop()
        b.stop()
        self._display.event("both processes stopped cleanly")

    def abandon(self) -> None:
        """Leave no process behind."""
        for worker in reversed(self._workers):
            worker.abandon()

    def takeover(self) -> TakeOver:
        """The kill and what came after it."""
        killed, last = self.killed, self.b_last
        return TakeOver(
            processed_by_a=killed.processed,
            committed_by_a=killed.committed,
            waiting=killed.waiting,
            lease_ms=LEASE_MS,
            to_promotion_ms=last.restoring_ms - killed.at_ms,
            to_running_ms=last.running_ms - killed.at_ms,
            to_first_record_ms=last.first_ms - killed.at_ms,
            tasks=last.promotions,
            standby_replayed=self.promoted.standby_records,
            tail_replayed=last.restored_records,
            gate_waits=last.gate_waits,
            gate_wait_ms=last.gate_wait_ms,
            processed_by_b=last.processed,
        )

    def _start(self, name: str) -> Worker:
        port = self._metrics_port if name == "b" else 0  # B is the one that lives to the end
        worker = Worker(self._folder, name, self._retention_ms, self._clock, port)
        self._workers.append(worker)
        return worker

    def _start_both(self) -> tuple[Worker, Worker]:
        a = self._start("a")
        self._wait("A to take every task", lambda: a.status().active == PARTITIONS and a.status().ready)
        b = self._start("b")
        self._wait("B to stand by for every task", lambda: b.status().standby == PARTITIONS)
        self._display.event(f"A (pid {a.pid}) runs all {PARTITIONS} tasks, B (pid {b.pid}) stands by for them")
        return a, b

    def _until_half(self, a: Worker, b: Worker) -> None:
        total = self._feeder.total
        lead = max(total // FEEDER_LEAD_PARTS, SLICE_RECORDS_MIN)

        def half() -> bool:
            self._a, self._b = a.status(), b.status()
            if self._b.first_ms >= 0:
                raise Unavailable(
                    f"B took over before A was killed: A was held up for longer than its lease of {LEASE_MS} ms; "
                    "run the demo again while the machine is less busy"
                )
            if self._feeder.fed - self._a.processed < lead:
                self._feeder.feed(self._slice)
            return self._a.processed >= total // 2

        self._wait("A to process half of the flights", half)
        while self._feeder.fed - self._a.processed < lead and not self._feeder.done:
            self._feeder.feed(self._slice)

    def _kill(self, a: Worker) -> None:
        at_ms = a.kill()
        self._a = a.last
        committed = sum(self._committed().values())
        self.killed = Killed(at_ms, self._a.processed, committed, self._feeder.fed - committed)
        self._display.event(
            f"kill -9 A: {committed:,} of {self._feeder.total:,} flights committed, "
            f"{self.killed.waiting:,} waiting in the log",
            loud=True,
        )

    def _until_taken_over(self, b: Worker) -> None:
        def taken() -> bool:
            self._b = b.status()
            if self._b.restoring_ms < 0:
                self.promoted = self._b
            self._feeder.feed(self._slice)
            return self._b.first_ms >= 0

        self._wait("B to take over", taken)
        self._display.event(
            f"B took over after {(self._b.first_ms - self.killed.at_ms) / 1_000:.2f} s "
            f"(lease {LEASE_MS / 1_000:.1f} s); it had replayed {self.promoted.standby_records:,} changes",
            loud=True,
        )

    def _until_end(self, b: Worker, returned: Worker) -> None:
        def processed() -> bool:
            self._b, self.a_back = b.status(), returned.status()
            self._feeder.feed(self._slice)
            return self._feeder.done and sum(self._committed().values()) >= self._feeder.total

        self._wait("B to process every flight", processed)
        done_ms = self._clock.monotonic_ms()
        self._display.event(f"all {self._feeder.total:,} flights are committed")

        def settled() -> bool:
            self._b, self.a_back = b.status(), returned.status()
            caught_up = self.a_back.standby == PARTITIONS and self.a_back.standby_lag == 0
            return caught_up and min(self._b.at_ms, self.a_back.at_ms) > done_ms + SETTLE_MS

        self._wait("A to stand by again", settled)
        self.b_last = self._b
        self.metrics = Metrics(self._b.metrics, count_samples(self._b.metrics))
        self._display.event(
            f"A came back as standby and replayed the {self.a_back.standby_records:,} changes it had missed"
        )

    def _committed(self) -> dict[int, int]:
        return {at.partition: found.offset for at, found in self._group.committed().items()}

    def _wait(self, what: str, done: Callable[[], bool]) -> None:
        moved = self._marks()
        deadline_ms = self._clock.monotonic_ms() + STALL_MS_MAX
        while not done():
            self._show()
            now_ms = self._clock.monotonic_ms()
            if self._marks() != moved:
                moved, deadline_ms = self._marks(), now_ms + STALL_MS_MAX
            elif now_ms > deadline_ms:
                raise Unavailable(
                    f"nothing moved for {STALL_MS_MAX} ms while the demo waited for {what}: see the worker logs in "
                    f"{self._folder} (choose it with --dir to keep it)"
                )
            self._clock.sleep_ms(POLL_MS)
        self._show()

    def _marks(self) -> tuple[int, ...]:
        return (self._feeder.fed, self._a.processed, self._b.processed, self._b.standby_records)

    def _show(self) -> None:
        killed = self.killed.at_ms >= 0
        self._display.numbers(
            Numbers(
                total=self._feeder.total,
                fed=self._feeder.fed,
                by_a=self._a.processed,
                a_ended=killed,
                standby=self._b.standby_records,
                standby_total=self._a.logged_records,
                by_b=self._b.processed,
                by_b_total=self._feeder.total - self.killed.committed if killed else 0,
            )
        )


def count_samples(address: str) -> int:
    """Fetch `address`/metrics once and count its samples. Raises Unavailable."""
    where = urlsplit(address)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=METRICS_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode("utf-8")
    except OSError as error:
        raise Unavailable(f"metrics at {address} did not answer: {error}") from error
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise Unavailable(f"metrics at {address} answered {answer.status}: {text[:200]}")
    return sum(bool(line) and not line.startswith("#") for line in text.splitlines())
