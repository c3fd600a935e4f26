"""A compacted changelog that lost its head beside rows at an earlier position: they may be the last copy."""

from __future__ import annotations

import json
from typing import Any

import pytest

import standfast as sf
from standfast.ops.cli.command_line import main
from standfast.replication.offsets import TaskId, TopicPartition
from support.sessions import Bench

KV = TopicPartition("app-kv-changelog", 0)
STORES = [sf.KeyValueStore("kv", sf.serde.string, sf.serde.string)]
ROWS = 500


def write(session: sf.Session, first: int, last: int) -> None:
    task = session.task(0)
    for number in range(first, last):
        task.store("kv").put(f"{number:05}", "v")
    task.commit()


def behind(bench: Bench) -> sf.Session:
    """An active instance whose log holds 505 records; the rows of instance "b" are at the first 500."""
    first = bench.active(stores=STORES)
    second = bench.session("b", stores=STORES, take_over=False)
    second.assign(standby=[0])
    write(first, 0, ROWS)
    bench.settle(second)
    second.close()
    write(first, ROWS, ROWS + 10)
    bench.embedded.truncate(KV, ROWS + 5)
    return first


def offline_rows(bench: Bench, capsys: pytest.CaptureFixture[str]) -> int:
    capsys.readouterr()
    assert main(["scan", "kv", "--limit", "9999", "--json", "--offline", str(bench.root / "b" / "app" / "0_0")]) == 0
    return len(json.loads(capsys.readouterr().out)["rows"])


def test_active_beside_a_compacted_log_without_its_head_is_refused_until_accepted(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    behind(bench).close()
    refused = bench.session("b", stores=STORES)
    with pytest.raises(
        sf.StateLost, match=r"task 0_0: .*app-kv-changelog-0.*below offset 505.*accept_missing"
    ) as error:
        refused.assign(active=[0])
    assert error.value.reason == "history-missing"
    refused.close()
    assert offline_rows(bench, capsys) == ROWS
    accepted = bench.active("b", stores=STORES, accept_missing_history=True)
    assert len(list(accepted.task(0).store("kv").all())) == 5
    assert accepted.counters.wipes == {"truncated": 1}


def test_standby_that_meets_the_lost_head_while_it_tails_stays_closed_with_its_rows(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    first = bench.active(stores=STORES)
    second = bench.session("b", stores=STORES, take_over=False)
    second.assign(standby=[0])
    write(first, 0, ROWS)
    bench.settle(second)
    write(first, ROWS, ROWS + 10)
    bench.embedded.truncate(KV, ROWS + 5)
    bench.settle(second)
    task = second.tasks()[0]
    assert (task.state.value, task.role) == ("closed", "standby")
    assert "below offset 505" in str(task.error)
    assert second.counters.wipes == {}
    second.close()
    assert offline_rows(bench, capsys) == ROWS


@pytest.mark.usefixtures("small_batches")
def test_restore_that_meets_the_lost_head_in_its_middle_keeps_what_it_has(bench: Bench) -> None:
    first = bench.active(stores=STORES)
    for number in range(12):
        write(first, 1_000 * number, 1_000 * (number + 1))
    first.close()
    cold = bench.session("cold", stores=STORES)
    cold.assign(active=[0])
    cold.poll_once()
    bench.embedded.truncate(KV, 11_000)
    with pytest.raises(sf.NotReady, match="below offset 11000 were removed"):
        cold.wait_ready(0.3)
    assert cold.counters.wipes == {}
    assert list((cold.state_path / ".aside").glob("*")) == []


@pytest.mark.parametrize("placement", ["shared", "group"])
def test_standby_that_is_refused_on_opening_stays_closed_and_stops_nothing(
    bench: Bench, placement: str, capsys: pytest.CaptureFixture[str]
) -> None:
    behind(bench).close()
    settings: dict[str, Any] = {"stores": STORES, "placement": placement, "standby_replicas": 1}
    first = bench.session(**settings)
    if placement == "group":
        first._instance.adopt([TaskId(0, 0), TaskId(0, 1)])
    bench.settle(first)
    first.wait_ready(30)
    second = bench.session("b", **settings)
    bench.settle(first, second)
    assert second.counters.wipes == {}
    found = {one.task: one for one in second.statistics().tasks}
    assert (found["0_0"].role, found["0_0"].state, found["0_1"].state) == ("standby", "closed", "standby")
    assert "below offset 505" in found["0_0"].error
    assert (first.ready, second.ready) == (True, True)
    first.close()
    bench.settle(second)
    second.close()
    assert offline_rows(bench, capsys) == ROWS


def test_refused_task_that_is_taken_over_keeps_the_gate_shut_and_says_why(bench: Bench) -> None:
    behind(bench).close()
    only = bench.session("b", stores=STORES, placement="shared")
    bench.settle(only)
    assert not only.ready
    (told,) = only.missing()
    assert "task 0_0 failed" in told
    assert "below offset 505" in told
    assert only.counters.wipes == {}


def test_doctor_names_the_task_that_will_be_refused(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    behind(bench).close()
    capsys.readouterr()
    flags = ["--app", "app", "--log", bench.address, "--state-dir", str(bench.root / "b"), "--json"]
    assert main(["doctor", *flags]) == 1
    found = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["severity"] == "error"]
    assert [(one["rule"], one["where"]) for one in found] == [
        ("history-missing", f"task {TaskId(0, 0)} in {bench.root / 'b' / 'app' / '0_0'}, store 'kv'")
    ]
    assert "below offset 505" in found[0]["what"]
    assert "accept_missing_history" in found[0]["fix"]
