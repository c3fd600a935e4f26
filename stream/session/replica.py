"""A read-only replica of stores that another application writes: Kafka Streams, or another standfast.

    replica = Replica("orders", log="kafka://host:9092", state_dir="./replica", stores=[KeyValueStore("totals", ...)])
    replica.wait_ready(60); view = replica.read("totals", 0); view.store.get(key), view.lag_records

A standby that is never promoted tails every partition of every store's changelog. Stores whose changelogs have as many
partitions share their tasks. A replica is ready once each has reached the end of its changelog.

Rules of this file: a session over a log that can only be read (`replication/read_only.py`), so that nothing here can
write to the application's topics or groups. A deleted or recreated changelog is looked for until it fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NoReturn, TypedDict, Unpack

from standfast.replication.listeners import Listener
from standfast.replication.log import Log, LogAdmin
from standfast.replication.offsets import TaskId
from standfast.replication.read_only import ReadOnlyLog
from standfast.replication.tail.open_log import open_log
from standfast.replication.topics.foreign import foreign_changelog
from standfast.store.arguments import checked, name_problems, refuse
from standfast.store.clock import Clock
from standfast.store.errors import BadConfig, Closed, InvalidRequest, Unavailable
from standfast.store.log import as_event, logger
from standfast.store.specs import StoreSpec
from standfast.stream.session.background import Repeated
from standfast.stream.session.host import closed_if_lost
from standfast.stream.session.of_app import OF_APPLICATION
from standfast.stream.session.session import Session
from standfast.stream.session.session_tasks import ReadView
from standfast.stream.signatures import spelled_out
from standfast.stream.task.groups import TaskGroup, all_task_ids
from standfast.stream.task.settings import SessionSettings
from standfast.stream.task.states import GONE

LOOK_AGAIN_MS = 1_000
LOOK_AGAIN_MS_MAX = 60_000


class ReplicaOptions(TypedDict, total=False):
    """The keyword arguments of a replica that have defaults; they mean the same as those of a session."""

    memory_bytes: int
    accept_empty_log: bool
    accept_missing_history: bool
    kafka: Mapping[str, Any] | None


@closed_if_lost
@checked(InvalidRequest)
@spelled_out({ReplicaOptions: SessionSettings})
class Replica(Session):
    """Follows the changelogs of application `app`, whose id is the one in their names.

    `stores` are declared as the application has them: kind, retention and, where timestamps are wanted, timestamped;
    the bytes are the same either way. Raises BadConfig for bad settings, UnknownStore for an absent changelog,
    Unavailable if the log does not answer, Held if another process has the state directory.
    """

    read_only = True
    _look_ms = LOOK_AGAIN_MS
    _elsewhere = OF_APPLICATION

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
        **settings: Unpack[ReplicaOptions],
    ) -> None:
        refuse(name_problems(settings, list(ReplicaOptions.__annotations__)))
        _check(app, stores)
        with closing(open_log(log, clock=clock, kafka=settings.get("kafka"))) as found:
            groups = task_groups(found.admin, app, stores)
        self._every = all_task_ids(groups)
        self._lost: dict[TaskId, str] = {}  # why a task is not held, or failed
        super().__init__(
            app,
            log=log,
            state_dir=state_dir,
            groups=groups,
            clock=clock,
            background=background,
            listeners=listeners,
            # Its tasks belong to another application: nothing may promote them.
            take_over=False,
            discovery_interval_ms=None,
            **settings,
        )
        try:
            super().assign(standby=self._every)
        except BaseException:
            self.close()
            raise

    def read(self, store: str, partition: int, *, allow_stale: bool = True) -> ReadView:
        """Rows of a store as far as they are applied, from any thread, with the number of records they lack."""
        return super().read(store, partition, allow_stale=allow_stale)

    def missing(self) -> tuple[str, ...]:
        """The changelogs that have not been read to their end yet, or cannot be; empty when all have."""
        with self._lock:
            gone = [
                f"task {task_id} is {task.state.value}: {task.error}"
                for task_id, task in sorted(self._instance.tasks.items())
                if task.state in GONE
            ]
            gone += [
                f"task {task_id}: {why}"
                for task_id, why in sorted(self._lost.items())
                if task_id not in self._instance.tasks
            ]
            behind = [
                f"{changelog}: at {one.machine.position} of {one.end}"
                for changelog, one in sorted(self._instance.readiness.tailer.changelogs.items())
                if one.caught_up_ms < 0
            ]
        return *gone, *behind

    def look_again(self) -> bool:
        """Open tasks again whose changelogs were gone or did not fit; return whether every task is held now.

        `missing` reports the reasons of tasks that still fail.
        """
        with self._usable():
            tasks = self._instance.tasks
            well = {task_id for task_id, task in tasks.items() if task.state not in GONE}
            self._lost = {
                task_id: str(tasks[task_id].error) if task_id in tasks else self._lost.get(task_id, "")
                for task_id in self._every - well
            }
            refused = self._instance.assign((), self._every)
            for task_id, error in refused.items():
                if self._lost.get(task_id) != str(error):
                    about = as_event("replica_task_failed", app=self.app, task=task_id)
                    logger.warning("replica of %r: task %s: %s", self.app, task_id, error, extra=about)
            self._lost = {task_id: str(error) for task_id, error in refused.items()}
            return not self._lost

    def assign(self, active: Iterable[int | str | TaskId] = (), standby: Iterable[int | str | TaskId] = ()) -> NoReturn:
        """Refused: a replica holds every partition, as a standby."""
        self._refuse()

    def on_assign(self, consumer: object, partitions: Iterable[object]) -> NoReturn:
        """Refused."""
        self._refuse()

    def on_revoke(self, consumer: object, partitions: Iterable[object]) -> NoReturn:
        """Refused."""
        self._refuse()

    on_lost = on_revoke

    def reopen(self, partition: int | TaskId) -> NoReturn:
        """Refused."""
        self._refuse()

    def commit(self, source_offsets: Mapping[tuple[str, int], int]) -> NoReturn:
        """Refused."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise InvalidRequest(f"a replica only reads what application {self.app!r} writes: open a Session to take part")

    def _open_log(self, address: str) -> Log:
        return ReadOnlyLog(super()._open_log(address))

    def _repeats(self) -> dict[str, Repeated]:
        return {"standfast-replica": (lambda: self._look_ms, self._look)}

    def _waits(self) -> bool:
        return bool(self.missing())

    def _look(self) -> None:
        # Closed: meanwhile; Unavailable: stopped by an error of the replication thread.
        with suppress(Closed, Unavailable):
            self._look_ms = LOOK_AGAIN_MS if self.look_again() else min(self._look_ms * 2, LOOK_AGAIN_MS_MAX)


def task_groups(admin: LogAdmin, app: str, stores: Sequence[StoreSpec]) -> dict[int, TaskGroup]:
    """Groups of stores by the partition count of their changelogs, in the order in which each count first occurs.

    Raises UnknownStore.
    """
    by_partitions: dict[int, list[StoreSpec]] = {}
    for spec in stores:
        topic = foreign_changelog(admin, app, spec.name, spec.changelog_of(app))
        by_partitions.setdefault(topic.partitions, []).append(spec)
    return {
        number: TaskGroup(
            partitions, tuple(specs), frozenset(spec.changelog_of(app) for spec in specs if spec.from_source)
        )
        for number, (partitions, specs) in enumerate(by_partitions.items())
    }


def _check(app: str, stores: Sequence[StoreSpec]) -> None:
    SessionSettings().check(app, stores)
    problems = [
        f"store {spec.name!r} is not logged: it has no changelog to follow" for spec in stores if not spec.logging
    ]
    if not stores:
        problems.append("a replica needs at least one store: declare those to follow")
    if problems:
        raise BadConfig(problems)
