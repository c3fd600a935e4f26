"""Look-ups of tasks for a session's calls: by partition, by a consumer's source partition, by the name of a store.

Rules of this file: looks things up in the groups of a session and raises errors; it changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from standfast.replication.log import Group, LogAdmin, LogReader
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.store.arguments import is_whole
from standfast.store.errors import Fenced, InternalError, InvalidRequest, NotReady, StandfastError, UnknownStore
from standfast.store.names import few
from standfast.store.specs import StoreSpec
from standfast.stream.session.instance import Instance
from standfast.stream.source_gate import OpenTask
from standfast.stream.source_offsets import checked_shape
from standfast.stream.task.groups import TaskGroup, all_specs, all_task_ids
from standfast.stream.task.states import GONE, TaskState
from standfast.stream.task.task import Task
from standfast.stream.tasks.commit_plan import CommitPlan, lost_task, plan_commit


class ReadView(NamedTuple):
    """A read-only view of committed rows; `lag_records`: changelog records that are not applied here yet."""

    store: Any
    role: str
    lag_records: int


def task_id_of(partition: int | str | TaskId) -> TaskId:
    """The task of an id or its text ("1_0"); a number is a task of group 0. Raises InvalidRequest for others."""
    if isinstance(partition, str):
        if re.fullmatch(r"\d+_\d+", partition, re.ASCII) is None:
            raise InvalidRequest(f"task {partition!r:.100} does not exist: write GROUP_PARTITION, such as 0_1")
        partition = TaskId.parse(partition)
    found = partition if isinstance(partition, TaskId) else TaskId(0, partition)
    if not is_whole(found.group) or not is_whole(found.partition):
        named = found.partition if is_whole(found.group) else partition
        raise InvalidRequest(f"partition {named!r:.100} does not exist: give a whole number from 0")
    return found


def task_of_source(source: Any, groups: Mapping[int, TaskGroup]) -> TaskId:
    """The task that reads a source partition of a consumer: of the group that names its topic, or of group 0."""
    topic = getattr(source, "topic", None)
    owners = (number for number, group in groups.items() if group.topics is not None and topic in group.topics)
    return TaskId(next(owners, 0), source.partition)


def source_partitions(what: str, given: Any) -> list[Any]:
    """Source partitions as a consumer passes them. Raises InvalidRequest for anything else."""
    if not isinstance(given, str | bytes | Mapping) and isinstance(given, Iterable):
        found = list(given)
        bad = [one for one in found if not is_whole(getattr(one, "partition", None)) or not hasattr(one, "topic")]
        if not bad:
            return found
        given = bad[0]
    raise InvalidRequest(
        f"{what} takes the partitions that a consumer gives, each with topic and partition, not {given!r:.100}; "
        "partitions by number are for assign"
    )


def check_timeout(timeout_s: Any) -> None:
    """Raise InvalidRequest unless this is a number of seconds, or None."""
    number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool) and timeout_s == timeout_s
    if timeout_s is not None and not number:
        raise InvalidRequest(f"wait_ready: timeout_s must be seconds, or None to wait on, not {timeout_s!r:.100}")


def group_of_store(store: str, groups: Mapping[int, TaskGroup], app: str) -> int:
    """The group that has a store. Raises UnknownStore."""
    for number, group in groups.items():
        if any(spec.name == store for spec in group.specs):
            return number
    known = few(sorted(spec.name for spec in all_specs(groups))) or "none"
    raise UnknownStore(f"application {app!r} has no store {store!r}: it declares {known}")


def checked_tasks(
    tasks: Iterable[int | str | TaskId], groups: Mapping[int, TaskGroup], *, limited: bool
) -> list[TaskId]:
    """Ids of existing tasks, in order. Raises InvalidRequest; `limited`: the number of partitions is known."""
    checked = set()
    if isinstance(tasks, str | bytes | Mapping) or not isinstance(tasks, Iterable):
        raise InvalidRequest(f"assign takes a list of partitions such as [0, 1], not {tasks!r:.100}")
    for one in tasks:
        task_id = task_id_of(one)
        group = groups.get(task_id.group)
        if group is None:
            known = few(sorted(groups))
            raise InvalidRequest(f"task {task_id} does not exist: the groups are {known}")
        number, limit = task_id.partition, group.partitions if limited else None
        if not isinstance(number, int) or number < 0 or (limit is not None and number >= limit):
            upper = "" if limit is None else f" below {limit}"
            raise InvalidRequest(f"partition {number!r} does not exist: give whole numbers from 0{upper}")
        checked.add(task_id)
    return sorted(checked)


def held_task(task_id: TaskId, instance: Instance, *, named_by_id: bool) -> Task:
    """A task of this instance. Raises Fenced if it was taken over, InvalidRequest that names the tasks held."""
    task = instance.tasks.get(task_id)
    if task is None:
        why = instance.lives.why_lost(task_id)
        if why is not None:
            raise lost_task(task_id, why)
        absent = instance.absent()
        if task_id in absent:
            raise NotReady(f"task {task_id} is assigned to this instance and {absent[task_id]}: reopen or assign it")
        what = f"task {task_id}" if named_by_id else f"partition {task_id.partition}"
        held = few(str(one) if named_by_id else str(one.partition) for one in sorted(instance.tasks)) or "none"
        raise InvalidRequest(f"{what} is not assigned to this instance (it holds: {held})")
    return task


def planned_commit(
    offsets: Mapping[tuple[str, int], int],
    tasks: Mapping[TaskId, Task],
    groups: Mapping[int, TaskGroup],
    instance: Instance,
    *,
    read: Callable[[Task], bool],
    replayed: bool,
) -> CommitPlan:
    """The plan of one commit; see `plan_commit`. `read`: the consumer delivers the records of this opening."""
    given: dict[TaskId, dict[tuple[str, int], int]] = {}
    for at, offset in checked_shape(offsets).items():
        given.setdefault(task_of_source(at, groups), {})[at] = offset
    tasks = _in_reach(tasks, given)
    for task_id, task in tasks.items():
        if isinstance(task.error, Fenced):  # the instance notices it only in its next round
            instance.lives.lose(task_id, str(task.error))
    due = [
        task_id
        for task_id, task in tasks.items()
        if (task.state is TaskState.RUNNING and task_id.group == 0)
        or (task.state in (TaskState.RUNNING, *GONE) and task_id in given)
    ]
    waiting = {task_id: task.state.value for task_id, task in tasks.items() if task_id not in due}
    waiting |= dict.fromkeys(instance.absent(), "not open yet")
    again = [task_id for task_id in due if read(tasks[task_id])]
    return plan_commit(given, due, waiting, instance.lives, again=again, replayed=replayed)


def _in_reach(tasks: Mapping[TaskId, Task], given: Collection[TaskId]) -> Mapping[TaskId, Task]:
    """The tasks that a commit of this thread takes: within `exclusive` blocks those of its blocks alone.

    It would wait for another thread's block on another task, and that thread perhaps for this one's block.
    """
    own = {task_id: task for task_id, task in tasks.items() if task.is_exclusive}
    others = sorted(task_id for task_id in given if task_id in tasks and task_id not in own)
    if own and others:
        raise InvalidRequest(
            f"a commit within a block of task.exclusive() takes the tasks of its blocks ({few(own)}), and was given "
            f"offsets of task {few(others)}: commit these after the block; nothing was committed"
        )
    return own or tasks


def missing_lines(instance: Instance, now_ms: int) -> tuple[str, ...]:
    """The tasks that keep the restore gate shut, and their progress."""
    progress = {at.task: (one, at) for one, at in instance.readiness.restorer.progress(now_ms) if not at.done}
    lines = [why] if (why := instance.unplaced()) else []
    waiting = instance.lives.awaited(active=True)
    lines += [f"task {task_id}: {why}" for task_id, why in sorted(instance.absent().items())]
    for task_id in instance.readiness.gate.missing():
        task = instance.tasks.get(task_id)
        far = progress.get(task_id)
        if task is not None and task.error is not None:
            lines.append(f"task {task_id} failed: {task.error}")
        elif far is not None:
            one, at = far
            lines.append(f"task {task_id}: store {one.store!r} at {at.position} of {at.end} ({one.reason})")
        else:
            lines.append(f"task {task_id}: {waiting.get(task_id, 'waiting')}")
    return tuple(lines)


def read_view(task: Task, store: str, group: Group, reader: LogReader, *, allow_stale: bool) -> ReadView:
    """Committed rows of a store; NotReady for one that does not run here, unless stale rows are allowed."""
    running = task.state is TaskState.RUNNING
    if not running and not allow_stale:
        raise NotReady(
            f"store {store!r} of partition {task.id.partition} is {task.state.value} here: ask with allow_stale=True "
            "for its rows so far, or ask the active instance"
        )
    view = task.stores.committed_view(store)
    return ReadView(view, task.role, 0 if running else records_behind(task, store, group, reader))


def known_partitions(admin: LogAdmin, specs: Iterable[StoreSpec], app: str, topics: Iterable[str]) -> int:
    """The number of tasks where it was not given: the partitions of a changelog, or else of the source topics."""
    for spec in specs:
        info = admin.describe_topic(spec.changelog_of(app)) if spec.logging else None
        if info is not None:
            return info.partitions
    infos = [admin.describe_topic(topic) for topic in sorted(topics)]
    return max((info.partitions for info in infos if info is not None), default=0)


def tasks_grown(admin: LogAdmin, known: int, added: Iterable[TaskId], topics: Iterable[str]) -> int:
    """The new number of tasks if a consumer was assigned a partition beyond the known ones; else 0."""
    if not 0 < known <= max((task_id.partition for task_id in added), default=-1):
        return 0
    infos = [admin.describe_topic(topic) for topic in sorted(topics)]
    return max((info.partitions for info in infos if info is not None), default=0)


def grow_groups(instance: Instance, groups: dict[int, TaskGroup], partitions: Mapping[int, int]) -> None:
    """Set the groups' numbers of tasks, changelogs first. Where tasks are shared out, instances take the new ones."""
    for number, count in sorted(partitions.items()):
        if count > groups[number].partitions:
            instance.grow(number, count)
            groups[number] = replace(groups[number], partitions=count)
    instance.share_out(all_task_ids(groups))


