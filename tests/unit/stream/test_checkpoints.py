"""Coordinated checkpoints of an application with two groups, driven by hand on one embedded log and one clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import standfast as sf
from standfast.ops.observe.status import counters_document
from standfast.ops.observe.status_merge import counters_of
from standfast.replication.offsets import TaskId
from standfast.replication.placement.checkpoint import Order, OrderState, Request
from standfast.restore.snapshot import checkpoints as stored
from standfast.restore.snapshot.opening import open_storage
from standfast.restore.snapshot.storage import Storage
from standfast.stream.runtime.holds import Hold, Holds
from standfast.stream.runtime.runner import TaskRunner
from standfast.stream.task.task import Task
from support.apps import Running, write
from support.checkpoints import COLORS, Sums, complete, stores, sums, two_groups
from support.placement import TASKS, Cluster, placement_of
from support.sessions import Bench


class Checkpoints(Cluster):
    """Instances of the two groups; every one has the same storage, unless `snapshots` says otherwise."""

    def __init__(self, bench: Bench, **policy: Any) -> None:
        self.to = str(bench.root / "snaps")
        self.fed = 0
        self.asked = 0
        policy = {"to": self.to, **policy}
        super().__init__(bench, two_groups, stores=stores(), snapshots=sf.SnapshotPolicy(**policy))

    @property
    def storage(self) -> Storage:
        return open_storage(self.to, "app")

    def feed(self, number: int) -> None:
        for one in range(number):
            color = COLORS[(self.fed * 7) % len(COLORS)]
            write(self.bench, "in", (f"user {self.fed}", color, one), partition=self.fed % TASKS)
            self.fed += 1

    def ask(self) -> str:
        self.asked += 1
        request = Request(f"request {self.asked}", self.bench.clock.wall_ms(), 600_000)
        placement_of(next(iter(self.live.values())))._topic.ask(request)
        return request.id

    def until(self, done: Callable[[], bool], rounds: int = 400) -> None:
        """Rounds until something holds."""
        for _ in range(rounds):
            if done():
                return
            self.rounds(1)
        raise AssertionError(f"not after {rounds} rounds: {self.order()}, {self.reports()}")

    def order(self) -> Order:
        found = [placement_of(one)._topic.look().order for one in self.live.values()]
        known = (one for one in found if one is not None)
        return max(known, key=lambda one: (one.number, one.step), default=Order(0))

    def reports(self) -> list[Any]:
        return [one.session._instance.managed.parts.report() for one in self.live.values()]  # type: ignore[union-attr]

    def made(self) -> Order:
        """Ask for a checkpoint and return the order that ends it."""
        request = self.ask()
        self.until(lambda: self.order().request == request and self.order().state is not OrderState.RUNNING)
        return self.order()

    def all_run(self) -> bool:
        wanted = {TaskId(group, number) for group in (0, 1) for number in range(TASKS)}
        return {task for one in self.live.values() for task in one.loop._running} == wanted

    def processed(self) -> bool:
        return sum(one.loop.records_total for one in self.live.values()) >= 2 * self.fed

    def numbers(self, number: int) -> Sums:
        return sums(self.storage, number, self.bench.root / "looked-at", "in")


@pytest.fixture
def cluster(bench: Bench) -> Checkpoints:
    return Checkpoints(bench)


def test_a_checkpoint_of_several_instances_is_one_consistent_cut_under_load(cluster: Checkpoints) -> None:
    for name in ("a", "b"):
        cluster.start(name)
    cluster.until(lambda: cluster.all_run() and len({len(one.loop._running) for one in cluster.live.values()}) == 1)
    found = []  # tasks are even: a checkpoint beside a hand-over would be asked for again, under the next number
    for _ in range(3):
        cluster.feed(200)
        request = cluster.ask()
        while cluster.order().request != request or cluster.order().state is OrderState.RUNNING:
            cluster.feed(3)
            cluster.rounds(1)
        assert cluster.order().state is OrderState.COMPLETE, cluster.order()
        found.append(cluster.numbers(cluster.order().number))
    assert complete(cluster.storage) == [1, 2, 3]
    for one in found:
        assert one.offsets == one.seen == one.totals
    assert 200 <= found[0].offsets < found[1].offsets < found[2].offsets <= cluster.fed
    cluster.until(cluster.processed)
    assert sum(len(one.rows("seen", at)) for one in cluster.live.values() for at in seen_tasks(one)) == cluster.fed


def seen_tasks(one: Running) -> list[int]:
    return [task.partition for task in one.loop._running if task.group == 0]


def test_an_idle_application_has_checkpoints_too_and_the_pause_is_counted(cluster: Checkpoints) -> None:
    one = cluster.start("a")
    cluster.until(cluster.all_run)
    assert cluster.made().state is OrderState.COMPLETE  # before the first record
    cluster.feed(30)
    cluster.until(cluster.processed)
    assert cluster.made().state is OrderState.COMPLETE
    assert cluster.made().state is OrderState.COMPLETE  # nothing has changed since
    assert [cluster.numbers(number) for number in (1, 2, 3)] == [Sums(0, 0, 0), Sums(30, 30, 30), Sums(30, 30, 30)]
    counts = one.session.counters.snapshots
    assert counts.checkpoints == {"complete": 3}
    assert len(counts.pauses_ms) == 3 * 2 * TASKS
    assert 0 <= (counts.pause_ms(0.5) or 0) <= (counts.pause_ms(0.99) or 0) <= 10_000
    document = counters_document(one.session.counters)
    assert document["snapshots"]["checkpoint"] == "checkpoint 3 complete"
    assert document["snapshots"]["pause_p99_ms"] == counts.pause_ms(0.99)
    kept = counters_of(document).snapshots
    assert (kept.pauses.counts, kept.pauses_ms, kept.checkpoints) == (
        counts.pauses.counts,
        counts.pauses_ms,
        {"complete": 3},
    )
    assert placement_of(one)._topic.state.complete.number == 3


@pytest.mark.long
def test_a_task_that_missed_the_end_of_a_checkpoint_has_its_part_of_the_next_one(
    cluster: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that is busy in between sees the order that stops the task again, and never the one that frees it."""
    cluster.start("a")
    cluster.until(cluster.all_run)
    real = Holds.follow

    def late(self: Holds, hold: Hold, task: Task, runner: TaskRunner) -> bool:
        order = None if self._parts is None else self._parts.order
        stood = hold.stands and hold.order is not None and order is not None and order.number == hold.order.number
        if stood and task.id == TaskId(0, 0):
            return False
        return real(self, hold, task, runner)

    monkeypatch.setattr(Holds, "follow", late)
    for number in (1, 2, 3):
        cluster.feed(30)
        assert cluster.made().state is OrderState.COMPLETE
        # The task stands still, so that its records of the next turn come with the next checkpoint.
        assert cluster.numbers(number).offsets <= cluster.fed
    monkeypatch.setattr(Holds, "follow", real)
    cluster.until(cluster.processed)
    assert cluster.made().state is OrderState.COMPLETE
    assert cluster.numbers(4) == Sums(90, 90, 90)


