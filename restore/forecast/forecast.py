"""The forecast of a task's opening: the source of each store, and the records to read.

    local state that fits the log ──> else the newest snapshot that fits ──> else the changelog from its beginning

Rules of this file: pure. It decides as an opening does, by the same plan of each changelog (`standfast.restore.plan`)
and the same judgement of a snapshot. Records are upper bounds, since logs have gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from standfast.replication.offsets import TopicPartition
from standfast.restore.plan import (
    CORRUPT,
    HISTORY_MISSING,
    NO_LOCAL_STATE,
    LocalPosition,
    LogState,
    Refuse,
    ReinitialisePlan,
    StoredPosition,
    local_position,
    plan_changelog,
)
from standfast.restore.snapshot.manifest import Snapshot

LOCAL, SNAPSHOT, CHANGELOG, EMPTY, REFUSED = "local", "snapshot", "changelog", "empty", "refused"
BEHIND_ITS_HEAD = "its changelog lost records that the local state has not read"
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

    At most `records` of its changelog are read.
    """

    store: str
    source: str
    reason: str
    records: int = 0
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
    passed_over: Mapping[str, str] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """Most records to read."""
        return sum(one.records for one in self.stores)

    @property
    def refused(self) -> bool:
        """Whether an opening would be refused: a person must decide."""
        return any(one.source == REFUSED for one in self.stores)


def of_local(
    task: str,
    local: Local,
    definitions: Mapping[str, Mapping[str, Any]],
    logs: Mapping[str, LogState | Missing],
    *,
    now_ms: int,
) -> TaskForecast:
    """The forecast of a task whose directory can be opened: a store that does not fit its log is read again alone."""

    def position(name: str) -> LocalPosition | None:
        kept = local.positions.get(name)
        if kept is None or definitions[name].get("engine") == "memory":
            return None
        return local_position(kept, rows=name in local.with_rows, lost=CORRUPT if name in local.lost else "")

    return TaskForecast(task, LOCAL, _stores(LOCAL, definitions, logs, position, local.with_rows, now_ms))


def of_snapshot(
    task: str,
    snapshot: Snapshot,
    definitions: Mapping[str, Mapping[str, Any]],
    logs: Mapping[str, LogState | Missing],
    *,
    now_ms: int,
) -> TaskForecast:
    """The forecast of a task that begins with a snapshot, which was judged before."""
    in_files = snapshot.stores.keys() - set(snapshot.memory_stores)

    def position(name: str) -> LocalPosition | None:
        kept = snapshot.cut.positions.get(name)
        fits = name in in_files and definitions[name].get("engine") != "memory"
        return local_position(kept, rows=True) if kept is not None and fits else None

    stores = _stores(SNAPSHOT, definitions, logs, position, in_files, now_ms)
    return TaskForecast(task, SNAPSHOT, stores, snapshot=str(snapshot.name))


def of_changelogs(
    task: str,
    definitions: Mapping[str, Mapping[str, Any]],
    logs: Mapping[str, LogState | Missing],
    *,
    now_ms: int,
    damaged: bool = False,
) -> TaskForecast:
    """The forecast of a task that has nothing but its changelogs; `damaged`: its directory has rows of no use."""
    # As an opening: of a damaged directory no position is known, and its rows may be the last copy.
    found = LocalPosition(0, "", at_ms=0, rows=True, lost=CORRUPT) if damaged else None
    return TaskForecast(task, CHANGELOG, _stores(CHANGELOG, definitions, logs, lambda name: found, (), now_ms))


def gives_way(found: TaskForecast, definitions: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether refused local state may give way to a snapshot: a changelog lost its head, and every store has one."""
    reasons = [one.reason for one in found.stores if one.source == REFUSED]
    logged = all(one.get("logging", True) or one.get("engine") == "memory" for one in definitions.values())
    return HISTORY_MISSING in reasons[:1] and logged


def _stores(
    source: str,
    definitions: Mapping[str, Mapping[str, Any]],
    logs: Mapping[str, LogState | Missing],
    position: Callable[[str], LocalPosition | None],
    with_rows: Collection[str],
    now_ms: int,
) -> tuple[StoreForecast, ...]:
    """Every store from `source`, where its position fits its log; `with_rows` are those of which it holds rows."""
    return tuple(
        _unlogged(name, source if name in with_rows else EMPTY)
        if (log := logs.get(name)) is None
        else _store(name, source, position(name), log, now_ms)
        for name in sorted(definitions)
    )


def _store(name: str, source: str, found: LocalPosition | None, log: LogState | Missing, now_ms: int) -> StoreForecast:
    if isinstance(log, Missing):
        if found is None or not found.rows:
            return StoreForecast(name, EMPTY, NO_LOCAL_STATE)
        why = f"changelog {log.topic_partition} does not exist, and the rows here may be the last copy: check the log"
        return StoreForecast(name, REFUSED, "topic-deleted", message=why)
    plan = plan_changelog(found, log, now_ms=now_ms)
    if isinstance(plan, Refuse):
        return StoreForecast(name, REFUSED, plan.reason, message=plan.message)
    if found is None or isinstance(plan, ReinitialisePlan):
        source = CHANGELOG
    return StoreForecast(name, source, plan.reason, plan.records_max)


def _unlogged(name: str, source: str) -> StoreForecast:
    return StoreForecast(name, source, NO_CHANGELOG)
