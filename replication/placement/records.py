"""Records of an application's placement topic: the leader's assignments, and the reports of instances.

    key                 written by      value, compact JSON
    instance/<id>       the leader      its part of an assignment, with epoch and generation
    generation          the leader      epoch, generation, ids of all instances that it has a record of: the last record
    report/<id>         the instance    tasks that it runs and restores, and the lags of its other copies
    reasons, moves/<n>  the leader      why tasks are where they are: see `explained.py`
    checkpoint...       see `checkpoint.py`: a coordinated checkpoint, the last complete one, a request for one

A generation is valid once its last record and every record that this names were read. The records of a generation that
its leader did not finish, and those of an older epoch, change nothing: an instance goes on with the last valid one.
Tasks are written as ranges of partitions (`ranges.py`).

Rules of this file: pure. The leader's claim of the epoch is a writer of the log, which fences an older leader.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from standfast.replication.leases import Busy
from standfast.replication.log import Outgoing, Record
from standfast.replication.offsets import TaskId
from standfast.replication.pauses import Left, Pause
from standfast.replication.placement.checkpoint import (
    CHECKPOINT_KEY,
    COMPLETE_KEY,
    REQUEST_KEY,
    Order,
    PartReport,
    PartShape,
    Pointer,
    Request,
    part_report,
    part_shape,
    read_order,
    read_pointer,
    read_request,
)
from standfast.replication.placement.explained import MOVES, REASONS_KEY, read_reasons
from standfast.replication.placement.formats import FORMAT, read_known
from standfast.replication.placement.model import Assignment, Copy, CopyState, PlacedMember
from standfast.replication.placement.task_ranges import parse_ranges, task_ranges
from standfast.replication.programs import GroupShape, Shapes, bounded
from standfast.replication.shapes import Count, Shape, dump, read
from standfast.replication.takeover import MemberTraits
from standfast.store.errors import Corruption, InvalidRequest

RECORD_BYTES_MAX = 500_000  # half of a broker's default for one record
GENERATION_KEY = b"generation"
_INSTANCE = b"instance/"
_REPORT = b"report/"
_PLAIN = ("active", "warmups", "held", "homes")  # fields of an assignment that name one instance for a task


@dataclass(frozen=True, slots=True)
class Generation:
    """A valid generation: the assignment, the epoch of its leader's claim, and the leader's program (`Traits`).

    `shapes` are those of the program. `replaced` is the program that gave way to it; `drains`: no instance is to have a
    task, until those of the replaced program have given theirs up.
    """

    epoch: int
    assignment: Assignment
    program: str = ""
    shapes: Shapes = field(default_factory=dict)
    replaced: str = ""
    drains: bool = False

    @property
    def stamp(self) -> tuple[int, int]:
        """Order of generations."""
        return self.epoch, self.assignment.generation


@dataclass(frozen=True, slots=True)
class Report:
    """State of one instance: `running` and `restoring` are active there.

    `lags` are the records that a standby, a warm-up or a restore there lacks, `stored` those that closed rows on its
    disk lack. `generation` is the last one that the instance has read, 0 for none. `stopped`: it has closed cleanly; a
    killed one leaves its last report. `workers` are the tasks of each of its worker processes, in order of their
    numbers; empty for an instance of one process. `waits`: why it holds no tasks, in words; empty for one that takes
    its part. `left` are tasks that it gave up, by the monotonic clock of `boot`; `pauses` those of tasks that came to
    it. `checkpoint`: its parts of the last checkpoint. `no_room`: why its state directory takes no writes, in words;
    empty while it does.
    """

    running: frozenset[TaskId] = frozenset()
    restoring: frozenset[TaskId] = frozenset()
    stored: Mapping[TaskId, int] = field(default_factory=dict)
    lags: Mapping[TaskId, int] = field(default_factory=dict)
    generation: int = 0
    stopped: bool = False
    boot: str = ""
    left: Mapping[TaskId, Left] = field(default_factory=dict)
    pauses: Mapping[TaskId, Pause] = field(default_factory=dict)
    workers: tuple[frozenset[TaskId], ...] = ()
    waits: str = ""
    checkpoint: PartReport | None = None
    no_room: str = ""

    def worker_of(self, task: TaskId) -> int | None:
        """Number, from 1, of the worker process that has a task; None if none has it."""
        return next((number for number, tasks in enumerate(self.workers, 1) if task in tasks), None)


class _Instance(Shape, frozen=True):
    """Tasks of one instance, which the fields of `Assignment` explain.

    Each entry of `standbys` is one rank; `after` and `replacing` are by the other instance's id.
    """

    standfast: int
    epoch: Count
    generation: Count
    active: str = ""
    standbys: tuple[str, ...] = ()
    warmups: str = ""
    after: dict[str, str] = {}  # noqa: RUF012 - msgspec copies a default
    held: str = ""
    replacing: dict[str, str] = {}  # noqa: RUF012 - likewise
    homes: str = ""


class _Generation(Shape, frozen=True):
    standfast: int
    epoch: Count
    generation: Count
    instances: tuple[str, ...]
    program: str = ""
    shapes: dict[str, GroupShape] = {}  # noqa: RUF012 - msgspec copies it
    replaced: str = ""
    drains: bool = False


class _Report(Shape, frozen=True, forbid_unknown_fields=False):
    """Later versions may report more: a leader of this version goes on with the fields that it knows."""

    standfast: int
    running: str = ""
    restoring: str = ""
    stored: dict[str, Count] = {}  # noqa: RUF012 - msgspec copies it
    lags: dict[str, Count] = {}  # noqa: RUF012 - msgspec copies it
    generation: Count = 0
    stopped: bool = False
    boot: str = ""
    left: dict[str, tuple[Count, Count]] = {}  # noqa: RUF012 - msgspec copies it
    pauses: dict[str, tuple[Count, str, Count]] = {}  # noqa: RUF012 - msgspec copies it
    workers: tuple[str, ...] = ()
    waits: str = ""
    checkpoint: PartShape | None = None
    no_room: str = ""


def assignment_records(
    generation: Generation,
    before: Iterable[str],
    timestamp_ms: int,
    *,
    forgotten: Iterable[str] = (),
    explained: Iterable[Outgoing] = (),
) -> list[Outgoing]:
    """Records of a generation, its last record at the end, after the `explained` ones.

    Instances of `before` that it does not name get tombstones, as do the reports of the `forgotten`.
    Raises InvalidRequest if the tasks of one instance take more than `RECORD_BYTES_MAX` bytes.
    """
    epoch, number = generation.stamp
    named = _by_instance(generation.assignment)
    records = [Outgoing(_INSTANCE + gone.encode(), None, timestamp_ms) for gone in sorted(set(before) - named.keys())]
    records += [Outgoing(_REPORT + gone.encode(), None, timestamp_ms) for gone in sorted(forgotten)]
    for name, fields in sorted(named.items()):
        value = dump(_Instance(FORMAT, epoch, number, **fields))
        records.append(
            Outgoing(_INSTANCE + name.encode(), _checked(f"the tasks of instance {name!r}", value), timestamp_ms)
        )
    shapes, replaced, drains = bounded(generation.shapes), generation.replaced, generation.drains
    last = dump(_Generation(FORMAT, epoch, number, tuple(sorted(named)), generation.program, shapes, replaced, drains))
    return [
        *records,
        *explained,
        Outgoing(GENERATION_KEY, _checked(f"the names of {len(named)} instances", last), timestamp_ms),
    ]


def instances_of(assignment: Assignment) -> set[str]:
    """The instances that an assignment names."""
    found = {name for where in _PLAIN for name in getattr(assignment, where).values()}
    found.update(*assignment.standbys.values(), (new for new, _ in assignment.replacing.values()))
    return found


def _by_instance(assignment: Assignment) -> dict[str, dict[str, Any]]:
    """The fields of each instance's record."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for where in _PLAIN:
        for name, text in _ranges(getattr(assignment, where)).items():
            found[name][where] = text
    for rank in range(max(map(len, assignment.standbys.values()), default=0)):
        of_rank = {task: names[rank] for task, names in assignment.standbys.items() if rank < len(names)}
        for name, text in _ranges(of_rank).items():
            ranks = found[name].setdefault("standbys", [])
            ranks += [""] * (rank - len(ranks)) + [text]
    after = {task: (assignment.active[task], former) for task, former in assignment.after.items()}
    for where, pairs in (("after", after), ("replacing", assignment.replacing)):
        for new in {pair[0] for pair in pairs.values()}:
            found[new][where] = _ranges({task: old for task, (name, old) in pairs.items() if name == new})
    return found


