"""Opens tasks: stores, changelogs and the restore plan, and all work before the first record.

    without local state: the newest snapshot that fits the log, where the session has a storage of snapshots
    active    writer (fences older owners) -> stores -> plan against the log's bounds -> ranges to restore
    standby                                  stores -> plan against the log's bounds -> tail

Rules of this file: the plan is pure (`standfast.restore.plan`); this file carries it out. A store that does not fit the
log, or is damaged, is taken out of its directory (`standfast.stream.task.mending`) and the reason is reported; the
other stores of the task stay as they are, and a refused plan changes nothing. Stores, partitions and changelogs are
those of the task's own group. Where a source topic serves as changelog the restore ends at the group's committed
offset, read after the previous owner was fenced. The state directory is as Kafka Streams' StateDirectory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from standfast.replication.listeners import Listener
from standfast.replication.log import Group, Log, LogAdmin, OffsetsOpen, TopicInfo
from standfast.replication.metadata_parts import group_metadata, with_pieces
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.permissions import Need, changelog_needs
from standfast.replication.progress import LeaseProgress
from standfast.replication.tail.applier import ChangelogApplier
from standfast.replication.topics.changelog import (
    changelog_problems,
    ensure_changelogs,
    grow_changelogs,
    take_changelogs,
)
from standfast.replication.topics.claims import Claim, Claims, refusals
from standfast.replication.topics.fixes import Fixes
from standfast.replication.topics.foreign import foreign_changelogs
from standfast.replication.topics.restoring import refuse_restoring
from standfast.restore.foreign_offsets import (
    ForeignOffsets,
    foreign_offsets,
    recorded_offsets,
    recorded_tags,
)
from standfast.restore.lost_commits import LostCommits
from standfast.restore.plan import CORRUPT, HISTORY_MISSING, LogState
from standfast.store.buffer.rows import RowLimits
from standfast.store.clock import Clock
from standfast.store.disk import DiskGuard
from standfast.store.errors import BadConfig, Corruption, InvalidRequest, StandfastError, StateLost
from standfast.store.failpoint import reach
from standfast.store.log import as_event, logger
from standfast.store.process.threads import Threads
from standfast.store.rocks.opening import RocksShared
from standfast.store.rocks.seal import never_opened
from standfast.store.specs import StoreSpec
from standfast.store.task.commit_record import Unwritten
from standfast.store.task.state_dir import StateDir
from standfast.store.task.task_stores import TaskStores
from standfast.stream.loss import Loss
from standfast.stream.snapshot_counts import Downloads, SnapshotCounts
from standfast.stream.snapshots.beginning import FromSnapshot, SnapshotsAway
from standfast.stream.task.groups import TaskGroup
from standfast.stream.task.key_forms import KeyForms
from standfast.stream.task.mending import Mender
from standfast.stream.task.planning import Planner, Plans, all_at_end, keep, lost_stores, settle
from standfast.stream.task.rows_on_disk import RowsOnDisk
from standfast.stream.task.settings import SessionSettings
from standfast.stream.task.task import Task

Ranges = dict[TopicPartition, tuple[int, int, str]]
NOTHING = Loss()


@dataclass(slots=True)
class Opened:
    """A task with its ranges to restore, and the stores that start empty, with the reason."""

    task: Task
    ranges: Ranges
    local_counts: bool
    lost: Mapping[str, str] = field(default_factory=dict)

    def why(self, otherwise: str) -> str:
        """The reason of its restore, as one word."""
        return next(iter(self.lost.values()), otherwise)


class TaskOpener:
    """Opens every task of a session."""

    def __init__(
        self,
        app: str,
        log: Log,
        group: Group,
        state_dir: StateDir,
        groups: Mapping[int, TaskGroup],
        settings: SessionSettings,
        *,
        clock: Clock,
        listener: Listener,
        buffer_bytes: Callable[[], int],
        disk: DiskGuard,
        foreign: bool,
        progress: LeaseProgress,
        snapshot_counts: SnapshotCounts,
        downloads: Downloads,
        threads: Threads,
    ) -> None:
        self.app = app
        self.log = log
        self.groups = groups  # the session's own mapping: it may learn the partitions of a group later
        self.state_dir = state_dir
        self._group = group
        self._settings = settings
        self._shared = RocksShared(settings.memory_bytes)
        self._clock = clock
        self._threads = threads
        self._listener = listener
        self._limits = RowLimits(value_bytes=settings.value_max_bytes, least_timestamp_ms=log.least_timestamp_ms)
        self._buffer_bytes = buffer_bytes
        self._disk = disk
        self._fixes = Fixes(log.address)
        self.progress = progress
        self._foreign = foreign  # the changelogs are another application's: none is created or changed
        self._reader = log.reader()
        self.foreign_offsets = ForeignOffsets(
            app, state_dir.path, log.address, clock, accept=settings.accept_foreign_offsets
        )
        self.foreign_offsets.judges = settings.placement != "group"
        self._lost_commits = LostCommits(
            state_dir.path,
            clock,
            exactly_once=settings.guarantee == "exactly_once",
            accept=settings.accept_unreadable_rows,
        )
        self._mender = Mender(
            state_dir,
            self._shared,
            self._stores,
            self._refuse_loss,
            accept_unreadable_rows=settings.accept_unreadable_rows,
        )
        self._snapshots = self._from_snapshots(snapshot_counts, downloads)
        self._planner = Planner(state_dir.path, self._reader, group, settings, clock, progress)
        self._specs: dict[int, tuple[StoreSpec, ...]] = {}  # of groups whose topics are known, with their forms of keys
        claims = partial(Claims, app, log, group, state_dir.instance_id, clock)
        self._forms = KeyForms(app, log, self._reader, state_dir.path, None if foreign else claims)
        self._permitted: set[int] = set()  # groups whose changelogs this user may use, as checked

    def _from_snapshots(self, counts: SnapshotCounts, downloads: Downloads) -> FromSnapshot | None:
        policy = self._settings.snapshots
        if policy is None or not policy.restore:
            return None
        return FromSnapshot(
            self.app,
            policy,
            self.state_dir,
            self._shared,
            self._reader,
            clock=self._clock,
            counts=counts,
            downloads=downloads,
            progress=self.progress,
            threads=self._threads,
        )

    def ensure_topics(self, *, follow: bool) -> None:
        """Create missing changelogs of every group; BadConfig lists every problem at once, before any is created.

        `follow`: a changelog with fewer partitions than its source has now is no problem: it grows.
        """
        # Before the first topic is created, so that a refused start has changed nothing.
        for number in self.groups:
            self._check_permissions(number)
        existing = self._existing()
        # Before the policies: those of another application's topic are none of this one's.
        problems = refusals(self.log, self.app, {name: claim.topic_id for name, claim in existing.items()})
        if problems:
            raise BadConfig(problems)
        for group in () if self._foreign else self.groups.values():
            problems += changelog_problems(self.log.admin, self.app, group.specs, group.partitions, self._fixes,
                                           "fewer" if follow else "none")  # fmt: skip
        if problems:
            raise BadConfig(problems)
        if self._forms.claims is not None:
            self._forms.claims.take(existing)
        for number, group in sorted(self.groups.items()):
            if follow and not self._foreign:
                self.grow(number, group.partitions)
            self.topics(number)

    def topics(self, group: int) -> Mapping[str, TopicInfo]:
        """The changelogs of a group by store; missing ones are created, existing ones checked."""
        wanted, admin, claims = self.groups[group], self.log.admin, self._forms.claims
        specs = [self._forms.wanted(spec) for spec in wanted.specs]
        if not self._permitted:
            refuse_restoring(admin, self.app)
        if self._foreign:
            found = foreign_changelogs(admin, self.app, specs, wanted.partitions)
        else:
            found = ensure_changelogs(admin, self.app, specs, wanted.partitions, self._fixes, "more", claims)
        if group not in self._permitted:
            # Once, not at each opening, since it costs a request. A missing permission would else show at the worst
            # moment: READ of a changelog is used for the first time when another instance has failed.
            self._check_permissions(group)
            # Again, since a restore under this name may have begun before these changelogs were created, and then it
            # has not seen them.
            refuse_restoring(admin, self.app)
            self._permitted.add(group)
        take_changelogs(claims, specs, found)  # the new ones
        self._specs[group] = self._forms.of_stores(wanted.specs, found)
        return found

    def _existing(self) -> dict[str, Claim]:
        """The claims of those internal topics of all groups that exist."""
        groups = () if self._foreign else tuple(self.groups.values())
        own = {name for group in groups for name in group.between}
        own |= {spec.changelog_of(self.app) for group in groups for spec in group.specs
                if spec.logging and not spec.from_source}  # fmt: skip
        topics = self.log.admin.survey(own).topics if own else {}
        ids = {name: one.info.topic_id for name, one in topics.items() if one is not None}
        return {name: claim for group in groups for name, claim in self._forms.claims_of(group, ids).items()}

    def _check_permissions(self, group: int) -> None:
        """Raise BadConfig with every missing permission for those changelogs of a group that exist."""
        logged = [spec for spec in self.groups[group].specs if spec.logging]
        needs: list[Need] = []
        for spec in logged:  # a source topic that serves as changelog is only read
            needs += changelog_needs([spec.changelog_of(self.app)], followed=self._foreign or spec.from_source)
        problems = self.log.admin.lacking(needs)
        if problems:
            raise BadConfig(problems)

    def grow(self, group: int, partitions: int) -> None:
        """Grow the changelogs of a group to as many partitions as it has tasks."""
        grown = grow_changelogs(self.log.admin, self.app, self.groups[group].specs, partitions)
        for topic in grown:
            logger.info(
                "changelog %s has %d partitions now, as its source has",
                topic,
                partitions,
                extra=as_event("changelog_grown", topic=topic, partitions=partitions),
            )

    def open(self, task: TaskId, *, owner: bool, loss: Loss = NOTHING, unwritten: Unwritten | None = None) -> Opened:
        """Open the stores of a task and plan its restore; stores that are damaged or do not fit the log start empty.

        `owner`: the log has fenced the former owners for this instance. `loss` is the loss that is known already.
        `unwritten` are rows that an earlier opening could not write, although the log has their commit.
        Raises StateLost if a person must decide, TransactionOpen if an owner cannot know all rows yet; the task's files
        are unchanged then. NoRoom if the disk takes no writes.
        """
        with self._disk.room.watched(f"opening task {task}"):
            return self._open(task, owner=owner, loss=loss, unwritten=unwritten)

    def _open(self, task: TaskId, *, owner: bool, loss: Loss, unwritten: Unwritten | None) -> Opened:
        topics = self.topics(task.group)
        # Only groups with rows that no log has look for a replacement that a crash interrupted.
        lost = self._mender.take_back(task) if self.groups[task.group].has_unlogged else {}
        self._put_back(task)
        for _ in range(len(self.groups[task.group].specs) + 3):  # each round takes out one more store
            try:
                opened = self._round(task, topics, loss, lost, owner=owner)
            except StateLost as refused:
                if refused.reason != HISTORY_MISSING or not self._exchange(task, topics):
                    raise
                lost |= {spec.name: HISTORY_MISSING for spec in self.groups[task.group].specs if spec.logging}
                loss = NOTHING
                continue
            if isinstance(opened, Opened):
                if unwritten is not None and self._settings.guarantee == "exactly_once":
                    opened.task.stores.carry(unwritten)  # at least once, the records are processed again instead
                return opened
            loss = opened
        raise StateLost(
            f"task {task} was mended and is damaged again: {loss.damage}: check the disk, then assign the task again",
            reason=CORRUPT,
        ) from loss.damage

    def _round(
        self, task: TaskId, topics: Mapping[str, TopicInfo], loss: Loss, lost: dict[str, str], *, owner: bool
    ) -> Opened | Loss:
        """Take out the lost stores, and try to open the rest; adds the stores taken out to `lost`."""
        if loss:
            lost |= self._mender.take_out(task, loss)
        if self._snapshots is not None:
            headless = self._settings.accept_missing_history
            self._snapshots.begin(task, *self._of_snapshots(task, topics), headless=headless)
        try:
            stores = self._stores(task)
        except Corruption as damage:
            return Loss.by(damage)
        return self._planned(task, topics, stores, lost, owner=owner)

    def _exchange(self, task: TaskId, topics: Mapping[str, TopicInfo]) -> bool:
        """Put a snapshot in the place of refused state, which stays aside; whether it was done. Raises SnapshotsAway.

        A changelog lost its head, and a snapshot that fits the log has read the removed records. Rows of
        stores without a changelog would go back to those of the snapshot, so a task with such stores stays refused.
        """
        path = self.state_dir.task_path(str(task))
        if self._snapshots is None or self.groups[task.group].has_unlogged or not path.exists():
            return False
        specs, logs = self._of_snapshots(task, topics)
        if not self._snapshots.usable(task, specs, logs):
            return False
        self.state_dir.keep_aside(path)
        self.state_dir.set_aside(str(task), HISTORY_MISSING)
        reach("opener.exchanged")
        try:
            begun = self._snapshots.begin(task, specs, logs)
        except SnapshotsAway:  # in the middle of the download: it is tried again, and until then the rows can be read
            self._put_back(task)
            raise
        if begun is None:
            self._put_back(task)
            return False
        logger.warning(
            "task %s begins with a snapshot, which has read records that its changelog lost before its local state did",
            task,
            extra=as_event("state_exchanged", task=task),
        )
        return True

    def _put_back(self, task: TaskId) -> None:
        """Put state back that an exchange has set aside without a snapshot in its place: a crash or an error came."""
        left = self.state_dir.left_behind(str(task))
        if left is not None and left.name.split(".")[1] == HISTORY_MISSING:
            self.state_dir.take_back(left, str(task))

    def _of_snapshots(
        self, task: TaskId, topics: Mapping[str, TopicInfo]
    ) -> tuple[Sequence[StoreSpec], Callable[[], Mapping[str, LogState]]]:
        """The stores of a task, and a look at their changelogs, by which a snapshot is judged."""
        specs = self._specs[task.group]
        return specs, partial(self._planner.log_states, task, specs, topics)

    def closed(self, task: TaskId, refused: StandfastError, role: str) -> Task:
        """A refused task, closed, with its rows in place and the error to show."""
        try:
            stores = self._stores(task)
        except StandfastError:  # its files are the reason of the refusal: a stand-in without any
            stores = self._stores(task, detached=True)
        kept = self._task(task, stores, self._applier(task, stores, self.topics(task.group)))
        kept.role = role
        kept.close()
        kept.error = refused
        return kept

    def plan_again(self, task: Task) -> tuple[Ranges, bool] | Loss:
        """Plan a promoted standby: the ranges left to restore, or the lost part of its state."""
        looked_ms = self._clock.wall_ms()  # before the ends are read, as `settle` stamps positions with it
        try:
            plans = self._planner.plans(
                task.stores, task.applier, _topic_infos(self.log.admin, task.applier), owner=True
            )
        except Corruption as damage:
            return Loss.by(damage)
        if task.applier.limited:  # of other stores no plan depends on it, and a request would delay the take-over
            self._refuse_foreign(task.id, task.stores, task.applier, plans)
        self._planner.accept(task.id, task.applier, plans)
        lost = lost_stores(plans, task.applier)
        if lost:
            return Loss(lost, planned=True, keep=keep(plans))
        settle(task.applier, plans, looked_ms)
        return _ranges(plans, task.applier, {}), all_at_end(plans)

    def rows_on_disk(self) -> RowsOnDisk:
        """The closed tasks of the state directory."""
        return RowsOnDisk(
            self.state_dir,
            self._reader,
            lambda group: self.groups[group].specs if group in self.groups else (),
            self._shared,
            clock=self._clock,
            opening=self.progress.replaying,
        )

    def hasten(self) -> None:
        """The session closes: calls to the log and downloads of snapshots end soon. Any thread may call it."""
        self.log.hasten()
        if self._snapshots is not None:
            self._snapshots.hasten()

    def close(self) -> None:
        """Release the reader."""
        self._reader.close()

    def _planned(
        self,
        task: TaskId,
        topics: Mapping[str, TopicInfo],
        stores: TaskStores,
        lost: Mapping[str, str],
        *,
        owner: bool,
    ) -> Opened | Loss:
        """The task, or the lost part of its state; the stores are closed in that case."""
        try:
            if self._snapshots is not None:
                self._snapshots.refill(task, stores, lost, self._of_snapshots(task, topics)[1])
            applier = self._applier(task, stores, topics)
            looked_ms = self._clock.wall_ms()
            plans = self._planner.plans(stores, applier, topics, owner=owner)
            if owner:
                self._refuse_foreign(task, stores, applier, plans)
            if owner and stores.unlogged and all_at_end(plans):  # else its stores with a log are restored first
                self._refuse_lost_commits(task, stores)
            self._planner.accept(task, applier, plans)
            found = lost_stores(plans, applier)
            if found:
                stores.close()
                return Loss(found, planned=True, keep=keep(plans))
            opened = self._task(task, stores, applier)
            settle(applier, plans, looked_ms)
        except Corruption as damage:
            stores.close()
            return Loss.by(damage)
        except BaseException:
            stores.close()
            raise
        stores.bind_clock(opened.now_ms)
        return Opened(opened, _ranges(plans, applier, lost), all_at_end(plans), dict(lost))

    def _refuse_foreign(self, task: TaskId, stores: TaskStores, applier: ChangelogApplier, plans: Plans) -> None:
        """Refuse offsets of another client before rows move by them: the source topic of a table ends at the group's.

        Once more, and for all tasks together, when the task is whole (`Task.resume_from_log`).
        """
        topics = self.groups[task.group].topics
        own = recorded_offsets(stores.cut, lambda topic: topics is None or topic in topics)
        if not own or not self.foreign_offsets.judges:
            return
        try:
            committed = self._group.committed(own)
        except OffsetsOpen:  # not known yet: the task waits for them once its rows are whole
            return
        found = foreign_offsets(own, committed)
        if found and (gone := set(applier.diverged(own, recorded_tags(stores.cut)))):
            found = tuple(one for one in found if one.at not in gone)
        stored = {at: applier.position(at) for at in plans if at not in applier.limited}
        behind = any(one is None or one.offset + one.marker < plans[at].end for at, one in stored.items())
        self.foreign_offsets.judge(task, found, behind=behind)

    def _refuse_lost_commits(self, task: TaskId, stores: TaskStores) -> None:
        """Refuse a directory that lost commits of rows that no log has; once more when the task is whole."""
        topics = self.groups[task.group].topics
        own = recorded_offsets(stores.cut, lambda topic: topics is None or topic in topics)
        try:
            heads = self._group.committed(own) if own else {}
            self._lost_commits.judge(stores, group_metadata(task, heads, with_pieces(heads, self._group.committed)))
        except (OffsetsOpen, Corruption, InvalidRequest):  # of the group's text, which is read again when it is whole
            return

    def _refuse_loss(
        self, task: TaskId, stores: TaskStores, lost: Mapping[str, str], had_rows: Callable[[str], bool] | None
    ) -> bool:
        """Raise StateLost if the log cannot give back the lost stores; `had_rows` where the whole directory is lost.

        Returns whether a copy of the rows is to be kept.
        """
        topics = self.topics(task.group)
        applier = self._applier(task, stores, topics)
        plans = self._planner.plans(stores, applier, topics, lost, had_rows)
        self._planner.accept(task, applier, plans)
        return keep(plans)

    def _task(self, task: TaskId, stores: TaskStores, applier: ChangelogApplier) -> Task:
        # Topics whose offsets in the group are those of sources.
        read = {topic for group in self.groups.values() for topic in group.topics or ()}
        return Task(
            task,
            stores,
            applier,
            self._group,
            app=self.app,
            guarantee=self._settings.guarantee,
            clock=self._clock,
            listener=self._listener,
            foreign_offsets=self.foreign_offsets,
            lost_commits=self._lost_commits,
            spare=[at.topic for at in applier.store_of if at not in applier.limited and at.topic not in read],
            topics=self.groups[task.group].topics,
            keys_sorted=self._forms.topic_is_sorted,
        )

    def _applier(self, task: TaskId, stores: TaskStores, topics: Mapping[str, TopicInfo]) -> ChangelogApplier:
        return ChangelogApplier(task, stores, topics, self._clock, self._reader)

    def _stores(
        self,
        task: TaskId,
        directory: Path | None = None,
        *,
        careful: bool = False,
        whole_wal: bool | None = None,
        detached: bool = False,
    ) -> TaskStores:
        path = directory or self.state_dir.task_path(str(task))
        # Announced to the lease: opening replays the WAL, which holds the interpreter for as long as that lasts.
        is_new = never_opened(path)
        with self.progress.replaying(path):
            made = TaskStores(
                path,
                self.app,
                str(task),
                self._specs.get(task.group, self.groups[task.group].specs),
                self._shared,
                now_ms=self._clock.wall_ms,
                buffer_bytes=self._buffer_bytes(),
                disk=self._disk,
                limits=self._limits,
                careful=careful,
                whole_wal=whole_wal,
                detached=detached,
                # A restored snapshot: no compaction of its files begins before the rest of the log has been read.
                restoring=is_new,
            )
        if is_new and made.cut.commit >= 0 and not careful:
            made.apply({}, replace(made.cut, commit=-1))  # a snapshot has the rows of its time, whatever came after
        return made


def _topic_infos(admin: LogAdmin, applier: ChangelogApplier) -> Mapping[str, TopicInfo]:
    infos = {}
    for name, changelog in applier.changelogs.items():
        info = admin.describe_topic(changelog.topic)
        if info is None:
            raise StateLost(f"changelog {changelog.topic} of store {name!r} no longer exists", reason="topic-deleted")
        infos[name] = info
    return infos


def _ranges(plans: Plans, applier: ChangelogApplier, lost: Mapping[str, str]) -> Ranges:
    return {at: (plan.position, plan.end, lost.get(applier.store_of[at], plan.reason)) for at, plan in plans.items()}
