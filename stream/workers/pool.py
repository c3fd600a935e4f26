"""The worker processes of one instance: started, watched, given their orders, and started again when they end.

    ProgramProcess (the program again) <── Open, Hold ── Pool ── State ──> Orders (pure): which worker holds what

As the part of a managed instance (`stream/session/managed.py`): `follow` turns it into orders, `facts` are its tasks.
Once all tasks run, a spare process is kept ready (`spare.py`), which takes the place of the next worker that ends.

Rules of this file: one thread, which must live as long as the processes: the kernel binds them to it. No call waits but
`wait` and `stop`. A task leaves a worker by its report, or by its end, which `ChildProcess` has waited for.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from standfast.replication.leases import BusyWatch
from standfast.replication.offsets import TaskId
from standfast.replication.pauses import FAILOVER, Left, PauseWatch
from standfast.replication.placement.checkpoint import part_report
from standfast.replication.progress import ALLOWED, LOOP, LeaseProgress
from standfast.replication.takeover import Free
from standfast.store import errors
from standfast.store.clock import Clock
from standfast.store.errors import BadConfig, StandfastError, Unavailable, WorkerFailed
from standfast.store.log import as_event, logger
from standfast.store.process.program import ProgramProcess
from standfast.store.timestamps import duration_text
from standfast.stream.deaths.death_notes import DeathNotes
from standfast.stream.deaths.deaths import DEATHS_MAX
from standfast.stream.restart import RestartStrategy
from standfast.stream.session.local_part import InstanceFacts
from standfast.stream.session.managed import note_pause
from standfast.stream.snapshot_counts import SnapshotCounts
from standfast.stream.task.statistics import SessionCounters
from standfast.stream.workers.command import Program
from standfast.stream.workers.gate import InstanceGate
from standfast.stream.workers.orders import ACTIVE, RUNNING, Orders
from standfast.stream.workers.parts import PoolParts
from standfast.stream.workers.process import WorkerProcess, process_facts
from standfast.stream.workers.protocol import (
    Command,
    FailedReport,
    OpenOrder,
    Report,
    StateReport,
    StopOrder,
    checkpoint,
    command_line,
    hold,
    parse_report,
    tasks_of,
    times_of,
)
from standfast.stream.workers.seen import WorkerSeen
from standfast.stream.workers.spare import Spare
from standfast.stream.workers.watch import STOPPED, Watch, WorkerLook, WorkerRestarts

CALM_MS = 2_000  # for so long all tasks have run after a worker was replaced: a start takes a core for a second
SETTLED_MS = 10_000  # after the start of a worker, also if a task of the instance does not run
RUNS = (ACTIVE, RUNNING)
SLICE_MS = 5  # between two looks at workers that stop


@dataclass(slots=True)
class _Slot:
    """One worker: its present process, and the history of the processes before it."""

    number: int  # from 0
    restarts: WorkerRestarts
    process: WorkerProcess | None = None
    watch: Watch | None = None
    takes_tasks: bool = False  # its session is open, and the orders know it
    start_ms: int | None = 0  # when to start the next process; None: never
    began_ms: int = 0  # when its process became this worker; a spare was started before
    starts: int = 0
    stalled: bool = False  # it is killed, since it made no progress

    @property
    def name(self) -> int:
        """Its number in texts, from 1."""
        return self.number + 1


class Lines(Protocol):
    """The HTTP server, which asks worker processes through lines."""

    @property
    def serves(self) -> bool:
        """Whether there is a server."""
        ...

    def began(self, pid: int, line: socket.socket) -> None:
        """Take the line to a new worker process."""
        ...

    def ended(self, pid: int) -> None:
        """A worker process has ended."""
        ...


@dataclass(slots=True)
class PoolSettings:
    """Facts that all workers share. `opened` has the fields of Open but those of one worker.

    `forget` is called with the id of a process that has ended, and removes the files that only it used. `alone` as in
    Open. `lines`: the HTTP server, which answers for the workers; None: there is none.
    """

    program: Program
    workers: int
    lease_ms: int
    max_stall_ms: int
    restart: RestartStrategy
    opened: Mapping[str, str]
    lock: int
    variables: Mapping[str, str] = field(default_factory=dict)
    forget: Callable[[int], None] = lambda _pid: None
    alone: Callable[[], bool] = lambda: False
    deaths: DeathNotes | None = None
    lines: Lines | None = None


class Pool:
    """See the head of this file."""

    def __init__(self, settings: PoolSettings, clock: Clock, counters: SessionCounters) -> None:
        self.orders = Orders(settings.workers)
        self.changed = False  # reports or ends came since the last `follow`
        self.error: BaseException | None = None  # ends the run
        self._settings = settings
        self._clock = clock
        self._slots = [_Slot(number, WorkerRestarts(settings.restart)) for number in range(settings.workers)]
        self._paused = False
        self._stopping = False
        self._counters = counters
        self._between = PauseWatch()  # tasks on their way from one worker to another, or to the process of a dead one
        self._since: dict[TaskId, int] = {}
        self._left: dict[TaskId, Left] = {}
        self._unsettled_ms = clock.monotonic_ms()  # when a task was last seen not to run
        self._new_process = partial(_new_process, settings, clock, lambda: not self._since and settings.alone())
        self._spare = Spare(self._new_process, clock)
        self.parts = PoolParts(lambda order: self._send(checkpoint(order)))
        self._busy = BusyWatch()
        self._gate = InstanceGate()
        self._gone = SnapshotCounts()  # of the processes that have ended
        self._no_room: dict[int, str] = {}  # by worker: they share one state directory, and one of them finds it full
        self._wishes: list[str] = []  # not taken yet
        self._missing: dict[TaskId, str] = {}  # as `Orders.missing`, of the last `follow`
        self._here: frozenset[TaskId] = frozenset()  # active tasks that were in a worker then
        self._seen: tuple[tuple[WorkerSeen, ...], dict[TaskId, str]] | None = None  # None: it changed

    @property
    def pids(self) -> list[int | None]:
        """Process ids of the workers."""
        return [None if slot.process is None else slot.process.child.pid for slot in self._slots]

    @property
    def spare_pid(self) -> int | None:
        """Process id of the spare that waits; None if there is none."""
        return self._spare.pid

    # -- part of a managed instance -----------------------------------------------------------------------------------

    def follow(self, active: frozenset[TaskId], standby: frozenset[TaskId], is_free: Callable[[TaskId], Free]) -> None:
        """As in `Part`."""
        self.changed = False
        self._between.keep(active)
        busy = self._busy.look(self.loops(), 0, self._settings.lease_ms, self._clock.monotonic_ms()).loops_ms
        self.orders.want(active, standby, [number for number, busy_ms in enumerate(busy) if busy_ms])
        if self._gate.look(active, self.orders, is_free):  # before the orders of tasks that it is to wait for
            self._send(self._gate.state)
        for number, order in self.orders.next(is_free).items():
            process = self._slots[number].process
            assert process is not None, "only a worker with a session has an order"
            process.child.order(command_line(hold(order)))
        self._missing = self.orders.missing(is_free)
        self._here, self._seen = self.orders.held_active(), None

    def move(self, task: TaskId, worker: int) -> None:
        """As `Orders.move`, from any thread; carried out by the next round."""
        self.orders.move(task, worker)
        self.changed = True

    def facts(self) -> InstanceFacts:
        """As in `Part`."""
        running, restoring, lags = self.orders.facts()
        left = {task: one for task, one in self._left.items() if task not in running and task not in restoring}
        return InstanceFacts(running, restoring, lags, self._since, left, self.orders.places(), self.no_room)

    def held(self) -> frozenset[TaskId]:
        """As in `Part`."""
        return frozenset[TaskId]().union(*(self.orders.may_hold(slot.number) for slot in self._slots))

    def give_way(self, owners: Mapping[TaskId, str]) -> None:
        """As in `Part`: each worker looks at the owners of its tasks itself, and reports the lost ones."""

    def loops(self) -> list[int]:
        """Steps of each worker's loop; 0 for one without a process."""
        return [0 if slot.process is None else slot.process.progress.words[LOOP] for slot in self._slots]

    def give_up(self) -> bool:
        """As in `Part`: the workers have closed their tasks, each by itself."""
        return False

    def snapshot_counts(self) -> SnapshotCounts:
        """The counts of the snapshots of all workers, those of processes that have ended included."""
        total = self._gone.copy()
        for slot in self._slots:
            if slot.process is not None:
                total.add(slot.process.counts)
        return total

    def seen(self) -> tuple[tuple[WorkerSeen, ...], dict[TaskId, str]]:
        """The workers, and the active tasks that are to run and do not, with their states ("": in no worker)."""
        if self._seen is not None:
            return self._seen
        # Those that left a worker since the last `follow`, which an outage of the log may put off.
        left = dict.fromkeys(self._here - self.orders.held_active(), "")
        workers = tuple(
            WorkerSeen(
                slot.name,
                None if slot.process is None else slot.process.child.pid,
                slot.takes_tasks,
                slot.starts,
                slot.began_ms,
                self.orders.tasks(slot.number),
            )
            for slot in self._slots
        )
        self._seen = workers, {**self._missing, **left}
        return self._seen

    @property
    def no_room(self) -> str:
        """Why the state directory takes no writes; "" if it does."""
        return next(filter(None, self._no_room.values()), "")

    @property
    def paused(self) -> bool:
        """Whether the workers process nothing, because the application was paused."""
        return self._paused

    @property
    def gate_open(self) -> bool:
        """Whether the restore gate of the instance has been opened."""
        return self._gate.state.open

    def _send(self, command: Command) -> None:
        for slot in self._slots:
            if slot.process is not None and slot.takes_tasks:
                slot.process.child.order(command_line(command))

    # -- life ---------------------------------------------------------------------------------------------------------

    def pause(self, on: bool) -> None:
        """Have all workers process nothing, or go on."""
        self._paused = on
        for slot in self._slots:
            if slot.process is not None:
                slot.process.pause(on)

    def wishes(self) -> list[str]:
        """Calls of stop(), pause() and resume() in the workers, the spare included, since the last call."""
        found, self._wishes = self._wishes + self._spare.wishes(), []
        return found

    def wait(self, wait_ms: int) -> None:
        """Wait until a worker says something, or ends, for at most so long."""
        waiting = select.poll()
        for slot in self._slots:
            if slot.process is not None:
                waiting.register(slot.process.child.fileno(), select.POLLIN)
        if self._spare.fileno is not None:
            waiting.register(self._spare.fileno, select.POLLIN)
        waiting.poll(wait_ms)

    def poll(self) -> None:
        """Take reports, end workers that hang, start due ones. `error` is set once a worker is given up."""
        for slot in self._slots:
            if slot.process is not None:
                self._hear(slot, slot.process)
            # After that: the tasks of a worker that has just ended wait for its replacement.
            now_ms = self._clock.monotonic_ms()
            if slot.process is None and slot.start_ms is not None and now_ms >= slot.start_ms and not self._stopping:
                self._start(slot, now_ms)
        if not self._stopping and self._has_settled():
            self._spare.keep()

    def stop(self, alive: Callable[[], None]) -> None:
        """Have all workers commit, close and end, and wait for that; `alive` is called meanwhile.

        A worker that makes no progress for `max_stall_ms` is killed. Raises WorkerFailed if one was, or failed.
        """
        self._stopping, before = True, self.error
        self._spare.kill()
        for slot in self._slots:
            if slot.process is not None and slot.process.ready:
                slot.process.child.order(command_line(StopOrder()))
            elif slot.process is not None:  # it has no task yet
                self._release(slot, slot.process)
        while any(slot.process is not None for slot in self._slots):
            self.wait(SLICE_MS)
            self.poll()
            alive()
        if self.error is not None and self.error is not before:
            raise self.error

    def kill(self) -> None:
        """End all workers at once."""
        self._stopping = True
        self._spare.kill()
        for slot in self._slots:
            if slot.process is not None:
                self._release(slot, slot.process)

    # -- one worker ---------------------------------------------------------------------------------------------------

    def _has_settled(self) -> bool:
        """Whether a process may start beside the workers: before, their own tasks would wait for the processor."""
        now_ms, opened = self._clock.monotonic_ms(), all(slot.takes_tasks for slot in self._slots)
        if not (opened and self.orders.runs_all):
            self._unsettled_ms = now_ms
        if not opened:
            return False
        began_ms = max(slot.began_ms for slot in self._slots)
        # At first no task waits for its next commit, so the spare may come at once.
        calm_ms = CALM_MS if any(slot.starts > 1 for slot in self._slots) else 0
        return now_ms - self._unsettled_ms >= calm_ms or now_ms - began_ms >= SETTLED_MS

    def _start(self, slot: _Slot, now_ms: int) -> None:
        settings, spare = self._settings, self._spare.take()
        slot.starts, self._seen = slot.starts + 1, None
        try:
            slot.process = process = spare or self._new_process()
        except OSError as error:
            self._give_up_or_restart(slot, 0, f"it could not be started: {error}", "")
            return
        slot.watch = Watch(settings.lease_ms, settings.max_stall_ms, now_ms)
        slot.began_ms = now_ms
        answers = process.take_line()
        if answers is not None and settings.lines is not None:
            settings.lines.began(process.child.pid, answers)
        logger.info(
            "worker %d of %d starts as process %d", slot.name, settings.workers, process.child.pid,
            extra=as_event("worker_started", worker=slot.name, pid=process.child.pid, starts=slot.starts),
        )  # fmt: skip
        self._advance(slot, process, was_ready=False)

    def _hear(self, slot: _Slot, process: WorkerProcess) -> None:
        assert slot.watch is not None
        child, was_ready = process.child, process.ready
        states = process.hear()
        self._wishes += process.take_wishes()
        if child.ended is None:
            now_ms = self._clock.monotonic_ms()
            counts, allowed = process.progress.counts(), process.progress.words[ALLOWED]
            heard_ms, ready, facts = child.heard_ms, process.ready, partial(process_facts, child.pid)
            seen = WorkerLook(heard_ms, ready, counts, allowed, facts, closed=process.closed)
            why = slot.watch.look(seen, now_ms)
            if why:
                slot.stalled = not why.startswith(STOPPED)
                logger.error(
                    "worker %d (process %d) is killed: %s", slot.name, child.pid, why,
                    extra=as_event("worker_killed", worker=slot.name, pid=child.pid),
                )  # fmt: skip
                child.give_up(why)
                states += process.hear()
        self._advance(slot, process, was_ready=was_ready)
        for report in states:
            self._report(slot, child, report)
        if child.ended is not None:
            self._ended(slot, process)

    def _advance(self, slot: _Slot, process: WorkerProcess, *, was_ready: bool) -> None:
        """Act on how far a process has come: one that could take no order before gets those of now."""
        if process.ready and not was_ready:
            process.pause(self._paused)
            if self._stopping:
                process.child.order(command_line(StopOrder()))
        if process.opened and not slot.takes_tasks:
            slot.takes_tasks = True
            self.orders.ready(slot.number)
            self._seen = None
            process.child.order(command_line(self._gate.state))
            if self.parts.order is not None:  # before it opens a task that the order holds back
                process.child.order(command_line(checkpoint(self.parts.order)))
            slot.restarts.opened()
            self.changed = True

    def _report(self, slot: _Slot, child: ProgramProcess[Report], report: StateReport) -> None:
        try:
            tasks, (since, left), parts = tasks_of(report), times_of(report), part_report(report.parts)
        except ValueError as error:
            child.give_up(f"it reported a task that there cannot be: {error}")
            return
        self.orders.reported(slot.number, report.round, tasks)
        self._seen = None
        self.parts.reported(slot.number, parts)
        self._no_room[slot.number] = report.no_room
        self._note_times(slot, since, left)
        self.changed = True

    def _note_times(self, slot: _Slot, since: Mapping[TaskId, int], left: Mapping[TaskId, Left]) -> None:
        """Begin and end the pauses of tasks that move between workers; they share the clock of this process."""
        now_ms = self._clock.monotonic_ms()
        for task, one in left.items():
            known = self._left.get(task)
            if known is None or one.at_ms > known.at_ms:  # else it is in every report since
                self._left.pop(task, None)
                self._left[task] = one
                self._between.left(task, one, now_ms, same_clock=True)
        for task, at_ms in since.items():
            if task in self._left and at_ms < self._left[task].at_ms:
                continue  # a report of before the task left
            self._since[task] = at_ms
            pause = self._between.runs(task, at_ms)
            if pause is not None:
                note_pause(self._counters, task, pause, worker=slot.name)

    def _ended(self, slot: _Slot, process: WorkerProcess) -> None:
        ended, failed = process.child.ended, process.failed
        assert ended is not None
        how, words = str(ended), ended.words
        lived_ms = self._clock.monotonic_ms() - slot.began_ms
        clean = self._stopping and (process.closed if ended.why else ended.code == 0)
        deaths, stalled = self._settings.deaths, slot.stalled
        left = None if deaths is None else deaths.take(process.child.pid)
        self._release(slot, process)
        if clean:
            logger.info("worker %d has ended", slot.name, extra=as_event("worker_ended", worker=slot.name))
        elif failed is not None and not _is_outage(failed):
            self.error = self.error or _raised(slot.name, failed)
        elif failed is not None and not self._stopping:
            slot.start_ms = self._clock.monotonic_ms() + slot.restarts.log_away()
            logger.warning(
                "worker %d ended, it starts again when the log answers: %s", slot.name, failed.message,
                extra=as_event("worker_waits_for_log", worker=slot.name),
            )  # fmt: skip
        else:
            if not process.ready and ended.code == 0:
                how += ", without a call of run()"
            if ended.for_memory:
                how += ": run fewer workers, lower memory_bytes or cache_max_bytes, or give the machine more memory"
            held = None if deaths is None else deaths.note(left, ended.code, ended.why, stalled=stalled)
            if held is not None:
                how += f"; {held[0]} was in hand" + (f", death {held[1]} of {DEATHS_MAX} there" if held[1] else "")
            self._give_up_or_restart(slot, lived_ms, how, words, named=held is not None)

    def _give_up_or_restart(self, slot: _Slot, lived_ms: int, how: str, words: str, *, named: bool = False) -> None:
        now_ms, restarts = self._clock.monotonic_ms(), slot.restarts
        pause_ms = None
        if not self._stopping:
            pause_ms = restarts.named(lived_ms) if named else restarts.ended(now_ms, lived_ms)
        if pause_ms is None:
            why = "while the application stopped" if self._stopping else slot.restarts.reason
            last = f"; its last lines:\n{words}" if words else ""
            self.error = self.error or WorkerFailed(f"worker {slot.name} ended ({how}), {why}{last}")
            return
        slot.start_ms = now_ms + pause_ms
        logger.error(
            "worker %d ended (%s): its tasks wait for a new process, which starts %s",
            slot.name,
            how,
            f"in {duration_text(pause_ms)}" if pause_ms else "now",
            extra=as_event("worker_died", worker=slot.name, how=how, restart_ms=pause_ms),
        )

    def _release(self, slot: _Slot, process: WorkerProcess) -> None:
        """Forget a process, which is killed if it lives; its tasks are free."""
        process.end()
        if self._settings.lines is not None:
            self._settings.lines.ended(process.child.pid)
        self._settings.forget(process.child.pid)
        # An error stays until it is mended, which the next process says.
        self._gone.add(replace(process.counts, errors={}))
        ran = [task for task, one in self.orders.tasks(slot.number).items() if (one.role, one.state) == RUNS]
        self.parts.ended(slot.number, ran)
        slot.process, slot.watch, slot.start_ms, slot.takes_tasks, slot.stalled = None, None, None, False, False
        if not self._stopping:
            for task in ran:
                self._between.frees(task, FAILOVER, self._clock.monotonic_ms())
        self.orders.ended(slot.number)
        self.changed, self._seen = True, None


