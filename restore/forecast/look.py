"""Looks at disk, storage and log, and forecasts the opening of tasks, without a change to any of them.

    directories (read-only) + manifests + bounds of changelogs ──> forecast.py ──> a forecast of each task

Rules of this file: reads only; it makes no folder, lock or topic. A directory is opened read-only, beside a running
owner too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from standfast.replication.log import Group, Log, LogReader, TopicInfo
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.restore.forecast.forecast import (
    BEHIND_ITS_HEAD,
    CHANGELOG,
    SNAPSHOT,
    Local,
    Missing,
    TaskForecast,
    gives_way,
    of_changelogs,
    of_local,
    of_snapshot,
)
from standfast.restore.log_states import diverged, log_state
from standfast.restore.plan import NO_LOCAL_STATE, LogState
from standfast.restore.snapshot.catalogue import names, read_snapshot
from standfast.restore.snapshot.fetch import find_usable, holds_database
from standfast.restore.snapshot.manifest import Snapshot
from standfast.restore.snapshot.names import SnapshotName
from standfast.restore.snapshot.planning import Judged, judge, judge_store, newest_first
from standfast.restore.verify.at_rest import definitions_of, open_task
from standfast.store.engine import DEFAULT_FAMILY, Engine
from standfast.store.errors import Corruption, InvalidRequest
from standfast.store.names import changelog_topic, few
from standfast.store.rocks.damage import noted_families
from standfast.store.rocks.seal import check_seal
from standfast.store.task.commit_record import INGESTING_KEY, decode_ingesting, read_record
from standfast.store.task.definitions_file import STORES_FILE, parse
from standfast.store.task.state_dir import check_marker
from standfast.store.types.segments import store_of_family

if TYPE_CHECKING:
    from standfast.restore.snapshot.storage import Storage  # imports the library of the extra

Definitions = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Found:
    """A task's directory: its state, the definitions that it holds, and the tag of each position, by store."""

    local: Local
    definitions: Definitions
    tags: Mapping[str, str]


