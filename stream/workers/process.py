"""One worker process, as its supervisor sees it: how far it has come, and its state by the kernel.

    started ── Ready: it has come to run() ── Opened: its session is open ── ended, after Closed, Failed, or neither

Rules of this file: one thread, as `pool.py`. A process knows nothing of its tasks.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from standfast.replication.progress import LeaseProgress
from standfast.store.process.program import ProgramProcess
from standfast.stream.snapshot_counts import SnapshotCounts
from standfast.stream.workers.protocol import (
    Asked,
    ClosedReport,
    Counted,
    FailedReport,
    OpenedReport,
    PauseOrder,
    Ready,
    Report,
    StateReport,
    command_line,
    counts_of,
)
from standfast.stream.workers.watch import ProcessFacts
from standfast.stream.workers.wishes import WISHES

TICK_HZ = os.sysconf("SC_CLK_TCK")
STOPPED, WORKING = frozenset("Tt"), frozenset("RD")  # of a thread: by a signal or a debugger; runs, waits for the disk


@dataclass(slots=True)
class WorkerProcess:
    """A process that runs the program, and the counters that it shares with this one.

    `opening` makes the order to open a session. A process has it as soon as it can take it, also a spare one.
    """

    child: ProgramProcess[Report]
    progress: LeaseProgress
    opening: Callable[[LeaseProgress], bytes]
    ready: bool = False  # it has come to run()
    opened: bool = False  # it has opened its session
    closed: bool = False  # it has closed its session, in order
    failed: FailedReport | None = None
    counts: SnapshotCounts = field(default_factory=SnapshotCounts)  # of its snapshots, as it last said
    wishes: list[str] = field(default_factory=list)  # its calls of stop(), pause() and resume(), not taken yet
    paused: bool | None = False  # whether it rests, by the last Pause that it got; None: by a call of its own
    line: socket.socket | None = None  # to its answers for the HTTP server, until that takes it

    def hear(self) -> list[StateReport]:
        """Take its words and its end: `child.ended` is set then. Returns the reports of its tasks."""
        states = []
        for report in self.child.poll():
            if isinstance(report, Ready):
                self.ready = True
                self.child.order(self.opening(self.progress))
            elif isinstance(report, OpenedReport):
                self.opened = True
            elif isinstance(report, ClosedReport):
                self.closed = True
            elif isinstance(report, FailedReport):
                self.failed = report
            elif isinstance(report, Counted):
                self._take(report)
            elif isinstance(report, Asked):
                self._wish(report.wish)
            else:
                states.append(report)
        return states

    def take_wishes(self) -> list[str]:
        """Its calls of stop(), pause() and resume() since the last call."""
        taken, self.wishes = self.wishes, []
        return taken

    def pause(self, on: bool) -> None:
        """Have it process nothing, or go on, unless it does so already."""
        if self.ready and self.paused is not on:
            self.paused = on
            self.child.order(command_line(PauseOrder(on)))

    def _wish(self, wish: str) -> None:
        if wish not in WISHES:
            self.child.give_up(f"it asked for {wish!r:.100}, which there is not")
            return
        self.wishes.append(wish)
        # It has followed its own call, perhaps after an order that was on its way: it needs the next order in any case.
        self.paused = None

    def _take(self, report: Counted) -> None:
        try:
            self.counts = counts_of(report)
        except ValueError as error:
            self.child.give_up(f"it sent counts that there cannot be: {error}")

    def end(self) -> None:
        """Kill it, if it lives, and release the counters that it shares."""
        self.child.kill()
        self.progress.close()
        if self.line is not None:
            self.line.close()

    def take_line(self) -> socket.socket | None:
        """The line to its answers, which is the caller's from now on; None if there is none, or it was taken."""
        taken, self.line = self.line, None
        return taken


Starter: TypeAlias = Callable[[], WorkerProcess]  # raises OSError


def process_facts(pid: int) -> ProcessFacts:
    """The state of a process, all its threads included."""
    cpu_ms, states = 0, set()
    for path in (Path(f"/proc/{pid}/stat"), *Path(f"/proc/{pid}/task").glob("*/stat")):
        try:
            # The name before the last bracket may hold spaces.
            words = path.read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        cpu_ms = cpu_ms or (int(words[11]) + int(words[12])) * 1_000 // TICK_HZ  # of the whole process, which is first
        states.add(words[0])
    return ProcessFacts(cpu_ms, bool(states & STOPPED), bool(states & WORKING))
