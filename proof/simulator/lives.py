"""The lives of tasks in a world, as listeners, the log and the product's log lines show them: scripts without times.

    claims, of a dead owner > restores: assign > running > commits > closed
    log                       listener ...

A script is one opening of a task in one process: from its first step to its close, or to the end of the process. A
series of steps that comes again at once counts once.

Rules of this file: listeners and the world hand steps in; no port is called.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import standfast as sf

SERIES_MAX = 6  # steps of a series that counts once
END = "closed"
UNNOTED = ("task_started", "task_arrived", "task_left", "task_stopped")  # beside steps of a listener
NOTED = ("reason", "kind", "why")  # what a line of the log says beside its event, without numbers and names

# Each kind of step, and how its steps begin: many worlds show all of them.
KINDS: dict[str, tuple[str, ...]] = {
    "start": ("claims, new", "claims, its own", "stands by", "restores: no-local-state", "restores: resume"),
    "loss": ("state lost: tombstones-expired", "state lost: topic-recreated", "state_lost, truncated"),
    "damage": ("state lost: corrupt", "rows_unreadable", "directory_set_aside"),
    "hand-over": ("claims, of a live owner", "claims, of a dead owner", "standby ends: promoted", "task_fenced"),
    "hold": ("task_waits_for_log", "gate shuts", "standby ends: no-room"),
    "snapshot": ("snapshot_restored", "snapshot_passed_over", "checkpoint_part_failed"),
    "refusal": ("take_over_refused", "standby_refused"),
}


class Lives:
    """The scripts of one world. A process is named with its incarnation."""

    def __init__(self) -> None:
        self.scripts: Counter[str] = Counter()
        self._open: dict[tuple[str, str], list[str]] = {}

    def line(self, who: str, record: logging.LogRecord) -> None:
        """A line of the product's log that is about a task."""
        event, task = str(getattr(record, "event", "a line")), getattr(record, "task", None)
        if task is not None and event not in UNNOTED:
            told = [str(getattr(record, name)) for name in NOTED if hasattr(record, name)]
            self.step(who, task, ", ".join([event, *told]))

    def step(self, who: str, task: object, step: str) -> None:
        """A step of a task's life in a process."""
        self._open.setdefault((who, str(task)), []).append(step)
        if step.endswith(END):
            self._keep(who, str(task))

    def claim(self, who: str, name: str, before: Any, taken: Any, *, alive: bool) -> None:
        """A process has claimed a transactional id; `before` is its last owner, which may be alive."""
        *_, group, partition = name.split("-")
        if not partition.isdigit():
            return  # the leader's
        if before is None:
            of = "new"
        elif before.member_id == taken.member_id:
            of = "its own"
        else:
            of = "of a live owner" if alive else "of a dead owner"
        self.step(who, f"{group}_{partition}", f"claims, {of}")

    def end(self, who: str, step: str) -> None:
        """A process has ended, and with it the lives in it."""
        for process, task in list(self._open):
            if process == who:
                self.step(who, task, step)
                self._keep(who, task)

    def _keep(self, who: str, task: str) -> None:
        if steps := self._open.pop((who, task), None):
            self.scripts[" > ".join(once(steps))] += 1


class LifeListener(sf.Listener):
    """Tells the steps that one process shows."""

    def __init__(self, lives: Lives, who: str, session: Callable[[], Any]) -> None:
        self._lives = lives
        self._who = who
        self._session = session
        self._ready: bool | None = None

    def look(self) -> None:
        """Note whether the gate has opened or shut since the last look, for the tasks that run here."""
        session = self._session()
        if session is None:
            return
        ready, self._ready = self._ready, session.ready
        if ready != self._ready:
            for task in session.held_tasks().values():
                if task.role == "active" and task.state.value == "running":
                    self._step(task.id, "gate opens" if self._ready else "gate shuts")

    def on_restore_start(self, task: Any, store: str, changelog: Any, start: int, end: int, reason: str) -> None:
        self._step(task, f"restores: {reason}, {_part(start, end)}")

    def on_batch_restored(self, task: Any, store: str, changelog: Any, position: int, records: int) -> None:
        self._step(task, "reads")

    def on_restore_end(self, task: Any, store: str, changelog: Any, records: int) -> None:
        self._step(task, "whole")

    def on_restore_suspended(self, task: Any, reason: str) -> None:
        self._step(task, f"restore ends: {reason}")

    def on_standby_start(self, task: Any, store: str, changelog: Any, start: int) -> None:
        self._step(task, "stands by")

    def on_standby_batch(self, task: Any, store: str, changelog: Any, position: int, records: int, end: int) -> None:
        self._step(task, "follows")

    def on_standby_suspended(self, task: Any, reason: str) -> None:
        self._step(task, f"standby ends: {reason}")

    def on_commit(self, task: Any, sources: Any) -> None:
        self.look()
        self._step(task, "commits")

    def on_state_changed(self, task: Any, role: str, state: str) -> None:
        self._step(task, f"{role} {state}")

    def on_state_lost(self, task: Any, reason: str) -> None:
        self._step(task, f"state lost: {reason}")

    def _step(self, task: Any, step: str) -> None:
        self._lives.step(self._who, task, step)


def _part(start: int, end: int) -> str:
    return "nothing" if start >= end else "the rest" if start else "from 0"


def kinds_table(scripts: Collection[str]) -> str:
    """How many scripts show each kind of step, as text."""
    counts = {step: sum(step in script for script in scripts) for steps in KINDS.values() for step in steps}
    return "\n".join(
        f"{kind:10}" + ", ".join(f"{step.removeprefix('restores: ')} {counts[step]}" for step in steps)
        for kind, steps in KINDS.items()
    )


def unseen(scripts: Collection[str]) -> list[str]:
    """The steps of each kind that no script shows."""
    return [step for steps in KINDS.values() for step in steps if not any(step in script for script in scripts)]


def once(steps: list[str]) -> list[str]:
    """The steps without repetitions: of `a b a b c` there is left `a b c`."""
    found: list[str] = []
    for step in steps:
        found.append(step)
        lengths = range(1, SERIES_MAX + 1)
        while length := next((one for one in lengths if found[-one:] == found[-2 * one : -one]), 0):
            del found[-length:]
    return found
