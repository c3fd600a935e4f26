"""The loop with tasks that another instance took over while this one stalled.

Rules of this file: two instances on one log, driven by hand; a clock that only the test moves runs the lease out.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import standfast as sf
from standfast.replication.log import Outgoing, TopicPolicy
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.stream.runtime.loop import Loop
from standfast.stream.task import purge as purge_module
from standfast.stream.topology.assembly import assemble
from support.sessions import Bench

SOURCE, MIDDLE = TopicPartition("src", 0), TopicPartition("app-middle-repartition", 0)


@dataclass
class Instance:
    session: sf.Session
    loop: Loop

    def work(self, rounds: int = 6) -> None:
        for _ in range(rounds):
            self.session.poll_once()
            self.loop.poll_once()
            self.loop.commit_all()


def start(bench: Bench, directory: str) -> Instance:
    app = sf.App(
        "app", log=bench.address, state_dir=bench.root / directory, clock=bench.clock, lease_ms=1_000,
        restart=sf.FixedDelay(attempts=1, delay_ms=10), standby_replicas=1,
        stores=[sf.KeyValueStore("seen", sf.serde.string, sf.serde.json)],
    )  # fmt: skip
    app.stream("src").repartition("middle").group_by_key().count("seen")
    assembled = assemble(app.builder, bench.log.admin, bench.address)
    session = app.open_session(
        assembled, bench.address, bench.root / directory, bench.clock, background=False, alone=True
    )
    bench.opened.append(session)
    bench.settle(session)
    runners = app.runner_settings(assembled, bench.clock)
    loop = Loop(session, assembled.topology, runners, commit_interval_ms=100, restart=app.restart, clock=bench.clock)
    return Instance(session, loop)


def feed(bench: Bench, count: int) -> None:
    bench.log.admin.create_topic("src", 1, TopicPolicy())
    bench.log.producer().append({SOURCE: [Outgoing(b"a", b"1", 1)] * count})


def taken_over(bench: Bench) -> tuple[Instance, Instance]:
    """The first instance stalled, the second has its tasks, and went on to the end of the input."""
    feed(bench, 5)
    first = start(bench, "a")
    first.work()
    feed(bench, 5)
    bench.clock.advance(2_000)  # the lease of the first runs out
    second = start(bench, "b")
    second.work()
    assert len(second.session.open_tasks()) == 2
    return first, second


def test_task_whose_next_record_was_purged_by_its_new_owner_is_given_up(bench: Bench) -> None:
    first, second = taken_over(bench)
    bench.log.admin.delete_records({MIDDLE: second.session.task(TaskId(1, 0)).source_offsets()[MIDDLE]})
    first.loop.poll_once()  # the fetch finds no record at its position
    bench.clock.advance(20)
    first.loop.poll_once()
    first.work()
    assert len(second.session.open_tasks()) == 2
    assert first.session.open_tasks() == {}
    feed(bench, 1)
    second.work()
    assert dict(second.session.read("seen", 0).store.all()) == {"a": 11}
    first.loop.close()
    second.loop.close()


def test_purge_passes_over_tasks_that_are_gone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purge_module, "PURGE_INTERVAL_MS", 10)
    feed(bench, 5)
    first = start(bench, "a")
    first.work()
    bench.clock.advance(20)
    # Between two rounds of the loop the session's own thread may close a task.
    first.session.all_tasks()[TaskId(1, 0)].fail(sf.Fenced("somebody else owns it"))
    first.loop._purge.step(one.task for one in first.loop._running.values())
    first.loop.close()


def test_source_that_lost_records_before_they_were_processed_is_said_plainly(bench: Bench) -> None:
    feed(bench, 5)
    first = start(bench, "a")
    first.work()
    feed(bench, 5)
    bench.log.admin.delete_records({SOURCE: 8})
    first.loop.poll_once()
    bench.clock.advance(20)
    with pytest.raises(sf.InvalidRequest, match=r"src-0 begins at 8 .* next offset to process is 5"):
        for _ in range(6):
            first.work()
    first.loop.close()