class ForecastLook:
    """One look at the tasks of an application.

    `state_path` is `<state_dir>/<app>`, which may be absent; `declared` are the definitions of group 0's stores as the
    settings have them: without them those of a task's directory, or else of its newest snapshot, are used.
    """

    def __init__(
        self,
        log: Log,
        app: str,
        state_path: Path | None,
        *,
        storage: Storage | None = None,
        declared: Definitions | None = None,
        now_ms: int,
    ) -> None:
        self.app = app
        self._log = log
        self._state_path = state_path
        self._storage = storage
        self._declared = declared or {}
        self._now_ms = now_ms
        self._topics: dict[str, TopicInfo | None] = {}

    def forecast(self, tasks: Collection[str] = ()) -> tuple[TaskForecast, ...]:
        """The forecasts of these tasks, or of all that have a directory, a snapshot, or a partition of a changelog.

        Raises InvalidRequest if no store is known, Unavailable if log or storage do not answer.
        """
        manifests = self._manifests()
        # Named tasks, too, that have no directory here: their plan begins with a snapshot or a changelog.
        directories = {task: self._directory(task) for task in sorted({*self._on_disk(), *tasks})}
        definitions = self._definitions(directories, manifests)
        wanted = list(tasks) or self._tasks({*directories, *manifests}, definitions)
        missing = [task for task in wanted if not definitions.get(TaskId.parse(task).group)]
        if missing or not wanted:
            raise InvalidRequest(
                f"the stores of {' '.join(missing) or 'the application'} are not known: neither a directory nor a "
                "snapshot has them; name settings with [stores] by --config, or a storage by --snapshots"
            )
        reader, group = self._log.reader(), self._log.group(self.app)
        try:
            return tuple(
                self._task(task, directories.get(task), manifests, definitions[TaskId.parse(task).group], reader, group)
                for task in sorted(wanted, key=TaskId.parse)
            )
        finally:
            reader.close()
            group.close()

    def judge(self, snapshot: Snapshot, task: str) -> Judged:
        """Whether a snapshot can be the base of a task's restore, by its own definitions and the log as it is now."""
        definitions = self._declared or snapshot.stores
        reader, group = self._log.reader(), self._log.group(self.app)
        try:
            logs = self._logs(task, definitions, reader, group)
            states = {name: log for name, log in logs.items() if isinstance(log, LogState)}
            absent = [str(log.topic_partition) for log in logs.values() if isinstance(log, Missing)]
            if absent:
                return Judged(f"changelog {few(absent)} does not exist in the log")
            return self._judge(snapshot, task, definitions, states, reader)
        finally:
            reader.close()
            group.close()

    def _task(
        self,
        task: str,
        directory: _Found | None,
        manifests: Mapping[str, Sequence[SnapshotName]],
        definitions: Definitions,
        reader: LogReader,
        group: Group,
    ) -> TaskForecast:
        logs = self._logs(task, definitions, reader, group)
        local = None if directory is None else directory.local
        states = {name: log for name, log in logs.items() if isinstance(log, LogState)}
        kept: TaskForecast | None = None
        if directory is not None and not directory.local.damage:
            logs |= diverged(states, directory.tags, reader)
            kept = of_local(task, directory.local, definitions, logs, now_ms=self._now_ms)
            if not gives_way(kept, definitions):
                return self._refilled(kept, definitions, states, reader) if manifests.get(task) else kept
        why = "there is no directory with a database" if local is None else local.damage or BEHIND_ITS_HEAD
        passed_over: dict[str, str] = {}
        # As an opening: nothing on disk to begin with, or an empty log by which no snapshot can be judged.
        on_disk = any(one.get("engine") != "memory" for one in definitions.values())
        logged = any(state.stop > state.begin or state.head_removed for state in states.values())
        if self._storage is not None and manifests.get(task) and on_disk and logged:
            done = find_usable(
                self._storage, task, judge=lambda snapshot: self._judge(snapshot, task, definitions, states, reader)
            )
            passed_over = {str(name): reason for name, reason in done.passed_over.items()}
            if done.snapshot is not None:
                found = of_snapshot(task, done.snapshot, definitions, logs, now_ms=self._now_ms)
                return replace(found, local=why, passed_over=passed_over)
        if kept is not None:
            return replace(kept, passed_over=passed_over)
        found = of_changelogs(task, definitions, logs, now_ms=self._now_ms, damaged=local is not None)
        return replace(found, local=why, passed_over=passed_over)

    def _judge(
        self,
        snapshot: Snapshot,
        task: str,
        definitions: Definitions,
        states: Mapping[str, LogState],
        reader: LogReader,
    ) -> Judged:
        judged = diverged(states, {name: at.tag for name, at in snapshot.cut.positions.items()}, reader)
        return judge(snapshot, app=self.app, task=task, definitions=definitions, logs=judged, now_ms=self._now_ms)

    def _refilled(
        self, found: TaskForecast, definitions: Definitions, states: Mapping[str, LogState], reader: LogReader
    ) -> TaskForecast:
        """The same, where stores that are lost beside good neighbours begin with their rows of a snapshot."""
        stores = {one.store: one for one in found.stores}
        used: set[SnapshotName] = set()
        passed_over: dict[str, str] = {}
        for name, one in stores.items():
            if self._storage is None or one.source != CHANGELOG or one.reason == NO_LOCAL_STATE:
                continue
            judged = partial(self._judge_store, name, found.task, definitions[name], states[name], reader)
            done = find_usable(self._storage, found.task, judge=judged)
            passed_over |= {str(other): reason for other, reason in done.passed_over.items()}
            if done.snapshot is not None:
                used.add(done.snapshot.name)
                stores[name] = replace(one, source=SNAPSHOT, records=done.tail)
        return replace(
            found,
            stores=tuple(stores.values()),
            snapshot=" ".join(map(str, sorted(used))) or None,
            passed_over=passed_over,
        )

    def _judge_store(
        self,
        store: str,
        task: str,
        definition: Mapping[str, Any],
        state: LogState,
        reader: LogReader,
        snapshot: Snapshot,
    ) -> Judged:
        tags = {name: at.tag for name, at in snapshot.cut.positions.items() if name == store}
        log = diverged({store: state}, tags, reader)[store]
        return judge_store(
            snapshot, store, app=self.app, task=task, definition=definition, log=log, now_ms=self._now_ms
        )

    def _logs(
        self, task: str, definitions: Definitions, reader: LogReader, group: Group
    ) -> dict[str, LogState | Missing]:
        """The changelogs of a task by store, as they are now."""
        partition = TaskId.parse(task).partition
        at = {name: TopicPartition(topic, partition) for name, topic in self._changelogs(definitions).items()}
        infos = {name: self._topic(one.topic) for name, one in at.items()}
        there = {name: one for name, one in at.items() if _holds(infos[name], partition)}
        bounds = reader.bounds(there.values())
        written = reader.written_ends(there.values())  # above open transactions, too: no position below is ahead
        limited = [one for name, one in there.items() if definitions[name].get("source_topic")]
        committed = group.committed(limited) if limited else {}
        limits = {one: committed[one].offset if one in committed else 0 for one in limited}
        found: dict[str, LogState | Missing] = {}
        for name, one in at.items():
            info = infos[name]
            if name not in there or info is None:
                found[name] = Missing(one)
                continue
            found[name] = log_state(one, info, bounds[one], limits.get(one), written[one])
        return found

    def _changelogs(self, definitions: Definitions) -> dict[str, str]:
        """The topic of each store that has a changelog."""
        return {
            name: one.get("source_topic") or changelog_topic(self.app, name)
            for name, one in definitions.items()
            if one.get("logging", True)
        }

    def _topic(self, name: str) -> TopicInfo | None:
        # Asked once: the tasks of a group share their changelogs, and each call goes to the broker.
        if name not in self._topics:
            self._topics[name] = self._log.admin.describe_topic(name)
        return self._topics[name]

    def _manifests(self) -> dict[str, list[SnapshotName]]:
        """Names of the storage's snapshots by task, the newest first."""
        found: dict[str, list[SnapshotName]] = {}
        for name in [] if self._storage is None else newest_first(names(self._storage)):
            found.setdefault(name.task, []).append(name)
        return found

    def _definitions(
        self, directories: Mapping[str, _Found | None], manifests: Mapping[str, Sequence[SnapshotName]]
    ) -> dict[int, Definitions]:
        """Definitions of the stores by group: of the settings, of a directory, of the newest readable manifest."""
        found: dict[int, Definitions] = {0: self._declared} if self._declared else {}
        for task, directory in directories.items():
            if directory is not None and directory.definitions:
                found.setdefault(TaskId.parse(task).group, directory.definitions)
        for task, kept in manifests.items():
            for name in kept:
                if TaskId.parse(task).group in found or self._storage is None:
                    break
                try:
                    found[TaskId.parse(task).group] = read_snapshot(self._storage, name).stores
                except (Corruption, InvalidRequest):
                    continue  # the task's own look says why it is passed over
        return found

    def _tasks(self, known: Collection[str], definitions: Mapping[int, Definitions]) -> list[str]:
        """Known tasks, and those of the partitions that the changelogs of their groups have."""
        wanted = set(known)
        for group, stores in definitions.items():
            infos = [self._topic(topic) for topic in self._changelogs(stores).values()]
            count = max((info.partitions for info in infos if info is not None), default=0)
            wanted |= {str(TaskId(group, partition)) for partition in range(count)}
        return sorted(wanted)

    def _on_disk(self) -> list[str]:
        path = self._state_path
        if path is None or not path.is_dir():
            return []
        return [child.name for child in path.iterdir() if is_task(child.name) and holds_database(child)]

    def _directory(self, task: str) -> _Found | None:
        path = None if self._state_path is None else self._state_path / task
        if path is None or not holds_database(path):
            return None
        try:
            check_marker(path, self.app, task)
            # As the opening does: RocksDB takes a MANIFEST without its end for an older one.
            check_seal(path)
            with open_task(path) as engine:
                return _read(engine, path)
        except Corruption as damage:
            # The record cannot be read, but a file beside the database has the same definitions.
            return _Found(Local(damage=str(damage)), _kept_definitions(path), {})


