"""The programs of one application: what two of them must have in common to share tasks, and how they differ.

    groups of an instance ──> shapes ──┐
                                       ├── differences ──> "store 'b' is only in this program"
    generation in force  ──> shapes ──┘

Instances share tasks if groups, source topics and stores are equal, whatever their functions do. The partitions of a
topic are the log's, and grow while all instances run; those of a source of one's own are the program's.

Rules of this file: pure. Shapes go into each generation, so their size has a bound: beyond it they name less.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from standfast.replication.shapes import Count, Shape, dump, plain
from standfast.store.names import few
from standfast.store.specs import definition_changes

SHAPES_BYTES_MAX = 100_000  # of the 500,000 of a generation's record
DIFFERENCES_SHOWN = 4
UNKNOWN = "groups, source topics or stores"  # where a program has no shapes: an earlier version wrote it, or no room


class GroupShape(Shape, frozen=True, forbid_unknown_fields=False):
    """One sub-topology. A store's definition is its hash where the whole would take too many bytes.

    `partitions`: as far as the program itself declares them. `topics` None: any topic.
    """

    topics: tuple[str, ...] | None = None
    stores: dict[str, dict[str, Any] | str] = {}  # noqa: RUF012 - msgspec copies it
    partitions: Count | None = None


Shapes: TypeAlias = Mapping[str, GroupShape]  # by the group's number


def bounded(shapes: Shapes) -> dict[str, GroupShape]:
    """Shapes of at most SHAPES_BYTES_MAX bytes: whole, or with hashes for definitions, or none at all."""
    found = dict(shapes)
    if _size(found) > SHAPES_BYTES_MAX:
        found = {
            number: GroupShape(one.topics, {name: _hash(told) for name, told in one.stores.items()}, one.partitions)
            for number, one in shapes.items()
        }
    return found if _size(found) <= SHAPES_BYTES_MAX else {}


def difference(running: Shapes, mine: Shapes) -> str:
    """How two programs differ, in words: the running one, and this one."""
    if not running or not mine:
        return f"other {UNKNOWN}"
    found = list(_differences(running, mine))
    more = len(found) - DIFFERENCES_SHOWN
    shown = "; ".join(found[:DIFFERENCES_SHOWN]) or f"other {UNKNOWN}"
    return f"{shown}; and {more} more differences" if more > 0 else shown


def _differences(running: Shapes, mine: Shapes) -> Iterator[str]:
    for number in sorted({*running, *mine}, key=int):
        theirs, own = running.get(number), mine.get(number)
        if theirs is None or own is None:
            topics = few((theirs or own or GroupShape()).topics or ())
            yield f"group {number} (topics {topics}) is only in {'this' if theirs is None else 'the running'} program"
            continue
        for topic in sorted({*(theirs.topics or ())} ^ {*(own.topics or ())}):
            where = "this" if topic in (own.topics or ()) else "the running"
            yield f"topic {topic!r} of group {number} is read by {where} program only"
        if theirs.partitions != own.partitions:
            yield f"partitions of group {number}: {theirs.partitions} in the running program, {own.partitions} in this"
        yield from _stores(number, theirs, own)


def _stores(number: str, theirs: GroupShape, own: GroupShape) -> Iterator[str]:
    for name in sorted({*theirs.stores, *own.stores}):
        there, here = theirs.stores.get(name), own.stores.get(name)
        if there is None or here is None:
            yield f"store {name!r} of group {number} is only in {'this' if there is None else 'the running'} program"
        elif isinstance(there, dict) and isinstance(here, dict):
            changes = ", ".join(definition_changes(there, here))
            if changes:
                yield f"store {name!r} of group {number} differs (running -> this: {changes})"
        elif _hash(there) != _hash(here):
            yield f"store {name!r} of group {number} has another definition"


def _hash(told: dict[str, Any] | str) -> str:
    if isinstance(told, str):
        return told
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]


def _size(shapes: dict[str, GroupShape]) -> int:
    return len(dump({number: plain(one) for number, one in shapes.items()}))
