"""All tasks of one process: opened, restored, promoted, revoked. As Kafka Streams' TaskManager.

    assign / take over ──> opener ──> restorer ──> RUNNING            standby ──> tailer ──> promote ──┐
                             ^                                                                          │
                             └──────────────── reinitialise (state lost, corrupt) <── failed <──────────┘

    writers.py      which instance may write a task     readiness.py    restore, standbys, gate
    membership.py   this process in the group           opener.py       files, stores and restore plan of one task

Rules of this file: driven by `poll_once` under the session's lock, by one thread at a time; it owns no thread. Pure
code decides on take-overs, gates and restores; this file carries the decisions out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack

from standfast.replication.checkpoint_flow import Flow
from standfast.replication.listeners import PROMOTED
from standfast.replication.log import LogWriter
from standfast.replication.offsets import TaskId
from standfast.replication.pauses import Left
from standfast.replication.placement.model import PlacementSettings
from standfast.replication.placement.topic import PlacementTopic
from standfast.replication.progress import WORK
from standfast.replication.takeover import MemberPlan, MemberTraits
from standfast.restore.foreign_offsets import FOREIGN_OFFSETS
from standfast.restore.plan import CORRUPT, RESUME
from standfast.store.clock import Clock
from standfast.store.errors import (
    BadConfig,
    Corruption,
    Fenced,
    Held,
    InvalidRequest,
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
from standfast.stream.session.follow import FOLLOW_TICK_MS, GroupFollower
from standfast.stream.session.local_part import LocalPart
from standfast.stream.session.managed import ManagedPlacement
from standfast.stream.session.membership import Membership
from standfast.stream.session.take_over import TakeOver
from standfast.stream.session.writers import Writers
from standfast.stream.snapshots.keeper import SnapshotKeeper
from standfast.stream.snapshots.parts import CheckpointParts
from standfast.stream.task.groups import all_task_ids, program_of, shapes_of
from standfast.stream.task.mending import flush
from standfast.stream.task.opener import NOTHING, Opened, Ranges, TaskOpener
from standfast.stream.task.readiness import PROMOTE, Readiness
from standfast.stream.task.settings import SessionSettings
from standfast.stream.task.states import GONE, TaskState
from standfast.stream.task.statistics import SessionCounters
from standfast.stream.task.task import Task
from standfast.stream.tasks.attempts import WAITS, Refused, raise_worst
from standfast.stream.tasks.commit_plan import lost_task
from standfast.stream.tasks.life import Again

TAKE_OVER_TICK_MS = 100
ORDERED_TICK_MS = 500  # in a worker process: orders come at once, and a newer owner fences it at the log
RESTORING_TICK_MS = 500  # the same beside a restore: measured on Kafka, a look every 100 ms took a tenth of its time
AGAIN_MS = 500  # between two openings of a task, while the log does not answer


class Instance:
    """The tasks of one process and the parts that drive them."""

    def __init__(
        self,
        opener: TaskOpener,
        writers: Writers,
        membership: Membership,
        readiness: Readiness,
        settings: SessionSettings,
        *,
        clock: Clock,
        counters: SessionCounters,
        learn_partitions: Callable[[], None],
        placement_topic: PlacementTopic | None = None,
    ) -> None:
        self.app = opener.app
        self.tasks: dict[TaskId, Task] = {}
        self.writers = writers
        self.lives = readiness.lives
        self.membership = membership
        membership.plan = self._plan
        self.readiness = readiness
        self.counters = counters
        self.standbys_missing = 0
        # Whether an application that is refused may end: others would get its tasks, and lack its record of them.
        self.alone: Callable[[], bool] = lambda: self.managed is not None and membership.size <= 1
        self._has_run = False  # whether a task has run here
        # The tasks that live instances share out by take-over; None: the caller assigns.
        spread = settings.placement in ("shared", "managed")
        self.shared = all_task_ids(opener.groups) if spread else None
        self.follower: GroupFollower | None = None
        if settings.placement == "group":
            self.follower = GroupFollower(self, settings.standby_replicas, learn_partitions)
        self._traits = MemberTraits(1, settings.tags, program_of(opener.groups), settings.max_tasks)
        self.managed: ManagedPlacement | None = None
        if placement_topic is not None:
            self.managed = ManagedPlacement(
                self,
                LocalPart(self, clock),
                placement_topic,
                PlacementSettings(
                    settings.standby_replicas,
                    settings.warmups_max,
                    settings.acceptable_lag,
                    settings.restart_grace_ms,
                ),
                self._traits,
                frozenset(number for number, group in opener.groups.items() if not group.specs),
                opener.rows_on_disk(),
                shapes=shapes_of(opener.groups),
                replace=settings.replace,
            )
            self.managed.coordinator.opening = True
        self.parts: CheckpointParts | None = None  # of coordinated checkpoints
        self.ordered: Callable[[], None] | None = None  # in a worker process: the round that follows its supervisor
        self._take_over = TakeOver(self, settings.standby_replicas, allowed=settings.take_over)
        self._opener = opener
        self._clock = clock
        self._next_take_over_ms, self.attempts = 0, readiness.attempts

    def assign(
        self, active: Iterable[TaskId], standby: Iterable[TaskId], *, take_back: frozenset[TaskId] | None = None
    ) -> Refused:
        """Make exactly these the tasks of the process; others are closed, and held ones stay as they are.

        Returns the refused tasks, each with its error; raises errors of the log as a whole. Of the tasks that another
        instance took over, those in `take_back` are taken back, None: all of them. The others stay lost (`Lives.lost`),
        however recent the loss.
        """
        wanted_active, wanted_standby = frozenset(active), frozenset(standby)
        both = wanted_active & wanted_standby
        if both:
            raise InvalidRequest(f"task {min(both)} cannot be active and standby on one instance: choose one")
        stay_lost: frozenset[TaskId] = frozenset()
        if take_back is not None:
            held = take_back & self._active()
            if held:  # a task that commits nothing would not meet a newer owner at the log
                self.writers.give_way(self.tasks, self.writers.owners(held))
            self._look_for_fenced(wanted_active)
            stay_lost = wanted_active & self.lives.lost.keys() - take_back
        self.lives.assign(wanted_active, wanted_standby, stay_lost=stay_lost)
        return self._hold(wanted_active - stay_lost, wanted_standby)

    def _hold(self, wanted_active: frozenset[TaskId], wanted_standby: frozenset[TaskId]) -> Refused:
        for task_id, task in list(self.tasks.items()):
            if task_id not in wanted_active | wanted_standby or task.state in GONE:
                try:
                    self.revoke(task_id)
                finally:
                    # Kept beyond the closed task: under exactly once only these rows complete the log's last commit.
                    # After the close, which waits for a commit of another thread.
                    if task.stores.unwritten is not None and task_id in wanted_active:
                        self.lives[task_id].unwritten = task.stores.unwritten
        self.lives.keep(wanted_active, wanted_standby)
        refused: Refused = {}
        new = sorted(wanted_active - self._active())
        # All writers connect at once, because each takes a round trip to the broker.
        self.writers.connect(new)
        for task_id in new:
            started_ms = self._clock.monotonic_ms()
            try:
                self._run(task_id, self.writers.open(task_id, if_free=False), started_ms)
            except StandfastError as error:
                self._refuse(task_id, error, refused, active=True)
        for task_id in sorted(wanted_standby):
            if task_id in self._active():
                self.revoke(task_id)
            if task_id not in self.tasks:
                try:
                    self.open_standby(task_id)
                except StandfastError as error:
                    self._refuse(task_id, error, refused, active=False)
        self.membership.publish()
        return refused

    def _refuse(self, task_id: TaskId, error: StandfastError, refused: Refused, *, active: bool) -> None:
        """Note a task that cannot be opened, so that the others do not wait for it. Raises errors of the log."""
        if is_of_log(error) and not isinstance(error, WAITS):
            raise error
        refused[task_id] = error
        if isinstance(error, (*WAITS, Held)):
            # A group or a leader that places tasks tries again by itself.
            again = Again("assign") if self.shared is None and self.follower is None else None
            self.attempts.later(task_id, error, active=active, again=again)

    def take_part(self, keeper: SnapshotKeeper | None) -> None:
        """Take part in coordinated checkpoints, with the storage of `keeper`; without one every part fails."""
        if self.managed is None and self.ordered is None:
            return
        self.parts = CheckpointParts(keeper, self.counters.snapshots)
        if self.managed is not None:
            self.managed.parts = self.parts
            self.managed.coordinator.keeper = keeper
            self.managed.coordinator.opening = False

    def join_checkpoints(self, flow: Flow) -> CheckpointParts | None:
        """The parts for the loop of an application, whose groups are joined so; None if its placement has none."""
        if self.managed is not None:
            self.managed.coordinator.flow = flow
        return self.parts

    def grow(self, group: int, partitions: int) -> None:
        """Grow the changelogs of a group to that many partitions."""
        self._opener.grow(group, partitions)

    def share_out(self, tasks: frozenset[TaskId]) -> None:
        """Replace the set of tasks that instances share out, where they do."""
        self.shared = None if self.shared is None else tasks

    def revoke(self, task_id: TaskId) -> None:
        """Close a task cleanly: uncommitted changes are discarded, files are flushed for a quick reopen."""
        # Each is progress for the lease: closing all tasks together may take longer than `max_stall_ms`.
        self._opener.progress.step(WORK)
        task = self.tasks.pop(task_id)
        began_ms = self._clock.monotonic_ms() if task.last_commit_ms < 0 else task.last_commit_ms
        serves = task.role == "active" and task.state is TaskState.RUNNING
        self.membership.stale |= self.managed is None  # a managed instance reports its tasks elsewhere
        try:
            self.readiness.remove(task_id, "revoked")
            if task.role == "active":
                self.readiness.forget(task_id)
            if task.state not in GONE and not self.readiness.room.text:
                # Without a flush the next opening, perhaps of another process, would replay the WAL: 4.5 s for 180 MB.
                flush(task.id, task.stores)
                self._opener.progress.step(WORK)
        finally:  # the task is in no list any more, and an open one would keep the lock of its directory for good
            self.readiness.close_task(task)
        life = self.lives[task_id]
        if serves and not life.given:  # else it was free from then on, and not only from its close on
            life.left = Left(began_ms, self._clock.monotonic_ms() - began_ms)
        life.given = False

    def adopt(self, added: Iterable[TaskId]) -> None:
        """Make these active here, beside the tasks that are, as the application's own consumer was assigned them."""
        self.leave_offsets()
        active, added = self._active(), frozenset(added)
        self.lives.adopt(added)
        try:
            raise_worst(self._hold(frozenset(active | added), frozenset(self.tasks) - active - added))
        except (Unavailable, Fenced) as error:
            if self.follower is None:
                raise
            # Fenced: a former owner claimed one while it was opened here; the group's decision stands.
            logger.warning(
                "the tasks that the group assigned are opened as soon as the log answers: %s",
                error,
                extra=as_event("log_away"),
            )

    def leave_offsets(self) -> None:
        """Follow every committed offset: a consumer of the application's own is in the group."""
        self._opener.foreign_offsets.judges = False

    def give_up(self, tasks: Iterable[TaskId]) -> None:
        """Give these up, because they are active elsewhere: uncommitted changes are discarded."""
        gone = frozenset(tasks)
        self.lives.give_back(gone)
        for task_id in gone & self._active():
            self.revoke(task_id)
        self.membership.publish()

    def reopen(self, task_id: TaskId, *, if_free: bool = False) -> None:
        """Open a task again that failed or was taken over; changelog records beyond its stored position are replayed.

        Held where tasks are shared out, or with `if_free`, and a live member took it over meanwhile; Fenced if one
        takes it at the same time: the task is lost then. After any error the call may be repeated.
        """
        started_ms = self._clock.monotonic_ms()
        # Read before `reopen` ends the loss, so that a failed opening can record the loss again.
        life, why = self.lives[task_id], self.lives.why_lost(task_id)
        life.named()
        task = self.tasks.get(task_id)
        if task is not None and task.role == "standby" and not life.wanted:
            if task.state in GONE:
                self.readiness.tailer.remove(task_id, "reopened")
                task.close()
                self.open_standby(task_id, loss=Loss.unnoted(task.stores.damaged, task.error))
            return
        if task is not None and (task.role == "active" or task.state in GONE):  # else it is promoted
            # The old error's frames keep handles, and one of those keeps the lock of the directory.
            clear_frames(task.error)
            self.readiness.remove(task_id, "reopened")
            self.readiness.forget(task_id)
            task.close()
        try:
            writer = self.writers.open(task_id, if_free=if_free or self.shared is not None)
        except (Held, Fenced) as other:
            self._lose(task_id, str(other))
            raise
        except StandfastError as error:
            self._not_reopened(task_id, error, why)
            raise
        try:
            self._run(task_id, writer, started_ms)
        except StandfastError as error:
            self._not_reopened(task_id, error, why)
            raise

    def _not_reopened(self, task_id: TaskId, error: StandfastError, why: str | None) -> None:
        """Leave the task closed with its error, or lost; one that was assigned and never opened stays absent."""
        task = self.tasks.get(task_id)
        if task is None:
            if why is not None:
                self.lives.lose(task_id, why)
        elif task.state in GONE:
            task.error = error
            self.readiness.keep_shut(task_id, error)

    def poll_once(self) -> int:
        """Run one round of restore, standby and take-over work; returns the number of applied records."""
        try:
            return self._round()
        except StandfastError:
            raise
        except BaseException as error:
            self._begin_again(error)
            raise

    def _begin_again(self, error: BaseException) -> None:
        """Reopen after a signal handler interrupted a round: records may be read and not applied; positions decide."""
        for task_id, task in self.tasks.items():
            if task.state in (TaskState.RESTORING, TaskState.STANDBY):
                about = as_event("task_reopened", task=task_id)
                logger.warning("task %s is opened again: %r interrupted its reading", task_id, error, extra=about)
                self.readiness.remove(task_id, "failed")
                task.fail(error)
                self.attempts.soon(task_id, str(error), 0, active=task.role == "active", again=Again(RESUME))
        clear_frames(error)

    def _round(self) -> int:
        now_ms = self._clock.monotonic_ms()
        self._monitor_failed()
        self._try_again(now_ms)
        readiness, membership = self.readiness, self.membership
        restored = readiness.restore_round(now_ms)
        self._handle(restored.failed)
        ran, failed = readiness.run_whole()
        self._handle(failed)
        if ran:
            self._has_run = True
            self.follow_now()  # reported at once: the leader plans the next moves by it
        # After the restores: standbys get no records while an active task restores.
        tailed = readiness.standby_round()
        self._handle(tailed.failed)
        self._handle(readiness.standby_tick(now_ms))
        # Tried again each round until the log takes it: other members decide by this instance's plan.
        if membership.stale:
            membership.publish()
        if ran and self.ordered is not None:  # standbys are opened a round later: that holds the session's lock
            return restored.records + tailed.applied + ran
        if now_ms >= self._next_take_over_ms or (self.managed is not None and self.managed.has_news()):
            self._next_take_over_ms = now_ms + self._interval_ms()
            if self.managed is not None:
                self.managed.tick(now_ms)
            elif self.ordered is not None:
                self.ordered()
            elif self.follower is not None:
                self.follower.tick(now_ms)
            else:
                self._take_over.tick()
            if self._next_take_over_ms:  # again: the next look would delay restores that began just now
                self._next_take_over_ms = now_ms + self._interval_ms()
        return restored.records + tailed.applied

    def _interval_ms(self) -> int:
        """Time to the next look at the tasks that come or leave."""
        if self.follower is not None:
            return FOLLOW_TICK_MS
        if self.ordered is not None:
            return ORDERED_TICK_MS
        # Each look reads all members: in a group of hundreds a second of looks would cost more than all else.
        return max(RESTORING_TICK_MS if self.readiness.restorer.tasks else TAKE_OVER_TICK_MS, self.membership.size)

    def rests_for(self, for_ms: int) -> bool:
        """Whether no task is on its way to another state, or to this instance, or will be within that time."""
        waits = self.managed is not None and self.managed.waits_for_owner
        until_ms = self._clock.monotonic_ms() + for_ms
        return not (waits or self.readiness.restorer.tasks) and self.lives.rests_until(until_ms)

    def follow_now(self) -> None:
        """Decide about tasks in the next round, and not after the interval."""
        self._next_take_over_ms = 0

    def hasten(self) -> None:
        """The session closes, and waits for a round that is under way: it is to end soon. Any thread may call it."""
        self._opener.hasten()

    def close(self) -> None:
        """Close every task and leave the group, so that other members may take over at once."""
        # Run in reverse: tasks close before the group is left, or are committed and given up.
        with ExitStack() as last:  # every step runs, whatever errors the earlier ones raise
            readiness = self.readiness
            for close in (self._opener.close, readiness.close, self.membership.leave):
                last.callback(close)
            if self.managed is not None:
                last.callback(self.managed.close)
            for task_id in reversed(list(self.tasks)):
                last.callback(self.revoke, task_id)
            if self.parts is not None:
                last.callback(self.parts.stop)  # it copies files of open tasks
            if self.managed is not None:
                last.callback(self.managed.leave_first)

    def _plan(self) -> MemberPlan:
        # A copy, because the lease's thread calls this while tasks come and go.
        if self.managed is not None:
            return MemberPlan(managed=self._traits)
        held = {task_id: task.role for task_id, task in dict(self.tasks).items() if task.state not in GONE}
        return MemberPlan(
            active=frozenset(task_id for task_id, role in held.items() if role == "active"),
            standby=frozenset(task_id for task_id, role in held.items() if role == "standby"),
            takes_any=self.shared is not None,
            warm=frozenset() if self.follower is None else self.follower.warm(),
        )

    def _active(self) -> set[TaskId]:
        return {task_id for task_id, task in self.tasks.items() if task.role == "active"}

    def _run(self, task_id: TaskId, writer: LogWriter, started_ms: int) -> None:
        """Run a task whose writer was opened just now: promote its standby, or open it."""
        before, life = self.tasks.get(task_id), self.lives[task_id]
        if before is not None and before.role == "standby" and before.state not in GONE:
            self._promote(before, writer, started_ms)
            return
        loss, unwritten = NOTHING, life.unwritten
        if before is not None:
            loss, unwritten = Loss.unnoted(before.stores.damaged, before.error), before.stores.unwritten
        self._begin(self._open(task_id, writer, loss, unwritten), writer, started_ms, "assign")
        life.unwritten = None

    def open_standby(self, task_id: TaskId, *, loss: Loss = NOTHING) -> None:
        """Open a standby of a task; `loss` is the loss that is known already."""
        self._begin(self._open(task_id, None, loss), None, 0, "")

    def _open(
        self, task_id: TaskId, writer: LogWriter | None, loss: Loss, unwritten: Unwritten | None = None
    ) -> Opened:
        """Open the files of a task: of an active one if it has a writer, which an error closes."""
        try:
            return self._opener.open(task_id, owner=writer is not None, loss=loss, unwritten=unwritten)
        except BaseException:
            if writer is not None:
                writer.close()
            raise

    def _begin(self, opened: Opened, writer: LogWriter | None, started_ms: int, why: str) -> None:
        """Let an opened task restore, or follow its changelogs as a standby; an error fails the task alone."""
        task = opened.task
        task.count_in(self.counters)
        self.tasks[task.id] = task
        self.lives[task.id].given = False
        self.membership.stale |= self.managed is None
        self.counters.wipes.update(set(opened.lost.values()))
        self.counters.store_wipes.update(opened.lost.items())
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
            self._reinitialise(task.id, error)

    def try_standby(self, task_id: TaskId) -> None:
        """`open_standby` for placements, which continue: a refused task stays closed here, with its rows."""
        if self.attempts.holds_back(task_id):
            return
        try:
            self.open_standby(task_id)
        except (*WAITS, Held) as away:
            self.attempts.later(task_id, away, active=False)
        except (StateLost, Corruption) as refused:
            logger.error(
                "task %s cannot be a standby here, its rows stay: %s",
                task_id,
                refused,
                extra=as_event("standby_refused", task=task_id),
            )
            self.tasks[task_id] = self._opener.closed(task_id, refused, "standby")

    def _promote(self, task: Task, writer: LogWriter, started_ms: int) -> None:
        try:
            planned = self._end_standby(task, writer)
        except ListenerFailed as error:
            task.role = "active"  # it is owned here now
            self._fail_behind_gate(task.id, error)
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
            planned = self._opener.plan_again(task)
        except Unavailable:
            writer.close()  # the standby continues until the log answers
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
            self._fail_behind_gate(task.id, error)
        except Corruption as damage:  # the next round handles it
            task.fail(damage)

    def _fail_behind_gate(self, task_id: TaskId, error: ListenerFailed) -> None:
        """Fail an active task in the middle of its opening; the gate waits for it."""
        self._reinitialise(task_id, error)
        self.readiness.keep_shut(task_id, error)

    def _monitor_failed(self) -> None:
        for task in self.tasks.values():
            if task.stores.damaged is not None and task.state not in GONE:
                task.fail(task.stores.damaged)
        # Looked at after the failing. A commit may run on another thread, and the log may have it: if the task were
        # closed in the middle of it, its rows would not be here, and no log has those of unlogged stores. It ends
        # within the log's time-outs.
        idle = {task_id: task for task_id, task in self.tasks.items() if not task.committing}
        self._look_for_fenced(idle)
        for task_id, task in idle.items():
            if task_id not in self.tasks:
                continue  # it was fenced
            if task.state is TaskState.FAILED and isinstance(task.error, StandfastError) and is_lost(task.error):
                self._reinitialise(task_id, task.error)

    def _look_for_fenced(self, among: Collection[TaskId]) -> None:
        """Close the tasks for which a commit on any thread has found a newer owner."""
        for task_id, task in list(self.tasks.items()):
            if task_id in among and task.state is TaskState.FAILED and isinstance(task.error, Fenced):
                self._lose(task_id, str(task.error))

    def _try_again(self, now_ms: int) -> None:
        """Open the tasks that are due: they had to wait, the log did not answer, or they were lost and are standbys."""
        for task_id, attempt, again in self.lives.due(now_ms):
            life, task = self.lives[task_id], self.tasks.get(task_id)
            life.attempt = attempt._replace(due_ms=now_ms + AGAIN_MS)  # until it is open, whatever is raised on the way
            if task is None and life.wanted:
                self._open_assigned(task_id, again)
            elif task is None and life.standby:
                self._return_to_standby(task_id, again)
            elif task is not None and task.state in GONE:
                if not task.leaving:  # else it is closed, or the move is taken back
                    self._start_over(task_id, again.reason, again.loss, now_ms)
            else:
                self.lives.drop(task_id)

    def _open_assigned(self, task_id: TaskId, again: Again) -> None:
        """Open a task that the caller assigned and that had to wait, unless another instance took it meanwhile."""
        started_ms = self._clock.monotonic_ms()
        try:
            writer = self.writers.open(task_id, if_free=True)
        except (Held, Fenced) as other:
            self._lose(task_id, str(other))
            return
        try:
            self._run(task_id, writer, started_ms)
        except (*WAITS, Held) as error:
            self.attempts.later(task_id, error, again=again)
        except StandfastError as error:
            if is_of_log(error):
                raise
            self.lives.drop(task_id)
            about = as_event("task_not_opened", task=task_id)
            logger.error("task %s cannot be opened: %s", task_id, error, extra=about)

    def _fail_for_now(self, task: Task, error: Unavailable, reason: str) -> None:
        again = Again(reason)
        if isinstance(error, WAITS):
            self.readiness.put_off(task, error, again)
        else:
            logger.warning(
                "task %s is opened again when the log answers: %s",
                task.id,
                error,
                extra=as_event("task_waits_for_log", task=task.id),
            )
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
        self.counters.fenced += 1
        self.lives.lose(task_id, why)
        # It may have been restoring still: reading on for an absent task fails the whole instance.
        self.readiness.remove(task_id, "fenced")
        self.readiness.forget(task_id)
        task = self.tasks.pop(task_id, None)
        if task is not None:
            task.fail(Fenced(why))
            task.close()
        if self.lives[task_id].standby and self.shared is None:
            self.attempts.soon(task_id, why, 0, active=False, again=Again("returned"))
        self.membership.publish()

    def _return_to_standby(self, task_id: TaskId, again: Again) -> None:
        """Open the standby of a task that was assigned so, and had to wait, or was promoted here and lost."""
        try:
            self.open_standby(task_id)
        except WAITS as away:
            self.attempts.later(task_id, away, active=False, again=again)
        except Unavailable as error:
            about = as_event("standby_waits", task=task_id)
            logger.warning("the standby of task %s is opened again when possible: %s", task_id, error, extra=about)
            self.attempts.soon(task_id, str(error), AGAIN_MS, active=False, again=again)
        except StandfastError as error:
            self.lives.drop(task_id)
            about = as_event("standby_not_reopened", task=task_id)
            logger.error("the standby of task %s cannot be opened again: %s", task_id, error, extra=about)

    def _handle(self, failed: Mapping[TaskId, StandfastError]) -> None:
        for task_id, error in failed.items():
            self._reinitialise(task_id, error)

    def _reinitialise(self, task_id: TaskId, error: StandfastError) -> None:
        """Set state aside that does not fit the log, or is damaged, and restore it from the log."""
        if isinstance(error, Unavailable):
            self._fail_for_now(self.tasks[task_id], error, "unavailable")
            return
        if not is_lost(error):
            self.readiness.remove(task_id, "failed")
            task = self.tasks[task_id]
            task.fail(error)
            trace = error if isinstance(error, ListenerFailed) else None  # the program's own code is in it
            about = as_event("task_failed", task=task_id)
            logger.error("task %s failed: %s", task_id, error, exc_info=trace, extra=about)
            clear_frames(error)  # kept with the task: it must not keep the lock of its directory
            if isinstance(error, BadConfig) and task.role == "active":
                raise error  # a missing permission: the gate would stay shut without an end
            return
        reason = error.reason if isinstance(error, StateLost) else "corrupt"
        logger.warning(
            "task %s: state lost (%s): %s",
            task_id,
            reason,
            error,
            extra=as_event("state_lost", task=task_id, reason=reason),
        )
        loss = reported_loss(self.tasks[task_id].applier.changelogs, error)
        self._start_over(task_id, reason, loss, self._clock.monotonic_ms())

    def _start_over(self, task_id: TaskId, reason: str, loss: Loss, started_ms: int) -> None:
        """Close a task and open it again: the plan decides again and may refuse; only lost stores are removed."""
        old = self.tasks[task_id]
        active, loss = old.writer is not None, loss or Loss.unnoted(old.stores.damaged, old.error)
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
            # Only if free or ours: an instance that took the task over while it failed here keeps it.
            writer = self.writers.open(task_id, if_free=True) if active else None
        except (Held, Fenced) as other:
            self._lose(task_id, str(other))
            return
        except StandfastError as error:
            self._stays_closed(old, reason, loss, error)
            return
        try:
            opened = self._open(task_id, writer, loss, old.stores.unwritten)
        except StandfastError as error:
            self._stays_closed(old, reason, loss, error)
            return
        opened.task.dropped = old.dropped
        self._begin(opened, writer, started_ms, reason)

    def _stays_closed(self, task: Task, reason: str, loss: Loss, error: StandfastError) -> None:
        """Keep a refused task closed with its error (its rows may be the last copy); after Unavailable, try later."""
        task.error = error
        active, again = task.writer is not None, Again(reason, loss)
        if isinstance(error, WAITS):
            self.attempts.later(task.id, error, active=active, again=again)
        else:
            if isinstance(error, Unavailable):
                self.attempts.soon(task.id, str(error), AGAIN_MS, active=active, again=again)
            logger.error(
                "task %s cannot be opened again: %s", task.id, error, extra=as_event("task_not_reopened", task=task.id)
            )
        if task.writer is not None:
            self.readiness.keep_shut(task.id, error)
            if isinstance(error, BadConfig) or self._ends_start(error):
                raise error  # such as a missing permission, which no retry here can fix

    def absent(self) -> dict[TaskId, str]:
        """Tasks that are to be active here and are not, and why; where tasks are shared, those that wait."""
        here = {task_id for task_id, task in dict(self.tasks).items() if task.role == "active"}
        waiting = self.lives.awaited(active=True)
        wanted = self.lives.wanted if self.shared is None else frozenset()
        return {
            task_id: self.lives.why_lost(task_id)
            or "could not be opened yet" + (f" ({waiting[task_id]})" if task_id in waiting else "")
            for task_id in (wanted | waiting.keys()) - here
        }

    def unplaced(self) -> str:
        """Why it is not known yet which tasks this instance is to hold; empty once it is, or the caller names them."""
        return "" if self.managed is None else self.managed.unplaced()

    def check_lost(self) -> None:
        """Raise Fenced, or ListenerFailed, of a task that only the caller can bring back."""
        absent = self.absent() if self.follower is None else {}
        for task_id in sorted(absent.keys() & self.lives.lost.keys()):
            raise lost_task(task_id, absent[task_id])
        for task in self.tasks.values():
            if task.role == "active" and isinstance(task.error, ListenerFailed):
                raise ListenerFailed(str(task.error)) from task.error.__cause__

    def take(self, task_id: TaskId, *, if_free: bool = True) -> None:
        """Run a task; with `if_free` not while another live member owns it. A task that failed here stays as it is."""
        if task_id in self._active() or (task_id in self.tasks and self.tasks[task_id].state in GONE):
            return
        if self.attempts.holds_back(task_id):
            return
        started_ms = self._clock.monotonic_ms()
        try:
            writer = self.writers.open(task_id, if_free=if_free)
        except (Held, Fenced) as other:
            # Fenced: another instance claimed it after this one, and before the log let this one in. A standby stays
            # a standby; the next look at the group finds the owner.
            self.lives.drop(task_id)
            logger.info("task %s: %s", task_id, other, extra=as_event("take_over_lost", task=task_id))
            return
        try:
            self._run(task_id, writer, started_ms)
        except (*WAITS, Held) as error:
            self.attempts.later(task_id, error)
            return
        except (StateLost, Corruption) as refused:
            self.lives.drop(task_id)
            if self._ends_start(refused):
                raise
            logger.error(
                "task %s cannot be taken over: %s", task_id, refused, extra=as_event("take_over_refused", task=task_id)
            )
            if task_id in self.tasks:
                self.tasks[task_id].fail(refused)
            else:
                self._keep_closed(task_id, refused)
        self.membership.stale |= self.managed is None

    def _ends_start(self, error: StandfastError) -> bool:
        """Whether an application ends with this refusal: at its start, while no other instance lives."""
        return isinstance(error, StateLost) and error.reason == FOREIGN_OFFSETS and not self._has_run and self.alone()

    def _keep_closed(self, task_id: TaskId, refused: StandfastError) -> None:
        """Keep an owned task that must not be opened: it holds the gate shut, and reports the reason."""
        self.tasks[task_id] = self._opener.closed(task_id, refused, "active")
        self.readiness.keep_shut(task_id, refused)
