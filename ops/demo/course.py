"""The part of the demo with live processes: two share the tasks, a third joins, and one is killed in the middle.

    feed ─── a quarter ─────── half ────────────────────────────── all ────────────────────> stop
    A  8 ─── 4 ─── 3 tasks ── SIGKILL ····· comes back, catches up ── 3 ── 4 tasks ── stops
    B        4 ─── 3 ──────────── takes over ──────────────────────── 3 ── 4 ──────── 8 ── stops
    C              2 ──────────── takes over ──────────────────────── 2 ── stops

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
from standfast.ops.demo.result import Json
from standfast.ops.demo.shares import has_all, is_shared, is_whole, pauses, times
from standfast.store.clock import Clock
from standfast.store.errors import Unavailable
from standfast.store.timestamps import duration_text

STALL_MS_MAX = 30_000
SLICE_PARTS = 80
SLICE_RECORDS_MIN = 25
METRICS_TIMEOUT_S = 5.0
NAMES = ("a", "b", "c")


@dataclass(slots=True)
class Course:
    """The part with live processes. Its findings are in its attributes once `run` returned.

    `last` has the newest status of each process, of A since it came back; `killed` is the last one of A before.
    `finals` is the number of final results in the log at the kill, `returned` that of the tasks that A got back.
    """

    folder: Path
    log: str
    settings: BoardSettings
    feeder: Feeder
    view: LogView
    display: Display
    clock: Clock
    metrics_port: int
    last: dict[str, Status] = field(default_factory=lambda: dict.fromkeys(NAMES, Status()))
    killed: Status | None = None
    finals: int = 0
    returned: int = 0
    found: Json = field(default_factory=dict)  # parts of the demo's document
    _live: dict[str, Worker] = field(default_factory=dict)
    _started: list[Worker] = field(default_factory=list)
    _before: int = 0  # flights that A processed before it was killed
    _watched_from: int | None = None  # generation after which no task may be taken over
    _committed: int = 0
    _feed_to: int = 0  # flights that may be in the log; at 0 the committed ones are not read either

    def run(self) -> None:
        """Run from the start of A to the clean stop of all."""
        self._start_two()
        self._scale_out()
        at_ms = self._kill()
        self._until_taken_over(at_ms)
        self._until_end()
        self._scale_in()

    def abandon(self) -> None:
        """End all processes."""
        # Last started first: a standby must not take over while the others end.
        for worker in reversed(self._started):
            worker.abandon()

    @property
    def statuses(self) -> list[Status]:
        """The last status of each process; A was two of them."""
        return [*self.last.values(), *([] if self.killed is None else [self.killed])]

    @property
    def processed(self) -> dict[str, int]:
        """Flights by process; those that A had processed and not committed when it was killed count twice."""
        return {name: status.processed + self._before * (name == "a") for name, status in self.last.items()}

    # -- steps --------------------------------------------------------------------------------------------------------

    def _start_two(self) -> None:
        # B is held until A has every task, so that it is seen to get half of them.
        a, b = self._start("a"), self._start("b", held=True)
        self._wait("A to run every task", lambda: len(self.last["a"].tasks("active")) == TASKS)
        self.display.event(f"A (pid {a.pid}) runs all {TASKS} tasks")
        b.release()
        self._wait("A and B to share the tasks", lambda: is_shared(self._now("a", "b")))
        # From here on a take-over would spoil the figures; one before has been evened out.
        self._watched_from = max(one.generation for one in self._now("a", "b"))
        self.display.event(f"B (pid {b.pid}) joined: {self._halves()}")

    def _scale_out(self) -> None:
        c = self._start("c", held=True)
        self._feed_to = self.feeder.total * 5 // 8  # the others are for after the kill, however long C takes
        self._wait("a quarter of the flights", lambda: self._committed >= self.feeder.total // 4)
        began_ms = self.clock.monotonic_ms()
        c.release()

        self._wait("C to get its share", lambda: is_shared(self._now(*NAMES)))
        moved = self.last["c"].tasks("active")
        took_ms = max(times("running", moved, self._now("c"), began_ms)) - began_ms
        pause_ms = max(pauses(self.last["c"], self._now("a", "b")))
        self.found["scale_out"] = {"tasks": len(moved), "took_ms": took_ms, "longest_pause_ms": pause_ms}
        self.display.event(
            f"C (pid {c.pid}) joined and took {len(moved)} of {TASKS} tasks by warm hand-overs within "
            f"{took_ms / 1_000:.2f} s; a task was processed nowhere for {duration_text(pause_ms)} at most"
        )

    def _kill(self) -> int:
        self._wait("half of the flights", lambda: self._committed >= self.feeder.total // 2)
        # The last eighth is for after the kill: else A's tasks might have no record left, and the first one is awaited.
        self._feed_to, reached = self.feeder.total * 7 // 8, self.last["a"].processed

        def in_the_middle() -> bool:
            # On a busy machine all that may be fed is committed between two looks, and no more comes before the kill.
            at_work = self.feeder.fed > self._committed or self.feeder.fed >= self._feed_to
            return self.last["a"].processed > reached and at_work

        # As much as may wait, so that A has work in hand that is lost, and the others have work at once.
        self._wait("A to be in the middle of its work", in_the_middle, slices=SLICE_PARTS)
        worker, self._watched_from = self._live.pop("a"), None
        at_ms = worker.kill()
        # With the reports that were still in the pipe.
        self.killed, self.last["a"], self._before = worker.last, Status(), worker.last.processed
        self.finals = self.view.finals()
        self.display.event(
            f"kill -9 A, which runs {len(self.killed.tasks('active'))} tasks: {self._committed:,} of "
            f"{self.feeder.total:,} flights committed, {self.feeder.fed - self._committed:,} waiting in the log",
            loud=True,
        )
        return at_ms

    def _until_taken_over(self, at_ms: int) -> None:
        assert self.killed is not None
        tasks, committed, fed = self.killed.tasks("active"), self._committed, self.feeder.fed
        processed, before = sum(self.processed.values()), self._now("b", "c")
        self._feed_to = 0

        def entered(state: str) -> list[int]:
            """Milliseconds after the kill, of each of its tasks that has entered the state."""
            return [entered_ms - at_ms for entered_ms in times(state, tasks, self._now("b", "c"), at_ms)]

        def taken() -> bool:
            # Nothing is fed before: A may have left a transaction open, and its offsets are waited for.
            if entered("restoring"):
                self._feed_to = self.feeder.total
            return len(entered("running")) == len(tasks) and bool(entered("first"))

        self._wait("B and C to take over", taken)
        after = self._now("b", "c")

        def grown(name: str, part: str) -> float:
            old, new = (sum(float(one.counter(name, part)) for one in found) for found in (before, after))
            return new - old

        running_ms, replayed = max(entered("running")), sum(one.standby_records for one in before)
        self.found["takeover"] = {
            "tasks": len(tasks),
            "processed": max(processed, committed),  # a status may be older than the last commit
            "committed": committed,
            "waiting": fed - committed,
            "lease_ms": self.settings.lease_ms,
            # From the SIGKILL until the lease had run out and a leader had decided, all ran, one had a flight.
            "to_restoring_ms": min(entered("restoring")),
            "to_running_ms": running_ms,
            "to_first_record_ms": min(entered("first")),
            "standby_replayed": replayed,
            "tail_replayed": int(grown("restored", "records")),  # behind the gate
            "gate_waits": int(grown("gate_wait_seconds", "count")),
            "gate_wait_ms": round(grown("gate_wait_seconds", "sum") * 1_000),
        }
        self.display.event(
            f"B and C took its {len(tasks)} tasks over within {running_ms / 1_000:.2f} s (lease "
            f"{self.settings.lease_ms / 1_000:.1f} s): standbys had replayed {replayed:,} changes before, "
            f"{self.found['takeover']['tail_replayed']:,} were left",
            loud=True,
        )

    def _until_end(self) -> None:
        self._start("a")
        self._wait("every flight", lambda: self.feeder.done and self.view.settled(self.feeder.total))
        done_ms, self._feed_to = self.clock.monotonic_ms(), 0
        self.display.event(f"all {self.feeder.total:,} flights are committed")
        self._wait("A to be back", lambda: is_whole(self._now(*NAMES), done_ms))
        # A processed at least the flights that no other process did: its last report is older than its last commit.
        self._before = max(self._before, self.feeder.total - sum(one.processed for one in self.last.values()))
        back = self.last["a"]
        self.returned = len(back.tasks("active"))
        self.display.event(
            f"A came back, replayed the {back.standby_records:,} changes it had missed, and got {self.returned} tasks"
        )

    def _scale_in(self) -> None:
        self._live.pop("c").stop()
        gone_ms = self.clock.monotonic_ms()
        self._wait("A and B to have every row", lambda: is_whole(self._now("a", "b"), gone_ms))
        self.display.event(f"C left: {self._halves()}")
        address = self.last["b"].metrics
        self.found["metrics"] = {"address": address, "samples": count_samples(address) if address else 0}
        self._live.pop("a").stop()
        self._wait("B to run every task", lambda: has_all(self.last["b"]))
        self._live.pop("b").stop()
        self.display.event("all processes stopped cleanly")

    # -- the processes ------------------------------------------------------------------------------------------------

    def _start(self, name: str, *, held: bool = False) -> Worker:
        port = self.metrics_port if name == "b" else 0  # B is the one that lives to the end
        worker = Worker(self.folder, name, self.log, self.settings, self.clock, port, held=held)
        self._live[name] = worker
        self._started.append(worker)
        return worker

    def _look(self) -> None:
        lost = ""
        for name, worker in self._live.items():
            status = worker.status()
            if self._watched_from is not None and status is not self.last[name]:
                lost = status.taken_over(self._watched_from)
            if lost:
                raise Unavailable(
                    f"task {lost} was taken over before A was killed: a process was held up for longer "
                    f"than its lease of {self.settings.lease_ms} ms; run the demo again while the machine is less "
                    "busy, or with a longer --lease-ms"
                )
            self.last[name] = status

    def _halves(self) -> str:
        loads = " and ".join(str(len(self.last[name].tasks("active"))) for name in ("a", "b"))
        return f"A and B run {loads} tasks, and each stands by for those of the other"

    def _now(self, *names: str) -> list[Status]:
        return [self.last[name] for name in names]

    # -- feeding and waiting ------------------------------------------------------------------------------------------

    def _feed(self, slices: int) -> None:
        """Write the next slices, as far as both groups of tasks keep up."""
        if not self._feed_to:
            return
        committed = self.view.committed()
        self._committed = sum(committed.values())
        # Behind the repartition topic as well: no window may get a flight later than the lead allows.
        room = min(self.feeder.room(committed), self.feeder.lead_max - self.view.backlog())
        slice_ = max(self.feeder.total // SLICE_PARTS, SLICE_RECORDS_MIN)
        self.feeder.feed(min(slices * slice_, room, self._feed_to - self.feeder.fed))

    def _wait(self, what: str, done: Callable[[], bool], *, slices: int = 1) -> None:
        moved: tuple[int, ...] = ()
        deadline_ms = 0
        while True:
            self._look()
            self._feed(slices)
            self._show()
            if done():
                return
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

    def _marks(self) -> tuple[int, ...]:
        marks = [self.feeder.fed, self._committed]
        for one in self.last.values():
            marks += [one.processed, one.standby_records, len(one.tasks("active")), len(one.tasks("standby"))]
        return tuple(marks)

    def _show(self) -> None:
        self.display.numbers(
            Numbers(
                total=self.feeder.total,
                fed=self.feeder.fed,
                processed=self.processed,
                killed=self.killed is not None and self.last["a"].at_ms < 0,  # until it has come back
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
