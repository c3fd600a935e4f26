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
)
from standfast.store.log import logger
from standfast.store.rocks import RocksShared
from standfast.store.rows import RowLimits
from standfast.store.specs import StoreSpec
from standfast.store.state_dir import StateDir
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

    `log` is an address (`sqlite:///path`); further settings are those of `SessionSettings`. Raises BadConfig with every
    problem of the settings, Held if another process has the state directory.
    """

    def __init__(
        self,
        app: str,
        *,
        log: str,
        state_dir: str | Path,
        stores: Sequence[StoreSpec],
        clock: Clock | None = None,
        background: bool = True,
        listeners: Iterable[Listener] = (),
        **settings: Unpack[SessionOptions],
    ) -> None:
        self._settings = SessionSettings(**settings)
        self._settings.check(app, stores)
        self.app = app
        self.clock: Clock = clock or SystemClock()
        self.listeners = Listeners()
        for listener in listeners:
            self.listeners.add(listener)
        self.counters = SessionCounters()
        self.specs = tuple(stores)
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
        caching = settings.cache_max_bytes > 0
        opener = TaskOpener(
            self.app,
            self.log,
            self._group,
            self._state,
            self.specs if caching else [replace(spec, caching=False) for spec in self.specs],
            RocksShared(settings.memory_bytes),
            clock=self.clock,
            listener=self.listeners,
            guarantee=settings.guarantee,
            limits=RowLimits(value_bytes=settings.value_max_bytes),
            accept_empty_log=settings.accept_empty_log,
            accept_missing_history=settings.accept_missing_history,
            buffer_bytes=self._buffer_bytes,
        )
        partitions = settings.partitions
        if partitions is not None:
            opener.topics(partitions)
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
            partitions=partitions or 0,
            all_tasks=frozenset(TaskId(0, number) for number in range(partitions or 0)) if shared else None,
        )

    @property
    def instance_id(self) -> str:
        """Stable id of this instance, kept in the state directory."""
        return self._state.instance_id

    @property
    def state_path(self) -> Path:
        """`<state_dir>/<app>`."""
        return self._state.path

    def assign(self, active: Iterable[int] = (), standby: Iterable[int] = ()) -> None:
        """Make exactly these partitions the tasks of this instance; repeating it changes nothing.

        Active tasks take the task from whoever had it (an older owner is fenced) and restore behind the gate;
        standbys begin once every active task is restored.
        """
        active, standby = self._checked(active), self._checked(standby)
        with self._usable():
            if self._settings.partitions is None:
                largest = max([*active, *standby], default=-1)
                self._instance.partitions = self._known_partitions() or max(largest + 1, self._instance.partitions)
            self._instance.assign([TaskId(0, number) for number in active], [TaskId(0, number) for number in standby])
        self._wake.set()

    def on_assign(self, _consumer: object, partitions: Iterable[Any]) -> None:
        """For a consumer's own callback: these source partitions (objects with `.partition`) are now active here."""
        with self._usable():
            tasks = self._instance.tasks
            standby = [task.partition for task, one in tasks.items() if one.role == "standby"]
            added = {one.partition for one in partitions}
            active = {task.partition for task, one in tasks.items() if one.role == "active"} | added
            self.assign(active, [number for number in standby if number not in added])

    def on_revoke(self, _consumer: object, partitions: Iterable[Any]) -> None:
        """For a consumer's own callback: these source partitions left; what is uncommitted is forgotten."""
        with self._usable():
            for number in {one.partition for one in partitions}:
                if TaskId(0, number) in self._instance.tasks:
                    self._instance.revoke(TaskId(0, number))
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

    def task(self, partition: int) -> Task:
        """The active task of a partition; NotReady while the gate is shut, InvalidRequest if it is not held here."""
        with self._usable():
            task = self._instance.tasks.get(TaskId(0, partition))
            if task is None:
                held = ", ".join(str(task_id.partition) for task_id in sorted(self._instance.tasks)) or "none"
                raise InvalidRequest(f"partition {partition} is not assigned to this instance (it holds: {held})")
            if task.error is not None or task.role == "standby":
                task.store("")  # raises what the task's state calls for
            if not self._instance.gate.is_open(task.id):
                raise NotReady(f"the restore gate is shut: {'; '.join(self.missing())}")
            return task

    def tasks(self) -> dict[int, Task]:
        """Tasks held here by partition, standbys included."""
        with self._usable():
            return {task_id.partition: task for task_id, task in self._instance.tasks.items()}

    def read(self, store: str, partition: int, *, allow_stale: bool = False) -> ReadView:
        """Committed rows of a store, from any thread. A restoring or standby store only with `allow_stale`."""
        with self._usable():
            task = self._instance.tasks.get(TaskId(0, partition))
            if task is None:
                raise InvalidRequest(f"partition {partition} is not assigned to this instance")
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
                bounds = self._statistics_reader.bounds([changelog])[changelog]
                lag = 0 if running else bounds.end - (stored.offset if stored is not None else bounds.begin)
            return ReadView(view, task.role, lag)

    def reopen(self, partition: int) -> None:
        """Open a failed task again: it restores the tail of the log and runs."""
        with self._usable():
            self._instance.reopen(TaskId(0, partition))
        self._wake.set()

    def commit(self, source_offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit every active task, each with the offsets of its own partition. Stops at the first that fails."""
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

    def _known_partitions(self) -> int:
        for spec in self.specs:
            if spec.logging:
                info = self.log.admin.describe_topic(f"{self.app}-{spec.name}-changelog")
                if info is not None:
                    return info.partitions
        return 0

    def _checked(self, partitions: Iterable[int]) -> list[int]:
        checked = sorted(set(partitions))
        limit = self._settings.partitions
        for number in checked:
            if not isinstance(number, int) or number < 0 or (limit is not None and number >= limit):
                upper = "" if limit is None else f" below {limit}"
                raise InvalidRequest(f"partition {number!r} does not exist: give whole numbers from 0{upper}")
        return checked
