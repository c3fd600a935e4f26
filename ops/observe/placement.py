"""The document of managed placement, which `/v1/status`, the command line and the page render.

Rules of this file: pure; from the picture of a placement to JSON values with a "schema". Programs may rely on the names
here; fields are added, never renamed. Times in milliseconds since the epoch, lags in records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

from standfast.replication.offsets import TaskId
from standfast.replication.placement.model import Assignment
from standfast.replication.placement.seen import PlacementSeen, PlacementSnapshot, SeenCopy, SeenMove
from standfast.store.errors import Corruption

Json: TypeAlias = dict[str, Any]
SCHEMA = "standfast.placement/1"
FORMAT = 1  # of the assignment
MOVES_OF_GENERATION = 100_000  # above the moves of any generation, so that the numbers of events are unique
_PARTS = ("active", "standbys", "warmups", "after", "held", "replacing", "homes")


def placement_document(seen: PlacementSeen) -> Json:
    """The whole picture."""
    return {
        "schema": SCHEMA,
        "app": seen.app,
        **_parts(seen),
        "assignment": _assignment(seen.assignment),
    }


def placement_of_status(app: str, snapshot: PlacementSnapshot | None) -> Json | None:
    """The part of a status document; None for an instance without managed placement.

    Records that cannot be read are its `error`: the rest of the status must still be seen.
    """
    if snapshot is None:
        return None
    try:
        return {**_parts(snapshot.seen(app)), "error": ""}
    except Corruption as error:
        return {"error": str(error)}


def move_events(placement: Mapping[str, Any] | None) -> list[Json]:
    """The moves of a placement document as events, in the form of a sidecar's, the oldest first."""
    if placement is None or placement["error"]:
        return []
    return [
        {
            "number": move["generation"] * MOVES_OF_GENERATION + number,
            "at_ms": move["at_ms"],
            "event": move["move"],
            "actor": move["leader"],
            "outcome": "done",
            "fields": {
                name: move[name]
                for name in ("task", "from", "to", "why", "pause_ms", "pause")
                if move[name] is not None
            },
        }
        for number, move in _numbered(placement["moves"])
    ]


def _numbered(moves: Iterable[Json]) -> Iterable[tuple[int, Json]]:
    """Each move with its number within its generation."""
    generation, number = None, 0
    for move in moves:
        number = number + 1 if move["generation"] == generation else 0
        generation = move["generation"]
        yield number, move


def _parts(seen: PlacementSeen) -> Json:
    return {
        "generation": seen.generation,
        "epoch": seen.epoch,
        "leader": seen.leader,
        "published_ms": seen.published_ms,
        "slots_missing": seen.slots_missing,
        "standbys_missing": seen.standbys_missing,
        "instances": [{**asdict(one), "tags": dict(one.tags)} for one in seen.instances],
        "tasks": [
            {
                "task": str(one.task),
                "active": one.active,
                "after": one.after,
                "state": one.state,
                "code": one.code,
                "why": one.why,
                "since_ms": one.since_ms,
                "worker": one.worker,
                "copies": [_copy(copy) for copy in one.copies],
            }
            for one in seen.tasks
        ],
        "moves": [_move(one) for one in seen.moves],
        "moves_left_out": seen.moves_left_out,
    }


def _copy(one: SeenCopy) -> Json:
    # Not by `asdict`, which copies deeply: a placement may have ten thousands of them.
    return {
        "instance": one.instance,
        "role": one.role,
        "lag": one.lag,
        "code": one.code,
        "why": one.why,
        "worker": one.worker,
    }


def _move(one: SeenMove) -> Json:
    moved = one.moved
    return {
        "at_ms": moved.at_ms,
        "epoch": moved.epoch,
        "generation": moved.generation,
        "leader": moved.leader,
        "move": moved.kind,
        "task": str(moved.task),
        "from": moved.source,
        "to": moved.target,
        "code": moved.reason.code,
        "facts": dict(moved.reason.facts),
        "why": one.why,
        "pause_ms": None if one.pause is None else one.pause.ms,
        "pause": None if one.pause is None else one.pause.kind,
    }


def _assignment(assignment: Assignment) -> Json:
    """An assignment with tasks in order; empty parts are left out."""
    parts: dict[str, Mapping[TaskId, Any]] = {name: getattr(assignment, name) for name in _PARTS}
    named = {name: {str(task): part[task] for task in sorted(part)} for name, part in parts.items() if part}
    return {"standfast_placement": FORMAT, "generation": assignment.generation, **named}
