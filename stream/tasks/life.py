"""The lives of an instance's tasks, beside the open tasks: what each is to be here, its loss, the next attempt.

    assign, on_assign ──> wanted ──> a newer owner is seen ──> lost ── every commit is Fenced
                             │                                  │
                 on_revoke   v        assign without it         v
                          given back <──────────────────── given up: a commit of its offsets is Fenced

    an opening fails ──> attempt, later ──> of a task that was open here, the instance makes it
                                        └─> else the caller, the group or the leader, and not before it is due

    leaves in order ──> given away: others may open it ──> closed here: since then it is left

assign, on_assign and reopen that name a lost task end its loss; on_revoke gives it back. Uncommitted writes go with a
lost task, so their offsets must not be committed as if the writes were there, not even by a later opening of the same
task here: the loss lasts until the caller shows that it knows.

Rules of this file: pure; no task, log, clock or thread. The session's lock guards changes, but for the failures and the
next attempt of a failed task, which its loop notes. Any thread may read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from standfast.replication.offsets import TaskId
from standfast.replication.pauses import Left
from standfast.store.task.commit_record import Unwritten
from standfast.stream.loss import Loss
from standfast.stream.restart import RestartHistory


class Again(NamedTuple):
    """The instance itself opens a task: the reason of its restore, and its stores that are known to be lost."""

    reason: str
    loss: Loss = Loss()


class Attempt(NamedTuple):
    """The next opening of a task: not before `due_ms`. `active`: it is to be active here; `again` None: others open it.

    `soon`: the log did not answer, and is asked again as soon as it may.
    """

    due_ms: int
    why: str
    active: bool
    again: Again | None = None
    soon: bool = False


@dataclass(slots=True)
class Life:
    """One task. `lost` is why a newer owner has it; `given_up`: a later assignment did not name it."""

    wanted: bool = False  # active here, as the caller said
    standby: bool = False  # a standby here, as the caller said
    lost: str | None = None
    given_up: bool = False
    given_back: bool = False  # it left with a revocation
    attempt: Attempt | None = None
    failures: RestartHistory | None = None  # of its processing, once it has failed here
    # Of a closed task that comes again: the log has the commit of these rows, and no directory has.
    unwritten: Unwritten | None = None
    left: Left | None = None  # it ran here and was given up in order
    given: bool = False  # likewise, and it is still open here
    idle_since_ms: int | None = None  # it is wanted here, and its owner is alive and does not run it
    opening: int = 0  # in a worker process, the number of its last opening here, as the supervisor counts them

    def named(self) -> None:
        """The caller names the task: it knows of a loss."""
        self.lost, self.given_up, self.given_back = None, False, False


class Lives:
    """See the head of this file."""

    def __init__(self) -> None:
        self._of: dict[TaskId, Life] = {}

    def __getitem__(self, task: TaskId) -> Life:
        found = self._of.get(task)
        if found is None:
            found = self._of[task] = Life()
        return found

    def items(self) -> Collection[tuple[TaskId, Life]]:
        """All tasks that were ever known here; any thread may ask."""
        return self._of.copy().items()

    # --- assignment and losses ---

    @property
    def wanted(self) -> frozenset[TaskId]:
        """The tasks that are to be active here."""
        return frozenset(task for task, one in self.items() if one.wanted)

    @property
    def lost(self) -> dict[TaskId, str]:
        """The tasks of the present assignment that another instance took over, and the reasons."""
        return {task: one.lost for task, one in self.items() if one.lost is not None and not one.given_up}

    @property
    def given_up(self) -> dict[TaskId, str]:
        """Losses that a later assignment did not name."""
        return {task: one.lost for task, one in self.items() if one.lost is not None and one.given_up}

    def assign(self, active: Iterable[TaskId], standby: Iterable[TaskId], *, stay_lost: Iterable[TaskId] = ()) -> None:
        """Replace the assignment. `stay_lost`: tasks of `active` whose loss it does not end."""
        wanted, standbys, staying = frozenset(active), frozenset(standby), frozenset(stay_lost)
        for task in wanted | standbys:
            one = self[task]
            loss = one.lost if task in staying else None
            one.named()
            one.lost = loss
        for task, one in self.items():
            one.wanted, one.standby = task in wanted, task in standbys
            # Not forgotten: a caller with offsets of a task that it dropped must get Fenced and not InvalidRequest.
            one.given_up = one.lost is not None and task not in staying

    def adopt(self, added: Iterable[TaskId]) -> None:
        """Add active tasks."""
        for task in added:
            self[task].named()
            self[task].wanted = True

    def give_back(self, gone: Iterable[TaskId]) -> None:
        """An announced revocation: no call for these tasks is expected any more."""
        for task in gone:
            one = self[task]
            one.named()
            one.wanted, one.given_back, one.unwritten, one.attempt = False, True, None, None

    def lose(self, task: TaskId, why: str) -> None:
        """Note that another instance took the task over."""
        one = self[task]
        one.lost, one.given_up, one.unwritten, one.attempt = why, False, None, None

    def why_lost(self, task: TaskId) -> str | None:
        """Why a task left this instance; None if it was not taken over."""
        found = self._of.get(task)
        return None if found is None else found.lost

    def is_given_back(self, task: TaskId) -> bool:
        """Whether a task left with a revocation."""
        found = self._of.get(task)  # a task that was never here gets no life by being asked for
        return found is not None and found.given_back

    # --- attempts ---

    def drop(self, task: TaskId) -> None:
        """The task is open, or not this instance's: there is no further attempt."""
        if task in self._of:
            self._of[task].attempt = None

    def keep(self, active: Collection[TaskId], standby: Collection[TaskId] | None = None) -> None:
        """Forget the attempts at tasks that are not to come here any more; None: whatever their standbys."""
        for task, one in self.items():
            if one.attempt is not None and task not in active:
                stays = not one.attempt.active if standby is None else task in standby
                one.attempt = one.attempt if stays else None

    def holds_back(self, task: TaskId, now_ms: int) -> bool:
        """Whether the next attempt at a task is not due yet."""
        found = self._of.get(task)
        return found is not None and found.attempt is not None and now_ms < found.attempt.due_ms

    def has_next(self, task: TaskId) -> bool:
        """Whether a further attempt at a task is noted."""
        found = self._of.get(task)
        return found is not None and found.attempt is not None

    def due(self, now_ms: int) -> list[tuple[TaskId, Attempt, Again]]:
        """The tasks that the instance is to open now, or again."""
        found = ((task, one.attempt) for task, one in self.items())
        due = [(task, at, at.again) for task, at in found if at and at.again is not None and at.due_ms <= now_ms]
        return sorted(due, key=lambda one: one[0])

    def awaited(self, *, active: bool = False) -> dict[TaskId, str]:
        """The tasks that are opened later, and why not now; `active`: those that are to be active here alone."""
        found = ((task, one.attempt) for task, one in self.items())
        return {task: at.why for task, at in found if at is not None and not at.soon and (at.active or not active)}

    def rests_until(self, at_ms: int) -> bool:
        """Whether the instance is to open no task before that time."""
        attempts = (one.attempt for _, one in self.items())
        return not any(at is not None and at.again is not None and at.due_ms <= at_ms for at in attempts)

    # --- tasks that leave in order ---

    @property
    def left(self) -> dict[TaskId, Left]:
        """The tasks that ran here and were given up in order, the last one at the end."""
        found = [(task, one.left) for task, one in self.items() if one.left is not None]
        return dict(sorted(found, key=lambda one: one[1]))
