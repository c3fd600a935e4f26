"""The supervisor of an instance with worker processes: it is the member of the group, and its workers run the tasks.

    state directory's lock, lease, placement ── here          stores, restores, standbys, processing ── in the workers

    poll_once ──> Pool.poll: reports, ends, restarts ──> ManagedPlacement.tick: what this instance is to hold
                                                     ──> Pool.follow: an order for each worker
    close     ──> workers commit, close and end ──> report that the instance has stopped, leave, unlock
    http_port ──> server in a thread of its own: reads `seen` and `statistics`, asks workers through lines of their own

The lease is renewed by a lease process, as that of any session, while `poll_once` makes progress.

Rules of this file: one thread drives it, which the kernel binds the workers to; the lease and the care of the log have
threads of their own. A lock guards the placement and the log against readers of figures. It opens no store but to look
at the positions of closed tasks. Work that failed because the log was unavailable is tried again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from standfast.replication.checkpoint_flow import Flow
from standfast.replication.kafka.callbacks import needs_this_process, with_settings
from standfast.replication.offsets import TaskId
from standfast.replication.placement.model import PlacementSettings
from standfast.replication.placement.topic import PlacementTopic
from standfast.replication.progress import WORK
from standfast.replication.tail.log_care import CARE_INTERVAL_MS, care
from standfast.replication.tail.open_log import open_log
from standfast.replication.takeover import MemberPlan, MemberTraits
from standfast.replication.topics.changelog import grow_changelogs
from standfast.restore.replay.bulk import BulkStatistics
from standfast.store.clock import Clock
from standfast.store.closing import Closing
from standfast.store.errors import Closed, Held, Unavailable
from standfast.store.log import as_event, logger
from standfast.store.process import forks
from standfast.store.process.figures import Figures
from standfast.store.rocks.opening import RocksShared
from standfast.store.specs import StoreSpec
from standfast.store.task.state_dir import StateDir, owner_pid
from standfast.store.timestamps import duration_text
from standfast.stream.deaths.death_notes import DeathNotes
from standfast.stream.restart import RestartStrategy
from standfast.stream.session.background import Background
from standfast.stream.session.group_thread import GroupThread
from standfast.stream.session.lease import LeaseKeeper
from standfast.stream.session.managed import ManagedPlacement
from standfast.stream.session.membership import Membership, naming_former_id
from standfast.stream.session.session_tasks import group_of_store
from standfast.stream.session.writers import Writers
from standfast.stream.snapshot_counts import MADE, SnapshotCounts
from standfast.stream.task.groups import TaskGroup, all_specs, all_task_ids, program_of, shapes_of
from standfast.stream.task.rows_on_disk import RowsOnDisk
from standfast.stream.task.settings import MEMORY_MIN_BYTES, SessionOptions, SessionSettings
from standfast.stream.task.statistics import SessionCounters, SessionStatistics
from standfast.stream.workers.care import InstanceCare
from standfast.stream.workers.command import Program
from standfast.stream.workers.pool import Pool, PoolSettings
from standfast.stream.workers.seen import InstanceSeen

TICK_MS = 100
WAIT_MS = 20
CHECKPOINT_WAIT_MS = 5
RETRY_MS = 200
UNLOCK_MS = 5_000  # workers of a killed supervisor have the directory's lock until the kernel has ended them
UNLOCK_LOOK_MS = 20
STARTING = "the supervisor has not looked at the placement of tasks yet"


class Supervisor(Closing):
    """See the head of this file. Raises Held, Unavailable and BadConfig as a session does.

    `groups` are those of the application; `options` its settings as they stand for the whole instance; `flow` says how
    its groups are joined, for coordinated checkpoints.
    """

    def __init__(
        self,
        app: str,
        *,
        log: str,
        state_dir: str | Path,
        groups: Mapping[int, TaskGroup],
        options: SessionOptions,
        restart: RestartStrategy,
        workers: int,
        program: Program,
        clock: Clock,
        flow: Flow | None = None,
    ) -> None:
        self.app = app
        self.clock = clock
        self.standbys_missing = 0
        self.shared: frozenset[TaskId] | None = all_task_ids(groups)
        self._groups = dict(groups)
        self._settings = settings = SessionSettings.of(options)
        settings.check(app, (), groups)
        address = with_settings(log, settings.kafka)
        self.counters = SessionCounters()
        self._keeper = LeaseKeeper(settings.lease_ms, settings.max_stall_ms, clock, self.counters, workers=workers)
        self._background = Background(clock, threads=True)
        self._closed = False
        self._group_thread: GroupThread | None = None
        self._next_tick_ms = 0
        self._lock = threading.RLock()
        self.seen = InstanceSeen(unplaced=STARTING)  # replaced as a whole, so that other threads may read it
        self._round_ms = clock.monotonic_ms()
        self._figures = Figures(self._read_statistics, clock)
        with ExitStack() as undo:
            self._http = settings.http()  # a taken port is found before any state is opened
            undo.callback(self._http.close)
            with naming_former_id(app, address, settings.kafka):
                self._state = wait_for_directory(state_dir, app, clock)
            undo.callback(self._state.close)
            undo.callback(self._end_threads)
            self._keep_lease(address)
            self.log = open_log(address, clock=clock, kafka=settings.kafka)
            undo.callback(self.log.close)
            self._group = self.log.group(app)
            undo.callback(self._group.close)
            self._lease_group = self.log.group(app)
            undo.callback(self._lease_group.close)
            member, path = self._state.instance_id, self._state.path
            traits = MemberTraits(workers, settings.tags, program_of(groups), settings.max_tasks)
            self.writers = Writers(self.log, self._group, app, member)
            self.membership = Membership(self._group, member, settings.lease_ms, self._keeper, self.counters, path)
            self.membership.plan = lambda: MemberPlan(managed=traits)
            self._deaths = DeathNotes.begun(self._group, path, member)
            self.pool = Pool(
                self._pool_settings(log, state_dir, traits.program, workers, program, restart), clock, self.counters
            )
            undo.callback(self.pool.kill)
            self.managed = self._placement(traits, undo)
            self._care = self._take_part(flow, undo)
            self.membership.publish()
            self._keeper.begin(self.membership, app, self._lease_group)
            tend = partial(care, self.log, clock, self._log_is_mine)
            self._background.repeat("standfast-care", lambda: CARE_INTERVAL_MS, tend)
            if settings.take_over and (watch := self._group.watch()) is not None:
                self._group_thread = GroupThread(self._background, watch, self._hear)
            self._http.open_supervisor(self)
            undo.pop_all()

    @property
    def instance_id(self) -> str:
        """Stable id of this instance, kept in the state directory."""
        return self._state.instance_id

    @property
    def state_path(self) -> Path:
        """`<state_dir>/<app>`."""
        return self._state.path

    @property
    def http_address(self) -> str | None:
        """`http://host:port` of the HTTP server that `http_port` opened."""
        return None if self._http.server is None else self._http.server.address

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The stores of all groups."""
        return all_specs(self._groups)

    def group_of_store(self, store: str) -> int:
        """The group of tasks that has a store. Raises UnknownStore."""
        return group_of_store(store, self._groups, self.app)

    def stalled(self) -> str:
        """Why this process makes no progress, so that it must be started again; "" if it does. Waits for nothing."""
        error = self._background.fatal or self.pool.error
        if error is not None and not self._closed:
            return f"{type(error).__name__}: {error}"
        silent_ms = self.clock.monotonic_ms() - self._round_ms
        if silent_ms > self._settings.max_stall_ms:
            return f"the last round of the supervisor was {duration_text(silent_ms)} ago"
        return ""

    def not_ready_reasons(self) -> list[str]:
        """Reasons against processing; empty if the instance may process. Waits for nothing."""
        seen = self.seen
        if self._closed:
            return [f"application {self.app!r} is closing"]
        return [*seen.reasons(), *([seen.no_room] if seen.no_room else [])]

    def statistics(self) -> SessionStatistics:
        """The supervisor's own figures, with the tasks of its workers by their last reports.

        While the supervisor waits for the log they are the last ones, after a second.
        """
        if self._closed:
            raise Closed(f"application {self.app!r} is closing, or belongs to the parent process")
        found, age_ms = self._figures.take()
        return replace(found, log_read_ms_ago=age_ms)

    def grow(self, partitions: Mapping[int, int]) -> None:
        """Set the groups' numbers of tasks, as their source topics grew; a smaller number changes nothing."""
        for number, count in sorted(partitions.items()):
            group = self._groups[number]
            if count > group.partitions:
                grow_changelogs(self.log.admin, self.app, group.specs, count)
                self._groups[number] = replace(group, partitions=count)
        self.shared = all_task_ids(self._groups)

    @property
    def misses_partitions(self) -> bool:
        """Whether a leader has placed tasks here of partitions that this supervisor has not found yet."""
        return self.managed.misses_partitions

    def poll_once(self) -> None:
        """One round: wait for a worker's word, and follow the group. Raises the error that ends the run."""
        self._keeper.progress.step(WORK)
        self._round_ms = self.clock.monotonic_ms()
        # A checkpoint under way: the orders of another leader, and its parts in other instances, come soon.
        self.pool.wait(CHECKPOINT_WAIT_MS if self.pool.parts.under_way else WAIT_MS)
        with self._lock:
            try:
                self._round()
            finally:
                self._look()

    def _round(self) -> None:
        self.pool.poll()
        self._keeper.progress.note_loops(self.pool.loops())
        for error in (self.pool.error, self._background.fatal):
            if error is not None:
                raise error
        now_ms = self.clock.monotonic_ms()
        try:
            if now_ms < self._next_tick_ms and not self.pool.changed and not self.managed.has_news():
                return
            self._next_tick_ms = now_ms + max(TICK_MS, self.membership.size)  # each look reads all members
            if self.membership.stale:
                self.membership.publish()
            self._note_snapshots()
            self._deaths.again()
            self.managed.tick(now_ms)
        except Unavailable as error:
            self._next_tick_ms = now_ms + RETRY_MS
            logger.warning("the placement is tried again: %s", error, extra=as_event("background_retried"))

    def close(self) -> None:
        """End the workers cleanly, report that the instance has stopped, leave the group and release the directory.

        Closing twice is fine. Raises WorkerFailed, once everything is closed, if a worker did not end cleanly.
        """
        if self._closed:
            return
        self._closed = True
        # Run in reverse: the group is left once no worker has a task open, and after the lease's thread, which would
        # join again; the directory is released last.
        with ExitStack() as last:
            for close in (
                self._http.close,  # last: requests that wait are answered, and the directory has no info file after it
                self._state.close,
                self.log.close,
                self._disk_reader.close,
                self._lease_group.close,
                self._group.close,
                self.membership.leave,
                self.managed.close,
                self._end_threads,
                self._end_care,
                self._deaths.clear,
                self.pool.kill,
            ):
                last.callback(close)
            self.pool.stop(self._alive)

    def forked(self) -> None:
        """As in `forks.Owned`: the workers are the parent's."""
        self._closed = True

    def snapshot_counts(self) -> SnapshotCounts:
        """Counts of the snapshots and checkpoints of the whole instance."""
        total = self.counters.snapshots.copy()
        total.add(self.pool.snapshot_counts())
        return total

    def _hear(self) -> None:
        """Look at the members in the next round."""
        self._next_tick_ms = 0

    def _alive(self) -> None:
        self._keeper.progress.step(WORK)
        self._round_ms = self.clock.monotonic_ms()

    def _look(self) -> None:
        """Publish the state of the workers to readers in other threads."""
        workers, missing = self.pool.seen()
        pool, unplaced = self.pool, self.managed.unplaced()
        self.seen = InstanceSeen(workers, missing, unplaced, pool.no_room, pool.gate_open, pool.paused)

    def _read_statistics(self) -> SessionStatistics:
        with self._lock:
            view, seen, wall_ms = self.membership.view, self.seen, self.clock.wall_ms()
            return SessionStatistics(
                app=self.app,
                instance=self.instance_id,
                ready=not seen.reasons(),
                missing=seen.reasons(),
                members=() if view is None else tuple(member.member_id for member in view.members),
                standbys_missing=self.standbys_missing,
                tasks=seen.tasks(),
                restores=(),
                counters=self.counters.copy(),
                bulk=BulkStatistics(),
                log_lock=self.log.lock_holder(),
                placement=self.managed.snapshot(wall_ms),
                at_ms=wall_ms,
                max_tasks=self.managed.max_tasks,
                slots_missing=self.managed.slots_missing,
            )

    def _placement(self, traits: MemberTraits, undo: ExitStack) -> ManagedPlacement:
        settings, groups = self._settings, self._groups
        return ManagedPlacement(
            self,
            self.pool,
            PlacementTopic(self.log, self.app, self.instance_id, self.clock, acceptable_lag=settings.acceptable_lag),
            PlacementSettings(
                settings.standby_replicas, settings.warmups_max, settings.acceptable_lag, settings.restart_grace_ms
            ),
            traits,
            frozenset(number for number, group in groups.items() if not group.specs),
            self._rows_on_disk(undo),
            shapes=shapes_of(groups),
            replace=settings.replace,
        )

    def _take_part(self, flow: Flow | None, undo: ExitStack) -> InstanceCare | None:
        """Take part in checkpoints, and begin to care for the snapshots' storage, if there is one. Raises BadConfig."""
        policy, care = self._settings.snapshots, None
        if policy is not None:
            care = InstanceCare(self.app, policy, clock=self.clock, counts=self.counters.snapshots)
            undo.callback(care.stop)
            care.start()
        self.managed.parts = self.pool.parts
        self.managed.coordinator.flow, self.managed.coordinator.keeper = flow, care
        return care

    def _note_snapshots(self) -> None:
        if self._care is not None:
            self._care.note(frozenset(map(str, self.pool.facts().running)), self.pool.snapshot_counts().made[MADE])

    def _rows_on_disk(self, undo: ExitStack) -> RowsOnDisk:
        self._disk_reader = self.log.reader()
        undo.callback(self._disk_reader.close)
        return RowsOnDisk(
            self._state,
            self._disk_reader,
            lambda number: self._groups[number].specs if number in self._groups else (),
            RocksShared(MEMORY_MIN_BYTES),  # no more than for looks at positions: the setting is the workers'
            clock=self.clock,
            opening=self._keeper.progress.replaying,
        )

    def _pool_settings(
        self,
        log: str,
        state_dir: str | Path,
        program_hash: str,
        workers: int,
        program: Program,
        restart: RestartStrategy,
    ) -> PoolSettings:
        settings = self._settings
        opened = {
            "app": self.app,
            "log": log,
            "state_root": str(Path(state_dir).absolute()),
            "guarantee": settings.guarantee,
            "program": program_hash,
            "instance": self._state.instance_id,
        }
        return PoolSettings(
            program,
            workers,
            settings.lease_ms,
            settings.max_stall_ms,
            restart,
            opened,
            self._state.lock,
            forget=self._state.drop_copies,
            alone=lambda: self.membership.size <= 1,
            deaths=self._deaths,
            lines=self._http,
        )

    def _keep_lease(self, address: str) -> None:
        forks.dies_in_child(self)
        if not needs_this_process(self._settings.kafka):
            self._keeper.use_process(address, self._settings.guarantee)
        self._background.start("standfast-lease", self._keeper.run)

    def _log_is_mine(self) -> bool:
        view = self.membership.view
        return view is not None and view.leader == self.membership.member

    def _end_care(self) -> None:
        if self._care is not None:
            self._care.stop()

    def _end_threads(self) -> None:
        self._background.stop.set()
        if self._group_thread is not None:
            self._group_thread.wake()
        self._keeper.stop()
        self._background.end()


def wait_for_directory(state_dir: str | Path, app: str, clock: Clock) -> StateDir:
    """Own the state directory; the workers of a killed supervisor, which are ending, are waited for. Raises Held."""
    deadline_ms = clock.monotonic_ms() + UNLOCK_MS
    while True:
        try:
            return StateDir(state_dir, app)
        except Held:
            live = owner_pid(Path(state_dir).absolute() / app) is not None
            if live or clock.monotonic_ms() >= deadline_ms:
                raise
            clock.sleep_ms(UNLOCK_LOOK_MS)
