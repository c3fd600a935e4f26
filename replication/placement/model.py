"""Plain values of managed placement: the members' reports, the assignment, and the result of a round.

    View                                              Round
      members     id, slots, bound, rack, tags, copies  assignment  active, standbys, warm-up per task; next `previous`
      previous    the assignment published last         moves       the difference to `previous`
      away        instances that left a moment ago      why         a reason for each choice, as data
      settings    replicas, warm-ups, limits            waiting, standbys_missing, again_ms

Words: a *copy* is one member's state of one task, on disk or open. Its lag is the number of changelog records that it
has not applied. A *warm-up* is a copy beside the standbys that prepares a hand-over.

Rules of this file: values only. Durations instead of points in time, so that no two clocks are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from standfast.replication.offsets import TaskId
from standfast.store.errors import InvalidRequest

Fact: TypeAlias = str | int


class CopyState(StrEnum):
    """State of a task's copy on one member."""

    RUNNING = "running"  # active, and its gate is open
    RESTORING = "restoring"  # active, and not ready
    STANDBY = "standby"
    WARMUP = "warmup"
    STORED = "stored"  # closed: rows on disk that no member applies changes to


TAILING = frozenset((CopyState.STANDBY, CopyState.WARMUP))


class Copy(NamedTuple):
    """One member's copy of a task. `lag` None: not known yet.

    `busy_ms`: for how long the process that has it has had a record in hand, or could not look at the placement.
    """

    state: CopyState
    lag: int | None = None
    busy_ms: int = 0


@dataclass(frozen=True, slots=True)
class PlacedMember:
    """A live instance. It gets tasks in proportion to its slots; `waits` says why it may hold none.

    `no_room_ms`: for how long its state directory has taken no writes; None while there is room.
    `max_tasks` bounds its active tasks, None: no bound. Standbys, warm-ups and their restores do not count.
    """

    id: str
    slots: int = 1
    rack: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[TaskId, Copy] = field(default_factory=dict)
    waits: str = ""
    no_room_ms: int | None = None
    max_tasks: int | None = None


class Away(NamedTuple):
    """An instance of the previous assignment that is not a member: for how long, and whether it stopped cleanly."""

    for_ms: int
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """Settings of a placement.

    standby_replicas     standbys of each task that has stores
    warmups_max          elective copies under way at a time, in the whole application (Kafka: max.warmup.replicas)
    acceptable_lag       records up to which a copy counts as caught up (Kafka: acceptable.recovery.lag)
    restart_grace_ms     for so long an instance that left is expected back
    probe_interval_ms    time to the next round while copies catch up (Kafka: probing.rebalance.interval.ms)
    """

    standby_replicas: int = 0
    warmups_max: int = 2
    acceptable_lag: int = 10_000
    restart_grace_ms: int = 30_000
    probe_interval_ms: int = 5_000

    def __post_init__(self) -> None:
        least = {"warmups_max": 1, "probe_interval_ms": 1}
        for name in self.__slots__:
            value = getattr(self, name)
            if value < least.get(name, 0):
                raise InvalidRequest(f"{name} is {value}: give {least.get(name, 0)} or more")


@dataclass(frozen=True, slots=True)
class Assignment:
    """The tasks of each instance, as published; the next round continues from it.

    `after`: the active must not open the task before this instance has closed it. `replacing`: (new, old) standby; the
    old one leaves once the new one has caught up. `homes`: the instance that a task was taken over from, which gets it
    back first. An instance that is expected back may stand in `standbys`.
    """

    generation: int = 0
    active: Mapping[TaskId, str] = field(default_factory=dict)
    standbys: Mapping[TaskId, tuple[str, ...]] = field(default_factory=dict)
    warmups: Mapping[TaskId, str] = field(default_factory=dict)
    after: Mapping[TaskId, str] = field(default_factory=dict)
    held: Mapping[TaskId, str] = field(default_factory=dict)
    replacing: Mapping[TaskId, tuple[str, str]] = field(default_factory=dict)
    homes: Mapping[TaskId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class View:
    """Everything that a round depends on. `previous` None: no assignment is readable, so the reports decide.

    `tasks` are all tasks of the application; those of the groups in `stateless` have no stores. `moved_for_room`: tasks
    that moved a short time ago because their owner's disk took no writes, and for how many milliseconds that is past.
    `ran`: the application is known to have run, whatever the assignment and the copies show. `claimed`: tasks of
    instances that are gone which a copy has claimed since, and its instance.
    """

    members: tuple[PlacedMember, ...]
    tasks: tuple[TaskId, ...]
    settings: PlacementSettings = field(default_factory=PlacementSettings)
    previous: Assignment | None = None
    away: Mapping[str, Away] = field(default_factory=dict)
    stateless: frozenset[int] = frozenset()
    moved_for_room: Mapping[TaskId, int] = field(default_factory=dict)
    ran: bool = False
    claimed: Mapping[TaskId, str] = field(default_factory=dict)


class Reason(NamedTuple):
    """Why a choice was made: a code of `reasons.WORDS`, and the facts that its words name."""

    code: str
    facts: Mapping[str, Fact]


class MoveKind(StrEnum):
    """A difference between two assignments."""

    START = "start"  # the task had no owner
    TAKE_OVER = "take-over"  # its owner is gone, or is far from ready
    HAND_OVER = "hand-over"  # its owner serves until the new one opens it
    HOLD = "hold"  # its owner is expected back
    WARM_UP = "warm-up"
    ADD_STANDBY = "add-standby"
    DROP_COPY = "drop-copy"


class Move(NamedTuple):
    """One step towards the new assignment."""

    kind: MoveKind
    task: TaskId
    source: str | None
    target: str | None
    reason: Reason


@dataclass(frozen=True, slots=True)
class Round:
    """The result of `place`.

    `why` has a reason for the active of each task, `why_copies` one for each (task, instance) of a standby or warm-up.
    `slots_missing` above 0 is the state WAITING_FOR_SLOTS: so many tasks have no place within the bounds of the
    instances. Before the application has run, no task starts then. `standbys_missing` counts standbys that no instance
    can hold. `again_ms`: look again after this time even if nothing changes; None: no need.
    """

    assignment: Assignment
    moves: tuple[Move, ...]
    why: Mapping[TaskId, Reason]
    why_copies: Mapping[tuple[TaskId, str], Reason]
    slots_missing: int
    standbys_missing: int
    again_ms: int | None
