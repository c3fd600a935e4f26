"""Opens tasks: stores, changelogs and the restore plan, and what must happen before the first record.

    active    writer (fences older owners) -> stores -> plan against the log's bounds -> ranges to restore
    standby                                  stores -> plan against the log's bounds -> tail

Rules of this file: the plan is pure (`standfast.restore.plan`); here it is carried out. State that does not fit the
log is set aside whole, never deleted, and the reason is told; a plan that is refused changes nothing. Stores,
partitions and changelogs are those of the task's own group. Where a source topic serves as changelog the restore ends
at the group's committed offset, read here, after the previous owner was fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from standfast.replication.applier import ChangelogApplier
from standfast.replication.changelog import (
    changelog_problems,
    ensure_changelogs,
    grow_changelogs,
)
from standfast.replication.foreign import foreign_changelogs
from standfast.replication.listeners import Listener
from standfast.replication.log import Group, Log, TopicInfo
from standfast.replication.offsets import Bounds, TaskId, TopicPartition
from standfast.replication.topic_fixes import Fixes
from standfast.restore.plan import (
    LocalPosition,
    LogState,
    Plan,
    Refuse,
    Reinitialise,
    Resume,
    UpToDate,
    plan_changelog,
)
from standfast.store.clock import Clock
from standfast.store.errors import BadConfig, Corruption, StateLost
from standfast.store.log import logger
from standfast.store.rocks import RocksShared
from standfast.store.rows import RowLimits
from standfast.store.state_dir import StateDir
from standfast.store.task_stores import TaskStores
from standfast.stream.groups import TaskGroup
from standfast.stream.settings import Guarantee
from standfast.stream.task import Task

Ranges = dict[TopicPartition, tuple[int, int, str]]


@dataclass(slots=True)
class Opened:
    """A task with what it still has to restore."""

    task: Task
    ranges: Ranges
    local_counts: bool
    lost: str | None = None


class TaskOpener:
    """What every task of a session is opened with."""

    def __init__(
        self,
        app: str,
        log: Log,
        group: Group,
        state_dir: StateDir,
        groups: Mapping[int, TaskGroup],
        shared: RocksShared,
        *,
        clock: Clock,
        listener: Listener,
        guarantee: Guarantee,
        limits: RowLimits,
        accept_empty_log: bool,
        accept_missing_history: bool,
        buffer_bytes: Callable[[], int],
        foreign: bool = False,
    ) -> None:
        self.app = app
        self.log = log
        self.groups = groups  # the session's own mapping: it may learn the partitions of a group later
        self.state_dir = state_dir
        self._group = group
        self._shared = shared
        self._clock = clock
        self._listener = listener
        self._guarantee: Guarantee = guarantee
        self._limits = limits
        self._accept_empty_log = accept_empty_log
        self._accept_missing_history = accept_missing_history
        self._buffer_bytes = buffer_bytes
        self._fixes = Fixes(log.address)
        self._foreign = foreign  # the changelogs are another application's: they are taken as they are
        self._reader = log.reader()

    def ensure_topics(self, *, follow: bool) -> None:
        """Make missing changelogs of every group; BadConfig lists every problem at once, before any is made.

        `follow`: a changelog with fewer partitions than its source has now is no problem, it grows.
        """
        problems = []
        for group in () if self._foreign else self.groups.values():
            problems += changelog_problems(self.log.admin, self.app, group.specs, group.partitions, self._fixes,
                                           "fewer" if follow else "none")  # fmt: skip
        if problems:
            raise BadConfig(problems)
        for number, group in sorted(self.groups.items()):
            if follow and not self._foreign:
                self.grow(number, group.partitions)
            self.topics(number)

    def topics(self, group: int) -> Mapping[str, TopicInfo]:
        """The changelogs of a group by store, created where missing and checked where not."""
        wanted, admin = self.groups[group], self.log.admin
        if self._foreign:
            return foreign_changelogs(admin, self.app, wanted.specs, wanted.partitions)
        return ensure_changelogs(admin, self.app, wanted.specs, wanted.partitions, self._fixes, "more")

    def grow(self, group: int, partitions: int) -> None:
        """Let the changelogs of a group have as many partitions as it has tasks from now on."""
        grown = grow_changelogs(self.log.admin, self.app, self.groups[group].specs, partitions)
        for topic in grown:
            logger.info("changelog %s has %d partitions now, as its source has", topic, partitions)

    def open(self, task: TaskId, *, set_aside_as: str | None = None) -> Opened:
        """Open the stores of a task and plan its restore; a directory that does not fit the log is set aside.

        With `set_aside_as` (a reason) the directory is known to be damaged and is set aside first.
        """
        topics = self.topics(task.group)
        lost = set_aside_as
        if lost is not None:
            self.state_dir.set_aside(str(task), lost)
        try:
            stores = self._stores(task)
        except Corruption:
            lost = "corrupt"
            self.state_dir.set_aside(str(task), lost)
            stores = self._stores(task)
        return self._planned(task, topics, stores, lost)

    def plan_again(self, task: Task) -> tuple[Ranges, bool] | str:
        """Plan a promoted standby: what is left to restore, or the reason why its state is lost."""
        plans = self._plans(task.stores, task.applier, self._topic_infos(task.applier))
        lost = _lost_reason(plans)
        if lost is not None:
            return lost
        _refuse(task.id, plans)
        _step_over_markers(task.applier, plans)
        return _ranges(plans, None), _all_at_end(plans)

    def close(self) -> None:
        """Release the reader."""
        self._reader.close()

    def _planned(self, task: TaskId, topics: Mapping[str, TopicInfo], stores: TaskStores, lost: str | None) -> Opened:
        try:
            applier = ChangelogApplier(task, stores, topics, self._clock)
            plans = self._plans(stores, applier, topics)
            _refuse(task, plans)
            reason = _lost_reason(plans)
            if reason is not None:
                stores.close()
                self.state_dir.set_aside(str(task), reason)
                lost = reason
                stores = self._stores(task)
                applier = ChangelogApplier(task, stores, topics, self._clock)
                plans = self._plans(stores, applier, topics)
                _refuse(task, plans)
            opened = Task(
                task,
                stores,
                applier,
                self._group,
                app=self.app,
                guarantee=self._guarantee,
                clock=self._clock,
                listener=self._listener,
                topics=self.groups[task.group].topics,
            )
        except BaseException:
            stores.close()
            raise
        _step_over_markers(applier, plans)
        stores.bind_clock(opened.now_ms)
        if lost is not None:
            self._listener.on_state_lost(task, lost)
        return Opened(opened, _ranges(plans, lost), _all_at_end(plans), lost)

    def _stores(self, task: TaskId) -> TaskStores:
        return TaskStores(
            self.state_dir.task_path(str(task)),
            self.app,
            str(task),
            self.groups[task.group].specs,
            self._shared,
            now_ms=self._clock.wall_ms,
            buffer_bytes=self._buffer_bytes(),
            limits=self._limits,
        )

    def _topic_infos(self, applier: ChangelogApplier) -> Mapping[str, TopicInfo]:
        infos = {}
        for name, changelog in applier.changelogs.items():
            info = self.log.admin.describe_topic(changelog.topic)
            if info is None:
                raise StateLost(
                    f"changelog {changelog.topic} of store {name!r} no longer exists", reason="topic-deleted"
                )
            infos[name] = info
        return infos

    def _plans(
        self, stores: TaskStores, applier: ChangelogApplier, topics: Mapping[str, TopicInfo]
    ) -> dict[TopicPartition, Plan]:
        bounds = self._reader.bounds(applier.store_of)
        committed = self._group.committed(applier.limited) if applier.limited else {}
        limits = {at: committed[at].offset if at in committed else 0 for at in applier.limited}
        locals_ = {at: _local(stores, applier, at, name) for at, name in applier.store_of.items()}
        reached = {at: max(limit, local.position if (local := locals_[at]) else 0) for at, limit in limits.items()}
        written = self._written({at: offset for at, offset in reached.items() if offset > bounds[at].end})
        now_ms = self._clock.wall_ms()
        plans: dict[TopicPartition, Plan] = {}
        for changelog, name in applier.store_of.items():
            log_state = _log_state(
                changelog, topics[name], bounds[changelog], limits.get(changelog), written.get(changelog, -1)
            )
            plans[changelog] = plan_changelog(
                locals_[changelog],
                log_state,
                now_ms=now_ms,
                accept_empty_log=self._accept_empty_log,
                accept_missing_history=self._accept_missing_history,
            )
        return plans

    def _written(self, reached: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Ends with open transactions, of partitions where somebody was above what may be read."""
        written = self._reader.written_ends(reached) if reached else {}
        for at, end in written.items():
            logger.warning(
                "%s: offset %d was processed, which lies in a transaction that is still open, or above the end (%d): "
                "the store is whole once all below it can be read",
                at,
                reached[at],
                end,
            )
        return written


