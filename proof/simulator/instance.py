"""One simulated process of an application: it opens, polls until it is to stop, and closes.

Rules of this file: public faces of the product alone. Whatever ends the process leaves by an exception; `App.close` is
called by a clean stop alone, as by SIGTERM.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import standfast as sf
from simulator.checkers import History
from simulator.faults import Kind
from simulator.hand import APP
from simulator.lives import LifeListener
from simulator.log import SimLog
from simulator.plan import Plan
from simulator.programs import declare, stores_of
from simulator.witness import Witness, rows_of, tasks_of
from simulator.world import Machine, World
from standfast.replication.offsets import TopicPartition
from standfast.stream.task.states import TaskState

SNAPSHOTS = sf.SnapshotPolicy(to="sim://world/state", every_records=60, keep=2)
CHECKPOINTS = sf.SnapshotPolicy(to="sim://world/state", keep=2, checkpoint_every_ms=3_000, checkpoint_pause_ms=2_000)


LOG_EMPTY, HISTORY_MISSING = "log-empty", "history-missing"
CONSENT = (LOG_EMPTY, HISTORY_MISSING)  # refused until a person accepts it


class Broken(Exception):
    """What the application's code raises where a fault says so."""


def raise_once(machine: Machine, kind: Kind) -> None:
    """Raise the exception that a fault of this kind asks for."""
    if machine.raises[kind]:
        machine.raises[kind] -= 1
        raise Broken(f"{kind.value} (simulated)")


class Failing(sf.Listener):
    """Raises an exception where a fault says so."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def on_commit(self, task: Any, sources: Any) -> None:
        raise_once(self._machine, Kind.LISTENER)


class Instance:
    """The application of one machine; each start makes an App of its own."""

    def __init__(
        self, machine: Machine, plan: Plan, world: World, log: SimLog, state_dir: Path, history: History
    ) -> None:
        self.machine = machine
        self.app: Any = None  # the application, or what else has its session
        self.stopping = False
        self.changed = False  # whether the application here is a changed one
        self.replaces = False  # whether it takes over from instances of another program, at its next start
        self._lives: Any = None
        self.accepts: Collection[str] = ()  # losses that a person has accepted, for its next start
        self._plan = plan
        self._world = world
        self._log = log
        self._state_dir = state_dir
        self._history = history

    def body(self) -> None:
        """A process, from its start to its clean end."""
        self.app = app = self._make()
        try:
            app.open(background=False)
            while not self.stopping:
                done = app.poll_once()
                self._lives.look()
                if not done:
                    self.machine.sleep_ms(self._plan.idle_ms)
        except Exception:
            with suppress(Exception):  # the first error says why it ends
                app.close()
            raise
        app.close()
        self.app = None

    def is_open(self) -> bool:
        """Whether its process runs, and is not to end."""
        return self.machine.process is not None and self.app is not None and self.app.session is not None

    def states(self) -> set[str]:
        """Role and state of each task that this process holds."""
        if self.app is None or self.app.session is None:
            return {"not open"}
        return set(self.copies()) or {"no task"}

    def copies(self) -> list[str]:
        """Role and state of each task that this process holds, however often."""
        return [f"{task.role} {task.state.value}" for task in tasks_of(self.app).values()]

    def processed(self) -> dict[TopicPartition, int]:
        """The next offset of each input that a task processes here."""
        tasks = [one for one in tasks_of(self.app).values() if one.state is TaskState.RUNNING]
        return {at: offset for task in tasks for at, offset in task.source_offsets().items()}

    def behind(self) -> str:
        """A copy here that has not read its changelog to the end; "" if there is none."""
        session = None if self.app is None else self.app.session
        if session is None:
            return ""
        for task in session.held_tasks().values():
            if task.error is not None:
                return f"{self.machine.name}: {task.role} {task.id} is closed: {task.error}"
            for store in task.stores.specs:
                try:
                    lag = session.read(store, task.id.partition, allow_stale=True).lag_records
                except sf.Closed:
                    return f"{self.machine.name}: {task.role} {task.id} is being closed"
                if lag:
                    return f"{self.machine.name}: {task.role} {task.id} is {lag} records behind in {store}"
        return ""

    def rows(self) -> Iterator[tuple[str, str, TopicPartition, dict[Any, Any]]]:
        """Each copy here: of a task, a store, the partition of its changelog, and the rows."""
        for task in tasks_of(self.app).values():
            if task.stores.closed:
                continue  # a failed one
            for store, at in task.applier.changelogs.items():
                yield f"{self.machine.name}, {task.role} {task.id}", store, at, rows_of(task, store)

    def owns(self, member: str, name: str) -> bool:
        """Whether this process is that member, and processes the task of a transactional id."""
        process = self.machine.process
        if self.app is None or self.app.session is None or process is None or process.ended or process.done:
            return False
        return self.app.session.instance_id == member and any(
            name == f"{APP}-{task.id.group}-{task.id.partition}" and task.looped and task.error is None
            for task in tasks_of(self.app).values()
        )

    def end_lease(self, log: SimLog) -> None:
        """The word of the lease process, true or false, that the process has ended: its member is removed at once."""
        session = None if self.app is None else self.app.session
        member = "" if session is None else session.instance_id
        for group in log.groups.values():
            if member in group.leases:
                group.remove(member, int(self._world.now_ms))
                log.version += 1

    def refused(self) -> dict[Any, str]:
        """Tasks that wait for a person, since their rows may be the last copy, or the log lost some, and the reason."""
        lost = {task.id: task.error for task in tasks_of(self.app).values() if isinstance(task.error, sf.StateLost)}
        return {task: error.reason for task, error in lost.items() if error.reason in CONSENT}

    def accept(self, losses: Collection[str], where: str) -> None:
        """A person accepts these losses, for the next start."""
        self._world.event(f"a person accepts losses of {self.machine.name} in {where}")
        self.accepts = losses

    def rebalance(self, *, expelled: bool) -> None:
        """Let the group of its own consumer begin a new generation, without this instance if it is `expelled`."""

    def _listener(self) -> LifeListener:
        shown = self._world.lives, repr(self.machine.process)
        self._lives = listener = LifeListener(*shown, lambda: self.app and self.app.session)
        return listener

    def _make(self) -> sf.App:
        plan, machine = self._plan, self.machine
        accepts, replaces, self.accepts, self.replaces = self.accepts, self.replaces, (), False
        witness = Witness(self._world, machine, plan, self._log, self._history)
        app = sf.App(
            APP,
            log=f"sim://{self._log.name}?style={self._log.style}",
            state_dir=self._state_dir,
            stores=stores_of(plan.program, changed=self.changed),
            guarantee=plan.guarantee,
            standby_replicas=plan.standbys,
            lease_ms=plan.lease_ms,
            commit_interval_ms=plan.commit_interval_ms,
            gate=plan.gate,
            restart=sf.FixedDelay(1_000_000, 200),
            clock=machine,
            snapshots=None if not plan.snapshots else CHECKPOINTS if plan.checkpoints else SNAPSHOTS,
            accept_empty_log=LOG_EMPTY in accepts,
            accept_missing_history=HISTORY_MISSING in accepts,
            replace=replaces,
            listeners=[witness, self._listener(), Failing(machine)],
        )

        def hook() -> None:
            witness.processing()
            raise_once(machine, Kind.RAISE)

        witness.app = app
        declare(app, plan.program, witness.seen, hook, changed=self.changed)
        return app