def _new_process(settings: PoolSettings, clock: Clock, alone: Callable[[], bool]) -> WorkerProcess:
    progress = LeaseProgress(shared=True)
    ours = theirs = None
    try:
        if settings.lines is not None and settings.lines.serves:
            ours, theirs = socket.socketpair()
        line = -1 if theirs is None else theirs.fileno()
        child = ProgramProcess(
            settings.program.command,
            settings.program.folder,
            parse=parse_report,
            clock=clock,
            lend=(settings.lock, progress.fd, *([] if theirs is None else [line])),
            variables=settings.variables,
        )
    except OSError:
        progress.close()
        if ours is not None:
            ours.close()
        raise
    finally:
        if theirs is not None:
            theirs.close()

    def opening(progress: LeaseProgress) -> bytes:
        workers, lock = settings.workers, settings.lock
        return command_line(
            OpenOrder(**settings.opened, workers=workers, lock=lock, words=progress.fd, alone=alone(), line=line)
        )

    return WorkerProcess(child, progress, opening, line=ours)


def _is_outage(failed: FailedReport) -> bool:
    kind = getattr(errors, failed.kind, None)
    return isinstance(kind, type) and issubclass(kind, Unavailable)


def _raised(number: int, failed: FailedReport) -> BaseException:
    """The error that ended a worker, as an error of this process."""
    kind = getattr(errors, failed.kind, None)
    error: StandfastError
    if kind is BadConfig:
        error = BadConfig([failed.message])
    elif isinstance(kind, type) and issubclass(kind, StandfastError):
        error = kind(failed.message)
    else:
        error = WorkerFailed(f"worker {number}: {failed.kind}: {failed.message}")
    for note in (*failed.notes, f"raised in worker {number}"):
        error.add_note(note)
    return error
