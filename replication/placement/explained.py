"""Records of the placement topic that explain it: the leader's reasons, and the moves of its last generations.

    key                value, compact JSON
    reasons            each choice of the last round: code, facts, tasks; written again when a code changes
    moves/<slot>       the moves of one generation, with time and leader; the slots are a ring of MOVES_SLOTS

Reasons and moves of a generation are in its transaction. They are for people: no instance decides by them, so a record
without room for all of them says how many it leaves out, and a later version may add codes and fields.

Rules of this file: pure. A task without a reason runs where it ran before (RUNS), a standby without one stays (STAYS).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from standfast.replication.log import Outgoing
from standfast.replication.offsets import TaskId
from standfast.replication.placement.formats import FORMAT, read_known
from standfast.replication.placement.model import Fact, Reason, Round
from standfast.replication.placement.task_ranges import parse_ranges, task_ranges
from standfast.replication.shapes import Count, Shape, dump

REASONS_KEY = b"reasons"
MOVES = b"moves/"
MOVES_SLOTS = 32
REASONS_BYTES_MAX = 400_000
MOVES_BYTES_MAX = 50_000  # each instance keeps all slots in memory
USUAL = frozenset({"RUNS", "STAYS"})


class Moved(NamedTuple):
    """A move of a task. `kind` is one of `MoveKind`, or of a later version; `at_ms` by the clock of the leader."""

    at_ms: int
    epoch: int
    generation: int
    leader: str
    kind: str
    task: TaskId
    source: str | None
    target: str | None
    reason: Reason


@dataclass(frozen=True, slots=True)
class Reasons:
    """Reasons of a round, without the usual ones; `left_out` counts those that had no room."""

    actives: Mapping[TaskId, Reason] = field(default_factory=dict)
    copies: Mapping[tuple[TaskId, str], Reason] = field(default_factory=dict)
    slots_missing: int = 0
    standbys_missing: int = 0
    left_out: int = 0


class _Choice(Shape, frozen=True, forbid_unknown_fields=False, omit_defaults=True):
    """Tasks with one reason; `instance` of a standby or warm-up."""

    code: str
    facts: dict[str, str | int]
    tasks: str
    instance: str = ""


class _Reasons(Shape, frozen=True, forbid_unknown_fields=False, omit_defaults=True):
    standfast: int
    actives: tuple[_Choice, ...] = ()
    copies: tuple[_Choice, ...] = ()
    slots_missing: Count = 0
    standbys_missing: Count = 0
    left_out: Count = 0


class _Step(Shape, frozen=True, forbid_unknown_fields=False, omit_defaults=True):
    """Tasks with one move."""

    move: str
    code: str
    facts: dict[str, str | int]
    tasks: str
    source: str | None = None
    target: str | None = None


class _Moves(Shape, frozen=True, forbid_unknown_fields=False, omit_defaults=True):
    standfast: int
    epoch: Count
    generation: Count
    at_ms: int
    leader: str
    moves: tuple[_Step, ...] = ()
    left_out: Count = 0


K = TypeVar("K")
Codes = tuple[Mapping[TaskId, str], Mapping[tuple[TaskId, str], str], int, int]


def codes_of(round_: Round) -> Codes:
    """The part of a round's reasons whose change is news: facts such as lags change all the time."""
    return (
        {task: one.code for task, one in round_.why.items() if one.code not in USUAL},
        {copy: one.code for copy, one in round_.why_copies.items() if one.code not in USUAL},
        round_.slots_missing,
        round_.standbys_missing,
    )


def reasons_record(round_: Round, timestamp_ms: int) -> Outgoing:
    """The record of a round's reasons."""
    actives = _grouped((_key(reason), task) for task, reason in round_.why.items() if reason.code not in USUAL)
    copies = _grouped(
        ((*_key(reason), name), task) for (task, name), reason in round_.why_copies.items() if reason.code not in USUAL
    )
    room = _Room(REASONS_BYTES_MAX)
    kept = room.kept(actives, lambda key, text: _Choice(key[0], dict(key[1]), text))
    of_copies = room.kept(copies, lambda key, text: _Choice(key[0], dict(key[1]), text, key[2]))
    shape = _Reasons(FORMAT, kept, of_copies, round_.slots_missing, round_.standbys_missing, room.left_out)
    return Outgoing(REASONS_KEY, dump(shape), timestamp_ms)


def moves_record(round_: Round, stamp: tuple[int, int], leader: str, timestamp_ms: int) -> Outgoing | None:
    """The record of a round's moves, which become generation `stamp`; None without a move."""
    if not round_.moves:
        return None
    steps = _grouped(
        ((move.kind.value, *_key(move.reason), move.source, move.target), move.task) for move in round_.moves
    )
    room = _Room(MOVES_BYTES_MAX)
    kept = room.kept(steps, lambda key, text: _Step(key[0], key[1], dict(key[2]), text, key[3], key[4]))
    shape = _Moves(FORMAT, *stamp, timestamp_ms, leader, kept, room.left_out)
    return Outgoing(MOVES + str(stamp[1] % MOVES_SLOTS).encode(), dump(shape), timestamp_ms)


def read_reasons(raw: bytes) -> Reasons:
    """The reasons of a record. Raises ValueError, also for a newer format."""
    told = read_known(raw, _Reasons)
    actives: dict[TaskId, Reason] = {}
    copies: dict[tuple[TaskId, str], Reason] = {}
    for one in told.actives:
        actives.update(dict.fromkeys(parse_ranges(one.tasks), Reason(one.code, one.facts)))
    for one in told.copies:
        reason = Reason(one.code, one.facts)
        copies.update({(task, one.instance): reason for task in parse_ranges(one.tasks)})
    return Reasons(actives, copies, told.slots_missing, told.standbys_missing, told.left_out)


def read_moves(raw: bytes) -> tuple[list[Moved], int]:
    """The moves of a record, and the number of those that it leaves out. Raises ValueError, also for a newer format."""
    told = read_known(raw, _Moves)
    head = partial(Moved, told.at_ms, told.epoch, told.generation, told.leader)
    found = []
    for one in told.moves:
        reason = Reason(one.code, one.facts)
        found += [head(one.move, task, one.source, one.target, reason) for task in sorted(parse_ranges(one.tasks))]
    return found, told.left_out


class _Room:
    """The bytes of a record, given to choices of many tasks first."""

    def __init__(self, bytes_max: int) -> None:
        self.left_out = 0
        self._bytes = bytes_max

    def kept(self, groups: Mapping[K, list[TaskId]], make: Callable[[K, str], Shape]) -> tuple[Any, ...]:
        """The values of those groups that fit; `make` is given the key of a group, and its tasks as text."""
        found = []
        rest = iter(sorted(groups.items(), key=lambda group: -len(group[1])))
        for key, tasks in rest:
            one = make(key, task_ranges(tasks))
            self._bytes -= len(dump(one)) + 1
            if self._bytes < 0:
                self.left_out += len(tasks) + sum(len(more) for _, more in rest)  # not measured: they may be thousands
                break
            found.append(one)
        return tuple(found)


def _key(reason: Reason) -> tuple[str, tuple[tuple[str, Fact], ...]]:
    return reason.code, tuple(sorted(reason.facts.items()))


def _grouped(pairs: Iterable[tuple[K, TaskId]]) -> dict[K, list[TaskId]]:
    """Tasks by key, in the order of the keys' first tasks."""
    found: dict[K, list[TaskId]] = defaultdict(list)
    for key, task in pairs:
        found[key].append(task)
    return found
