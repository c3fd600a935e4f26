"""The standby worker of a sidecar: restores and standbys, so that they never share the interpreter with the servers.

    server ── Hold ──> assign(active, standby) of a session on the same state directory ── State ──> server

Rules of this file: a process around a Session; the server decides which tasks it holds. It ends at once when the
server does (`Parent`), because changes that are not durable here are in the log; on Stop it closes cleanly.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from standfast.ops.observe.status import status_document
from standfast.ops.shared.control_stores import spec_of
from standfast.ops.sidecar.worker.moves import FENCED, Holding
from standfast.ops.sidecar.worker.protocol import (
    HoldTails,
    OpenTails,
    ReadRows,
    StopTails,
    TailsFailed,
    TailsState,
    parse_order,
    report_line,
)
from standfast.ops.sidecar.worker.session import SidecarSession
from standfast.replication.log import Log
from standfast.replication.offsets import TaskId
from standfast.replication.shapes import replace
from standfast.replication.tail.open_log import open_log
from standfast.restore.snapshot.policy import SnapshotPolicy
from standfast.store.clock import SystemClock
from standfast.store.errors import InternalError, StandfastError, is_of_log
from standfast.store.log import as_event, logger, print_as_parent
from standfast.store.process.parent import Parent
from standfast.store.task.state_dir import StateDir
from standfast.stream.session.session import Session
from standfast.stream.task.states import GONE
from standfast.stream.task.statistics import SessionStatistics
from standfast.stream.task.task import Task

LOOK_MS = 20
STATUS_MS = 500
# From a thread of its own: a log that does not answer is no reason to start the worker again.
BEAT_MS = 1_000


class TailWorker:
    """A session, and its reports to the server."""

    def __init__(self, session: SidecarSession, send: Callable[[bytes], None] | None = None) -> None:
        """`send` reports while an assignment is under way, which lasts as long as the download of a snapshot."""
        self._session = session
        self._send = send
        self._clock = SystemClock()
        self._round = 0
        self._order: HoldTails | None = None  # the order that is not carried out yet
        self._wanted = HoldTails(0, (), ())  # the last order that was carried out
        self._error = ""
        self._behind: dict[int, int] = {}
        self._status_ms = 0
        self._told: TailsState | None = None

    def hold(self, order: HoldTails) -> None:
        """Carry an order out; if the log does not answer, the next look tries again."""
        self._order = order
        self._try()

    def look(self) -> TailsState | None:
        """The state for the server, or None if nothing changed."""
        if self._order is not None:
            self._try()
        now_ms = self._clock.monotonic_ms()
        status = None
        if now_ms >= self._status_ms:
            self._status_ms = now_ms + STATUS_MS
            try:
                statistics = self._session.statistics()
                self._behind = behind(statistics)
                status = status_document(statistics)
            except StandfastError as error:
                if not is_of_log(error):
                    raise
                logger.warning("standby worker: the log did not answer: %s", error, extra=as_event("log_away"))
        # Makes no call to the log: its errors are the end of the session's background work, and so of this process.
        tasks = self._session.all_tasks()
        failed = [task for task in tasks.values() if task.state in GONE]
        if failed:
            self._session.open_failed()
        errors = "; ".join(str(task.error) for task in failed)
        state = TailsState(self._round, self._holdings(tasks), self._error or errors)
        if status is None and state == self._told:
            return None
        self._told = state
        return replace(state, status=status)

    def _try(self) -> None:
        order = self._order
        assert order is not None
        try:
            with self._telling():
                self._session.hold(order.active, order.standby)
        except StandfastError as error:
            if not is_of_log(error):
                raise
            self._error = str(error)
            return
        self._error = ""
        self._wanted = order
        self._order, self._round = None, order.round
        self._status_ms = 0  # the remaining records of the new tasks are read now

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Report the downloads of this assignment: `look`, which reports everything, comes after it."""
        done = threading.Event()
        telling = threading.Thread(target=self._tell_downloads, args=(done,), name="standfast-downloads", daemon=True)
        if self._send is not None:
            telling.start()
        try:
            yield
        finally:
            done.set()
            if telling.is_alive():
                telling.join()  # a report of it after that of `look` would show a download that has ended

    def _tell_downloads(self, done: threading.Event) -> None:
        told = self._told or TailsState(self._round, {})
        while not done.wait(STATUS_MS / 1_000):
            try:
                statistics = self._session.statistics()
            except StandfastError as error:  # `look` meets it, too, and decides
                logger.warning("standby worker: no status: %s", error, extra=as_event("status_unread"))
                return
            if statistics.downloads and self._send is not None and not done.is_set():
                self._send(report_line(replace(told, status=status_document(statistics))))

    def _holdings(self, tasks: Mapping[TaskId, Task]) -> dict[int, Holding]:
        held = {}
        for partition in (*self._wanted.active, *self._wanted.standby):
            # Only another instance takes a task away from here, through the log.
            held[partition] = Holding("active" if partition in self._wanted.active else "standby", FENCED)
        for task_id, task in tasks.items():
            # A standby counts as far until its lag is known: a wrong "near" would have the server replay it.
            unknown = 0 if task.state.value == "running" else 1 << 62
            held[task_id.partition] = Holding(task.role, task.state.value, self._behind.get(task_id.partition, unknown))
        return held


