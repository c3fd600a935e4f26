"""The plan of a restore under another name: topics to create, offsets to commit, and every reason against it.

    parts (one snapshot a task) ──> renamed topics, their numbers of partitions, source offsets     ClonePlan
                              └───> InvalidRequest with every reason, before anything is changed

    <app>-<store>-changelog         <name>-<store>-changelog, with the rows of the part
    <app>-<name>-repartition        <name>-<name>-repartition, empty, from offset 0
    <app>-<name>-source-offsets     <name>-<name>-source-offsets, with the same offset
    other topics                    the same, from the same offset

Rules of this file: reads of the log only. A task that is left out would begin with nothing and with the first record of
its sources, so every task of the old application needs its part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from standfast.replication.commit_metadata import CommitMetadata
from standfast.replication.log import Committed, Log, LogReader, TopicInfo, TopicPolicy
from standfast.replication.metadata_parts import read_texts, source_offsets, texts_of
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.topics.app_topics import CHANGELOG, SOURCE_OFFSETS, app_topics, is_internal
from standfast.replication.topics.changelog import changelog_policy
from standfast.replication.topics.settings import OWN_TIMESTAMPS
from standfast.restore.snapshot.manifest import Snapshot
from standfast.store.errors import InvalidRequest
from standfast.store.names import check_name, few
from standfast.store.specs import StoreSpec
from standfast.store.task.commit_record import parse_source_key, source_key
from standfast.store.types.kinds import definition_spec

BETWEEN_TASKS = TopicPolicy(extra=OWN_TIMESTAMPS)
REASONS_MAX = 5


@dataclass(frozen=True, slots=True)
class ClonePart:
    """One task: its snapshot, its stores that have a changelog of their own, and its sources by their new names."""

    snapshot: Snapshot
    specs: Mapping[str, StoreSpec]
    sources: Mapping[str, int]

    @property
    def task(self) -> TaskId:
        """The task."""
        return TaskId.parse(self.snapshot.task)


@dataclass(frozen=True, slots=True)
class ClonePlan:
    """`topics` are to be created, with partitions and policy; `stateless` are offsets of tasks without stores."""

    app: str
    name: str
    parts: tuple[ClonePart, ...]
    topics: Mapping[str, tuple[int, TopicPolicy]]
    stateless: Mapping[TopicPartition, Committed] = field(default_factory=dict)

    def renamed(self, key: str) -> str:
        """A key "topic/partition" with the new name of an internal topic. The task's own clock has another key."""
        if "/" not in key:
            return key
        topic, partition = parse_source_key(key)
        return source_key(renamed_topic(self.app, self.name, topic), partition)


def renamed_topic(app: str, name: str, topic: str) -> str:
    """The new name of a topic between an application's tasks, or of offsets of its own; another one keeps its name."""
    # A changelog that is a source is another application's, or is read as any topic.
    return name + topic[len(app) :] if is_internal(f"{app}-", topic) and not topic.endswith(CHANGELOG) else topic


def plan_clone(
    log: Log,
    parts: Sequence[Snapshot],
    name: str,
    *,
    coordinated: bool,
    stateless: Mapping[TopicPartition, Committed],
) -> ClonePlan:
    """The plan. Raises InvalidRequest with the reasons against it; changes nothing."""
    app = _one_app(parts, name)
    reader = log.reader()
    try:
        look = _Look(log, reader, app, name)
        made = tuple(_part(look, one) for one in sorted(parts, key=lambda one: TaskId.parse(one.task)))
        offsets = {key: offset for part in parts for key, offset in part.cut.sources.items()}
        offsets |= {source_key(*at): one.offset for at, one in stateless.items()}
        if not coordinated:
            look.refuse_internal(offsets)
        look.check_sources(offsets, {key: tag for part in parts for key, tag in part.cut.source_tags.items()})
        topics = look.topics(made, offsets)
        look.check_whole(made, offsets)
    finally:
        reader.close()
    if look.reasons:
        more = len(look.reasons) - REASONS_MAX
        text = "; ".join(look.reasons[:REASONS_MAX]) + (f"; and {more} more" if more > 0 else "")
        raise InvalidRequest(f"application {app!r} cannot be restored as {name!r}: {text}")
    plan = ClonePlan(app, name, made, topics)
    return replace(plan, stateless=dict(_renamed(plan, look, at, one) for at, one in stateless.items()))


