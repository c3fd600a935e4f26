"""Plans of a task's changelogs: its own positions beside the log as it is now.

    log     bounds, written ends, leader epochs, the group's offsets ──> LogState ───────┐
    stores  positions, and the reasons of those that are lost ─────────> LocalPosition ──┴──> a Plan for each changelog

Of an owner no record lies above the bounds that it lacks: the ends of former owners' transactions are waited for.

Rules of this file: the decision is pure (`standfast.restore.plan`); here its facts are asked for. It writes nothing,
but `settle` moves positions as the plans say, and an accepted loss is noted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from standfast.replication.log import LOST_END, Group, LogReader, TopicInfo, TransactionOpen
from standfast.replication.offsets import Bounds, TaskId, TopicPartition
from standfast.replication.progress import WORK, LeaseProgress
from standfast.replication.tail.applier import ChangelogApplier
from standfast.restore.accepted import note_accepted
from standfast.restore.log_states import log_state
from standfast.restore.plan import (
    LocalPosition,
    LogState,
    Plan,
    Refuse,
    ReinitialisePlan,
    Resume,
    UpToDate,
    local_position,
    plan_changelog,
)
from standfast.store.clock import Clock
from standfast.store.errors import StateLost
from standfast.store.log import as_event, logger
from standfast.store.names import few
from standfast.store.specs import StoreSpec
from standfast.store.task.task_stores import TaskStores
from standfast.stream.task.settings import SessionSettings

Plans = Mapping[TopicPartition, Plan]
ENDS_MS, ENDS_PAUSE_MS = 1_000, 20  # for the ends of former owners' transactions, which are written by then
# After a wait in vain: the tasks of a broker that lost the ends of many would together wait for longer than a lease.
ENDS_REST_MS = 10_000


class Planner:
    """Makes the plans of all tasks of a session."""

    def __init__(
        self,
        path: Path,
        reader: LogReader,
        group: Group,
        settings: SessionSettings,
        clock: Clock,
        progress: LeaseProgress,
    ) -> None:
        self._path = path  # of the application's state directory
        self._reader = reader
        self._group = group
        self._settings = settings
        self._clock = clock
        self._progress = progress
        self._waits_from_ms = 0  # for ends of transactions; before that they are looked for once

    def log_states(
        self, task: TaskId, specs: Sequence[StoreSpec], topics: Mapping[str, TopicInfo]
    ) -> dict[str, LogState]:
        """The changelogs of a task by store, as they are now."""
        at = {name: TopicPartition(info.name, task.partition) for name, info in topics.items()}
        bounds = self._reader.bounds(at.values())
        limits = self._limits([at[spec.name] for spec in specs if spec.from_source])
        # The end above open transactions, too: a snapshot below it is not ahead of the log.
        written = self._reader.written_ends(at.values())
        return {
            name: log_state(one, topics[name], bounds[one], limits.get(one), written[one]) for name, one in at.items()
        }

    def plans(
        self,
        stores: TaskStores,
        applier: ChangelogApplier,
        topics: Mapping[str, TopicInfo],
        lost: Mapping[str, str] = MappingProxyType({}),
        had_rows: Callable[[str], bool] | None = None,
        *,
        owner: bool = False,
    ) -> dict[TopicPartition, Plan]:
        """A plan for each changelog; `lost` are stores with unusable rows, `had_rows` as in `Mender`.

        After the writer's opening has fenced the previous owner, so that no later commit can move the limits.
        """
        limits = self._limits(applier.limited)
        locals_ = {
            at: _local(stores, applier, at, lost.get(name, ""), had_rows) for at, name in applier.store_of.items()
        }
        bounds = self._bounds(applier, locals_, owner=owner)
        # A commit is acknowledged before its end is written into every partition: this instance's own position may be
        # above the readable end, for as long as the brokers take, such as after all of them were restarted.
        reached = {at: max(limits.get(at, 0), local.position if local else 0) for at, local in locals_.items()}
        written = self._written({at: offset for at, offset in reached.items() if offset > bounds[at].end})
        stored = {at: found for at in locals_ if (found := applier.position(at)) is not None}
        # Records of a leader epoch that ended below the position were lost by the log: the rows do not fit it.
        diverged = self._reader.epoch_ends({at: found.tag for at, found in stored.items() if found.tag})
        now_ms = self._clock.wall_ms()
        plans: dict[TopicPartition, Plan] = {}
        for changelog, name in applier.store_of.items():
            state = log_state(
                changelog,
                topics[name],
                bounds[changelog],
                limits.get(changelog),
                written.get(changelog, -1),
                diverged.get(changelog),
            )
            plans[changelog] = plan_changelog(
                locals_[changelog],
                state,
                now_ms=now_ms,
                accept_empty_log=self._settings.accept_empty_log,
                accept_missing_history=self._settings.accept_missing_history,
            )
        return plans

    def accept(self, task: TaskId, applier: ChangelogApplier, plans: Plans) -> None:
        """Raise StateLost for refused plans; note the losses that the settings accept."""
        refuse(task, plans)
        note_accepted(self._path, applier, plans, self._clock.wall_ms())

    def _limits(self, sources: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the group stands in source topics that serve as changelogs."""
        committed = self._group.committed(sources) if sources else {}
        return {at: committed[at].offset if at in committed else 0 for at in sources}

    def _bounds(
        self, applier: ChangelogApplier, local: Mapping[TopicPartition, LocalPosition | None], *, owner: bool
    ) -> dict[TopicPartition, Bounds]:
        """The bounds of the changelogs; of an owner's no record lies above them that it lacks. Raises TransactionOpen.

        The brokers have ended the transactions of all former owners when a writer is open. One that they count as ended
        although its end is missing (KAFKA-20734) hides acknowledged rows: a restore up to the readable end would
        lose them without a word, and the next commit of the task would write the end for both. With the hidden
        records in its own store, that commit is right: they were acknowledged.
        """
        bounds = self._reader.bounds(applier.store_of)
        owned = [at for at in applier.store_of if at not in applier.limited] if owner else []
        if not owned:
            return bounds
        seen = {at: one.seen if one is not None and not one.lost else 0 for at, one in local.items()}
        # Once, as former owners write no more: beside a client that goes on writing, the two would never be equal.
        written = self._reader.written_ends(owned)
        began_ms = self._clock.monotonic_ms()
        deadline_ms = began_ms + (ENDS_MS if began_ms >= self._waits_from_ms else 0)
        while hidden := [at for at in owned if written[at] > max(bounds[at].end, seen[at])]:
            if self._clock.monotonic_ms() >= deadline_ms:
                if deadline_ms > began_ms:
                    self._waits_from_ms = deadline_ms + ENDS_REST_MS
                raise _hidden(hidden[0], bounds[hidden[0]].end, written[hidden[0]])
            self._progress.step(WORK)
            self._clock.sleep_ms(ENDS_PAUSE_MS)
            bounds |= self._reader.bounds(hidden)
        return bounds

    def _written(self, reached: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Ends with open transactions, of partitions whose processed offset is above the readable end."""
        written = self._reader.written_ends(reached) if reached else {}
        for at, end in written.items():
            logger.warning(
                "%s: processed offset %d lies in a transaction that is still open, or above the end (%d): the store is "
                "whole once every record below that offset can be read",
                at,
                reached[at],
                end,
                extra=as_event("offset_in_open_transaction", source=at, offset=reached[at]),
            )
        return written


def _hidden(changelog: TopicPartition, readable: int, written: int) -> TransactionOpen:
    return TransactionOpen(
        f"{changelog}: offsets {readable} to {written - 1} are in a transaction that is open although its task has a "
        "new owner, so the rows of the task are not known yet: the opening is tried again. If this persists, another "
        f"client writes to the changelog, or {LOST_END}"
    )


def _local(
    stores: TaskStores, applier: ChangelogApplier, at: TopicPartition, lost: str, had_rows: Callable[[str], bool] | None
) -> LocalPosition | None:
    """The rows of a store. If they are `lost` and none of its positions is known, they may be the last copy."""
    stored, name = applier.position(at), applier.store_of[at]
    if lost and had_rows is not None:
        return LocalPosition(position=0, topic_id="", at_ms=0, rows=had_rows(name), lost=lost)
    return None if stored is None else local_position(stored, rows=bool(lost) or stores.has_rows(name), lost=lost)


def settle(applier: ChangelogApplier, plans: Plans, looked_ms: int) -> None:
    """Move positions past their markers; those at their end, stamped ahead of the clock, get the time of the look."""
    for changelog, plan in plans.items():
        stored = applier.position(changelog)
        if stored is None:
            continue
        # A log that begins right after the marker has no such offset any more.
        if isinstance(plan, Resume) and plan.position > stored.offset:
            applier.apply(changelog, (), plan.position)
        # Later, when other owners have deleted rows, such a position would look younger than it is. Of a source topic
        # that serves as changelog, records beyond the position may be there already: only its commits stamp it.
        elif isinstance(plan, UpToDate) and stored.at_ms > looked_ms and changelog not in applier.limited:
            applier.confirm(changelog, looked_ms)


def refuse(task: TaskId, plans: Plans) -> None:
    refused = [plan for plan in plans.values() if isinstance(plan, Refuse)]
    if refused:
        raise StateLost(f"task {task}: " + few((plan.message for plan in refused), "; "), reason=refused[0].reason)


def lost_stores(plans: Plans, applier: ChangelogApplier) -> dict[str, str]:
    return {applier.store_of[at]: plan.reason for at, plan in plans.items() if isinstance(plan, ReinitialisePlan)}


def keep(plans: Plans) -> bool:
    return any(isinstance(plan, ReinitialisePlan) and plan.keep for plan in plans.values())


def all_at_end(plans: Plans) -> bool:
    return all(isinstance(plan, UpToDate) for plan in plans.values())
