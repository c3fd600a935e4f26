"""An instance's part of an assignment, and the instance as placement sees it.

Rules of this file: pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from standfast.replication.leases import Busy
from standfast.replication.offsets import TaskId
from standfast.replication.placement.model import Assignment, Copy, CopyState, PlacedMember
from standfast.replication.placement.records import Report
from standfast.replication.takeover import MemberTraits

PartOf: TypeAlias = tuple[Assignment, frozenset[TaskId], frozenset[TaskId]]  # active tasks and copies of an instance


def mine_since(before: PartOf | None, now: PartOf, known: Mapping[TaskId, int]) -> dict[TaskId, int]:
    """Since which generation each active task of the part has been the instance's without a break.

    Of generations that were not read one after the other, the newest: a task may have been another one's in between.
    """
    valid, active, _ = now
    follows = before is not None and before[0].generation == valid.generation - 1
    kept = before[1] if before is not None and follows else frozenset()
    return {
        task_id: known.get(task_id, valid.generation) if task_id in kept else valid.generation for task_id in active
    }


def part_of(valid: Assignment, me: str) -> tuple[frozenset[TaskId], frozenset[TaskId]]:
    """The active tasks of an instance, and those of which it keeps a copy."""
    active = {task_id for task_id, name in valid.active.items() if name == me}
    standby = {task_id for task_id, names in valid.standbys.items() if me in names}
    standby |= {task_id for task_id, name in valid.warmups.items() if name == me}
    standby |= {task_id for task_id, (_, old) in valid.replacing.items() if old == me}
    return frozenset(active), frozenset(standby)


def has_stopped(report: Report | None) -> bool:
    """Whether an instance has reported that it stops."""
    return report is not None and report.stopped


def placed_member(
    name: str,
    traits: MemberTraits,
    report: Report | None,
    warmups: Mapping[TaskId, str],
    no_room_ms: int | None,
    busy: Busy,
) -> PlacedMember:
    """A live instance, as placement sees it."""
    copies: dict[TaskId, Copy] = {}
    if report is not None:
        copies.update({task_id: Copy(CopyState.STORED, lag) for task_id, lag in report.stored.items()})
        for task_id in report.lags.keys() | report.restoring:
            state = CopyState.WARMUP if warmups.get(task_id) == name else CopyState.STANDBY
            state = CopyState.RESTORING if task_id in report.restoring else state
            busy_ms = busy.of_worker(report.worker_of(task_id)) if busy.numbers else 0
            copies[task_id] = Copy(state, report.lags.get(task_id), busy_ms)
        copies.update(dict.fromkeys(report.running, Copy(CopyState.RUNNING, 0)))
    return PlacedMember(
        name,
        traits.slots,
        traits.tags.get("rack"),
        traits.tags,
        copies,
        no_room_ms=no_room_ms,
        max_tasks=traits.max_tasks,
    )