def _renamed(
    plan: ClonePlan, look: _Look, at: TopicPartition, committed: Committed
) -> tuple[TopicPartition, Committed]:
    """A committed offset of a task without stores, under the new name, as a commit of ours whoever made the old one."""
    offset = 0 if look.is_between(at.topic) else committed.offset
    (metadata,) = read_texts([committed.metadata], lambda topic: "") or [CommitMetadata(0)]
    times = {plan.renamed(key): time for key, time in metadata.stream_times.items()}
    text, _ = texts_of(replace(metadata, epoch=0, stream_times=times, commit=-1), ())
    return TopicPartition(renamed_topic(plan.app, plan.name, at.topic), at.partition), Committed(offset, text)


def refuse_used(log: Log, plan: ClonePlan, state_dir: Path) -> None:
    """Raise InvalidRequest if the new name has topics, committed offsets, members, or state in this directory."""
    groups, names = log.admin.groups(), log.admin.topic_names()
    wanted = set(plan.topics)
    # A source topic is never internal, even with such a name.
    sources = {parse_source_key(key)[0] for part in plan.parts for key in part.sources} - wanted
    found = app_topics(plan.name, names, groups=groups, known=wanted, sources=sources)
    used = []
    if found.changelogs or found.between:
        used.append(f"it has topics ({', '.join([*found.changelogs, *found.between][:REASONS_MAX])})")
    if plan.name in groups:
        used.append("its group has committed offsets or members")
    if state := _with_state(state_dir / plan.name):
        used.append(f"{state} holds state")
    if used:
        raise InvalidRequest(
            f"application {plan.name!r} exists already: {'; '.join(used)}: a restore never goes over a live "
            f"application, so give another name (or end it with `standfast reset`, and move its state away)"
        )


