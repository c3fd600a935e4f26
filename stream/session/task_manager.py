"""The open tasks of one process: each is opened, promoted, failed and closed here. As Kafka Streams' TaskManager.

    take, hold ──> writer ──> opener ──> restorer ──> RUNNING          standby ──> tailer ──> promote ──┐
                               ^                                                                         │
                               └──────────── start over (state lost, damaged, no answer) <── failed <────┘

    an opening fails ──> waits (a transaction, a directory, a full disk) ──> a later attempt, noted in the task's life
                     ──> the log does not answer ─────────────────────────> raised, or a later attempt
                     ──> refused: the rows may be the last copy ──────────> stays closed with its error, the gate shut

`stream/tasks/life_table.py` says which of these steps an event takes a task through, in each of its states.

Rules of this file: under the session's lock, by one thread at a time. It carries out the wishes of the caller, of the
placement and of the tasks' lives, and decides for no other instance.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from standfast.replication.listeners import PROMOTED
from standfast.replication.log import LogWriter
from standfast.replication.offsets import TaskId
from standfast.replication.pauses import Left
from standfast.replication.progress import WORK
from standfast.restore.foreign_offsets import FOREIGN_OFFSETS
from standfast.restore.plan import CORRUPT, RESUME
from standfast.store.clock import Clock
from standfast.store.errors import (
    BadConfig,
    Corruption,
    Fenced,
    Held,
    ListenerFailed,
    StandfastError,
    StateLost,
    Unavailable,
    is_of_log,
)
from standfast.store.log import as_event, logger
from standfast.store.process.tracebacks import clear_frames
from standfast.store.task.commit_record import Unwritten
from standfast.stream.loss import Loss, is_lost, reported_loss
from standfast.stream.session.membership import Membership
from standfast.stream.session.writers import Writers
from standfast.stream.task.mending import flush
from standfast.stream.task.opener import NOTHING, Opened, Ranges, TaskOpener
from standfast.stream.task.readiness import PROMOTE, Readiness
from standfast.stream.task.states import GONE, TaskState
from standfast.stream.task.statistics import SessionCounters
from standfast.stream.task.task import Task
from standfast.stream.tasks.attempts import AGAIN_MS, PUT_OFF, WAITS, Refused, tell_waits
from standfast.stream.tasks.life import Again, Life
from standfast.stream.tasks.life_table import TABLE, Effect, LifeEvent, LifeState

OPENS = frozenset({Effect.OPEN, Effect.PROMOTE})


@dataclass(frozen=True, slots=True)
class Deciders:
    """Who decides which tasks are here: the `caller`, who names each; or `peers`, which share all tasks out, by their
    plans in the group or, `led`, by a leader; or else the application's consumer group."""

    caller: bool = True
    peers: bool = False
    led: bool = False


