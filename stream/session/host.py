"""The parts of a session, from their opening to their end: log, lease, instance, background work and figures.

    open    state directory ──> log and lease ──> instance ──> threads ──> HTTP; an error closes these in reverse
    rounds  restores, standbys, tasks that come and leave: under the session's lock; an error ends them, and every later
            call raises it
    close   threads, tasks, group, log, and the directory last: its lock keeps other processes out until then

Rules of this file: the lock and the life of a session. Its subclasses have the calls, and choose the parts: they
override `_make_...`, `_open_log` and `_repeats`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from standfast.replication.checkpoint_flow import Flow
from standfast.replication.listeners import Listener, Listeners
from standfast.replication.log import Group, GroupView, Log, LogReader
from standfast.replication.offsets import TaskId
from standfast.replication.progress import WORK, LeaseProgress
from standfast.replication.tail import log_care
from standfast.replication.tail.fetch_pipeline import FetchPipeline
from standfast.replication.tail.open_log import disk_guard, open_log
from standfast.store.arguments import checked
from standfast.store.clock import Clock, SystemClock
from standfast.store.closing import Closing
from standfast.store.disk import DiskGuard
from standfast.store.errors import Closed, Corruption, InternalError, InvalidRequest, StandfastError, Unavailable
from standfast.store.log import as_event, logger
from standfast.store.process import forks
from standfast.store.process.figures import Figures
from standfast.store.process.interrupts import Apart, Flag, is_main, whole
from standfast.store.task.state_dir import StateDir
from standfast.stream.session import changelog_heads
from standfast.stream.session.background import Background, Repeated
from standfast.stream.session.changelog_heads import ChangelogHeads
from standfast.stream.session.composition import make_instance
from standfast.stream.session.external_consumer import ExternalConsumer
from standfast.stream.session.group_thread import GroupThread
from standfast.stream.session.instance import Instance
from standfast.stream.session.lease import LeaseKeeper, renewed_here
from standfast.stream.session.membership import Membership, own_directory
from standfast.stream.session.session_tasks import known_partitions, missing_lines
from standfast.stream.session.snapshot import LogFigures, restores_of, session_statistics
from standfast.stream.snapshot_counts import Downloads
from standfast.stream.snapshots import care as care_of_storage
from standfast.stream.snapshots.keeper import SnapshotKeeper
from standfast.stream.snapshots.parts import CheckpointParts
from standfast.stream.task.groups import TaskGroup, all_specs
from standfast.stream.task.settings import CACHE_DEFAULT_BYTES, CACHE_MIN_BYTES, Guarantee, SessionSettings
from standfast.stream.task.states import TaskState
from standfast.stream.task.statistics import RestoreStatistics, SessionCounters, SessionStatistics, SourceStatistics
from standfast.stream.task.task import Task
from standfast.stream.task.task_commits import TaskCommits

IDLE_WAIT_S = 0.01
SETTLED_WAIT_MS = 50  # no task is on its way; records for standbys and orders end the wait
RETRY_WAIT_S = 0.2
BULK_WAIT_S = 0.002
GIVE_WAY_S = 0.001  # enough for a thread that waits for the lock to take it
SOURCE_READER = "source"
SOURCE_LOOK_MS = 20
LEASE_THREAD = "standfast-lease"
CARE_THREAD = "standfast-care"


K = TypeVar("K", bound="type[SessionHost]")


def closed_if_lost(cls: K) -> K:
    """Class decorator, above each other one: a session that no caller gets, since a handler raised last, is closed."""
    init: Callable[..., None] = cls.__init__

    @wraps(init)
    def init_or_close(self: SessionHost, /, *given: object, **named: object) -> None:
        try:
            init(self, *given, **named)
        except BaseException:
            if self._opened_whole:  # else the opening undoes itself
                self._apart.run(self._close)
            raise

    made: Any = init_or_close
    cls.__init__ = made  # type: ignore[method-assign]
    return cls


@checked(InvalidRequest)
class SessionHost(Closing):
    """See the head of this file."""

    own_sources: Callable[[], tuple[SourceStatistics, ...]] = tuple  # of the application whose loop runs in it
    commit_interval_ms: Callable[[], int | None] = staticmethod(lambda: None)  # in force in that loop
    read_only = False  # True: it follows changelogs of another application, and its standbys are read
    _snapshots: SnapshotKeeper | None = None  # of a policy of snapshots
    _closed = False
    _group_thread: GroupThread | None = None
    _asked = False  # a call has come since the last round of background work
    _opened_whole = False
    _keeps_snapshots = True  # False: a policy of snapshots is for beginning with them alone
    _leased = True  # False: another process is the member of the group, and renews the lease

    def __init__(
        self,
        app: str,
        log: str,
        state_dir: str | Path | StateDir,
        groups: dict[int, TaskGroup],
        *,
        grouped: bool,
        settings: SessionSettings,
        clock: Clock | None,
        background: bool,
        listeners: Iterable[Listener],
    ) -> None:
        self._settings = settings
        self._groups = groups
        self._grouped = grouped
        self.app = app
        self.clock: Clock = clock or SystemClock()
        self.listeners = Listeners()
        for listener in listeners:
            self.listeners.add(listener)
        self.counters = SessionCounters()
        self.specs = all_specs(self._groups)
        self._lock = threading.RLock()  # reentrant: calls of the session use each other under it
        self._figures_lock = threading.Lock()
        self._wake = Flag()
        self._released = Flag()
        self._background = Background(self.clock, threads=background)
        self.threads = self._background.threads
        self._commits = TaskCommits()
        self._pipeline: FetchPipeline | None = None
        self._keeper = LeaseKeeper(self._settings.lease_ms, self._settings.max_stall_ms, self.clock, self.counters)
        self.progress = self._make_progress()
        self._apart = Apart()
        self._opening = threading.Lock()
        try:
            self._apart.run(lambda: self._open(log, state_dir, background))
        except BaseException:
            self._apart.run(self._give_up_opening)
            raise

    def _open(self, log: str, state_dir: str | Path | StateDir, background: bool) -> None:
        with self._opening, ExitStack() as undo:
            if self._closed:
                return  # given up before it began
            self._http = self._settings.http()  # a taken port is found before any state is opened
            undo.callback(self._http.close)
            self._state = own_directory(state_dir, self.app, log, self._settings.kafka)
            undo.callback(self._undo_open)
            leased = self._leased and not self.read_only
            if leased and background:
                self._keep_lease(log)  # its process connects while the log is opened
            self.disk = self._disk_guard(log)
            self.disk.look()
            self.log = self._open_log(log)
            self._group = self.log.group(self.app)
            # A connection of its own: heartbeats must not wait for calls under the session's lock.
            self._lease_group = self.log.group(self.app)
            self._statistics_group: Group | None = None
            self._statistics_reader = self.log.reader()
            self._log_figures = LogFigures(self._statistics_reader, self.clock)
            self._figures = Figures(self._read_statistics, self.clock)
            if background:
                self._pipeline = FetchPipeline(self.log, wake=self._wake.set)
            self._instance = self._make_instance()
            self._instance.membership.publish()
            at = (self.app, self.log, self.instance_id, self.specs, lambda: self._instance.tasks)
            self._heads = ChangelogHeads(*at, self.clock, read_only=self.read_only)
            if leased:
                self._keeper.begin(self._instance.membership, self.app, self._lease_group)
            if leased and not background:
                self._background.repeat(LEASE_THREAD, self._keeper.interval_ms, self._keeper.renew)
            self.external_consumer = self._make_consumer()
            # From here on `close` releases everything that the steps of `_undo_open` did, and the log too.
            undo.pop_all()
            undo.callback(self.close)
            if background:
                self._background.start("standfast-replication", self._run)
            watch = self._group.watch() if leased and background and self._settings.take_over else None
            if watch is not None:
                self._group_thread = GroupThread(self._background, watch, self._hear)
            for name, one in self._repeats().items():
                self._background.repeat(name, *one)
            self._snapshots = self._snapshot_keeper()
            self._http.open(self)
            undo.pop_all()
            self._opened_whole = True
            forks.dies_in_child(self)

    def _make_consumer(self) -> ExternalConsumer:
        raise InternalError("a session has the calls that an external consumer needs")

    def _give_up_opening(self) -> None:
        """Close an opening after its end, where an exception of a signal handler has ended the wait for it."""
        with self._opening:
            if not self._opened_whole:
                self._closed = True
                return
        self._close()

    def _undo_open(self) -> None:
        self._stop_threads()
        if self._pipeline is not None:
            self._pipeline.close()
        self._state.close()

    def _disk_guard(self, address: str) -> DiskGuard:
        return disk_guard(self._state.path, address, self._settings.disk_floor_bytes)

    def _open_log(self, address: str) -> Log:
        return open_log(address, clock=self.clock, kafka=self._settings.kafka)

    def _repeats(self) -> dict[str, Repeated]:
        """The background work that is done again after an interval, by thread name."""
        found: dict[str, Repeated] = {
            CARE_THREAD: (
                lambda: log_care.CARE_INTERVAL_MS,  # tests choose another one
                lambda: log_care.care(self.log, self.clock, self._log_is_mine),
            )
        }
        if not self._heads.idle:
            found[changelog_heads.THREAD] = lambda: changelog_heads.LOOK_MS, self._heads.poll
        return found

    def _make_instance(self) -> Instance:
        settings = self._settings
        self._downloads = Downloads()
        return make_instance(
            self.app,
            self.log,
            self._group,
            self._state,
            self._groups,
            settings,
            self.disk,
            self._make_membership(),
            follow=self._grouped and settings.discovery_interval_ms is not None,
            foreign=self.read_only,
            reader=self.reader,
            wake=None if self._pipeline is None else self._wake.set,  # None: the caller drives the session
            clock=self.clock,
            listeners=self.listeners,
            counters=self.counters,
            progress=self.progress,
            downloads=self._downloads,
            threads=self.threads,
            buffer_bytes=self._buffer_bytes,
            learn_partitions=self._learn_partitions,
        )

    def _snapshot_keeper(self) -> SnapshotKeeper | None:
        policy, keeper, counts = self._settings.snapshots, None, self.counters.snapshots
        if policy is not None and not self.threads.stepped:
            self._figures.take()  # the first ones: a status asked for during a download has older ones to show
        if policy is not None and self._keeps_snapshots and not self.read_only:
            about = (self.app, policy, self._state, self._running)
            keeper = SnapshotKeeper(*about, clock=self.clock, counts=counts, cares=self._leased, threads=self.threads)
        self._instance.take_part(keeper)
        if keeper is not None and self.threads.stepped:
            self._background.repeat(care_of_storage.THREAD, lambda: care_of_storage.TICK_MS, keeper.tick)
            if self._instance.parts is not None:
                self._background.repeat("standfast-parts", lambda: 0, self._instance.parts.step)
        elif keeper is not None:
            keeper.start()
        return keeper

    def join_checkpoints(self, flow: Flow) -> CheckpointParts | None:
        """Take part in coordinated checkpoints with the loop of an application; None if its placement has none."""
        return self._instance.join_checkpoints(flow)

    def _running(self) -> dict[TaskId, Task]:
        """Active tasks that run here, without the lock: their snapshots wait for no other work."""
        tasks = self._instance.tasks.copy()
        return {one: task for one, task in tasks.items() if task.role == "active" and task.state is TaskState.RUNNING}

    def _make_progress(self) -> LeaseProgress:
        return self._keeper.progress

    def _make_membership(self) -> Membership:
        settings = self._settings
        member, path = self._state.instance_id, self._state.path
        return Membership(self._group, member, settings.lease_ms, self._keeper, self.counters, path)

    def reader(self, name: str) -> LogReader:
        """A reader for one applier: a lane of the session's fetch thread, or a reader of its own without threads."""
        if self._pipeline is None:
            return self.log.reader()
        if name == SOURCE_READER:  # the loop waits for records itself, and has other work when it does not wait
            return self._pipeline.lane(name, look_ms=SOURCE_LOOK_MS)
        return self._pipeline.lane(name, self._wake.set)

    @property
    def instance_id(self) -> str:
        """Stable id of this instance, kept in the state directory."""
        return self._state.instance_id

    @property
    def guarantee(self) -> Guarantee:
        """ "exactly_once" or "at_least_once"."""
        return self._settings.guarantee

    @property
    def state_path(self) -> Path:
        """`<state_dir>/<app>`."""
        return self._state.path

    @property
    def http_address(self) -> str | None:
        """`http://host:port` of the HTTP server that `http_port` opened."""
        return None if self._http.server is None else self._http.server.address

    def poll_once(self) -> int:
        """Run one round of background work, for a session without threads of its own; 0: no work was at hand.

        Its lease is renewed here, too: call it several times within `lease_ms`. With `restore_workers` given, a round
        waits up to 2 ms for the threads of a bulk restore that is in progress.
        """
        with self._usable():
            self.progress.step(WORK)
            self._background.step()
            done = self._instance.poll_once()
        self.external_consumer.monitor()
        # A caller that only polls keeps the interpreter from those threads: 1,000,000 records took 51 s, and 3 s so.
        if not done and self._pipeline is None and self._instance.readiness.restorer.waits_for_threads:
            self._wake.wait(BULK_WAIT_S)
            self._wake.clear()
        return done

    def close(self) -> None:
        """Stop the threads, close tasks cleanly, leave the group, release the directory. Closing twice is fine.

        Raises Unavailable, once everything else is closed, if a call to the log does not return to the fetch thread.
        """
        self._instance.hasten()  # before the lock, which background work may hold for as long as its calls take
        self._close()
        if is_main() and not self._within_call():  # an exception may have ended the wait of an earlier call
            self._released.wait()

    def _within_call(self) -> bool:
        lock: Any = self._lock
        return lock._is_owned() or any(task.commits_here for task in self._instance.tasks.copy().values())

    @whole
    def _close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            self._stop_threads()
            # Run in reverse: the directory last, whose lock keeps other processes out while anything is open.
            with self._lock, ExitStack() as last:
                last.callback(self._state.close)
                last.callback(self._close_log)
                last.callback(self._instance.close)
                if self._pipeline is not None:
                    last.callback(self._pipeline.close)
        finally:
            try:
                self._http.close()  # last, and without the lock, so that requests that wait for it are answered
            finally:
                self._released.set()

    def forked(self) -> None:
        """As in `forks.Owned`."""
        self._closed, self._lock, self._apart, self._released = True, threading.RLock(), Apart(), Flag(is_set=True)

    def _stop_threads(self) -> None:
        if self._snapshots is not None:
            self._snapshots.stop()
        self._background.stop.set()
        self._wake.set()
        if self._group_thread is not None:
            self._group_thread.wake()
        # The lease last: a round that still runs would join again after the lease had run out.
        self._background.end(but=LEASE_THREAD)
        self._keeper.stop()
        self._background.end()

    def _close_log(self) -> None:
        if self._pipeline is not None and self._pipeline.running:
            return  # a call to the log has not returned: its client must not be closed under it
        self._heads.close()
        self._statistics_reader.close()
        self._group.close()
        self._lease_group.close()
        if self._statistics_group is not None:
            self._statistics_group.close()
        self.log.close()

    def _usable(self) -> threading.RLock:
        """The lock, after a check that the session is open and its background work runs."""
        self._check_usable()
        self._asked = True
        return self._lock

    def _check_usable(self) -> None:
        self._apart.wait()
        if self._closed:
            raise Closed(f"session of application {self.app!r} is closed, or belongs to the parent process")
        fatal = self._background.fatal
        if fatal is not None:
            # With the traceback of that moment: raised repeatedly, it would grow with each of these calls.
            raise self._stopped(fatal).with_traceback(self._background.fatal_trace)

    def _stopped(self, fatal: BaseException) -> BaseException:
        """The error of calls after background work stopped: the same error, since trying again would change nothing."""
        return fatal

    def _retries(self, error: StandfastError) -> bool:
        """Whether background work continues after this error, and is tried again."""
        return isinstance(error, Unavailable)

    def _run(self) -> None:
        while not self._background.stop.is_set():
            wait_s = IDLE_WAIT_S
            try:
                # The lease is renewed only while rounds make progress.
                self.progress.step(WORK)
                with self._lock:
                    if self._instance.poll_once():
                        wait_s = 0.0
                    elif self._instance.rests_for(SETTLED_WAIT_MS):
                        wait_s = SETTLED_WAIT_MS / 1_000
                self.external_consumer.monitor()
            except (Unavailable, Corruption) as error:
                if not self._retries(error):
                    raise
                logger.warning("background work will be tried again: %s", error, extra=as_event("background_retried"))
                wait_s = RETRY_WAIT_S
            if wait_s:
                self._wake.wait(wait_s)
                self._wake.clear()
            elif self._asked:  # or this thread would take the lock again before a waiting one wakes up
                self._asked = self._background.stop.wait(GIVE_WAY_S)

    def _hear(self) -> None:
        """Look at the members in the next round, which begins now."""
        self._instance.follow_now()
        self._wake.set()

    def _keep_lease(self, address: str) -> None:
        """Start the renewal of the lease: it connects while the session opens."""
        # Without take-over no other member takes a task over when the lease runs out.
        if not renewed_here(self.app, self._settings.kafka) and self._settings.take_over:
            self._keeper.use_process(address, self._settings.guarantee)
            self.progress = self._keeper.progress
        self._background.start(LEASE_THREAD, self._keeper.run)

    def _cares_for(self, leader: str) -> bool:
        """Whether this session cares for the log while that member leads: one member is enough."""
        return leader == self.instance_id

    def _log_is_mine(self) -> bool:
        view = self._instance.membership.view
        return view is not None and view.leader is not None and self._cares_for(view.leader)

    def _buffer_bytes(self) -> int:
        total = self._settings.cache_max_bytes or CACHE_DEFAULT_BYTES
        return max(total // max(len(self._instance.tasks), 1), CACHE_MIN_BYTES)

    @property
    def _partitions_given(self) -> bool:
        return self._grouped or self._settings.partitions is not None

    def _learn_partitions(self, topics: Iterable[str] = ()) -> None:
        """Where the number of tasks was not given, use the changelogs' partitions, or else those of source topics."""
        if not self._partitions_given:
            found = known_partitions(self.log.admin, self.specs, self.app, topics)
            if found:
                self._groups[0] = replace(self._groups[0], partitions=found)

    def missing(self) -> tuple[str, ...]:
        """The tasks that keep the gate shut, and their progress; empty when it is open."""
        self._asked = True
        with self._lock:
            lines = missing_lines(self._instance, self.clock.monotonic_ms())
        return (*lines, f"restores wait for space: {self.disk.full}") if lines and self.disk.full else lines

    def _waits(self) -> bool:
        """Whether a task must still be restored, opened or assigned before the session is ready."""
        return bool(self._instance.readiness.gate.missing() or self._instance.absent() or self._instance.unplaced())

    def statistics(self) -> SessionStatistics:
        """An immutable snapshot of the whole session, for metrics and status.

        While the session waits for the log it is the last one, after a second (`log_read_ms_ago` gives its age).
        """
        lock: Any = self._usable()
        if self.threads.stepped or lock._is_owned():  # the reading thread would wait for this one
            return self._read_statistics()
        statistics, age_ms = self._figures.take()
        # A download runs under the lock, so that the figures may be from before it.
        downloads = self._downloads.statistics(self.clock.monotonic_ms())
        return replace(statistics, log_read_ms_ago=statistics.log_read_ms_ago + age_ms, downloads=downloads)

    def _read_statistics(self) -> SessionStatistics:
        with self._usable():
            return session_statistics(
                self.app,
                self._instance,
                self.log,
                self._log_figures,
                missing=self.missing(),
                clock=self.clock,
                disk=self.disk.state,
                own_sources=self.own_sources(),
                commit_interval_ms=self.commit_interval_ms(),
                downloads=self._downloads.statistics(self.clock.monotonic_ms()),
            )

    def look_at_group(self) -> GroupView:
        """The live members of the application's group now. Raises Unavailable."""
        with self._figures_lock:
            self._usable()
            if self._statistics_group is None:  # a connection of its own, which waits for no writer
                self._statistics_group = self.log.group(self.app)
            return self._statistics_group.view()

    def restores(self) -> tuple[RestoreStatistics, ...]:
        """The running restores, without a call to the log."""
        with self._usable():
            return restores_of(self._instance, self.clock.monotonic_ms())