def opened_tasks(tasks: Mapping[TaskId, Task]) -> dict[TaskId, OpenTask]:
    """The source positions of these tasks; a task that failed just now is skipped."""
    found = {}
    for task_id, task in tasks.items():
        try:
            found[task_id] = OpenTask(task, task.source_offsets())
        except StandfastError:  # its owner's next call raises it
            continue
    return found


def records_behind(task: Task, store: str, group: Group, reader: LogReader) -> int:
    """The number of readable changelog records of a store that are not applied here yet; 0 without a changelog."""
    if not task.stores.specs[store].logging:
        return 0
    stored = task.stores.cut.positions.get(store)
    changelog = _changelog_of(task, store)
    begin, end = reader.bounds([changelog])[changelog]
    # Beyond the committed offset a source topic holds records that are not processed: a store does not lack them.
    if changelog in task.applier.limited:
        committed = group.committed([changelog]).get(changelog)
        end = min(end, committed.offset) if committed is not None else begin
    return max(end - (stored.offset if stored is not None else begin), 0)


def _changelog_of(task: Task, store: str) -> TopicPartition:
    """The changelog of a store of a task."""
    try:
        return task.applier.changelogs[store]
    except KeyError:
        raise InternalError(f"store {store!r} of task {task.id} has no changelog") from None
