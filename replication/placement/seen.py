"""Managed placement as a person sees it: instances, tasks with the reason for their place, and the last moves.

    PlacementState (the placement topic) ──┐
    live members of the group ─────────────┼── seen() ──> Seen: command line, status document, page
    the member that claimed the lead ──────┘

Rules of this file: pure; it decides nothing. An instance is live by its lease, never by the age of its report: an
instance without news reports nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from standfast.replication.offsets import TaskId
from standfast.replication.pauses import Pause
from standfast.replication.placement.explained import Moved, Reasons, read_moves, read_reasons
from standfast.replication.placement.model import Assignment, MoveKind, Reason
from standfast.replication.placement.reasons import words_of
from standfast.replication.placement.records import PlacementState, Report
from standfast.replication.takeover import MemberTraits
from standfast.store.errors import Corruption

ARRIVALS = frozenset({MoveKind.START, MoveKind.TAKE_OVER, MoveKind.HAND_OVER})  # moves that give a task to an instance
WITHOUT_NEWS = frozenset({"RUNS", "OPENS", "RESTORES"})  # the task stays: the move that brought it there says why
Members = Mapping[str, MemberTraits | None]  # None: a live instance that a leader does not assign tasks to


@dataclass(frozen=True, slots=True)
class SeenInstance:
    """An instance that is live, reported, or has tasks.

    `state`: live, `waits` (live, and of another version, program or placement), `stopped` (it closed cleanly) or
    `gone`. `slots`, `max_tasks` (None: no bound) and `tags` are known of live ones. `generation` is the last one that
    it reported to follow. `report_ms` is the age of its report; None without one. `workers` are the numbers of tasks of
    each of its worker processes; empty for an instance of one process. `waits`: why a live one holds no tasks, as it
    reported; `no_room`: why its state directory takes no writes.
    """

    id: str
    state: str
    leads: bool
    slots: int | None
    tags: Mapping[str, str]
    generation: int
    report_ms: int | None
    actives: int
    standbys: int
    warmups: int
    stored: int
    workers: tuple[int, ...]
    waits: str
    max_tasks: int | None
    no_room: str = ""


@dataclass(frozen=True, slots=True)
class SeenCopy:
    """A copy beside the active: `role` is standby, warm-up, `leaving` (a new standby replaces it), or stored.

    `lag` are the records that it lacks, None before it was reported; `why` is empty for closed rows on a disk.
    `worker` is the number, from 1, of the worker process that has it; None in an instance of one process.
    """

    instance: str
    role: str
    lag: int | None
    code: str
    why: str
    worker: int | None


@dataclass(frozen=True, slots=True)
class SeenTask:
    """A task. `active` is the instance that has it or gets it; `after` the one that closes it first.

    `state`: running, restoring, opening, moving (`after` has not closed it), held (the owner is expected back), waiting
    (no instance has it), or lost (its instance is not live, and no leader has decided yet). `since_ms` is the time of
    the move that brought it to `active`; None if that is longer ago than the moves that are kept. `worker` is the
    number, from 1, of the worker process of `active` that has it, which may close it for another worker; None while
    none has it, and in an instance of one process.
    """

    task: TaskId
    active: str | None
    after: str | None
    state: str
    code: str
    why: str
    since_ms: int | None
    copies: tuple[SeenCopy, ...]
    worker: int | None


@dataclass(frozen=True, slots=True)
class SeenMove:
    """A move of a task; `why` in words. `pause`: how long no one processed the task, as its new owner reported it.

    None while the task does not run there yet, for moves without a former owner, and once a later move has come.
    """

    moved: Moved
    why: str
    pause: Pause | None = None


@dataclass(frozen=True, slots=True)
class PlacementSeen:
    """A placement at one moment. `moves` are in order of time; `moves_left_out` had no room in the records."""

    app: str
    generation: int
    epoch: int
    leader: str | None
    published_ms: int | None
    assignment: Assignment
    instances: tuple[SeenInstance, ...]
    tasks: tuple[SeenTask, ...]
    moves: tuple[SeenMove, ...]
    moves_left_out: int
    slots_missing: int
    standbys_missing: int


@dataclass(frozen=True, slots=True)
class PlacementSnapshot:
    """Everything that `seen` needs, taken in short time under a lock; `state` is a copy."""

    state: PlacementState
    members: Members
    leader: str | None
    now_ms: int

    def seen(self, app: str) -> PlacementSeen:
        """The picture. Raises Corruption."""
        return seen(app, self.state, self.members, self.leader, self.now_ms)


def seen(app: str, state: PlacementState, members: Members, leader: str | None, now_ms: int) -> PlacementSeen:
    """The picture of a placement topic's content and a group's live members at wall time `now_ms`.

    Raises Corruption for a record that cannot be read, with the topic; also for one of a newer format.
    """
    valid = state.valid
    assignment = Assignment() if valid is None else valid.assignment
    reports = {name: state.report(name) for name in state.reporters()}
    reasons, moves, left_out = _explained(state)
    leader = leader if leader in members else None
    said, pauses = _Said(), _pauses(moves, reports)
    names = sorted({*members, *reports, *_named(assignment)})
    return PlacementSeen(
        app=app,
        generation=assignment.generation,
        epoch=0 if valid is None else valid.epoch,
        leader=leader,
        published_ms=state.valid_ms,
        assignment=assignment,
        instances=tuple(_instances(names, state, reports, members, leader, now_ms)),
        tasks=tuple(_tasks(assignment, reports, members, reasons, moves)),
        moves=tuple(SeenMove(one, said(one.reason), pauses.get(_arrival(one))) for one in moves),
        moves_left_out=left_out,
        slots_missing=reasons.slots_missing,
        standbys_missing=reasons.standbys_missing,
    )


class _Said:
    """Words of reasons, each made once: tasks share the reasons of a record, and the usual ones."""

    def __init__(self) -> None:
        self._words: dict[int, tuple[Reason, str]] = {}
        self._usual: dict[str | None, Reason] = {}

    def __call__(self, reason: Reason) -> str:
        """The words of a reason."""
        known = self._words.get(id(reason))
        if known is None:
            known = self._words[id(reason)] = reason, words_of(reason)  # kept, so that no other one gets its id
        return known[1]

    def usual(self, code: str, instance: str | None) -> Reason:
        """The reason that is not written, about an instance; None: it may be one that had no room."""
        key = None if instance is None else f"{code} {instance}"
        if key not in self._usual:
            self._usual[key] = Reason("NOT_RECORDED", {}) if instance is None else Reason(code, {"instance": instance})
        return self._usual[key]


def _explained(state: PlacementState) -> tuple[Reasons, list[Moved], int]:
    found: list[Moved] = []
    missing = 0
    try:
        reasons = Reasons() if state.reasons is None else read_reasons(state.reasons)
        for raw in state.moves.values():
            moves, left_out = read_moves(raw)
            found += moves
            missing += left_out
    except ValueError as error:
        raise Corruption(
            f"{state.topic}-0: reasons or moves of the placement cannot be read ({error}): use the version of "
            "standfast that the instances run"
        ) from error
    return reasons, sorted(found, key=lambda one: (one.epoch, one.generation, one.task)), missing


def _arrival(move: Moved) -> tuple[int, int, TaskId, str | None]:
    # The former place of a task is moved in the same generation, to None.
    return move.epoch, move.generation, move.task, move.target


def _pauses(
    moves: Iterable[Moved], reports: Mapping[str, Report | None]
) -> dict[tuple[int, int, TaskId, str | None], Pause]:
    """The pauses of the last arrivals of tasks: an instance reports that of its last one alone."""
    last = {one.task: one for one in moves if one.kind in ARRIVALS}
    found = {}
    for task, move in last.items():
        report = None if move.target is None else reports.get(move.target)
        pause = None if report is None else report.pauses.get(task)
        # The generation of its begin may be a later one than that of the move, never an earlier one.
        if pause is not None and pause.generation >= move.generation:
            found[_arrival(move)] = pause
    return found


def _named(assignment: Assignment) -> set[str]:
    return {
        *assignment.active.values(),
        *assignment.held.values(),
        *assignment.warmups.values(),
        *(name for names in assignment.standbys.values() for name in names),
    }


def _instances(
    names: Iterable[str],
    state: PlacementState,
    reports: Mapping[str, Report | None],
    members: Members,
    leader: str | None,
    now_ms: int,
) -> Iterable[SeenInstance]:
    valid = state.valid
    assignment = Assignment() if valid is None else valid.assignment
    actives = Counter(assignment.active.values())
    standbys = Counter(name for holders in assignment.standbys.values() for name in holders)
    warmups = Counter(assignment.warmups.values())
    for name in names:
        traits, report, reported_ms = members.get(name), reports.get(name), state.reported_ms(name)
        if name in members:
            other = traits is None or (valid is not None and valid.program not in ("", traits.program))
            is_ = "waits" if other else "live"
        else:
            is_ = "stopped" if report is not None and report.stopped else "gone"
        yield SeenInstance(
            id=name,
            state=is_,
            leads=name == leader,
            slots=None if traits is None else traits.slots,
            tags={} if traits is None else traits.tags,
            generation=0 if report is None else report.generation,
            # Two clocks are compared, of the instance and here: no age is below 0.
            report_ms=None if reported_ms is None else max(now_ms - reported_ms, 0),
            actives=actives[name],
            standbys=standbys[name],
            warmups=warmups[name],
            stored=0 if report is None else len(report.stored),
            workers=() if report is None else tuple(map(len, report.workers)),
            waits=report.waits if report is not None and is_ == "waits" else "",
            no_room=report.no_room if report is not None and name in members else "",
            max_tasks=None if traits is None else traits.max_tasks,
        )


def _tasks(
    assignment: Assignment,
    reports: Mapping[str, Report | None],
    members: Members,
    reasons: Reasons,
    moves: Iterable[Moved],
) -> Iterable[SeenTask]:
    said = _Said()
    arrived = {(one.task, one.target): one for one in moves if one.kind in ARRIVALS}
    stored: dict[TaskId, list[str]] = {}
    for name, report in sorted(reports.items()):
        for task in () if report is None else report.stored:
            stored.setdefault(task, []).append(name)
    for task in sorted({*assignment.active, *assignment.held, *reasons.actives}):
        active, after = assignment.active.get(task), assignment.after.get(task)
        arrival = None if active is None else arrived.get((task, active))
        # Only the usual reason is not written, unless there was no room.
        reason = reasons.actives.get(task) or said.usual("RUNS", None if reasons.left_out else active)
        if reason.code in WITHOUT_NEWS and arrival is not None:
            reason = arrival.reason
        yield SeenTask(
            task=task,
            active=active,
            after=after,
            state=_state(task, assignment, reports, members),
            code=reason.code,
            why=said(reason),
            since_ms=None if arrival is None else arrival.at_ms,
            copies=tuple(_copies(task, assignment, reports, reasons, stored.get(task, ()), said)),
            worker=_worker(task, active, reports),
        )


def _state(task: TaskId, assignment: Assignment, reports: Mapping[str, Report | None], members: Members) -> str:
    active = assignment.active.get(task)
    if active is None:
        return "held" if task in assignment.held else "waiting"
    if members.get(active) is None:  # also a live one that no leader assigns tasks to: its placement was changed
        return "lost"
    report = reports.get(active)
    if report is not None and task in report.running:
        return "running"
    if task in assignment.after:
        return "moving"
    return "restoring" if report is not None and task in report.restoring else "opening"


def _copies(
    task: TaskId,
    assignment: Assignment,
    reports: Mapping[str, Report | None],
    reasons: Reasons,
    stored: Iterable[str],
    said: _Said,
) -> Iterable[SeenCopy]:
    held = [(name, "standby") for name in assignment.standbys.get(task, ())]
    if task in assignment.warmups:
        held.append((assignment.warmups[task], "warm-up"))
    if task in assignment.replacing:
        held.append((assignment.replacing[task][1], "leaving"))
    roles: dict[str, str] = {}
    for name, role in held:
        # The old standby of a replacement may stand among the standbys, too.
        roles[name] = role
    for name, role in roles.items():
        report = reports.get(name)
        reason = reasons.copies.get((task, name)) or said.usual("STAYS", None if reasons.left_out else name)
        lag = None if report is None else report.lags.get(task)
        yield SeenCopy(name, role, lag, reason.code, said(reason), _worker(task, name, reports))
    for name in stored:
        report = reports.get(name)
        if name not in roles and name != assignment.active.get(task):
            yield SeenCopy(name, "stored", None if report is None else report.stored.get(task), "", "", None)


def _worker(task: TaskId, instance: str | None, reports: Mapping[str, Report | None]) -> int | None:
    report = None if instance is None else reports.get(instance)
    return None if report is None else report.worker_of(task)