def _log_state(changelog: TopicPartition, info: TopicInfo, bounds: Bounds, limit: int | None, written: int) -> LogState:
    return LogState(
        topic_partition=changelog,
        topic_id=info.topic_id,
        begin=bounds.begin,
        end=bounds.end,
        cleanup=info.policy.cleanup,
        retention_ms=info.policy.retention_ms,
        delete_retention_ms=info.policy.delete_retention_ms,
        diverged_at=None,
        limit=limit,
        written=written,
    )


def _local(stores: TaskStores, applier: ChangelogApplier, changelog: TopicPartition, name: str) -> LocalPosition | None:
    stored = applier.position(changelog)
    if stored is None:
        return None
    return LocalPosition(
        position=stored.offset,
        topic_id=stored.topic_id,
        leader_epoch=stored.leader_epoch,
        at_ms=stored.at_ms,
        rows=stores.has_rows(name),
        marker=stored.marker,
    )


def _step_over_markers(applier: ChangelogApplier, plans: Mapping[TopicPartition, Plan]) -> None:
    """A log that begins right after the marker at our position has no such offset any more."""
    for changelog, plan in plans.items():
        stored = applier.position(changelog)
        if isinstance(plan, Resume) and stored is not None and plan.position > stored.offset:
            applier.apply(changelog, (), plan.position)


def _refuse(task: TaskId, plans: Mapping[TopicPartition, Plan]) -> None:
    refused = [plan for plan in plans.values() if isinstance(plan, Refuse)]
    if refused:
        raise StateLost(f"task {task}: " + "; ".join(plan.message for plan in refused), reason=refused[0].reason)


def _lost_reason(plans: Mapping[TopicPartition, Plan]) -> str | None:
    return next((plan.reason for plan in plans.values() if isinstance(plan, Reinitialise)), None)


def _all_at_end(plans: Mapping[TopicPartition, Plan]) -> bool:
    return all(isinstance(plan, UpToDate) for plan in plans.values())


def _ranges(plans: Mapping[TopicPartition, Plan], lost: str | None) -> Ranges:
    return {changelog: (plan.position, plan.end, lost or plan.reason) for changelog, plan in plans.items()}