def test_a_schedule_makes_checkpoints_and_retention_keeps_the_newest_with_their_parts(bench: Bench) -> None:
    cluster = Checkpoints(bench, checkpoint_every_ms=5_000, keep=2)
    cluster.start("a")
    cluster.until(cluster.all_run)
    for wanted in range(1, 5):
        cluster.feed(20)
        cluster.until(lambda wanted=wanted: cluster.order().number >= wanted and done(cluster))
    cluster.until(lambda: len(complete(cluster.storage)) == 2)
    for number in complete(cluster.storage):
        one = cluster.numbers(number)
        assert one.offsets == one.seen == one.totals > 0


def done(cluster: Checkpoints) -> bool:
    return cluster.order().state is OrderState.COMPLETE


@pytest.mark.long
@pytest.mark.parametrize("after", [0, 1, 2, 4])
def test_checkpoints_are_complete_while_instances_come_and_go(cluster: Checkpoints, after: int) -> None:
    """`after`: rounds from the request to the change, so that it meets the checkpoint at different steps."""
    cluster._settings["standby_replicas"] = 1  # else the tasks of an instance that stops wait for it
    for name in ("a", "b"):
        cluster.start(name)
    cluster.until(cluster.all_run)
    ends = []
    for number in range(4):
        cluster.feed(60)
        request = cluster.ask()
        cluster.rounds(after)
        if number % 2:
            cluster.stop("c")
        else:
            cluster.start("c")
        cluster.until(lambda: cluster.order().request == request and cluster.order().state is not OrderState.RUNNING)  # noqa: B023
        ends.append(cluster.order().state)
        found = cluster.numbers(cluster.order().number)
        assert found.offsets == found.seen == found.totals
        cluster.rounds(40)
    assert ends == [OrderState.COMPLETE] * 4


def test_a_rebalance_abandons_the_checkpoint_and_the_next_one_is_complete(cluster: Checkpoints) -> None:
    cluster.start("a")
    cluster.until(cluster.all_run)
    cluster.feed(100)
    cluster.ask()
    cluster.until(lambda: cluster.order().number == 1, rounds=50)
    cluster.start("b")
    cluster.until(lambda: cluster.order().state is not OrderState.RUNNING)
    assert cluster.order().state in (OrderState.ABANDONED, OrderState.COMPLETE)
    cluster.until(lambda: cluster.all_run() and all(len(one.loop._running) == TASKS for one in cluster.live.values()))
    assert cluster.made().state is OrderState.COMPLETE
    found = cluster.numbers(cluster.order().number)
    assert found == Sums(100, 100, 100)


