"""Placement of standbys: every member computes it, with the same result, from the same view of the group.

    actives     decided elsewhere: the application's own consumer group gives partitions to members
    standbys    existing ones stay -> surplus goes from the fullest -> the emptiest fill gaps -> evened out

    one task      wanted = min(replicas, members that do not run it); never on a member that runs it
    no active     no member runs it just now (the group rebalances): its standbys stay, none is added
    evened out    a standby moves only from a member that has at least two more than the receiver

A member that should give up a standby keeps it until its successors have caught up (`MemberPlan.warm`), so that a move
never leaves a task without a standby that is ready.

Rules of this file: pure; no group, clock or lease. Each member changes only its own standbys and publishes its plan;
once all have done so the result is stable. With fewer members than replicas + 1, `missing` counts the standbys that do
not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from standfast.replication.offsets import TaskId
from standfast.replication.takeover import MemberPlan


@dataclass(frozen=True, slots=True)
class PlacedStandbys:
    """Standbys by member, and the number of wanted standbys that no member can hold."""

    standbys: Mapping[str, frozenset[TaskId]]
    missing: int


def place_standbys(members: Mapping[str, MemberPlan], replicas: int) -> PlacedStandbys:
    """Standbys of every live member; `members` are their published plans."""
    running: dict[TaskId, set[str]] = {}
    holders: dict[TaskId, set[str]] = {}
    for name, plan in members.items():
        for task in plan.active:
            running.setdefault(task, set()).add(name)
        for task in plan.standby:
            holders.setdefault(task, set()).add(name)
    # Sorted here and below, with ties by name: every member must come to the same result.
    tasks = sorted(running.keys() | holders.keys())
    placed = {task: holders.get(task, set()) - running.get(task, set()) for task in tasks}
    counts = {name: sum(name in held for held in placed.values()) for name in sorted(members)}
    missing = 0
    for task in tasks:
        able = members.keys() - running.get(task, set())
        wanted = min(replicas, len(able))
        _drop_surplus(placed[task], counts, wanted)
        # Without an active every member counts as able, also the next owner of the task.
        if task in running:
            missing += replicas - wanted
            _fill(placed[task], counts, able, wanted)
    _even_out(placed, counts, running)
    return PlacedStandbys({name: frozenset(task for task in tasks if name in placed[task]) for name in counts}, missing)


def may_release(me: str, task: TaskId, placed: PlacedStandbys, members: Mapping[str, MemberPlan]) -> bool:
    """Whether this member may close a standby that is no longer its own: its takers have caught up, or none exist."""
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
    """Move standbys from fuller to emptier members; each move reduces the sum of squared counts, so the loop ends."""
    moved = True
    while moved:
        moved = False
        # Standbys of a task without an active stay, as the header says.
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
