"""A model of a supervisor and its workers: messages wait in both directions, workers are slow, die and are replaced.

Checked after each step: no task is open in two workers, and no opening of a task has a number that it had before. At
the end, once all messages have arrived: every task of the part is open in one worker, evenly.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from standfast.replication.offsets import TaskId
from standfast.replication.takeover import Free
from standfast.stream.workers.orders import ACTIVE, LOST, RUNNING, STANDBY, Orders, ReportedTask, WorkerOrder

TASKS = [TaskId(group, partition) for group in range(2) for partition in range(4)]
WORKERS = 3


class Process:
    """A worker process: it takes an order in when it comes to it, and opens and closes one task at a time."""

    def __init__(self) -> None:
        self.inbox: list[WorkerOrder] = []
        self.outbox: list[tuple[int, dict[TaskId, ReportedTask]]] = []
        self.order = WorkerOrder()
        self.held: dict[TaskId, ReportedTask] = {}
        self.begun: dict[TaskId, int] = {}
        self.opened = False  # its supervisor knows that it takes orders

    def report(self) -> None:
        lost = {
            task: ReportedTask(ACTIVE, LOST, 0, number)
            for task, number in self.order.active.items()
            if self.begun.get(task) == number and not (task in self.held and self.held[task].role == ACTIVE)
        }
        self.outbox.append((self.order.round, {**self.held, **lost}))

    def work(self, task: TaskId, openings: list[tuple[TaskId, int]]) -> None:
        held, number = self.held.get(task), self.order.active.get(task)
        if (held is not None and held.role == ACTIVE and number is None) or (
            held is not None and held.role == "standby" and number is None and task not in self.order.standby
        ):
            del self.held[task]
        elif number is not None and (held is None or held.role != ACTIVE) and self.begun.get(task) != number:
            self.begun[task] = number
            openings.append((task, number))
            self.held[task] = ReportedTask(ACTIVE, RUNNING, 0, number)
        elif held is None and number is None and task in self.order.standby:
            self.held[task] = ReportedTask("standby", STANDBY, 5)


class Workers(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.orders = Orders(WORKERS)
        self.processes: list[Process | None] = [None] * WORKERS
        self.dead: set[int] = set()  # ended, and the supervisor has not seen it
        self.openings: list[tuple[TaskId, int]] = []
        self.part: tuple[frozenset[TaskId], frozenset[TaskId]] = (frozenset(TASKS), frozenset())
        self.elsewhere: set[TaskId] = set()  # tasks that another instance runs
        self.settle(3)

    @rule(active=st.sets(st.sampled_from(TASKS)), standby=st.sets(st.sampled_from(TASKS)))
    def assign(self, active: set[TaskId], standby: set[TaskId]) -> None:
        self.part = (frozenset(active), frozenset(standby - active))
        self.tick()

    @rule(tasks=st.sets(st.sampled_from(TASKS)))
    def occupy(self, tasks: set[TaskId]) -> None:
        self.elsewhere = tasks

    @rule(rounds=st.integers(1, 3))
    def settle(self, rounds: int) -> None:
        """All processes run, and all messages arrive."""
        for _ in range(rounds):
            for number in range(WORKERS):
                self.see_the_end(number)
                self.start(number)
            self.tick()
            for number, process in enumerate(self.processes):
                assert process is not None
                while process.inbox:
                    self.take_in(number, False)
                self.work(number, TASKS, True)
                while process.outbox:
                    self.hear(number)
            self.no_task_is_open_twice()

    def _is_free(self, task: TaskId) -> Free:
        return Free.NO if task in self.elsewhere else Free.GIVEN

    @rule()
    def tick(self) -> None:
        self.orders.want(*self.part)
        for number, order in self.orders.next(self._is_free).items():
            process = self.processes[number]
            if process is not None:  # else it has died just now, and the order goes nowhere
                process.inbox.append(order)

    @rule(number=st.integers(0, WORKERS - 1))
    def start(self, number: int) -> None:
        if self.processes[number] is None and number not in self.dead:
            self.processes[number] = Process()
            self.orders.ready(number)

    @rule(number=st.integers(0, WORKERS - 1))
    def die(self, number: int) -> None:
        if self.processes[number] is not None:
            self.processes[number] = None  # reports on the way are lost, and its tasks are closed
            self.dead.add(number)

    @rule(number=st.integers(0, WORKERS - 1))
    def see_the_end(self, number: int) -> None:
        if number in self.dead:
            self.dead.discard(number)
            self.orders.ended(number)

    @rule(number=st.integers(0, WORKERS - 1), leaves=st.sampled_from((frozenset[TaskId](), frozenset(TASKS[::2]))))
    def advance(self, number: int, leaves: frozenset[TaskId]) -> None:
        """One process takes all its orders in and carries them out, but for some tasks; the others stand still."""
        process = self.processes[number]
        while process is not None and process.inbox:
            self.take_in(number, True)
        self.work(number, [task for task in TASKS if task not in leaves], True)
        while process is not None and process.outbox:
            self.hear(number)
        self.tick()

    @rule(number=st.integers(0, WORKERS - 1))
    def concentrate(self, number: int) -> None:
        """The tasks of one worker alone stay, so that some of them must move to the others."""
        active = {task for task in self.part[0] if task in self.orders.may_hold(number)}
        self.assign(active or set(TASKS), set(TASKS) - active)

    @rule(number=st.integers(0, WORKERS - 1), tells=st.booleans())
    def take_in(self, number: int, tells: bool) -> None:
        process = self.processes[number]
        if process is not None and process.inbox:
            process.order = process.inbox.pop(0)
            if tells:
                process.report()

    @rule(number=st.integers(0, WORKERS - 1), tasks=st.lists(st.sampled_from(TASKS), min_size=3), tells=st.booleans())
    def work(self, number: int, tasks: list[TaskId], tells: bool) -> None:
        process = self.processes[number]
        if process is not None:
            for task in tasks:
                process.work(task, self.openings)
            if tells:
                process.report()

    @rule(number=st.integers(0, WORKERS - 1), task=st.sampled_from(TASKS))
    def lose(self, number: int, task: TaskId) -> None:
        process = self.processes[number]
        if process is not None and process.held.get(task, ReportedTask("", "")).role == ACTIVE:
            del process.held[task]
            process.report()

    @rule(number=st.integers(0, WORKERS - 1))
    def hear(self, number: int) -> None:
        process = self.processes[number]
        if process is not None and process.outbox:
            self.orders.reported(number, *process.outbox.pop(0))

    @invariant()
    def no_task_is_open_twice(self) -> None:
        if not hasattr(self, "orders"):
            return
        counts = Counter(task for process in self.processes if process is not None for task in process.held)
        assert all(count == 1 for count in counts.values()), counts
        assert len(set(self.openings)) == len(self.openings), self.openings
        running, restoring, _ = self.orders.facts()
        assert not running & restoring
        places = self.orders.places()
        assert len(frozenset().union(*places)) == sum(map(len, places)), "a task is shown in two workers"
        for place, process in zip(places, self.processes, strict=True):
            assert process is None or place >= process.held.keys()

    def teardown(self) -> None:
        if not hasattr(self, "orders"):
            return
        self.elsewhere = set()
        self.settle(12)
        self._check_the_end()

    def _check_the_end(self) -> None:
        active, standby = self.part
        found: dict[str, list[tuple[int, TaskId]]] = {ACTIVE: [], "standby": []}
        for number, process in enumerate(self.processes):
            assert process is not None
            for task, held in process.held.items():
                found[held.role].append((number, task))
        assert sorted(task for _, task in found[ACTIVE]) == sorted(active)
        assert sorted(task for _, task in found["standby"]) == sorted(standby)
        for placed in found.values():
            for group in (None, 0, 1):
                counts = Counter(number for number, task in placed if group in (None, task.group))
                spread = [counts[number] for number in range(WORKERS)]
                assert max(spread) - min(spread) <= 1, (group, spread)
        assert self.orders.facts()[0] == active


Workers.TestCase.settings = settings(max_examples=75, stateful_step_count=40, deadline=None)
TestWorkers = Workers.TestCase
