"""The active tasks that the caller named, and the ones among them that another instance took over.

    assign, on_assign ──> wanted ──> a newer owner is seen ──> lost ── every commit is Fenced
                             │                                  │
                 on_revoke   v        assign without it         v
                          given back <──────────────────── given up: a commit of its offsets is Fenced

    assign, on_assign and reopen that name a lost task end its loss; on_revoke gives it back

Uncommitted writes go with a lost task, so their offsets must not be committed as if the writes were there, not even by
a later opening of the same task here: the loss lasts until the caller shows that it knows.

Rules of this file: pure; no task, log or thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from standfast.replication.offsets import TaskId
from standfast.store.errors import Fenced, InvalidRequest, NotReady
from standfast.store.names import few

Offsets = Mapping[tuple[str, int], int]


@dataclass(slots=True)
class Ownership:
    """The caller's assignments, and the losses among them.

    `wanted` is to be active here, `standby` was assigned so. `lost` has the reason of each loss, `given_up` of the
    losses that a later assignment did not name; `given_back` left with a revocation.
    """

    wanted: frozenset[TaskId] = frozenset()
    standby: frozenset[TaskId] = frozenset()
    lost: dict[TaskId, str] = field(default_factory=dict)
    given_up: dict[TaskId, str] = field(default_factory=dict)
    given_back: set[TaskId] = field(default_factory=set)

    def assign(self, active: Iterable[TaskId], standby: Iterable[TaskId], *, stay_lost: Iterable[TaskId] = ()) -> None:
        """Replace the assignment. `stay_lost`: tasks of `active` whose loss it does not end."""
        self.wanted, self.standby = frozenset(active), frozenset(standby)
        staying = {task: self.lost[task] for task in stay_lost}
        # Not forgotten: a caller that still has offsets of a task it dropped must get Fenced and not InvalidRequest.
        self.given_up |= self.lost
        self._named(self.wanted | self.standby)
        self.lost = staying

    def adopt(self, added: Iterable[TaskId]) -> None:
        """Add active tasks."""
        added = frozenset(added)
        self.wanted |= added
        self._named(added)

    def give_back(self, gone: Iterable[TaskId]) -> None:
        """An announced revocation: no call for these tasks is expected any more."""
        gone = frozenset(gone)
        self.wanted -= gone
        self._named(gone)
        self.given_back |= gone

    def reopen(self, task: TaskId) -> None:
        """The caller reopens a task that failed or was lost."""
        self._named({task})

    def lose(self, task: TaskId, why: str) -> None:
        """Note that another instance took the task over."""
        self.lost[task] = why

    def why_lost(self, task: TaskId) -> str | None:
        """Why a task left this instance; None if it was not taken over."""
        return self.lost.get(task, self.given_up.get(task))

    def _named(self, tasks: Iterable[TaskId]) -> None:
        for task in tasks:
            self.lost.pop(task, None)
            self.given_up.pop(task, None)
            self.given_back.discard(task)


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
    ownership: Ownership,
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
    lost = {task: why for task, why in (ownership.given_up | ownership.lost).items() if task not in again}
    due: dict[TaskId, Offsets] = {task: {} for task in sorted(running - lost.keys())}
    left_out: dict[tuple[str, int], int] = {}
    unknown: list[str] = []
    fenced = {task: why for task, why in ownership.lost.items() if task in lost}
    for task, own in sorted(offsets.items()):
        if task in lost:
            fenced[task] = lost[task]
        elif task in running:
            due[task] = own
        # Their records are processed again anyway, so skipping the offsets loses nothing.
        elif task in ownership.given_back or (task in waiting and replayed):
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
