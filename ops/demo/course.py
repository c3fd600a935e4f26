"""The part of the demo with live processes: one of two is killed in the middle, the other takes over.

    feed ─┬─> A active ──── half way: SIGKILL ····· comes back, stands by ──┐
          └─> B stands by ───────────> takes over, goes on to the end ──────┴─> stop

Rules of this file: it starts, feeds, kills and waits; correctness is decided by the modules that compare. Every wait
has a bound on how long nothing may move.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from standfast.ops.demo.board import TASKS, BoardSettings
from standfast.ops.demo.display import Display, Numbers
from standfast.ops.demo.feeder import Feeder
from standfast.ops.demo.log import LogView
from standfast.ops.demo.process import POLL_MS, Status, Worker
from standfast.ops.demo.result import Metrics, TakeOver
from standfast.ops.demo.worker import TICK_MS
from standfast.store.clock import Clock
from standfast.store.errors import Unavailable

STALL_MS_MAX = 30_000
SETTLE_MS = 2 * TICK_MS  # a worker's status is at most this old
SLICE_PARTS = 80
SLICE_RECORDS_MIN = 25
METRICS_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Killed:
    """The moment of the SIGKILL: its monotonic time, progress of A and the feeder, final results in the log.

    `committed` was seen just before; the number that B found when it took over is exact.
    """

    at_ms: int
    processed: int
    committed: int
    fed: int
    finals: int


@dataclass(slots=True)
class Course:
    """The part with live processes. Its findings are in its attributes once `run` returned.

    `a_last`, `b_last` and `a_back` are the newest statuses: of A before it was killed, of B, of A after it came back;
    `promoted` is that of B just before it took over.
    """

    folder: Path
    log: str
    settings: BoardSettings
    feeder: Feeder
    view: LogView
    display: Display
    clock: Clock
    metrics_port: int
    killed: Killed = field(default_factory=lambda: Killed(-1, 0, 0, 0, 0))
    promoted: Status = field(default_factory=Status)
    a_last: Status = field(default_factory=Status)
    b_last: Status = field(default_factory=Status)
    a_back: Status = field(default_factory=Status)
    metrics: Metrics = field(default_factory=lambda: Metrics("", 0))
    _workers: list[Worker] = field(default_factory=list)
    _committed: int = 0

    def run(self) -> None:
        """Run from the start of A to the clean stop of both."""
        a, b = self._start_both()
        self._until_half(a, b)
        self._kill(a)
        self._until_taken_over(b)
        returned = self._start("a")
        self._until_end(b, returned)
        # The standby goes first, so that it does not take over the tasks that the active gives up.
        returned.stop()
        b.stop()
        self.display.event("both processes stopped cleanly")

    def abandon(self) -> None:
        """End all processes."""
        # Last started first: a standby must not take over while the others end.
        for worker in reversed(self._workers):
            worker.abandon()

    def takeover(self) -> TakeOver:
        """The kill and the take-over in numbers."""
        killed, last = self.killed, self.b_last
        return TakeOver(
            processed_by_a=max(killed.processed, last.resumed),  # its last status may be older than its last commit
            committed_by_a=last.resumed,
            waiting=killed.fed - last.resumed,
            lease_ms=self.settings.lease_ms,
            to_promotion_ms=last.restoring_ms - killed.at_ms,
            to_running_ms=last.running_ms - killed.at_ms,
            to_first_record_ms=last.first_ms - killed.at_ms,
            tasks=last.counter("promotions", "completed"),
            standby_replayed=self.promoted.standby_records,
            tail_replayed=last.counter("restored", "records"),
            gate_waits=last.counter("gate_wait_seconds", "count"),
            gate_wait_ms=round(last.counter("gate_wait_seconds", "sum") * 1_000),
            processed_by_b=last.processed,
        )

    def _start(self, name: str, *, held: bool = False) -> Worker:
        port = self.metrics_port if name == "b" else 0  # B is the one that lives to the end
        worker = Worker(self.folder, name, self.log, self.settings, self.clock, port, held=held)
        self._workers.append(worker)
        return worker

    def _start_both(self) -> tuple[Worker, Worker]:
        # B is held until A has every task: otherwise the two would share the tasks, and the kill would hit half of
        # them.
        a, b = self._start("a"), self._start("b", held=True)
        self._wait("A to take every task", lambda: a.status().tasks("active") == TASKS and a.last.ready)
        b.release()
        self._wait("B to stand by for every task", lambda: b.status().tasks("standby") == TASKS)
        self.display.event(f"A (pid {a.pid}) runs all {TASKS} tasks, B (pid {b.pid}) stands by for them")
        return a, b

    def _until_half(self, a: Worker, b: Worker) -> None:
        def half() -> bool:
            self.a_last, self.b_last = a.status(), b.status()
            if self.b_last.first_ms >= 0:
                raise Unavailable(
                    "B took over before A was killed: A was held up for longer than its lease of "
                    f"{self.settings.lease_ms} ms; run the demo again while the machine is less busy, or with a "
                    "longer --lease-ms"
                )
            self._feed()
            return self.a_last.processed >= self.feeder.total // 2

        self._wait("A to process half of the flights", half)
        reached = self.a_last.processed

        def in_the_middle() -> bool:
            self.a_last, self.b_last = a.status(), b.status()
            # As much as may wait, so that A has work in hand that is lost, and B has work at once.
            self.feeder.feed(self.feeder.room(self.view.committed()))
            return self.a_last.processed > reached

        self._wait("A to be in the middle of its work", in_the_middle)

    def _kill(self, a: Worker) -> None:
        committed = sum(self.view.committed().values())
        at_ms = a.kill()
        # With the reports that were still in the pipe.
        self.a_last = a.last
        self.killed = Killed(at_ms, self.a_last.processed, committed, self.feeder.fed, self.view.finals())
        self.display.event(
            f"kill -9 A: {committed:,} of {self.feeder.total:,} flights committed, "
            f"{self.killed.fed - committed:,} waiting in the log",
            loud=True,
        )

    def _until_taken_over(self, b: Worker) -> None:
        def taken() -> bool:
            self.b_last = b.status()
            if self.b_last.restoring_ms < 0:
                # Nothing is fed meanwhile: A may have left a transaction open, and its offsets are waited for.
                self.promoted = self.b_last
            else:
                self._feed()
            return self.b_last.first_ms >= 0

        self._wait("B to take over", taken)
        self.display.event(
            f"B took over after {(self.b_last.first_ms - self.killed.at_ms) / 1_000:.2f} s (lease "
            f"{self.settings.lease_ms / 1_000:.1f} s); it had replayed {self.promoted.standby_records:,} changes",
            loud=True,
        )

    def _until_end(self, b: Worker, returned: Worker) -> None:
        def processed() -> bool:
            self.b_last, self.a_back = b.status(), returned.status()
            self._feed()
            return self.feeder.done and self.view.settled(self.feeder.total)

        self._wait("B to process every flight", processed)
        done_ms = self.clock.monotonic_ms()
        self.display.event(f"all {self.feeder.total:,} flights are committed")

        def settled() -> bool:
            self.b_last, self.a_back = b.status(), returned.status()
            caught_up = self.a_back.tasks("standby") == TASKS and self.a_back.stores("lag", "standby") == 0
            # Statuses from after the last commit: an older one may show a lag of 0 of the time before it.
            return caught_up and min(self.b_last.at_ms, self.a_back.at_ms) > done_ms + SETTLE_MS

        self._wait("A to stand by again", settled)
        self.metrics = Metrics(self.b_last.metrics, count_samples(self.b_last.metrics) if self.b_last.metrics else 0)
        self.display.event(
            f"A came back as standby and replayed the {self.a_back.standby_records:,} changes it had missed"
        )

    def _feed(self) -> int:
        """Write the next slice, as far as both groups of tasks keep up; returns the number of flights in it."""
        committed = self.view.committed()
        self._committed = sum(committed.values())
        # Behind the repartition topic as well: no window may get a flight later than the lead allows.
        room = min(self.feeder.room(committed), self.feeder.lead_max - self.view.backlog())
        return self.feeder.feed(min(max(self.feeder.total // SLICE_PARTS, SLICE_RECORDS_MIN), room))

    def _wait(self, what: str, done: Callable[[], bool]) -> None:
        moved = self._marks()
        deadline_ms = self.clock.monotonic_ms() + STALL_MS_MAX
        while not done():
            self._show()
            now_ms = self.clock.monotonic_ms()
            # The deadline moves with any progress, so that a slow machine is not taken for a stalled demo.
            if self._marks() != moved:
                moved, deadline_ms = self._marks(), now_ms + STALL_MS_MAX
            elif now_ms > deadline_ms:
                raise Unavailable(
                    f"the demo made no progress for {STALL_MS_MAX / 1_000:.0f} s while it waited for {what}: see the "
                    f"worker logs in {self.folder} (give the folder with --dir to keep it)"
                )
            self.clock.sleep_ms(POLL_MS)
        self._show()

    def _marks(self) -> tuple[int, ...]:
        return (
            self.feeder.fed,
            self._committed,
            self.a_last.processed,
            self.b_last.processed,
            self.b_last.standby_records,
        )

    def _show(self) -> None:
        killed = self.killed.at_ms >= 0
        self.display.numbers(
            Numbers(
                total=self.feeder.total,
                fed=self.feeder.fed,
                by_a=self.a_last.processed,
                a_ended=killed,
                standby=self.b_last.standby_records,
                standby_total=self.a_last.stores("logged_records"),
                by_b=self.b_last.processed,
                by_b_total=self.feeder.total - self.killed.committed if killed else 0,
                board=self.view.board(),
            )
        )


def count_samples(address: str) -> int:
    """Fetch `address`/metrics once and count its samples. Raises Unavailable."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=METRICS_TIMEOUT_S)
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