class TaskManager:
    """See the head of this file."""

    def __init__(
        self,
        opener: TaskOpener,
        writers: Writers,
        membership: Membership,
        readiness: Readiness,
        counters: SessionCounters,
        clock: Clock,
        deciders: Deciders,
    ) -> None:
        self.tasks = readiness.tasks
        self.lives = readiness.lives
        self.attempts = readiness.attempts
        self.writers = writers
        self.membership = membership
        self.readiness = readiness
        self.opener = opener
        self.has_run = False  # whether a task has run here
        # Whether an application that is refused may end: others would get its tasks, and lack its record of them.
        self.alone: Callable[[], bool] = lambda: deciders.led and membership.size <= 1
        self._counters = counters
        self._clock = clock
        self._deciders = deciders

    def hold(self, wanted_active: frozenset[TaskId], wanted_standby: frozenset[TaskId]) -> Refused:
        """Hold exactly these tasks; returns the refused ones, each with its error. Raises errors of the log."""
        events = dict.fromkeys(self.tasks, LifeEvent.DROPPED) | dict.fromkeys(wanted_standby, LifeEvent.NAMED_STANDBY)
        events |= dict.fromkeys(wanted_active, LifeEvent.NAMED)
        steps = {task_id: self._effects(task_id, event) for task_id, event in events.items()}
        for task_id in [one for one in self.tasks if Effect.CLOSE in steps[one]]:
            task = self.tasks[task_id]
            try:
                self.revoke(task_id)
            finally:
                # Kept beyond the closed task: under exactly once only these rows complete the log's last commit.
                # After the close, which waits for a commit of another thread.
                if task.stores.unwritten is not None and task_id in wanted_active:
                    self.lives[task_id].unwritten = task.stores.unwritten
        self.lives.keep(wanted_active, wanted_standby)
        refused: Refused = {}
        new = sorted(one for one in wanted_active if not OPENS.isdisjoint(steps[one]))
        # All writers connect at once, because each takes a round trip to the broker.
        self.writers.connect(new)
        for task_id in (*new, *sorted(one for one in wanted_standby if Effect.STAND_BY in steps[one])):
            active, started_ms = task_id in wanted_active, self._clock.monotonic_ms()
            try:
                if active:
                    self._run(task_id, self.writers.open(task_id, if_free=False), started_ms)
                else:
                    self.open_standby(task_id)
            except StandfastError as error:
                if is_of_log(error) and not isinstance(error, WAITS):
                    raise
                refused[task_id] = error  # of this task alone: the others do not wait for it
                if isinstance(error, PUT_OFF):
                    # A group or a leader that places tasks tries again by itself.
                    again = Again("assign") if self._deciders.caller else None
                    self.attempts.later(task_id, error, active=active, again=again)
        self.membership.publish()
        return refused

    def revoke(self, task_id: TaskId) -> None:
        """Close a task cleanly: uncommitted changes are discarded, files are flushed for a quick reopen."""
        # Each is progress for the lease: closing all tasks together may take longer than `max_stall_ms`.
        self.opener.progress.step(WORK)
        task = self.tasks.pop(task_id)
        began_ms = self._clock.monotonic_ms() if task.last_commit_ms < 0 else task.last_commit_ms
        serves = task.role == "active" and task.state is TaskState.RUNNING
        self.membership.stale |= not self._deciders.led  # a managed instance reports its tasks elsewhere
        try:
            self.readiness.remove(task_id, "revoked")
            if task.role == "active":
                self.readiness.forget(task_id)
            if task.state not in GONE and not self.readiness.room.text:
                # Without a flush the next opening, perhaps of another process, would replay the WAL: 4.5 s for 180 MB.
                flush(task.id, task.stores)
                self.opener.progress.step(WORK)
        finally:  # the task is in no list any more, and an open one would keep the lock of its directory for good
            self.readiness.close_task(task)
        life = self.lives[task_id]
        if serves and not life.given:  # else it was free from then on, and not only from its close on
            life.left = Left(began_ms, self._clock.monotonic_ms() - began_ms)
        life.given = False

    def reopen(self, task_id: TaskId) -> None:
        """Open a task again that failed or was taken over; changelog records beyond its stored position are replayed.

        Held where tasks are shared out and a live member took it over meanwhile; Fenced if one takes it at the same
        time: the task is lost then. After any error the call may be repeated.
        """
        started_ms = self._clock.monotonic_ms()
        # Read before `reopen` ends the loss, so that a failed opening can record the loss again.
        life, why = self.lives[task_id], self.lives.why_lost(task_id)
        life.named()
        task = self.tasks.get(task_id)
        stands_by = task is not None and task.role == "standby" and not life.wanted
        steps = self._effects(task_id, LifeEvent.REOPENED_STANDBY if stands_by else LifeEvent.REOPENED)
        if task is not None and Effect.CLOSE in steps:
            # The old error's frames keep handles, and one of those keeps the lock of the directory.
            clear_frames(task.error)
            self.readiness.remove(task_id, "reopened")
            self.readiness.forget(task_id)
            task.close()
        if Effect.STAND_BY in steps and task is not None:
            self.open_standby(task_id, loss=Loss.unnoted(task.stores.damaged, task.error))
        if OPENS.isdisjoint(steps):
            return
        try:
            self._run(task_id, self._claim(task_id, if_free=self._deciders.peers), started_ms)
        except StandfastError as error:  # it stays closed with its error, or lost; one that was never opened is absent
            task = self.tasks.get(task_id)
            if task is not None and task.state in GONE:
                self._keep_closed(task_id, error, active=True)
            elif task is None and why is not None and not life.lost:
                self.lives.lose(task_id, why)
            raise

    def _claim(self, task_id: TaskId, *, if_free: bool) -> LogWriter:
        """The writer of a task that was open here, or that the caller named: it is lost if another instance has it."""
        try:
            return self.writers.open(task_id, if_free=if_free)
        except (Held, Fenced) as other:
            self._lose(task_id, str(other))
            raise

    def begin_again(self, error: BaseException) -> None:
        """Reopen after a signal handler interrupted a round: records may be read and not applied; positions decide."""
        for task_id, task in self.tasks.items():
            if self._effects(task_id, LifeEvent.INTERRUPTED):
                about = as_event("task_reopened", task=task_id)
                logger.warning("task %s is opened again: %r interrupted its reading", task_id, error, extra=about)
                self.readiness.remove(task_id, "failed")
                task.fail(error)
                self.attempts.soon(task_id, str(error), 0, active=task.role == "active", again=Again(RESUME))
        clear_frames(error)

    def come(self, active: Collection[TaskId]) -> None:
        """Only these active tasks are to come here: attempts at others end, but for those that are here still."""
        # A failed one that is to leave is closed in the next round, unless the move is taken back before.
        self.lives.keep(self.active.union(active))

    def _effects(self, task_id: TaskId, event: LifeEvent) -> tuple[Effect, ...]:
        """The steps that an event takes a task through, in its present state."""
        return TABLE[event][_state_of(self.tasks.get(task_id), self.lives[task_id])]

    @property
    def active(self) -> set[TaskId]:
        """The active tasks that are here, also failed ones."""
        return {task_id for task_id, task in self.tasks.items() if task.role == "active"}

    def _run(
        self, task_id: TaskId, writer: LogWriter, started_ms: int, why: str = "assign", loss: Loss = NOTHING
    ) -> None:
        """Run a task whose writer was opened just now: promote its standby, or open it."""
        before, life = self.tasks.get(task_id), self.lives[task_id]
        if before is not None and before.role == "standby" and before.state not in GONE:
            self._promote(before, writer, started_ms)
            return
        unwritten = life.unwritten
        if before is not None:
            loss, unwritten = loss or Loss.unnoted(before.stores.damaged, before.error), before.stores.unwritten
        self._open(task_id, writer, loss, started_ms, why, unwritten)
        life.unwritten = None

    def open_standby(self, task_id: TaskId, *, loss: Loss = NOTHING) -> None:
        """Open a standby of a task; `loss` is the loss that is known already."""
        self._open(task_id, None, loss, 0, "")

    def _open(
        self,
        task_id: TaskId,
        writer: LogWriter | None,
        loss: Loss,
        started_ms: int,
        why: str,
        unwritten: Unwritten | None = None,
    ) -> None:
        """Open a task, which restores if it has a writer, or else follows its changelogs as a standby.

        An error of the opening closes the writer and is raised; a later one fails the task alone.
        """
        try:
            opened = self.opener.open(task_id, owner=writer is not None, loss=loss, unwritten=unwritten)
        except BaseException:
            if writer is not None:
                writer.close()
            raise
        task = opened.task
        task.count_in(self._counters)
        self.tasks[task.id] = task
        self.lives[task.id].given = False
        self.membership.stale |= not self._deciders.led
        self._counters.wipes.update(set(opened.lost.values()))
        self._counters.store_wipes.update(opened.lost.items())
        if writer is not None:
            task.open_writer(writer)
            self._restore(opened, started_ms, opened.why(why))
            return
        self.lives.drop(task.id)
        try:
            task.tell_lost(opened.lost.values())
            self.readiness.stand_by(task)
        except Unavailable as error:
            self._fail_for_now(task, error, "unavailable")
        except ListenerFailed as error:
            self._handle(task.id, error)

    def _promote(self, task: Task, writer: LogWriter, started_ms: int) -> None:
        try:
            planned = self._end_standby(task, writer)
        except ListenerFailed as error:
            task.role = "active"  # it is owned here now
            self._handle(task.id, error)
            self.readiness.keep_shut(task.id, error)
            return
        if isinstance(planned, Loss):
            self._start_over(task.id, next(iter(planned.stores.values()), CORRUPT), planned, started_ms)
            return
        self._restore(Opened(task, *planned), started_ms, PROMOTE)

    def _end_standby(self, task: Task, writer: LogWriter) -> tuple[Ranges, bool] | Loss:
        """Plan the promotion of a standby, and give it the writer."""
        tailer = self.readiness.tailer
        try:
            tailer.write(task.id)  # records given to the standby count, and are not read again
            planned = self.opener.plan_again(task)
        except Unavailable as error:
            writer.close()  # the standby continues until the log answers
            if task.stores.poisoned is not None:  # but takes no more writes once the disk refused one
                self._handle(task.id, error)
            raise
        except BaseException as error:
            task.open_writer(writer)
            # Damage of the log is no loss of the standby's rows: another opening would meet it again.
            if not isinstance(error, Corruption) or error.of_log:
                tailer.remove(task.id, "failed")
                raise
            planned = Loss.by(error)
        else:
            task.open_writer(writer)
        tailer.remove(task.id, PROMOTED)
        return planned

    def _restore(self, opened: Opened, started_ms: int, why: str) -> None:
        task = opened.task
        self.lives.drop(task.id)
        try:
            task.tell_lost(opened.lost.values())
            self.readiness.restore(
                task, opened.ranges, local_counts=opened.local_counts, started_ms=started_ms, why=why
            )
        except Unavailable as error:
            self._fail_for_now(task, error, why)
        except ListenerFailed as error:
            self._handle(task.id, error)
            self.readiness.keep_shut(task.id, error)
        except Corruption as damage:  # the next round handles it
            task.fail(damage)

    def monitor_failed(self) -> None:
        """Close the tasks that have a newer owner, and open those again whose state is lost or damaged."""
        for task in self.tasks.values():
            if task.stores.damaged is not None and task.state not in GONE:
                task.fail(task.stores.damaged)
        # Looked at after the failing. A commit may run on another thread, and the log may have it: if the task were
        # closed in the middle of it, its rows would not be here, and no log has those of unlogged stores. It ends
        # within the log's time-outs.
        idle = {task_id: task for task_id, task in self.tasks.items() if not task.committing}
        self.look_for_fenced(idle)
        for task_id, task in idle.items():
            if task_id not in self.tasks:
                continue  # it was fenced
            if task.state is TaskState.FAILED and isinstance(task.error, StandfastError) and is_lost(task.error):
                self._handle(task_id, task.error)

    def look_for_fenced(self, among: Collection[TaskId]) -> None:
        """Close the tasks for which a commit on any thread has found a newer owner."""
        for task_id, task in list(self.tasks.items()):
            if task_id in among and task.state is TaskState.FAILED and isinstance(task.error, Fenced):
                self._lose(task_id, str(task.error))

    def open_due(self, now_ms: int) -> None:
        """Open the tasks that are due: they had to wait, the log did not answer, or they were lost and are standbys."""
        for task_id, attempt, again in self.lives.due(now_ms):
            life = self.lives[task_id]
            life.attempt = attempt._replace(due_ms=now_ms + AGAIN_MS)  # until it is open, whatever is raised on the way
            named = LifeEvent.DUE_STANDBY if life.standby else LifeEvent.DUE_UNNAMED
            for step in self._effects(task_id, LifeEvent.DUE if life.wanted else named):
                if step in OPENS:
                    self.take(task_id, again=again)
                elif step is Effect.STAND_BY:
                    self.try_standby(task_id, again)
                elif step is Effect.START_OVER:
                    self._start_over(task_id, again.reason, again.loss, now_ms)
                else:
                    self.lives.drop(task_id)

    def _fail_for_now(self, task: Task, error: Unavailable, reason: str) -> None:
        again = Again(reason)
        if isinstance(error, WAITS):
            self.readiness.put_off(task, error, again)
        else:
            tell_waits(task.id, error)
            self.attempts.soon(task.id, str(error), 0, active=task.role == "active", again=again)
        task.fail(error)

    def _lose(self, task_id: TaskId, why: str) -> None:
        """A newer owner has the task: close it, and open its standby again where that was assigned or is shared out."""
        logger.warning(
            "task %s was taken over by a newer owner, it is closed here: %s",
            task_id,
            why,
            extra=as_event("task_fenced", task=task_id),
        )
        self._counters.fenced += 1
        self.lives.lose(task_id, why)
        # It may have been restoring still: reading on for an absent task fails the whole instance.
        self.readiness.remove(task_id, "fenced")
        self.readiness.forget(task_id)
        task = self.tasks.pop(task_id, None)
        if task is not None:
            task.fail(Fenced(why))
            task.close()
        if self.lives[task_id].standby and not self._deciders.peers:
            self.attempts.soon(task_id, why, 0, active=False, again=Again("returned"))
        self.membership.publish()

    def handle(self, failed: Mapping[TaskId, StandfastError]) -> None:
        """Fail these tasks, or open them again, as their errors say."""
        for task_id, error in failed.items():
            self._handle(task_id, error)

    def _handle(self, task_id: TaskId, error: StandfastError) -> None:
        lost = LifeEvent.ROWS_LOST if is_lost(error) else LifeEvent.ERROR
        steps = self._effects(task_id, LifeEvent.NO_ANSWER if isinstance(error, Unavailable) else lost)
        task = self.tasks[task_id]
        if isinstance(error, Unavailable) and Effect.WAIT in steps:
            self._fail_for_now(task, error, "unavailable")
        elif Effect.FAIL in steps:
            self.readiness.remove(task_id, "failed")
            task.fail(error)
            trace = error if isinstance(error, ListenerFailed) else None  # the program's own code is in it
            about = as_event("task_failed", task=task_id)
            logger.error("task %s failed: %s", task_id, error, exc_info=trace, extra=about)
            clear_frames(error)  # kept with the task: it must not keep the lock of its directory
            if isinstance(error, BadConfig) and task.role == "active":
                raise error  # a missing permission: the gate would stay shut without an end
        elif Effect.START_OVER in steps:
            # State that does not fit the log, or is damaged, is set aside and restored from the log.
            reason = error.reason if isinstance(error, StateLost) else "corrupt"
            about = as_event("state_lost", task=task_id, reason=reason)
            logger.warning("task %s: state lost (%s): %s", task_id, reason, error, extra=about)
            loss = reported_loss(task.applier.changelogs, error)
            self._start_over(task_id, reason, loss, self._clock.monotonic_ms())

    def _start_over(self, task_id: TaskId, reason: str, loss: Loss, started_ms: int) -> None:
        """Close a task and open it again: the plan decides again and may refuse; only lost stores are removed."""
        old = self.tasks[task_id]
        active = old.writer is not None or old.role == "active" or self.lives[task_id].wanted
        loss = loss or Loss.unnoted(old.stores.damaged, old.error)
        clear_frames(old.error)  # they keep handles, and one of those keeps the lock of the directory
        # The caller did not request this: a commit of offsets whose rows are gone must not succeed.
        if active and old.uncommitted:
            old.dropped = reason
        self.readiness.remove(task_id, reason)
        self.readiness.forget(task_id)
        if loss and not old.stores.closed:
            flush(old.id, old.stores)  # a WAL that is not empty is checked byte by byte before a store is taken out
        old.close()
        try:
            if active:
                # Only if free or ours: an instance that took the task over while it failed here keeps it.
                self._run(task_id, self._claim(task_id, if_free=True), started_ms, reason, loss)
            else:
                self.open_standby(task_id, loss=loss)
        except StandfastError as error:
            now = self.tasks.get(task_id)
            if now is not old:
                if now is not None:
                    raise
                return  # it is lost
            self._keep_closed(task_id, error, active=active)
            if not self.attempts.waits(task_id, error, active=active, again=Again(reason, loss)):
                about = as_event("task_not_reopened", task=task_id)
                logger.error("task %s cannot be opened again: %s", task_id, error, extra=about)
            if active and (isinstance(error, BadConfig) or _ends_start(self, error)):
                raise  # such as a missing permission, which no retry here can fix
            return
        self.tasks[task_id].dropped = old.dropped

    def take(self, task_id: TaskId, *, if_free: bool = True, again: Again | None = None) -> None:
        """Run a task; with `if_free` not while another live member owns it. A task that failed here stays as it is.

        `again`: the caller named the task and goes on meanwhile: the instance itself tries until it is open.
        """
        if not self._effects(task_id, LifeEvent.OFFERED) or (again is None and self.attempts.holds_back(task_id)):
            return
        started_ms = self._clock.monotonic_ms()
        try:
            writer = self.writers.open(task_id, if_free=if_free)
        except (Held, Fenced) as other:
            # Fenced: another instance claimed it after this one, and before the log let this one in. A standby stays
            # a standby; the next look at the group finds the owner.
            self.lives.drop(task_id)
            if again is not None:
                self._lose(task_id, str(other))
                return
            logger.info("task %s: %s", task_id, other, extra=as_event("take_over_lost", task=task_id))
            return
        try:
            self._run(task_id, writer, started_ms)
        except StandfastError as error:
            if isinstance(error, PUT_OFF):
                self.attempts.later(task_id, error, again=again)
                return
            self._refuse_closed(task_id, error, "active", again)
        self.membership.stale |= not self._deciders.led

    def try_standby(self, task_id: TaskId, again: Again | None = None) -> None:
        """Open a standby; a refused one stays closed here, with its rows. `again`: as in `take`."""
        offered = self._effects(task_id, LifeEvent.OFFERED_STANDBY)
        if not offered or (again is None and self.attempts.holds_back(task_id)):
            return
        try:
            self.open_standby(task_id)
        except StandfastError as error:
            if isinstance(error, PUT_OFF):
                self.attempts.later(task_id, error, active=False, again=again)
            elif again is None or not self.attempts.waits(task_id, error, active=False, again=again):
                self._refuse_closed(task_id, error, "standby", again)

    def _refuse_closed(self, task_id: TaskId, error: StandfastError, role: str, again: Again | None) -> None:
        """Keep a task that must not be opened, with its error: an active one holds the gate shut. Raises errors of the
        log, and those that end a start."""
        of_rows = isinstance(error, (StateLost, Corruption))
        if not of_rows and (again is None or is_of_log(error)):
            raise error
        self.lives.drop(task_id)
        if role == "active" and _ends_start(self, error):
            raise error
        event, what = ("take_over_refused", "run") if role == "active" else ("standby_refused", "be a standby")
        about = as_event(event, task=task_id)
        logger.error("task %s cannot %s here, its rows stay: %s", task_id, what, error, extra=about)
        if task_id in self.tasks:
            self.tasks[task_id].fail(error)
        else:
            self.tasks[task_id] = self.opener.closed(task_id, error, role)
            self._keep_closed(task_id, error, active=role == "active")

    def _keep_closed(self, task_id: TaskId, error: StandfastError, *, active: bool) -> None:
        """Keep a task closed with its error: its rows may be the last copy. An active one holds the gate shut."""
        self.tasks[task_id].error = error
        if active:
            self.readiness.keep_shut(task_id, error)


def _ends_start(manager: TaskManager, error: StandfastError) -> bool:
    """Whether an application ends with this refusal: at its start, while no other instance lives."""
    refused = isinstance(error, StateLost) and error.reason == FOREIGN_OFFSETS
    return refused and not manager.has_run and manager.alone()


def _state_of(task: Task | None, life: Life) -> LifeState:
    if task is None:
        return LifeState.ABSENT if life.lost is None else LifeState.LOST
    if task.role == "standby":
        return LifeState.FAILED_STANDBY if task.state in GONE else LifeState.STANDBY
    if task.state not in (*GONE, TaskState.RUNNING):
        return LifeState.RESTORING
    if task.leaving or life.given:
        return LifeState.LEAVING
    return LifeState.FAILED if task.state in GONE else LifeState.RUNNING
