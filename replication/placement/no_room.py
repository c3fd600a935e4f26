"""Tasks of members whose disks take no writes: which go to another member, and when.

    owner without room ── a copy elsewhere has caught up, or the task has no stores ─────────────> goes there at once
        ├── no such copy for restart_grace_ms ── another member has room ────────────────────────> goes cold
        ├── it has moved for this reason within ONCE_MS ─────────────────────────────────────────> stays
        └── no member has room ──────────────────────────────────────────────────────────────────> stays

A member without room gets nothing and stands by for nothing. A task that stays is tried there again and again by its
own instance: space may be freed at any time.

Rules of this file: the decision is pure; `Shortages` is the leader's memory for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from standfast.replication.offsets import TaskId
from standfast.replication.placement.explained import read_moves
from standfast.replication.placement.look import Look, MemberRoom
from standfast.replication.placement.model import Fact, Reason, Round

ONCE_MS: Final = 600_000  # two disks that fill by turns must not send tasks to and fro
STAYS, WARM, COLD = "NO_ROOM", "NO_ROOM_WARM", "NO_ROOM_COLD"
MOVES: Final = frozenset({WARM, COLD})


def taker(look: Look, task: TaskId, owner: str, room: MemberRoom) -> tuple[str, Reason] | None:
    """The member that takes a task over from one without room, and the reason; None: the task stays."""
    able = [name for name in look.members if room.left(name) > 0]
    if not able or task in look.view.moved_for_room:
        return None
    stateless = task.group in look.view.stateless
    near = [name for name in look.tailing(task) if name in able and look.is_caught_up(task, name)]
    facts: dict[str, Fact] = {"source": owner}
    if near:
        facts |= {"instance": near[0], "lag": look.lag(task, near[0])}
        return near[0], Reason(WARM, facts)
    if not stateless and look.short[owner] < look.settings.restart_grace_ms:
        return None
    tailing = set(look.tailing(task))

    def worth(name: str) -> tuple[bool, int, float, str]:
        return name not in tailing, look.lag(task, name), room.fullness(name), name

    best = min(able, key=worth)
    return best, Reason(COLD, {**facts, "instance": best, **look.lag_fact(task, best)})


def again_ms(look: Look, active: Mapping[TaskId, str]) -> Iterator[int]:
    """Times after which a task of a member without room may move although nothing else has changed."""
    grace_ms = look.settings.restart_grace_ms
    yield from (grace_ms - for_ms for for_ms in look.short.values() if for_ms < grace_ms)
    for task, ago_ms in look.view.moved_for_room.items():
        if active.get(task) in look.short:
            yield ONCE_MS - ago_ms


class Shortages:
    """A leader's memory: since when members have had no room, and which tasks moved for that reason."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}
        self._moved: dict[TaskId, int] = {}

    def begin(self, records: Iterable[bytes], wall_ms: int, now_ms: int) -> None:
        """Take over the moves of the leaders before, by the records of the placement topic."""
        self._since, self._moved = {}, {}
        for raw in records:
            try:
                moves, _ = read_moves(raw)
            except ValueError:  # of a later version: none of its moves counts
                continue
            for one in moves:
                if one.reason.code in MOVES:
                    at_ms = now_ms - max(wall_ms - one.at_ms, 0)
                    self._moved[one.task] = max(at_ms, self._moved.get(one.task, at_ms))

    def look(self, short: Collection[str], now_ms: int) -> dict[str, int]:
        """For how long each of the members without room has had none."""
        self._since = {name: self._since.get(name, now_ms) for name in short}
        return {name: now_ms - since_ms for name, since_ms in self._since.items()}

    def recent(self, now_ms: int) -> dict[TaskId, int]:
        """Tasks that moved for this reason within ONCE_MS, and how long ago."""
        self._moved = {task: at_ms for task, at_ms in self._moved.items() if now_ms - at_ms < ONCE_MS}
        return {task: now_ms - at_ms for task, at_ms in self._moved.items()}

    def published(self, round_: Round, now_ms: int) -> None:
        """Note the moves of a round that was published."""
        self._moved |= {move.task: now_ms for move in round_.moves if move.reason.code in MOVES}