def behind(statistics: SessionStatistics) -> dict[int, int]:
    """Records to replay by partition, of tasks that restore or stand by."""
    found: dict[int, int] = {}
    for task in statistics.tasks:
        if task.state == "standby":
            found[task.partition] = sum(store.lag for store in task.stores)
    for restore in statistics.restores:
        found[restore.partition] = found.get(restore.partition, 0) + restore.remaining
    return found


class TailWorkerSession(SidecarSession):
    """A session that also cares for the log in the server's place."""

    cares_for = ""
    begins_with_snapshots = False
    _keeps_snapshots = False  # its active tasks are on their way to the server, which makes them

    def _open_log(self, address: str) -> Log:
        # A worker that starts while the log's file is away must not make an empty one in its place.
        return open_log(address, clock=self.clock, patient=False, create=False)

    def _cares_for(self, leader: str) -> bool:
        return leader in (self.instance_id, self.cares_for)


def open_session(order: OpenTails) -> TailWorkerSession:
    """The session that an order describes."""
    # A worker of a killed server keeps this lock until it ends, and a new server waits for it.
    state = StateDir.lent(order.state_root, order.app, order.lock, order.member)
    settings = dict(order.settings)
    policy = settings.pop("snapshots", None)
    settings["snapshots"] = None if policy is None else SnapshotPolicy(**policy)
    session = TailWorkerSession(
        order.app,
        log=order.log,
        state_dir=state,
        stores=[spec_of(shape) for shape in order.stores],
        # The worker only follows the server's orders.
        take_over=False,
        discovery_interval_ms=None,
        **settings,
    )
    session.cares_for = order.cares_for
    session.begins_with_snapshots = policy is not None and bool(policy["restore"])
    return session


def main(parent: Parent) -> int:
    """Serve the orders of the server."""
    worker: TailWorker | None = None
    ask: Callable[[ReadRows], None] | None = None
    session: TailWorkerSession | None = None
    while True:
        for line in parent.orders(LOOK_MS):
            order = parse_order(line)
            if isinstance(order, StopTails):
                if session is not None:
                    session.close()
                return 0
            if isinstance(order, OpenTails):
                session = open_session(order)
                worker = TailWorker(session, parent.tell if session.begins_with_snapshots else None)
            elif worker is None or session is None:
                raise InternalError("the standby worker received tasks before its session was opened")
            elif isinstance(order, ReadRows):
                ask = ask or reader_of(session, parent)
                ask(order)
            else:
                worker.hold(order)
        if worker is not None:
            state = worker.look()
            if state is not None:
                parent.tell(report_line(state))


def reader_of(session: Session, parent: Parent) -> Callable[[ReadRows], None]:
    """The function that answers reads; its modules are loaded with the first read, so that workers start sooner."""
    from standfast.ops.http.rows import Rows
    from standfast.ops.sidecar.worker.reader import RowsReader

    return RowsReader(Rows(session), lambda rows: parent.tell(report_line(rows))).ask


def run() -> int:
    """Run `main`, and report any error that ends it to the server."""
    parent = Parent(BEAT_MS)
    print_as_parent()
    try:
        return main(parent)
    except BaseException as error:  # noqa: BLE001  the outermost frame: the server gets it and starts another
        if not is_of_log(error):  # else the message says all, and the server logs it
            logger.exception("the standby worker ends", extra=as_event("process_failed"))
        try:
            parent.tell(report_line(TailsFailed(type(error).__name__, str(error))))
        finally:
            os._exit(1)  # without waiting for threads that may hang


if __name__ == "__main__":
    raise SystemExit(run())
