"""The restore gate: decides which active tasks of this instance may process records.

                 assigned              restored
      (absent) ----------> RESTORING ----------> RESTORED
                             |  ^ assigned          |
                      failed v  |                   | failed
                            FAILED <----------------+          revoked: back to (absent) from anywhere

    policy "all"    a task is open while *every* assigned task is RESTORED; a newly assigned one shuts all of them again
    policy "task"   a task is open while it is RESTORED itself

    a process that has a part of the instance's tasks, with policy "all":
        hold      no task is open: the instance has tasks, perhaps in other processes, that are not restored yet
        release   all tasks of the assignment were restored once: a task that comes later waits by itself

Rules of this file: pure; no store, thread or clock. The gate knows active tasks only. An illegal event raises
InternalError and changes nothing, also when it names several tasks. The shell pauses and resumes the sources that the
answer names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Literal, get_args

from standfast.replication.offsets import TaskId
from standfast.store.errors import InternalError, InvalidRequest

Policy = Literal["all", "task"]


class GateState(Enum):
    """State of an assigned task."""

    RESTORING = "restoring"
    RESTORED = "restored"
    FAILED = "failed"


# Event -> state before (None = not assigned) -> state after. Absent pairs are illegal.
TABLE: dict[str, dict[GateState | None, GateState | None]] = {
    "assigned": {None: GateState.RESTORING, GateState.FAILED: GateState.RESTORING},
    "restored": {GateState.RESTORING: GateState.RESTORED},
    "failed": {GateState.RESTORING: GateState.FAILED, GateState.RESTORED: GateState.FAILED},
    "revoked": {GateState.RESTORING: None, GateState.RESTORED: None, GateState.FAILED: None},
}


@dataclass(frozen=True, slots=True)
class Open:
    """`tasks` are newly open: resume their sources. Empty if no task is missing and none had to be opened."""

    tasks: frozenset[TaskId]


@dataclass(frozen=True, slots=True)
class Shut:
    """No task is newly open: `missing` (in order) are not restored.

    `shut` were open until now and are still assigned: pause their sources.
    """

    missing: tuple[TaskId, ...]
    shut: frozenset[TaskId] = frozenset()


@dataclass(frozen=True, slots=True)
class GateStatistics:
    """`waits` is how often a complete gate became incomplete, `openings` how many tasks it opened."""

    policy: Policy
    assigned: int
    missing: int
    open: int
    waits: int
    openings: int


class Gate:
    """The gate of one instance. Raises InvalidRequest for an unknown policy."""

    def __init__(self, policy: Policy = "all") -> None:
        if policy not in get_args(Policy):
            raise InvalidRequest(f'gate policy {policy!r} is unknown: use "all" or "task"')
        self._policy: Policy = policy
        self._states: dict[TaskId, GateState] = {}
        self._failures: dict[TaskId, str] = {}
        self._open: frozenset[TaskId] = frozenset()
        self._held: bool | None = None  # None: all of the instance's tasks are here
        self._waits = self._openings = 0

    def assigned(self, tasks: Iterable[TaskId]) -> Open | Shut:
        """These active tasks were assigned to this instance, or a failed one is tried again."""
        return self._on("assigned", tasks)

    def restored(self, task: TaskId) -> Open | Shut:
        """Every store of this task reached the end of its changelog."""
        return self._on("restored", (task,))

    def failed(self, task: TaskId, why: str) -> Open | Shut:
        """The task's restore failed or it lost its state: it counts as missing until assigned again or revoked."""
        outcome = self._on("failed", (task,))
        # After the transition, which removes the note of an earlier failure.
        self._failures[task] = why
        return outcome

    def revoked(self, tasks: Iterable[TaskId]) -> Open | Shut:
        """These tasks are no longer assigned to this instance."""
        return self._on("revoked", tasks)

    def hold(self) -> None:
        """This gate is a part of the instance's, which waits for tasks here or elsewhere. From any thread."""
        self._held = True

    def release(self) -> None:
        """The instance's gate has opened: from now on each task waits by itself. From any thread."""
        self._held = False

    @property
    def is_held(self) -> bool:
        """Whether the instance's gate, of which this one is a part, waits."""
        return bool(self._held) and self._policy == "all"

    def __contains__(self, task: TaskId) -> bool:
        """Whether the task is assigned."""
        return task in self._states

    def is_open(self, task: TaskId) -> bool:
        """Whether the task may process records; False for one that is not assigned."""
        return task in self._open and not self.is_held

    def missing(self) -> tuple[TaskId, ...]:
        """Assigned tasks that are not restored, in order."""
        return tuple(sorted(task for task, state in self._states.items() if state is not GateState.RESTORED))

    def failures(self) -> dict[TaskId, str]:
        """Failed tasks and why."""
        return dict(self._failures)

    def statistics(self) -> GateStatistics:
        """An immutable snapshot."""
        return GateStatistics(
            policy=self._policy,
            assigned=len(self._states),
            missing=len(self.missing()),
            open=0 if self.is_held else len(self._open),
            waits=self._waits,
            openings=self._openings,
        )

    def _on(self, event: str, tasks: Iterable[TaskId]) -> Open | Shut:
        # All transitions first, then the changes: an illegal one among several must change nothing.
        after = {task: self._next(event, task) for task in tasks}
        was_complete = not self.missing()
        for task, state in after.items():
            self._failures.pop(task, None)
            if state is None:
                del self._states[task]
            else:
                self._states[task] = state
        missing = self.missing()
        self._waits += was_complete and bool(missing)
        before, self._open = self._open, self._opened(missing)
        # A revoked task has no sources here any more, so there is nothing to pause.
        newly, shut = self._open - before, (before - self._open) & self._states.keys()
        self._openings += len(newly)
        return Open(newly) if newly or not missing else Shut(missing, frozenset(shut))

    def _opened(self, missing: tuple[TaskId, ...]) -> frozenset[TaskId]:
        # Of a part each task opens by itself, once the part is released.
        if self._policy == "all" and missing and self._held is None:
            return frozenset()
        return frozenset(task for task, state in self._states.items() if state is GateState.RESTORED)

    def _next(self, event: str, task: TaskId) -> GateState | None:
        state = self._states.get(task)
        if state in TABLE[event]:
            return TABLE[event][state]
        raise InternalError(f"gate: {event} task {task} is illegal while it is {state.value if state else 'absent'}")