def _assignment(number: int, instances: Mapping[str, _Instance]) -> Assignment:
    """Inverse of `_by_instance`. Raises ValueError."""
    plain: dict[str, dict[TaskId, str]] = {where: {} for where in _PLAIN}
    ranked: dict[TaskId, dict[int, str]] = defaultdict(dict)
    after: dict[TaskId, str] = {}
    replacing: dict[TaskId, tuple[str, str]] = {}
    for name, one in sorted(instances.items()):
        for where, found in plain.items():
            found.update(dict.fromkeys(parse_ranges(getattr(one, where)), name))
        for rank, text in enumerate(one.standbys):
            for task in parse_ranges(text):
                ranked[task][rank] = name
        for former, text in one.after.items():
            after.update(dict.fromkeys(parse_ranges(text), former))
        for old, text in one.replacing.items():
            replacing.update(dict.fromkeys(parse_ranges(text), (name, old)))
    standbys = {task: tuple(name for _, name in sorted(by_rank.items())) for task, by_rank in ranked.items()}
    return Assignment(number, standbys=standbys, after=after, replacing=replacing, **plain)


def _ranges(holders: Mapping[TaskId, str]) -> dict[str, str]:
    """Tasks by their holder, as ranges."""
    tasks: dict[str, list[TaskId]] = defaultdict(list)
    for task, name in holders.items():
        tasks[name].append(task)
    return {name: task_ranges(found) for name, found in tasks.items()}


