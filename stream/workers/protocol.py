"""Messages between the supervisor and a worker: one JSON object a line.

    supervisor  ── Open, then Hold*, Gate*, Pause*, Checkpoint*, Stop ──> worker     its orders; their end ends it
    supervisor  <── Ready, Opened, State*, Counted*, Asked*, Closed or Failed ── worker  its answers; empty line: beat

Rules of this file: pure, values only. The log's address may hold secrets: it goes through the pipe and not into the
environment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from standfast.replication.offsets import TaskId
from standfast.replication.pauses import Left
from standfast.replication.placement.checkpoint import Order as CheckpointOrder
from standfast.replication.placement.checkpoint import PartReport, PartShape, order_text, part_shape, read_order
from standfast.replication.shapes import Shape, line, read
from standfast.store.errors import InternalError
from standfast.stream.snapshot_counts import SnapshotCounts
from standfast.stream.workers.orders import ReportedTask, WorkerOrder


class OpenOrder(Shape, frozen=True, tag_field="do", tag="Open"):
    """Open a session on the supervisor's state directory, also in a spare. `lock` and `words` are inherited handles.

    `lock`: of the directory's lock; `words`: of the worker's progress. `program`: as in `Traits`. The worker checks
    that its own application is the same. `alone`: the instance starts, and no other one lives. `line`: an inherited
    socket, through which the worker answers the supervisor's HTTP server; -1: there is no server.
    """

    app: str
    log: str
    state_root: str
    guarantee: str
    program: str
    instance: str
    workers: int
    lock: int
    words: int
    alone: bool = False
    line: int = -1


class HoldOrder(Shape, frozen=True, tag_field="do", tag="Hold"):
    """Hold exactly these tasks, as in `WorkerOrder`."""

    round: int
    active: Mapping[str, int]
    standby: tuple[str, ...]
    unowned: tuple[str, ...] = ()


class GateOrder(Shape, frozen=True, tag_field="do", tag="Gate"):
    """The restore gate of the instance. `standbys`: whether they may begin; `missing`: tasks that keep it shut."""

    open: bool
    standbys: bool
    missing: tuple[str, ...] = ()


class PauseOrder(Shape, frozen=True, tag_field="do", tag="Pause"):
    """Process nothing while it is on; tasks stay, standbys continue."""

    on: bool


class FollowCheckpoint(Shape, frozen=True, tag_field="do", tag="Checkpoint"):
    """Follow this order of a coordinated checkpoint; `order` is the text of its record in the placement topic."""

    order: str


class StopOrder(Shape, frozen=True, tag_field="do", tag="Stop"):
    """Commit, close all tasks cleanly and end."""


class Ready(Shape, frozen=True, tag_field="say", tag=True):
    """The worker has come to run() of this application."""

    app: str


class OpenedReport(Shape, frozen=True, tag_field="say", tag="Opened"):
    """The worker's session is open: it takes tasks, and has none."""


class ClosedReport(Shape, frozen=True, tag_field="say", tag="Closed"):
    """The worker has committed and closed all, and its interpreter ends: no beats come from here on."""


class StateReport(Shape, frozen=True, tag_field="say", tag="State"):
    """All tasks of the worker, and the round of the last Hold that it follows, 0 for none.

    Each task as in `ReportedTask`: role, state, lag, opening. `since`: from when on the running ones run; `left`: tasks
    given up in order, as in `Left`. Both by the machine's monotonic clock, in milliseconds. `parts`: those of the last
    checkpoint that had any in this process. `no_room`: as `Room.reported`.
    """

    round: int
    tasks: Mapping[str, tuple[str, str, int, int]]
    since: Mapping[str, int]
    left: Mapping[str, tuple[int, int]]
    parts: PartShape | None = None
    no_room: str = ""


class Counted(Shape, frozen=True, tag_field="say", tag=True):
    """The worker's counts of snapshots, as in `SnapshotCounts`, from its start on. `pauses`: counts by bucket."""

    made: Mapping[str, int]
    restores: Mapping[str, int]
    uploaded_bytes: int
    downloaded_bytes: int
    at_ms: Mapping[str, int]
    pauses: tuple[int, ...]
    pauses_s: float
    pauses_ms: tuple[int, ...]
    errors: Mapping[str, tuple[str, int]]


class Asked(Shape, frozen=True, tag_field="say", tag=True):
    """The program called stop(), pause() or resume() in the worker, which follows its own call at once."""

    wish: str


