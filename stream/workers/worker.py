"""A worker process: the application's loop over the tasks that its supervisor orders.

    run() ── Ready ──> supervisor ── Open ──> session (lent directory) ── Opened ──> Hold ... Stop
    main thread        Loop.poll_once, as in an application of one process
    orders thread      orders ──> session;  tasks of the session ──> State
    threads of answers with an HTTP server of the supervisor: status and rows, through a line of their own

The program has come to `run()` as it does without workers: the same file, the same declarations. Here it never returns:
after Stop the process exits, and after an error the supervisor gets it and decides.

Rules of this file: signals are the supervisor's: a service manager sends them to all processes at once, and a worker
must not end before the supervisor has its last report. The process ends at once when the supervisor does.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from typing import NoReturn, Protocol

from standfast.replication.offsets import TaskId
from standfast.replication.placement.checkpoint import PartReport
from standfast.replication.progress import LeaseProgress
from standfast.store.clock import Clock
from standfast.store.errors import BadConfig, InternalError, InvalidRequest, Unavailable
from standfast.store.log import as_event, logger
from standfast.store.outside import process_id
from standfast.store.process.interrupts import Flag
from standfast.store.process.parent import Parent, ParentChannel
from standfast.store.task.state_dir import StateDir
from standfast.stream.http_servers import http_servers
from standfast.stream.runtime.loop import Loop
from standfast.stream.task.groups import program_of
from standfast.stream.topology.assembly import Assembled
from standfast.stream.workers.orders import ReportedTask
from standfast.stream.workers.protocol import (
    Asked,
    ClosedReport,
    Counted,
    FailedReport,
    FollowCheckpoint,
    GateOrder,
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
from standfast.stream.workers.session import WorkerSession
from standfast.stream.workers.watch import beat_ms

POLL_MS = 50
LOOK_MS, QUICK_LOOK_MS = 50, 2  # between two looks at the tasks; while an order is being carried out
STAND_LOOK_MS = 5  # while tasks stand still for a checkpoint: each look builds a report of all tasks
LAGS_MS = 500  # at most so often a report that has new lags and nothing else
COUNTS_MS = 1_000  # at most so often the counts of snapshots
NOTE_MAX = 8_000  # characters of a traceback in a message


class WorkerHost(Protocol):
    """The application of this process."""

    name: str
    clock: Clock
    lease_ms: int
    wishes: deque[str]  # calls of stop(), pause() and resume() in this process, oldest first

    @property
    def rests(self) -> bool: ...
    def pause(self, on: bool) -> None: ...
    def facts(self) -> dict[str, str]: ...
    def assemble(self) -> Assembled: ...
    def session(
        self, assembled: Assembled, state_dir: StateDir, progress: LeaseProgress, workers: int
    ) -> WorkerSession: ...
    def loop(self, session: WorkerSession, assembled: Assembled) -> Loop: ...


_processes: set[int] = set()  # the id of this process once it was a worker; a forked child has another


def refuse_second_run(name: str) -> None:
    """Raise InvalidRequest in a process that was a worker: its supervisor has ended it, and run() never returned."""
    if process_id() in _processes:
        raise InvalidRequest(
            f"application {name!r}: this process was a worker and is to end; run() does not return in a worker, so let "
            "SystemExit pass"
        )


def run_worker(host: WorkerHost, channel: ParentChannel) -> NoReturn:
    """Be a worker until the supervisor stops it; then the process exits."""
    _processes.add(process_id())
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
    parent = Parent(beat_ms(host.lease_ms), channel)
    try:
        _Worker(host, parent).run()
    except BaseException as error:  # noqa: BLE001 - the supervisor gets it, and the program must not go on
        if not isinstance(error, Unavailable):  # of an outage the message says all
            logger.exception("worker of application %s ends", host.name, extra=as_event("worker_failed", app=host.name))
        parent.tell(report_line(_failed(error)))
        _flush()
        os._exit(1)  # without waiting for threads that may hang
    _flush()
    if threading.current_thread() is not threading.main_thread():
        os._exit(0)
    raise SystemExit(0)


def _failed(error: BaseException) -> FailedReport:
    notes = list(getattr(error, "__notes__", ()))
    trace = "".join(traceback.format_exception(error)).strip()
    return FailedReport(type(error).__name__, str(error), (*notes, trace[-NOTE_MAX:]))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue


class _Worker:
    """One life of a worker."""

    def __init__(self, host: WorkerHost, parent: Parent) -> None:
        self._host = host
        self._parent = parent
        self._stop = Flag()
        self._error: BaseException | None = None
        self._told: tuple[int, dict[TaskId, tuple[str, str, int]], PartReport | None, str] | None = None
        self._told_tasks: dict[TaskId, ReportedTask] = {}
        self._lags_ms = 0
        self._told_counts: Counted | None = None
        self._counts_ms = 0

    def run(self) -> None:
        """Open, process until Stop, commit and close."""
        host = self._host
        self._tell(Ready(host.name))
        order = self._await_open()
        if order is None:
            return
        _check(host, order)
        assembled = host.assemble()
        if (program := program_of(assembled.groups)) != order.program:
            raise BadConfig(
                [
                    f"a worker declares other groups, source topics or stores than its supervisor "
                    f"({program} and {order.program}): the program must declare the same each time it runs"
                ]
            )
        progress = LeaseProgress(fd=order.words)
        for handle in (order.lock, order.words, *([] if order.line < 0 else [order.line])):
            os.set_inheritable(handle, False)
        state_dir = StateDir.lent(order.state_root, host.name, order.lock, order.instance)
        session = host.session(assembled, state_dir, progress, order.workers)
        session.alone = order.alone
        logger.info(
            "application %s: process %d is ready for tasks of instance %s", host.name, process_id(), order.instance,
            extra=as_event("worker_runs", app=host.name, pid=process_id()),
        )  # fmt: skip
        try:
            session.connect()
            if order.line >= 0:
                http_servers().answer(session, socket.socket(fileno=order.line))
            self._work(session, host.loop(session, assembled))
        except BaseException:
            try:
                session.close()
            except Exception:  # noqa: BLE001 - the first error stays the reason
                logger.exception("a worker of %s: closing failed, after the error that ends it", host.name,
                                 extra=as_event("close_failed"))  # fmt: skip
            raise
        session.close()
        # For the next owners, which count their pauses from the last commits here.
        self._tell(state(0, {}, *session.times()))
        self._tell(ClosedReport())

    def _work(self, session: WorkerSession, loop: Loop) -> None:
        self._tell(OpenedReport())
        threading.Thread(target=self._follow, args=(session,), name="standfast-orders", daemon=True).start()
        try:
            while not self._stop.is_set():
                loop.paused = self._host.rests
                loop.poll_once(POLL_MS)
            if self._error is not None:
                raise self._error
            loop.commit_all()
        finally:
            loop.close()

    def _await_open(self) -> OpenOrder | None:
        """The first order; None if it is to stop."""
        while True:
            for line in self._parent.orders(None):
                command = parse_command(line)
                if isinstance(command, OpenOrder):
                    return command
                if isinstance(command, StopOrder):
                    return None
                raise InternalError("a worker received tasks before its session was opened")

    def _follow(self, session: WorkerSession) -> None:
        """The body of the orders thread."""
        try:
            while not self._stop.is_set():
                calm_ms = STAND_LOOK_MS if session.stands else LOOK_MS
                for line in self._parent.orders(calm_ms if session.settled else QUICK_LOOK_MS):
                    self._obey(session, line)
                while self._host.wishes:
                    self._tell(Asked(self._host.wishes.popleft()))
                self._look(session)
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self._error = error
            self._stop.set()

    def _obey(self, session: WorkerSession, line: bytes) -> None:
        command = parse_command(line)
        if isinstance(command, HoldOrder):
            session.order(order_of(command))
        elif isinstance(command, GateOrder):
            session.join_gate(command)
        elif isinstance(command, FollowCheckpoint):
            session.follow_checkpoint(checkpoint_of(command))
        elif isinstance(command, PauseOrder):
            self._host.pause(command.on)
        elif isinstance(command, StopOrder):
            self._stop.set()
        else:
            raise InternalError("a worker was to open a second session")

    def _look(self, session: WorkerSession) -> None:
        """Report the tasks if anything is new; new lags alone wait for their interval."""
        round_, tasks = session.report()
        parts, no_room = session.parts(), session.no_room
        now_ms = self._host.clock.monotonic_ms()
        self._count(session, now_ms)
        told = (round_, {task: (one.role, one.state, one.opening) for task, one in tasks.items()}, parts, no_room)
        lags_due = now_ms >= self._lags_ms and tasks != self._told_tasks
        if told == self._told and not lags_due:
            return
        self._told, self._told_tasks, self._lags_ms = told, dict(tasks), now_ms + LAGS_MS
        self._tell(state(round_, tasks, *session.times(), parts, no_room))

    def _count(self, session: WorkerSession, now_ms: int) -> None:
        """Report the counts of snapshots, if they have changed and their interval is over."""
        if now_ms < self._counts_ms:
            return
        self._counts_ms = now_ms + COUNTS_MS
        counts = counted(session.counters.snapshots)
        if counts != self._told_counts:
            self._told_counts = counts
            self._tell(counts)

    def _tell(self, report: Report) -> None:
        self._parent.tell(report_line(report))


def _check(host: WorkerHost, order: OpenOrder) -> None:
    """Raise BadConfig if the program runs another application, or with other settings, than its supervisor."""
    if order.app != host.name:
        raise BadConfig(
            [
                f"a worker of application {order.app!r} came to run() of application {host.name!r}: a program with "
                "workers runs one application; give each application a program of its own"
            ]
        )
    given = {"log": order.log, "state_dir": order.state_root, "guarantee": order.guarantee}
    differ = [name for name, one in host.facts().items() if one != given[name]]
    if differ:
        raise BadConfig(
            [
                f"a worker of application {host.name!r} has another {' and '.join(differ)} than its "
                "supervisor: the program must give the same settings each time it runs"
            ]
        )
