"""Views as JSON: the document of `standfast placement explain`; its `previous` is the one JSON form of an assignment.

    {"standfast_placement": 1,
     "settings": {"standby_replicas": 1},
     "groups": [{"group": 0, "partitions": 12, "stateless": false}],
     "instances": [{"id": "a", "slots": 2, "max_tasks": 8, "rack": "r1", "tags": {"zone": "z1"},
                    "tasks": {"0_0": {"state": "running"}, "0_1": {"state": "standby", "lag": 12}}}],
     "away": {"c": {"for_ms": 1200, "stopped": true}},
     "previous": {"generation": 7, "active": {"0_0": "a"}, "standbys": {"0_0": ["b"]}}}

An instance may have `no_room_ms`, and the document `moved_for_room` ({"0_1": 90000}) and `ran`; `Member` and `View`
have their meaning. `previous` is an assignment as `assignment_document` gives it and `standfast placement --json`
prints it; without it the reports decide. A field with its default may be left out.

For rolling upgrades: the number is that of the format, and only a change that an older reader would get wrong raises
it. A reader refuses a higher number, and passes over fields that it does not know.

Rules of this file: pure. Every problem of a document is named at once, and nothing is read of one that has any.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from standfast.replication.offsets import TaskId
from standfast.replication.placement.model import Assignment, Away, Copy, CopyState, Member, Settings, View
from standfast.replication.shapes import Count, Shape, dump, field, plain, read
from standfast.store.errors import InvalidRequest

FORMAT = 1
PROBLEMS_MAX = 20  # problems that one error names
TASK = re.compile(r"(?:0|[1-9][0-9]{0,8})_(?:0|[1-9][0-9]{0,8})")
_FIELDS = ("active", "standbys", "warmups", "after", "held", "replacing", "homes")


class CopyShape(Shape, frozen=True, forbid_unknown_fields=False, omit_defaults=True):
    """A copy in an instance's report."""

    state: CopyState
    lag: Count | None = None
    total: Count | None = None
    busy_ms: Count = 0


class InstanceShape(Shape, frozen=True, forbid_unknown_fields=False, omit_defaults=True):
    """A member."""

    id: str
    slots: int = 1
    rack: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    tasks: dict[str, CopyShape] = field(default_factory=dict)
    waits: str = ""
    max_tasks: int | None = None
    no_room_ms: Count | None = None


class GroupShape(Shape, frozen=True, forbid_unknown_fields=False, omit_defaults=True):
    """The tasks of one group."""

    group: Count
    partitions: Count
    stateless: bool = False


class AwayShape(Shape, frozen=True, forbid_unknown_fields=False, omit_defaults=True):
    """An instance that left."""

    for_ms: Count
    stopped: bool = False


class SettingsShape(Shape, frozen=True, forbid_unknown_fields=False, omit_defaults=True):
    """Settings; `Settings` has their meaning."""

    standby_replicas: int = 0
    warmups_max: int = 2
    acceptable_lag: int = 10_000
    restart_grace_ms: int = 30_000
    probe_interval_ms: int = 5_000


class AssignmentShape(Shape, frozen=True, forbid_unknown_fields=False, omit_defaults=True):
    """An assignment."""

    generation: Count = 0
    active: dict[str, str] = field(default_factory=dict)
    standbys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    warmups: dict[str, str] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    replacing: dict[str, tuple[str, str]] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)
    standfast_placement: Count = FORMAT


class ViewShape(Shape, frozen=True, forbid_unknown_fields=False, omit_defaults=True):
    """A whole document."""

    standfast_placement: Count
    groups: tuple[GroupShape, ...]
    instances: tuple[InstanceShape, ...] = ()
    settings: SettingsShape = SettingsShape()
    away: dict[str, AwayShape] = field(default_factory=dict)
    previous: AssignmentShape | None = None
    moved_for_room: dict[str, Count] = field(default_factory=dict)
    ran: bool = False


class _Head(Shape, frozen=True, forbid_unknown_fields=False):
    standfast_placement: Count = 0


def read_view(raw: bytes | str) -> View:
    """The view of a document. Raises InvalidRequest, which names every problem."""
    shape = _read(raw, ViewShape)
    settings = Settings(**plain_settings(shape.settings))
    tasks = tuple(TaskId(one.group, at) for one in shape.groups for at in range(one.partitions))
    known = frozenset(tasks)
    problems = [*_group_problems(shape), *_instance_problems(shape, known)]
    problems += _task_problems("moved_for_room", shape.moved_for_room, known)
    if shape.previous is not None:
        problems += _assignment_problems(shape.previous, known)
    if problems:
        more = f" (and {len(problems) - PROBLEMS_MAX:,} more)" if len(problems) > PROBLEMS_MAX else ""
        raise InvalidRequest("; ".join(problems[:PROBLEMS_MAX]) + more)
    return View(
        tuple(_member(one) for one in shape.instances),
        tasks,
        settings,
        None if shape.previous is None else _assignment(shape.previous),
        {name: Away(one.for_ms, one.stopped) for name, one in shape.away.items()},
        frozenset(one.group for one in shape.groups if one.stateless),
        moved_for_room={_task(text): ago_ms for text, ago_ms in shape.moved_for_room.items()},
        ran=shape.ran,
    )


