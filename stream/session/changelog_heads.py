"""Removes the records of window and session stores that no live row needs, by the stream time of their owner.

    owner      once a minute: the heads of the cut (store/task/heads.py) ──> least, with the notes of standbys
               ──> topic, claim and time checked ──> delete_records
    standby    a note in the group: its position in each such changelog, at once and then once a minute while it moves

    note       ("tail", "0_3 INSTANCE") -> {"at": {store: [topic id, offset]}}

The owner leaves records that a standby, or a warm-up, has not read, for as long as its note changes: one that has not
moved for ten minutes begins again from the log's begin. A note that stays the same for so long is removed.

Rules of this file: it goes by the record of the task alone, which the log has acknowledged. The topic must be the one
of the record and the claim the newest, right before the removal, which names no topic id: a process that was stopped in
between does nothing. A kept span has records, so the last record of a partition stays. Only changelogs that are kept
for ever (retention.ms = 2**63 - 1) lose records so: of the others the log decides.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from standfast.replication.log import Group, Log, TopicInfo
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.topics.changelog import TIME_MAX_MS
from standfast.replication.topics.clocks import behind_ms, watched
from standfast.store.clock import Clock
from standfast.store.errors import StandfastError, Unavailable
from standfast.store.log import as_event, logger
from standfast.store.specs import StoreSpec
from standfast.store.task.heads import is_headed
from standfast.stream.task.states import TaskState
from standfast.stream.task.task import Task

INTERVAL_MS = 60_000
LOOK_MS = 1_000
REST_MS = 10_000  # after an error of the log
MOVES_MS = 600_000  # a standby that has not moved for so long is not waited for
CHECKED_MS = 5_000  # a removal begins no later than this after the first of its checks
KIND = "tail"
THREAD = "standfast-heads"

Positions = Mapping[str, tuple[str, int]]  # by store: topic id and offset


class _Removal(NamedTuple):
    """Records of a changelog partition that its owner is about to remove: those below `before`."""

    task: Task
    store: str
    topic_id: str
    before: int


class ChangelogHeads:
    """The heads of the changelogs of one session's tasks. One thread at a time."""

    def __init__(
        self,
        app: str,
        log: Log,
        instance: str,
        specs: Iterable[StoreSpec],
        tasks: Callable[[], Mapping[TaskId, Task]],
        clock: Clock,
        *,
        read_only: bool = False,
    ) -> None:
        """`read_only`: the tasks are copies of another application's, and nothing may be written for it."""
        self._app = app
        self._log = log
        self._instance = instance
        self._tasks = tasks
        self._clock = clock
        self.idle = read_only or not any(map(watched, specs))  # there is nothing to do
        self._own: Group | None = None
        self._next_ms = clock.monotonic_ms() + INTERVAL_MS
        self._rests_until_ms = 0
        self._noted: dict[str, tuple[int, Positions]] = {}  # this instance's notes, by name, and when they were written
        self._seen: dict[str, tuple[str, int]] = {}  # notes of standbys of own tasks, and since when they are the same
        self._removed: dict[TopicPartition, tuple[str, int]] = {}
        self._refused: set[str] = set()  # ids of topics whose records this login may not remove
        self._warned: set[tuple[str, str]] = set()

    @property
    def _group(self) -> Group:
        if self._own is None:  # a connection of its own: it must not wait for a commit
            self._own = self._log.group(self._app)
        return self._own

    def poll(self) -> None:
        """Do the work that is due. An error of the log is left to the next round."""
        now_ms = self._clock.monotonic_ms()
        if self.idle or now_ms < self._rests_until_ms:
            return
        try:
            self._note_standbys(now_ms)
            if now_ms >= self._next_ms:
                self._next_ms = now_ms + INTERVAL_MS
                self.trim(now_ms)
        except StandfastError as error:
            self._rests_until_ms = now_ms + REST_MS
            logger.warning("heads of changelogs stay for now: %s", error, extra=as_event("changelog_heads_failed"))

    def close(self) -> None:
        """Close the connection."""
        if self._own is not None:
            self._own.close()
            self._own = None

    # -- standbys -----------------------------------------------------------------------------------------------------

    def _note_standbys(self, now_ms: int) -> None:
        """Note positions of standbys: at once where there is no note, and again each minute while they move."""
        found = {f"{task.id} {self._instance}": _positions(task) for task in self._of_role("standby")}
        due = {
            name: at
            for name, at in found.items()
            if at and (name not in self._noted or _is_due(*self._noted[name], at, now_ms))
        }
        gone = [name for name in self._noted if not found.get(name)]
        if not due and not gone:
            return
        texts = {name: json.dumps({"at": at}) for name, at in due.items()}
        self._group.note({(KIND, name): texts.get(name) for name in (*due, *gone)})
        self._noted = {name: one for name, one in self._noted.items() if name not in gone}
        self._noted |= {name: (now_ms, at) for name, at in due.items()}

    # -- the owner ----------------------------------------------------------------------------------------------------

    def trim(self, now_ms: int) -> None:
        """Remove records that no live row of the tasks here needs, as far as it is safe. Raises StandfastError."""
        tasks = self._of_role("active")
        infos: dict[str, TopicInfo | None] = {}
        for task in tasks:
            for name, spec in task.stores.specs.items():
                if watched(spec) and name in task.applier.changelogs:
                    topic = task.applier.changelogs[name].topic
                    if topic not in infos:
                        infos[topic] = self._log.admin.describe_topic(topic)
                    self._warn(task, spec, infos[topic])
        due = {at: one for task in tasks for at, one in self._due(task, infos).items()}
        # In every round, so that a note is seen to move also while there is nothing to remove.
        self._look_at_standbys([task for task in tasks if task.stores.cut.heads], now_ms)
        due = self._behind_standbys(due)
        if due:
            self._remove(due)

    def _due(self, task: Task, infos: Mapping[str, TopicInfo | None]) -> dict[TopicPartition, _Removal]:
        cut, found = task.stores.cut, {}
        for name, heads in cut.heads.items():
            at, position = task.applier.changelogs.get(name), cut.positions.get(name)
            info = None if at is None else infos.get(at.topic)
            if at is None or position is None or info is None or info.topic_id in self._refused:
                continue
            ids = {heads.topic_id, position.topic_id, info.topic_id, task.applier.topic_id(at)}
            if len(ids) > 1 or not heads.topic_id or info.policy.retention_ms < TIME_MAX_MS:
                continue
            before = min(heads.first, position.offset)
            if before > 0 and self._removed.get(at) != (heads.topic_id, before):
                found[at] = _Removal(task, name, heads.topic_id, before)
        return found

    def _look_at_standbys(self, tasks: Iterable[Task], now_ms: int) -> None:
        """Read the notes of standbys of these tasks, and remove those that have not moved for long."""
        own = {str(task.id): task for task in tasks}
        found: dict[str, tuple[str, int]] = {}
        for (kind, name), note in self._group.notes().items():
            task = own.get(name.partition(" ")[0]) if kind == KIND else None
            if task is not None:
                before = self._seen.get(name)
                # One that has read everything has nowhere to move; records may come for it at any time.
                moved = before is None or before[0] != note.text or _at_end(note.text, task)
                found[name] = (note.text, now_ms) if moved or before is None else before
        still = [name for name, (_, since_ms) in found.items() if now_ms - since_ms >= MOVES_MS]
        if still:
            self._group.note({(KIND, name): None for name in still})
        self._seen = {name: one for name, one in found.items() if name not in still}

    def _behind_standbys(self, due: Mapping[TopicPartition, _Removal]) -> dict[TopicPartition, _Removal]:
        """The removals, none of them past the position of a standby that moves."""
        left = dict(due)
        for name, (text, _) in self._seen.items():
            for at, one in left.items():
                if str(one.task.id) == name.partition(" ")[0]:
                    left[at] = one._replace(before=min(one.before, _read_to(text, one)))
        return {at: one for at, one in left.items() if one.before > 0}

    def _remove(self, due: Mapping[TopicPartition, _Removal]) -> None:
        began_ms = self._clock.monotonic_ms()
        checked = {at: one for at, one in due.items() if self._owns(one.task)}
        topics = {at.topic for at in checked}
        ids = {topic: info.topic_id for topic in topics if (info := self._log.admin.describe_topic(topic)) is not None}
        checked = {at: one for at, one in checked.items() if ids.get(at.topic) == one.topic_id}
        for topic in sorted(topics):
            below = {at: one.before for at, one in checked.items() if at.topic == topic}
            # A process that was stopped since may be no owner any more, and the topic another one.
            if not below or self._clock.monotonic_ms() - began_ms > CHECKED_MS:
                continue
            try:
                self._log.admin.delete_records(below)
            except Unavailable:
                raise
            except StandfastError as error:
                self._refused.add(ids[topic])
                logger.warning(
                    "records of %s that no live row needs are not removed, so that it grows: %s",
                    topic,
                    error,
                    extra=as_event("changelog_heads_refused", topic=topic),
                )
                continue
            self._removed |= {at: (checked[at].topic_id, before) for at, before in below.items()}
            logger.debug("records removed: %s", below, extra=as_event("changelog_heads_removed", topic=topic))

    def _owns(self, task: Task) -> bool:
        """Whether a task runs here and its writer is the newest."""
        writer = task.writer
        if writer is None or writer.claim is None or task.state is not TaskState.RUNNING:
            return False
        try:
            self._group.commit({}, None, writer.claim)
        except Unavailable:
            raise
        except StandfastError:  # Fenced: the next commit of the task says so
            return False
        return True

    def _warn(self, task: Task, spec: StoreSpec, info: TopicInfo | None) -> None:
        """Warn once where the log deletes records of rows that live, as its clock is ahead of the stream time."""
        times = task.stores.cut.stores.get(spec.name)
        if info is None or times is None or (info.name, spec.name) in self._warned:
            return
        late_ms = behind_ms(spec.kind, info.policy, times.observed_ms, self._clock.wall_ms())
        if late_ms is None:
            return
        self._warned.add((info.name, spec.name))
        logger.warning(
            "%s loses records of store %r by the log's clock, and the stream time of task %s lies %d s behind that: a "
            "restore will lack rows; `standfast doctor` has the fix",
            info.name,
            spec.name,
            task.id,
            late_ms // 1_000,
            extra=as_event("stream_time_behind", topic=info.name, store=spec.name, task=task.id),
        )

    def _of_role(self, role: str) -> list[Task]:
        running = {"active": TaskState.RUNNING, "standby": TaskState.STANDBY}[role]
        return [task for task in dict(self._tasks()).values() if task.role == role and task.state is running]


def _is_due(noted_ms: int, before: Positions, now: Positions, now_ms: int) -> bool:
    return before != now and now_ms - noted_ms >= INTERVAL_MS


def _at_end(text: str, task: Task) -> bool:
    """Whether a note has all positions of its task's owner."""
    try:
        noted = json.loads(text)["at"]
        return all(noted[name][1] >= task.stores.cut.positions[name].offset for name in task.stores.cut.heads)
    except (ValueError, KeyError, TypeError):
        return False


def _positions(task: Task) -> Positions:
    """Positions of a standby in the changelogs that lose heads; 0 where nothing is read yet."""
    positions = task.stores.cut.positions
    return {
        name: (task.applier.topic_id(at), positions[name].offset if name in positions else 0)
        for name, at in task.applier.changelogs.items()
        if is_headed(task.stores.specs[name])
    }


def _read_to(text: str, removal: _Removal) -> int:
    """The position that a note has for a changelog; 0 for a text that is none of ours."""
    try:
        topic_id, offset = json.loads(text)["at"][removal.store]
        return int(offset) if topic_id == removal.topic_id else removal.before
    except (ValueError, KeyError, TypeError):
        return 0
