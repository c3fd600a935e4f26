"""The forecast of a task's opening: the source of each store, the records to read, the bytes, the expected time.

    local state that fits the log ──> else the newest snapshot that fits ──> else the changelog from its beginning

    seconds = bytes of the download / its rate + records of the tails / their rate

Rules of this file: pure. It decides as an opening does, by the same plan of each changelog (`standfast.restore.plan`)
and the same judgement of a snapshot. Records are upper bounds, since logs have gaps; bytes are estimates by samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from standfast.replication.offsets import Bounds, TopicPartition
from standfast.restore.plan import (
    CORRUPT,
    NO_LOCAL_STATE,
    LocalPosition,
    LogState,
    Refuse,
    Reinitialise,
    StoredPosition,
    local_position,
    plan_changelog,
)
from standfast.restore.snapshot.manifest import Snapshot

LOCAL, SNAPSHOT, CHANGELOG, EMPTY, REFUSED = "local", "snapshot", "changelog", "empty", "refused"
NO_CHANGELOG = "no-changelog"  # the reason of a store that no log can give back


class Missing(NamedTuple):
    """A changelog that does not exist (yet): a start creates it."""

    topic_partition: TopicPartition


@dataclass(frozen=True, slots=True)
class Local:
    """The task's directory as found: positions by store, stores with rows, stores whose rows cannot be used.

    `damage`: why the directory as a whole cannot be used; "" if it can.
    """

    positions: Mapping[str, StoredPosition] = field(default_factory=dict)
    with_rows: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()
    damage: str = ""


@dataclass(frozen=True, slots=True)
class StoreForecast:
    """One store: `source` is one of the constants above, `reason` that of the plan; `message`: why it is refused.

    It is read from `position` to `end` of its changelog, at most `records`, about `bytes` of keys and values.
    """

    store: str
    source: str
    reason: str
    changelog: str = ""
    position: int = 0
    end: int = 0
    records: int = 0
    bytes: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class TaskForecast:
    """One task. `snapshot`: the one that it begins with; `passed_over`: newer ones, each with the reason.

    `local`: why the state on this disk is not used, "" if it is.
    """

    task: str
    source: str
    stores: tuple[StoreForecast, ...]
    local: str = ""
    snapshot: str | None = None
    download_bytes: int = 0
    download_files: int = 0
    passed_over: Mapping[str, str] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """Most records to read."""
        return sum(one.records for one in self.stores)

    @property
    def bytes(self) -> int:
        """About the bytes of these records."""
        return sum(one.bytes for one in self.stores)

    @property
    def refused(self) -> bool:
        """Whether an opening would be refused: a person must decide."""
        return any(one.source == REFUSED for one in self.stores)


def seconds(records: int, download_bytes: int, *, replay_per_s: float, download_per_s: float) -> float:
    """The expected time of a restore."""
    return records / replay_per_s + download_bytes / download_per_s


def of_local(
    task: str,
    local: Local,
    definitions: Mapping[str, Mapping[str, Any]],
    logs: Mapping[str, LogState | Missing],
    *,
    now_ms: int,
) -> TaskForecast:
    """The forecast of a task whose directory can be opened: a store that does not fit its log is read again alone."""
    stores = []
    for name, definition in sorted(definitions.items()):
        in_memory = definition.get("engine") == "memory"
        kept = None if in_memory else local.positions.get(name)
        log = logs.get(name)
        if log is None:
            stores.append(_unlogged(name, LOCAL if name in local.with_rows else EMPTY))
            continue
        lost = CORRUPT if name in local.lost and not in_memory else ""
        found = None if kept is None else local_position(kept, rows=name in local.with_rows, lost=lost)
        stores.append(_store(name, LOCAL, found, log, now_ms))
    return TaskForecast(task, LOCAL, tuple(stores))


def of_snapshot(
    task: str,
    snapshot: Snapshot,
    definitions: Mapping[str, Mapping[str, Any]],
    logs: Mapping[str, LogState | Missing],
    *,
    now_ms: int,
) -> TaskForecast:
    """The forecast of a task that begins with a snapshot, which was judged before."""
    stores = []
    for name, definition in sorted(definitions.items()):
        in_files = name in snapshot.stores and name not in snapshot.memory_stores
        kept = snapshot.cut.positions.get(name)
        log = logs.get(name)
        if log is None:
            stores.append(_unlogged(name, SNAPSHOT if in_files else EMPTY))
            continue
        fits = kept is not None and in_files and definition.get("engine") != "memory"
        found = local_position(kept, rows=True) if fits and kept is not None else None
        stores.append(_store(name, SNAPSHOT, found, log, now_ms))
    return TaskForecast(
        task,
        SNAPSHOT,
        tuple(stores),
        snapshot=str(snapshot.name),
        download_bytes=snapshot.bytes,
        download_files=len(snapshot.files),
    )


def of_changelogs(
    task: str,
    definitions: Mapping[str, Mapping[str, Any]],
    logs: Mapping[str, LogState | Missing],
    *,
    now_ms: int,
    damaged: bool = False,
) -> TaskForecast:
    """The forecast of a task that has nothing but its changelogs; `damaged`: its directory has rows of no use."""
    stores = []
    for name in sorted(definitions):
        log = logs.get(name)
        if log is None:
            stores.append(_unlogged(name, EMPTY))
            continue
        # As an opening: of a damaged directory no position is known, and its rows may be the last copy.
        found = LocalPosition(0, "", at_ms=0, rows=True, lost=CORRUPT) if damaged else None
        stores.append(_store(name, CHANGELOG, found, log, now_ms))
    return TaskForecast(task, CHANGELOG, tuple(stores))


def with_bytes(found: TaskForecast, average: Mapping[str, float]) -> TaskForecast:
    """The same with the bytes of its tails; `average` are bytes of a record, by store."""
    stores = tuple(replace(one, bytes=int(one.records * average.get(one.store, 0.0))) for one in found.stores)
    return replace(found, stores=stores)


def ranges_of(found: Sequence[TaskForecast], store: str) -> dict[int, Bounds]:
    """The ranges that tasks read of a store's changelog, by partition."""
    return {
        int(one.task.rpartition("_")[2]): Bounds(part.position, part.end)
        for one in found
        for part in one.stores
        if part.store == store and part.records
    }


def _store(name: str, source: str, found: LocalPosition | None, log: LogState | Missing, now_ms: int) -> StoreForecast:
    if isinstance(log, Missing):
        if found is None or not found.rows:
            return StoreForecast(name, EMPTY, NO_LOCAL_STATE, str(log.topic_partition))
        why = f"changelog {log.topic_partition} does not exist, and the rows here may be the last copy: check the log"
        return StoreForecast(name, REFUSED, "topic-deleted", str(log.topic_partition), found.position, message=why)
    plan = plan_changelog(found, log, now_ms=now_ms)
    changelog = str(log.topic_partition)
    if isinstance(plan, Refuse):
        return StoreForecast(name, REFUSED, plan.reason, changelog, plan.position, plan.end, message=plan.message)
    if found is None or isinstance(plan, Reinitialise):
        source = CHANGELOG
    return StoreForecast(name, source, plan.reason, changelog, plan.position, plan.end, plan.records_max)


def _unlogged(name: str, source: str) -> StoreForecast:
    return StoreForecast(name, source, NO_CHANGELOG)