def assignment_document(assignment: Assignment) -> dict[str, Any]:
    """An assignment for a document of its own, which may become the `previous` of a view."""
    return {"standfast_placement": FORMAT, **plain_assignment(assignment)}


def plain_assignment(assignment: Assignment) -> dict[str, Any]:
    """An assignment as plain values, with tasks in order; empty parts are left out."""
    found: dict[str, Any] = {"generation": assignment.generation}
    for name in _FIELDS:
        part: Mapping[TaskId, Any] = getattr(assignment, name)
        if part:
            found[name] = {str(task): part[task] for task in sorted(part)}
    return found


def plain_settings(settings: SettingsShape | Settings) -> dict[str, Any]:
    """Settings as plain values."""
    return {name: getattr(settings, name) for name in Settings.__slots__}


def write_view(view: View) -> bytes:
    """A view as compact JSON. Raises InvalidRequest where the partitions of a group are not 0 to n - 1."""
    groups: dict[int, int] = {}
    for task in view.tasks:
        groups[task.group] = groups.get(task.group, 0) + 1
    if any(task.partition >= groups[task.group] for task in view.tasks) or len(set(view.tasks)) < len(view.tasks):
        raise InvalidRequest("a placement document numbers the partitions of each group from 0, without a gap")
    shape = ViewShape(
        FORMAT,
        tuple(GroupShape(group, groups[group], group in view.stateless) for group in sorted(groups)),
        tuple(
            InstanceShape(
                one.id,
                one.slots,
                one.rack,
                dict(one.tags),
                {str(task): CopyShape(*one.copies[task]) for task in sorted(one.copies)},
                one.waits,
                one.max_tasks,
                one.no_room_ms,
            )
            for one in sorted(view.members, key=lambda member: member.id)
        ),
        SettingsShape(**plain_settings(view.settings)),
        {name: AwayShape(*view.away[name]) for name in sorted(view.away)},
        moved_for_room={str(task): view.moved_for_room[task] for task in sorted(view.moved_for_room)},
        ran=view.ran,
    )
    document = plain(shape)
    if view.previous is not None:
        document["previous"] = plain_assignment(view.previous)
    return dump(document)


def _read(raw: bytes | str, kind: type[Any]) -> Any:
    try:
        head = read(raw, _Head)
        if head.standfast_placement > FORMAT:
            raise InvalidRequest(
                f"the placement document has format {head.standfast_placement}, and this version reads up to {FORMAT}: "
                "use the version of standfast that wrote it"
            )
        if head.standfast_placement < 1:
            raise InvalidRequest(f'not a placement document: "standfast_placement": {FORMAT} is missing')
        return read(raw, kind)
    except ValueError as error:
        raise InvalidRequest(f"the placement document cannot be read: {error}") from error


def _group_problems(shape: ViewShape) -> Iterator[str]:
    numbers = [one.group for one in shape.groups]
    yield from (f"group {one} stands in groups twice" for one in sorted({n for n in numbers if numbers.count(n) > 1}))


def _instance_problems(shape: ViewShape, known: frozenset[TaskId]) -> Iterator[str]:
    seen: set[str] = set()
    for one in shape.instances:
        if not one.id:
            yield "an instance has an empty id"
        if one.id in seen:
            yield f"instance id {one.id!r} is used twice: each instance needs an id of its own"
        seen.add(one.id)
        if one.slots < 1:
            yield f"instance {one.id!r} has {one.slots} slots: give 1 or more"
        if one.max_tasks is not None and one.max_tasks < 1:
            yield f"instance {one.id!r} has max_tasks {one.max_tasks}: give 1 or more, or leave it out for no bound"
        yield from _task_problems(f"tasks of instance {one.id!r}", one.tasks, known)
    yield from (f"instance {name!r} is away and a member" for name in sorted(seen & shape.away.keys()))


def _assignment_problems(shape: AssignmentShape, known: frozenset[TaskId]) -> Iterator[str]:
    for part in _FIELDS:
        yield from _task_problems(f"previous {part}", getattr(shape, part), known)
    for task, names in shape.standbys.items():
        if shape.active.get(task) in names or len(set(names)) < len(names):
            yield f"task {task}: its active {shape.active.get(task)!r} and its standbys {list(names)} are not different"
    for task, name in shape.warmups.items():
        if name == shape.active.get(task) or name in shape.standbys.get(task, ()):
            yield f"task {task}: the warm-up on {name!r} is beside another copy there"


def _task_problems(where: str, texts: Iterable[str], known: frozenset[TaskId]) -> Iterator[str]:
    for text in texts:
        if not TASK.fullmatch(text):
            yield f"{where}: {text[:40]!r} is not a task: write GROUP_PARTITION, such as 0_3"
        elif _task(text) not in known:
            yield f"{where}: there is no task {text} in groups"


@lru_cache(maxsize=1 << 16)  # a document names each task several times
def _task(text: str) -> TaskId:
    return TaskId.parse(text)


def _member(shape: InstanceShape) -> Member:
    copies = {_task(text): Copy(one.state, one.lag, one.total, one.busy_ms) for text, one in shape.tasks.items()}
    return Member(shape.id, shape.slots, shape.rack, shape.tags, copies, shape.waits, shape.no_room_ms, shape.max_tasks)


def _assignment(shape: AssignmentShape) -> Assignment:
    parts = {name: {_task(text): value for text, value in getattr(shape, name).items()} for name in _FIELDS}
    return Assignment(shape.generation, **parts)
