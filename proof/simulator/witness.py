"""What a simulated process does with its tasks, as its listener and its program see it, for the judges of the world.

    record ──> row, gate    state "restoring", "standby" ──> rows as opened    state "running" ──> whole?
    commit ──> in the log?  batch of a standby ──> below its limit?

Rules of this file: it reads the log's data, and makes no call of a port: a judged world has the same trace as another
one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import standfast as sf
from simulator.checkers import Change, History
from simulator.hand import APP
from simulator.log import SimLog
from simulator.plan import Plan
from simulator.world import Machine, World
from standfast.replication.offsets import TopicPartition
from standfast.store.errors import Closed


class Witness(sf.Listener):
    """The witness of one process."""

    def __init__(self, world: World, machine: Machine, plan: Plan, log: SimLog, history: History) -> None:
        self.app: Any = None  # the application, or what else has its session
        self._world = world
        self._who = f"{machine.process}"
        self._machine = machine
        self._plan = plan
        self._log = log
        self._history = history

    def seen(self, partition: int, number: int, before: int) -> None:
        """As `History.seen`."""
        self._history.seen(self._who, partition, number, before, owns=lambda: self._owns(partition))

    def _owns(self, partition: int) -> bool:
        """Whether this instance was the last one that opened the writer of a task of group 0."""
        session = None if self.app is None else self.app.session
        owner = owner_of(self._log, f"{APP}-0-{partition}")
        return session is not None and owner is not None and owner.member_id == session.instance_id

    def processing(self) -> None:
        """A record is about to be processed."""
        if self._plan.gate == "all":
            held = tasks_of(self.app)
            late = [str(one.id) for one in held.values() if one.role == "active" and one.state.value == "restoring"]
            if late:
                self._history.alarm("gate", f"{self._who} processes a record while {late} restore")

    def on_commit(self, task: Any, sources: Any) -> None:
        for at, offset in sources.items():
            known = committed_in(self._log, at)
            if known < offset and at.partition not in self._history.unfenced:
                self._history.alarm("commits", f"{self._who}: {at} counts as committed at {offset}, in the log {known}")
            self._history.commit(at.topic, at.partition, offset)
        self._note(task)

    def on_batch_restored(self, task: Any, store: str, changelog: Any, position: int, records: int) -> None:
        self._note(task)

    def on_standby_batch(self, task: Any, store: str, changelog: Any, position: int, records: int, end: int) -> None:
        self._note(task)
        found = tasks_of(self.app).get(task)
        if found is not None and changelog in found.applier.limited:
            limit = committed_in(self._log, changelog)
            if position > limit:
                text = f"standby {task} has {changelog} up to {position}, committed is {limit}"
                self._history.alarm("limits", f"{self._who}: {text}")

    def on_state_changed(self, task: Any, role: str, state: str) -> None:
        judge = {"restoring": self._opened, "standby": self._opened, "running": self._runs}.get(state)
        found = tasks_of(self.app).get(task)
        if judge is not None and found is not None:
            judge(found)

    def _note(self, task: Any) -> None:
        """Keep what the disk has now."""
        found = tasks_of(self.app).get(task)
        for store, at in {} if found is None else found.stores.cut.positions.items():
            self._history.position(self._machine.number, str(task), store, at.offset)

    def _opened(self, task: Any) -> None:
        for store, changelog in task.applier.changelogs.items():
            stored = task.applier.position(changelog)
            offset = 0 if stored is None else stored.offset
            self._history.opened(self._machine.number, self._who, str(task.id), store, offset)
            compacted = self._log.partition(changelog).compacted > offset  # older rows below it may be gone
            if compacted or task.stores.engine.damaged:
                continue
            who = f"{self._who}, {task.role} {task.id} as opened at {offset}"
            with self._world.look():
                rows = rows_of(task, store)
            found = changes(self._log, changelog, ended=True)
            for one in self._history.folded(who, store, rows, changelog, found, offset):
                self._history.alarm(*one)

    def _runs(self, task: Any) -> None:
        """A task that is this process's own is whole as it begins to run."""
        owner = owner_of(self._log, f"{APP}-{task.id.group}-{task.id.partition}")
        if owner is None or owner.epoch != task.epoch:
            return  # a newer owner writes to its changelog, and the log refuses what this one does
        if self._log.kafka and not self._history.exact:
            return  # between the look at the owner and an append without a transaction, that owner may lose the task
        for changelog in task.applier.changelogs.values():
            stored = task.applier.position(changelog)
            offset = 0 if stored is None else stored.offset
            if changelog in task.applier.limited:
                end = committed_in(self._log, changelog)
            else:
                end = max((at + 1 for at in offsets(self._log, changelog)), default=0)
            if offset < end:
                self._history.alarm("gate", f"{self._who}: {task.id} runs at {offset} of {changelog}, below {end}")
        for at in task.sources or ():
            self._history.not_back(
                f"{self._who}, {task.id}", at.topic, at.partition, {**task.stream_times, **task.progress}
            )


def tasks_of(app: Any) -> Mapping[Any, Any]:
    """The tasks that a process holds."""
    session = None if app is None else app.session
    with suppress(Closed):
        return {} if session is None else session.held_tasks()
    return {}


def rows_of(task: Any, store: str) -> dict[Any, Any]:
    """The rows of a store that are on disk."""
    with task.stores.committed_view(store).all() as rows:
        return dict(rows)


def offsets(log: SimLog, at: TopicPartition, *, ended: bool = False) -> list[int]:
    """Offsets of the committed records of a partition.

    `ended`: with those of committed transactions whose ends have not come to the partition, so that their writer alone
    knows of them.
    """
    found = log.partition(at)
    late = {one.number for one in log.transactions if ended and one.commits}
    late |= {number for _, number, _, _, commits in log.hanging if ended and commits}
    still = (first for number, first in found.open.items() if number not in late)
    return found.offsets[: found.index(min(still, default=found.end))]


def changes(log: SimLog, at: TopicPartition, begin: int = 0, *, ended: bool = False) -> Iterator[Change]:
    """The committed records of a changelog from an offset on; `ended` as in `offsets`."""
    found = log.partition(at)
    first = found.index(begin)
    for offset, key, value in zip(
        offsets(log, at, ended=ended)[first:], found.keys[first:], found.values[first:], strict=False
    ):
        assert key is not None, "a changelog's record has a key"
        yield offset, key, value


def committed_in(log: SimLog, at: TopicPartition) -> int:
    """The offset that the log will give for the application, once it has written the ends of all transactions."""
    found = log.group(APP).committed.get(at)
    known = [0 if found is None else found.offset]
    for one in log.transactions:
        if one.commits and one.offsets is not None and at in one.offsets[1]:
            known.append(one.offsets[1][at].offset)
    return max(known)


def owner_of(log: SimLog, name: str) -> Any:
    """The owner of a transactional id."""
    return log.group(APP).owners.get(name) if log.kafka else log.writers.get(name)
