"""The session of the sidecar's active tasks, its workers, and the figures and states of both.

Rules of this file: used by the control thread, reads by others. Opened when stores are first needed, and again when
stores are added, which only happens while no task is held. The lock of the state directory is the process's, not the
session's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any

from standfast.ops.config.types import Config
from standfast.ops.observe.health import RestoringHealth
from standfast.ops.observe.status import status_document
from standfast.ops.observe.status_merge import WorkerNumbers
from standfast.ops.shared.control_stores import Conflict, shape_of
from standfast.ops.sidecar.control.assignment import WantedTasks
from standfast.ops.sidecar.engine.task_table import TableMoment
from standfast.ops.sidecar.worker.mover import TaskMover
from standfast.ops.sidecar.worker.process import StandbyWorker
from standfast.ops.sidecar.worker.protocol import OpenTails
from standfast.ops.sidecar.worker.session import AssignedTask, HeldTasks, SidecarSession
from standfast.replication.log import Log
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.restore.log_states import removed_heads
from standfast.restore.replay.bulk import BulkStatistics
from standfast.restore.replay.bulk_plan import COLD_RECORDS
from standfast.restore.snapshot.fetch import holds_database
from standfast.store.clock import Clock
from standfast.store.disk import DiskGuard
from standfast.store.errors import (
    CommitUnknown,
    Fenced,
    Held,
    InvalidRequest,
    NotReady,
    StandfastError,
    Unavailable,
    UnknownStore,
    is_of_log,
)
from standfast.store.names import check_name
from standfast.store.specs import StoreSpec
from standfast.store.task.state_dir import MARKER, StateDir, write_marker
from standfast.stream.task.states import GONE, TaskState
from standfast.stream.task.statistics import SessionCounters, SessionStatistics
from standfast.stream.task.task import Task

Partitions = frozenset[int]
SNAPSHOTS = "snapshots"


class ServerSession(SidecarSession):
    """A session beside the servers: long work and log care are its workers'. It writes by the sidecar's guard."""

    def __init__(self, app: str, disk: DiskGuard, **given: Any) -> None:
        self._given_disk = disk
        super().__init__(app, **given)

    def _disk_guard(self, address: str) -> DiskGuard:
        return self._given_disk

    def _cares_for(self, leader: str) -> bool:
        # Compaction in a thread here kept the interpreter from the event loop for 5 ms at a time.
        return False

    def _stopped(self, fatal: BaseException) -> BaseException:
        # A client's request is not at fault, and its next one may meet the process that is started in place of this.
        stopped = Unavailable(f"background work of {self.app!r} stopped: {fatal}")
        stopped.__cause__ = fatal
        return stopped


class ControlSession:
    """See the head of this file. `closing` is called before tasks are closed."""

    def __init__(
        self,
        config: Config,
        state: StateDir,
        clock: Clock,
        closing: Callable[[Partitions], None],
        disk: DiskGuard,
    ) -> None:
        self._config = config
        self._disk = disk
        self._state = state
        self._clock = clock
        self._closing = closing
        self._session: ServerSession | None = None
        self._mover: TaskMover | None = None
        self._partitions: int | None = None
        self._numbers = WorkerNumbers()
        self._counted: set[str] = set()
        self._wiped: set[int] = set()  # to be restored from their changelogs, as an operator has asked
        self._counting = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether stores were declared and the session is there."""
        return self._session is not None

    @property
    def session(self) -> ServerSession:
        """The session. Raises NotReady before stores were declared."""
        if self._session is None:
            raise NotReady("no stores are declared yet: declare them first (PUT /v1/stores)")
        return self._session

    @property
    def mover(self) -> TaskMover:
        """The mover of tasks between server and workers."""
        if self._mover is None:
            raise NotReady("no stores are declared yet: declare them first (PUT /v1/stores)")
        return self._mover

    @property
    def workers(self) -> Sequence[StandbyWorker]:
        """The worker processes."""
        mover = self._mover
        return () if mover is None else mover.workers

    @property
    def broken(self) -> bool:
        """Whether the session's background work has ended, so that only a new process helps."""
        try:
            self.session.all_tasks()
        except Unavailable:
            return True
        return False

    def opened(self, specs: Sequence[StoreSpec], partitions: int | None) -> ControlSession:
        """Open the session, if it is not. Raises NotReady without stores."""
        if self._session is None and specs:
            self.reopen(specs, partitions)
        assert self.session is not None
        return self

    def reopen(self, specs: Sequence[StoreSpec], partitions: int | None) -> None:
        """Open the session with these stores; no task is held. Raises the errors of Session, then there is none."""
        self.close()
        config, options, policy = self._config, self._options(partitions), self._config.snapshot_policy
        assert config.log_address is not None
        session = ServerSession(
            self._state.app,
            self._disk,
            log=config.log_address,
            state_dir=self._state.lend(self._state.instance_id),
            stores=specs,
            # Tasks move only as the application assigns them, and the number of partitions is its own to declare.
            take_over=False,
            discovery_interval_ms=None,
            clock=self._clock,
            # A download belongs into a worker, as every long restore does.
            snapshots=None if policy is None else replace(policy, restore=False),
            **options,
        )
        shapes = tuple(shape_of(spec) for spec in specs)
        # Beside a restore in this process RESP reads had a p99 of 3.1 ms, with the restore in another process 0.095 ms.
        workers = [
            StandbyWorker(
                OpenTails(
                    app=self._state.app,
                    log=config.log_address,
                    state_root=str(self._state.path.parent),
                    lock=self._state.lock,
                    member=f"{self._state.instance_id}-tail{number}",
                    # Care of the log is one worker's; the server's session leaves it to that one (`ServerSession`).
                    cares_for="" if number else self._state.instance_id,
                    stores=shapes,
                    settings={**options, "snapshots": None if policy is None else asdict(policy)},
                ),
                self._clock,
            )
            for number in range(config.serve.workers)
        ]
        session.statistics()  # the first figures, before a request may have to wait for the log
        self._session, self._partitions = session, partitions
        self._mover = TaskMover(session, workers, self._closing, self._bare)
        self._mover.round(session.held())  # starts the workers, so that they are there when there is work

    def check(self, largest: int) -> None:
        """Raise InvalidRequest for a partition that does not exist."""
        if self._partitions is not None and largest >= self._partitions:
            raise InvalidRequest(f"partition {largest} does not exist: give whole numbers below {self._partitions}")

    def close(self) -> None:
        """Close every task and end the workers."""
        mover, self._mover = self._mover, None
        session, self._session = self._session, None
        try:
            if mover is not None:
                mover.close()
        finally:
            if session is not None:
                session.close()

    def held(self) -> HeldTasks:
        """Tasks that the server holds now. Raises NotReady before stores were declared."""
        return self.session.held()

    def locked_by_us(self, held: HeldTasks) -> StandfastError | None:
        """The error of an active task whose directory this process keeps although the task is closed; None: no such
        task."""
        errors = (one.task.error for one in held.tasks.values() if one.state in GONE)
        return next((error for error in errors if isinstance(error, Held) and error.by_us), None)

    def lose(self, partitions: Partitions) -> None:
        """Fail tasks that another instance owns by now, so that they close without flushing."""
        for partition, one in self.held().tasks.items():
            if partition in partitions and one.state not in GONE:
                one.task.fail(Fenced("the application lost the partition"))

    def removed_heads(self, partition: int) -> dict[TopicPartition, int]:
        """The changelogs of a task that lost records at their head, and the first offset left of each."""
        log, app = self.session.log, self.session.app
        topics = {spec.changelog_of(app) for spec in self.session.specs if spec.logging and not spec.from_source}
        infos = {topic: log.admin.describe_topic(topic) for topic in sorted(topics)}
        every = {TopicPartition(topic, partition): info for topic, info in infos.items() if info is not None}
        with closing(log.reader()) as reader:
            return removed_heads(every, reader)

    def set_aside(self, partition: int, reason: str) -> None:
        """Move the files of a closed task out of the way."""
        if partition in self.held().tasks:
            raise Unavailable(f"partition {partition} is not closed yet: try again")
        self._wiped.add(partition)  # a snapshot may have been made of the rows that are wiped now
        self._state.set_aside(str(TaskId(0, partition)), reason)

    def _bare(self, partitions: Partitions) -> Partitions:
        """Those of these tasks that have no database on disk and are to begin with a snapshot."""
        policy = self._config.snapshot_policy
        if policy is None or not policy.restore or all(spec.engine == "memory" for spec in self.session.specs):
            return frozenset()
        found = {
            one for one in partitions | self._wiped if not holds_database(self._state.task_path(str(TaskId(0, one))))
        }
        self._wiped &= found  # one that was opened since is as any other task
        return frozenset(partitions & found - self._wiped)

    def snapshot(self, name: str, tasks: Mapping[int, Task]) -> dict[int, dict[str, int]]:
        """Copy tasks' files below `<state_dir>/<app>/snapshots/NAME`, each at one cut; returns their stores' positions.

        A copy is a task's directory: it can be read with --offline, or put in its place while nothing runs. Raises
        Conflict for a name that is taken.
        """
        folder = self._state.path / SNAPSHOTS / check_name("snapshot", name)
        if folder.exists():
            raise Conflict(f"snapshot {name!r} already exists ({folder}): choose another name")
        folder.mkdir(mode=0o700, parents=True)
        for partition, task in sorted(tasks.items()):
            copy = folder / str(TaskId(0, partition))
            task.stores.checkpoint(copy)
            # The marker comes last: a kill may cut a copy short, and `snapshots` lists none without it.
            write_marker(copy, self._state.app, str(TaskId(0, partition)))
        return self.positions(frozenset(tasks))

    def snapshots(self) -> list[dict[str, Any]]:
        """Existing snapshots, the newest first: name, wall time in ms at which the last task was added, tasks."""
        folder = self._state.path / SNAPSHOTS
        found = []
        for one in folder.iterdir() if folder.is_dir() else ():
            tasks = sorted(path.name for path in one.iterdir() if (path / MARKER).is_file()) if one.is_dir() else []
            if tasks:
                found.append({"name": one.name, "made_ms": one.stat().st_mtime_ns // 1_000_000, "tasks": tasks})
        return sorted(found, key=lambda shot: (-shot["made_ms"], shot["name"]))

    def changelog(self, store: str, partition: int) -> tuple[Log, TopicPartition]:
        """The log, and the partition of it that has the changes of a store. Raises NotReady, UnknownStore."""
        session = self.session
        spec = next((one for one in session.specs if one.name == store and one.logging), None)
        if spec is None:
            raise UnknownStore(f"store {store!r} is not declared here, or has no changelog")
        self.check(partition)
        return session.log, TopicPartition(spec.changelog_of(session.app), partition)

    def positions(self, partitions: Partitions) -> dict[int, dict[str, int]]:
        """Positions of the stores of tasks that the server holds, by partition and store."""
        if self._session is None:
            return {}
        return {
            partition: {name: at.offset for name, at in sorted(one.task.stores.cut.positions.items())}
            for partition, one in sorted(self.held().tasks.items())
            if partition in partitions
        }

    # -- figures and states -------------------------------------------------------------------------------------------

    def table(
        self, snapshot: HeldTasks, wanted: WantedTasks, fenced: Mapping[int, str], pending: Sequence[RestoringHealth]
    ) -> TableMoment:
        """The table of tasks that the servers may use, as of a snapshot."""
        held, running = snapshot.tasks, snapshot.running
        gone = (at for at in wanted.active & held.keys() if held[at].state in GONE)
        failed = {partition: failure_of(held[partition].task) for partition in gone}
        shut = wanted.active - running.keys() - failed.keys()
        if shut and self._config.app.gate == "all":
            running = {}
        running = {partition: task for partition, task in running.items() if partition in wanted.active}
        for task in running.values():
            # The cache's own bound is for applications that commit on request; here the application decides.
            task.stores.buffer.refuse_bytes = self._config.limits.uncommitted_max_bytes
            task.stores.limits.limit_keys(self._config.limits.key_max_bytes)
            task.keeps_refused = True  # its client gets the error, and commits again
        states = dict.fromkeys(wanted.standby, "standby")
        far = {one.partition: one for one in pending}
        for partition in wanted.active:
            state = held[partition].state.value if partition in held else "restoring"
            if partition in failed:
                states[partition] = f"failed: {failed[partition]}"
                continue
            one = far.get(partition)
            shown = one is not None and one.end and state != "running"
            states[partition] = f"{state}: {one.fraction:.0%}" if one is not None and shown else state
        missing = [_line(far.get(partition), partition) for partition in sorted(shut)]
        return TableMoment(running, failed, states, missing, dict(fenced))

    def pending(self, snapshot: HeldTasks, wanted: WantedTasks) -> list[RestoringHealth]:
        """Active tasks that are not whole yet, in whichever process they restore, as of a snapshot."""
        held, full = snapshot.tasks, self._disk.full
        restores = [_shown(one) for one in snapshot.restores]
        downloads: dict[str, str] = {}
        for status in self.mover.worker_status():
            # A worker reports nothing else while it downloads.
            for one in status.get("downloads", ()):
                share = one["done_bytes"] / max(one["bytes"], 1)
                downloads[one["task"]] = f"downloads snapshot {one['snapshot']}: {share:.0%} of {one['bytes']} bytes"
            # The worker's document may be half a second old: a task that is open here is shown by the server's figures.
            restores += [one for one in status["restores"] if one["partition"] not in held]
        found = [
            _restoring(
                partition,
                held.get(partition),
                [one for one in restores if one["partition"] == partition],
                downloads.get(str(TaskId(0, partition)), "opening"),
            )
            for partition in sorted(wanted.active - snapshot.running.keys())
        ]
        return [replace(one, reason=f"waits for space: {full}") for one in found] if full else found

    def statistics(self) -> SessionStatistics:
        """Server and workers as one. Asks the log, so not on the event loop."""
        if self._session is None:
            nobody = (), (), 0, (), (), SessionCounters(), BulkStatistics()
            return SessionStatistics(self._state.app, self._state.instance_id, True, *nobody)
        own = self._session.statistics()
        # Scrape and status come from different threads, and a worker's counts must be added to the sum only once.
        with self._counting:
            present = {f"{worker.pid}": worker.status for worker in self.workers if worker.status is not None}
            # The counts of a worker that ended stay in the sum: a counter that falls looks like a reset, and all of it
            # would be counted again.
            for name in self._counted - present.keys():
                self._numbers.gone(name)
            for name, status in present.items():
                self._numbers.take(name, status)
            self._counted = set(present)
            return self._numbers.merged(own)

    def status(self) -> dict[str, Any]:
        """The status document, with the workers' tasks in it."""
        document = status_document(self.statistics())
        document["workers"] = [
            {"pid": worker.pid, "restarts": worker.restarts, "error": worker.error} for worker in self.workers
        ]
        return document

    def _options(self, partitions: int | None) -> dict[str, Any]:
        config = self._config
        return {
            "guarantee": config.app.guarantee,
            "gate": "task",  # `table` has the rule for all of them, which does not wait for one that failed
            "partitions": partitions,
            "memory_bytes": config.store.memory_bytes,
            "cache_max_bytes": config.store.cache_bytes,
            "value_max_bytes": config.store.value_max_bytes,
            "lease_ms": config.group.lease_ms,
            "max_stall_ms": config.group.max_stall_ms,
            "restore_workers": config.state.restore_workers,
            "restore_memory_bytes": config.state.restore_memory_bytes,
            "bulk_restore_records": config.state.bulk_restore_records or COLD_RECORDS,
            "accept_empty_log": config.state.accept_empty_log,
            "accept_missing_history": config.state.accept_missing_history,
            "accept_unreadable_rows": config.state.accept_unreadable_rows,
            "disk_floor_bytes": config.state.disk_floor_bytes,
        }


def failure_of(task: Task) -> BaseException:
    """The error that requests get for a task that cannot go on."""
    error = task.error
    if isinstance(error, CommitUnknown):
        # The error concerns the commit that failed, and not the request that is answered, of which nothing is done.
        return Unavailable(
            f"task {task.id}: the outcome of a commit is unknown ({error}): ask SF.OFFSETS once the task is open "
            "again, which the sidecar is trying now"
        )
    if error is not None and (is_of_log(error) or task.state is TaskState.CLOSED):
        # Unchanged: a log that is away and one that is damaged need different actions, as the reasons do for which a
        # task cannot be opened.
        return error
    try:
        task.source_offsets()
    except StandfastError as error:
        return error
    return Unavailable(f"task {task.id} is {task.state.value}")  # it was opened again just now


def _shown(restore: Any) -> dict[str, Any]:
    """The fields of a restore's statistics that `pending` looks at, as the workers' documents have them."""
    names = ("partition", "reason", "position", "end", "start", "remaining", "seconds_left")
    return {name: getattr(restore, name) for name in names}


def _restoring(
    partition: int, held: AssignedTask | None, restores: Sequence[Mapping[str, Any]], opening: str
) -> RestoringHealth:
    state = "restoring" if held is None else held.state.value
    error = None if held is None else held.task.error
    if error is not None:
        return RestoringHealth(partition, state, reason=f"{type(error).__name__}: {error}")
    if not restores:
        return RestoringHealth(partition, state, reason=opening)
    total = sum(one["end"] - one["start"] for one in restores)
    left = sum(one["remaining"] for one in restores)
    times = [one["seconds_left"] for one in restores]
    return RestoringHealth(
        partition,
        state,
        restores[0]["reason"],
        position=sum(one["position"] for one in restores),
        end=sum(one["end"] for one in restores),
        remaining=left,
        fraction=1.0 if total <= 0 else 1 - left / total,
        seconds_left=None if None in times else max(times),
    )


def _line(one: RestoringHealth | None, partition: int) -> str:
    if one is None:
        return f"task 0_{partition}: waiting"
    far = f" at {one.position} of {one.end}" if one.end else ""
    return f"task 0_{partition}: {one.state}{far}" + (f" ({one.reason})" if one.reason else "")
