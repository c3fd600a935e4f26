"""Placement: who stands by for which task, worked out alike by every member from the same view of the group.

    actives     decided elsewhere: the application's own consumer group gives partitions to members
    standbys    what is there stays -> surplus goes from the fullest -> gaps are filled by the emptiest -> evened out

    one task      wanted = min(replicas, members that do not run it); never on a member that runs it
    no active     nobody runs it just now (the group is being rebalanced): its standbys stay, none is added
    evened out    a standby moves only from a member that has at least two more than the one it moves to

A member that should let a standby go keeps it until those who take it over have caught up (`MemberPlan.warm`), so that
a move never leaves a task without a standby that is ready.

Rules of this file: pure; no group, clock or lease. Each member changes only its own standbys and tells the group; once
all have done so the answer stays as it is. Fewer members than replicas + 1 make what fits; `missing` says how many not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from standfast.replication.offsets import TaskId
from standfast.replication.takeover import MemberPlan


@dataclass(frozen=True, slots=True)
class Placed:
    """Standbys by member, and how many that were asked for no member can hold."""

    standbys: Mapping[str, frozenset[TaskId]]
    missing: int


def place_standbys(members: Mapping[str, MemberPlan], replicas: int) -> Placed:
    """Standbys of every live member; `members` are their plans as they told the group."""
    running: dict[TaskId, set[str]] = {}
    holders: dict[TaskId, set[str]] = {}
    for name, plan in members.items():
        for task in plan.active:
            running.setdefault(task, set()).add(name)
        for task in plan.standby:
            holders.setdefault(task, set()).add(name)
    tasks = sorted(running.keys() | holders.keys())
    placed = {task: holders.get(task, set()) - running.get(task, set()) for task in tasks}
    counts = {name: sum(name in held for held in placed.values()) for name in sorted(members)}
    missing = 0
    for task in tasks:
        able = members.keys() - running.get(task, set())
        wanted = min(replicas, len(able))
        _drop_surplus(placed[task], counts, wanted)
        if task in running:
            missing += replicas - wanted
            _fill(placed[task], counts, able, wanted)
    _even_out(placed, counts, running)
    return Placed({name: frozenset(task for task in tasks if name in placed[task]) for name in counts}, missing)


def may_let_go(me: str, task: TaskId, placed: Placed, members: Mapping[str, MemberPlan]) -> bool:
    """Whether a standby that is no longer this member's may be closed: its takers have caught up, or there are none."""
    takers = [name for name, tasks in placed.standbys.items() if task in tasks and name != me]
    return all(task in members[name].warm for name in takers)


def _drop_surplus(held: set[str], counts: dict[str, int], wanted: int) -> None:
    while len(held) > wanted:
        fullest = max(held, key=lambda name: (counts[name], name))
        held.remove(fullest)
        counts[fullest] -= 1


def _fill(held: set[str], counts: dict[str, int], able: Iterable[str], wanted: int) -> None:
    while len(held) < wanted:
        emptiest = min((name for name in able if name not in held), key=lambda name: (counts[name], name))
        held.add(emptiest)
        counts[emptiest] += 1


def _even_out(placed: Mapping[TaskId, set[str]], counts: dict[str, int], running: Mapping[TaskId, set[str]]) -> None:
    """Each move makes the sum of squares of the counts smaller, so that it ends."""
    moved = True
    while moved:
        moved = False
        for task in sorted(running.keys() & placed.keys()):
            for fullest in sorted(placed[task], key=lambda name: (-counts[name], name)):
                others = [name for name in counts if name not in placed[task] and name not in running[task]]
                emptiest = min(others, key=lambda name: (counts[name], name), default=None)
                if emptiest is not None and counts[fullest] - counts[emptiest] >= 2:
                    placed[task].remove(fullest)
                    placed[task].add(emptiest)
                    counts[fullest] -= 1
                    counts[emptiest] += 1
                    moved = True
                    break
