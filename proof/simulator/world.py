"""A world: machines with a clock, a disk and a line to the log, the processes on them, and the faults that they meet.

    Machine ── process (an actor of the scheduler; ended and started again) ── calls ──> Line ──> log, disk, storage
                                                                                  └── faults of this machine

Rules of this file: every call of a port of a process passes through `Line.run` or `Line.wait`. A call without a process
is the world's own hand, and meets no fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from simulator.calls import ProcessEnded
from simulator.draws import Draws
from simulator.faults import PROCESS_ENDS, Fault, Kind, family_of
from simulator.lives import Lives
from simulator.scheduler import Actor, Scheduler
from standfast.store.errors import Unavailable

T = TypeVar("T")
START_MS = 1_356_998_400_000  # 2013-01-01, as the records of the tests
LOG_CALLS = ("log.", "group.", "admin.")
# Calls that change the log: an answer of theirs may be lost after the effect. One that reads has no effect without it.
CHANGES = frozenset(
    {
        *("log.append", "log.begin", "log.transact", "log.commit", "log.abort", "log.open_writer", "log.claim"),
        *("group.join", "group.heartbeat", "group.leave", "group.note", "admin.create_topic"),
        *("group.consumer_join", "group.consumer_leave"),
    }
)
LATENCY_MS = 6.0  # of a call to the log at most
TRAVELS = 0.3  # of the calls: the others take no time, and no other process runs in them
SLOW_MS = 400.0


class Machine:
    """One instance's machine."""

    def __init__(self, number: int, scheduler: Scheduler) -> None:
        self.number = number
        self.name = f"instance {number}"
        self.process: Actor | None = None
        self.wall_offset_ms = 0
        self.cut_until_ms = self.slow_until_ms = -1.0
        self.stands = False  # its process is stopped, as by SIGSTOP
        self.waiting: list[Fault] = []  # faults that wait for their place
        self.looked_ms = 0  # when a process of it last saw who is alive
        self.raises: Counter[Kind] = Counter()  # exceptions that the application's code and listeners are to raise
        self.calls: Counter[str] = Counter()  # by name, of all its processes
        self._scheduler = scheduler

    # As a Clock of the product.

    def wall_ms(self) -> int:
        """Milliseconds since the epoch, by this machine."""
        return START_MS + int(self._scheduler.now_ms) + self.wall_offset_ms

    def monotonic_ms(self) -> int:
        """Milliseconds since the machine's boot."""
        return int(self._scheduler.now_ms)

    def sleep_ms(self, duration_ms: float) -> None:
        """Let simulated time pass."""
        if self._scheduler.current is None:
            raise AssertionError("the world's own hand does not sleep")
        self._scheduler.wait(duration_ms)


