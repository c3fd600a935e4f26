"""A program of a pool's workers that speaks their protocol by hand, for `test_worker_pool.py`.

    python pool_child.py HOW     obey: reports the tasks of its orders; mute: Ready, then stopped; exit: before Ready
                                 outage, wrong: Failed; rubbish: no report; holds: never gives a task back
                                 asks: as obey, its program pauses it when a task comes
                                 lingers: as obey, and is silent for LINGER_S between its last words and its end
    Under an order of a checkpoint it has cut the part of each of its tasks, and counts one snapshot.

Rules of this file: it opens no log and no store; it ends by itself, should a test leave it behind.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from standfast.replication.offsets import TaskId
from standfast.replication.pauses import Left
from standfast.replication.placement.checkpoint import Order, PartReport
from standfast.store.clock import SystemClock
from standfast.store.process.parent import Parent, lent_channel
from standfast.stream.snapshot_counts import SnapshotCounts
from standfast.stream.workers.orders import ACTIVE, RUNNING, STANDBY, ReportedTask
from standfast.stream.workers.protocol import (
    Asked,
    ClosedReport,
    FailedReport,
    FollowCheckpoint,
    HoldOrder,
    OpenedReport,
    OpenOrder,
    PauseOrder,
    Ready,
    Report,
    StopOrder,
    checkpoint_of,
    counted,
    order_of,
    parse_command,
    report_line,
    state,
)

LIFE_MAX_S = 120
LINGER_S = 3


class Child:
    def __init__(self, how: str) -> None:
        self.how = how
        channel = lent_channel()
        assert channel is not None
        self.parent = Parent(20, channel)
        self.held: dict[TaskId, ReportedTask] = {}
        self.since: dict[TaskId, int] = {}
        self.left: dict[TaskId, Left] = {}
        self.round = 0
        self.checkpoint: Order | None = None
        self.counts = SnapshotCounts()

    def tell(self, report: Report) -> None:
        self.parent.tell(report_line(report))

    def run(self) -> None:
        self.tell(Ready("pool"))
        if self.how == "mute":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.how == "rubbish":
            self.parent.tell(b'{"say": "nonsense"}\n')
        while True:
            for line in self.parent.orders(None):
                self.obey(line)

    def obey(self, line: bytes) -> None:
        command = parse_command(line)
        if isinstance(command, OpenOrder):
            if self.how in ("outage", "wrong"):
                kind = "Unavailable" if self.how == "outage" else "KeyError"
                self.tell(FailedReport(kind, "as the test wants it", ("a note",)))
                os._exit(1)
            self.tell(OpenedReport())
        elif isinstance(command, PauseOrder):
            print(f"worker paused: {command.on}", flush=True)
        elif isinstance(command, StopOrder):
            if self.how == "lingers":
                self.tell(ClosedReport())
                ctypes.PyDLL(None).sleep(LINGER_S)  # as an interpreter that ends: no thread of it goes on
            sys.exit(0)
        elif isinstance(command, HoldOrder):
            order = order_of(command)
            tasks = {task: ReportedTask(ACTIVE, RUNNING, 0, number) for task, number in order.active.items()}
            tasks |= {task: ReportedTask("standby", STANDBY, 3) for task in order.standby}
            if self.how == "holds":
                tasks = {**{task: one for task, one in self.held.items() if task not in tasks}, **tasks}
            now_ms = SystemClock().monotonic_ms()
            gone = [task for task, one in self.held.items() if one.role == ACTIVE and task not in tasks]
            self.left |= {task: Left(now_ms, 0) for task in gone}
            self.since = {task: self.since.get(task, now_ms) for task in order.active}
            if self.how == "asks" and not self.held:
                self.tell(Asked("pause"))
            self.held, self.round = dict(tasks), order.round
            self.report()
        elif isinstance(command, FollowCheckpoint):
            self.checkpoint = checkpoint_of(command)
            self.report()
            self.counts.made["made"] += 1
            self.counts.paused(20)
            self.tell(counted(self.counts))

    def report(self) -> None:
        """The tasks, and their parts of the checkpoint that came last."""
        active = frozenset(task for task, one in self.held.items() if one.role == ACTIVE)
        order = self.checkpoint
        parts = None if order is None else PartReport(order.number, order.step, active, active)
        self.tell(state(self.round, self.held, self.since, self.left, parts))


if __name__ == "__main__":
    signal.alarm(LIFE_MAX_S)
    if sys.argv[1] == "exit":
        sys.exit("this machine has no licence")
    Child(sys.argv[1]).run()
