"""The part of the demo with live processes: a second one joins, and the first one is killed in the middle.

    feed ─── a quarter ──── half ──────────────────────────── all ──────────────────> stop
    A  8 ─── 4 tasks ───── SIGKILL ····· comes back ── 4 ─────────────── stops
    B        4 ─────────────── takes over: 8 ───────── 4 ──────────────── 8 ──────── stops

Rules of this file: it starts, feeds, kills and waits; correctness is decided by the modules that compare. It
reads from the log alone which process runs which task. Every wait has a bound on how long nothing may move.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from standfast.ops.demo.board import TASKS, BoardSettings
from standfast.ops.demo.feeder import Feeder
from standfast.ops.demo.result import Json
from standfast.ops.demo.view import LogView, board_line
from standfast.ops.demo.worker import start
from standfast.replication.offsets import TaskId
from standfast.replication.pauses import PLANNED
from standfast.replication.placement.model import MoveKind
from standfast.replication.placement.seen import PlacementSeen, SeenMove
from standfast.store.clock import Clock
from standfast.store.errors import Unavailable
from standfast.store.process.child import ChildProcess
from standfast.store.timestamps import duration_text

STALL_MS_MAX = 60_000
STOP_MS_MAX = 15_000
POLL_MS = 20
SLICE_PARTS = 80
KILL_AFTER_MS = 50  # half of a commit interval after a slice
BOARDS = 4  # lines with the live board


@dataclass(slots=True)
class Course:
    """The part with live processes."""

    folder: Path
    log: str
    settings: BoardSettings
    feeder: Feeder
    view: LogView
    say: Callable[[str], None]
    advance: Callable[[int], None]  # gets numbers of committed flights
    clock: Clock
    _live: dict[str, ChildProcess[Any]] = field(default_factory=dict)
    _ids: dict[str, str] = field(default_factory=dict)  # of the instances, by process
    _seen: PlacementSeen = field(init=False)
    _committed: int = 0
    _boards: int = 0

    def run(self) -> Json:
        """Run from the start of A to the clean stop of both; parts of the demo's document.

        Leaves no process behind, whatever happens.
        """
        total = self.feeder.total
        try:
            self._look()
            self._start("a")
            self._until("A to run every task", lambda: len(self._tasks("a")) == TASKS)
            self.say(f"A runs all {TASKS} tasks")
            self._until("a quarter of the flights", lambda: self._committed >= total // 4, feed_to=total // 2)
            joined = self._joined("b", total // 2)
            self._until("half of the flights", lambda: self._committed >= total // 2, feed_to=total // 2)
            self._until("A and B to share the tasks", self._is_shared)
            takeover = self._fail_over()
            returned = self._joined("a", total)
            self._until("every flight", self._done, feed_to=total)
            self.say(f"all {total:,} flights are committed; {board_line(self.view.board())}")
            self._stop("a")
            self._until("B to run every task", lambda: len(self._tasks("b")) == TASKS)
            self._stop("b")
            self.say("both processes stopped cleanly")
            return {"joined": joined, "takeover": takeover, "returned": returned, "board": self.view.board()}
        finally:
            # Last started first: a standby must not take over while the others end.
            for child in reversed(self._live.values()):
                child.kill()

    # -- steps --------------------------------------------------------------------------------------------------------

    def _joined(self, name: str, feed_to: int) -> Json:
        """Start a process, until it has its share of the tasks; the flights go on meanwhile."""
        generation = self._seen.generation
        self._start(name)
        self._until(f"{name.upper()} to have its share", self._is_shared, feed_to=feed_to)
        pauses = [one.pause for one in self._moves(name, generation) if one.pause is not None]
        warm = sum(one.kind == PLANNED for one in pauses)  # a lease that ran out on a busy machine is none
        pause_ms = max((one.ms for one in pauses), default=0)
        self.say(
            f"{name.upper()} joined and took {warm} of {TASKS} tasks by warm hand-overs: "
            f"each was processed nowhere for {duration_text(pause_ms)} at most"
        )
        return {"tasks": warm, "longest_pause_ms": pause_ms}

    def _fail_over(self) -> Json:
        """Kill A in the middle of its work, until B runs all of its tasks."""
        total, waiting = self.feeder.total, 0
        finals = len(self.view.finals())  # takes its time: A is killed right after a slice
        while not waiting and self.feeder.fed < total:
            # Half of the lead, so that A has work in hand that is lost.
            self.feeder.feed(-(-self.feeder.lead // 2), total)
            self.clock.sleep_ms(KILL_AFTER_MS)
            self._look()
            waiting = self.feeder.fed - self._committed
        tasks, generation = self._tasks("a"), self._seen.generation
        killed_ms, killed_wall_ms = self.clock.monotonic_ms(), self.clock.wall_ms()
        self._live.pop("a").kill()
        committed = self._committed
        self.say(
            f"kill -9 A, which runs {len(tasks)} tasks: {committed:,} of {total:,} flights committed, "
            f"{waiting:,} waiting in the log"
        )
        self._until("B to take over", lambda: tasks <= self._tasks("b"))
        running_ms = self.clock.monotonic_ms() - killed_ms
        moves = [one for one in self._moves("b", generation) if one.moved.kind == MoveKind.TAKE_OVER]
        decided_ms = min((one.moved.at_ms for one in moves), default=killed_wall_ms)
        lacked = sum(int(one.moved.reason.facts.get("lag", 0)) for one in moves)
        self.say(
            f"B took its {len(tasks)} tasks over within {running_ms / 1_000:.2f} s: "
            f"its standbys lacked {lacked:,} changes"
        )
        return {
            "tasks": len(tasks),
            "committed": committed,
            "waiting": waiting,
            "finals_before": finals,
            # From the SIGKILL until the lease had run out and a leader had decided; until all ran at B.
            "to_decided_ms": decided_ms - killed_wall_ms,
            "to_running_ms": running_ms,
            "lacked": lacked,
        }

    def _done(self) -> bool:
        return self._committed >= self.feeder.total and self.view.board()["flights"] >= self.feeder.total

    # -- processes and tasks ------------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        self._live[name] = start(self.folder, name, self.log, self.settings, self.clock)

    def _stop(self, name: str) -> None:
        child = self._live.pop(name)
        os.kill(child.pid, signal.SIGTERM)
        child.wait(STOP_MS_MAX)
        self._check(name, child, wanted=0)

    def _check(self, name: str, child: ChildProcess[Any], wanted: int | None = None) -> None:
        if child.ended is not None and (child.ended.why or child.ended.code != wanted):
            words = child.ended.words or "(it wrote nothing)"
            raise Unavailable(f"process {name.upper()} ended with {child.ended}; its last words:\n{words}")

    def _tasks(self, name: str) -> set[TaskId]:
        """The tasks that run in a process."""
        instance = self._ids.get(name)
        return {one.task for one in self._seen.tasks if one.state == "running" and one.active == instance}

    def _is_shared(self) -> bool:
        """Whether each process runs half of the tasks, and stands by for those of the other."""
        both = {self._ids.get("a"), self._ids.get("b")}
        copied = [one for one in self._seen.tasks if both == {one.active, *_standbys(one.copies)}]
        return len(copied) == TASKS and all(len(self._tasks(name)) == TASKS // 2 for name in ("a", "b"))

    def _moves(self, name: str, after: int) -> list[SeenMove]:
        """The moves to a process since a generation."""
        found = (one for one in self._seen.moves if one.moved.target == self._ids.get(name))
        return [one for one in found if one.moved.generation > after]

    # -- feeding and waiting ------------------------------------------------------------------------------------------

    def _look(self) -> None:
        for name, child in self._live.items():
            child.poll()
            self._check(name, child)
        self._seen = self.view.placement()
        self._ids |= {one.tags["process"]: one.id for one in self._seen.instances if one.state == "live"}
        committed = sum(self.view.committed().values())
        self.advance(committed - self._committed)
        self._committed = committed
        board = self.view.board()
        if board["flights"] * BOARDS // max(self.feeder.total, 1) > self._boards:
            self._boards += 1
            self.say(board_line(board))

    def _until(self, what: str, done: Callable[[], bool], feed_to: int = 0) -> None:
        """Feed the flights up to a number until it is done; nothing is fed after a kill until its tasks run again."""
        marks: tuple[int, ...] = ()
        deadline_ms = 0
        while True:
            self._look()
            self.feeder.feed(-(-self.feeder.total // SLICE_PARTS), feed_to)
            if done():
                return
            # The deadline moves with any progress, so that a slow machine is not taken for a stalled demo.
            now_ms = self.clock.monotonic_ms()
            now = (self.feeder.fed, self._committed, self._seen.generation, self._boards)
            if now != marks:
                marks, deadline_ms = now, now_ms + STALL_MS_MAX
            elif now_ms > deadline_ms:
                raise Unavailable(
                    f"the demo made no progress for {duration_text(STALL_MS_MAX)} while it waited for {what}: "
                    f"see the logs in {self.folder}"
                )
            self.clock.sleep_ms(POLL_MS)


def _standbys(copies: Iterable[Any]) -> set[str]:
    """The instances of the copies that follow."""
    return {one.instance for one in copies if one.role == "standby" and one.lag is not None}