def report_record(instance: str, report: Report, timestamp_ms: int) -> Outgoing:
    """The record of an instance's report."""
    key = _REPORT + instance.encode()
    running, restoring = map(task_ranges, (report.running, report.restoring))
    stored, lags = ({str(task): lag for task, lag in sorted(one.items())} for one in (report.stored, report.lags))
    workers = tuple(map(task_ranges, report.workers))
    left = {str(task): (one.at_ms, one.took_ms) for task, one in report.left.items()}
    pauses = {str(task): (one.ms, one.kind, one.generation) for task, one in report.pauses.items()}
    moves = (report.boot if left else "", left, pauses)
    told = (report.generation, report.stopped, *moves, workers, report.waits)
    shape = _Report(
        FORMAT, running, restoring, stored, lags, *told, part_shape(report.checkpoint), no_room=report.no_room
    )
    value = dump(shape)
    return Outgoing(key, _checked(f"the report of instance {instance!r}", value), timestamp_ms)


class PlacementState:
    """The content of a placement topic as of the records applied so far."""

    def __init__(self, topic: str, instance: str = "") -> None:
        self.valid: Generation | None = None
        self.valid_ms: int | None = None  # when it was published, by the clock of its leader
        self.unfinished = 0  # generations whose last record named a record that was not there
        self.changes = 0  # records applied so far
        self.records = 0  # all records applied so far
        self.order: Order | None = None  # of the checkpoint under way, or of the last one
        self.complete: Pointer | None = None  # the last complete checkpoint
        self.request: Request | None = None  # the last one
        self.written: set[str] = set()  # instances that have a record, of whatever generation
        self.forgotten = False  # whether a leader has deleted the report of `instance`
        self.reasons: bytes | None = None  # not read here, as reports: `explained.py` reads them for people
        self.moves: dict[bytes, bytes] = {}
        self.topic = topic
        self._instance = instance
        self._instances: dict[str, _Instance] = {}
        self._reports: dict[str, tuple[bytes, int]] = {}

    def apply(self, records: Iterable[Record]) -> None:
        """Apply records in offset order. Raises Corruption, with topic and offset, for one that cannot be read."""
        for record in records:
            key = record.key or b""
            self.records += 1
            # A leader decides again when something has changed; its own explanations are no news.
            self.changes += not key.startswith((REASONS_KEY, MOVES, CHECKPOINT_KEY))
            try:
                if key.startswith(CHECKPOINT_KEY):
                    self._checkpointed(key, record.value)
                elif key == REASONS_KEY:
                    self.reasons = record.value
                elif key.startswith(MOVES):
                    self._moved(key, record.value)
                elif key == GENERATION_KEY:
                    self._seal(record.value, record.timestamp)
                elif key.startswith(_INSTANCE):
                    self._hold(key[len(_INSTANCE) :].decode(), record.value)
                elif key.startswith(_REPORT):
                    self._report(key[len(_REPORT) :].decode(), record)
                else:
                    raise ValueError("its key is none of a placement")
            except ValueError as error:
                raise Corruption(
                    f"{self.topic}-0 at offset {record.offset}: no record of a placement ({error}): the topic belongs "
                    "to this application alone; run one version of standfast on all instances, or delete the topic "
                    "while all are stopped"
                ) from error

    @property
    def slots_missing(self) -> int:
        """Places that tasks wait for, by the leader's last reasons; 0 for reasons that this version cannot read."""
        try:
            return 0 if self.reasons is None else read_reasons(self.reasons).slots_missing
        except ValueError:  # they are for people: `seen.py` says why they cannot be read
            return 0

    def report(self, instance: str) -> Report | None:
        """The last report of an instance. Raises Corruption."""
        found = self._reports.get(instance)
        if found is None:
            return None
        raw = found[0]
        try:
            told = read(raw, _Report)
            stored, lags = ({TaskId.parse(task): lag for task, lag in one.items()} for one in (told.stored, told.lags))
            running, restoring = map(parse_ranges, (told.running, told.restoring))
            left = {TaskId.parse(task): Left(*one) for task, one in told.left.items()}
            pauses = {TaskId.parse(task): Pause(*one) for task, one in told.pauses.items()}
            return Report(
                running,
                restoring,
                stored,
                lags,
                told.generation,
                told.stopped,
                told.boot,
                left,
                pauses,
                tuple(map(parse_ranges, told.workers)),
                told.waits,
                part_report(told.checkpoint),
                no_room=told.no_room,
            )
        except ValueError as error:
            raise Corruption(f"{self.topic}-0: the report of instance {instance!r} cannot be read: {error}") from error

    def unread(self, instance: str) -> object:
        """The last report of an instance as it came, to see whether there is another one."""
        return self._reports.get(instance)

    def reporters(self) -> Iterator[str]:
        """The instances that have a report."""
        return iter(self._reports)

    def reported_ms(self, instance: str) -> int | None:
        """The time of an instance's last report, by its own clock."""
        found = self._reports.get(instance)
        return None if found is None else found[1]

    def copy(self) -> PlacementState:
        """The content at this moment; values that never change are shared."""
        made = copy(self)
        made.written, made.moves = set(self.written), dict(self.moves)
        made._instances, made._reports = dict(self._instances), dict(self._reports)
        return made

    def _checkpointed(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            return
        if key == CHECKPOINT_KEY:
            found = read_order(value)
            # A leader knows its own newest order before it reads the ones before it.
            if self.order is None or (found.number, found.step) >= (self.order.number, self.order.step):
                self.order = found
        elif key == COMPLETE_KEY:
            self.complete = read_pointer(value)
        elif key == REQUEST_KEY:
            self.request = read_request(value)
        else:
            raise ValueError("its key is none of a checkpoint")

    def _hold(self, instance: str, value: bytes | None) -> None:
        if value is None:
            self._instances.pop(instance, None)
            self.written.discard(instance)
            return
        self._instances[instance] = read_known(value, _Instance)
        self.written.add(instance)

    def _seal(self, value: bytes | None, timestamp_ms: int) -> None:
        if value is None:
            return
        last = read_known(value, _Generation)
        stamp = (last.epoch, last.generation)
        if self.valid is not None and stamp <= self.valid.stamp:
            return
        found = {name: self._instances.get(name) for name in last.instances}
        whole = {name: one for name, one in found.items() if one is not None and (one.epoch, one.generation) == stamp}
        if len(whole) < len(last.instances):
            self.unfinished += 1
            return
        assignment = _assignment(last.generation, whole)
        self.valid = Generation(last.epoch, assignment, last.program, last.shapes, last.replaced, last.drains)
        self.valid_ms = timestamp_ms

    def _report(self, instance: str, record: Record) -> None:
        # Not read here: all instances get the reports of all, and only the leader looks at them.
        if record.value is None:
            self._reports.pop(instance, None)
        else:
            self._reports[instance] = record.value, record.timestamp
        if instance == self._instance:
            self.forgotten = record.value is None

    def _moved(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.moves.pop(key, None)
        else:
            self.moves[key] = value


def placed_member(
    name: str,
    traits: MemberTraits,
    report: Report | None,
    warmups: Mapping[TaskId, str],
    no_room_ms: int | None,
    busy: Busy,
) -> PlacedMember:
    """A live instance, as placement sees it."""
    copies: dict[TaskId, Copy] = {}
    if report is not None:
        copies.update({task_id: Copy(CopyState.STORED, lag) for task_id, lag in report.stored.items()})
        for task_id in report.lags.keys() | report.restoring:
            state = CopyState.WARMUP if warmups.get(task_id) == name else CopyState.STANDBY
            state = CopyState.RESTORING if task_id in report.restoring else state
            busy_ms = busy.of_worker(report.worker_of(task_id)) if busy.numbers else 0
            copies[task_id] = Copy(state, report.lags.get(task_id), busy_ms)
        copies.update(dict.fromkeys(report.running, Copy(CopyState.RUNNING, 0)))
    return PlacedMember(
        name,
        traits.slots,
        traits.tags.get("rack"),
        traits.tags,
        copies,
        no_room_ms=no_room_ms,
        max_tasks=traits.max_tasks,
    )


def _checked(what: str, value: bytes) -> bytes:
    if len(value) > RECORD_BYTES_MAX:
        raise InvalidRequest(
            f"{what} take {len(value)} bytes of a record, the limit is {RECORD_BYTES_MAX}: spread them over more "
            "instances"
        )
    return value
