"""The plan of a session's commit: the tasks that it commits with the given offsets, and the losses that it raises.

Rules of this file: pure; no task, log or thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from standfast.replication.offsets import TaskId
from standfast.store.errors import Fenced, InvalidRequest, NotReady
from standfast.store.names import few
from standfast.stream.tasks.life import Lives

Offsets = Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """The steps of one commit of a session, in this order: the commits of `due`, then `fenced` is raised, if any.

    `left_out` are offsets of partitions that were revoked.
    """

    due: Mapping[TaskId, Offsets]
    left_out: Offsets
    fenced: Fenced | None


def plan_commit(
    offsets: Mapping[TaskId, Offsets],
    running: Iterable[TaskId],
    waiting: Mapping[TaskId, str],
    lives: Lives,
    *,
    again: Iterable[TaskId] = (),
    replayed: bool = False,
) -> CommitPlan:
    """The commit of source offsets, given by the task that each belongs to.

    `running` are the tasks to commit with or without offsets, `waiting` those that are held and cannot commit now, with
    their state. `again`: running tasks whose records are delivered again since they were opened; a loss is over
    for them. `replayed`: the records of a waiting task will be delivered again, so that its offsets may be skipped.
    Raises InvalidRequest for offsets of tasks that are not this instance's, NotReady for one that restores; nothing
    is committed then.
    """
    running, again = frozenset(running), frozenset(again)
    present = lives.lost
    lost = {task: why for task, why in (lives.given_up | present).items() if task not in again}
    due: dict[TaskId, Offsets] = {task: {} for task in sorted(running - lost.keys())}
    left_out: dict[tuple[str, int], int] = {}
    unknown: list[str] = []
    fenced = {task: why for task, why in present.items() if task in lost}
    for task, own in sorted(offsets.items()):
        if task in lost:
            fenced[task] = lost[task]
        elif task in running:
            due[task] = own
        # Their records are processed again anyway, so skipping the offsets loses nothing.
        elif lives.is_given_back(task) or (task in waiting and replayed):
            left_out.update(own)
        elif task in waiting:
            raise NotReady(
                f"task {task} is {waiting[task]} here, so {_told(own)} cannot be committed: {_fix(waiting[task])}"
            )
        else:
            unknown.append(f"{_told(own)} of task {task}")
    if unknown:
        held = few(sorted(running | waiting.keys())) or "none"
        raise InvalidRequest(
            f"{few(unknown, '; ')} cannot be committed, because the task is not assigned to this instance (it holds: "
            f"{held}): assign it, or leave its offsets out"
        )
    return CommitPlan(due, left_out, _fenced(fenced))


def lost_task(task: TaskId, why: str) -> Fenced:
    """The error for a caller of a task that was taken over."""
    return Fenced(
        f"task {task} was taken over by a newer owner, and uncommitted changes here are gone ({why}): "
        "give it up, or assign or reopen it and go on from its source_offsets()"
    )


def _fenced(lost: Mapping[TaskId, str]) -> Fenced | None:
    if not lost:
        return None
    if len(lost) == 1:
        return lost_task(*next(iter(lost.items())))
    tasks = few(sorted(lost))
    return Fenced(
        f"tasks {tasks} were taken over by newer owners, and uncommitted changes here are gone "
        f"({few((lost[task] for task in sorted(lost)), '; ')}): give them up, or assign or reopen them and go on from "
        "their source_offsets()"
    )


def _told(own: Offsets) -> str:
    return "source offsets of " + few(f"{topic}-{partition}" for topic, partition in sorted(own, key=str))


def _fix(state: str) -> str:
    if state == "standby":
        return "commit it at the active instance"
    return "wait for the restore gate with wait_ready(), then go on from source_offsets()"