def _with_state(path: Path) -> Path | None:
    """The first directory of a task, or one set aside, in an application's state directory."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        return path
    kept = (*path.glob("*_*/CURRENT"), *path.glob(".aside/*"), *path.glob(".kept/*"))
    return next((one.parent for one in kept), None)


def _one_app(parts: Sequence[Snapshot], name: str) -> str:
    check_name("application", name)
    if not parts:
        raise InvalidRequest("a restore under another name needs the snapshot of every task: none is given")
    apps, tasks = {one.app for one in parts}, [one.task for one in parts]
    if len(apps) != 1:
        raise InvalidRequest(f"the snapshots are of several applications ({few(sorted(apps))}): give those of one")
    if twice := sorted({task for task in tasks if tasks.count(task) > 1}):
        raise InvalidRequest(f"task {twice[0]} has two snapshots: give one of each task")
    app = apps.pop()
    if app == name:
        raise InvalidRequest(f"{name!r} is the application's own name: give a new one")
    return app


def _part(look: _Look, snapshot: Snapshot) -> ClonePart:
    if snapshot.memory_stores:
        look.reasons.append(
            f"task {snapshot.task} has stores in memory ({few(snapshot.memory_stores)}), whose rows no snapshot has"
        )
    specs = {
        store: spec
        for store, definition in snapshot.stores.items()
        if definition.get("logging", True) and store not in snapshot.memory_stores
        if not (spec := definition_spec(store, definition)).from_source
    }
    if lacking := sorted(specs.keys() - snapshot.cut.positions.keys()):
        look.reasons.append(f"snapshot {snapshot.name} has no position of store {lacking[0]}")
    sources = {
        source_key(renamed_topic(look.app, look.name, topic), partition): (0 if look.is_between(topic) else offset)
        for (topic, partition), offset in ((parse_source_key(key), at) for key, at in snapshot.cut.sources.items())
    }
    return ClonePart(snapshot, specs, sources)


class _Look:
    """The log as the plan sees it, and the reasons found so far."""

    def __init__(self, log: Log, reader: LogReader, app: str, name: str) -> None:
        self.app = app
        self.name = name
        self.reasons: list[str] = []
        self._log = log
        self._reader = reader
        self._infos: dict[str, TopicInfo | None] = {}

    def info(self, topic: str) -> TopicInfo | None:
        """A topic; None if it does not exist."""
        if topic not in self._infos:
            self._infos[topic] = self._log.admin.describe_topic(topic)
        return self._infos[topic]

    def is_between(self, topic: str) -> bool:
        """Whether a topic is between tasks of the application, so that its records are not copied."""
        return is_internal(f"{self.app}-", topic) and not topic.endswith((CHANGELOG, SOURCE_OFFSETS))

    def refuse_internal(self, sources: Mapping[str, int]) -> None:
        """Snapshots of single tasks are no cut over the topics between them."""
        between = sorted({topic for key in sources if self.is_between(topic := parse_source_key(key)[0])})
        if between:
            self.reasons.append(
                f"its tasks read topics between them ({', '.join(between[:REASONS_MAX])}), and snapshots of single "
                "tasks are no common point of those: restore a coordinated checkpoint"
            )

    def check_sources(self, sources: Mapping[str, int], tags: Mapping[str, str]) -> None:
        """Every source topic must be there, and hold the records from the offset on."""
        wanted: dict[TopicPartition, int] = {}
        for key, offset in sources.items():
            at = TopicPartition(*parse_source_key(key))
            if is_internal(f"{self.app}-", at.topic) and not at.topic.endswith(CHANGELOG):
                continue
            info = self.info(at.topic)
            if info is None or at.partition >= info.partitions:
                self.reasons.append(f"its source {at} does not exist in this log")
                continue
            wanted[at] = offset
        # An application that reads uncommitted records may have committed an offset within an open transaction.
        bounds, written = self._reader.bounds(wanted), self._reader.written_ends(wanted)
        ends = self._reader.epoch_ends({at: tags[key] for at in wanted if (key := source_key(*at)) in tags})
        for at, offset in wanted.items():
            if offset < bounds[at].begin:
                self.reasons.append(
                    f"records of {at} from offset {offset} to {bounds[at].begin} are gone, which it has not processed"
                )
            elif offset > max(bounds[at].end, written.get(at, 0)) or offset > ends.get(at, offset):
                self.reasons.append(f"{at} does not go on at offset {offset}: it is another log, or was put back")

    def topics(self, parts: Sequence[ClonePart], sources: Mapping[str, int]) -> dict[str, tuple[int, TopicPolicy]]:
        """The topics to create: changelogs with the settings of the old ones, and the topics between tasks."""
        made: dict[str, tuple[int, TopicPolicy]] = {}
        for part in parts:
            count = self._count(parts, part.task.group)
            for store, spec in part.specs.items():
                at = part.snapshot.cut.positions.get(store)
                old = None if at is None else self.info(at.topic)
                made[spec.changelog_of(self.name)] = (count, changelog_policy(spec) if old is None else old.policy)
        for key in sources:
            topic, partition = parse_source_key(key)
            if is_internal(f"{self.app}-", topic) and not topic.endswith(CHANGELOG):
                new, old = renamed_topic(self.app, self.name, topic), self.info(topic)
                least = max(partition + 1, made.get(new, (0, BETWEEN_TASKS))[0])
                made[new] = (least, BETWEEN_TASKS) if old is None else (old.partitions, old.policy)
        return made

    def check_whole(self, parts: Sequence[ClonePart], sources: Mapping[str, int]) -> None:
        """Every task with state, and every committed source offset, must be in a part."""
        present = {part.task for part in parts}
        for group in sorted({task.group for task in present}):
            lacking = [
                str(TaskId(group, number))
                for number in range(self._count(parts, group))
                if TaskId(group, number) not in present and not self._empty(parts, TaskId(group, number))
            ]
            if lacking:
                self.reasons.append(f"tasks {', '.join(lacking[:REASONS_MAX])} have no snapshot")
        # Its group may be gone with the log that the snapshots are of.
        committed = self._log.group(self.app).committed() if self.app in self._log.admin.groups() else {}
        read = source_offsets(committed)
        left = sorted(str(at) for at in read if source_key(*at) not in sources)
        if left:
            self.reasons.append(
                f"offsets of {', '.join(left[:REASONS_MAX])} are committed, and no snapshot has them: their records "
                "would be processed from the beginning"
            )

    def _count(self, parts: Sequence[ClonePart], group: int) -> int:
        """The number of tasks of a group: of the partitions of its changelogs and sources, as far as they are there."""
        own = [part for part in parts if part.task.group == group]
        topics = {at.topic for part in own for at in part.snapshot.cut.positions.values()}
        topics |= {parse_source_key(key)[0] for part in own for key in part.snapshot.cut.sources}
        # By topics, since a task that never committed has no snapshot.
        counts = [info.partitions for topic in topics if (info := self.info(topic)) is not None]
        return max([*counts, *(part.task.partition + 1 for part in own)])

    def _empty(self, parts: Sequence[ClonePart], task: TaskId) -> bool:
        """Whether a task without a part has never logged anything; False where its changelogs are not there."""
        group = [part for part in parts if part.task.group == task.group]
        topics = {at.topic for part in group for at in part.snapshot.cut.positions.values()}
        found = [self.info(topic) for topic in topics]
        if not found or None in found:
            return False
        at = [TopicPartition(info.name, task.partition) for info in found if info and task.partition < info.partitions]
        return all(bound.end == 0 for bound in self._reader.bounds(at).values())
