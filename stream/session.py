"""The session: durable state under the application's own loop.

    session = Session(app=..., log=..., state_dir=..., stores=[...])
    session.assign(active=[0, 1], standby=[2, 3]); session.wait_ready(30)
    task = session.task(0); task.store("aircraft").put(...); task.commit(source_offsets={("flights", 0): 4712})

Rules of this file: the public face, its lock and its threads (restore and standby work; the lease; log care). Tasks
that run are the application's; everything else is the background thread's. What goes wrong there is raised at the next
call, never lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Unpack

from standfast.replication.listeners import Listener, Listeners
from standfast.replication.offsets import TaskId
from standfast.replication.open_log import open_log
from standfast.store.clock import Clock, SystemClock
from standfast.store.errors import (
    Closed,
    InvalidRequest,
    NotReady,
    Unavailable,
    UnknownStore,
)
from standfast.store.log import logger
from standfast.store.rocks import RocksShared
from standfast.store.rows import RowLimits
from standfast.store.specs import StoreSpec
from standfast.store.state_dir import StateDir
from standfast.stream.groups import TaskGroup, all_specs, all_task_ids
from standfast.stream.instance import Instance, changelog_of
from standfast.stream.opener import TaskOpener
from standfast.stream.settings import CACHE_DEFAULT_BYTES, CACHE_MIN_BYTES, SessionOptions, SessionSettings
from standfast.stream.snapshot import session_statistics
from standfast.stream.statistics import SessionCounters, SessionStatistics
from standfast.stream.task import Task, TaskState

IDLE_WAIT_S = 0.01
RETRY_WAIT_S = 0.2
CARE_INTERVAL_S = 30.0


class ReadView(NamedTuple):
    """A read-only view of committed rows, with what it lacks: records of the changelog not applied here yet."""

    store: Any
    role: str
    lag_records: int


class Session:
    """Stores of one application on one instance, logged, restored and stood by for.

    `log` is an address (`sqlite:///path`); further settings are those of `SessionSettings`. `groups` is for
    applications with sub-topologies: stores, partitions and source topics of each, by its number, instead of `stores`
    and `partitions`; without it all tasks are of group 0. Raises BadConfig with every problem of the settings, Held
    if another process has the state directory.
    """

    def __init__(
        self,
        app: str,
        *,
        log: str,
        state_dir: str | Path,
        stores: Sequence[StoreSpec] = (),
        groups: Mapping[int, TaskGroup] | None = None,
        clock: Clock | None = None,
        background: bool = True,
        listeners: Iterable[Listener] = (),
        **settings: Unpack[SessionOptions],
    ) -> None:
        self._settings = SessionSettings(**settings)
        self._groups = self._settings.check(app, stores, groups)
        self._grouped = groups is not None
        self.app = app
        self.clock: Clock = clock or SystemClock()
        self.listeners = Listeners()
        for listener in listeners:
            self.listeners.add(listener)
        self.counters = SessionCounters()
        self.specs = all_specs(self._groups)
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._fatal: BaseException | None = None
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._state = StateDir(state_dir, app)
        try:
            self.log = open_log(log, clock=self.clock)
            self._group = self.log.group(app)
            self._lease_group = self.log.group(app)
            self._statistics_reader = self.log.reader()
            self._instance = self._make_instance()
            self._instance.join()
        except BaseException:
            self._state.close()
            raise
        if background:
            self._start("standfast-replication", self._run)
            self._start("standfast-lease", self._run_lease)
            self._start("standfast-care", self._run_care)

    def _make_instance(self) -> Instance:
        settings = self._settings
        if not settings.cache_max_bytes:
            for number, group in self._groups.items():
                self._groups[number] = replace(group, specs=tuple(replace(spec, caching=False) for spec in group.specs))
        opener = TaskOpener(
            self.app,
            self.log,
            self._group,
            self._state,
            self._groups,
            RocksShared(settings.memory_bytes),
            clock=self.clock,
            listener=self.listeners,
            guarantee=settings.guarantee,
            limits=RowLimits(value_bytes=settings.value_max_bytes),
            accept_empty_log=settings.accept_empty_log,
            accept_missing_history=settings.accept_missing_history,
            buffer_bytes=self._buffer_bytes,
        )
        if all(group.partitions for group in self._groups.values()):
            opener.ensure_topics()
        shared = settings.placement == "shared"
        return Instance(
            self.log,
            self._group,
            opener,
            member=self._state.instance_id,
            clock=self.clock,
            listener=self.listeners,
            counters=self.counters,
            gate_policy=settings.gate,
            lease_ms=settings.lease_ms,
            take_over=settings.take_over,
            standby_replicas=settings.standby_replicas,
            all_tasks=all_task_ids(self._groups) if shared else None,
        )

    @property
    def instance_id(self) -> str:
        """Stable id of this instance, kept in the state directory."""
        return self._state.instance_id

    @property
    def state_path(self) -> Path:
        """`<state_dir>/<app>`."""
        return self._state.path

    def assign(self, active: Iterable[int | TaskId] = (), standby: Iterable[int | TaskId] = ()) -> None:
        """Make exactly these the tasks of this instance; repeating it changes nothing. A number is a task of group 0.

        Active tasks take the task from whoever had it (an older owner is fenced) and restore behind the gate;
        standbys begin once every active task is restored.
        """
        wanted, stand_by = self._checked(active), self._checked(standby)
        with self._usable():
            if not self._partitions_given:
                largest = max((task_id.partition for task_id in [*wanted, *stand_by]), default=-1)
                plain = self._groups[0]
                partitions = self._known_partitions() or max(largest + 1, plain.partitions)
                self._groups[0] = replace(plain, partitions=partitions)
            self._instance.assign(wanted, stand_by)
        self._wake.set()

    def on_assign(self, _consumer: object, partitions: Iterable[Any]) -> None:
        """For a consumer's own callback: these source partitions (objects with `.partition`) are now active here."""
        with self._usable():
            tasks = self._instance.tasks
            standby = {task_id for task_id, one in tasks.items() if one.role == "standby"}
            added = {self._reader_of(one) for one in partitions}
            active = {task_id for task_id, one in tasks.items() if one.role == "active"} | added
            self.assign(active, standby - added)

    def on_revoke(self, _consumer: object, partitions: Iterable[Any]) -> None:
        """For a consumer's own callback: these source partitions left; what is uncommitted is forgotten."""
        with self._usable():
            for task_id in {self._reader_of(one) for one in partitions}:
                if task_id in self._instance.tasks:
                    self._instance.revoke(task_id)
            self._instance.publish()

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Block until the restore gate is open; NotReady says who is missing and how far it is."""
        deadline_ms = None if timeout_s is None else self.clock.monotonic_ms() + timeout_s * 1_000
        while True:
            driven = 0 if self._threads else self.poll_once()
            with self._usable():
                missing = self._instance.gate.missing()
            if not missing:
                return
            if deadline_ms is not None and self.clock.monotonic_ms() >= deadline_ms:
                raise NotReady(f"the restore gate is shut after {timeout_s} s: {'; '.join(self.missing())}")
            if not driven:
                self.clock.sleep_ms(2)

    def missing(self) -> tuple[str, ...]:
        """Who keeps the gate shut, and how far it is; empty when it is open."""
        with self._lock:
            progress = {
                at.task: (one, at)
                for one, at in self._instance.restorer.progress(self.clock.monotonic_ms())
                if not at.done
            }
            lines = []
            for task_id in self._instance.gate.missing():
                task = self._instance.tasks.get(task_id)
                far = progress.get(task_id)
                if task is not None and task.error is not None:
                    lines.append(f"task {task_id} failed: {task.error}")
                elif far is not None:
                    one, at = far
                    lines.append(f"task {task_id}: store {one.store!r} at {at.position} of {at.end} ({one.reason})")
                else:
                    lines.append(f"task {task_id}: waiting")
            return tuple(lines)

    @property
    def ready(self) -> bool:
        """Whether the restore gate is open (no assignment is ready)."""
        with self._usable():
            return not self._instance.gate.missing()

    def task(self, partition: int | TaskId) -> Task:
        """The active task of a partition of group 0, or of a task id; NotReady while the gate is shut.

        InvalidRequest if it is not held here.
        """
        with self._usable():
            task = self._held(_task_id(partition))
            if task.error is not None or task.role == "standby":
                task.store("")  # raises what the task's state calls for
            if not self._instance.gate.is_open(task.id):
                raise NotReady(f"the restore gate is shut: {'; '.join(self.missing())}")
            return task

    def tasks(self) -> dict[int, Task]:
        """Tasks of group 0 held here by partition, standbys included."""
        with self._usable():
            return {task_id.partition: task for task_id, task in self._instance.tasks.items() if task_id.group == 0}

    def open_tasks(self) -> dict[TaskId, Task]:
        """Tasks that run here and whose restore gate is open: those that may process."""
        with self._usable():
            gate = self._instance.gate
            return {
                task_id: task
                for task_id, task in self._instance.tasks.items()
                if task.state is TaskState.RUNNING and gate.is_open(task_id)
            }

    def all_tasks(self) -> dict[TaskId, Task]:
        """Tasks of every group held here, standbys included."""
        with self._usable():
            return dict(self._instance.tasks)

    def read(self, store: str, partition: int, *, allow_stale: bool = False) -> ReadView:
        """Committed rows of a store, from any thread. A restoring or standby store only with `allow_stale`.

        The group is the one that has the store: names are unique over all groups.
        """
        with self._usable():
            task = self._held(TaskId(self._group_of(store), partition))
            running = task.state is TaskState.RUNNING
            if not running and not allow_stale:
                raise NotReady(
                    f"store {store!r} of partition {partition} is {task.state.value} here: ask with allow_stale=True "
                    "for what it holds so far, or ask the active instance"
                )
            view = task.stores.committed_view(store)
            lag = 0
            if task.stores.specs[store].logging:
                stored = task.stores.cut.positions.get(store)
                changelog = changelog_of(task, store)
                begin, end = self._statistics_reader.bounds([changelog])[changelog]
                if changelog in task.applier.limited:
                    committed = self._group.committed([changelog]).get(changelog)
                    end = min(end, committed.offset) if committed is not None else begin
                lag = 0 if running else max(end - (stored.offset if stored is not None else begin), 0)
            return ReadView(view, task.role, lag)

    def reopen(self, partition: int | TaskId) -> None:
        """Open a failed task (of group 0, or by its id) again: it restores the tail of the log and runs."""
        with self._usable():
            self._instance.reopen(self._held(_task_id(partition)).id)
        self._wake.set()

    def commit(self, source_offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit every active task of group 0, each with the offsets of its own partition.

        Stops at the first that fails. Tasks of other groups are committed each by itself.
        """
        for partition, task in sorted(self.tasks().items()):
            if task.state is TaskState.RUNNING:
                own = {at: offset for at, offset in source_offsets.items() if at[1] == partition}
                task.commit(own)

    def poll_once(self) -> int:
        """One round of background work, for callers that run without the background thread."""
        with self._usable():
            return self._instance.poll_once()

    def statistics(self) -> SessionStatistics:
        """An immutable snapshot of everything, for metrics and status."""
        with self._usable():
            return session_statistics(
                self.app,
                self._instance,
                self._statistics_reader,
                missing=self.missing(),
                now_ms=self.clock.monotonic_ms(),
            )

    def close(self) -> None:
        """Stop the threads, close tasks cleanly, leave the group, release the directory. Closing twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._stop.set()
        self._wake.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        with self._lock:
            try:
                self._instance.close()
                self._statistics_reader.close()
                self._group.close()
                self._lease_group.close()
                self.log.close()
            finally:
                self._state.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _usable(self) -> threading.RLock:
        """The lock, after checking that the session is open and its background work is well."""
        if self._closed:
            raise Closed(f"session of application {self.app!r} is closed")
        if self._fatal is not None:
            raise Unavailable(f"background work of {self.app!r} stopped: {self._fatal}") from self._fatal
        return self._lock

    def _start(self, name: str, run: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                run()
            except BaseException as error:  # noqa: BLE001 - raised again at the next call
                logger.exception("%s stopped", name)
                self._fatal = error

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            wait_s = IDLE_WAIT_S
            try:
                with self._lock:
                    if self._instance.poll_once():
                        wait_s = 0.0
            except Unavailable as error:
                logger.warning("background work will be tried again: %s", error)
                wait_s = RETRY_WAIT_S
            if wait_s:
                self._wake.wait(wait_s)
                self._wake.clear()

    def _run_lease(self) -> None:
        # A thread of its own, so that a long batch of the other one never costs the membership.
        interval_s = self._settings.lease_ms / 1_000 / 5
        while not self._stop.wait(interval_s):
            try:
                self._instance.heartbeat(self._lease_group)
            except Unavailable as error:
                logger.warning("heartbeat failed, trying again: %s", error)

    def _run_care(self) -> None:
        # One member is enough, and its own thread: compacting a long log must hold up neither lease nor restore.
        while not self._stop.wait(CARE_INTERVAL_S):
            view = self._instance.view
            if view is None or view.leader != self.instance_id:
                continue
            try:
                self.log.care(self.clock.wall_ms())
            except Unavailable as error:
                logger.warning("log care failed, trying again: %s", error)

    def _buffer_bytes(self) -> int:
        total = self._settings.cache_max_bytes or CACHE_DEFAULT_BYTES
        return max(total // max(len(self._instance.tasks), 1), CACHE_MIN_BYTES)

    @property
    def _partitions_given(self) -> bool:
        return self._grouped or self._settings.partitions is not None

    def _held(self, task_id: TaskId) -> Task:
        task = self._instance.tasks.get(task_id)
        if task is None:
            what = f"task {task_id}" if self._grouped else f"partition {task_id.partition}"
            ids = sorted(self._instance.tasks)
            held = ", ".join(str(one) if self._grouped else str(one.partition) for one in ids) or "none"
            raise InvalidRequest(f"{what} is not assigned to this instance (it holds: {held})")
        return task

    def _group_of(self, store: str) -> int:
        for number, group in self._groups.items():
            if any(spec.name == store for spec in group.specs):
                return number
        known = ", ".join(sorted(spec.name for spec in self.specs)) or "none"
        raise UnknownStore(f"application {self.app!r} has no store {store!r}: it declares {known}")

    def _reader_of(self, source: Any) -> TaskId:
        """The task that reads a source partition of a consumer."""
        topic = getattr(source, "topic", None)
        owners = (
            number for number, group in self._groups.items() if group.topics is not None and topic in group.topics
        )
        return TaskId(next(owners, 0), source.partition)

    def _known_partitions(self) -> int:
        for spec in self.specs:
            if spec.logging:
                info = self.log.admin.describe_topic(spec.changelog_of(self.app))
                if info is not None:
                    return info.partitions
        return 0

    def _checked(self, tasks: Iterable[int | TaskId]) -> list[TaskId]:
        checked = set()
        for one in tasks:
            task_id = _task_id(one)
            group = self._groups.get(task_id.group)
            if group is None:
                known = ", ".join(map(str, sorted(self._groups)))
                raise InvalidRequest(f"task {task_id} does not exist: the groups are {known}")
            number, limit = task_id.partition, group.partitions if self._partitions_given else None
            if not isinstance(number, int) or number < 0 or (limit is not None and number >= limit):
                upper = "" if limit is None else f" below {limit}"
                raise InvalidRequest(f"partition {number!r} does not exist: give whole numbers from 0{upper}")
            checked.add(task_id)
        return sorted(checked)


def _task_id(partition: int | TaskId) -> TaskId:
    return partition if isinstance(partition, TaskId) else TaskId(0, partition)