def test_a_task_that_cannot_stop_abandons_the_checkpoint_within_the_bound_and_the_others_go_on(bench: Bench) -> None:
    cluster = Checkpoints(bench, checkpoint_pause_ms=2_000)
    for name in ("a", "b"):
        cluster.start(name)
    cluster.until(cluster.all_run)
    leader = cluster.leader()[0]
    other = next(name for name in cluster.live if name != leader)
    cluster.feed(60)
    cluster.until(cluster.processed)
    stuck = cluster.live[other].loop
    hold_back, stuck._hold_back = stuck._hold_back, lambda: None  # type: ignore[method-assign]
    began_ms = bench.clock.monotonic_ms()
    order = cluster.made()
    assert order.state is OrderState.ABANDONED
    assert "had not stopped within 2.0 s, so that all tasks go on" in order.why
    assert bench.clock.monotonic_ms() - began_ms < 5_000
    assert complete(cluster.storage) == []
    stuck._hold_back = hold_back  # type: ignore[method-assign]
    cluster.feed(60)
    cluster.until(cluster.processed)
    assert cluster.live[leader].session.counters.snapshots.checkpoint.startswith("checkpoint 1 abandoned: tasks 0_")
    cluster.until(lambda: stored.checkpoints(cluster.storage)[0].state is stored.CheckpointState.ABANDONED)


def test_a_leader_that_ends_in_the_middle_leaves_a_checkpoint_that_is_never_used(cluster: Checkpoints) -> None:
    for name in ("a", "b"):
        cluster.start(name)
    cluster.until(cluster.all_run)
    cluster.feed(60)
    cluster.until(cluster.processed)
    leader = cluster.leader()[0]
    cluster.ask()
    cluster.until(lambda: bool(cluster.order().limits))
    dead = cluster.freeze(leader)  # its tasks stand still, and so do those of the other instance
    for _ in range(100):
        bench_rounds(cluster)
        if cluster.order().state is OrderState.ABANDONED:
            break
    assert cluster.order().why == "its leader ended in the middle of it"
    cluster.until(lambda: stored.checkpoints(cluster.storage)[0].state is stored.CheckpointState.ABANDONED)
    dead.loop.close()
    cluster.until(cluster.all_run)
    cluster.feed(60)
    order = cluster.made()
    assert (order.number, order.state) == (2, OrderState.COMPLETE)
    found = cluster.numbers(2)
    assert found.offsets == found.seen == found.totals
    assert complete(cluster.storage) == [2]


def bench_rounds(cluster: Checkpoints) -> None:
    cluster.rounds(1)


def test_a_request_that_cannot_be_met_is_refused_with_the_reason(bench: Bench) -> None:
    cluster = Checkpoints(bench)
    cluster.start("a", snapshots=None)
    cluster.until(cluster.all_run)
    order = cluster.made()
    assert (order.state, order.number) == (OrderState.REFUSED, 0)
    assert "the leader has no storage for snapshots" in order.why


def test_an_instance_without_a_storage_fails_its_parts_and_says_so(bench: Bench) -> None:
    cluster = Checkpoints(bench)
    cluster.start("a")
    cluster.until(cluster.all_run)
    cluster.start("b", snapshots=None)
    cluster.until(lambda: cluster.all_run() and len(cluster.live["b"].loop._running) == TASKS)
    order = cluster.made()
    assert order.state is OrderState.ABANDONED
    assert "has no part: its instance has no storage for snapshots" in order.why


def test_a_request_that_its_command_has_given_up_is_passed_over(cluster: Checkpoints) -> None:
    one = cluster.start("a")
    cluster.until(cluster.all_run)
    late = Request("late", cluster.bench.clock.wall_ms() - 10_000, 5_000)
    placement_of(one)._topic.ask(late)
    cluster.rounds(20)
    assert cluster.order() == Order(0)


def test_a_storage_that_is_away_costs_the_checkpoint_alone(cluster: Checkpoints, tmp_path: Path) -> None:
    cluster.start("a")
    cluster.until(cluster.all_run)
    folder = Path(cluster.to) / "app" / "checkpoints"
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("no folder can be made here")
    order = cluster.made()
    assert order.state is OrderState.REFUSED
    assert "no checkpoint was begun: " in order.why
    cluster.feed(30)
    cluster.until(cluster.processed)
