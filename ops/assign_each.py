"""Assigning tasks to a session so that one that cannot be opened keeps no other from being opened.

Rules of this file: what the log does not answer is raised, for then nothing is known of any task; every other refusal
(another definition, state that may be the last copy) is that one task's own, and comes back by its partition.
"""

from __future__ import annotations

from collections.abc import Iterable

from standfast.store.errors import StandfastError, Unavailable
from standfast.stream.session import Session


def assign_each(session: Session, active: Iterable[int], standby: Iterable[int]) -> dict[int, StandfastError]:
    """Make exactly these the session's tasks, but for those that are refused, and why. Raises Unavailable."""
    wanted = {"active": set(active), "standby": set(standby)}
    try:
        session.assign(**wanted)
        return {}
    except Unavailable:
        raise
    except StandfastError:
        pass  # of which one it is shows below
    refused: dict[int, StandfastError] = {}
    held = {role: wanted[role] & _held(session, role) for role in wanted}
    for role, partitions in wanted.items():
        for partition in sorted(partitions - held[role]):
            now = {one: set(tasks) for one, tasks in held.items()}
            now[role].add(partition)
            try:
                session.assign(**now)
            except Unavailable:
                raise
            except StandfastError as error:
                refused[partition] = error
            else:
                held = now
    session.assign(**held)
    return refused


def _held(session: Session, role: str) -> set[int]:
    return {task_id.partition for task_id, task in session.all_tasks().items() if task.role == role}
