"""Promises of a simulation, for each round and at rest after it; each broken one is a sentence.

    each round   one active a task, none beside a standby or warm-up of it on one instance; the budget of warm-ups;
                 a task that runs goes only to a copy that has caught up; a closing owner is named; bounds are not
                 exceeded; no choice moves anything where the balance is right
    at rest      actives are balanced, per application and per group; standbys are complete and cannot be evened out

Rules of this file: it reads views, rounds and the model, and changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from standfast.replication.offsets import TaskId
from standfast.replication.placement.model import TAILING, Assignment, CopyState, MoveKind, Round, View
from standfast.replication.placement.quotas import bounded_shares, is_balanced
from standfast.replication.placement.reasons import words
from support.placement_simulation.cluster import Cluster


def round_problems(view: View, result: Round) -> Iterator[str]:
    """Promises that a round breaks."""
    assignment, settings = result.assignment, view.settings
    members = {member.id: member for member in view.members}
    expected = {name for name, away in view.away.items() if away.for_ms < settings.restart_grace_ms}
    elective = len(assignment.warmups) + len(assignment.replacing)
    if elective > settings.warmups_max:
        yield f"{elective} elective copies at once, {settings.warmups_max} may be"
    for task in view.tasks:
        active = assignment.active.get(task)
        others = [*assignment.standbys.get(task, ()), *filter(None, [assignment.warmups.get(task)])]
        if active in others or len(set(others)) < len(others):
            yield f"task {task} is active on {active} and has copies on {others}"
        if active is not None and active not in members:
            yield f"task {task} is given to {active}, which is not a member"
        if not set(others) <= members.keys() | expected:
            yield f"task {task} has copies on {others}, of which some are gone"
        if active is None and task not in assignment.held and not result.slots_missing:
            yield f"task {task} has no owner, and no reason"
        if task not in result.why:
            yield f"task {task} has no explanation"
    for reason in {reason.code: reason for reason in (*result.why.values(), *result.why_copies.values())}.values():
        words(reason)
    yield from _slots(view, assignment)
    yield from _careless(view, assignment)
    yield from _needless(view, result)


def _slots(view: View, assignment: Assignment) -> Iterator[str]:
    counts = Counter(assignment.active.values())
    for member in view.members:
        if member.max_tasks is not None and counts[member.id] > member.max_tasks:
            yield f"{member.id} has {counts[member.id]} tasks, and its bound is {member.max_tasks}"


def _careless(view: View, assignment: Assignment) -> Iterator[str]:
    """Tasks that run and move to a copy that has not caught up, and owners that the next one does not wait for."""
    copies = {(task, member.id): copy for member in view.members for task, copy in member.copies.items()}
    for (task, name), copy in copies.items():
        active = assignment.active.get(task)
        if copy.state is not CopyState.RUNNING or active == name:
            continue
        if assignment.after.get(task) != name and active is not None:
            yield f"task {task} goes to {active}, which does not wait for {name} to close it"
        previous = view.previous.active.get(task) if view.previous is not None else name
        taker = copies.get((task, active or ""))
        ready = taker is not None and taker.state in TAILING and (taker.lag or 0) <= view.settings.acceptable_lag
        if previous == name and not ready and task.group not in view.stateless:
            yield f"task {task} runs on {name} and goes to {active}, whose copy is {taker}"


def _needless(view: View, result: Round) -> Iterator[str]:
    """Moves by choice although the balance is right and all instances are there."""
    previous = view.previous
    slots = _shares(view)
    if (
        previous is None
        or not set(view.tasks) <= previous.active.keys()
        or set(previous.active.values()) - slots.keys()
    ):
        return
    if _uneven(slots, previous.active):
        return
    if any(move.kind is MoveKind.TAKE_OVER for move in result.moves):
        return  # a restore that another copy overtakes changes the balance
    for move in result.moves:
        if move.kind in (MoveKind.HAND_OVER, MoveKind.WARM_UP, MoveKind.START):
            yield f"{move.kind} of task {move.task} to {move.target} although the balance is right"


def _shares(view: View) -> dict[str, int]:
    """The shares of the members."""
    members = view.members
    shares = bounded_shares([one.slots for one in members], [one.max_tasks for one in members], len(view.tasks))
    return {one.id: share for one, share in zip(members, shares, strict=True)}


def _uneven(slots: dict[str, int], owners: Mapping[TaskId, str]) -> list[str]:
    """Parts of the application whose actives are not balanced."""
    found = []
    parts = {"the application": dict(owners)}
    for task, name in owners.items():
        parts.setdefault(f"group {task.group}", {})[task] = name
    for part, held in parts.items():
        counts = Counter(held.values())
        if not is_balanced(slots, counts):
            found.append(f"{part}: {dict(sorted(counts.items()))} for slots {slots}")
    return found


def rest_problems(cluster: Cluster, view: View, result: Round) -> Iterator[str]:
    """Promises that are broken once nothing changes any more."""
    assignment = result.assignment
    slots = {member.id: member.slots for member in view.members}
    if result.slots_missing:
        waiting, places = len(view.tasks) - len(assignment.active), sum(one.max_tasks or 0 for one in view.members)
        if assignment.active and (waiting != result.slots_missing or len(assignment.active) != places):
            yield f"{waiting} tasks wait, {result.slots_missing} places are missing, and {places} could be taken"
        return
    for task in view.tasks:
        name = assignment.active.get(task)
        if name is None or cluster.serving(task) != name:
            yield f"task {task} is not served by {name}"
    uneven = _uneven(_shares(view), assignment.active)
    if any(one.max_tasks is not None for one in view.members):  # without a free place no two tasks can change theirs
        uneven = [part for part in uneven if part.startswith("the application")]
    yield from (f"not balanced: {part}" for part in uneven)
    if assignment.warmups or assignment.after or assignment.replacing or assignment.held:
        yield f"not at rest: {assignment.warmups} {assignment.after} {assignment.replacing} {assignment.held}"
    wanted = min(view.settings.standby_replicas, len(slots) - 1)
    for task in view.tasks:
        names = assignment.standbys.get(task, ())
        if task.group not in view.stateless and len(names) != wanted:
            yield f"task {task} has standbys {names}, {wanted} are wanted"
    if not any(member.rack or member.tags for member in view.members):
        yield from _standbys_uneven(slots, assignment)


def _standbys_uneven(slots: dict[str, int], assignment: Assignment) -> Iterator[str]:
    held: dict[str, set[TaskId]] = {name: set() for name in slots}
    for task, names in assignment.standbys.items():
        for name in names:
            held[name].add(task)
    for full, tasks in held.items():
        for empty, others in held.items():
            if len(tasks) / slots[full] > (len(others) + 1) / slots[empty]:
                free = [task for task in tasks if task not in others and assignment.active[task] != empty]
                if free:
                    yield f"{full} has {len(tasks)} standbys and {empty} {len(others)}: {free[0]} could move"
