"""Runs of the application of `support.closing_app` on a real log: steps, crashes, take-overs, and the oracle beside it.

    every step     a record, a watermark, or time that passes; processed, then committed, unless a crash comes first
    crash          before the commit, or between the commit of the tasks before a repartition and that of those behind
    take-over      by the same directory, or by an empty one, which has the close time from the log alone

Rules of this file: real sessions and loops, exactly once. Sessions have the real clock, processors the test's own, so
that leases and brokers are undisturbed, and silence is only what a step says. The oracle takes a step once it is
committed; results are compared at the end, as readers of committed records see them.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

from standfast.replication.log import Log, Outgoing, TopicPolicy
from standfast.replication.offsets import TopicPartition
from standfast.replication.tail.open_log import open_log
from standfast.store.clock import ManualClock, SystemClock
from standfast.store.serde import Serde
from standfast.stream.runtime.loop import Loop
from standfast.stream.task.states import TaskState
from standfast.stream.topology.assembly import assemble
from support.closing import Given, Seen
from support.closing_app import IDLE_MS, KEYS, LATE, SILENT_MS, Model, Plan, application, edge_of, mark_of, stamp_of

WAIT_S = 60.0
FOR_EVER_MS = 10**9


class Instance:
    """One instance of the application, driven by hand."""

    def __init__(self, plan: Plan, name: str, address: str, directory: Path, clock: ManualClock) -> None:
        self.app = application(
            plan, name, log=address, state_dir=directory, guarantee="exactly_once", watermark_interval_ms=0
        )
        log = open_log(address)
        try:
            self.assembled = assemble(self.app.builder, log.admin, address)
        finally:
            log.close()
        self.session = self.app.open_session(
            self.assembled, address, directory, SystemClock(), background=False, alone=True
        )
        self.loop = Loop(
            self.session,
            self.assembled.topology,
            self.app.runner_settings(self.assembled, clock),
            commit_interval_ms=FOR_EVER_MS,
            restart=self.app.restart,
            clock=SystemClock(),
        )
        self.tasks = sum(group.partitions for group in self.assembled.groups.values())
        until = time.monotonic() + WAIT_S
        while len(self.loop._running) < self.tasks:
            assert time.monotonic() < until, self.session.missing()
            self.session.poll_once()
            tasks = self.session.all_tasks()
            if len(tasks) == self.tasks and all(task.state is TaskState.RUNNING for task in tasks.values()):
                self.loop.poll_once()

    def process(self) -> None:
        """Process everything that the log has."""
        until = time.monotonic() + WAIT_S
        while True:
            assert time.monotonic() < until, "records are not processed"
            self.session.poll_once()
            self.loop.poll_once(20)
            behind = False
            for running in self.loop._running.values():
                ends = self.loop._reader.written_ends(running.runner.partitions)
                behind |= any(running.runner.inputs[at.topic].consumed < end for at, end in ends.items())
            if not behind:
                # Once more with everything here: silence is certain only once all was processed.
                self.loop.poll_once(0)
                return

    def commit(self, *groups: int) -> None:
        """Commit the tasks of these groups."""
        for task_id, running in list(self.loop._running.items()):
            if task_id.group in groups:
                running.runner.commit()

    def commit_all(self) -> None:
        """Commit, and process and commit what that brings, to the end."""
        for group in range(len(self.assembled.groups)):
            self.commit(group)
            self.process()
        self.loop.commit_all()

    def close(self) -> None:
        """End without a commit."""
        self.loop.close()
        self.session.close()


class Run:
    """A whole run by a seed."""

    def __init__(self, plan: Plan, name: str, address: str, root: Path, seed: int) -> None:
        self.plan, self.name, self.address, self.root = plan, name, address, root
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.model = Model(plan)
        self.given: list[Given] = []
        self.lives = 0
        self.log: Log = open_log(address)
        self.producer = self.log.producer()
        for topic in ("in", "out", LATE):
            self.log.admin.create_topic(plan.topic(topic), plan.partitions, TopicPolicy())
        self.instance = self.open()

    def open(self, *, empty: bool = False) -> Instance:
        self.lives += empty
        return Instance(self.plan, self.name, self.address, self.root / f"life-{self.lives}", self.clock)

    def play(self, steps: int, crashes: float) -> None:
        for number in range(steps):
            self.step(number, crash=self.random.random() < crashes)
        # The end: time passes all that is left.
        self.instance.commit_all()

    def step(self, number: int, *, crash: bool) -> None:
        rng, plan, model = self.random, self.plan, self.model
        partition, key = rng.randrange(plan.partitions), rng.choice(KEYS)
        what = rng.choice(["record"] * 5 + ["edge"] * 2 + ["mark"] * 2 * plan.marks + ["wait"])
        one, mark_ms, wait_ms = Seen(number, key, 0), None, 0
        if what in ("record", "edge"):
            of, least, most = (stamp_of, -4, 10) if what == "record" else (edge_of, -1, 1)
            one = one._replace(time=of(model, plan, key, partition, rng.randint(least, most)))
            self.write(partition, key, {"n": number}, one.time)
        elif what == "mark":
            mark_ms = mark_of(model, plan, key, partition, rng.randint(-4, 12))
            one = one._replace(time=mark_ms)
            self.write(partition, key, {"mark": mark_ms}, mark_ms)
        else:
            wait_ms = rng.choice([IDLE_MS, IDLE_MS + 1, SILENT_MS])
            self.clock.advance(wait_ms)
        self.instance.process()
        if not crash:
            self.instance.commit_all()
            self.take(what, one, partition, mark_ms, wait_ms)
            return
        between = self.random.random() < 0.5 and what != "wait" and plan.through
        if between:
            self.instance.commit(0)
            self.instance.process()
            self.take(what, one, partition, mark_ms, wait_ms)
        self.instance.close()
        self.instance = self.open(empty=self.random.random() < 0.5)
        if what == "wait":  # its effects were not committed, and the counts begin again
            model.now_ms += wait_ms
        self.given += model.restart()
        self.instance.process()
        self.instance.commit_all()
        if what != "wait" and not between:
            self.take(what, one, partition, mark_ms, wait_ms)

    def take(self, what: str, one: Seen, partition: int, mark_ms: int | None, wait_ms: int) -> None:
        """The step in the oracle."""
        if what == "wait":
            self.given += self.model.wait(wait_ms)
        else:
            self.given += self.model.record(one, partition, mark_ms, counted=what != "mark")

    def write(self, partition: int, key: str, value: Any, stamp: int) -> None:
        batch = [Outgoing(key.encode(), json.dumps(value).encode(), stamp)]
        self.producer.append({TopicPartition(self.plan.topic("in"), partition): batch})

    def results(self) -> list[Given]:
        """All committed results."""
        key_serde, found = self.result_key(), []
        for value in self.read("out"):
            key = key_serde.deserialize(value[0])
            found.append((key.end, key.start, key.key, tuple(sorted(json.loads(value[1])))))
        return found

    def late(self) -> list[int]:
        return [json.loads(value)["n"] for _, value in self.read(LATE)]

    def read(self, topic: str) -> list[tuple[bytes, bytes]]:
        reader = self.log.reader()
        partitions = [TopicPartition(self.plan.topic(topic), number) for number in range(self.plan.partitions)]
        bounds = reader.bounds(partitions)
        reader.assign({at: bounds[at].begin for at in partitions})
        found, reached, until = list[tuple[bytes, bytes]](), dict.fromkeys(partitions, 0), time.monotonic() + WAIT_S
        while any(reached[at] < bounds[at].end for at in partitions):
            assert time.monotonic() < until
            for batch in reader.fetch(1_000, 100):
                reached[batch.source] = batch.next_offset
                found += [(one.key or b"", one.value or b"") for one in batch.records]
        reader.close()
        return found

    def result_key(self) -> Serde[Any]:
        (sink,) = (one for group in self.instance.assembled.topology.groups for one in group.sinks
                   if one.topic == self.plan.topic("out"))  # fmt: skip
        return sink.key

    def close(self) -> None:
        self.instance.close()
        self.producer.close()
        self.log.close()
