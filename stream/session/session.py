"""The session: durable state under the application's external consumer.

    session = Session(app=..., log=..., state_dir=..., stores=[...])
    session.assign(active=[0, 1], standby=[2, 3]); session.wait_ready(30)
    task = session.task(0); task.store("aircraft").put(...); task.commit(source_offsets={("flights", 0): 4712})

Rules of this file: the public calls, under the session's lock. The application processes running tasks; the background
work (host.py) is everything else. An error there is raised at the next call, never lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, Unpack

from standfast.replication.kafka.callbacks import with_settings
from standfast.replication.listeners import Listener
from standfast.replication.offsets import TaskId
from standfast.replication.tail.open_log import parse_address
from standfast.store.arguments import checked, flag_problems, list_problems, refuse
from standfast.store.clock import Clock
from standfast.store.errors import InvalidRequest, NotReady
from standfast.store.log import as_event, logger
from standfast.store.names import few
from standfast.store.process.interrupts import whole
from standfast.store.process.tracebacks import letting_go
from standfast.store.specs import StoreSpec
from standfast.store.task.state_dir import StateDir
from standfast.stream.session.external_consumer import ClientMessage, ConsumerHost, ExternalConsumer
from standfast.stream.session.host import SessionHost, closed_if_lost
from standfast.stream.session.of_app import Elsewhere
from standfast.stream.session.session_tasks import (
    ReadView,
    check_timeout,
    checked_tasks,
    group_of_store,
    grow_groups,
    held_task,
    opened_tasks,
    planned_commit,
    read_view,
    source_partitions,
    task_id_of,
    task_of_source,
    tasks_grown,
)
from standfast.stream.signatures import spelled_out
from standfast.stream.source_gate import OpenTask
from standfast.stream.source_offsets import checked_shape
from standfast.stream.task.groups import TaskGroup
from standfast.stream.task.settings import (
    SessionOptions,
    SessionSettings,
)
from standfast.stream.task.states import TaskState
from standfast.stream.task.task import Task
from standfast.stream.tasks.attempts import Refused, raise_worst
from standfast.stream.tasks.life import Again, Lives

Tasks: TypeAlias = Iterable[int | str | TaskId]


@closed_if_lost
@checked(InvalidRequest)
@spelled_out({SessionOptions: SessionSettings})
class Session(Elsewhere, SessionHost):
    """Stores of one application on one instance: logged, restored and followed by standbys.

    app         name of the application: part of its topics' names, and the id of its consumer group
    log         address of the log: `sqlite:///path`, or `kafka://host:port,host:port?option=value`
    state_dir   folder of all state; the session closes a `StateDir` that it receives
    stores      definitions of its stores, such as `KeyValueStore("counts", serde.string, serde.int64)`
    groups      for sub-topologies: stores, partitions and source topics of each, by its number, instead of `stores` and
                `partitions` (group 0)
    clock       source of times; None: the system's clock
    background  whether restores, standbys, the lease and snapshots run in threads of the session; False: it has no
                thread, and `poll_once` does all of it
    listeners   receive restores, standbys and commits from the start

    Raises BadConfig with every problem, Held if another process has the state directory, Unavailable if the log does
    not answer.
    """

    def __init__(
        self,
        app: str,
        *,
        log: str,
        state_dir: str | Path | StateDir,
        stores: Sequence[StoreSpec] = (),
        groups: Mapping[int, TaskGroup] | None = None,
        clock: Clock | None = None,
        background: bool = True,
        listeners: Iterable[Listener] = (),
        **settings: Unpack[SessionOptions],
    ) -> None:
        found = SessionSettings.of(settings)
        checked_groups = found.check(app, stores, groups)
        refuse(flag_problems(background=background) + list_problems("listeners", listeners, Listener, "[MyListener()]"))
        parse_address(log := with_settings(log, found.kafka))  # before the state directory is created
        super().__init__(
            app,
            log,
            state_dir,
            checked_groups,
            grouped=groups is not None,
            settings=found,
            clock=clock,
            background=background,
            listeners=listeners,
        )

    def _make_consumer(self) -> ExternalConsumer:
        tasks = (self._task_of, self._adopt, self._give_up, self._opened, self.wait_ready)
        return ExternalConsumer(ConsumerHost(self.app, self.log.address, self.clock, self._group, *tasks))

    def assign(self, active: Iterable[int | str | TaskId] = (), standby: Iterable[int | str | TaskId] = ()) -> None:
        """Make exactly these the tasks of this instance; repeating it changes nothing.

        A number is a task of group 0; others are named by their text, such as "1_0". Active tasks take the task from
        its former owner (an older owner is fenced) and restore behind the gate; standbys begin once every active task
        is restored. A task that cannot be opened keeps no other one closed: its error is raised after all others are
        open, and `missing` names it. One that has to wait is opened as soon as it can be; another call tries each of
        them at once. The log's own errors are raised at once.
        """
        raise_worst(self._assign(active, standby, None))

    @whole
    def _assign(self, active: Tasks, standby: Tasks, take_back: frozenset[TaskId] | None) -> Refused:
        wanted, stand_by = self._checked(active), self._checked(standby)
        with self._usable():
            self._learn_partitions()
            if not self._partitions_given:
                largest = max((task_id.partition for task_id in [*wanted, *stand_by]), default=-1)
                self._groups[0] = replace(self._groups[0], partitions=max(largest + 1, self._groups[0].partitions))
            with letting_go():
                refused = self._instance.assign(wanted, stand_by, take_back=take_back)
        self._wake.set()
        return refused

    @whole
    def grow(self, partitions: Mapping[int, int]) -> None:
        """Set the groups' numbers of tasks, as their source topics grew; a smaller number changes nothing."""
        with self._usable():
            grow_groups(self._instance, self._groups, partitions)
        self._wake.set()

    @property
    def misses_partitions(self) -> bool:
        """Whether a leader has placed tasks here of partitions that this session has not found yet."""
        managed = self._instance.managed
        return managed is not None and managed.misses_partitions

    def on_assign(self, consumer: Any, partitions: Iterable[Any]) -> None:
        """For `consumer.subscribe(on_assign=...)`: active at once, paused until `commit` finds the gate open."""
        self.external_consumer.on_assign(consumer, source_partitions("on_assign", partitions))

    def on_revoke(self, consumer: Any, partitions: Iterable[Any]) -> None:
        """For `consumer.subscribe(on_revoke=...)`: gives these partitions up; uncommitted changes are discarded."""
        self.external_consumer.on_revoke(source_partitions("on_revoke", partitions))

    def on_lost(self, consumer: Any, partitions: Iterable[Any]) -> None:
        """For `consumer.subscribe(on_lost=...)`: the same as `on_revoke`, since neither commits anything."""
        self.on_revoke(consumer, partitions)

    def consumer_settings(self, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Settings for an external consumer on this Kafka log, `given` over them; they may hold secrets.

        Raises BadConfig with every problem, such as enable.auto.commit.
        """
        return self.external_consumer.settings(self.log.address, given or {}, self._settings.kafka)

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Block until the restore gate is open; NotReady names the missing tasks and their progress.

        Fenced if an assigned task was taken over, and only the caller can bring it back.
        """
        self.wait_until_ready(timeout_s, lambda: False)

    def wait_until_ready(self, timeout_s: float | None, gone: Callable[[], bool]) -> None:
        """`wait_ready` that also ends once the caller is `gone`."""
        check_timeout(timeout_s)
        deadline_ms = None if timeout_s is None else self.clock.monotonic_ms() + timeout_s * 1_000
        while not gone():
            # Without threads of its own the session makes no progress unless this call drives it.
            driven = self.poll_once() if self.threads.stepped else 0
            with self._usable():
                if missing := self._waits():
                    self._instance.check_lost()
            if not missing:
                return
            if deadline_ms is not None and self.clock.monotonic_ms() >= deadline_ms:
                raise NotReady(f"the restore gate is shut after {timeout_s} s: {few(self.missing(), '; ')}")
            if not driven:
                self.clock.sleep_ms(2)

    @property
    def ready(self) -> bool:
        """Whether the restore gate is open and every assigned active task is here (no assignment is ready)."""
        with self._usable():
            return not self._waits()

    def task(self, partition: int | TaskId | ClientMessage) -> Task:
        """The active task of a partition of group 0, of a task id, or of a message of the external consumer.

        NotReady while the gate is shut, Fenced if another instance took it over, InvalidRequest if it was never
        assigned here. Under an external consumer Unavailable for a task that is being opened again: records that the
        consumer delivered before come again. A message with an error raises it as the matching error class.
        """
        with self._usable():
            task = self._held(self.external_consumer.partition_of(partition))
            self.external_consumer.check_read(task, reopens=self._instance.by_group)
            if task.error is not None or task.role == "standby":
                task.store("")  # raises the error of the task's state
            if not self._instance.readiness.gate.is_open(task.id) and not self.external_consumer.is_read(task):
                raise NotReady(f"the restore gate is shut: {few(self.missing(), '; ')}")
            return task

    def tasks(self) -> dict[int, Task]:
        """Tasks of group 0 held here by partition, standbys included."""
        with self._usable():
            return {task_id.partition: task for task_id, task in self._instance.tasks.items() if task_id.group == 0}

    def open_tasks(self) -> dict[TaskId, Task]:
        """Tasks that run here behind an open gate, so that they may process. Without the lock: records wait for no
        opening of other tasks."""
        self._check_usable()
        gate = self._instance.readiness.gate
        return {
            task_id: task
            for task_id, task in self._instance.tasks.copy().items()
            if task.state is TaskState.RUNNING and gate.is_open(task_id)
        }

    def all_tasks(self) -> dict[TaskId, Task]:
        """Tasks of every group held here, standbys included."""
        with self._usable():
            return dict(self._instance.tasks)

    def held_tasks(self) -> dict[TaskId, Task]:
        """`all_tasks` without the lock, as `open_tasks`: it says nothing about background work that hangs."""
        self._check_usable()
        return self._instance.tasks.copy()

    def read(self, store: str, partition: int, *, allow_stale: bool = False) -> ReadView:
        """Committed rows of a store, from any thread. A restoring or standby store only with `allow_stale`.

        The group follows from the store: names are unique over all groups.
        """
        with self._usable():
            task = self._held(TaskId(group_of_store(store, self._groups, self.app), partition))
            return read_view(task, store, self._group, self._statistics_reader, allow_stale=allow_stale)

    def snapshot(self, partition: int | TaskId) -> str:
        """Store a snapshot of an active task now, as the policy of `snapshots` says; returns its name.

        It holds the task's last commit. Raises NotReady for a task that does not run here, Unavailable if the storage
        does not answer, InvalidRequest without a policy.
        """
        keeper = self._snapshots
        if keeper is None:
            raise InvalidRequest("this session stores no snapshots: give it snapshots=standfast.SnapshotPolicy(to=...)")
        with self._usable():
            task = self._held(task_id_of(partition))
        if task.id not in self._running():
            raise NotReady(f"task {task.id} is {task.state.value} here: a snapshot is made of an active task that runs")
        return keeper.create(task.id, task)  # without the lock, as an upload takes its time

    @whole
    def reopen(self, partition: int | TaskId) -> None:
        """Open a task (of group 0, or by its id) again that failed or was taken over: it restores the tail of the log
        and runs. Uncommitted changes are gone: continue from its `source_offsets()`.

        A task that was taken over is taken back, except with placement `shared`: Held names the owner then.
        """
        with self._usable():
            task_id = task_id_of(partition)
            if self._instance.lives.why_lost(task_id) is None and task_id not in self._instance.absent():
                self._held(task_id)
            with letting_go():
                self._instance.manager.reopen(task_id)
        self._wake.set()

    def commit(self, source_offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit every active task of group 0, and those of other groups with offsets given, each with its own.

        Stops at the first that fails; offsets of the tasks after it go with the next commit, as their rows do. So do
        the offsets of a task for which there is too little space (DiskFull). Within a block of `task.exclusive()` it
        commits the tasks of this thread's blocks alone, and refuses offsets of others (InvalidRequest).
        Raises Fenced, after the other tasks are committed, if another instance took a task over without a revocation:
        from then on, also with nothing to commit, until `assign`, `on_assign`, `on_revoke` or `reopen` names
        its partition. Raises InvalidRequest for offsets of a task that is not assigned here, or that it would refuse,
        NotReady for one that restores, before anything is committed. Offsets of a revoked partition (`on_revoke`,
        `on_lost`) are skipped: its new owner processes those records.
        Under an external consumer, partitions restored by now are read from here on: call it after every poll. Offsets
        of a task that restores are skipped then, because its records are delivered again.
        """
        tasks = self.all_tasks()
        self.commit_tasks(tasks, self.external_consumer.before_commit(source_offsets))

    def commit_tasks(
        self,
        tasks: Mapping[TaskId, Task],
        source_offsets: Mapping[tuple[str, int], int],
        begin: AbstractContextManager[object] | None = None,
    ) -> None:
        """`commit` without calls to the consumer, which another thread may be using; `begin`: see `TaskCommits`."""
        with self._usable():
            plan = planned_commit(
                source_offsets,
                tasks,
                self._groups,
                self._instance,
                read=self.external_consumer.is_read,
                replayed=self.external_consumer.in_use,
            )
        if plan.left_out:
            logger.info(
                "not committed, as the records are processed again from the last commit: %s",
                plan.left_out,
                extra=as_event("offsets_left_out"),
            )
        self._commits.each({task_id: (tasks[task_id], own) for task_id, own in plan.due.items()}, begin)
        # After the commits, so that one lost task costs the other tasks nothing.
        if plan.fenced is not None:
            raise plan.fenced

    def put_off(self, tasks: Mapping[TaskId, Task], source_offsets: Mapping[tuple[str, int], int]) -> None:
        """Let the next commit take the offsets of one that was not begun, where these tasks are still open."""
        for at, offset in checked_shape(source_offsets).items():
            task = tasks.get(task_of_source(at, self._groups))
            if task is not None:
                self._commits.put_off(task, {at: offset})

    @property
    def lives(self) -> Lives:
        """The lives of this instance's tasks."""
        return self._instance.lives

    def open_later(self, task: Task, why: str, later_ms: int) -> None:
        """Have the background work open a failed task again in so many milliseconds."""
        # Without the lock, for which its caller must not wait: a task that leaves may wait for a commit of that thread.
        again = Again("assign")
        self._instance.manager.attempts.soon(task.id, why, later_ms, active=task.role == "active", again=again)
        self._wake.set()

    def follow_now(self) -> None:
        """Have the background work look at once at the tasks that come here or leave."""
        self._instance.follow_now()
        self._wake.set()

    def _held(self, task_id: TaskId) -> Task:
        return held_task(task_id_of(task_id), self._instance, named_by_id=self._grouped)

    def _checked(self, tasks: Iterable[int | str | TaskId]) -> list[TaskId]:
        return checked_tasks(tasks, self._groups, limited=self._partitions_given)

    def _task_of(self, source: Any) -> TaskId:
        return task_of_source(source, self._groups)

    @whole
    def _adopt(self, added: frozenset[TaskId], topics: frozenset[str]) -> None:
        with self._usable():
            self._learn_partitions(topics)
            # A consumer may be assigned a new partition before the next check finds it.
            if not self._partitions_given and self._settings.discovery_interval_ms is not None:
                self.grow({0: tasks_grown(self.log.admin, self._groups[0].partitions, added, topics)})
            with letting_go():
                self._instance.adopt(self._checked(added))
        self._wake.set()

    @whole
    def _give_up(self, gone: frozenset[TaskId]) -> None:
        with self._lock:  # also after background work stopped: another call has raised its error
            if not self._closed:
                self._instance.give_up(gone)

    def _opened(self) -> dict[TaskId, OpenTask]:
        with self._usable():
            return opened_tasks(self.open_tasks())