class FailedReport(Shape, frozen=True, tag_field="say", tag="Failed"):
    """The worker cannot go on. `kind`: the name of the error's class."""

    kind: str
    message: str
    notes: tuple[str, ...] = ()


Command: TypeAlias = OpenOrder | HoldOrder | GateOrder | PauseOrder | FollowCheckpoint | StopOrder
Report: TypeAlias = Ready | OpenedReport | StateReport | Counted | Asked | ClosedReport | FailedReport

command_line = report_line = line


def hold(order: WorkerOrder) -> HoldOrder:
    """The message of an order."""
    active = {str(task): opening for task, opening in sorted(order.active.items())}
    standby, unowned = (tuple(map(str, sorted(tasks))) for tasks in (order.standby, order.unowned))
    return HoldOrder(order.round, active, standby, unowned)


def order_of(message: HoldOrder) -> WorkerOrder:
    """Inverse of `hold`. Raises ValueError."""
    active = {TaskId.parse(task): opening for task, opening in message.active.items()}
    standby, unowned = (frozenset(map(TaskId.parse, tasks)) for tasks in (message.standby, message.unowned))
    return WorkerOrder(message.round, active, standby, unowned)


def state(
    round_: int,
    tasks: Mapping[TaskId, ReportedTask],
    since: Mapping[TaskId, int] = MappingProxyType({}),
    left: Mapping[TaskId, Left] = MappingProxyType({}),
    parts: PartReport | None = None,
    no_room: str = "",
) -> StateReport:
    """The message of a worker's tasks."""
    return StateReport(
        round_,
        {str(task): (one.role, one.state, one.lag, one.opening) for task, one in sorted(tasks.items())},
        {str(task): at_ms for task, at_ms in since.items()},
        {str(task): (one.at_ms, one.took_ms) for task, one in left.items()},
        part_shape(parts),
        no_room,
    )


def tasks_of(message: StateReport) -> dict[TaskId, ReportedTask]:
    """Inverse of `state`. Raises ValueError."""
    return {TaskId.parse(task): ReportedTask(*one) for task, one in message.tasks.items()}


def times_of(message: StateReport) -> tuple[dict[TaskId, int], dict[TaskId, Left]]:
    """`since` and `left` of a message, as `state` takes them. Raises ValueError."""
    since = {TaskId.parse(task): at_ms for task, at_ms in message.since.items()}
    return since, {TaskId.parse(task): Left(*one) for task, one in message.left.items()}


def checkpoint(order: CheckpointOrder) -> FollowCheckpoint:
    """The message of a checkpoint's order."""
    return FollowCheckpoint(order_text(order))


def checkpoint_of(message: FollowCheckpoint) -> CheckpointOrder:
    """Inverse of `checkpoint`. Raises ValueError."""
    return read_order(message.order.encode())


def counted(counts: SnapshotCounts) -> Counted:
    """The message of a worker's counts."""
    now = counts.copy()  # other threads add to it
    return Counted(
        dict(now.made),
        dict(now.restores),
        now.uploaded_bytes,
        now.downloaded_bytes,
        now.at_ms,
        tuple(now.pauses.counts),
        now.pauses.total,
        tuple(now.pauses_ms),
        now.errors,
    )


def counts_of(message: Counted) -> SnapshotCounts:
    """Inverse of `counted`. Raises ValueError."""
    found = SnapshotCounts(Counter(message.made), Counter(message.restores), message.uploaded_bytes)
    if len(message.pauses) != len(found.pauses.counts):
        raise ValueError(f"{len(message.pauses)} counts of pauses, and not {len(found.pauses.counts)}")
    found.downloaded_bytes = message.downloaded_bytes
    found.at_ms, found.errors = dict(message.at_ms), dict(message.errors)
    found.pauses.counts, found.pauses.total = list(message.pauses), message.pauses_s
    found.pauses_ms = list(message.pauses_ms)
    return found


def parse_command(raw: bytes) -> Command:
    """The order that a line holds. Raises InternalError."""
    try:
        command: Command = read(raw, Command)
    except ValueError as error:
        raise InternalError(f"a worker received an order that it cannot read: {error}") from error
    return command


def parse_report(raw: bytes) -> Report:
    """The report that a line holds. Raises InternalError."""
    try:
        report: Report = read(raw, Report)
    except ValueError as error:
        raise InternalError(f"it sent {raw[:200]!r}, which is not a report: {error}") from error
    return report
