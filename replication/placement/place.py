"""One round of managed placement: from the members' reports and the previous assignment to the next assignment.

    View ──> Look ──> Actives (owners, take-overs, hand-overs, warm-ups) ──> Standbys ──> Round

A leader calls `place` whenever members, reports or settings change, and again after `Round.again_ms`. It publishes
`Round.assignment` if `is_changed`, and gives it back as `View.previous`. A leader that cannot read an assignment gives
None: tasks that run stay where they run.

Semantics after Kafka Streams' HighAvailabilityTaskAssignor (acceptable lag, warm-ups, probing rebalance) and Flink's
slots, with sticky owners and standbys that leave only after their successors are ready.

Rules of this file: pure; equal views give equal rounds.
"""

from __future__ import annotations

from dataclasses import replace

from standfast.replication.offsets import TaskId
from standfast.replication.placement.actives import Actives
from standfast.replication.placement.look import Look
from standfast.replication.placement.model import Assignment, Move, MoveKind, Reason, Round, View
from standfast.replication.placement.no_room import again_ms
from standfast.replication.placement.standbys import Standbys


def place(view: View) -> Round:
    """The next assignment, its moves and reasons. Raises InvalidRequest for instance ids that are used twice."""
    look = Look(view)
    # Replacements of standbys that are under way keep their part of the budget.
    under_way = sum(all(name in look.members for name in pair) for pair in look.previous.replacing.values())
    actives = Actives(look, look.settings.warmups_max - under_way)
    after = actives.after()
    standbys = Standbys(look, actives)
    assignment = Assignment(
        look.previous.generation,
        actives.active,
        standbys.standbys,
        actives.warmups,
        after,
        actives.held,
        standbys.replacing,
        actives.homes,
    )
    if is_changed(look.previous, assignment) or view.previous is None:
        assignment = replace(assignment, generation=look.previous.generation + 1)
    moves = (*actives.moves, *standbys.moves, *_dropped_warmups(look, assignment))
    return Round(
        assignment,
        moves,
        actives.why,
        {**standbys.why, **actives.why_copies},
        actives.slots_missing,
        standbys.missing,
        _again_ms(look, assignment, unsettled=actives.unsettled or bool(after or standbys.replacing)),
    )


def is_changed(previous: Assignment, assignment: Assignment) -> bool:
    """Whether two assignments differ in more than their generation."""
    return replace(previous, generation=0) != replace(assignment, generation=0)


def _dropped_warmups(look: Look, assignment: Assignment) -> list[Move]:
    """Warm-ups that end without a hand-over."""
    kept: dict[TaskId, set[str | None]] = {}
    for task in look.previous.warmups:
        kept[task] = {assignment.active.get(task), assignment.warmups.get(task), *assignment.standbys.get(task, ())}
    return [
        Move(MoveKind.DROP_COPY, task, name, None, Reason("NOT_NEEDED", {"instance": name}))
        for task, name in sorted(look.previous.warmups.items())
        if name not in kept[task] and name in look.members
    ]


def _again_ms(look: Look, assignment: Assignment, *, unsettled: bool) -> int | None:
    """Time to the next round: the end of a grace, or the interval at which copies that catch up are looked at."""
    grace = look.settings.restart_grace_ms
    times = [grace - look.view.away[name].for_ms for name in look.expected]
    times += again_ms(look, assignment.active)
    if unsettled:
        times.append(look.settings.probe_interval_ms)
    return min(times, default=None)
