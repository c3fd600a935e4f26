"""One simulated process of an application: it opens, polls until it is to stop, and closes.

Rules of this file: public faces of the product alone. Whatever ends the process leaves by an exception; `App.close` is
called by a clean stop alone, as by SIGTERM.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import standfast as sf
from simulator.checkers import History
from simulator.faults import Kind
from simulator.hand import APP, Hand
from simulator.plan import Plan
from simulator.programs import COUNTS, declare, stores_of
from simulator.world import Machine
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.store.names import changelog_topic

IDLE_MS = 40
SNAPSHOTS = sf.SnapshotPolicy(to="sim://world/state", every_records=60, keep=2)


class Broken(Exception):
    """What the application's code raises where a fault says so."""


class Watch(sf.Listener):
    """Gives acknowledged commits to the history."""

    def __init__(self, history: History, machine: Machine) -> None:
        self._history = history
        self._machine = machine

    def on_commit(self, task: Any, sources: Any) -> None:
        raise_once(self._machine, Kind.LISTENER)
        for at, offset in sources.items():
            self._history.commit(at.topic, at.partition, offset)


class Instance:
    """The application of one machine; each start makes an App of its own."""

    def __init__(self, machine: Machine, plan: Plan, hand: Hand, state_dir: Path, history: History) -> None:
        self.machine = machine
        self.app: sf.App | None = None
        self.stopping = False
        self._plan = plan
        self._log = hand.address
        self._owner_of = hand.owner_of
        self._state_dir = state_dir
        self._history = history

    def body(self) -> None:
        """A process, from its start to its clean end."""
        self.app = app = self._make()
        try:
            app.open(background=False)
            while not self.stopping:
                if not app.poll_once():
                    self.machine.sleep_ms(IDLE_MS)
        except Exception:
            with suppress(Exception):  # the first error says why it ends
                app.close()
            raise
        app.close()
        self.app = None

    def states(self) -> set[str]:
        """Role and state of each task that this process holds."""
        session = None if self.app is None else self.app.session
        if session is None:
            return {"not open"}
        held = session.held_tasks().values()
        return {f"{task.role} {task.state.value}" for task in held} or {"no task"}

    def behind(self) -> str:
        """A copy here that has not read its changelog to the end; "" if there is none."""
        session = None if self.app is None else self.app.session
        for task in () if session is None else session.held_tasks().values():
            if COUNTS in task.stores.specs:
                lag = session.read(COUNTS, task.id.partition, allow_stale=True).lag_records
                if lag:
                    return f"{self.machine.name}: {task.role} {task.id} is {lag} records behind"
        return ""

    def rows(self) -> dict[TopicPartition, dict[Any, Any]]:
        """Rows of each copy here, by the partition of its changelog."""
        session = None if self.app is None else self.app.session
        found = {}
        for task in () if session is None else session.held_tasks().values():
            for store in task.stores.specs:
                if store == COUNTS:
                    with task.stores.committed_view(store).all() as rows:
                        at = TopicPartition(changelog_topic(APP, store), task.id.partition)
                        found[at] = dict(rows)
        return found

    def _owns(self, partition: int) -> bool:
        """Whether this instance was the last one that opened the writer of a task of group 0."""
        session = None if self.app is None else self.app.session
        return session is not None and self._owner_of(TaskId(0, partition)) == session.instance_id

    def _make(self) -> sf.App:
        plan, machine, history = self._plan, self.machine, self._history
        who = f"{machine.process}"
        app = sf.App(
            APP,
            log=self._log,
            state_dir=self._state_dir,
            stores=stores_of(plan.program),
            guarantee=plan.guarantee,
            standby_replicas=plan.standbys,
            lease_ms=plan.lease_ms,
            commit_interval_ms=plan.commit_interval_ms,
            gate=plan.gate,
            restart=sf.FixedDelay(1_000_000, 200),
            clock=machine,
            snapshots=SNAPSHOTS if plan.snapshots else None,
            listeners=[Watch(history, machine)],
        )

        def seen(partition: int, number: int, before: int) -> None:
            history.seen(who, partition, number, before, owns=lambda: self._owns(partition))

        declare(app, plan.program, seen, partial(raise_once, machine, Kind.RAISE))
        return app


def raise_once(machine: Machine, kind: Kind) -> None:
    """Raise the exception that a fault of this kind asks for."""
    if machine.raises[kind]:
        machine.raises[kind] -= 1
        raise Broken(f"{kind.value} (simulated)")
