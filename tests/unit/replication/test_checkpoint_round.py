"""The protocol of coordinated checkpoints: its steps, its ends, and a simulation of it with lost processes.

    the model: tasks that read and write internal topics, instances that read orders and send reports late, a leader

Every complete checkpoint of the simulation is a consistent cut: of each internal topic the parts behind it have
consumed exactly the records that the parts before it had written.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.replication.checkpoint_flow import Flow
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.replication.placement.checkpoint import Order, OrderState, PartReport
from standfast.replication.placement.checkpoint_round import CheckpointRound, Do, PartHolders
from standfast.store.errors import InvalidRequest

NONE: frozenset[str] = frozenset()
CHAIN = Flow({0: NONE, 1: frozenset("x")}, {0: frozenset("x"), 1: NONE}, {"x": 2})
TASKS = [TaskId(0, 0), TaskId(1, 0), TaskId(1, 1)]
STAMP = (3, 7)


def chain() -> CheckpointRound:
    return CheckpointRound(5, CHAIN, TASKS, STAMP, pause_ms=1_000, store_ms=60_000, now_ms=0)


def reports(step: int, *, applied: str = "", stopped: str = "", stored: str = "") -> dict[TaskId, PartReport | None]:
    in_force, cut, kept = (frozenset(map(TaskId.parse, text.split())) for text in (applied, stopped, stored))
    return dict.fromkeys(TASKS, PartReport(5, step, in_force, cut, kept))


def test_a_checkpoint_goes_through_the_groups_in_their_order_and_is_complete_once_all_is_stored() -> None:
    one = chain()
    assert (one.order.step, one.order.stop, one.order.limits) == (1, {0}, {})
    assert one.look({}, 1) is Do.WAIT
    assert one.look(reports(1, applied="0_0", stopped="0_0"), 2) is Do.READ_ENDS
    assert one.to_read == [TopicPartition("x", 0), TopicPartition("x", 1)]
    ends = {TopicPartition("x", 0): 11, TopicPartition("x", 1): 4}
    assert one.ends(ends, 3) is Do.PUBLISH
    assert (one.order.step, one.order.stop, one.order.limits) == (2, {0, 1}, ends)
    # The first group stands still until the ends are in force at every reader.
    assert one.look(reports(2, applied="0_0 1_0", stopped="0_0"), 10) is Do.WAIT
    assert one.look(reports(2, applied="0_0 1_0 1_1", stopped="0_0"), 20) is Do.PUBLISH
    assert (one.order.step, one.order.stop, one.order.done) == (3, {1}, {0})
    assert one.order.pause_ms == 20
    assert one.look(reports(3, stopped="0_0 1_0", stored="0_0"), 30) is Do.WAIT
    assert one.look(reports(3, stopped="0_0 1_0 1_1", stored="0_0"), 63) is Do.PUBLISH
    assert (one.order.stop, one.order.done, one.order.pause_ms) == (frozenset(), {0, 1}, 43)
    assert one.look(reports(4, stopped="0_0 1_0 1_1", stored="0_0"), 40) is Do.WAIT
    assert one.look(reports(4, stopped="0_0 1_0 1_1", stored="0_0 1_0 1_1"), 50) is Do.SEAL
    assert one.look(reports(4), 60) is Do.WAIT  # nothing can change it any more
    assert one.sealed() is Do.PUBLISH
    assert (one.order.state, one.is_over) == (OrderState.COMPLETE, True)


@pytest.mark.parametrize(
    ("found", "now_ms", "why"),
    [
        (reports(1, stopped=""), 1_001, "tasks 0_0 had not stopped within 1.0 s, so that all tasks go on"),
        (
            {TaskId(0, 0): PartReport(5, 1, failed={TaskId(0, 0): "the disk is full"})},
            5,
            "task 0_0 has no part: the disk is full",
        ),
    ],
)
def test_a_checkpoint_is_abandoned_and_says_why(found: dict[TaskId, PartReport | None], now_ms: int, why: str) -> None:
    one = chain()
    assert one.look(found, now_ms) is Do.PUBLISH
    assert (one.order.state, one.order.stop, one.order.limits) == (OrderState.ABANDONED, frozenset(), {})
    assert one.order.why == why
    assert one.look(found, now_ms) is Do.WAIT


def test_an_instance_that_forgot_a_part_ends_the_checkpoint() -> None:
    one = chain()
    one.look(reports(1, stopped="0_0"), 1)
    assert one.look(reports(1), 2) is Do.PUBLISH
    assert "0_0 does not know its part any more" in one.order.why
    two = chain()
    two.look(reports(1, stopped="0_0"), 1)
    assert two.look({}, 2) is Do.PUBLISH
    assert two.order.state is OrderState.ABANDONED


def test_parts_of_tasks_that_moved_count_from_the_instance_that_cut_them() -> None:
    first, second, third = TASKS
    holders = PartHolders(TASKS)
    owners = {first: "a", second: "a", third: "b"}
    assert holders.where(owners) == owners
    holders.note({first}, owners)
    owners = {first: "b", second: "c", third: "b"}
    assert holders.where(owners) == {first: "a", second: "c", third: "b"}, "only the first one was cut before it moved"
    assert holders.broken(TASKS, {"a", "b", "c"}, ()) == ""
    gone = "instance a has gone, which had not stored the part of task 0_0"
    assert holders.broken(TASKS, {"b", "c"}, ()) == gone
    assert holders.broken(TASKS, {"b", "c"}, {first}) == "", "the storage has it"
    assert holders.broken([*TASKS, TaskId(0, 1)], {"a"}, ()) == "tasks were added, of new partitions"


def test_readers_without_the_ends_in_force_end_the_pause_in_time() -> None:
    one = chain()
    one.look(reports(1, stopped="0_0"), 1)
    one.ends({TopicPartition("x", 0): 0, TopicPartition("x", 1): 0}, 2)
    assert one.look(reports(2, applied="1_0", stopped="0_0 1_0 1_1"), 1_000) is Do.PUBLISH  # all stand still
    two = chain()
    two.look(reports(1, stopped="0_0"), 1)
    two.ends({TopicPartition("x", 0): 0, TopicPartition("x", 1): 0}, 2)
    assert two.look(reports(1, stopped="0_0"), 1_001) is Do.PUBLISH
    assert two.order.why == "the order of the next groups was not in force within 1.0 s, so that all tasks go on"


def test_writers_go_on_only_once_readers_of_every_later_stage_keep_to_the_ends() -> None:
    tasks = [TaskId(0, 0), TaskId(1, 0), TaskId(2, 0)]
    one = CheckpointRound(5, FLOWS["diamond"], tasks, STAMP, pause_ms=1_000, store_ms=60_000, now_ms=0)

    def told(step: int, *applied: int) -> dict[TaskId, PartReport | None]:
        in_force = frozenset(tasks[number] for number in applied)
        return dict.fromkeys(tasks, PartReport(5, step, in_force, frozenset(tasks[:1])))

    assert one.look(told(1), 1) is Do.READ_ENDS
    assert one.ends(dict.fromkeys(one.to_read, 3), 2) is Do.PUBLISH
    assert one.look(told(1, 0, 1, 2), 3) is Do.WAIT, "an earlier order has no ends"
    assert one.look(told(2, 0, 1), 4) is Do.WAIT, "the last group reads the same topic"
    assert one.look(told(2, 0, 1, 2), 5) is Do.PUBLISH
    assert one.order.done == {0, 3}


def test_time_to_reach_the_ends_is_no_pause_and_the_wait_for_others_there_is_one() -> None:
    one = chain()
    one.look(reports(1, stopped="0_0"), 1)
    one.ends({TopicPartition("x", 0): 9, TopicPartition("x", 1): 9}, 2)
    assert one.look(reports(2, applied="1_0 1_1", stopped="0_0"), 3) is Do.PUBLISH
    assert one.look(reports(3, stopped="0_0"), 30_000) is Do.WAIT
    assert one.look(reports(3, stopped="0_0 1_0"), 30_100) is Do.WAIT
    assert one.look(reports(3, stopped="0_0 1_0"), 31_001) is Do.PUBLISH
    assert one.order.why == "tasks 1_1 had not stopped within 1.0 s, so that all tasks go on"


def test_uploads_that_take_too_long_end_the_checkpoint() -> None:
    one = CheckpointRound(1, Flow({0: NONE}, {0: NONE}, {}), TASKS[:1], STAMP, pause_ms=9, store_ms=50, now_ms=0)
    found = dict.fromkeys(TASKS, PartReport(1, 1, stopped=frozenset(TASKS[:1])))
    assert one.look(found, 1) is Do.PUBLISH
    assert one.order.stop == frozenset()
    assert one.look(found, 50) is Do.WAIT
    assert one.look(found, 51) is Do.PUBLISH
    assert one.order.why == "tasks 0_0 had not stored their parts after 50 ms"


def test_ends_that_the_log_does_not_give_and_a_failed_seal_end_the_checkpoint() -> None:
    one = chain()
    one.look(reports(1, stopped="0_0"), 1)
    assert one.ends({TopicPartition("x", 0): 0}, 2) is Do.PUBLISH
    assert one.order.why == "the log gave no end of x-1"
    two = CheckpointRound(1, Flow({0: NONE}, {0: NONE}, {}), [], STAMP, pause_ms=9, store_ms=50, now_ms=0)
    assert two.look({}, 1) is Do.PUBLISH
    assert two.look({}, 2) is Do.SEAL
    assert two.sealed("a part is gone") is Do.PUBLISH
    assert (two.order.state, two.order.why) == (OrderState.ABANDONED, "a part is gone")


def test_a_complete_checkpoint_is_neither_sealed_nor_abandoned_again() -> None:
    one = CheckpointRound(1, Flow({0: NONE}, {0: NONE}, {}), TASKS[:1], STAMP, pause_ms=9, store_ms=50, now_ms=0)
    found = dict.fromkeys(TASKS[:1], PartReport(1, 1, stopped=frozenset(TASKS[:1]), stored=frozenset(TASKS[:1])))
    assert [one.look(found, now_ms) for now_ms in (1, 2)] == [Do.PUBLISH, Do.SEAL]
    one.sealed()
    order = one.order
    assert one.look(found, 3) is Do.WAIT
    assert one.abandon("its order fits no record") is Do.WAIT
    assert (one.order, order.state) == (order, OrderState.COMPLETE)


def test_an_order_that_has_ended_frees_every_task_and_one_under_way_those_that_are_done() -> None:
    ends = {TopicPartition("x", 0): 11}
    order = Order(5, stop=frozenset({1}), done=frozenset({0}), limits=ends)
    writer, reader = TaskId(0, 0), TaskId(1, 0)
    assert (order.stops(writer), order.stops(reader)) == (False, True)
    assert order.limits_of(reader, ends) == ends
    # With its part cut a task goes on beyond the ends: uploads of the others may take long.
    assert replace(order, stop=frozenset(), done=frozenset({0, 1})).limits_of(reader, ends) == {}
    for state in (OrderState.COMPLETE, OrderState.ABANDONED, OrderState.REFUSED):
        over = replace(order, state=state)
        assert (over.stops(reader), over.limits_of(reader, ends)) == (False, {})


def test_groups_that_no_order_of_stops_fits_are_refused() -> None:
    x, y = frozenset("x"), frozenset("y")
    with pytest.raises(InvalidRequest, match="groups 0, 1 read their own output"):
        Flow({0: x, 1: y}, {0: y, 1: x}, {"x": 1, "y": 1}).stages()
    with pytest.raises(InvalidRequest, match="groups 0, 1 write to y, and one of them reads"):
        Flow({0: NONE, 1: x, 2: y}, {0: x | y, 1: y}, {"x": 1, "y": 1}).stages()
    assert Flow({0: NONE, 1: x, 2: NONE}, {0: x}, {"x": 1}).stages() == ({0, 2}, {1})


# --- simulation ---

FLOWS = {
    "chain": Flow(
        {0: NONE, 1: frozenset("x"), 2: frozenset("y")}, {0: frozenset("x"), 1: frozenset("y")}, {"x": 2, "y": 1}
    ),
    # Group 2 reads a topic of stage 0 as well, and group 3 has nothing to do with the others.
    "diamond": Flow(
        {0: NONE, 1: frozenset("x"), 2: frozenset("xy"), 3: NONE},
        {0: frozenset("x"), 1: frozenset("y")},
        {"x": 2, "y": 2},
    ),
    "two writers": Flow({0: NONE, 1: NONE, 2: frozenset("x")}, {0: frozenset("x"), 1: frozenset("x")}, {"x": 2}),
}


class Work:
    """A task: its records consumed and written, all committed at once, and the order in force for it."""

    def __init__(self, task: TaskId, flow: Flow) -> None:
        self.id = task
        self.inputs = [TopicPartition(topic, task.partition) for topic in sorted(flow.reads[task.group])]
        self.outputs = sorted(flow.writes.get(task.group, NONE))
        self.consumed = dict.fromkeys(self.inputs, 0)
        self.written = 0
        self.order: Order | None = None
        self.stands, self.stands_for = False, 0


Cut = tuple[dict[TopicPartition, int], int]  # offsets consumed, records written


class Node:
    """An instance: its place in the placement topic, and its parts."""

    def __init__(self) -> None:
        self.read = 0
        self.order: Order | None = None
        self.number = self.step = 0
        self.applied: set[TaskId] = set()
        self.stopped: set[TaskId] = set()
        self.stored: set[TaskId] = set()

    def begin(self, order: Order) -> None:
        if order.number > self.number:
            self.number, self.step, self.stopped, self.stored = order.number, 0, set(), set()
        if order.number == self.number and order.step > self.step:
            self.step, self.applied = order.step, set()

    def report(self) -> PartReport | None:
        parts = frozenset(self.applied), frozenset(self.stopped), frozenset(self.stored)
        return PartReport(self.number, self.step, *parts) if self.number else None


class World:
    """All of an application, driven by a random sequence of events."""

    def __init__(self, flow: Flow, random: Random) -> None:
        self.flow, self.random = flow, random
        self.topic: list[Order] = []
        self.log: dict[TopicPartition, list[tuple[TaskId, int]]] = {at: [] for at in flow.inputs(flow.partitions)}
        self.work = {task: Work(task, flow) for group in flow.reads for task in (TaskId(group, 0), TaskId(group, 1))}
        self.work = {task: one for task, one in self.work.items() if all(at in self.log for at in one.inputs)}
        self.nodes = {name: Node() for name in "abc"}
        self.owner = {task: random.choice("abc") for task in self.work}
        self.reports: dict[str, PartReport | None] = {}
        self.parts: dict[int, dict[TaskId, Cut]] = {}
        self.stored: dict[int, dict[TaskId, Cut]] = {}  # the storage, which takes the first part of a task
        self.bounds: dict[str, Any] = {"pause_ms": 2_000, "store_ms": 4_000}
        self.generation = 1
        self.round: CheckpointRound | None = None
        self.holders = PartHolders(())
        self.number = 0
        self.now_ms = 0
        self.complete = 0

    # the instances, each at its own time

    def look(self) -> None:
        node = self.nodes[self.random.choice("abc")]
        while node.read < len(self.topic) and self.random.random() < 0.8:
            node.order = self.topic[node.read]
            node.read += 1

    def follow(self) -> None:
        self.put_in_force(self.work[self.random.choice(list(self.work))])

    def put_in_force(self, one: Work) -> None:
        node = self.nodes[self.owner[one.id]]
        order = node.order
        if order is None or order is one.order:
            return
        one.order = order
        if order.state is OrderState.RUNNING:
            node.begin(order)
            if (node.number, node.step) == (order.number, order.step):
                node.applied.add(one.id)
        # A task may have missed the end of the last checkpoint, and the next one needs another part.
        if one.stands_for != order.number or not order.stops(one.id):
            one.stands = False

    def process(self) -> None:
        one = self.work[self.random.choice(list(self.work))]
        order = one.order
        limits = {} if order is None else order.limits_of(one.id, one.inputs)
        if order is not None and order.stops(one.id):
            if all(one.consumed[at] == limit for at, limit in limits.items()):
                self.stand(one, order)
            if one.stands:
                return
        ready = [at for at in one.inputs if one.consumed[at] < limits.get(at, len(self.log[at]))]
        if one.inputs and not ready:
            return
        # Sources give less than readers could process, so that these are at the ends, where an order comes too late.
        if not one.inputs and self.random.random() < 0.8:
            return
        if ready:
            one.consumed[self.random.choice(ready)] += 1
        one.written += 1
        for topic in one.outputs:
            at = TopicPartition(topic, self.random.randrange(self.flow.partitions[topic]))
            self.log[at].append((one.id, one.written))

    def stand(self, one: Work, order: Order) -> None:
        one.stands, one.stands_for = True, order.number
        node = self.nodes[self.owner[one.id]]
        node.begin(order)
        if node.number == order.number and one.id not in node.stopped:
            node.stopped.add(one.id)
            self.parts.setdefault(order.number, {})[one.id] = dict(one.consumed), one.written

    def store(self) -> None:
        node = self.nodes[self.random.choice("abc")]
        for task in node.stopped - node.stored:
            self.stored.setdefault(node.number, {}).setdefault(task, self.parts[node.number][task])
        node.stored |= node.stopped

    def report(self) -> None:
        name = self.random.choice("abc")
        self.reports[name] = self.nodes[name].report()

    # the leader

    def lead(self) -> None:
        self.now_ms += self.random.randrange(30)
        stamp = 1, self.generation
        if self.round is None or self.round.is_over:
            self.number += 1
            self.round = CheckpointRound(self.number, self.flow, self.work, stamp, now_ms=self.now_ms, **self.bounds)
            self.holders = PartHolders(self.work)
            self.topic.append(self.round.order)
            return
        where = self.holders.where(self.owner)
        found = {task: self.reports.get(where[task]) for task in self.work}
        why = self.holders.broken(self.work, self.nodes, self.round.stored)
        do = self.round.abandon(why) if why else self.round.look(found, self.now_ms)
        self.holders.note(self.round.stopped, where)
        if do is Do.READ_ENDS:
            do = self.round.ends({at: len(self.log[at]) for at in self.round.to_read}, self.now_ms)
        if do is Do.SEAL:
            do = self.round.sealed()
            self.check(self.stored[self.number])
        if do is Do.PUBLISH:
            self.topic.append(self.round.order)

    # trouble

    def restart(self) -> None:
        """A process is killed and starts again: it reads the topic to its end before it opens its tasks."""
        name = self.random.choice("abc")
        self.nodes[name] = node = Node()
        node.read, node.order = len(self.topic), self.topic[-1] if self.topic else None
        for task, owner in self.owner.items():
            if owner == name:
                self.open(task)

    def reopen(self) -> None:
        """A task fails, and the same process opens it again."""
        self.open(self.random.choice(list(self.work)))

    def move(self) -> None:
        """A task gets another owner, under another generation, which its new owner has read."""
        self.generation += 1
        task = self.random.choice(list(self.work))
        self.owner[task] = self.random.choice("abc")
        # The generation is in the topic of the orders, so that all orders before it are in force first.
        node = self.nodes[self.owner[task]]
        node.read, node.order = len(self.topic), self.topic[-1] if self.topic else None
        self.open(task)

    def grow(self) -> None:
        """A source has one partition more: its task, of a group that reads no internal topic, is assigned as well."""
        self.generation += 1
        group = self.random.choice([group for group, read in self.flow.reads.items() if not read])
        task = TaskId(group, 2)
        if task in self.work:
            return
        self.work[task] = Work(task, self.flow)
        self.owner[task] = self.random.choice("abc")
        self.open(task)

    def open(self, task: TaskId) -> None:
        one = self.work[task]
        one.order, one.stands = None, False
        self.put_in_force(one)

    def replace_leader(self) -> None:
        """The leader is killed: the next one, which has read all of the topic, ends the checkpoint under way."""
        if self.round is not None and not self.round.is_over:
            self.round.abandon("its leader ended in the middle of it")
            self.topic.append(self.round.order)
        self.round = None

    def check(self, parts: dict[TaskId, Cut]) -> None:
        assert parts.keys() == self.work.keys()
        for at, records in self.log.items():
            before = [number for number, (writer, count) in enumerate(records) if count <= parts[writer][1]]
            for task, (consumed, _) in parts.items():
                if at in consumed:
                    assert before == list(range(consumed[at])), (at, task)
        self.complete += 1

    def run(self, events: int, troubles: float) -> None:
        usual = [self.look, self.look, self.follow, self.follow, self.follow, self.report, self.store, self.lead]
        usual += [self.process] * 4
        trouble = [self.restart, self.reopen, self.move, self.grow, self.replace_leader]
        for _ in range(events):
            self.random.choice(trouble if self.random.random() < troubles else usual)()


@pytest.mark.parametrize("flow", FLOWS)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32), troubles=st.sampled_from([0.0, 0.002, 0.01, 0.05]))
def test_every_complete_checkpoint_is_a_consistent_cut(flow: str, seed: int, troubles: float) -> None:
    World(FLOWS[flow], Random(seed)).run(3_000, troubles)  # the checks are in `lead`


@pytest.mark.parametrize("flow", FLOWS)
def test_checkpoints_become_complete_where_nothing_goes_wrong_and_some_where_it_does(flow: str) -> None:
    for troubles, least in ((0.0, 2), (0.005, 1)):
        found = []
        for seed in range(5):
            world = World(FLOWS[flow], Random(seed))
            world.run(10_000, troubles)
            found.append(world.complete)
        assert min(found) >= least, found


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 5))])
def test_without_trouble_and_bounds_of_time_every_checkpoint_becomes_complete(flow: str, seed: int) -> None:
    """A group that goes on before all readers keep to its ends leaves readers beyond them, which never stop there."""
    world = World(FLOWS[flow], Random(seed))
    world.bounds = {"pause_ms": 1 << 40, "store_ms": 1 << 40}
    for _ in range(3):
        before = len(ends_of(world))
        world.run(10_000, 0.0)
        assert len(ends_of(world)) > before, "a checkpoint never ends"
    assert {*ends_of(world)} == {OrderState.COMPLETE}


def ends_of(world: World) -> list[OrderState]:
    return [order.state for order in world.topic if order.state is not OrderState.RUNNING]