def _kept_definitions(directory: Path) -> Definitions:
    path = directory / STORES_FILE
    return parse(path.read_bytes() if path.is_file() else None).stores or {}


def _read(engine: Engine, directory: Path) -> _Found:
    where = str(directory)
    damaged = frozenset(map(store_of_family, noted_families(directory, engine.families_of)))
    if DEFAULT_FAMILY in damaged:
        raise Corruption(f"{where}: an earlier read found damage in the task's record")
    lost = damaged | frozenset(decode_ingesting(engine.get(DEFAULT_FAMILY, INGESTING_KEY), where))
    with_rows = set()
    for family in engine.families():
        store = store_of_family(family)
        if store not in with_rows and store != DEFAULT_FAMILY:
            with engine.scan(family) as scan:
                if next(iter(scan), None) is not None:
                    with_rows.add(store)
    positions = read_record(engine, where).positions
    tags = {name: at.tag for name, at in positions.items()}
    return _Found(Local(positions, frozenset(with_rows), lost), definitions_of(engine, where), tags)


def _holds(info: TopicInfo | None, partition: int) -> bool:
    return info is not None and partition < info.partitions


def is_task(name: str) -> bool:
    """Whether this is the name of a task, such as 0_3."""
    try:
        return str(TaskId.parse(name)) == name
    except ValueError:
        return False
