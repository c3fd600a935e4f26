"""The control plane: the application's assignment, and the thread that carries it out.

    HTTP ── call(job) ──> [ control thread: declare, assign, revoke, schedule ... ] ── every TICK_MS: tick ──┐
    servers <── TaskTable, Engine (on the event loop) <── opened, closing <── TaskMover <── session, workers <─┘

Rules of this file: one thread makes all calls that may block (opening, assigning, closing), one job at a time; it gives
the event loop only short jobs and waits for them. The application decides the tasks, the plane follows; a task is in
the table of the servers before it opens there and out of it before it closes.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from functools import partial
from typing import TypeVar

from standfast.ops.config.types import Config
from standfast.ops.observe.health import RestoringHealth
from standfast.ops.observe.verdict import duration
from standfast.ops.shared.control_stores import Conflict, declare
from standfast.ops.shared.error_codes import CONFLICT, DRAINING, RESTORING, Refused, message_of, reason_of
from standfast.ops.sidecar.control import assignment as assignments
from standfast.ops.sidecar.control.assignment import ApplicationLease, WantedTasks
from standfast.ops.sidecar.control.events import Events
from standfast.ops.sidecar.control.log_watch import SidecarLogWatch
from standfast.ops.sidecar.control.schema import Assignment, Revoke, Stores, given
from standfast.ops.sidecar.control.session import ControlSession
from standfast.ops.sidecar.control.timers import SidecarTimers
from standfast.ops.sidecar.engine.engine import TaskEngine
from standfast.ops.sidecar.engine.task_table import TableMoment, TaskTable
from standfast.ops.sidecar.worker.session import HeldTasks
from standfast.replication.shapes import plain
from standfast.replication.tail.open_log import disk_guard
from standfast.store.clock import Clock
from standfast.store.errors import (
    DiskFull,
    Fenced,
    InternalError,
    InvalidRequest,
    Unavailable,
    is_of_log,
)
from standfast.store.log import as_event, logger
from standfast.store.names import few
from standfast.store.specs import StoreSpec
from standfast.store.task.state_dir import StateDir
from standfast.store.timestamps import duration_text
from standfast.stream.task.states import GONE

T = TypeVar("T")
TICK_MS = 20
LOOP_S_MAX = 30.0
PROGRESS_MS = 500
DISK_MS = 500
LOCKED_MS_MAX = 5_000  # a reader in the middle of a step releases a directory within it
PRESSURE = 0.8  # share of the limit of uncommitted writes
Partitions = frozenset[int]


class ControlPlane:
    """The sidecar but for its servers. Methods run in the control thread (through `call`), but for those marked."""

    def __init__(self, config: Config, state: StateDir, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        assert config.app.name is not None
        self.config = config
        self.clock = clock
        self.watch = SidecarLogWatch(lambda: self.session.session.log if self.session.is_open else None, clock)
        self.table = TaskTable(self.watch.now)
        self.engine = TaskEngine(self.table, clock, source_group=config.app.name)
        self.engine.trouble = self.watch.now
        self.events = Events(loop)
        self.timers = SidecarTimers(clock, self.events)
        self.wanted = WantedTasks()
        self.lease = ApplicationLease()
        self._beat = (-1, 0)  # generation and time of the last heartbeat
        self._abandoned = False  # whether the end of the lease closed tasks
        self.specs: tuple[StoreSpec, ...] = config.stores
        self.partitions = config.app.partitions
        self.disk = disk_guard(state.path, config.app.log, config.state.disk_floor_bytes)
        self.session = ControlSession(config, state, clock, self._closing, self.disk)
        self.draining = False
        self.fatal: BaseException | None = None
        self.heard_ms = clock.monotonic_ms()
        self.pending: Sequence[RestoringHealth] = ()  # active tasks that are not whole, as of the last round
        self._loop = loop
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._fenced: dict[int, str] = {}
        self._told: dict[int, str] = {}
        self._progress_ms = 0
        self._disk_ms = 0
        self._locked_ms: int | None = None  # since when this process holds a directory that it does not use
        self._pressed: Partitions = frozenset()
        self._thread = threading.Thread(target=self._run, name="standfast-control", daemon=True)

    # -- from any thread ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()
        self.watch.start()

    def call(self, job: Callable[[], T]) -> Future[T]:
        """Run a job in the control thread."""
        return _given_to(self._jobs.put, job)

    def heartbeat(self, generation: int) -> ApplicationLease:
        """Renew the lease, as of now, however long the control thread is busy. On the event loop.

        Raises Fenced if it is over, or of another generation.
        """
        now_ms = self.clock.monotonic_ms()
        lease = self._lease_heard()
        assignments.check_generation(self.wanted, lease, generation)
        if lease.is_over(now_ms):  # the next round closes the tasks
            raise assignments.StaleGeneration("the lease is over: assign under a larger generation")
        # One tuple, replaced whole: the control thread reads it without a lock.
        self._beat = (generation, now_ms)
        return lease

    def idle(self) -> str:
        """`lease of generation 7 ended 12 s ago`, if that closed tasks or the next round will; else empty."""
        now_ms, lease = self.clock.monotonic_ms(), self._lease_heard()
        abandoned = self._abandoned if lease.ended else lease.is_over(now_ms) and bool(self.wanted.tasks)
        if not abandoned or lease.until_ms is None:
            return ""
        seconds = (now_ms - lease.until_ms) // 1_000
        ago = f"{seconds} s" if seconds < 90 else duration(seconds)
        return f"lease of generation {self.wanted.generation} ended {ago} ago"

    @property
    def ready(self) -> bool:
        """Whether the application may process, as far as tasks go: active tasks are whole, and their lease runs."""
        table = self.table.now
        return not (table.missing or table.fenced or self.draining or self.idle() or self.watch.now())

    @property
    def log_trouble(self) -> str:
        """`UNAVAILABLE: log ...` or `CORRUPT: log ...`; empty if the log can be used."""
        found = self.watch.now()
        return "" if found is None else f"{reason_of(found).name}: {message_of(found)}"

    def stop(self) -> None:
        """End the threads, after the jobs that wait."""
        self.watch.stop()
        self._jobs.put(None)

    def join(self) -> None:
        """Wait for the thread."""
        self._thread.join()

    # -- requests of the application ----------------------------------------------------------------------------------

    def declare(self, body: Stores) -> dict[str, str]:
        """Declare stores; by name `created` or `unchanged`. Raises InvalidRequest, Refused CONFLICT."""
        self._refuse_draining()
        partitions = given(body.partitions, self.partitions)
        try:
            declared = declare(self.specs, plain(body.stores))
            # The session of the tasks would have to be opened again with the new stores, under open tasks.
            if (declared.created or partitions != self.partitions) and self.wanted.tasks:
                raise Conflict(
                    f"{few(declared.created) or 'the number of partitions'} cannot be declared while tasks are "
                    "assigned: declare every store before the first assignment, or revoke all tasks first"
                )
        except Conflict as error:
            raise Refused(CONFLICT, str(error)) from error
        if declared.created or partitions != self.partitions or not self.session.is_open:
            self.session.reopen(declared.specs, partitions)
            self.specs, self.partitions = declared.specs, partitions
        return {one.name: "created" if one.name in declared.created else "unchanged" for one in body.stores}

    def assign(self, body: Assignment) -> None:
        """Hold exactly these tasks from now on. Raises Fenced for a generation that is over, InvalidRequest."""
        self._refuse_draining()
        asked = assignments.wanted_of(body)
        changed = assignments.decide(self.wanted, self.lease, asked)
        lease_ms = given(body.lease_ms, self.config.serve.lease_ms)
        if not changed:
            self.lease = self.lease.renewed(self.clock.monotonic_ms())
            # Offsets read before a running commit lands would have its records counted twice.
            self._let_commit(asked.active)
            return
        if asked.tasks and self.partitions is None:
            raise InvalidRequest(
                "the number of partitions is unknown, and changelogs are created with that number: give it with the "
                "stores (PUT /v1/stores, partitions) or in the settings (app.partitions)"
            )
        session = self.session.opened(self.specs, self.partitions)
        if asked.tasks:
            session.check(max(asked.tasks))
        # Before tasks close or open: writes of the old generation must not reach a task of the new one.
        self.on_loop(lambda: self.engine.begin_generation(asked.generation))
        self._let_commit(asked.active)
        # A new generation takes fenced tasks back, and failed ones are tried at once.
        self._fenced.clear()
        self._abandoned = False
        self.lease = ApplicationLease(lease_ms)  # it begins to run once the tasks are opened
        self.wanted = asked
        self.pending = [RestoringHealth(partition, "restoring", "opening") for partition in sorted(asked.active)]
        self.timers.keep(asked.active)
        # Named tasks are compared with their owners in the log: assigned elsewhere and back, an open task would serve
        # old rows as ready.
        session.mover.want(asked.active, asked.standby, named=True)
        try:
            self.tick()
        finally:
            self.lease = self.lease.renewed(self.clock.monotonic_ms())

    def revoke(self, body: Revoke) -> dict[int, dict[str, int]]:
        """Close tasks; the positions of their stores by partition. `lost` closes without flushing files."""
        # A member of an older generation could close tasks of the present one otherwise.
        assignments.check_generation(self.wanted, self.lease, body.generation)
        gone = frozenset(body.partitions) & self.wanted.tasks
        self._closing(gone)
        positions = self.session.positions(gone)  # after a commit that ran
        for partition in body.partitions:
            self._fenced.pop(partition, None)
        if body.mode == "lost":
            self.session.lose(gone)
        self._release(gone)
        return positions

    def drain(self) -> None:
        """Refuse assignments and writes from now on."""
        if not self.draining:
            self.draining = True
            self.events.publish("draining", {})
            self.on_loop(self.engine.drain)

    @property
    def uncommitted(self) -> bool:
        """Whether a task has writes that no commit has ended for; any thread may ask."""
        return not all(task.stores.buffer.empty for task in self.table.now.open.values())

    def close_tasks(self) -> None:
        """Close every task cleanly and leave the group."""
        # Out of the table first, so that no call takes up a task that is about to close.
        self.table.now = TableMoment()
        self._closing(self.wanted.active)
        self.session.close()

    def snapshot(self, name: str) -> dict[int, dict[str, int]]:
        """Copy the files of every active task. Raises Refused: RESTORING, CONFLICT for a taken name or no task."""
        if self.pending:
            raise Refused(RESTORING, "no snapshot while tasks restore: wait until they are ready")
        if not self.table.now.open:
            raise Refused(CONFLICT, "no task is active here: there is nothing to copy")
        self._refuse_full()
        try:
            return self.session.snapshot(name, self.table.now.open)
        except Conflict as error:
            raise Refused(CONFLICT, str(error)) from error

    def wipe(self, partition: int, epoch: int) -> None:
        """Set the state of a task aside, whole, and restore it from the log. Raises Refused for another epoch."""
        task = self.table.running(partition)
        if task.epoch != epoch:
            raise Fenced(
                f"epoch {epoch} is not the epoch of task {task.id}, {task.epoch}: check again which state to wipe"
            )
        self._refuse_full()  # files that are set aside stay on the disk, and the restore would wait for space
        if not self.config.state.accept_missing_history and (heads := self.session.removed_heads(partition)):
            where = few(f"{at} (it begins at {begin})" for at, begin in heads.items())
            raise Refused(
                CONFLICT,
                f"task {task.id} cannot be restored whole after a wipe: records were removed from the head of {where}: "
                "keep the state, or accept the loss (state.accept_missing_history) and wipe it then",
            )
        self._release(frozenset({partition}), keep=True)
        try:
            self.session.set_aside(partition, "wiped")
        finally:  # open the task again, also if its files could not be set aside
            self.session.opened(self.specs, self.partitions).mover.want(self.wanted.active, self.wanted.standby)
        self.tick()

    # -- the control thread -------------------------------------------------------------------------------------------

    def on_loop(self, job: Callable[[], T]) -> T:
        """Run a short job on the event loop, and wait for it."""
        return _given_to(self._loop.call_soon_threadsafe, job).result(LOOP_S_MAX)

    def tick(self) -> None:
        """One round: leases, moves, tasks that failed, the table of the servers, timers."""
        now_ms = self.heard_ms = self.clock.monotonic_ms()
        self._look_at_disk(now_ms)
        self.lease = self._lease_heard()
        if self.lease.is_over(now_ms):
            logger.warning(
                "the application was silent for %s: its tasks are closed",
                duration_text(self.lease.lease_ms or 0),
                extra=as_event("app_silent", silent_ms=self.lease.lease_ms),
            )
            self._abandoned = bool(self.wanted.tasks)
            self.lease = replace(self.lease, ended=True)
            self.events.publish("fenced", {"generation": self.wanted.generation, "reason": "lease"})
            self._release(self.wanted.tasks)
        held = None
        if self.session.is_open:
            held = self.session.held()  # once a round: each look waits for the session's lock
            failed = any(one.state in GONE for one in held.tasks.values())
            if failed and self.watch.now() is None:  # else no instance could open it: it follows once the log answers
                self.session.session.open_failed()
            held = self._round(held)
        self.timers.tick(self.wanted.active, self.table.now.open)
        self._look_for_own_locks(held, now_ms)

    def _look_for_own_locks(self, held: HeldTasks | None, now_ms: int) -> None:
        """Raise InternalError for a task that cannot be opened for long because this process locks its directory."""
        locked = None if held is None else self.session.locked_by_us(held)
        if locked is None:
            self._locked_ms = None
            return
        self._locked_ms = now_ms if self._locked_ms is None else self._locked_ms
        # A handle that was left open keeps the lock for the life of the process.
        if now_ms - self._locked_ms >= LOCKED_MS_MAX:
            raise InternalError(f"{locked} (this process holds it and does not use it: only a new process helps)")

    def _look_at_disk(self, now_ms: int) -> None:
        """Measure free space here and not where probes are answered: a stale mount may hang."""
        if now_ms >= self._disk_ms:
            self._disk_ms = now_ms + DISK_MS
            self.disk.look()

    def _ended_text(self) -> str:
        ended = self.lease.ended and self._abandoned
        return f"the lease of generation {self.wanted.generation} has ended" if ended else ""

    def _lease_heard(self) -> ApplicationLease:
        """The lease with the last heartbeat."""
        generation, at_ms = self._beat
        return self.lease.heard(at_ms) if generation == self.wanted.generation else self.lease

    def _update_table(self, held: HeldTasks) -> None:
        """Replace the table that the servers read, and publish the changes."""
        self.pending = self.session.pending(held, self.wanted)
        table = replace(self.session.table(held, self.wanted, self._fenced, self.pending), idle=self._ended_text())
        now_ms = self.clock.monotonic_ms()
        # A tick comes every 20 ms; progress at that pace would fill the queues of the listeners.
        if self.pending and now_ms >= self._progress_ms:
            self._progress_ms = now_ms + PROGRESS_MS
            for one in self.pending:
                self.events.publish("restore", asdict(one))
        for partition, state in table.states.items():
            word = state.partition(":")[0]
            if self._told.get(partition) != word:
                self.events.publish("task", {"partition": partition, "state": word})
        for partition in self._told.keys() - table.states.keys():
            self.events.publish("task", {"partition": partition, "state": "closed"})
        self._told = {partition: state.partition(":")[0] for partition, state in table.states.items()}
        self.table.now = table
        self._tell_pressure(table)

    def _tell_pressure(self, table: TableMoment) -> None:
        """Publish once for each task that its uncommitted writes are near the limit, above which writes are refused."""
        limit = self.config.limits.uncommitted_max_bytes
        held = {partition: task.stores.buffer.held_bytes for partition, task in table.open.items()}
        pressed = frozenset(partition for partition, size in held.items() if size >= limit * PRESSURE)
        for partition in sorted(pressed - self._pressed):
            self.events.publish(
                "pressure", {"partition": partition, "uncommitted_bytes": held[partition], "limit_bytes": limit}
            )
        self._pressed = pressed

    def _run(self) -> None:
        next_ms = self.clock.monotonic_ms()
        while True:
            left_ms = next_ms - self.clock.monotonic_ms()
            if left_ms <= 0:  # also while jobs come without end
                self._ticking()
                next_ms = self.clock.monotonic_ms() + TICK_MS
                continue
            try:
                job = self._jobs.get(timeout=left_ms / 1_000)
            except queue.Empty:
                continue
            if job is None:
                return
            job()

    def _ticking(self) -> None:
        try:
            self.tick()
            self.fatal = None
        except Exception as error:  # noqa: BLE001  reported by livez, which has the process started again
            if isinstance(error, Unavailable) or is_of_log(error):
                # Of the same text one line in ten seconds is written; there were 50 a second.
                logger.warning("control: the round is tried again: %s", error, extra=as_event("control_round_retried"))
                # The round came back, so this thread lives: livez must not restart the process for the log's outage.
                self.heard_ms = self.clock.monotonic_ms()
                if not self.session.broken:
                    return
            # A round that fails comes every 20 ms: its stack is logged once.
            elif not isinstance(self.fatal, type(error)):
                logger.exception("control: the round failed", extra=as_event("control_round_failed"))
            self.fatal = error

    def _round(self, held: HeldTasks) -> HeldTasks:
        """Move tasks and update the servers' table; returns the session's tasks after that."""
        fenced, held = self.session.mover.round(held)
        for partition in fenced:
            self._taken_over(partition)
        self._update_table(held)
        return held

    def _taken_over(self, partition: int) -> None:
        """Give up a task that another instance has, and do not take it back."""
        logger.warning(
            "another instance took over task 0_%d: this instance gives it up",
            partition,
            extra=as_event("task_fenced", task=f"0_{partition}"),
        )
        self._fenced[partition] = "another instance has taken it: assign it under a new generation to take it back"
        self.events.publish("fenced", {"partition": partition, "reason": "taken over"})
        # Wanted no more: the same assignment, repeated, must not take it back.
        self.wanted = assignments.without(self.wanted, {partition})
        self.timers.keep(self.wanted.active)
        self.session.mover.want(self.wanted.active, self.wanted.standby)

    def _release(self, gone: Partitions, *, keep: bool = False) -> None:
        """Close tasks; with `keep` they stay wanted, for the next round."""
        left = assignments.without(self.wanted, gone)
        if not keep:
            self.wanted = left
            self.timers.keep(left.active)
        if self.session.is_open:
            self.session.mover.want(left.active, left.standby)
            self._round(self.session.held())

    def _closing(self, gone: Partitions) -> None:
        """Take tasks from the servers, and wait until none of them commits."""
        table = self.table.now
        # Only a task that stays wanted opens again. For the others "closing", which has clients wait until the task is
        # ready, would be the answer for as long as a close takes.
        states = {partition: state for partition, state in table.states.items() if partition not in gone}
        states |= dict.fromkeys(gone & self.wanted.standby, "standby")
        states |= dict.fromkeys(gone & self.wanted.active & table.open.keys(), "closing")
        self.table.now = replace(
            table,
            open={partition: task for partition, task in table.open.items() if partition not in gone},
            states=states,
            idle=self._ended_text(),
        )
        why = "the task is closed here, and its uncommitted writes are discarded"
        self._let_commit(gone, lambda partition: self.engine.discard(partition, why))

    def _let_commit(self, partitions: Partitions, then: Callable[[int], None] = lambda partition: None) -> None:
        """Wait until none of these commits, and call `then` for each at that moment, on the loop. Raises Unavailable.

        The offsets in the answer to an assignment are those after the commit that ran, not those before it.
        """
        for partition in sorted(partitions):
            free = threading.Event()

            def ended(partition: int = partition, free: threading.Event = free) -> None:
                then(partition)
                free.set()

            self.on_loop(partial(self.engine.when_free, partition, ended))
            if not free.wait(LOOP_S_MAX):
                raise Unavailable(f"the commit of partition {partition} does not end: try again")

    def _refuse_full(self) -> None:
        if self.disk.full:
            raise DiskFull(self.disk.full)

    def _refuse_draining(self) -> None:
        if self.draining:
            raise Refused(DRAINING, "the sidecar is being stopped: connect again later")


def _given_to(other: Callable[[Callable[[], None]], object], job: Callable[[], T]) -> Future[T]:
    """Give a job to another thread."""
    future: Future[T] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(job())
        except BaseException as error:  # noqa: BLE001  raised again where the future is waited for
            future.set_exception(error)

    other(run)
    return future
