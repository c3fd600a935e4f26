"""Changelogs with an open transaction, as brokers leave that lose its end: the tasks wait, and nothing else does.

Rules of this file: another client's transaction is in place of the lost end. Names are the test's own; waits are for a
condition, with a bound.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition

import standfast as sf
from standfast.ops.command.command_line import main
from standfast.ops.sidecar.worker.session import SidecarSession
from standfast.replication.kafka.reader import KafkaReader
from standfast.replication.log import Committed, Outgoing
from standfast.replication.offsets import TaskId, TopicPartition
from standfast.stream.task import planning
from support.kafka_bench import STORES, WAIT_S, KafkaBench, rows, transaction
from support.waits import until

pytestmark = [pytest.mark.kafka(2), pytest.mark.slow]

HIDDEN = "open although its task has a new owner"


@pytest.fixture
def bench(tmp_path: Path, kafka_address: str) -> Iterator[KafkaBench]:
    made = KafkaBench(tmp_path, kafka_address)
    yield made
    made.close()


def test_assignment_opens_the_tasks_beside_one_whose_rows_are_hidden(bench: KafkaBench) -> None:
    two: dict[str, Any] = {"partitions": 2, "take_over": False}
    bench.session("first", **two).close()  # which has created the changelog
    foreign = transaction(bench, "hidden")
    session = bench.session(**two)
    with pytest.raises(sf.Unavailable, match=HIDDEN):
        session.assign(active=[0, 1])
    until(lambda: session.poll_once() >= 0 and list(session.open_tasks()) == [TaskId(0, 1)], "the other task runs")
    (line,) = session.missing()
    assert line.startswith("task 0_0: could not be opened yet (") and HIDDEN in line
    foreign.commit_transaction(10)
    session.assign(active=[0, 1])
    session.wait_ready(WAIT_S)
    assert rows(session) == {"k0": "hidden"}


def test_sidecar_refuses_the_task_whose_rows_are_hidden_and_opens_the_others(bench: KafkaBench) -> None:
    two: dict[str, Any] = {"partitions": 2, "take_over": False, "background": False}
    bench.session("first", **two).close()
    foreign = transaction(bench, "hidden")
    with SidecarSession(bench.app, log=bench.address, state_dir=bench.root / "a", stores=STORES, **two) as session:
        session.hold({0, 1}, ())
        assert {one: HIDDEN in str(task.error) for one, task in session.all_tasks().items() if task.error} == {
            TaskId(0, 0): True
        }
        until(lambda: session.poll_once() >= 0 and list(session.open_tasks()) == [TaskId(0, 1)], "the other task runs")
        foreign.commit_transaction(10)
        session.hold({0, 1}, ())  # named again, the task does not wait for its next attempt
        session.wait_ready(WAIT_S)
        assert rows(session) == {"k0": "hidden"}


def test_many_tasks_whose_rows_are_hidden_wait_for_the_ends_together(
    bench: KafkaBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other they would hold up the tasks behind them, and the lease."""
    monkeypatch.setattr(planning, "ENDS_MS", 4_000)
    shared: dict[str, Any] = {"partitions": 4, "placement": "shared", "restart_grace_ms": 0}
    bench.session("first", **shared).close()
    foreign = [transaction(bench, "hidden", partition=number) for number in range(3)]
    session = bench.session(**shared)
    began = time.monotonic()
    until(lambda: session.poll_once() >= 0 and list(session.tasks()) == [3], "the fourth task is here")
    assert time.monotonic() - began < 9
    assert len(session.missing()) >= 3 and not session.ready
    for one in foreign:
        one.abort_transaction(10)


def test_another_client_that_goes_on_writing_keeps_no_task_closed(
    bench: KafkaBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records lie above the end of readers in each look, and no transaction is open."""
    bench.active("first").close()
    producer = bench.log.producer()
    written_ends = KafkaReader.written_ends

    def after_one_more(self: KafkaReader, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        producer.append({bench.changelog: [Outgoing(b"other", b"v", 1)]})
        return written_ends(self, partitions)

    monkeypatch.setattr(KafkaReader, "written_ends", after_one_more)
    assert rows(bench.active("a", take_over=False)) == {"other": "v"}
    producer.close()


def test_snapshot_with_the_hidden_rows_lets_its_task_go_on(bench: KafkaBench) -> None:
    """An owner's later commits stand above the open transaction, where no reader gets them."""
    policy = sf.SnapshotPolicy(to=str(bench.root / "snaps"))
    owner = bench.active("a", snapshots=policy)
    bench.write(owner, 3, "good")
    foreign = transaction(bench, "bad")
    bench.write(owner, 6, "good")
    kept = rows(owner)
    owner.snapshot(0)
    owner.close()
    cold = bench.active("cold", snapshots=policy)
    assert rows(cold) == kept == {f"k{number}": "good" for number in range(6)}
    assert cold.counters.snapshots.restores["restored"] == 1
    bench.write(cold, 7, "good")
    foreign.abort_transaction(10)
    cold.close()
    assert rows(bench.active("late")) == kept | {"k6": "good"}


@pytest.mark.long
def test_task_whose_offsets_are_in_an_open_transaction_keeps_no_other_from_running(
    bench: KafkaBench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.group.commit({bench.source: Committed(1)})
    stuck = transaction(bench)
    with closing(Consumer({"bootstrap.servers": bench.address.removeprefix("kafka://"), "group.id": bench.app})) as one:
        stuck.send_offsets_to_transaction([KafkaPartition(*bench.source, 9)], one.consumer_group_metadata(), 10)
    given: dict[str, Any] = {"partitions": 2, "background": True, "take_over": False, "gate": "task"}
    session = bench.session("a", "?transaction.timeout.ms=1000", **given)
    session.assign(active=[0, 1])
    until(lambda: list(session.open_tasks()) == [TaskId(0, 1)], "the other task runs")
    (line,) = session.missing()
    assert line.startswith("task 0_0: ") and "are in a transaction that is not over" in line
    session.task(1).store("kv").put("a", "1")
    session.task(1).commit()
    stuck.abort_transaction(10)
    session.wait_ready(WAIT_S)
    assert session.task(0).source_offsets() == {bench.source: 1}
    assert len([one for one in caplog.records if getattr(one, "event", "") == "task_waits_for_transaction"]) == 1


def test_plan_of_a_start_counts_no_state_within_an_open_transaction_as_ahead_of_the_log(
    bench: KafkaBench, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = bench.active("a")
    bench.write(owner, 3, "good")
    foreign = transaction(bench, "bad")
    bench.write(owner, 6, "good")
    owner.close()
    command = ["restore", "--dry-run", "--app", bench.app, "--log", bench.address, "--state-dir", str(bench.root / "a")]
    assert main([*command, "--task", "0_0", "--json"]) == 0
    (task,) = json.loads(capsys.readouterr().out)["tasks"]
    assert [(one["source"], one["reason"]) for one in task["stores"]] == [("local", "up-to-date")]
    assert rows(bench.active("a")) == {f"k{number}": "good" for number in range(6)}
    foreign.abort_transaction(10)