class World:
    """See the head of this file. `met` counts (fault, call) and `states` (fault, role and state of a task)."""

    def __init__(self, seed: int, machines: int, faults: tuple[Fault, ...]) -> None:
        self.draws = Draws(seed)
        self.passed_ms = 0  # in which every machine stood still
        self.scheduler = Scheduler(self.draws)
        self.machines = [Machine(number, self.scheduler) for number in range(machines)]
        self.trace: list[str] = []  # every call
        self.events: list[str] = []  # what a story tells
        self.met: Counter[tuple[str, str]] = Counter()
        self.states: Counter[tuple[str, str]] = Counter()
        self.refused: Counter[str] = Counter()  # calls of processes that had ended, none of which had an effect
        self.lives = Lives()
        self.looking = False  # a judge reads what a process has: no call of that process
        self.on_fault: Callable[[Fault, Machine], None] = lambda fault, machine: None
        self.states_of: Callable[[Machine], set[str]] = lambda machine: set()
        for fault in faults:
            if fault.kind is not Kind.JOIN:  # a start, and no call of a process
                self.machines[fault.machine].waiting.append(fault)
        for machine in self.machines:
            machine.waiting.sort(key=lambda one: one.at_ms)

    @property
    def now_ms(self) -> float:
        """Simulated milliseconds since the beginning."""
        return self.scheduler.now_ms

    def machine(self) -> Machine | None:
        """The machine of the running process."""
        actor = self.scheduler.current
        return None if actor is None else next((one for one in self.machines if one.process is actor), None)

    def who(self) -> str:
        """The running process, with its incarnation."""
        actor = self.scheduler.current
        return "world" if actor is None else repr(actor)

    def tell(self, text: str) -> None:
        """Write a line of the trace."""
        self.trace.append(f"{self.now_ms:.3f} {text}")

    def event(self, text: str) -> None:
        """Write a line of the trace and of a story."""
        self.tell(text)
        self.events.append(f"{self.now_ms / 1_000:.3f} s: {text}")

    @contextmanager
    def look(self) -> Iterator[None]:
        """Let reads of the block be no calls of the running process."""
        self.looking = True
        try:
            yield
        finally:
            self.looking = False

    # As Clock, of the world itself.

    def wall_ms(self) -> int:
        """Milliseconds since the epoch."""
        return START_MS + int(self.now_ms) + self.passed_ms

    def monotonic_ms(self) -> int:
        """Milliseconds since the world's beginning."""
        return int(self.now_ms)

    def sleep_ms(self, duration_ms: float) -> None:
        """Let simulated time pass."""
        self.scheduler.wait(duration_ms)

    # As Calls.

    def run(self, name: str, effect: Callable[[], T]) -> T:
        """A call of a port, by the running process."""
        actor = self.scheduler.current
        if actor is None or self.looking:
            return effect()
        if actor.ended:
            self.refused[name] += 1
            raise ProcessEnded(repr(actor))
        machine = self.machine()
        if machine is None:  # a client of the world itself, such as the feeder
            return effect()
        machine.calls[name] += 1
        self.tell(f"{actor} {name}")
        fault = self._due(machine, name)
        after = fault is not None and fault.after and (name in CHANGES or name.startswith(("engine.", "file.")))
        of_log = name.startswith(LOG_CALLS)
        if of_log:
            self._travel(machine, name)
        lost = fault is not None and fault.kind is Kind.LOST
        if fault is not None and not after:
            self._meet(fault, machine, name)
        if of_log and (self.now_ms < machine.cut_until_ms or (lost and name not in CHANGES)):
            self._wait_for_answer(machine, name)
        result = effect()
        if name == "group.view":
            machine.looked_ms = self.monotonic_ms()
        if fault is not None and after:
            self._meet(fault, machine, name)
        if of_log and name in CHANGES and (self.now_ms < machine.cut_until_ms or lost):
            self._wait_for_answer(machine, name)
        return result

    def wait(self, wait_ms: float, ready: Callable[[], bool] | None = None) -> None:
        """A wait of the running process."""
        self.scheduler.wait(wait_ms, ready)

    def _due(self, machine: Machine, name: str) -> Fault | None:
        """The fault whose place this call is."""
        for index, fault in enumerate(machine.waiting):
            if fault.at_ms > self.now_ms:
                return None
            if fault.call not in ("", family_of(name)):
                continue
            if fault.state and fault.state not in self.states_of(machine):
                continue
            if fault.skip:
                machine.waiting[index] = replace(fault, skip=fault.skip - 1)
                continue
            del machine.waiting[index]
            return fault
        return None

    def _travel(self, machine: Machine, name: str) -> None:
        number = machine.calls[name]
        part = self.draws.number("latency", machine.number, name, number)
        if self.now_ms < machine.slow_until_ms:
            self.scheduler.wait(SLOW_MS * part)
        elif part < TRAVELS:
            self.scheduler.wait(LATENCY_MS * part / TRAVELS)

    def _wait_for_answer(self, machine: Machine, name: str) -> None:
        """The log does not answer: the client gives up, as the product's clients do after their time."""
        self.scheduler.wait(min(max(machine.cut_until_ms - self.now_ms, 1), 1_000))
        raise Unavailable(f"{name}: no answer (simulated)")

    def _meet(self, fault: Fault, machine: Machine, name: str) -> None:
        self.event(f"{machine.process} meets {fault}, in {name}")
        self.met[fault.kind.value, name] += 1
        for state in self.states_of(machine):
            self.states[fault.kind.value, state] += 1
        self.on_fault(fault, machine)
        actor = machine.process
        if fault.kind in PROCESS_ENDS:
            assert actor is not None
            actor.ended = True
            raise ProcessEnded(repr(actor))
        if fault.kind is Kind.PAUSE:
            machine.stands = True
            try:
                self.scheduler.wait(fault.for_ms)
            finally:
                machine.stands = False
        elif fault.kind is Kind.CUT:
            machine.cut_until_ms = self.now_ms + fault.for_ms
        elif fault.kind is Kind.SLOW:
            machine.slow_until_ms = self.now_ms + fault.for_ms
        elif fault.kind is Kind.CLOCK:
            machine.wall_offset_ms += fault.for_ms if fault.skip % 2 else -fault.for_ms
        elif fault.kind in (Kind.RAISE, Kind.LISTENER):
            machine.raises[fault.kind] += 1

    def over(self) -> bool:
        """Whether every fault has met its place, or has none."""
        return all(not machine.waiting for machine in self.machines)
