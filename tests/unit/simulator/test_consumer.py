"""examples/external_consumer.py, unchanged, in a simulated world: over the stand-in for the client's consumer.

Rules of this file: the steps are those of `system/kafka/test_external_consumer_examples.py`. A session of the program
has no threads: their work is done at its commits.
"""

from __future__ import annotations

import runpy
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import standfast as sf
from simulator.disk import SimDisk
from simulator.faults import Fault, Kind
from simulator.files import SimFiles
from simulator.hand import APP, Hand
from simulator.log import SimLog
from simulator.log.consumer import SimConsumer
from simulator.outside import outside_of
from simulator.scheduler import Actor
from simulator.storage import SimBucket
from simulator.witness import changes
from simulator.world import World
from standfast.replication.offsets import TopicPartition
from standfast.replication.takeover import MemberPlan, plans
from support.own_consumers import PARTITIONS, counts_each_record_once_when_killed, takes_over_from_a_killed_one
from support.places import EXAMPLES

WAIT_MS = 60_000
TOPIC = "in"


class Process:
    """A simulated process."""

    def __init__(self, world: World, actor: Actor, disk: SimDisk) -> None:
        self._world, self._actor, self._disk = world, actor, disk

    def kill(self) -> None:
        self._world.scheduler.end(self._actor)

    def wait(self) -> None:
        self._disk.end_process()


class Simulated:
    """`support.own_consumers.Application` in a world without faults: a directory is that of a machine."""

    def __init__(self, world: World, log: SimLog, disks: Mapping[str, SimDisk]) -> None:
        self.fed: Counter[str] = Counter()
        self.met = world.met
        self.hand = Hand(world, log)
        self.hand.create(TOPIC, PARTITIONS)
        self._world, self._log, self._disks = world, log, disks
        self._actors: list[Actor] = []

    def feed(self, count: int) -> None:
        for number in range(count):
            key = f"k{number % 30}"
            self.hand.write(TOPIC, number % 30 % PARTITIONS, key, "", self._world.wall_ms())
            self.fed[key] += 1

    def start(self, name: str, directory: str) -> Process:
        disk = self._disks[directory]
        machine = self._world.machines[list(self._disks).index(directory)]
        given = [f"{name}.py", APP, "sim://world?style=kafka", TOPIC, str(disk.root)]

        def body() -> None:
            sys.argv = given
            runpy.run_path(str(EXAMPLES / given[0]), run_name="__main__")

        machine.process = self._world.scheduler.spawn(directory, body)
        self._actors.append(machine.process)
        return Process(self._world, machine.process, disk)

    def committed(self) -> int:
        return sum(one.offset for one in self.hand.committed(TOPIC).values())

    def plans(self) -> list[MemberPlan]:
        return list(plans(self._log.group(APP).view(self._world.monotonic_ms())).values())

    def until(self, reached: Callable[[], bool], what: str) -> None:
        def over() -> bool:
            for actor in self._actors:
                if actor.error is not None:
                    raise actor.error
            return reached()

        scheduler = self._world.scheduler
        assert scheduler.run_until(over, scheduler.now_ms + WAIT_MS), f"not within {WAIT_MS} ms: {what}"

    def counted(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for at in (TopicPartition(f"{APP}-counts-changelog", number) for number in range(PARTITIONS)):
            for _, key, value in changes(self._log, at):
                found[key.decode()] = sf.serde.int64.deserialize(value or b"")
        return found


@pytest.fixture
def application(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulated]:
    world = World(1, 2, getattr(request, "param", ()))
    log = SimLog("world", world, world, style="kafka")
    disks = {name: SimDisk(tmp_path / name, world) for name in ("a", "b")}

    class Stepped(sf.Session):
        def __init__(self, app: str, **given: Any) -> None:
            super().__init__(app, background=False, clock=world.machine(), **given)

        def commit(self, source_offsets: Mapping[tuple[str, int], int]) -> None:
            while self.poll_once():
                pass
            super().commit(source_offsets)

    def consumer(settings: Mapping[str, Any]) -> SimConsumer:
        actor = world.scheduler.current
        assert actor is not None
        return SimConsumer(settings, log, clock=world.machine(), calls=world, beats=lambda: not actor.ended)

    monkeypatch.setattr(sf, "Session", Stepped)
    monkeypatch.setattr(confluent_kafka, "Consumer", consumer)
    monkeypatch.setattr(sys, "argv", sys.argv)
    with ExitStack() as stack:
        stack.enter_context(outside_of(world, log, list(disks.values()), SimBucket(world, world.wall_ms)))
        stack.enter_context(SimFiles(list(disks.values())).watched())
        yield Simulated(world, log, disks)
        for actor in list(world.scheduler.actors):
            world.scheduler.end(actor)


@pytest.mark.slow
def test_example_killed_in_the_middle_and_started_again_counts_each_record_once(application: Simulated) -> None:
    counts_each_record_once_when_killed(application, "external_consumer")


@pytest.mark.slow
def test_second_process_stands_by_and_takes_over_from_one_that_is_killed(application: Simulated) -> None:
    takes_over_from_a_killed_one(application)


@pytest.mark.slow
@pytest.mark.parametrize("application", [(Fault(Kind.LOST, machine=0, at_ms=1, call="admin"),)], indirect=True)
def test_question_without_an_answer_while_partitions_are_assigned_does_not_end_the_example(
    application: Simulated,
) -> None:
    """Found in a world: the process ended with Unavailable, out of `consume`."""
    application.feed(300)
    application.start("external_consumer", "a")
    application.until(lambda: application.committed() >= 300, "all are counted")
    assert application.counted() == application.fed
    assert list(application.met) == [("lost", "admin.describe_topic")]
